r"""A Gaussian process that knows the signs of some partial derivatives.

Which model when: ``MonotoneGP`` if an outcome can only rise, or only fall, with some
inputs: training error with capacity, demand with price, effect with dose. Known signs
then replace some evaluations. If the signs hold for the parts of the objective, and the
parts are observed, model each part with a ``MonotoneGP`` and their sum with a
``DecomposedGP``. Leave out a sign that holds only in most places.

Hyperparameters are fitted to the evidence of the data, log p(y), or with
``signs_in_fit`` to the approximate evidence of data and signs (log Z_EP, the last
display of section 3 in [Riihimaki2010monotonicity]_),

    log Z_EP = log p(y | sites) + log p(sites).

``ExactMarginalLogLikelihood`` computes the first term from the prior given the sites;
the second is an *added loss term* of GPyTorch. Expectation propagation (EP) runs at
each evaluation. At its fixed point log Z_EP is stationary in the sites, so its gradient
is taken with the sites held.

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

__all__ = ["EPConvergenceWarning", "MonotoneGP"]

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from types import NoneType
from typing import Any, Literal

import numpy as np
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import add_output_dim
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT
from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    Likelihood,
)
from gpytorch.means import Mean, ZeroMean
from gpytorch.mlls import (
    AddedLossTerm,
    ExactMarginalLogLikelihood,
    MarginalLogLikelihood,
)
from linear_operator import to_linear_operator
from scipy.special import ndtr
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_structured._botorch_names import DefaultType
from botorch_structured.linalg.factor import Array
from botorch_structured.models import checks
from botorch_structured.models.fast_inference import (
    FastSingleTaskGP,
    noise_at,
    with_variance_floor,
)
from botorch_structured.models.input_transforms import (
    dataset_task,
    refuse_categories,
    refuse_dependencies,
)
from botorch_structured.models.map_fit import fit_map
from botorch_structured.models.monotone.array_evidence import ArrayGP, EvidenceObjective
from botorch_structured.models.monotone.expectation_propagation import (
    EPConvergenceWarning,
    EPResult,
    EPRun,
    GaussianSites,
    ep_result,
    expectation_propagation,
    warn_unless_converged,
)
from botorch_structured.models.monotone.site_kernel import (
    ConditionedProcess,
    DerivativeSites,
    SiteConditionedKernel,
    SiteConditionedMean,
    SlopeMoments,
)
from botorch_structured.models.outcome_scale import with_least_variance
from botorch_structured.models.parameters import UnknownFormError
from botorch_structured.spaces.arguments import check_column, check_count
from botorch_structured.spaces.parameter_tree import HierarchicalDependencies

# Numbers in the largest array of a fit. Above, several threads of torch are faster.
_MOST_NUMBERS = 2**20
# How many points signs are examined at.
_CANDIDATES = 256
# BoTorch's names of hyperparameters with a batch, and those in a prior given sites.
_WRAPPED = {
    "mean_module.raw_constant": "mean_module.base_mean.raw_constant",
    "covar_module.raw_lengthscale": "covar_module.base_kernel.raw_lengthscale",
}
_NO_SIGN = "monotone: expected at least one sign, got none."


class SiteEvidence(AddedLossTerm):
    """log p(sites) as of the last call in training mode."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def loss(self, *params: Any) -> Tensor:
        return self.value

    def __getstate__(self) -> dict[str, Any]:
        return {"value": self.value.detach()}  # tensors with a graph cannot be copied


class MonotoneGP(FastSingleTaskGP):
    r"""A ``SingleTaskGP`` with known signs of some partial derivatives.

    **Model.** At *virtual points* v the derivative along each monotone column j is
    observed to have its sign, with probability Phi(sign d_j f(v) / nu) (the display of
    section 2.2 of [Wang2018monotonicity]_, equation (5) of
    [Riihimaki2010monotonicity]_). EP replaces each such factor by a Gaussian one, a
    *site*. The prior given Gaussian sites is a Gaussian process again, and conditioning
    it on data is exact, so that posteriors, joint covariances, gradients, fantasies and
    acquisition functions are BoTorch's own. Sites are found when the model is made and
    when it enters evaluation mode (``eval()``, or the first prediction); also when
    outcomes are replaced or a state is loaded there. After other changes call
    ``update_sites``. Fantasies and conditioned models keep the sites, as they keep the
    hyperparameters.

    **Fit.** ``fit_gpytorch_mll`` fits hyperparameters to the data alone; they equal
    those of the ``SingleTaskGP`` without signs up to rounding. Then signs are imposed
    one at a time, each at the point where the posterior gives it the lowest
    probability, until no sign is less probable than ``min_probability`` (at most 50).
    None is imposed where the data already imply it; where data are few, the variance
    remains large.
    ``ep_result`` reports whether EP converged; if it did not, there is an
    ``EPConvergenceWarning``.

    **As published.** The paper imposes signs on a grid and fits hyperparameters to the
    evidence of data and signs: ``as_published``, or ``virtual_X="grid",
    signs_in_fit=True``. Predictions are then overconfident. A process whose derivative
    is positive at a hundred points is steep at most of them, also where the function is
    flat, and continues this slope to the corners of the box. And a hundred positive
    derivatives have the highest probability under long lengthscales, which outweighs
    the evidence of a few rows: on nine random rows of the training error of the paper's
    elastic net (medians of eight draws) lengthscales grow from 0.6 and 0.2 to 1.5 and
    0.8, the noise variance from 0.005 to 0.15, and the median error of the sum from 0.5
    to 1.7 predicted standard deviations (calibrated: 0.67).

    **When signs help.** Signs help if they are certain and data are few. In a search
    that starts from four points they improve the result on a mixture of two monotone
    curves, and make no difference on an elastic net (``benchmarks.quality.wang`` and
    README). If the data are so noisy that a fit without signs interprets noise as
    structure, ``signs_in_fit`` finds a larger noise variance.

    Data that contradict a sign are weighed against it: the larger ``nu`` is, the more
    the sign yields. A wrong sign shows in many ``virtual_points`` and in values of
    ``probability_monotone`` below ``min_probability``. Derivatives that are small
    against ``nu`` are hardly constrained.

    Virtual points are fixed on the axes of the model, that is after
    ``input_transform``. If the transform is learned (``Warp``), or computed again from
    other data (``Normalize`` without bounds), they move in the space of ``train_X``
    away from the ``virtual_X`` and ``bounds`` of construction.

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
            deviation of at least 1e-5 (1e-3 in single precision), because GPyTorch
            rounds smaller variances up. If it reverses the order of outcomes, the signs
            are reversed with it.
        input_transform: Must map each monotone column to one column of its own.
        virtual_X: Where signs are imposed. Default (None): "adaptive", one point at a
            time in ``bounds`` where a sign is least probable ([WangBerger2016shape]_),
            until no sign at 256 candidates is less probable than ``min_probability``,
            or there are 50 points; again when hyperparameters or data have changed.
            Each output, and each element of a batch, has points of its own, except with
            ``signs_in_fit``.
            "grid": all of the paper's 10, 10 x 10 or 4 x 4 x 4 points, and 64 Sobol
            points beyond three columns. A ``v x d`` tensor in the space of
            ``train_X``: these points.
        bounds: ``2 x d``, the box for virtual points in the space of ``train_X``.
            Default: [0, 1] on the axes of the model, after ``input_transform``; in a
            column whose data lie outside, their range.
        nu: Width of the probit, the size below which a derivative may have either sign,
            on the axes of the model: standardised outcomes per unit of transformed
            input. The paper's is 0.1.
        signs_in_fit: Whether hyperparameters are fitted to the approximate evidence of
            data and signs, log Z_EP, as in the paper, instead of that of the data. The
            gradient is exact at the fixed point of EP, which runs at each evaluation: a
            fit takes four times as long. Adaptive points are then added once, between
            two rounds of the fit.
        min_probability: In (0, 1); "adaptive" imposes a sign only where its probability
            is lower. Default: 0.5 / k for k monotone columns. Below 0.5 the posterior
            mean of the derivative has the wrong sign; the lowest of k probabilities is
            lower by chance, hence the division by k. [WangBerger2016shape]_ continue
            to 0.9 or more. The larger it is, the smaller the variances of slopes far
            from data.

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

    _fit_caches = ("_predictor",)
    _predictor: ConditionedProcess | None = None
    #: What the last run of expectation propagation reported.
    ep_result: EPResult | None = None
    mean_module: Any
    covar_module: Any
    _subset_batch_dict: dict[str, int]
    # +1 or -1 on the model's axes, ``aug_batch_shape x k`` for ``k`` monotone columns
    _column_signs: Tensor
    # True while the model is called, and while it is fitted: an optimiser may change
    # modes, but attempts that are rolled back need as many points as before.
    _is_called = False
    _is_fitting = False

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        monotone: Mapping[int, int],
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        virtual_X: Tensor | Literal["adaptive", "grid"] | None = None,
        bounds: Tensor | None = None,
        nu: float = 0.1,
        signs_in_fit: bool = False,
        min_probability: float | None = None,
    ) -> None:
        modules: dict[str, Any] = {
            "likelihood": likelihood,
            "covar_module": covar_module,
            "mean_module": mean_module,
            "outcome_transform": outcome_transform,
            "input_transform": input_transform,
        }
        checks.check_modules(**modules)
        checks.check_training_data(
            train_X,
            train_Y,
            train_Yvar,
            input_transform=input_transform,
            outcome_transform=outcome_transform,
        )
        d = train_X.shape[-1]
        signs = check_monotone(monotone, d)
        if not isinstance(signs_in_fit, bool):
            raise ValueError(
                f"signs_in_fit: expected True or False, got {signs_in_fit!r}."
            )
        virtual_X = "adaptive" if virtual_X is None else virtual_X
        check_imposed(nu, virtual_X, bounds, d)
        if min_probability is None:
            min_probability = 0.5 / max(len(signs), 1)
        check_probability(min_probability, "min_probability")
        nowhere = isinstance(virtual_X, Tensor) and len(virtual_X) == 0
        has_sites = bool(signs) and not nowhere
        gaussian = (GaussianLikelihood, FixedNoiseGaussianLikelihood)
        if has_sites and not isinstance(likelihood, (*gaussian, NoneType)):
            raise ValueError(
                "likelihood: expected a GaussianLikelihood or a "
                f"FixedNoiseGaussianLikelihood, got {type(likelihood).__name__}."
            )
        super().__init__(train_X, train_Y, train_Yvar, **modules)
        self.nu = nu
        self.monotone = signs
        self.signs_in_fit = signs_in_fit
        self.min_probability = min_probability
        self._adaptive = isinstance(virtual_X, str) and virtual_X == "adaptive"
        if not has_sites:
            return
        places = transformed_columns(signs, train_X, input_transform)
        self._box = transformed_box(bounds, train_X, input_transform)
        if isinstance(virtual_X, Tensor):
            points = transformed_points(virtual_X, train_X, input_transform)
        elif self._adaptive:
            points = self._box[:0]
        else:
            points = default_virtual_points(self._box)
        columns = [column for column, _ in places.values()]
        sites = DerivativeSites(points, columns, self._aug_batch_shape)
        self.covar_module = SiteConditionedKernel(self.covar_module, sites)
        self.mean_module = SiteConditionedMean(self.mean_module, self.covar_module)
        if signs_in_fit:
            self.register_added_loss_term("log_probability_of_sites")
        per_column = torch.tensor([signs[j] * places[j][1] for j in signs])
        order = self._order_of_outcomes()
        self.register_buffer("_column_signs", order * per_column.to(order))
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
        self.register_load_state_dict_post_hook(_find_sites_of_state)
        self._find_sites()

    @classmethod
    def as_published(
        cls,
        train_X: Tensor,
        train_Y: Tensor,
        monotone: Mapping[int, int],
        **kwargs: Any,
    ) -> MonotoneGP:
        r"""The model of [Wang2018monotonicity]_, sections 2.2 and 3.1.

        Outcomes are not standardised and have a mean of zero, the kernel is an
        isotropic squared exponential with a variance and no priors, signs are imposed
        at all points of a grid with ``nu`` 0.1, and hyperparameters are fitted to the
        evidence of data and signs.

        Args:
            train_X: As in the constructor.
            train_Y: As in the constructor.
            monotone: As in the constructor.
            kwargs: What the paper leaves open: ``train_Yvar``, ``likelihood``,
                ``input_transform``, ``bounds``.

        Raises:
            TypeError: For an argument that the paper decides.
        """
        checks.check_training_data(train_X, train_Y, kwargs.get("train_Yvar"))
        _, batch_shape = cls.get_batch_dimensions(train_X, train_Y)
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
        hierarchical_dependencies: HierarchicalDependencies | None = None,
        categorical_features: Sequence[int] | None = None,
        task_feature: int | None = None,
        fidelity_features: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        r"""Constructor arguments from a dataset, as BoTorch and Ax ask for them.

        Args:
            training_data: The data.
            monotone: As in the constructor. Required; ``{}`` if no sign is known.
            hierarchical_dependencies: None or without inactive columns: this model
                takes every column as active at every point.
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

    # -- derivatives ----------------------------------------------------------------

    def derivative_posterior(
        self,
        X: Tensor,
        column: int,
    ) -> GPyTorchPosterior:
        r"""Joint posterior of the partial derivative along a column.

        Of raw outcomes with respect to raw inputs: transforms are undone by the chain
        rule. (Section 2 of [Riihimaki2010monotonicity]_, the mean and the variance of
        the derivative, with the sites as further observations.)

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

    def probability_monotone(
        self,
        X: Tensor,
        column: int,
    ) -> Tensor:
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
        mean, covariance, slope = self._derivative(X, column)
        sign = self.monotone.get(column, 1) * slope.sign() * self._order_of_outcomes()
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        sd = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
        return self._in_columns(torch.special.ndtr(sign * mean / sd))

    def add_virtual_points(
        self,
        count: int = 20,
        probability: float = 0.9,
    ) -> int:
        r"""Impose signs where they are least probable, one at a time.

        The sequential rule of Wang and Berger (2016, section 4): EP runs again after
        each sign, and no point is taken twice. A model with ``virtual_X="adaptive"``
        chooses all its points again, by its ``min_probability``, whenever it finds its
        sites; points that were added here are then lost. All columns, several outputs
        and the elements of a batch have signs at all points afterwards.

        Args:
            count: Add at most this many points for each output.
            probability: Stop when no sign at 256 points that fill the box is less
                probable.

        Returns:
            How many points were added.

        Raises:
            ValueError: If no column is monotone, for a ``count`` that is no positive
                integer, or for a ``probability`` outside (0, 1).
        """
        if not self.has_sites:
            raise ValueError(_NO_SIGN)
        check_probability(probability, "probability")
        count = check_count("count", count)
        self.eval()
        added = self._add_points(count, probability)
        result = self._run_ep()
        if added:
            warn_unless_converged(result)
        return added

    @torch.no_grad()
    def _add_points(
        self,
        count: int,
        probability: float,
    ) -> int:
        """The same without checks, and without sites."""
        before = self.virtual_points
        points, choices = self._choose(before, count, probability)
        v = len(points)
        places = sorted({i % v for chosen, _ in choices for i in chosen})
        self._set_points(points[places])
        return len(places) - len(before)

    def _choose(
        self,
        before: Tensor,
        count: int,
        probability: float,
    ) -> tuple[Tensor, list[tuple[list[int], EPRun]]]:
        """Points to choose from, and ``choose_signs`` of them for each process.

        Args:
            before: Points that have all signs already.
            count: At most so many further signs.
            probability: See ``choose_signs``.
        """
        points = candidates(before, self._box.to(before))
        moments = self._slopes(points)
        v = len(points)
        columns = range(len(moments.columns))
        start = [j * v + i for j in columns for i in range(len(before))]
        rule = self.nu, start, len(start) + count, probability
        choices = [
            choose_signs(moments, i, signs, *rule)
            for i, signs in enumerate(self._array_signs(points))
        ]
        return points, choices

    def _derivative(
        self,
        X: Tensor,
        column: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Moments on the model's axes, and the slope of the input transform.

        Returns:
            ``batch_shape (x m) x n``, ``batch_shape (x m) x n x n``, and
            ``batch_shape (x 1) x n``.
        """
        raw = checks.raw_inputs(self)
        column = check_column("column", column, raw.shape[-1])
        self.eval()
        checks.check_points(X, raw.shape[-1], self.train_targets.dtype)
        transform = getattr(self, "input_transform", None)
        place = column
        slope = torch.ones_like(X[..., 0])
        x = self.transform_inputs(X)
        if transform is not None:
            place = transformed_columns({column: 1}, raw, transform)[column][0]
            with torch.enable_grad():
                at = X.detach().clone().requires_grad_(True)
                moved = self.transform_inputs(at)[..., place].sum()
                slope = torch.autograd.grad(moved, at)[0][..., column]
        if self._num_outputs > 1:
            x, _ = add_output_dim(x, original_batch_shape=self._input_batch_shape)
            slope = slope.unsqueeze(-2)
        moments = self._process(given_sites=self.has_sites).slopes(x, [place])
        return moments.mean.to(x), moments.covariance().to(x), slope

    def _process(self, given_sites: bool) -> ConditionedProcess:
        """The process given the data, at the present hyperparameters."""
        X = self.train_inputs[0]
        X = X if self._has_transformed_inputs else self.transform_inputs(X)
        noise = noise_at(self.likelihood, X, self.train_targets.shape)
        modules = self.mean_module, self.covar_module
        return ConditionedProcess(*modules, X, self.train_targets, noise, given_sites)

    def _slopes(self, points: Tensor) -> SlopeMoments:
        """Moments of the derivatives with signs, given the data alone."""
        columns = self.covar_module.sites.columns
        return self._process(given_sites=False).slopes(points, columns)

    # -- sites ------------------------------------------------------------------------

    @property
    def has_sites(self) -> bool:
        """Whether any sign is imposed; without, the model is a ``SingleTaskGP``."""
        return isinstance(self.covar_module, SiteConditionedKernel)

    @property
    def virtual_points(self) -> Tensor:
        """``v x d``, on the axes of the model (after ``input_transform``)."""
        if not self.has_sites:
            return self.train_inputs[0].new_zeros(0, self.train_inputs[0].shape[-1])
        return self.covar_module.sites.points

    @property
    def site_signs(self) -> Tensor:
        """Signs of the derivatives on the model's axes, ``aug_batch_shape x s``."""
        return self._signs_at(self.virtual_points)

    def _signs_at(self, points: Tensor) -> Tensor:
        return self._column_signs.repeat_interleave(len(points), dim=-1)

    def _array_signs(self, points: Tensor) -> Array:
        """The signs at some points, ``b x s`` for ``b`` processes."""
        signs = self._signs_at(points).cpu().double().numpy()
        return signs.reshape(self._aug_batch_shape.numel(), -1)

    def update_sites(self) -> EPResult:
        """Place adaptive sites, and run expectation propagation to its fixed point.

        The model calls this when it enters evaluation mode. Call it after changes of
        hyperparameters, noise variances or ``nu`` in evaluation mode.

        Returns:
            The report, which is also in ``ep_result``. There is no warning in training
            mode, in which only the result at the end of a fit matters.

        Raises:
            ValueError: If the model has no sites.
        """
        if not self.has_sites:
            raise ValueError(_NO_SIGN)
        result = self._find_sites()
        if not self.training:
            warn_unless_converged(result)
        return result

    def _find_sites(self) -> EPResult:
        if self._adaptive and not self.signs_in_fit:
            return self._place_sites()
        if self._adaptive:
            self._add_points(50, self.min_probability)
        return self._run_ep()

    @torch.no_grad()
    def _run_ep(self) -> EPResult:
        """At the points as they are, from the sites as they are."""
        sites = self.covar_module.sites
        moments = self._slopes(sites.points)
        signs = self.site_signs.double()
        start = sites.gaussian
        rows = [signs, moments.mean, start.precision, signs * start.shift]
        rows = [row.expand_as(moments.mean) for row in rows]
        # in one copy from a device
        both = torch.cat([torch.stack(rows, dim=-2), moments.covariance()], dim=-2)
        count = self._aug_batch_shape.numel()
        arrays = both.reshape(count, *both.shape[-2:]).cpu().numpy()
        runs = []
        for array in arrays:
            sign = array[0]
            covariance = sign[:, None] * array[4:] * sign
            first = array[2:4].ravel()
            run = expectation_propagation(sign * array[1], covariance, self.nu, first)
            runs.append(_with_signs(run, sign))
        return self._accept(runs)

    @torch.no_grad()
    def _place_sites(self) -> EPResult:
        """Choose signs for each process, from none; other sites have no precision."""
        nothing = self.virtual_points[:0]
        points, choices = self._choose(nothing, 50, self.min_probability)
        v = len(points)
        places = list(dict.fromkeys(i % v for chosen, _ in choices for i in chosen))
        self._set_points(points[places])
        signs = self._array_signs(points[places])
        runs = []
        for sign, (chosen, run) in zip(signs, choices, strict=True):
            at = [i // v * len(places) + places.index(i % v) for i in chosen]
            spread = np.zeros((2, len(sign)))
            spread[:, at] = run.sites.reshape(2, -1)
            run = run._replace(sites=spread.ravel())
            runs.append(_with_signs(run, sign))
        return self._accept(runs)

    def _set_points(self, points: Tensor) -> None:
        """Take other points, without sites."""
        sites = self.covar_module.sites
        sites.points = points.to(sites.points)
        nothing = sites.points.new_zeros(*self._aug_batch_shape, sites.num_sites)
        sites.set(GaussianSites(nothing, nothing.clone(), nothing.sum(-1)))

    def _accept(self, runs: Sequence[EPRun]) -> EPResult:
        self.ep_result = ep_result(runs, self._aug_batch_shape)
        self.covar_module.sites.set(self.ep_result.sites)
        self._clear_cache()
        return self.ep_result

    def _in_columns(self, values: Tensor) -> Tensor:
        """``aug_batch_shape x n`` to ``batch_shape x n x m``."""
        return values.unsqueeze(-1) if self._num_outputs == 1 else values.mT

    def _order_of_outcomes(self) -> Tensor:
        """+1 where the targets rise with outcomes, else -1, ``aug_batch_shape x 1``."""
        targets = self._in_columns(self.train_targets.detach())
        order = signs_of(targets, getattr(self, "outcome_transform", None))
        return order if self._num_outputs == 1 else order.unsqueeze(-1)

    # -- the prior given the sites --------------------------------------------------

    def __call__(
        self,
        *args: Tensor,
        **kwargs: Any,
    ) -> MultivariateNormal:
        """Posterior given the sites; in training mode, the prior that is fitted."""
        self._is_called = True
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._is_called = False

    def forward(self, x: Tensor) -> MultivariateNormal:
        """The prior given the sites at ``batch_shape x n x d`` inputs.

        In training mode: the prior that is fitted, which has no sites unless
        ``signs_in_fit``.

        Raises:
            UnsupportedError: In training mode for a call that is not the model's own:
                BoTorch's ``efficient_loo_cv`` would hold the sites of all rows.
        """
        if not self.has_sites:
            return super().forward(x)
        if self.training:
            if not self._is_called:
                raise UnsupportedError(
                    "forward: expected a call of the model itself in training mode, "
                    "got one of forward, such as by efficient_loo_cv: the sites of all "
                    "rows are not those without one. Use batch_cross_validation."
                )
            x = self.transform_inputs(x)
            if not self.signs_in_fit:
                prior = self.covar_module.base_kernel(x)
                return MultivariateNormal(self.mean_module.base_mean(x), prior)
            self._run_ep()
            system = self.covar_module.system()
            evidence, mean = self.mean_module.evidence_and_mean(x, system)
            self.update_added_loss_term(
                "log_probability_of_sites", SiteEvidence(evidence.to(x))
            )
            covariance = self.covar_module.conditioned(x, x, False, system)
            return MultivariateNormal(mean, to_linear_operator(covariance))
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def _fast_posterior(self, X: Tensor) -> MultivariateNormal | None:
        """The posterior of one process; for batches and several outputs GPyTorch's."""
        rows = self.train_inputs[0]
        targets = self.train_targets
        if (
            not self.has_sites
            or "forward" in self.redefined
            or (rows.ndim, targets.ndim) != (2, 1)
            or self.covar_module.batch_shape
            or settings.detach_test_caches.off()
            or rows.requires_grad
            or targets.requires_grad
        ):
            return None
        if self._predictor is None:
            self._predictor = self._process(given_sites=True)
        return self._predictor.posterior(X)

    # -- BoTorch's life cycle -------------------------------------------------------

    def custom_fit(
        self,
        mll: MarginalLogLikelihood,
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        r"""BoTorch's fit; with ``signs_in_fit`` a second one if signs were added.

        ``fit_gpytorch_mll`` calls this and passes all its arguments on. Not for direct
        use. Which signs are improbable depends on the hyperparameters.
        """
        before = len(self.virtual_points)
        mll = self._fit(mll, **kwargs)
        if self.signs_in_fit and len(self.virtual_points) > before:
            mll = self._fit(mll, **kwargs)
        return mll

    def _fit(
        self,
        mll: MarginalLogLikelihood,
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        self._is_fitting = True
        try:
            mll = fit_map(mll, None, objective=_array_objective(mll), **kwargs)
        finally:
            self._is_fitting = False
        if self.has_sites and not self.training:
            self.update_sites()
        return mll

    def train(self, mode: bool = True) -> Any:
        """As in BoTorch; sites are found when the model enters evaluation mode."""
        enters = self.training and not mode
        super().train(mode)
        if enters and self.has_sites and not self._is_fitting:
            self.update_sites()
        return self

    def set_train_data(
        self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True
    ) -> None:
        """As in BoTorch; in evaluation mode the sites of new outcomes are found."""
        super().set_train_data(inputs, targets, strict)
        # BoTorch sets inputs alone, transformed or not
        if targets is not None and self.has_sites:
            if not (self.training or self._is_fitting):
                self.update_sites()

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Tensor],
        prefix: str,
        *args: Any,
    ) -> None:
        if self.has_sites:
            signs = self._column_signs
            loaded = state_dict.get(prefix + "_column_signs", signs)
            if not torch.equal(loaded.to(signs), signs):
                raise ValueError(
                    "state_dict: expected that of a model with the same signs of "
                    f"derivatives, {signs.tolist()}, got {loaded.tolist()}."
                )
            name = prefix + "covar_module.sites.points"
            self._set_points(state_dict.get(name, self.virtual_points))
        # states of version 0.1 say which data their sites are of
        state_dict = dict(state_dict)
        state_dict.pop(prefix + "_sites_data", None)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _find_sites_of_state(
    model: MonotoneGP,
    incompatible_keys: Any,
) -> None:
    """Hook for a state that is loaded, perhaps as a part of another module's."""
    if model.has_sites and not (model.training or model._is_fitting):
        model.update_sites()


def _with_signs(
    run: EPRun,
    sign: Array,
) -> EPRun:
    """Sites on derivatives times their signs as sites on derivatives, or back."""
    return run._replace(sites=run.sites * np.append(np.ones_like(sign), sign))


def _array_objective(mll: MarginalLogLikelihood) -> EvidenceObjective | None:
    """The objective of a fit on arrays; None where it is that of tensors."""
    model: Any = mll.model
    defining = ("forward", "__call__", "compute_custom_loss", "_fast_evidence")
    terms = model.added_loss_terms()
    if (
        not model.has_sites
        or type(mll) is not ExactMarginalLogLikelihood
        or mll.likelihood is not model.likelihood
        or not all(isinstance(term, SiteEvidence) for term in terms)
        or not model.redefined.isdisjoint(defining)
        or (gp := ArrayGP.of(model)) is None
    ):
        return None
    signs: tuple[Any, ...] = ()
    sites = model.covar_module.sites
    rows = len(gp.X)
    if model.signs_in_fit and sites.num_sites:
        rows = max(rows, sites.num_sites)
        points = sites.points[:, gp.active].numpy()
        places = [gp.active.index(column) for column in sites.columns]
        (sign,) = model._array_signs(sites.points)
        start = np.append(sites.precision.numpy(), sign * sites.shift.numpy())
        signs = points, places, sign, start, model.nu
    if len(gp.active) * rows**2 > _MOST_NUMBERS:
        return None
    try:
        return EvidenceObjective(mll, gp, *signs)
    except UnknownFormError:
        return None


# -- virtual points: where they are, and signs under transforms ----------------------


def default_virtual_points(
    box: Tensor,
    count: int | None = None,
) -> Tensor:
    """A grid up to three columns, ends included, else scrambled Sobol points.

    Args:
        box: ``2 x d``, lower and upper.
        count: If given, this number of Sobol points, for any ``d``.

    Returns:
        ``v x d``, the same in each call.
    """
    d = box.shape[-1]
    side = {1: 10, 2: 10, 3: 4}.get(d)
    if count is None and side is not None:
        line = torch.linspace(0.0, 1.0, side, dtype=torch.float64)
        unit = torch.cartesian_prod(*[line] * d).reshape(-1, d)
    else:
        engine = SobolEngine(d, scramble=True, seed=0)
        unit = engine.draw(count or 64, dtype=torch.float64)
    return box[0] + unit.to(box) * (box[1] - box[0])


def candidates(
    points: Tensor,
    box: Tensor,
) -> Tensor:
    """Points, and 256 that fill a box without those among them already.

    Two points are the same if each column differs by at most 1e-6 of the box.

    Args:
        points: ``v x d``.
        box: ``2 x d``.
    """
    new = default_virtual_points(box, _CANDIDATES)
    away = (new.unsqueeze(-2) - points).abs()
    near = (away <= 1e-6 * (box[1] - box[0])).all(-1).any(-1)
    return torch.cat([points, new[~near]])


def choose_signs(
    moments: SlopeMoments,
    process: int,
    signs: Array,
    nu: float,
    chosen: Sequence[int],
    limit: int,
    probability: float,
) -> tuple[list[int], EPRun]:
    """Impose signs where one is least probable, one after the other.

    Section 3.1 of [Riihimaki2010monotonicity]_, section 4 of [WangBerger2016shape]_.
    The covariance of all derivatives, which with many signs is large, is not formed:
    there is a row of it for each sign that is imposed.

    Args:
        moments: Of the derivatives at the points to choose from.
        process: Which of the batch that they are of.
        signs: The signs of these derivatives, ``m``.
        nu: Width of the probit sites.
        chosen: Those that are imposed already, by index.
        limit: The largest number of signs.
        probability: Stop where no sign is less probable.

    Returns:
        The signs that are imposed, by index, and expectation propagation with them.
    """

    def array(values: Tensor) -> Array:
        return values.cpu().reshape(-1, len(signs))[process].numpy()

    def row(index: int) -> Array:
        return signs[index] * signs * array(moments.row(index))

    chosen = list(chosen)
    mean = signs * array(moments.mean)
    variance = array(moments.variance())
    rows = [row(index) for index in chosen]
    start: Array | None = None
    while True:
        S = np.reshape(rows, (len(rows), len(signs)))
        ep = expectation_propagation(mean[chosen], S[:, chosen], nu, start)
        gone = np.square(ep.root @ S).sum(axis=0)
        sd = np.sqrt(np.maximum(variance - gone, np.finfo(np.float64).tiny))
        probabilities = ndtr((mean + ep.weight @ S) / sd)
        probabilities[chosen] = np.inf
        index = int(probabilities.argmin())
        if len(chosen) >= limit or probabilities[index] >= probability:
            return chosen, ep
        # the fixed point is near that without the new site
        start = np.pad(ep.sites.reshape(2, -1), ((0, 0), (0, 1))).ravel()
        chosen.append(index)
        rows.append(row(index))


def transformed_box(
    bounds: Tensor | None,
    X: Tensor,
    transform: InputTransform | None,
) -> Tensor:
    """The box that virtual points fill, on the axes of the model, ``2 x d``.

    Args:
        bounds: ``2 x d`` in the space of the training inputs. None: [0, 1] in each
            column whose transformed data are in [0, 1], else their range.
        X: Training inputs, ``batch_shape x n x d``.
        transform: Of the inputs.
    """
    if bounds is not None:
        corners = _moved(bounds, X, transform).flatten(0, 1)
        return torch.stack([corners.amin(0), corners.amax(0)])
    X = _apply_transform(X, transform)
    low, high = X.reshape(-1, X.shape[-1]).aminmax(dim=0)
    inside = (low > -1e-6) & (high < 1.0 + 1e-6)
    return torch.stack([low.where(~inside, 0.0), high.where(~inside, 1.0)])


def _apply_transform(
    X: Tensor,
    transform: InputTransform | None,
) -> Tensor:
    """Transform inputs as training inputs are, without training the transform."""
    if transform is None:
        return X
    with torch.no_grad():
        return transform.preprocess_transform(X)


def transformed_points(
    virtual_X: Tensor,
    X: Tensor,
    transform: InputTransform | None,
) -> Tensor:
    """Virtual points on the axes of the model, ``v x d``.

    Args:
        virtual_X: ``v x d`` in the space of the training inputs.
        X: Training inputs, ``batch_shape x n x d``.
        transform: Of the inputs.

    Raises:
        ValueError: If the transform differs between the elements of a batch.
    """
    points = _moved(virtual_X, X, transform)
    if not bool((points == points[:1]).all()):
        raise ValueError(
            "virtual_X: expected an input_transform that is the same for all elements "
            f"of a batch, got a {type(transform).__name__} that is not: the points are "
            "shared. Without virtual_X they are placed on the axes of the model."
        )
    return points[0]


def _moved(
    points: Tensor,
    X: Tensor,
    transform: InputTransform | None,
) -> Tensor:
    """``v x d`` points in each element of the batch of ``X``, ``b x v x d``."""
    points = points.to(X).expand(*X.shape[:-2], *points.shape)
    points = _apply_transform(points, transform)
    return points.reshape(-1, *points.shape[-2:])


def transformed_columns(
    monotone: Mapping[int, int],
    X: Tensor,
    transform: InputTransform | None,
) -> dict[int, tuple[int, int]]:
    """The column of the model for each monotone column, and whether it is reversed.

    Found by changing each column from its smallest to its largest training value.

    Args:
        monotone: Columns and signs.
        X: Training inputs, ``batch_shape x n x d``.
        transform: Of the inputs.

    Returns:
        Column of the model's inputs and +1 or -1, for each monotone column.

    Raises:
        ValueError: If this changes no column or several columns of the transformed
            inputs, or one in different directions: the sign then has no counterpart.
    """
    result = {}
    for column in monotone:
        if transform is None:
            result[column] = (column, 1)
            continue
        low = X.clone()
        high = X.clone()
        smallest, largest = X[..., column].aminmax()
        low[..., column] = smallest
        high[..., column] = largest if largest > smallest else smallest + 1.0
        moved = _apply_transform(high, transform) - _apply_transform(low, transform)
        moved = moved.reshape(-1, moved.shape[-1])
        scale = moved.abs().amax().clamp_min(torch.finfo(X.dtype).tiny)
        columns = (moved.abs().amax(0) > 1e-9 * scale).nonzero().flatten().tolist()
        signs = set(moved[:, columns].sign().flatten().tolist())
        if len(columns) != 1 or len(signs) != 1:
            raise ValueError(
                f"monotone: expected an input_transform under which column {column} "
                "moves one column of the model, always in one direction; "
                f"{type(transform).__name__} moves {columns}."
            )
        result[column] = (columns[0], int(signs.pop()))
    return result


def signs_of(
    targets: Tensor,
    transform: OutcomeTransform | None = None,
) -> Tensor:
    """Whether an outcome transform keeps (+1) or reverses (-1) the order of outcomes.

    A small step from the first of the transformed outcomes is transformed back.

    Args:
        targets: ``batch_shape x n x m``, transformed.
        transform: The transform.

    Returns:
        ``batch_shape x m``.
    """
    start = targets[..., :1, :]
    end = start + 1e-2 * (1.0 + start.abs())
    step = torch.ones_like(start)
    if transform is not None:
        step = transform.untransform(end)[0] - transform.untransform(start)[0]
    return torch.where(step < 0.0, -1.0, 1.0).to(targets).squeeze(-2)


def check_imposed(
    nu: float,
    virtual_X: Tensor | str,
    bounds: Tensor | None,
    d: int,
) -> None:
    """Raise a ``ValueError`` for what says how, and where, signs cannot be imposed.

    Args:
        nu: Expected to be a positive number.
        virtual_X: Finite and ``v x d``, or a known word.
        bounds: None, or finite, ``2 x d``, and in order.
        d: Number of columns.
    """
    number = isinstance(nu, Real) and not isinstance(nu, bool)
    if not (number and math.isfinite(nu) and nu > 0.0):
        raise ValueError(f"nu: expected a positive number, got {nu!r}.")
    if isinstance(virtual_X, Tensor):
        if virtual_X.ndim != 2 or virtual_X.shape[-1] != d:
            raise ValueError(
                f"virtual_X: expected v x {d} like the columns of train_X, got "
                f"{tuple(virtual_X.shape)}."
            )
        if not bool(virtual_X.isfinite().all()):
            raise ValueError("virtual_X: expected finite values, got others.")
    elif not (isinstance(virtual_X, str) and virtual_X in ("adaptive", "grid")):
        raise ValueError(
            f'virtual_X: expected a tensor, "adaptive" or "grid", got {virtual_X!r}.'
        )
    if bounds is None:
        return
    got = tuple(bounds.shape) if isinstance(bounds, Tensor) else bounds
    if got != (2, d):
        raise ValueError(
            f"bounds: expected a tensor, 2 x {d} like the columns of train_X, got "
            f"{got!r}."
        )
    if not bool((bounds.isfinite() & (bounds[0] < bounds[1])).all()):
        raise ValueError(
            "bounds: expected finite lower bounds below upper ones, got "
            f"{bounds.tolist()}."
        )


def check_probability(
    probability: float,
    name: str,
) -> None:
    """Raise a ``ValueError`` unless it is in (0, 1)."""
    if not (isinstance(probability, Real) and 0.0 < probability < 1.0):
        raise ValueError(f"{name}: expected a number in (0, 1), got {probability!r}.")


def check_monotone(
    monotone: Mapping[int, int],
    d: int,
) -> dict[int, int]:
    """Check columns and signs, and sort them by column.

    Raises:
        ValueError: For other columns than those of the inputs, or other signs.
    """
    if not isinstance(monotone, Mapping):
        raise ValueError(
            "monotone: expected {column: +1 or -1}, got a "
            f"{type(monotone).__name__}: {monotone!r}."
        )
    signs = {check_column("monotone", j, d): sign for j, sign in monotone.items()}
    for column, sign in signs.items():
        if sign not in (1, -1):
            raise ValueError(
                f"monotone: expected +1 (increasing) or -1 (decreasing) for column "
                f"{column}, got {sign!r}."
            )
    return {column: int(signs[column]) for column in sorted(signs)}
