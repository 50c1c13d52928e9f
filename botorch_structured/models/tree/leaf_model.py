"""The base of the tree models: fast where their covariance is a ``LeafKernel``.

The kernel's ``forward`` defines the covariance. The evidence of a fit and predictions
are computed leaf by leaf (``leaf_inference``) where that is faster than the dense
algebra of GPyTorch; the results are equal up to rounding.
"""

from __future__ import annotations

__all__ = [
    "Dependencies",
    "LeafModel",
    "output_dimensions",
    "read_arguments",
]

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import Standardize
from botorch.models.utils import check_min_max_scaling
from botorch.settings import propagate_grads, validate_input_scaling
from botorch.utils.datasets import SupervisedDataset
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from linear_operator import to_linear_operator
from torch import Tensor, nn
from torch.func import functional_call

from botorch_structured._botorch_names import functorch_is_active
from botorch_structured.linalg.block_low_rank import LeafLayout
from botorch_structured.models.checks import (
    ShapeError,
    check_modules,
    check_training_data,
)
from botorch_structured.models.fast_inference import (
    FIT_OPTIONS,
    FastSingleTaskGP,
    PointMoments,
    accept_rounding,
    fit_map,
    noise_is_known,
    with_gradient,
    with_variance_floor,
)
from botorch_structured.models.input_transforms import dataset_task
from botorch_structured.models.outcome_scale import AnyScaleStandardize, ScaledNormal
from botorch_structured.models.tree.elements import (
    EVENT_DIMENSIONS,
    batch_shape_of,
    conditioned,
    element_of,
    elements_of,
    fantasy_shapes,
    parameters_of,
    quick_copy,
    whole,
)
from botorch_structured.models.tree.leaf_inference import (
    BlockTensors,
    LeafKernel,
    LeafPredictor,
    Structure,
    log_evidence,
)
from botorch_structured.models.tree.leaf_moments import (
    LeafMoments,
    differentiable_moments,
)
from botorch_structured.models.tree.objective import LeafObjective
from botorch_structured.spaces import ParameterTree, SearchSpace

#: What models take for the structure of their inputs.
Dependencies = SearchSpace | ParameterTree | Mapping[int, Mapping[float, Sequence[int]]]

# Up to this size a factorisation takes less time than the overhead around it.
_SMALL = 200
# GPyTorch's prediction copies the training data for each element of a t-batch, so
# predictions by leaf are faster unless weights are more than rows and than this.
_MANY_WEIGHTS = 512
# More rows than these that a model was conditioned on become data of its leaves.
_MANY_ROWS = 32
# Outcome transforms by which moments of one outcome are scaled and shifted.
_LINEAR_IN_ONE_OUTCOME = (type(None), Standardize, AnyScaleStandardize)


def read_arguments(
    train_X: Tensor,
    train_Y: Tensor,
    train_Yvar: Tensor | None,
    dependencies: Dependencies,
    categorical: Any,
    input_transform: InputTransform | None,
    covar_module: Kernel | None,
    **modules: Any,
) -> tuple[ParameterTree, InputTransform | None, Any]:
    """Check a constructor's arguments, and complete them from a ``SearchSpace``.

    Args:
        train_X: ``batch_shape x n x d``.
        train_Y: ``batch_shape x n x m``.
        train_Yvar: ``batch_shape x n x m``, or None.
        dependencies: The argument ``hierarchical_dependencies``.
        categorical: The argument ``categorical_features``.
        input_transform: As given.
        covar_module: As given; with one, the categorical columns of the space are not
            used.
        modules: ``likelihood``, ``mean_module`` and ``outcome_transform``, as given.

    Returns:
        The tree, the input transform and ``categorical_features``.

    Raises:
        ValueError: For data that no model accepts, and for undeclared values of
            decisions whose values are strict.
    """
    check_modules(input_transform=input_transform, covar_module=covar_module, **modules)
    check_training_data(
        train_X,
        train_Y,
        train_Yvar,
        outcome_transform=modules["outcome_transform"],
        tree=isinstance(dependencies, (ParameterTree, Mapping, SearchSpace))
        and bool(dependencies),
    )
    space = None
    if isinstance(dependencies, SearchSpace):
        space, dependencies = dependencies, dependencies.tree
        if space.tree.dim != train_X.shape[-1]:
            raise ShapeError(
                f"train_X: expected the {space.tree.dim} columns of the space, got "
                f"{train_X.shape[-1]}."
            )
    tree = ParameterTree.from_any(dependencies, train_X.shape[-1])
    tree.active_mask(train_X)
    if space is not None and input_transform is None:
        input_transform = space.input_transform()
    if space is not None and categorical is None and covar_module is None:
        named, decisions = space.categorical_features.items(), tree.decision_columns
        categorical = {c: codes for c, codes in named if c not in decisions} or None
    return tree, input_transform, categorical


def output_dimensions(model: FastSingleTaskGP) -> dict[str, int]:
    """``_subset_batch_dict`` of a model of this package, for ``subset_output``.

    Args:
        model: A model whose parameters have the batch shape in front.
    """
    ends = {name: name.rpartition(".")[2] for name, _ in model.named_parameters()}
    return {
        name: -1 - EVENT_DIMENSIONS[end]
        for name, end in ends.items()
        if end in EVENT_DIMENSIONS
    }


class _Evidence(nn.Module):
    """The evidence of an element as a function of its parameters and inputs."""

    def __init__(self, model: LeafModel, structure: Structure) -> None:
        super().__init__()
        self.model, self.structure = model, structure

    def forward(self, X: Tensor) -> Tensor:
        """A scalar, at transformed inputs ``n x d``."""
        return log_evidence(*self.model._system(X, self.structure))


class LeafModel(FastSingleTaskGP):
    """A ``SingleTaskGP`` over a tree, fast where its kernel is a ``LeafKernel``."""

    tree: ParameterTree

    _data_caches = ("_structure_cache", "_structured_cache")
    _fit_caches = ("_predictor_cache", "_moments_cache", "_elements_cache")
    _structure_cache: tuple[Tensor, LeafKernel, Structure] | None = None
    _structured_cache: tuple[object, ...] | None = None
    _predictor_cache: tuple[Structure, object, LeafPredictor] | None = None
    _elements_cache: tuple[Tensor, LeafKernel, object, list[Any] | None] | None = None
    # of a model that was conditioned on more rows: how many batch dimensions these
    # have in front of those of the rows before, and the number of the latter
    _fantasies: tuple[int, int] | None = None
    _moments_cache: tuple[LeafPredictor, LeafMoments | None] | None = None

    def _warn_of_scales(
        self,
        train_X: Tensor,
        tree: ParameterTree,
        categorical: Collection[int],
        input_transform: InputTransform | None,
    ) -> None:
        """BoTorch's warning of inputs outside of [0, 1], for numeric columns."""
        if validate_input_scaling.on():
            with torch.no_grad():
                X = self.transform_inputs(train_X, input_transform=input_transform)
            named = [*tree.decision_columns, *categorical]
            check_min_max_scaling(tree.impute(X), ignore_dims=named)

    # -- what can be used ---------------------------------------------------------

    def _is_structured(self) -> bool:
        """Whether the structured algebra applies to the training data at all.

        To those of one data set with one output; for others see ``_elements``.
        """
        return (
            self._is_by_leaf()
            and self._is_single()
            and not self.covar_module.batch_shape
        )

    def _is_by_leaf(self) -> bool:
        return (
            isinstance(self.covar_module, LeafKernel)
            and self.covar_module.is_by_leaf
            and noise_is_known(self.likelihood)
            and type(self).forward is SingleTaskGP.forward
            and self.train_inputs is not None
        )

    def _is_single(self) -> bool:
        return self.train_inputs[0].ndim == 2 and self.train_targets.ndim == 1

    def _evidence_pays(self, layout: LeafLayout) -> bool:
        """Whether leaves and weights are cheaper to factorise than everything."""
        cubes = sum(float(size) ** 3 for size in layout.sizes)
        weights = float(self.covar_module.num_weights)
        return cubes + weights**3 <= max(layout.num_rows, _SMALL) ** 3

    def _use_predictor(self) -> bool:
        if (
            self.training
            or settings.prior_mode.on()
            or (settings.detach_test_caches.off() and propagate_grads.off())
        ):
            return False
        if self._fantasies is not None or not self._is_single():
            return self._is_by_leaf() and self._elements() is not None
        X, Y = self.train_inputs[0], self.train_targets
        if X.requires_grad or Y.requires_grad:
            return False
        now = (X, Y, self.covar_module, self.likelihood)
        before = self._structured_cache
        if before is not None and all(map(operator.is_, now, before)):
            return True
        pays = self._is_structured() and self.covar_module.num_weights <= max(
            len(X), _MANY_WEIGHTS
        )
        self._structured_cache = now if pays else None
        return pays

    # -- caches -------------------------------------------------------------------

    def _structure(self, X: Tensor) -> Structure:
        cache = self._structure_cache
        kernel = self.covar_module
        if cache is None or cache[0] is not X or cache[1] is not kernel:
            self._structure_cache = cache = (X, kernel, kernel.structure(X))
        return cache[2]

    def _elements(self) -> list[Any] | None:
        """A model of each output and data set, without the rows of fantasies.

        None where the dense algebra is to be used.
        """
        X, kernel = self.train_inputs[0], self.covar_module
        cache = self._elements_cache
        if cache is None or any(
            a is not b for a, b in zip(cache, (X, kernel, kernel.variant), strict=False)
        ):
            elements = self._new_elements()
            self._elements_cache = cache = (X, kernel, kernel.variant, elements)
        return cache[3]

    def _new_elements(self) -> list[Any] | None:
        X, targets = self.train_inputs[0], self.train_targets
        # rows of fantasies may have a gradient, those before them have none
        if self._fantasies is None and (X.requires_grad or targets.requires_grad):
            return None
        elements = elements_of(self, *(self._fantasies or (0, X.shape[-2])))
        if not elements or not all(e._use_predictor() for e in elements):
            return None
        first = elements[0]
        for other in elements[1:]:  # outputs have the same inputs
            X = other.train_inputs[0]
            if torch.equal(X, first.train_inputs[0]):
                structure = first._structure(first.train_inputs[0])
                other._structure_cache = (X, other.covar_module, structure)
        return elements

    # -- evidence -----------------------------------------------------------------

    def _fast_evidence(
        self, mll: ExactMarginalLogLikelihood, kwargs: dict[str, Any]
    ) -> Tensor | None:
        if mll.likelihood is not self.likelihood or kwargs:
            return None
        X = self.train_inputs[0]
        if self._is_structured():
            # paths do not depend on the transform, which keeps decisions
            structure = self._structure(X)
            if not self._evidence_pays(structure.layout):
                return None
            return log_evidence(*self._system(self.transform_inputs(X), structure))
        shape = self.train_targets.shape[:-1]
        if X.shape[-2] < _SMALL or self._fantasies is not None:
            return None  # one dense batch is faster, and nobody fits fantasies
        if not self._is_by_leaf() or (elements := self._elements()) is None:
            return None
        X, values = self.transform_inputs(X), []
        for index, element in zip(np.ndindex(shape), elements, strict=True):
            structure = element._structure(element.train_inputs[0])
            if not element._evidence_pays(structure.layout):
                return None
            own = parameters_of(self, index)
            assert own is not None, "`elements_of` has found all parameters"
            evidence = functional_call(
                _Evidence(element, structure),
                {f"model.{name}": value for name, value in own.items()},
                (element_of(X, index, 2),),
            )
            values.append(evidence)
        return torch.stack(values).view(shape)

    def _system(
        self, X: Tensor, structure: Structure
    ) -> tuple[list[BlockTensors], Tensor, Tensor, int]:
        """Leaves, noise, residuals and number of weights, of transformed inputs."""
        noise = self.likelihood.noise
        return (
            self.covar_module.block_tensors(X, structure),
            noise.expand(len(X)) if noise.shape[-1] == 1 else noise,
            self.train_targets - self.mean_module(X),
            self.covar_module.num_weights,
        )

    # -- posterior ----------------------------------------------------------------

    def _predictor(self) -> LeafPredictor:
        kernel = self.covar_module
        X = self.train_inputs[0]
        structure = self._structure(X)
        cache = self._predictor_cache
        if cache is None or cache[0] is not structure or cache[1] is not kernel.variant:
            with torch.no_grad():
                system = self._system(X, structure)
            predictor = LeafPredictor(structure.layout, *system)
            self._predictor_cache = cache = (structure, kernel.variant, predictor)
        return cache[2]

    def set_train_data(self, *args: Any, **kwargs: Any) -> None:
        """Replace the training data, see ``ExactGP.set_train_data``."""
        super().set_train_data(*args, **kwargs)
        self._fantasies = None

    def get_fantasy_model(self, inputs: Any, targets: Tensor, **kwargs: Any) -> Any:
        """A model with more data and the same hyperparameters, see ``ExactGP``.

        Predictions are leaf by leaf, from the data of this model, and then conditioned
        on the new ones. Many new rows without batch dimensions become data of leaves.
        """
        X = inputs[0] if isinstance(inputs, (list, tuple)) else inputs
        old_X, old_y = self.train_inputs[0], self.train_targets
        shapes = fantasy_shapes(old_y.shape[:-1], X.shape[:-2], targets.shape[:-1])
        if not self._use_predictor() or shapes is None:
            return super().get_fantasy_model(inputs, targets, **kwargs)
        lead, num_rows = self._fantasies or (0, old_X.shape[-2])
        elements = self._elements()
        new = quick_copy(
            self,
            old_X,
            old_y,
            self.likelihood,
            self.prediction_strategy,
            self._original_train_inputs,
        )
        new.likelihood = self.likelihood.get_fantasy_likelihood(**kwargs)
        both = [t.expand(*shapes[0], *t.shape[-2:]) for t in (old_X, X)]
        all_X = torch.cat(both, dim=-2).expand(*shapes[1], -1, -1)
        both = [t.expand(*shapes[1], t.shape[-1]) for t in (old_y, targets)]
        new.set_train_data(all_X, torch.cat(both, dim=-1), strict=False)
        if new._is_single() and all_X.shape[-2] - num_rows > _MANY_ROWS:
            return new
        new._fantasies = (lead + len(shapes[1]) - old_y.ndim + 1, num_rows)
        kernel = new.covar_module
        new._elements_cache = (all_X, kernel, kernel.variant, elements)
        return new

    def _posterior_by_element(self, X: Tensor) -> MultivariateNormal:
        """Posterior of a batch, or given fantasies, through the elements."""
        elements = self._elements()
        assert elements is not None, "`_use_predictor`"
        train_X, targets = self.train_inputs[0], self.train_targets
        lead, num_rows = self._fantasies or (0, train_X.shape[-2])
        shape = torch.broadcast_shapes(X.shape[:-2], targets.shape[:-1])
        own = targets.shape[lead:-1]
        own = own if own.numel() > 1 else own[:0]
        before = len(shape) - len(own)
        number = torch.arange(own.numel()).view(own).expand(shape[before:])
        X, train_X = whole(X, 2), whole(train_X, 2)
        means, covariances = [], []
        for index in np.ndindex(number.shape):
            element = elements[int(number[index])]
            points = element_of(X, index, 2)
            if num_rows == train_X.shape[-2]:
                posterior = element._fast_posterior(points)
            else:
                new = element_of(train_X, index, 2)[..., num_rows:, :]
                batch = torch.broadcast_shapes(points.shape[:-2], new.shape[:-2])
                both = [t.expand(*batch, *t.shape[-2:]) for t in (points, new)]
                noise = element.likelihood.noise
                if noise.shape[-1] > 1:  # known, row by row
                    noise = element_of(self.likelihood.noise, index, 1)[..., num_rows:]
                posterior = conditioned(
                    element._fast_posterior(torch.cat(both, dim=-2)),
                    element_of(targets, index, 1)[..., num_rows:],
                    noise,
                )
            mean, covariance = posterior.mean, posterior.covariance_matrix
            means.append(mean.expand(*shape[:before], *mean.shape[-1:]))
            covariances.append(
                covariance.expand(*shape[:before], *covariance.shape[-2:])
            )
        if own:
            mean = torch.stack(means, dim=-2).unflatten(-2, number.shape)
            covariance = torch.stack(covariances, dim=-3).unflatten(-3, number.shape)
        else:
            mean, covariance = means[0], covariances[0]
        return MultivariateNormal(mean, to_linear_operator(covariance))

    def _moments(self) -> LeafMoments | None:
        """Moments of points one by one, where they have a closed form."""
        predictor = self._predictor()
        if predictor.masked:
            return None
        cache = self._moments_cache
        if cache is None or cache[0] is not predictor:
            moments = LeafMoments.of(self.covar_module, self.train_inputs[0], predictor)
            self._moments_cache = cache = (predictor, moments)
        return cache[1]

    def _fast_posterior(self, X: Tensor) -> MultivariateNormal | None:
        """Posterior through the leaves at ``batch_shape x q x d`` points."""
        if not self._use_predictor():
            return None
        if self._fantasies is not None or not self._is_single():
            return self._posterior_by_element(X)
        if X.shape[-2] != 1 or not X.numel() or functorch_is_active():
            return self._joint_posterior(X)
        moments = self._moments()
        if moments is None:
            return self._joint_posterior(X)
        mean, variance = differentiable_moments(
            X.flatten(0, -2), moments, self._point_graph
        )
        floor = settings.min_variance.value(variance.dtype)
        variance = variance.clamp_min(floor).view(*X.shape[:-1], 1)
        mean = self.mean_module(X) + mean.view(X.shape[:-1])
        return ScaledNormal(mean, to_linear_operator(variance))

    def point_moments(
        self, X: Tensor, gradient: bool = False, path: bool = False
    ) -> PointMoments | None:
        """See ``FastInference.point_moments``."""
        targets, outcome = self.train_targets, getattr(self, "outcome_transform", None)
        at_hand = (
            self._fantasies is None
            and self._is_single()
            and X.dtype == targets.dtype
            and X.device == targets.device
            and len(X) > 0
            and type(self.mean_module) is ConstantMean
            and type(outcome) in _LINEAR_IN_ONE_OUTCOME
        )
        if not at_hand:
            return None
        self._check_points(X)
        self.eval()
        moments = self._moments() if self._use_predictor() else None
        if moments is None:
            return None
        point = X.detach().requires_grad_(gradient and hasattr(self, "input_transform"))
        with torch.enable_grad():
            transformed = self.transform_inputs(point)
        chained = point.requires_grad
        if len(transformed) != len(X) or transformed.requires_grad != chained:
            return None
        with torch.no_grad():
            found = moments(transformed.detach(), gradient, path)
            scale, shift = 1.0, float(self.mean_module.constant)
            if outcome is not None:
                scale, shift = outcome.stdvs.item(), shift * outcome.stdvs.item()
                shift = shift + outcome.means.item()
            floor = settings.min_variance.value(X.dtype)
            mean = scale * found.mean + shift
            variance = scale**2 * found.variance.clamp_min(floor)
        if found.mean_gradient is None or found.variance_gradient is None:
            return PointMoments(mean, variance)
        above = (found.variance > floor).to(X).unsqueeze(-1)
        slopes = [found.mean_gradient * scale, found.variance_gradient * above]
        slopes[1] = slopes[1] * scale**2
        if chained:
            slopes = [
                torch.autograd.grad(transformed, point, slope, retain_graph=True)[0]
                for slope in slopes
            ]
        return PointMoments(mean, variance, *slopes)

    def _point_graph(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """What ``LeafMoments`` computes, by operations that autograd knows."""
        rows = self.covar_module.rows(X)
        prediction = self._predictor()(rows.key, rows.points, rows.features)
        reduction = prediction.weight.square().sum(-1)
        reduction = reduction - prediction.explained.square().sum(-1)
        return prediction.mean, rows.prior.expand(len(X)) + reduction

    def _joint_posterior(self, X: Tensor) -> MultivariateNormal:
        """Posterior of ``q`` points jointly, ``batch_shape x q x d``."""
        kernel = self.covar_module
        rows = kernel.rows(X)
        batch, q = X.shape[:-2], X.shape[-2]

        def flat(values: Tensor) -> Tensor:
            width = values.shape[-1]  # may be zero
            return values.expand(*batch, q, width).reshape(batch.numel() * q, width)

        prediction = self._predictor()(
            rows.key.reshape(-1), flat(rows.points), flat(rows.features)
        )
        mean = self.mean_module(X) + prediction.mean.view(*batch, q)
        mean = with_gradient(mean, X)
        explained = prediction.explained.unflatten(0, (*batch, q))
        weight = prediction.weight.unflatten(0, (*batch, q))
        if q == 1:
            prior = rows.prior.expand(*batch, q)
            reduction = weight.square().sum(-1) - explained.square().sum(-1)
            variance = with_variance_floor((prior + reduction).unsqueeze(-1))
            return MultivariateNormal(mean, to_linear_operator(variance))
        leaf = prediction.leaf.view(*batch, q)
        same = leaf.unsqueeze(-1) == leaf.unsqueeze(-2)
        covariance = kernel.leaf_covariance(rows, rows) + weight @ weight.mT
        covariance = covariance - torch.where(same, explained @ explained.mT, 0.0)
        # a plain tensor would get no jitter when it is factorised for sampling
        return MultivariateNormal(
            mean, to_linear_operator(with_variance_floor(covariance))
        )

    # -- as BoTorch calls it ------------------------------------------------------

    def custom_fit(
        self, mll: MarginalLogLikelihood, **kwargs: Any
    ) -> MarginalLogLikelihood:
        r"""Fit by L-BFGS-B, with BoTorch's retries.

        ``fit_gpytorch_mll`` calls this; every argument of it is honoured. Not for
        direct use.
        """
        if not self.tree.decision_columns:  # exactly a SingleTaskGP, its fit included
            return fit_map(mll, **kwargs)
        return self._fit(mll, self.fit_objective(mll), **kwargs)

    def _fit(
        self,
        mll: MarginalLogLikelihood,
        objective: LeafObjective | None,
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        """One fit, in closed form where there is an objective for that."""
        kwargs.setdefault("warning_handler", accept_rounding)
        if self._aug_batch_shape.numel() > 1:
            # BoTorch's L-BFGS-B of batches where one optimisation is for all elements
            return self._fit_elements(mll, kwargs) or fit_map(mll, None, **kwargs)
        return fit_map(mll, FIT_OPTIONS, objective=objective, **kwargs)

    def _fit_elements(
        self, mll: MarginalLogLikelihood, kwargs: dict[str, Any]
    ) -> MarginalLogLikelihood | None:
        """Fit each output and data set by itself; None if that is not the same.

        Args:
            mll: The objective.
            kwargs: See ``fit_gpytorch_mll``.
        """
        options = kwargs.get("optimizer_kwargs") or {}
        if (
            any(kwargs.get(name) for name in ("closure", "closure_kwargs", "optimizer"))
            or options.keys() - {"options", "method"}
            or type(mll) is not ExactMarginalLogLikelihood
            or mll.likelihood is not self.likelihood
            or any(prior.batch_shape for _, _, prior, _, _ in mll.named_priors())
        ):
            return None
        mll.train()
        shape = self.train_targets.shape[:-1]
        elements = self._elements() if self._is_by_leaf() else None
        free = {name: p for name, p in self.named_parameters() if p.requires_grad}
        if elements is None or any(
            batch_shape_of(name, p) != shape for name, p in free.items()
        ):
            return None
        X = self.transform_inputs(self.train_inputs[0])
        for index, element in zip(np.ndindex(shape), elements, strict=True):
            own = ExactMarginalLogLikelihood(element.likelihood, element)
            for name, p in element.named_parameters():
                p.requires_grad_(name in free)
            structure = element._structure(element.train_inputs[0])
            inputs = element_of(X, index, 2)
            element.train_inputs = (inputs,)
            element._structure_cache = (inputs, element.covar_module, structure)
            LeafModel.custom_fit(element, own, **kwargs)
        with torch.no_grad():
            for index, element in zip(np.ndindex(shape), elements, strict=True):
                for name, p in (parameters_of(self, index) or {}).items():
                    p.copy_(element.get_parameter(name))
        self._clear_cache()
        return mll.eval()

    def fit_objective(self, mll: MarginalLogLikelihood) -> LeafObjective | None:
        """The objective in closed form; None if there is none, see ``LeafObjective``.

        Args:
            mll: An objective of this model; put in training mode.
        """
        own = type(self)._fast_evidence is LeafModel._fast_evidence
        if not (own and self._is_structured()):
            return None
        mll.train()
        layout = self._structure(self.train_inputs[0]).layout
        return LeafObjective.of(mll, layout=layout)

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset,
        *,
        hierarchical_dependencies: Dependencies | None = None,
        categorical_features: Sequence[int] | None = None,
        task_feature: int | None = None,
        fidelity_features: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        r"""Constructor arguments from a dataset, as BoTorch and Ax ask for them.

        Args:
            training_data: The data.
            hierarchical_dependencies: As in the constructor. It has to be given; ``{}``
                says that there are no decisions.
            categorical_features: Columns without an order.
            task_feature: The task column, used as a column without an order. Default:
                that of a ``MultiTaskDataset``.
            fidelity_features: Not used: fidelities are ordinary columns.

        Raises:
            ValueError: Without ``hierarchical_dependencies``. Ax gives none if its
                ``Cast`` has flattened the space, which is its default.
        """
        if hierarchical_dependencies is None:
            raise ValueError(
                "hierarchical_dependencies: expected {column: {value: [columns]}}, "
                "with {} for a space without decisions, got None. In Ax, keep the "
                "hierarchy: give the generator transforms=Mixed_transforms + Y_trans "
                "and transform_configs={'Cast': {'flatten_hss': False}}; where there "
                "is none, give the ModelConfig "
                "model_options={'hierarchical_dependencies': {}}."
            )
        categorical = list(categorical_features or [])
        task = dataset_task(training_data, task_feature)
        if task is not None:
            categorical.append(task)
        inputs = super().construct_inputs(training_data=training_data)
        inputs["hierarchical_dependencies"] = hierarchical_dependencies
        if categorical:
            inputs["categorical_features"] = categorical
        return inputs
