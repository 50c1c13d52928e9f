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

__all__ = ["MonotoneGP"]

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Literal

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    Likelihood,
)
from gpytorch.means import Mean, ZeroMean
from torch import Tensor

import botorch_structured.kernels.derivative_features  # noqa: F401 (registers itself)
from botorch_structured.kernels.derivative_sites import (
    DerivativeSites,
    SiteConditionedKernel,
    SiteConditionedMean,
)
from botorch_structured.kernels.derivative_stationary import StationaryDerivatives
from botorch_structured.models.checks import (
    CheckedModel,
    check_modules,
    check_training_data,
)
from botorch_structured.models.dependent_inputs import (
    dataset_task,
    refuse_categories,
    refuse_dependencies,
)
from botorch_structured.models.monotone_derivatives import DerivativePosterior
from botorch_structured.models.monotone_inference import (
    MOST_POINTS,
    SiteInference,
    bring_sites_up_to_date,
    keep_sites_as_loaded,
)
from botorch_structured.models.outcome_scale import AnyScale
from botorch_structured.models.virtual_points import (
    apply_transform,
    check_bounds,
    check_monotone,
    check_probability,
    check_virtual_points,
    default_virtual_points,
    signs_of,
    transformed_box,
    transformed_columns,
    transformed_points,
)


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
