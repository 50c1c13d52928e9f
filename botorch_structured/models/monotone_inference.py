r"""When and how the sites of a monotone GP are placed and estimated.

Expectation propagation finds sites for the hyperparameters and the data that a model
has: where it is used in evaluation mode and either has changed since. In training mode
it is the ``SingleTaskGP`` without them, so that the objective of a fit is the evidence
of the data, unless the model was asked to fit to signs as well.

Then sites are found in each call in training mode, and the objective of a fit is the
approximate evidence of data and signs,

    log Z_EP = log p(y | sites) + log p(sites),

where the first term is what ``ExactMarginalLogLikelihood`` computes from the prior
given the sites, and the second one is an *added loss term* in the sense of GPyTorch.
The evidence is stationary in the sites at a fixed point, so that its gradient needs no
derivative of the algorithm. It takes each sign for an observation: signs at a hundred
points are most probable of nearly straight functions, which outweighs a few rows, and
what the function does beside that is taken for noise.
"""

from __future__ import annotations

__all__ = ["EPConvergenceWarning", "SiteInference"]

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from botorch.exceptions.warnings import BotorchWarning
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import AddedLossTerm
from linear_operator import to_dense, to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_structured.inference.ep_sites import GaussianSites, site_system
from botorch_structured.inference.expectation_propagation import (
    EPResult,
    expectation_propagation,
)
from botorch_structured.kernels.derivative_sites import (
    SiteConditionedKernel,
    partial_of_mean,
)
from botorch_structured.models.virtual_points import (
    default_virtual_points,
    most_violated,
)

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
