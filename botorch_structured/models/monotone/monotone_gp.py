r"""A Gaussian process that knows the signs of some partial derivatives.

Which model when: ``MonotoneGP`` if an outcome can only rise, or only fall, with some
inputs: training error with capacity, demand with price, effect with dose. Known signs
then replace some evaluations. If the signs hold for the parts of the objective, and the
parts are observed, model each part with a ``MonotoneGP`` and their sum with a
``DecomposedGP``. Leave out a sign that holds only in most places.

Hyperparameters are fitted to the evidence of the data, log p(y), or with
``signs_in_fit`` to the approximate evidence of data and signs (log Z_EP, the last
display of section 3 in [Riihimaki2010monotonicity]_),

    log Z_EP = log p(y) + log p(sites | y).

``ExactMarginalLogLikelihood`` computes the first term; the second is an *added loss
term* of GPyTorch. Expectation propagation (EP) runs at each evaluation. At its fixed
point log Z_EP is stationary in the sites, so its gradient is taken with the sites held.

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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from types import NoneType
from typing import Any, Literal

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import add_output_dim
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling.pathwise.features.maps import FeatureMap
from botorch.sampling.pathwise.paths import GeneralizedLinearPath, SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths, MatheronPath
from botorch.sampling.pathwise.utils import get_input_transform, get_output_transform
from botorch.utils.context_managers import delattr_ctx
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.sampling import draw_sobol_samples
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
from gpytorch.mlls import AddedLossTerm, MarginalLogLikelihood
from linear_operator import to_linear_operator
from linear_operator.operators import MatmulLinearOperator
from scipy.special import ndtr
from torch import Tensor

from botorch_structured._botorch_names import DefaultType
from botorch_structured.linalg.blocks import Array
from botorch_structured.models import checks
from botorch_structured.models.checks import (
    dataset_task,
    refuse_categories,
    refuse_dependencies,
)
from botorch_structured.models.fast_inference import (
    FastSingleTaskGP,
    noise_at,
    with_variance_floor,
)
from botorch_structured.models.map_fit import fit_map
from botorch_structured.models.monotone.array_evidence import ArraySignEvidence
from botorch_structured.models.monotone.derivative_process import (
    DerivativeCovariance,
    DerivativeProcess,
    Sites,
)
from botorch_structured.models.monotone.expectation_propagation import (
    TOLERANCE,
    EPConvergenceWarning,
    EPResult,
    EPRun,
    expectation_propagation,
    warn_unless_converged,
)
from botorch_structured.models.outcome_scale import with_least_variance
from botorch_structured.models.stationary_evidence import plain_objective
from botorch_structured.spaces.arguments import check_column
from botorch_structured.spaces.parameter_tree import HierarchicalDependencies

# How many points signs are examined at, and how many are imposed at most.
_CANDIDATES = 256
_MOST_SIGNS = 50


class SignEvidence(AddedLossTerm):
    """Approximate log-probability of the signs given the data of a model.

    Args:
        model: A ``MonotoneGP``.
    """

    def __init__(self, model: MonotoneGP) -> None:
        self.model = model

    def loss(self, *params: Any) -> Tensor:
        """The part of log Z_EP that signs add; runs expectation propagation."""
        log_scale = self.model._find_sites().log_scale
        evidence = self.model._process().log_probability()
        return (evidence + log_scale.to(evidence)).to(self.model.train_targets)


class MonotoneGP(FastSingleTaskGP):
    r"""A ``SingleTaskGP`` with known signs of some partial derivatives.

    **Model.** At *virtual points* v the derivative along each monotone column j is
    observed to have its sign, with probability Phi(sign d_j f(v) / nu) (the display of
    section 2.2 of [Wang2018monotonicity]_, equation (5) of
    [Riihimaki2010monotonicity]_). EP replaces each such factor by a Gaussian one, a
    *site*. The prior given Gaussian sites is a Gaussian process again, and conditioning
    it on data is exact, so that posteriors, joint covariances, gradients, fantasies and
    acquisition functions are BoTorch's own. Sites are found when the model enters
    evaluation mode (``eval()``, or the first prediction); also when outcomes are
    replaced or a state is loaded there. After other changes call ``update_sites``.
    Fantasies, conditioned models and leave-one-out keep the sites, as they keep the
    hyperparameters. A state has none: it is that of a ``SingleTaskGP``.

    **Fit.** ``fit_gpytorch_mll`` fits hyperparameters to the data alone; they equal
    those of the ``SingleTaskGP`` without signs up to rounding. Then signs are imposed
    one at a time, each at the point where the posterior gives it the lowest
    probability, until no sign is less probable than ``min_probability`` (at most 50).
    None is imposed where the data already imply it; where data are few, the variance
    remains large. ``ep_result`` reports whether EP converged; if it did not, there is
    an ``EPConvergenceWarning``.

    **As published.** The paper imposes signs on a grid and fits hyperparameters to the
    evidence of data and signs: ``as_published``, or ``signs_in_fit=True``. Predictions
    are then overconfident. A process whose derivative is positive at a hundred points
    is steep at most of them, also where the function is flat, and continues this slope
    to the corners of the box. And a hundred positive derivatives have the highest
    probability under long lengthscales, which outweighs the evidence of a few rows: on
    nine random rows of the training error of the paper's elastic net (medians of eight
    draws) lengthscales grow from 0.6 and 0.2 to 1.5 and 0.8, the noise variance from
    0.005 to 0.15, and the median error of the sum from 0.5 to 1.7 predicted standard
    deviations (calibrated: 0.67).

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
        virtual_X: Where signs are imposed. Default (None): "grid" with
            ``signs_in_fit``, else "adaptive": one point at a time in ``bounds`` where a
            sign is least probable ([WangBerger2016shape]_), until no sign at 256
            candidates is less probable than ``min_probability``, or there are 50;
            again when hyperparameters or data have changed. Each output, and each
            element of a batch, has points of its own.
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
            fit takes four times as long. Not with "adaptive" points.

    Raises:
        ValueError: For columns, signs, ``nu``, ``bounds`` or ``virtual_X`` out of
            range, another kernel, a likelihood that is not Gaussian, or a transform
            that mixes a monotone column with others.

    Example:
        >>> # validation error - training error rises with the number of trees
        >>> model = MonotoneGP(train_X, train_Y, monotone={0: +1})
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.probability_monotone(train_X, column=0)
    """

    _fit_caches = ("_predictor",)
    _predictor: DerivativeProcess | None = None
    #: What the last run of expectation propagation reported.
    ep_result: EPResult | None = None
    #: "adaptive" imposes a sign only where its probability is lower: 0.5 / k for k
    #: monotone columns. Below 0.5 the posterior mean of the derivative has the wrong
    #: sign; the lowest of k probabilities is lower by chance, hence the division.
    #: [WangBerger2016shape]_ continue to 0.9 or more: variances of slopes far from data
    #: are smaller then.
    min_probability: float
    #: Columns of the model with signs.
    columns: tuple[int, ...] = ()
    #: Where signs are imposed, ``v x d``, on the axes of the model.
    virtual_points: Tensor
    _subset_batch_dict: dict[str, int]
    # see ``Sites``
    _site_scale: Tensor
    _site_target: Tensor
    # +1 or -1 on the model's axes, ``aug_batch_shape x k`` for ``k`` monotone columns
    _column_signs: Tensor

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
        if virtual_X is None:
            virtual_X = "grid" if signs_in_fit else "adaptive"
        check_imposed(nu, virtual_X, bounds, d)
        adaptive = isinstance(virtual_X, str) and virtual_X == "adaptive"
        if adaptive and signs_in_fit:
            raise ValueError(
                'virtual_X: expected "grid" or points beside signs_in_fit, got '
                '"adaptive": a fit needs signs at fixed points.'
            )
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
        self.min_probability = 0.5 / max(len(signs), 1)
        self._adaptive = adaptive
        points = train_X.new_zeros(0, d)
        directions: list[int] = []
        if has_sites:
            for column, sign in signs.items():
                place, direction = moved_column(column, train_X, input_transform)
                self.columns += (place,)
                directions.append(sign * direction)
            self._box = transformed_box(bounds, train_X, input_transform)
            points = self._box[:0]
            if isinstance(virtual_X, Tensor):
                points = transformed_points(virtual_X, train_X, input_transform)
            elif not adaptive:
                points = default_virtual_points(self._box)
            covariance = DerivativeCovariance.of(self.covar_module)
            for column in self.columns:
                covariance.place(column)
        order = torch.where(self._outcome_slopes() < 0.0, -1.0, 1.0).to(points)
        nothing = order.new_zeros(*self._aug_batch_shape, len(directions) * len(points))
        buffers = {
            "virtual_points": points,
            "_column_signs": order * order.new_tensor(directions),
            "_site_scale": nothing,
            "_site_target": nothing.clone(),
        }
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)
        if hasattr(self, "_subset_batch_dict"):
            last = dict.fromkeys(list(buffers)[1:], -2)
            self._subset_batch_dict = {**self._subset_batch_dict, **last}
        if signs_in_fit and has_sites:
            name = "log_probability_of_signs"
            self.register_added_loss_term(name)
            self.update_added_loss_term(name, SignEvidence(self))
        self.register_load_state_dict_post_hook(_find_sites_again)

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
        mean, covariance = self._derivative(X, column)
        slopes = self._outcome_slopes()
        mean = mean * slopes
        covariance = with_variance_floor(covariance) * slopes.unsqueeze(-1).square()
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
        mean, covariance = self._derivative(X, column)
        order = torch.where(self._outcome_slopes() < 0.0, -1.0, 1.0).to(mean)
        sign = self.monotone.get(column, 1) * order
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        sd = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
        probability = torch.special.ndtr(sign * mean / sd)
        return probability.unsqueeze(-1) if self._num_outputs == 1 else probability.mT

    def _derivative(
        self,
        X: Tensor,
        column: int,
    ) -> tuple[Tensor, Tensor]:
        """Moments of the derivatives of targets with respect to raw inputs.

        Returns:
            ``batch_shape (x m) x n``, and ``batch_shape (x m) x n x n``.
        """
        raw = checks.raw_inputs(self)
        column = check_column("column", column, raw.shape[-1])
        self.eval()
        checks.check_points(X, raw.shape[-1], self.train_targets.dtype)
        transform = getattr(self, "input_transform", None)
        place, _ = moved_column(column, raw, transform)
        x = self.transform_inputs(X)
        with torch.enable_grad():
            at = X.detach().clone().requires_grad_(True)
            moved = self.transform_inputs(at)[..., place].sum()
            slope = torch.autograd.grad(moved, at)[0][..., column]
        if self._num_outputs > 1:
            x, _ = add_output_dim(x, original_batch_shape=self._input_batch_shape)
            slope = slope.unsqueeze(-2)
        process = self._process(seen=place)
        mean, features = process.moments(x, [place])
        prior = process.covariance(x.double(), [place], x.double(), [place])
        covariance = (prior - features @ features.mT).to(x)
        return mean.to(x) * slope, covariance * slope.unsqueeze(-1) * slope.unsqueeze(
            -2
        )

    def _process(
        self,
        data: bool = True,
        sites: bool = True,
        seen: int = 0,
    ) -> DerivativeProcess:
        """The process given the data, the sites, or both, at present parameters.

        Args:
            data: Whether it is given the data.
            sites: Whether it is given the sites.
            seen: In a model without signs, a column that its kernel sees.
        """
        points = self.virtual_points
        scale = self._site_scale
        target = self._site_target
        if data:
            X = self.train_inputs[0]
            X = X if self._has_transformed_inputs else self.transform_inputs(X)
            targets = self.train_targets
            noise = noise_at(self.likelihood, X, targets.shape)
        else:
            X = points[:0]
            targets = noise = target[..., :0]
        if not sites:
            points = points[:0]
            scale = target = target[..., :0]
        observed = Sites(points, self.columns or (seen,), scale, target)
        modules = self.mean_module, self.covar_module
        return DerivativeProcess(*modules, X, targets, noise, observed)

    def _outcome_slopes(self) -> Tensor:
        """Slopes of outcomes as functions of the targets, ``aug_batch_shape x 1``.

        Under a transform that is not linear that near the first target; its sign says
        whether the order of outcomes is reversed.
        """
        several = self._num_outputs > 1
        first = self.train_targets.detach()[..., :1]
        first = first.mT if several else first.unsqueeze(-1)  # ``batch x 1 x m``
        step = 1e-2 * (1.0 + first.abs())
        ends = torch.cat([first, first + step], dim=-2)
        transform = getattr(self, "outcome_transform", None)
        if transform is not None:
            row = checks.raw_inputs(self)[..., [0, 0], :]
            ends, _ = transform.untransform(ends, X=row)
        slopes = ends.diff(dim=-2) / step
        return slopes.mT if several else slopes.squeeze(-1)

    # -- sites ------------------------------------------------------------------------

    @property
    def has_sites(self) -> bool:
        """Whether any sign is imposed; without, the model is a ``SingleTaskGP``."""
        return bool(self.columns)

    def signs_at(self, points: Tensor) -> Tensor:
        """Signs of the derivatives at some points, ``aug_batch_shape x s``."""
        return self._column_signs.repeat_interleave(len(points), dim=-1)

    def update_sites(self) -> EPResult:
        """Place adaptive sites, and run expectation propagation to its fixed point.

        The model calls this when it enters evaluation mode. Call it after changes of
        hyperparameters, noise variances or ``nu`` in evaluation mode.

        Returns:
            The report, which is also in ``ep_result``.

        Raises:
            ValueError: If the model has no sites.
        """
        if not self.has_sites:
            raise ValueError("monotone: expected at least one sign, got none.")
        result = self._find_sites()
        warn_unless_converged(result)
        return result

    @torch.no_grad()
    def _find_sites(self) -> EPResult:
        process = self._process(sites=False)
        columns = self.columns
        points = self.virtual_points
        if self._adaptive:
            points = default_virtual_points(self._box.to(points), _CANDIDATES)
        v = len(points)
        mean, features = process.moments(points, columns)
        signs = self.signs_at(points).to(mean).expand_as(mean)
        shape = mean.shape[:-1]
        count = shape.numel()

        def array(values: Tensor) -> Array:
            return values.reshape(count, *values.shape[-2:]).cpu().numpy()

        def row(
            element: int,
            index: int,
        ) -> Array:
            column, point = divmod(index, v)
            one = columns[column : column + 1]
            prior = process.covariance(points[point, None], one, points, columns)
            explained = features[..., index, None, :] @ features.mT
            return array(prior - explained)[element, 0]

        if self._adaptive:
            first = process.covariance(points[:1], columns, points[:1], columns)
            prior = first.diagonal(dim1=-2, dim2=-1).repeat_interleave(v, dim=-1)
            spread = (prior - features.square().sum(-1)).unsqueeze(-2)
        else:
            prior = process.covariance(points, columns, points, columns)
            spread = prior - features @ features.mT
        # in one copy from a device
        moments = array(torch.cat([torch.stack([signs, mean], -2), spread], dim=-2))
        told = moments[:, 0]
        sites = np.zeros((count, 2, told.shape[-1]))
        runs = []
        for i, (sign, center, *rows) in enumerate(moments):
            chosen: Any = slice(None)
            if self._adaptive:
                probability = self.min_probability
                chosen, run = choose_signs(
                    sign, center, rows[0], partial(row, i), self.nu, probability
                )
            else:
                covariance = sign[:, None] * rows * sign
                run = expectation_propagation(sign * center, covariance, self.nu)
            sites[i][:, chosen] = run.sites.reshape(2, -1)
            runs.append(run)
        if self._adaptive:
            places = np.flatnonzero(sites[:, 0].reshape(-1, v).any(axis=0)).tolist()
            points = points[places]
            chosen = [j * v + i for j in range(len(columns)) for i in places]
            sites = sites[..., chosen]
            told = told[..., chosen]
        precision, shift = sites.swapaxes(0, 1)
        root = np.sqrt(precision)
        target = np.divide(shift, root, out=np.zeros_like(root), where=root > 0.0)

        def tensor(values: Any) -> Tensor:
            one_each = torch.as_tensor(np.array(values))
            return one_each.reshape((*shape, *one_each.shape[1:]))

        observed = tensor(np.stack([told * root, target], axis=1)).to(points)
        self.virtual_points = points
        self._site_scale, self._site_target = observed.unbind(-2)
        residual = tensor([run.residual for run in runs])
        self.ep_result = EPResult(
            tensor(precision),
            tensor(told * shift),
            tensor([run.log_scale for run in runs]),
            residual <= TOLERANCE,
            tensor([run.sweeps for run in runs]),
            residual,
        )
        self._clear_cache()
        return self.ep_result

    # -- the prior given the sites --------------------------------------------------

    def forward(self, x: Tensor) -> MultivariateNormal:
        """The prior given the sites at ``batch_shape x n x d`` inputs.

        In training mode the prior without sites: with ``signs_in_fit`` the objective
        has the evidence of the signs as an added loss term.
        """
        if self.training or not self.has_sites:
            return super().forward(x)
        mean, features = self._process(data=False).moments(x)
        features = features.to(x)
        explained = MatmulLinearOperator(features, -features.mT)
        return MultivariateNormal(mean.to(x), self.covar_module(x) + explained)

    def _fast_posterior(self, X: Tensor) -> MultivariateNormal | None:
        """The posterior from factors that are kept; None where they need a graph."""
        if (
            not self.has_sites
            or "forward" in self.redefined
            or settings.detach_test_caches.off()
            or self.train_inputs[0].requires_grad
            or self.train_targets.requires_grad
        ):
            return None
        if self._predictor is None:
            with torch.no_grad():
                self._predictor = self._process()
        return self._predictor.posterior(X)

    # -- BoTorch's life cycle -------------------------------------------------------

    def custom_fit(
        self,
        mll: MarginalLogLikelihood,
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        r"""BoTorch's fit, on arrays where the objective has that form.

        ``fit_gpytorch_mll`` calls this and passes all its arguments on. Not for direct
        use.
        """
        objective = None
        if self.has_sites:  # else the fit is that of a SingleTaskGP to the last bit
            signs = partial(ArraySignEvidence, self) if self.signs_in_fit else None
            objective = plain_objective(mll, signs)
        return fit_map(mll, None, objective=objective, **kwargs)

    def train(self, mode: bool = True) -> Any:
        """As in BoTorch; sites are found when the model enters evaluation mode."""
        enters = self.training and not mode
        super().train(mode)
        if enters and self.has_sites:
            self.update_sites()
        return self

    def set_train_data(
        self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True
    ) -> None:
        """As in BoTorch; in evaluation mode the sites of new outcomes are found."""
        super().set_train_data(inputs, targets, strict)
        # BoTorch sets inputs alone, transformed or not
        if targets is not None:
            _find_sites_again(self)


def _find_sites_again(
    model: MonotoneGP,
    incompatible_keys: Any = None,
) -> None:
    """Also a hook for a state that is loaded, perhaps as a part of another module's."""
    if model.has_sites and not model.training:
        model.update_sites()


class _Observed(FeatureMap):
    """Covariances of values with what a process was told."""

    def __init__(
        self,
        process: DerivativeProcess,
        input_transform: InputTransform | None,
    ) -> None:
        super().__init__()
        self.process = process
        self.input_transform = input_transform

    def forward(self, x: Tensor) -> Tensor:
        """``batch_shape x n x d`` to ``batch_shape x n x (n' + s)``."""
        return self.process.cross(x.double()).to(x)


@DrawMatheronPaths.register(MonotoneGP)
def _draw_paths(
    model: MonotoneGP,
    *,
    sample_shape: torch.Size,
    prior_sampler: Callable[..., SamplePath],
    update_strategy: Any,
) -> MatheronPath:
    """Paths given data and sites."""
    if not model.has_sites:
        return DrawMatheronPaths.dispatch(SingleTaskGP)(
            model,
            sample_shape=sample_shape,
            prior_sampler=prior_sampler,
            update_strategy=update_strategy,
        )
    model.eval()
    with delattr_ctx(model, "outcome_transform"):
        prior = prior_sampler(model=model, sample_shape=sample_shape)
    process = model._process()
    like = model.train_targets
    weights = process.path_weights(lambda x: prior.forward(x.to(like)).to(x))
    features = _Observed(process, get_input_transform(model))
    update = GeneralizedLinearPath(features, weights.to(like))
    return MatheronPath(prior, update, output_transform=get_output_transform(model))


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
    if count is not None or side is None:
        return draw_sobol_samples(box, count or 64, 1, seed=0).squeeze(-2)
    line = torch.linspace(0.0, 1.0, side, dtype=torch.float64)
    unit = torch.cartesian_prod(*[line] * d).reshape(-1, d)
    return box[0] + unit.to(box) * (box[1] - box[0])


def choose_signs(
    signs: Array,
    mean: Array,
    variance: Array,
    row: Callable[[int], Array],
    nu: float,
    probability: float,
) -> tuple[list[int], EPRun]:
    """Impose signs where one is least probable, one after the other.

    Section 3.1 of [Riihimaki2010monotonicity]_, section 4 of [WangBerger2016shape]_.
    The covariance of all derivatives, which with many signs is large, is not formed:
    there is a row of it for each sign that is imposed.

    Args:
        signs: Of the derivatives to choose from, ``m``.
        mean: Their means, ``m``.
        variance: Their variances, ``m``.
        row: The covariances of one of them, by index, with all.
        nu: Width of the probit sites.
        probability: Stop where no sign is less probable.

    Returns:
        The signs that are imposed, by index, and expectation propagation with them.
    """
    mean = signs * mean
    chosen: list[int] = []
    rows: list[Array] = []
    start: Array | None = None
    while True:
        S = np.reshape(rows, (len(rows), len(signs)))
        ep = expectation_propagation(mean[chosen], S[:, chosen], nu, start)
        gone = np.square(ep.root @ S).sum(axis=0)
        sd = np.sqrt(np.maximum(variance - gone, np.finfo(np.float64).tiny))
        probabilities = ndtr((mean + ep.weight @ S) / sd)
        probabilities[chosen] = np.inf
        index = int(probabilities.argmin())
        if len(chosen) == _MOST_SIGNS or probabilities[index] >= probability:
            return chosen, ep
        # the fixed point is near that without the new site
        start = np.pad(ep.sites.reshape(2, -1), ((0, 0), (0, 1))).ravel()
        chosen.append(index)
        rows.append(signs[index] * signs * row(index))


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


def moved_column(
    column: int,
    X: Tensor,
    transform: InputTransform | None,
) -> tuple[int, int]:
    """The column of the model that a column moves, and in which direction.

    Found by changing the column from its smallest to its largest training value.

    Args:
        column: Of the inputs.
        X: Training inputs, ``batch_shape x n x d``.
        transform: Of the inputs.

    Returns:
        A column of the transformed inputs, and +1 or -1.

    Raises:
        ValueError: If no column or several columns of the transformed inputs change, or
            one in different directions: a sign then has no counterpart.
    """
    if transform is None:
        return column, 1
    low = X.clone()
    high = X.clone()
    smallest, largest = X[..., column].aminmax()
    low[..., column] = smallest
    high[..., column] = largest if largest > smallest else smallest + 1.0
    moved = _apply_transform(high, transform) - _apply_transform(low, transform)
    size = moved.abs()
    moved = moved.where(size > 1e-9 * size.max(), 0.0)
    directions = moved.sign().reshape(-1, moved.shape[-1]).unique(dim=0)
    if directions.abs().sum(-1).tolist() != [1.0]:
        columns = directions.any(dim=0).nonzero().flatten().tolist()
        raise ValueError(
            f"monotone: expected an input_transform under which column {column} moves "
            "one column of the model, always in one direction; "
            f"{type(transform).__name__} moves {columns}."
        )
    place = int(directions.abs().argmax())
    return place, int(directions[0, place])


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
