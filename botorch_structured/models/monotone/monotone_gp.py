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

from collections.abc import Mapping, Sequence
from threading import RLock
from types import NoneType
from typing import Any, Literal

import torch
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
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from linear_operator import to_linear_operator
from torch import Tensor

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
    DerivativeSites,
    SiteConditionedKernel,
    SiteConditionedMean,
    SiteEvidence,
    SitePredictor,
    derivative_moments,
)
from botorch_structured.models.monotone.virtual_points import (
    check_imposed,
    check_monotone,
    check_probability,
    choose_points,
    default_virtual_points,
    signs_of,
    transformed_box,
    transformed_columns,
    transformed_points,
)
from botorch_structured.models.outcome_scale import with_least_variance
from botorch_structured.models.parameters import UnknownFormError
from botorch_structured.spaces.arguments import check_column, check_count
from botorch_structured.spaces.parameter_tree import HierarchicalDependencies

# At how many points at most signs are imposed.
_MOST_POINTS = 50
# Numbers in the largest array of a fit. Above, several threads of torch are faster.
_MOST_NUMBERS = 2**20
# BoTorch's names of hyperparameters with a batch, and those in a prior given sites.
_WRAPPED = {
    "mean_module.raw_constant": "mean_module.base_mean.raw_constant",
    "covar_module.raw_lengthscale": "covar_module.base_kernel.raw_lengthscale",
}
# Several threads may predict: the first one brings the sites up to date.
_ONE_UPDATE = RLock()
_NO_SIGN = "monotone: expected at least one sign, got none."


class MonotoneGP(FastSingleTaskGP):
    r"""A ``SingleTaskGP`` with known signs of some partial derivatives.

    **Model.** At *virtual points* v the derivative along each monotone column j is
    observed to have its sign, with probability Phi(sign d_j f(v) / nu) (the display of
    section 2.2 of [Wang2018monotonicity]_, equation (5) of
    [Riihimaki2010monotonicity]_). EP replaces each such factor by a Gaussian one, a
    *site*. The prior given Gaussian sites is a Gaussian process again, and conditioning
    it on data is exact, so that posteriors, joint covariances, gradients, fantasies and
    acquisition functions are BoTorch's own. Fantasies and conditioned models keep the
    sites, as they keep the hyperparameters.

    **Fit.** ``fit_gpytorch_mll`` fits hyperparameters to the data alone; they equal
    those of the ``SingleTaskGP`` without signs up to rounding. Then virtual points are
    placed one at a time, each where the posterior gives a sign its lowest probability,
    until no sign is less probable than ``min_probability``. They are placed again
    whenever hyperparameters or data have changed. No point is placed where the data
    already imply the signs; where data are few, the variance remains large.
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
    _predictor: SitePredictor | None = None
    #: What the last run of expectation propagation reported.
    ep_result: EPResult | None = None
    mean_module: Any
    covar_module: Any
    _subset_batch_dict: dict[str, int]
    # +1 or -1 on the model's axes, ``aug_batch_shape x k`` for ``k`` monotone columns
    _column_signs: Tensor
    # Of the data that saved sites belong to, see ``_digest``; NaN where not known.
    _sites_data: Tensor
    # The hyperparameters and data that the sites belong to; None without sites.
    _sites_at: tuple[Tensor, float, float] | None = None
    # A fantasy keeps the sites of its model, as it keeps the hyperparameters.
    _sites_held = False
    # True within a fit without signs: BoTorch copies states and writes them back.
    _fits_data_alone = False
    # True while ``__call__`` asks ``forward`` for the prior that is fitted to data.
    _data_alone = False

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
        order = self._order_of_outcomes(train_Y)
        self.register_buffer("_column_signs", order * per_column.to(order))
        self.register_buffer("_sites_data", torch.full((3,), torch.nan).to(train_X))
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
        self.register_load_state_dict_post_hook(_keep_sites_as_loaded)
        self.register_state_dict_pre_hook(_bring_sites_up_to_date)
        if self._adaptive:
            self._place_adaptive_sites()
        else:
            self.update_sites()

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

    def derivative_posterior(self, X: Tensor, column: int) -> GPyTorchPosterior:
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
        mean, covariance, slope = self._derivative(X, column)
        Y = self._in_columns(self.train_targets)
        transform = getattr(self, "outcome_transform", None)
        if transform is not None:
            slope = slope * self._order_of_outcomes(transform.untransform(Y)[0])
        sign = self.monotone.get(column, 1) * slope.sign()
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        sd = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
        return self._in_columns(torch.special.ndtr(sign * mean / sd))

    def add_virtual_points(self, count: int = 20, probability: float = 0.9) -> int:
        r"""Impose signs where they are least probable, one point at a time.

        The sequential rule of Wang and Berger (2016, section 4): EP runs again after
        each point, and no point is taken twice. A model with ``virtual_X="adaptive"``
        chooses all its points again, by its ``min_probability``, when hyperparameters
        or data change; points that were added here are then lost. Several outputs, and
        the elements of a batch, have signs at all points afterwards.

        Args:
            count: Add at most this many points.
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
        before = len(self.virtual_points)
        self._place_sites(before, before + count, probability)
        added = len(self.virtual_points) - before
        if added:
            warn_unless_converged(self.ep_result)
        return added

    def _derivative(self, X: Tensor, column: int) -> tuple[Tensor, Tensor, Tensor]:
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
        place, slope = column, torch.ones_like(X[..., 0])
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
        self._keep_current()
        mean, covariance = self._derivatives(x, [place], given_sites=self.has_sites)
        return mean.to(x), covariance.to(x), slope

    def _derivatives(
        self, x: Tensor, columns: Sequence[int], given_sites: bool
    ) -> tuple[Tensor, Tensor]:
        """Moments of derivatives given the data, see ``derivative_moments``."""
        X, targets = self.train_inputs[0], self.train_targets
        X = self.transform_inputs(X) if self.training else X
        noise = noise_at(self.likelihood, X, targets.shape)
        modules = self.mean_module, self.covar_module
        return derivative_moments(*modules, X, targets, noise, x, columns, given_sites)

    # -- sites: where they are, what they say, and for which state of the model -----

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
        """Of the derivatives on the model's axes, ``aug_batch_shape x s``."""
        return self._signs_at(self.virtual_points)

    def _signs_at(self, points: Tensor) -> Tensor:
        return self._column_signs.repeat_interleave(len(points), dim=-1)

    def update_sites(self) -> EPResult:
        """Place adaptive sites, and run expectation propagation to its fixed point.

        The model calls this when hyperparameters or data have changed. Call it after a
        change that the model cannot detect, such as other noise variances in a fixed
        noise likelihood.

        Returns:
            The report, which is also in ``ep_result``. There is no warning in training
            mode, in which only the result at the end of a fit matters.

        Raises:
            ValueError: If the model has no sites.
        """
        if not self.has_sites:
            raise ValueError(_NO_SIGN)
        chosen = self._adaptive and not self.signs_in_fit
        result = self._place_adaptive_sites() if chosen else self._run_ep()
        if not self.training:
            warn_unless_converged(self.ep_result)
        return result

    def _run_ep(self) -> EPResult:
        """At the points as they are."""
        sites = self.covar_module.sites
        mean, covariance = self._slopes_at(sites.points)
        starts = self._array_sites().reshape(len(mean), -1)
        runs = [
            expectation_propagation(m, S, self.nu, start)
            for m, S, start in zip(mean, covariance, starts, strict=True)
        ]
        return self._accept_ep(runs, sites.points)

    def _array_sites(self) -> Array:
        """Sites on derivatives times their signs, ``aug_batch_shape x 2 x s``."""
        old = self.covar_module.sites.gaussian
        both = torch.stack([old.precision, self.site_signs * old.shift], dim=-2)
        return both.cpu().numpy()

    def _place_adaptive_sites(self) -> EPResult:
        # within a fit, sites are found again at all points
        shared, p = self.signs_in_fit, self.min_probability
        return self._place_sites(0, _MOST_POINTS, p, shared)

    def _place_sites(
        self, kept: int, limit: int, probability: float, shared: bool = True
    ) -> EPResult:
        """Keep that many points and ``choose_points`` of which signs are improbable."""
        sites = self.covar_module.sites
        points, runs = choose_points(
            self._slopes_at,
            len(sites.columns),
            self.nu,
            sites.points[:kept],
            self._box.to(sites.points),
            limit,
            probability,
            shared,
        )
        return self._accept_ep(runs, points)

    def _accept_ep(self, runs: Sequence[EPRun], points: Tensor) -> EPResult:
        """Turn sites on derivatives times their signs into sites on derivatives."""
        result = ep_result(runs, self._aug_batch_shape, points.device)
        s, sign = result.sites, self._signs_at(points).double()
        sites = GaussianSites(s.precision, sign * s.shift, s.log_scale)
        self.covar_module.sites.set(sites, points)
        self.ep_result = result._replace(sites=sites)
        self._accept_sites()
        self._clear_cache()
        return self.ep_result

    @torch.no_grad()
    def _slopes_at(self, points: Tensor) -> tuple[Array, Array]:
        """Moments of signed derivatives given the data, see ``choose_points``."""
        columns = self.covar_module.sites.columns
        mean, covariance = self._derivatives(points, columns, given_sites=False)
        sign = self._signs_at(points).double()
        covariance = sign.unsqueeze(-1) * covariance * sign.unsqueeze(-2)
        b, m = self._aug_batch_shape.numel(), sign.shape[-1]
        mean, covariance = (sign * mean).cpu(), covariance.cpu()
        return mean.reshape(b, m).numpy(), covariance.reshape(b, m, m).numpy()

    def _state(self) -> tuple[Tensor, float, float]:
        """What the sites depend on: one tensor, compared at once, and settings."""
        parts = [*self.parameters(), checks.raw_inputs(self), self.train_targets]
        flat = torch.cat([t.detach().reshape(-1) for t in parts])
        return flat, self.nu, self.min_probability

    def _accept_sites(self) -> None:
        """Take the sites as those of the present state."""
        self._sites_at = self._state()

    def _digest(self) -> tuple[Tensor, Tensor]:
        """Three numbers that other training data would not have, and how large terms
        of them are."""
        values = [
            t.detach().double().reshape(-1)
            for t in (checks.raw_inputs(self), self.train_targets)
        ]
        values.insert(0, torch.ones_like(values[1]))
        weights = [torch.linspace(1.0, 2.0, len(v)).to(v).sin() for v in values]
        sums = [w @ v for w, v in zip(weights, values, strict=True)]
        sizes = [w @ v.abs() for w, v in zip(weights, values, strict=True)]
        return torch.stack(sums), torch.stack(sizes)

    def _accept_loaded_sites(self) -> None:
        """Take loaded sites where they are of these data; otherwise they are old."""
        own, size = self._digest()
        # targets are transformed again after loading, perhaps in single precision
        same = ((self._sites_data.double() - own).abs() <= 1e-6 * size).all()
        self._sites_at = self._state() if same else None
        self._clear_cache()

    def _sites_are_current(self) -> bool:
        if self._sites_at is None:
            return False
        (old, *settings), (new, *others) = self._sites_at, self._state()
        same = old.device == new.device and old.dtype == new.dtype
        return settings == others and same and torch.equal(old, new)

    def _keep_current(self) -> None:
        if self._sites_held or not self.has_sites or self._sites_are_current():
            return
        with _ONE_UPDATE:  # threads that wait for it find current sites
            if not self._sites_are_current():
                self.update_sites()

    def _in_columns(self, values: Tensor) -> Tensor:
        """``aug_batch_shape x n`` to ``batch_shape x n x m``."""
        return values.unsqueeze(-1) if self._num_outputs == 1 else values.mT

    def _order_of_outcomes(self, Y: Tensor) -> Tensor:
        """+1 where the targets rise with outcomes, else -1, ``aug_batch_shape x 1``.

        Args:
            Y: The outcomes that the targets are made of, ``batch_shape x n x m``.
        """
        transform = getattr(self, "outcome_transform", None)
        order = signs_of(Y, self._in_columns(self.train_targets), transform)
        return order if self._num_outputs == 1 else order.unsqueeze(-1)

    # -- the prior given the sites --------------------------------------------------

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Posterior given current sites; in training mode, the prior that is fitted."""
        if not self.training:
            self._keep_current()
        self._data_alone = self.training and not self.signs_in_fit
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._data_alone = False

    def forward(self, x: Tensor) -> MultivariateNormal:
        """The prior given the sites at ``batch_shape x n x d`` inputs.

        Within a call in training mode: the prior that is fitted, which has no sites
        unless ``signs_in_fit``. BoTorch's leave-one-out calls ``forward`` itself, for
        the prior of predictions.
        """
        if not self.has_sites:
            return super().forward(x)
        kernel, mean = self.covar_module, self.mean_module
        if self.training:
            x = self.transform_inputs(x)
            if self._data_alone:
                return MultivariateNormal(mean.base_mean(x), kernel.base_kernel(x))
            self._keep_current()
            system = kernel.system()  # once for mean, covariance and evidence
            if self.signs_in_fit:
                evidence = SiteEvidence(mean.log_evidence(system).to(x))
                self.update_added_loss_term("log_probability_of_sites", evidence)
            explained = kernel.explained(x, system)
            covariance = kernel.remaining(x, x, explained, explained)
            shifted = mean.shifted(x, explained, system)
            return MultivariateNormal(shifted, to_linear_operator(covariance))
        return MultivariateNormal(mean(x), kernel(x))

    def _fast_posterior(self, X: Tensor) -> MultivariateNormal | None:
        """Of one process; for batches and several outputs GPyTorch's."""
        data = self.train_inputs[0], self.train_targets
        if (
            not self.has_sites
            or "forward" in self.redefined
            or (data[0].ndim, data[1].ndim) != (2, 1)
            or settings.detach_test_caches.off()
            or any(t.requires_grad for t in data)
        ):
            return None
        if (predictor := self._predictor) is None:
            kernel, mean = self.covar_module, self.mean_module
            if kernel.batch_shape:
                return None
            noise = noise_at(self.likelihood, data[0], data[1].shape).detach()
            predictor = SitePredictor(kernel, mean, *data, noise)
            self._predictor = predictor
        return predictor(X)

    # -- BoTorch's life cycle -------------------------------------------------------

    def custom_fit(
        self, mll: MarginalLogLikelihood, **kwargs: Any
    ) -> MarginalLogLikelihood:
        r"""BoTorch's fit; with ``signs_in_fit`` a second one if signs were added.

        ``fit_gpytorch_mll`` calls this and passes all its arguments on. Not for direct
        use. Which signs are improbable depends on the hyperparameters.
        """
        self._fits_data_alone = not self.signs_in_fit
        try:
            mll = fit_map(mll, None, objective=_array_objective(mll), **kwargs)
        finally:
            self._fits_data_alone = False
        if not self.training:
            self._end_training()
        again = self.has_sites and self._adaptive and self.signs_in_fit
        if again and self.add_virtual_points(probability=self.min_probability):
            mll = fit_map(mll, None, objective=_array_objective(mll), **kwargs)
        return mll

    def train(self, mode: bool = True) -> Any:
        """As in BoTorch; at the end of training the sites are brought up to date."""
        ends = self.training and not mode
        super().train(mode)
        if self._sites_at is None:
            return self
        if mode:
            self._sites_held = False
        elif ends and not self._fits_data_alone:
            self._end_training()
        return self

    def _end_training(self) -> None:
        """Bring sites up to date, and warn where they are not at a fixed point."""
        if not self.has_sites:
            return
        before = self.ep_result
        self._keep_current()
        if before is self.ep_result:  # an update has warned already
            warn_unless_converged(self.ep_result)

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
        self,
        state_dict: Mapping[str, Any],
        *args: Any,
        keep_sites: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As in BoTorch. The sites are part of the state.

        Args:
            state_dict: The state.
            args: See ``GPyTorchModel.load_state_dict``.
            keep_sites: Whether to keep the sites of the state also where it was saved
                with other training data, as fantasies and conditioned models do. By
                default the next prediction then finds sites for the data that the model
                has.
            kwargs: See ``GPyTorchModel.load_state_dict``.
        """
        result = super().load_state_dict(state_dict, *args, **kwargs)
        if self.has_sites:  # BoTorch transforms the targets again after loading
            self._accept_loaded_sites()
            if keep_sites:
                self._accept_sites()
        return result

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any
    ) -> None:
        own: Any = getattr(self, "_column_signs", None)
        loaded = state_dict.get(prefix + "_column_signs", own)
        if own is not None and not torch.equal(loaded.to(own), own):
            raise ValueError(
                "state_dict: expected that of a model with the same signs of "
                f"derivatives, {own.tolist()}, got {loaded.tolist()}."
            )
        if own is not None:  # a state of before does not say which data it is of
            unknown = torch.full_like(self._sites_data, torch.nan)
            state_dict = {prefix + "_sites_data": unknown, **state_dict}
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, fn: Any) -> Any:
        before = self.train_targets
        result = super()._apply(fn)
        if self._sites_at is not None and self.train_targets is not before:
            at, *settings = self._sites_at  # in another dtype or on another device
            self._sites_at = (fn(at), *settings)
        return result


def _keep_sites_as_loaded(model: MonotoneGP, incompatible_keys: Any) -> None:
    """Hook for a state that is loaded into a module which contains the model."""
    if model.has_sites:
        model._accept_loaded_sites()


def _bring_sites_up_to_date(model: MonotoneGP, prefix: str, keep: bool) -> None:
    """Hook before a state is saved: hyperparameters and sites belong together."""
    if not model._fits_data_alone:
        model._keep_current()
    of_data = model._digest()[0].to(model._sites_data)
    # a fantasy has those of fewer data; earlier states keep the tensor that they have
    stale = model.has_sites and not model._sites_are_current()
    other = model._sites_held or stale
    model._sites_data = of_data * torch.nan if other else of_data


def _array_objective(mll: MarginalLogLikelihood) -> EvidenceObjective | None:
    """The objective of a fit on arrays; None where it is that of tensors."""
    model: Any = mll.model
    own = ("forward", "__call__", "compute_custom_loss", "_fast_evidence")
    terms = model.added_loss_terms()
    if (
        not model.has_sites
        or type(mll) is not ExactMarginalLogLikelihood
        or mll.likelihood is not model.likelihood
        or not all(isinstance(term, SiteEvidence) for term in terms)
        or not model.redefined.isdisjoint(own)
        or (gp := ArrayGP.of(model)) is None
    ):
        return None
    signs: tuple[Any, ...] = ()
    sites, rows = model.covar_module.sites, len(gp.X)
    if model.signs_in_fit:
        rows = max(rows, sites.num_sites)
        points = sites.points[:, gp.active].numpy()
        places = [gp.active.index(column) for column in sites.columns]
        start = model._array_sites().ravel()
        signs = points, places, model.site_signs.numpy(), start, model.nu
    if len(gp.active) * rows**2 > _MOST_NUMBERS:
        return None
    try:
        return EvidenceObjective(mll, gp, *signs)
    except UnknownFormError:
        return None
