r"""A Gaussian process that knows which way a function bends.

Which model when: ``MonotoneGP`` where an outcome can only rise, or only fall, with some
inputs: training error with capacity, demand with price, effect with dose. With few data
the signs replace some. Where they hold for parts of what is optimised, and the parts
are observed, put the parts together in a ``DecomposedGP``. A sign that is merely a
tendency is better left out.

References:

.. [Wang2018monotonicity]
    W. Wang and W. J. Welch. Bayesian Optimization Using Monotonicity Information and
    Its Application in Machine Learning Hyperparameter Tuning. arXiv:1802.03532, 2018.
.. [Riihimaki2010monotonicity]
    J. Riihimaki and A. Vehtari. Gaussian processes with monotonicity information.
    AISTATS 2010.
.. [WangBerger2016shape]
    X. Wang and J. O. Berger. Estimating Shape Constrained Functions Using Gaussian
    Processes. SIAM/ASA Journal on Uncertainty Quantification 4(1), 2016.
"""

from __future__ import annotations

__all__ = [
    "DerivativePosterior",
    "EPConvergenceWarning",
    "MonotoneGP",
    "SiteInference",
]

import math
import warnings
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import torch
from botorch.exceptions.warnings import BotorchWarning
from botorch.fit import _fit_fallback
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import add_output_dim
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    Likelihood,
)
from gpytorch.means import Mean, ZeroMean
from gpytorch.mlls import AddedLossTerm, MarginalLogLikelihood
from linear_operator import to_dense, to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

import botorch_structured.models.monotone.site_kernel  # noqa: F401 (registers itself)
from botorch_structured.models.checks import (
    CheckedModel,
    check_modules,
    check_points,
    check_training_data,
)
from botorch_structured.models.input_transforms import (
    dataset_task,
    refuse_categories,
    refuse_dependencies,
)
from botorch_structured.models.monotone.derivatives import StationaryDerivatives
from botorch_structured.models.monotone.expectation_propagation import (
    EPResult,
    expectation_propagation,
)
from botorch_structured.models.monotone.site_kernel import (
    DerivativeSites,
    SiteConditionedKernel,
    SiteConditionedMean,
    partial_of_mean,
)
from botorch_structured.models.monotone.sites import GaussianSites, site_system
from botorch_structured.models.monotone.virtual_points import (
    apply_transform,
    check_bounds,
    check_monotone,
    check_probability,
    check_virtual_points,
    default_virtual_points,
    most_violated,
    signs_of,
    transformed_box,
    transformed_columns,
    transformed_points,
)
from botorch_structured.models.outcome_scale import AnyScale, with_least_variance
from botorch_structured.models.tree.leaf_model import with_variance_floor
from botorch_structured.spaces.arguments import check_column, check_count

# ----------------------------------------------------------------------
# When and how the sites of a monotone GP are placed and estimated.
#
# Expectation propagation finds sites for the hyperparameters and the data that a model
# has: where it is used in evaluation mode and either has changed since. In training mode
# it is the ``SingleTaskGP`` without them, so that the objective of a fit is the evidence
# of the data, unless the model was asked to fit to signs as well.
#
# Then sites are found in each call in training mode, and the objective of a fit is the
# approximate evidence of data and signs,
#
#     log Z_EP = log p(y | sites) + log p(sites),
#
# where the first term is what ``ExactMarginalLogLikelihood`` computes from the prior
# given the sites, and the second one is an *added loss term* in the sense of GPyTorch.
# The evidence is stationary in the sites at a fixed point, so that its gradient needs no
# derivative of the algorithm. It takes each sign for an observation: signs at a hundred
# points are most probable of nearly straight functions, which outweighs a few rows, and
# what the function does beside that is taken for noise.

if TYPE_CHECKING:  # what it is mixed into
    from botorch.models import SingleTaskGP as _Base
else:
    _Base = object


# Where signs are looked at, and how many points at most are told signs.
_CANDIDATES = 256
MOST_POINTS = 50
_SAME = 1e-6  # of the box


class EPConvergenceWarning(BotorchWarning):
    """Expectation propagation did not reach its fixed point."""


class _SiteEvidence(AddedLossTerm):
    """log p(sites), as the last call in training mode left it."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def loss(self, *params: Any) -> Tensor:
        return self.value

    def __getstate__(self) -> dict[str, Any]:
        return {"value": self.value.detach()}  # a copy has no graph


class SiteInference(_Base):
    """A ``SingleTaskGP`` whose prior is conditioned on sites, which it keeps current.

    A model without sites is a ``SingleTaskGP``.
    """

    nu: float
    signs_in_fit: bool
    min_probability: float
    mean_module: Any
    covar_module: Any
    _subset_batch_dict: dict[str, int]
    # +1 or -1 on the model's axes, ``aug_batch_shape x k`` for ``k`` monotone columns
    _column_signs: Tensor

    #: What the last run of expectation propagation reported.
    ep_result: EPResult | None = None
    # The hyperparameters and data that the sites belong to.
    _sites_at: list[Tensor] | None = None
    # A fantasy keeps the sites of its model, as it keeps the hyperparameters.
    _sites_held = False
    # While the prior that is fitted is asked for.
    _data_alone = False
    # Whether sites are placed where they are needed, in which box.
    _adaptive: bool
    _box: Tensor

    @property
    def has_sites(self) -> bool:
        """Whether any sign is asked for."""
        return isinstance(self.covar_module, SiteConditionedKernel)

    @property
    def site_signs(self) -> Tensor:
        """Of the derivatives on the model's axes, ``aug_batch_shape x s``."""
        count = self.covar_module.sites.points.shape[-2]
        return self._column_signs.repeat_interleave(count, dim=-1)

    # -- currency -----------------------------------------------------------------

    def _state(self) -> list[Tensor]:
        X = self.train_inputs[0]
        if getattr(self, "_has_transformed_inputs", False):
            X = self._original_train_inputs
        settings = self._column_signs.new_tensor([self.nu, self.min_probability])
        return [*self.parameters(), X, self.train_targets, settings]

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any
    ) -> None:
        loaded = state_dict.get(prefix + "_column_signs")
        own = self._column_signs if self.has_sites else None
        if loaded is not None and own is not None and loaded.shape == own.shape:
            if not torch.equal(loaded.to(own), own):
                raise ValueError(
                    "state_dict: expected that of a model with the same signs of "
                    f"derivatives, {own.tolist()}, got {loaded.tolist()}."
                )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _accept_sites(self) -> None:
        """The sites are right for what the model is now."""
        self._sites_at = [t.detach().clone() for t in self._state()]

    def _sites_are_current(self) -> bool:
        now, then = self._state(), self._sites_at
        if then is not None and len(now) != len(then):  # other modules
            return False
        return then is not None and all(
            a.shape == b.shape
            and a.dtype == b.dtype
            and a.device == b.device
            and torch.equal(a, b)
            for a, b in zip(now, then, strict=True)
        )

    def _keep_current(self) -> None:
        if self.has_sites and not self._sites_are_current():
            self.update_sites()

    def update_sites(self) -> EPResult:
        """Place adaptive sites, and run expectation propagation to its fixed point.

        Called where needed; of use after a change that cannot be seen, such as other
        observation noise in ``train_Yvar``.

        Returns:
            The report, which is also in ``ep_result``. In training mode there is no
            warning: what counts is the end of a fit.

        Raises:
            ValueError: If the model has no sites.
        """
        if not self.has_sites:
            raise ValueError("monotone: expected at least one sign, got none.")
        if self._adaptive and not self.signs_in_fit:
            result = self._place_sites(0, MOST_POINTS, self.min_probability)
        else:
            result = self._run_ep()
        if not self.training:
            self._warn_unless_converged()
        return result

    def _run_ep(self) -> EPResult:
        """At the points as they are."""
        sites = self.covar_module.sites
        sign, old = self.site_signs.double(), sites.gaussian
        start = GaussianSites(old.precision, sign * old.shift, old.log_scale)
        mean, covariance = self._signed_slopes(sites.points)
        result = expectation_propagation(mean, covariance, self.nu, start=start)
        if not bool(result.converged.all()):  # perhaps the start was a bad one
            again = expectation_propagation(mean, covariance, self.nu)
            result = _where(again.converged & ~result.converged, again, result)
        return self._accept_ep(result, sites.points)

    def _place_sites(self, kept: int, limit: int, probability: float) -> EPResult:
        """More points where signs are least probable, one at a time.

        Args:
            kept: How many of the points there are stay.
            limit: At most so many points.
            probability: Stop where no sign is less probable.
        """
        k = len(self.covar_module.sites.columns)
        old = self.covar_module.sites.points[:kept]
        box = self._box.to(old)
        new = default_virtual_points(box, _CANDIDATES)
        points = torch.cat([old, new[~_near(new, old, box)]])
        mean, covariance = self._signed_slopes(points)
        chosen = list(range(kept))
        while True:
            v = torch.arange(k).unsqueeze(-1) * len(points)
            at = (v + torch.tensor(chosen, dtype=v.dtype)).flatten()
            among = covariance[..., at, :]
            result = expectation_propagation(mean[..., at], among[..., at], self.nu)
            if len(chosen) >= min(limit, len(points)):
                break
            system = site_system(among[..., at], result.sites)
            explained = among.mT @ system.root.mT
            said = system.residual(mean[..., at]).unsqueeze(-1)
            p = probability_positive(
                mean + (explained @ said).squeeze(-1),
                covariance.diagonal(dim1=-2, dim2=-1) - explained.square().sum(-1),
            )
            doubt = p.reshape(-1, len(points)).amin(0)
            index = most_violated(doubt, chosen)
            if doubt[index] >= probability:
                break
            chosen.append(index)
        return self._accept_ep(result, points[chosen])

    def _accept_ep(self, result: EPResult, points: Tensor) -> EPResult:
        """What was found on slopes times their signs is what the sites say."""
        count = points.shape[-2]
        sign = self._column_signs.double().repeat_interleave(count, dim=-1)
        s = result.sites
        sites = GaussianSites(s.precision, sign * s.shift, s.log_scale)
        self.covar_module.sites.set(sites, points)
        self.ep_result = result._replace(sites=sites)
        self._accept_sites()
        self._clear_cache()
        return self.ep_result

    def _warn_unless_converged(self) -> None:
        result = self.ep_result
        if result is not None and not bool(result.converged.all()):
            warnings.warn(
                "Expectation propagation did not converge for "
                f"{int((~result.converged).sum())} of {result.converged.numel()} "
                f"models: residual {float(result.residual.max()):.1e} after "
                f"{int(result.sweeps.max())} sweeps. Signs that the data contradict "
                "strongly ask for a larger nu.",
                EPConvergenceWarning,
                stacklevel=3,
            )

    def _signed_slopes(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of the derivatives at points, each times its sign, given data."""
        mean, covariance = self._derivatives_given_data(points)
        sign = self._column_signs.double().repeat_interleave(len(points), dim=-1)
        return sign * mean, sign.unsqueeze(-1) * covariance * sign.unsqueeze(-2)

    @torch.no_grad()
    def _derivatives_given_data(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance of derivatives at ``s`` points given data, no sites.

        In double precision: ``aug_batch_shape x (k s)`` and ``... x (k s) x (k s)``.
        """
        kernel, mean_module = self.covar_module, self.mean_module
        columns = kernel.sites.columns
        X = self.train_inputs[0]
        if self.training:
            X = self.transform_inputs(X)
        derivatives = kernel.derivatives.double()
        x, points = X.double(), points.double()
        y = (self.train_targets - mean_module.base_mean(X)).double()
        factor = psd_safe_cholesky(self._with_noise(derivatives.value(x, x), X))
        cross = derivatives.cross(x, points, columns)
        right = torch.cat([cross, y.unsqueeze(-1)], dim=-1)
        solved = torch.linalg.solve_triangular(factor, right, upper=False)
        half, white = solved[..., :-1], solved[..., -1:]
        gram = derivatives.gram(points, columns)
        prior = partial_of_mean(mean_module.base_mean, points.to(X), columns).double()
        return prior + (half.mT @ white).squeeze(-1), gram - half.mT @ half

    def _with_noise(self, covariance: Tensor, X: Tensor) -> Tensor:
        """Covariance of observations at the training inputs, as the likelihood has it.

        Args:
            covariance: ``aug_batch_shape x n x n``, of values, in double precision.
            X: Transformed training inputs.
        """
        values = covariance.expand(*self.train_targets.shape, -1)
        mean = values.new_zeros(values.shape[:-1])
        seen = self.likelihood(
            MultivariateNormal(mean, to_linear_operator(values)), [X]
        )
        return to_dense(seen.lazy_covariance_matrix).double()

    # -- the prior given the sites ------------------------------------------------

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Posterior given current sites; in training mode, the prior that is fitted."""
        if self.training and not self.signs_in_fit:
            self._data_alone = True
            try:
                return super().__call__(*args, **kwargs)
            finally:
                self._data_alone = False
        if self.training or not self._sites_held:
            self._keep_current()
        return super().__call__(*args, **kwargs)

    def forward(self, x: Tensor) -> MultivariateNormal:
        """The prior given the sites at ``batch_shape x n x d`` inputs."""
        if not self.has_sites:
            return super().forward(x)
        if not self.training:
            return MultivariateNormal(self.mean_module(x), self.covar_module(x))
        x = self.transform_inputs(x)
        kernel, mean = self.covar_module, self.mean_module
        if self._data_alone:
            return MultivariateNormal(mean.base_mean(x), kernel.base_kernel(x))
        self._keep_current()
        system = kernel.system()  # once for mean, covariance and evidence
        if self.signs_in_fit:
            evidence = _SiteEvidence(mean.log_evidence(system).to(x))
            self.update_added_loss_term("log_probability_of_sites", evidence)
        explained = kernel.explained(x, system)
        covariance = kernel.remaining(x, x, explained, explained)
        shifted = mean.shifted(x, explained, system)
        return MultivariateNormal(shifted, to_linear_operator(covariance))

    def _get_test_prior_mean_and_covariances(
        self,
        train_inputs: Sequence[Tensor],
        test_inputs: Sequence[Tensor],
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """What GPyTorch asks for a prediction, with the training inputs seen once.

        Its own method repeats them for each element of a t-batch, which is free with a
        kernel that is evaluated where it is needed, and not with a solve per row.
        """
        if not self.has_sites:
            return super()._get_test_prior_mean_and_covariances(
                train_inputs, test_inputs, **kwargs
            )
        kernel, mean = self.covar_module, self.mean_module
        (X,), (x,) = train_inputs, test_inputs
        x = x.expand(*torch.broadcast_shapes(X.shape[:-2], x.shape[:-2]), *x.shape[-2:])
        system = kernel.system()
        old, new = kernel.explained(X, system), kernel.explained(x, system)
        shifted = mean.shifted(x, new, system)
        return (
            shifted,
            to_linear_operator(kernel.remaining(x, x, new, new)),
            to_linear_operator(kernel.remaining(x, X, new, old)),
            shifted.shape[:-1],
            shifted.shape[-1:],
            MultivariateNormal,
        )

    # -- BoTorch's life cycle -----------------------------------------------------

    def train(self, mode: bool = True) -> Any:
        """As in BoTorch; at the end of training the sites are brought up to date."""
        ends = self.training and not mode
        super().train(mode)
        if self._sites_at is not None:
            if mode:
                self._sites_held = False
            if ends:
                before = self.ep_result
                self._keep_current()
                if before is self.ep_result:  # else there was a warning if need be
                    self._warn_unless_converged()
        return self

    def get_fantasy_model(self, *args: Any, **kwargs: Any) -> Any:
        """A model with more data, and the same hyperparameters and sites."""
        fantasy = super().get_fantasy_model(*args, **kwargs)
        fantasy._sites_held = True
        return fantasy

    def subset_output(self, idcs: list[int]) -> Any:
        """Fewer outputs, with their sites."""
        model = super().subset_output(idcs)
        if self.has_sites:
            model._accept_sites()
        return model

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """As in BoTorch. The sites are part of the state, and kept as loaded."""
        result = super().load_state_dict(state_dict, *args, **kwargs)
        if self.has_sites:
            self._accept_sites()
        return result

    def _apply(self, fn: Any) -> Any:
        if self._sites_at is None:
            return super()._apply(fn)
        before = next(self.parameters())
        kept = before.dtype, before.device
        current = self._sites_are_current()
        result = super()._apply(fn)
        after = next(self.parameters())
        if (after.dtype, after.device) != kept:
            self._clear_cache()
            if current:
                self._accept_sites()
        return result


def _where(better: Tensor, a: EPResult, b: EPResult) -> EPResult:
    """Elements of a batch from one of two runs."""

    def pick(x: Tensor, y: Tensor) -> Tensor:
        mask = better.unsqueeze(-1) if x.ndim > better.ndim else better
        return torch.where(mask, x, y)

    sites = GaussianSites(*map(pick, a.sites, b.sites))
    return EPResult(sites, *map(pick, a[1:], b[1:]))


def _near(candidates: Tensor, points: Tensor, box: Tensor) -> Tensor:
    """Which candidates are among the points, up to rounding."""
    away = (candidates.unsqueeze(-2) - points).abs()
    return (away <= _SAME * (box[1] - box[0])).all(-1).any(-1)


def probability_positive(mean: Tensor, variance: Tensor) -> Tensor:
    """P(g > 0) for each entry of a Gaussian vector."""
    smallest = torch.finfo(variance.dtype).tiny
    return torch.special.ndtr(mean / variance.clamp_min(smallest).sqrt())


def keep_sites_as_loaded(module: SiteInference, incompatible_keys: Any) -> None:
    """Hook for a state that is loaded into a module which contains the model."""
    module._accept_sites()


def bring_sites_up_to_date(module: SiteInference, prefix: str, keep: bool) -> None:
    """Hook before a state is saved: hyperparameters and sites belong together."""
    if not module._sites_held:
        module._keep_current()


# ----------------------------------------------------------------------
# What a monotone GP says of its derivatives, and where it should be told more.


class DerivativePosterior(SiteInference):
    """Posterior of a partial derivative, and where its sign is in doubt."""

    monotone: dict[int, int]

    def derivative_posterior(self, X: Tensor, column: int) -> GPyTorchPosterior:
        r"""Joint posterior of the partial derivative along a column.

        Of raw outcomes with respect to raw inputs: transforms are undone by the chain
        rule.

        Args:
            X: ``batch_shape x n x d``, in the space of ``train_X``.
            column: Any column, monotone or not.

        Returns:
            A posterior over ``batch_shape x n x m``.

        Raises:
            ValueError: For points as in ``posterior``, a column out of range, a kernel
                without known derivatives, or an outcome transform that is not linear:
                under one a derivative is not Gaussian.
        """
        transform = getattr(self, "outcome_transform", None)
        if transform is not None and not transform._is_linear:
            raise ValueError(
                "outcome_transform: expected a linear one, such as Standardize, under "
                f"which a derivative is Gaussian, got {type(transform).__name__}."
            )
        column = check_column("column", column, self._raw_columns)
        mean, covariance, slope = self._derivative(X, column)
        if transform is not None:
            Y = self.train_targets.new_zeros(
                *self._input_batch_shape, 1, self._num_outputs
            )
            scale = transform.untransform(Y + 1.0)[0] - transform.untransform(Y)[0]
            scale = scale.squeeze(-1) if self._num_outputs == 1 else scale.mT
            slope = slope * scale
        mean = mean * slope
        covariance = with_variance_floor(covariance)
        covariance = covariance * slope.unsqueeze(-1) * slope.unsqueeze(-2)
        mvn = MultivariateNormal(mean, to_linear_operator(covariance))
        if self._num_outputs > 1:
            mvn = MultitaskMultivariateNormal.from_batch_mvn(mvn, task_dim=-1)
        return with_least_variance(GPyTorchPosterior(mvn), 0.0)

    def probability_monotone(self, X: Tensor, column: int) -> Tensor:
        r"""Probability, point by point, that the derivative has its sign.

        Args:
            X: ``batch_shape x n x d``, in the space of ``train_X``.
            column: A monotone column, for the sign it was given; for any other column
                the probability that outcomes increase.

        Returns:
            ``batch_shape x n x m``.

        Raises:
            ValueError: For points as in ``posterior``, a column out of range, or a
                kernel without known derivatives.
        """
        column = check_column("column", column, self._raw_columns)
        mean, covariance, slope = self._derivative(X, column)
        Y = self._in_columns(self.train_targets)
        transform = getattr(self, "outcome_transform", None)
        if transform is not None:
            order = signs_of(transform.untransform(Y)[0], Y, transform)
            order = order if self._num_outputs == 1 else order.unsqueeze(-1)
            slope = slope * order
        sign = self.monotone.get(column, 1) * slope.sign()
        probability = probability_positive(
            sign * mean, covariance.diagonal(dim1=-2, dim2=-1)
        )
        return probability.unsqueeze(-1) if self._num_outputs == 1 else probability.mT

    def add_virtual_points(self, count: int = 20, probability: float = 0.9) -> int:
        r"""Ask for signs where they are least probable, one point at a time.

        The sequential rule of Wang and Berger (2016, section 4): sites are estimated
        anew after each point, and no point is taken twice. Points of a model with
        ``virtual_X="adaptive"`` are chosen anew, by its ``min_probability``, when its
        hyperparameters or data change; what was added here is then gone.

        Args:
            count: At most so many.
            probability: Stop where no sign is less probable, among 256 points that fill
                the box.

        Returns:
            How many points were added.

        Raises:
            ValueError: If no column is monotone, for a ``count`` that is no positive
                integer, or for a ``probability`` outside (0, 1).
        """
        if not self.has_sites:
            raise ValueError("monotone: expected at least one sign, got none.")
        check_probability(probability, "probability")
        count = check_count("count", count)
        before = len(self.covar_module.sites.points)
        self._place_sites(before, before + count, probability)
        added = len(self.covar_module.sites.points) - before
        if added:
            self._warn_unless_converged()
        return added

    def custom_fit(
        self, mll: MarginalLogLikelihood, **kwargs: Any
    ) -> MarginalLogLikelihood:
        r"""BoTorch's fit; a second one if signs are fitted to and become more by it.

        ``fit_gpytorch_mll`` calls this; every argument of it is honoured. Not for
        direct use. Where signs are in doubt depends on the hyperparameters.
        """
        mll = _fit_fallback(mll, **kwargs)
        again = self.has_sites and self._adaptive and self.signs_in_fit
        if again and self.add_virtual_points(probability=self.min_probability):
            mll = _fit_fallback(mll, **kwargs)
        return mll

    @property
    def _raw_columns(self) -> int:
        """How many columns inputs have before they are transformed."""
        if getattr(self, "_has_transformed_inputs", False):
            return self._original_train_inputs.shape[-1]
        return self.train_inputs[0].shape[-1]

    def _in_columns(self, targets: Tensor) -> Tensor:
        """``aug_batch_shape x n`` to ``batch_shape x n x m``."""
        return targets.unsqueeze(-1) if self._num_outputs == 1 else targets.mT

    def _derivative(self, X: Tensor, column: int) -> tuple[Tensor, Tensor, Tensor]:
        """Moments on the model's axes, and the slope of the input transform.

        Returns:
            ``batch_shape (x m) x n``, ``batch_shape (x m) x n x n``, and
            ``batch_shape (x 1) x n``.
        """
        self.eval()
        check_points(X, self._raw_columns, self.train_targets.dtype)
        transform = getattr(self, "input_transform", None)
        place, slope = column, torch.ones_like(X[..., 0])
        x = self.transform_inputs(X)
        if transform is not None:
            raw = self._original_train_inputs
            place = transformed_columns({column: 1}, raw, transform)[column][0]
            with torch.enable_grad():
                at = X.detach().clone().requires_grad_(True)
                moved = self.transform_inputs(at)[..., place].sum()
                slope = torch.autograd.grad(moved, at)[0][..., column]
        if self._num_outputs > 1:
            x, _ = add_output_dim(x, original_batch_shape=self._input_batch_shape)
            slope = slope.unsqueeze(-2)
        mean, covariance = self._derivative_on_axes(x, place)
        return mean, covariance, slope

    def _derivative_on_axes(self, x: Tensor, column: int) -> tuple[Tensor, Tensor]:
        """Posterior of d_j f at transformed inputs: the joint Gaussian, conditioned."""
        if not self._sites_held:
            self._keep_current()
        X = self.train_inputs[0]
        base = self.covar_module.base_kernel if self.has_sites else self.covar_module
        prior = self.mean_module.base_mean if self.has_sites else self.mean_module
        k = StationaryDerivatives.of(base)
        gram = k.gram(x, [column])
        cross = k.cross(X, x, [column]).mT
        mean = partial_of_mean(prior, x, [column])
        if self.has_sites:
            sites, system = self.covar_module.sites, self.covar_module.system()
            to_sites = k.gram(x, [column], sites.points, sites.columns)
            explained = to_sites.to(system.root) @ system.root.mT
            train = self.covar_module.explained(X, system)
            gram = gram - explained @ explained.mT
            cross = cross - explained @ train.mT
            said = self.mean_module.residual(system).unsqueeze(-1)
            mean = mean + (explained @ said).squeeze(-1)
        K = to_dense(self.covar_module(X)).double()
        factor = psd_safe_cholesky(self._with_noise(K, X))
        error = (self.train_targets - self.mean_module(X)).double().unsqueeze(-1)
        white = torch.linalg.solve_triangular(factor, error, upper=False)
        half = torch.linalg.solve_triangular(factor, cross.double().mT, upper=False)
        mean = mean + (half.mT @ white).squeeze(-1)
        return mean.to(x), (gram - half.mT @ half).to(x)


# ----------------------------------------------------------------------
class MonotoneGP(
    CheckedModel, DerivativePosterior, SiteInference, AnyScale, SingleTaskGP
):
    r"""A ``SingleTaskGP`` that was told the signs of some of its partial derivatives.

    At *virtual points* v the derivative along each monotone column j is seen to have
    its sign, with probability Phi(sign d_j f(v) / nu) (section 2.2 of
    [Wang2018monotonicity]_, after [Riihimaki2010monotonicity]_). Expectation
    propagation replaces each of these observations by a Gaussian one, a *site*, and
    sites fold into the prior: what remains is an exact GP, so that posteriors, joint
    covariances, gradients, fantasies and acquisition functions are BoTorch's own.
    Fantasies and conditioned models keep the sites, as they keep the hyperparameters.

    ``fit_gpytorch_mll`` fits hyperparameters to the data alone: to the bit those of the
    ``SingleTaskGP`` without signs, in training mode the model is that one. Where its
    posterior then finds a sign improbable (``min_probability``), at one point after the
    other, the sign is told. This happens again whenever hyperparameters or data have
    changed since. Where data say the sign themselves nothing is added, and where they
    leave it open the variance stays that of a function about which little is known.
    ``ep_result`` says whether EP converged; if not, there is a warning.

    The paper tells all signs of a grid and fits to the evidence of data and signs
    together: ``as_published``, or ``virtual_X="grid", signs_in_fit=True``. That makes
    the model too sure of itself. A process that has the same sign at a hundred points
    is steep at most of them, where the function may be flat, and continues its slope to
    the corners. And a hundred signs, taken for observations, are most probable of
    nearly straight functions, which outweighs a few rows: on nine random rows of the
    training error of the paper's elastic net (medians of eight draws) lengthscales grow
    from 0.6 and 0.2 to 1.5 and 0.8, noise from 0.005 to 0.15, and the median error of
    the sum from 0.5 to 1.7 predicted standard deviations (0.67 would be right). An
    amplitude that is fitted, too, changes nothing of that.

    Signs help where they are certain and data are few: in a search from four points
    they gain on a mixture of two monotone curves, and neither gain nor lose on an
    elastic net (``benchmarks.quality.wang`` and README). Where the data are so noisy
    that a fit without signs takes noise for the function, ``signs_in_fit`` lets the
    noise grow instead.

    Data that contradict a sign are weighed against it: the sign yields, the more so the
    larger ``nu`` is. A sign that is wrong shows in ``virtual_points``, many, and in a
    ``probability_monotone`` below what was asked. Signs are soft: little is said of
    derivatives that are small against ``nu``.

    Virtual points stay where they are on the axes of the model. Where an input
    transform learns (``Warp``), or learns anew from other data (``Normalize`` without
    bounds), they then are elsewhere in the space of ``train_X`` than ``virtual_X`` and
    ``bounds`` said at construction.

    Without signs or virtual points the model *is* a ``SingleTaskGP``, its state dict
    included.

    Args:
        train_X: ``batch_shape x n x d``; columns in [0, 1] or an ``input_transform``.
        train_Y: ``batch_shape x n x m``. Each batch element and output has sites of its
            own at the same virtual points.
        monotone: ``{column: +1 | -1}``: outcomes rise (+1) or fall (-1) with the
            column, both in the space of ``train_X`` and ``train_Y``.
        train_Yvar: ``batch_shape x n x m`` observed noise variances; inferred if None.
        likelihood: Gaussian. Default: as in ``SingleTaskGP``.
        covar_module: An ``RBFKernel`` or a ``MaternKernel`` with ``nu=2.5``, in a
            ``ScaleKernel`` or not, isotropic or not. Default: as in ``SingleTaskGP``,
            an ``RBFKernel`` with a lengthscale per column. The paper's is
            ``ScaleKernel(RBFKernel())`` with a ``ZeroMean``.
        mean_module: Differentiable. Default: a ``ConstantMean``.
        outcome_transform: Default: ``Standardize``, for outcomes of any scale. Under
            another one (or None) outcomes that are not all equal must have a standard
            deviation of at least 1e-5 (1e-3 in single precision): GPyTorch's smallest
            variance is larger. May reverse the order of outcomes (then the signs are
            reversed with it).
        input_transform: Must map each monotone column to one column of its own.
        virtual_X: Where signs are told. Default (None): "adaptive", in ``bounds``, one
            by one where a sign is least probable ([WangBerger2016shape]_) until none of
            256 places is left below ``min_probability``, or 50 points are told; anew
            when hyperparameters or data have changed. "grid": at all of the paper's 10,
            10 x 10 or 4 x 4 x 4 points, and 64 Sobol points beyond three columns. A
            ``v x d`` tensor in the space of ``train_X``: there.
        bounds: ``2 x d``, the box for virtual points in the space of ``train_X``.
            Default: [0, 1] on the axes of the model, after ``input_transform``; where
            data are outside, their range.
        nu: How small a derivative may have either sign, in units of the model's own
            axes: standardised outcomes per unit of transformed inputs. The paper's 0.1.
        signs_in_fit: Whether hyperparameters are fitted to the approximate evidence of
            data and signs, log Z_EP, as the paper has it, instead of that of the data.
            The gradient is exact at the fixed point of EP, which runs in each step: a
            fit takes ten times as long. Adaptive points are then added between two
            rounds of the fit.
        min_probability: Of a sign, in (0, 1), that "adaptive" leaves to itself.
            Default: 0.5 / k with k monotone columns: of one column it asks that the
            mean has the sign, of several that none is contradicted (one of k is below
            by luck more easily). [WangBerger2016shape]_ go on until signs are all but
            certain, 0.9 or more; the larger it is, the surer the model gets of slopes
            that it has not seen.

    Raises:
        ValueError: For columns, signs, ``nu``, ``bounds``, ``virtual_X`` or
            ``min_probability`` out of range, another kernel, a likelihood that is not
            Gaussian, or a transform that mixes a monotone column with others.

    Example:
        >>> # validation error - training error rises with the number of trees
        >>> model = MonotoneGP(train_X, train_Y, monotone={0: +1})
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.probability_monotone(train_X, column=0)
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        monotone: Mapping[int, int],
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        virtual_X: Tensor | Literal["adaptive", "grid"] | None = None,
        bounds: Tensor | None = None,
        nu: float = 0.1,
        signs_in_fit: bool = False,
        min_probability: float | None = None,
    ) -> None:
        check_modules(
            likelihood=likelihood,
            covar_module=covar_module,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        check_training_data(
            train_X, train_Y, train_Yvar, outcome_transform=outcome_transform
        )
        d = train_X.shape[-1]
        signs = check_monotone(monotone, d)
        number = isinstance(nu, Real) and not isinstance(nu, bool)
        if not (number and math.isfinite(nu) and nu > 0.0):
            raise ValueError(f"nu: expected a positive number, got {nu!r}.")
        if not isinstance(signs_in_fit, bool):
            raise ValueError(
                f"signs_in_fit: expected True or False, got {signs_in_fit!r}."
            )
        virtual_X = "adaptive" if virtual_X is None else virtual_X
        if isinstance(virtual_X, Tensor):
            check_virtual_points(virtual_X, d)
        elif not (isinstance(virtual_X, str) and virtual_X in ("adaptive", "grid")):
            raise ValueError(
                'virtual_X: expected a tensor, "adaptive" or "grid", got '
                f"{virtual_X!r}."
            )
        if min_probability is None:
            min_probability = 0.5 / max(len(signs), 1)
        check_probability(min_probability, "min_probability")
        if bounds is not None:
            check_bounds(bounds, d)
        none = isinstance(virtual_X, Tensor) and len(virtual_X) == 0
        has_sites = bool(signs) and not none
        if has_sites:
            _check_modules(covar_module, likelihood)
        super().__init__(
            train_X=train_X,
            train_Y=train_Y,
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            covar_module=covar_module,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        self.nu = nu
        self.monotone = signs
        self.signs_in_fit = signs_in_fit
        self.min_probability = min_probability
        self._adaptive = isinstance(virtual_X, str) and virtual_X == "adaptive"
        if not has_sites:
            return
        with torch.no_grad():
            X = apply_transform(train_X, input_transform)
        places = transformed_columns(signs, train_X, input_transform)
        columns = [place for place, _ in places.values()]
        self._box = transformed_box(bounds, X, input_transform)
        if isinstance(virtual_X, Tensor):
            points = transformed_points(virtual_X, train_X, input_transform)
        elif self._adaptive:
            points = X.new_zeros(0, X.shape[-1])
        else:
            points = default_virtual_points(self._box)
        per_column = torch.tensor([signs[j] * places[j][1] for j in signs])
        self._condition_on_sites(points, columns, per_column.to(train_X), train_Y)

    def _condition_on_sites(
        self, points: Tensor, columns: list[int], per_column: Tensor, train_Y: Tensor
    ) -> None:
        """Put the prior given sites in the place of the prior."""
        sites = DerivativeSites(points, columns, self._aug_batch_shape)
        for column in sites.columns:
            _check_seen(self.covar_module, column)
        self.covar_module = SiteConditionedKernel(self.covar_module, sites)
        self.mean_module = SiteConditionedMean(self.mean_module, self.covar_module)
        if self.signs_in_fit:
            self.register_added_loss_term("log_probability_of_sites")
        # order of outcomes under the transform, ``batch_shape x m``
        Y = self.train_targets
        Y = Y.unsqueeze(-1) if self.num_outputs == 1 else Y.mT
        transform = getattr(self, "outcome_transform", None)
        order = signs_of(train_Y, Y, transform)
        order = order.squeeze(-1) if self.num_outputs == 1 else order
        self.register_buffer("_column_signs", order.unsqueeze(-1) * per_column)
        if hasattr(self, "_subset_batch_dict"):
            self._subset_batch_dict = {
                _WRAPPED.get(name, name): dim
                for name, dim in self._subset_batch_dict.items()
            } | {
                "covar_module.sites.precision": -2,
                "covar_module.sites.shift": -2,
                "covar_module.sites.log_scale": -1,
                "_column_signs": -2,
            }
        self.to(points)
        self.register_load_state_dict_post_hook(keep_sites_as_loaded)
        self.register_state_dict_pre_hook(bring_sites_up_to_date)
        if self._adaptive:
            self._place_sites(0, MOST_POINTS, self.min_probability)
        else:
            self.update_sites()

    @property
    def virtual_points(self) -> Tensor:
        """``v x d``, on the axes of the model (after ``input_transform``)."""
        if not self.has_sites:
            return self.train_inputs[0].new_zeros(0, self.train_inputs[0].shape[-1])
        return self.covar_module.sites.points

    @classmethod
    def as_published(
        cls,
        train_X: Tensor,
        train_Y: Tensor,
        monotone: Mapping[int, int],
        **kwargs: Any,
    ) -> MonotoneGP:
        r"""The model of [Wang2018monotonicity]_, section 2.

        Outcomes as they are with a mean of zero, an isotropic squared exponential with
        a variance and no priors, signs at all points of a grid with ``nu`` 0.1, and
        hyperparameters fitted to the evidence of data and signs.

        Args:
            train_X: As in the constructor.
            train_Y: As in the constructor.
            monotone: As in the constructor.
            kwargs: What the paper leaves open: ``train_Yvar``, ``likelihood``,
                ``input_transform``, ``bounds``.

        Raises:
            TypeError: For an argument that the paper decides.
        """
        check_training_data(train_X, train_Y, kwargs.get("train_Yvar"))
        batch_shape = train_X.shape[:-2]
        if train_Y.shape[-1] > 1:
            batch_shape = torch.Size([*batch_shape, train_Y.shape[-1]])
        kernel = RBFKernel(batch_shape=batch_shape)
        if kwargs.get("train_Yvar") is None:
            kwargs.setdefault("likelihood", GaussianLikelihood(batch_shape=batch_shape))
        return cls(
            train_X,
            train_Y,
            monotone,
            covar_module=ScaleKernel(kernel, batch_shape=batch_shape),
            mean_module=ZeroMean(),
            outcome_transform=None,
            virtual_X="grid",
            nu=0.1,
            signs_in_fit=True,
            min_probability=None,
            **kwargs,
        )

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset,
        *,
        monotone: Mapping[int, int] | None = None,
        hierarchical_dependencies: Mapping[int, Mapping[float, Sequence[int]]]
        | None = None,
        categorical_features: Sequence[int] | None = None,
        task_feature: int | None = None,
        fidelity_features: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        r"""Constructor arguments from a dataset, as BoTorch and Ax ask for them.

        Args:
            training_data: The data.
            monotone: As in the constructor. It has to be given; ``{}`` says that no
                sign is known.
            hierarchical_dependencies: None or without inactive columns: every column
                is seen everywhere.
            categorical_features: None or empty: columns are numbers, as in
                ``SingleTaskGP``.
            task_feature: None, likewise; nor may ``training_data`` have tasks.
            fidelity_features: Fidelities are ordinary columns of this model.
            kwargs: Other arguments of the constructor, passed on.

        Raises:
            ValueError: Without ``monotone``, or if a column depends on another or has
                no order.
        """
        if monotone is None:
            raise ValueError(
                "monotone: expected {column: +1 or -1}, with {} where no sign is "
                "known, got None. In Ax it is one of the ModelConfig's model_options."
            )
        refuse_dependencies(cls, training_data, hierarchical_dependencies)
        task = dataset_task(training_data, task_feature)
        refuse_categories(cls, *(categorical_features or ()), task)
        inputs = super().construct_inputs(training_data=training_data)
        return {**inputs, "monotone": monotone, **kwargs}


_WRAPPED = {
    "mean_module.raw_constant": "mean_module.base_mean.raw_constant",
    "covar_module.raw_lengthscale": "covar_module.base_kernel.raw_lengthscale",
}


def _check_modules(covar_module: Kernel | None, likelihood: Likelihood | None) -> None:
    if covar_module is not None:
        StationaryDerivatives.of(covar_module)
    gaussian = (GaussianLikelihood, FixedNoiseGaussianLikelihood)
    if likelihood is not None and not isinstance(likelihood, gaussian):
        raise ValueError(
            "likelihood: expected a GaussianLikelihood or a "
            f"FixedNoiseGaussianLikelihood, got {type(likelihood).__name__}."
        )


def _check_seen(kernel: Kernel, column: int) -> None:
    active = StationaryDerivatives.of(kernel).active
    if active is not None and column not in active:
        raise ValueError(
            f"covar_module: expected a kernel that sees column {column}, which is "
            f"monotone, got one of columns {list(active)}."
        )
