"""The base of the tree models: fast where their covariance is a ``LeafKernel``.

The kernel's ``forward`` defines the covariance. The evidence of a fit and predictions
are computed leaf by leaf (``leaf_inference``) where that is faster than the dense
algebra of GPyTorch; the results are equal up to rounding.
"""

from __future__ import annotations

__all__ = [
    "MAX_LOSS",
    "MAX_SHORT_FITS",
    "Dependencies",
    "LeafModel",
    "output_dimensions",
    "read_arguments",
    "take_values",
]

import math
import operator
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple, Self

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.models.transforms.input import InputTransform
from botorch.models.utils import check_min_max_scaling
from botorch.posteriors import GPyTorchPosterior
from botorch.settings import propagate_grads, validate_input_scaling
from botorch.utils.datasets import SupervisedDataset
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from torch import Tensor

from botorch_structured.models.checks import (
    ShapeError,
    check_modules,
    check_training_data,
)
from botorch_structured.models.fantasies import joined_noise
from botorch_structured.models.fast_inference import (
    FastSingleTaskGP,
    has_methods_of,
    noise_is_known,
)
from botorch_structured.models.input_transforms import dataset_task
from botorch_structured.models.tree.batches import (
    Element,
    fantasy_shapes,
    make_elements,
    objectives_of_elements,
    posterior_of_elements,
)
from botorch_structured.models.tree.conditional_kernel import ConditionalKernel
from botorch_structured.models.tree.leaf_inference import (
    LeafKernel,
    LeafPredictor,
    Structure,
    log_evidence,
)
from botorch_structured.models.tree.moments import LeafMoments
from botorch_structured.models.tree.objective import LeafObjective
from botorch_structured.models.tree.point_moments import (
    ModelMoments,
    moments_on,
    point_posterior,
)
from botorch_structured.models.tree.tree_structured_kernel import TreeStructuredKernel
from botorch_structured.spaces import ParameterTree, SearchSpace

#: After so many fits that start from an earlier one, a full one is made.
MAX_SHORT_FITS = 4
#: The same if minus the objective per data point has grown by so much.
MAX_LOSS = 0.1

#: What models take for the structure of their inputs.
Dependencies = SearchSpace | ParameterTree | Mapping[int, Mapping[float, Sequence[int]]]

# GPyTorch's prediction copies the training data for each element of a t-batch, so
# predictions by leaf are faster unless weights are more than rows and than this. (Of
# 2,100 weights and 100 rows its copies took more than 20 GB.)
_MANY_WEIGHTS = 8192
# What moments come from.
_WAY_OF_A_POSTERIOR = "posterior", "__call__", "_fast_posterior"


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
        input_transform=input_transform,
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
    batch = len(model._aug_batch_shape)
    return {name: batch - 1 - p.ndim for name, p in model.named_parameters()}


class _FitRecord(NamedTuple):
    """What a model remembers of its fits.

    Attributes:
        short: Fits since the last full one.
        loss: Minus the objective per data point after the last full one.
    """

    short: int
    loss: float


class _Fit(NamedTuple):
    """A fit: minus the objective per data point, the kernel, all parameters."""

    loss: float
    kernel: str | None
    values: list[Tensor]


class LeafModel(FastSingleTaskGP):
    """A ``SingleTaskGP`` over a tree, fast where its kernel is a ``LeafKernel``."""

    tree: ParameterTree

    _data_caches = ("_structure_cache",)
    _fit_caches = ("_elements_cache",)
    # state of a fit, not a hyperparameter: copied and pickled, not in ``state_dict``
    _fit_record: _FitRecord | None = None
    _structure_cache: tuple[Tensor, LeafKernel, Structure] | None = None
    _elements_cache: tuple[list[object], list[Element]] | None = None
    # of a model with fantasies: how many batch dimensions these have in front of those
    # of the rows before, and the number of the latter
    _fantasies: tuple[int, int] | None = None

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
            least, most = X.detach().aminmax()
            if least >= 0.0 and most <= 1.0:  # then active entries are, too
                return
            named = [*tree.decision_columns, *categorical]
            check_min_max_scaling(tree.impute(X.detach()), ignore_dims=named)

    # -- what can be used ---------------------------------------------------------

    def _is_structured(self) -> bool:
        """Whether the structured algebra applies to the training data at all.

        To one data set with one outcome; of others see ``_elements``.
        """
        return (
            self._is_by_leaf()
            and self.train_inputs[0].ndim == 2
            and self.train_targets.ndim == 1
            and not self.covar_module.batch_shape
        )

    def _is_flat(self) -> bool:
        """Whether it is a `SingleTaskGP` of one data set with one outcome."""
        return (
            not (self.tree.decision_columns or self.covar_module.batch_shape)
            and self.train_inputs is not None
            and self.train_inputs[0].ndim == 2
            and self.train_targets.ndim == 1
            and noise_is_known(self.likelihood)
            and has_methods_of(LeafModel, self, "forward")
        )

    def _is_by_leaf(self) -> bool:
        return (
            isinstance(self.covar_module, LeafKernel)
            and self.covar_module.is_by_leaf
            and noise_is_known(self.likelihood)
            and has_methods_of(LeafModel, self, "forward")
            and self.train_inputs is not None
        )

    def kernel_by_leaf(self) -> Kernel:
        """The kernel by leaf: without decisions, any kernel on the only leaf."""
        kernel = self.covar_module
        if isinstance(kernel, LeafKernel) or self.tree.decision_columns:
            return kernel
        return ConditionalKernel(kernel, self.tree)

    def _use_predictor(self) -> bool:
        """Whether predictions are made by leaf, those of batches and fantasies too."""
        if not (self._is_by_leaf() and self._has_factors()):
            return False
        weights = self.covar_module.num_weights
        return weights <= max(self.train_inputs[0].shape[-2], _MANY_WEIGHTS)

    def _has_factors(self) -> bool:
        """Whether predictions may use factors that were computed before."""
        # BoTorch propagates gradients to inputs, others to hyperparameters too
        attached = settings.detach_test_caches.off() and propagate_grads.off()
        if self.training or settings.prior_mode.on() or attached:
            return False
        # rows of fantasies may have a gradient, those before them have none
        tensors = (*self.train_inputs, self.train_targets)
        return self._fantasies is not None or not any(t.requires_grad for t in tensors)

    # -- caches -------------------------------------------------------------------

    def _structure(self, X: Tensor) -> Structure:
        cache = self._structure_cache
        kernel = self.covar_module
        if cache is None or cache[0] is not X or cache[1] is not kernel:
            self._structure_cache = cache = (X, kernel, kernel.structure(X))
        return cache[2]

    def _elements(self) -> list[Element]:
        """Each outcome of each data set, without the rows of fantasies."""
        cache = self._elements_cache
        if cache is None or not self._has_elements():
            self._elements_cache = cache = (self._made_of(), make_elements(self))
        return cache[1]

    def _has_elements(self) -> bool:
        """Whether elements of the present data and modules are known."""
        cache = self._elements_cache
        return cache is not None and all(map(operator.is_, self._made_of(), cache[0]))

    def _made_of(self) -> list[object]:
        """What elements are made of, besides values."""
        kernel, data = self.covar_module, (self.train_inputs[0], self.train_targets)
        variant = getattr(kernel, "variant", None)
        return [*data, kernel, variant, self.likelihood, self.mean_module]

    # -- evidence -----------------------------------------------------------------

    def _fast_evidence(
        self, mll: ExactMarginalLogLikelihood, kwargs: dict[str, Any]
    ) -> Tensor | None:
        own = has_methods_of(LeafModel, self, "__call__")
        if mll.likelihood is not self.likelihood or kwargs or not own:
            return None
        X = self.train_inputs[0]
        if not self._is_structured():
            return None
        # paths do not depend on the transform, which keeps decisions
        structure = self._structure(X)
        X, noise = self.transform_inputs(X), self.likelihood.noise.expand(len(X))
        residual = self.train_targets - self.mean_module(X)
        return log_evidence(self.covar_module, X, structure, noise, residual)

    # -- posterior ----------------------------------------------------------------

    def _predictor(self) -> LeafPredictor:
        return self._elements()[0].predictor

    def _forget_fantasies(self) -> None:
        super()._forget_fantasies()
        self._fantasies = None

    def get_fantasy_model(self, inputs: Any, targets: Tensor, **kwargs: Any) -> Any:
        """A model with more data and the same hyperparameters, see ``ExactGP``.

        Data without a batch dimension, a gradient, or (with inferred noise) a noise of
        their own are appended. Others condition the posterior of the elements; no
        factorisation is repeated for them.
        """
        X = inputs[0] if isinstance(inputs, (list, tuple)) else inputs
        old_X, old_y = self.train_inputs[0], self.train_targets
        shapes = fantasy_shapes(old_y.shape[:-1], X.shape[:-2], targets.shape[:-1])
        noise, before = self._noise_to_keep(kwargs), self._fantasy_noise
        append = X.ndim == 2 and targets.ndim == 1 and old_y.ndim == 1
        append = append and not (X.requires_grad or targets.requires_grad)
        append = append and self._fantasies is None and before is None and noise is None
        if shapes is None or not self._use_predictor():
            return super().get_fantasy_model(inputs, targets, **kwargs)
        kept = [old_X, old_y, self.likelihood, self.prediction_strategy, before]
        kept.append(self._original_train_inputs)
        new = deepcopy(self, {id(thing): thing for thing in kept})
        new.likelihood = self.likelihood.get_fantasy_likelihood(**kwargs)
        both = [t.expand(*shapes[0], *t.shape[-2:]) for t in (old_X, X)]
        all_X = torch.cat(both, dim=-2).expand(*shapes[1], -1, -1)
        both = [t.expand(*shapes[1], t.shape[-1]) for t in (old_y, targets)]
        new.set_train_data(all_X, torch.cat(both, dim=-1), strict=False)
        if append:
            return new
        lead, num_rows = self._fantasies or (0, old_X.shape[-2])
        new._fantasies = (lead + len(shapes[1]) - old_y.ndim + 1, num_rows)
        new._fantasy_noise = joined_noise(before, noise, targets)
        new._elements_cache = (new._made_of(), self._elements())
        return new

    def _moments(self) -> LeafMoments | None:
        """Moments of points one by one, where they have a closed form."""
        data = self.train_inputs is not None and self._fantasies is None
        if not (data and self.train_targets.ndim == 1 and self._has_factors()):
            return None
        # a search asks hundreds of times: of elements at hand it is known
        if not self._has_elements():
            by_leaf = self._is_structured() and self._use_predictor()
            if not (by_leaf or self._is_flat()):
                return None
        return self._elements()[0].moments

    def _fast_posterior(self, X: Tensor) -> MultivariateNormal | None:
        """Posterior through the leaves at ``batch_shape x q x d`` points."""
        if not self._use_predictor():
            return None
        return posterior_of_elements(self, self._elements(), X)

    def _point_posterior(self, X: Tensor) -> GPyTorchPosterior | None:
        """See ``FastSingleTaskGP._point_posterior``."""
        own = has_methods_of(LeafModel, self, *_WAY_OF_A_POSTERIOR[1:])
        return point_posterior(self, X) if own else None

    def moments_on(self, rows: Tensor, path: bool = False) -> ModelMoments | None:
        """Moments of ``posterior`` without autograd; None where they are not at hand.

        For optimisers: they evaluate points on few paths again and again.

        Args:
            rows: ``m x d`` points, of which only the decisions matter.
            path: Whether moments of ``path_posterior`` are wanted.
        """
        return moments_on(self, rows, path) if self._has_own_posterior(path) else None

    def _has_own_posterior(self, path: bool) -> bool:
        """Whether no subclass has another posterior, or posterior of paths."""
        return has_methods_of(LeafModel, self, *_WAY_OF_A_POSTERIOR)

    # -- as BoTorch calls it ------------------------------------------------------

    def custom_fit(
        self, mll: MarginalLogLikelihood, start_from: Self | None = None, **kwargs: Any
    ) -> MarginalLogLikelihood:
        r"""Fit by L-BFGS-B, with BoTorch's retries.

        ``fit_gpytorch_mll(mll, start_from=model)`` calls this; every argument of it is
        honoured. Not for direct use.

        Args:
            mll: The objective.
            start_from: A fitted model of the same class and options, with fewer data
                (or branches): its hyperparameters are the start of one short fit, and
                its kernel is kept. A full fit, which tries every kernel from the
                default start and keeps the best result, is made if there has been
                none for ``MAX_SHORT_FITS`` fits, or if the objective per data point is
                more than ``MAX_LOSS`` worse than after the last one.
            kwargs: See ``fit_gpytorch_mll``.

        Raises:
            ValueError: If ``start_from`` has another class or other options.
        """
        objectives = self._fit_objectives(mll, kwargs)
        parameters = [*mll.parameters()]
        cold = [p.detach().clone() for p in parameters]
        before = _Fit(math.inf, self._kernels(chosen=True)[0], cold)
        found: list[_Fit] = []
        present: _Fit | None = None  # the one whose values the model has
        failure: ModelFittingError | None = None

        def take(values: Sequence[Tensor], kernel: str | None) -> None:
            for p, value in zip(parameters, values, strict=True):
                p.data.copy_(value)
            if kernel is not None:
                self.covar_module.set_correlation(kernel)

        def fit(kernel: str | None) -> None:
            nonlocal failure, present
            present = None
            for objective in objectives:
                objective.form.read_correlation()
            try:
                self._fit(mll, objectives, **kwargs)
            except ModelFittingError as error:
                failure = error
                return
            loss = self._loss(mll, objectives)
            if math.isfinite(loss):
                values = [p.detach().clone() for p in parameters]
                present = _Fit(loss, kernel, values)
                found.append(present)

        record = None
        try:
            if start_from is not None:
                take_values(self, start_from)
                fit(self._kernels(chosen=True)[0])
                last = start_from._fit_record
                if found and last is not None:
                    enough = found[0].loss <= last.loss + MAX_LOSS
                    if enough and last.short < MAX_SHORT_FITS:
                        record = _FitRecord(last.short + 1, last.loss)
            if record is None:
                for kernel in self._kernels():
                    take(cold, kernel)
                    fit(kernel)
            if not found:
                raise failure or ModelFittingError("The evidence is not finite.")
        finally:  # of a fit that is interrupted, the best so far
            best = min(found, key=lambda f: f.loss, default=before)
            if best is not present:
                take(best.values, best.kernel)
            mll.eval()
        self._fit_record = record or _FitRecord(0, best.loss)
        return mll

    def _kernels(self, chosen: bool = False) -> list[str | None]:
        """Names of the kernels among which a fit chooses; None for no choice.

        Args:
            chosen: Only the one in use.
        """
        return [None]

    def _loss(
        self, mll: MarginalLogLikelihood, objectives: list[LeafObjective]
    ) -> float:
        """Minus the objective per data point; the sum of those of elements."""
        if objectives:
            return sum(objective.loss() for objective in objectives)
        mll.train()
        with torch.no_grad():
            return float(self.compute_custom_loss(mll).sum())

    def _fit(
        self, mll: MarginalLogLikelihood, objectives: list[LeafObjective], **kwargs: Any
    ) -> None:
        """One fit, in closed form where there are objectives for that."""
        # it loads BoTorch's fits, see ``_botorch_names``
        from botorch_structured.models.map_fit import (
            FIT_OPTIONS,
            FLAT_FIT_OPTIONS,
            accept_rounding,
            fit_map,
        )

        objective = objectives[0] if objectives else None
        by_leaf = objective is not None and isinstance(self.covar_module, LeafKernel)
        if not (self.tree.decision_columns or by_leaf):
            # a SingleTaskGP, fitted as BoTorch fits it where there is no closed form
            options = FLAT_FIT_OPTIONS if objective is not None else None
            fit_map(mll, options, objective=objective, **kwargs)
            return
        kwargs.setdefault("warning_handler", accept_rounding)
        if self._aug_batch_shape.numel() == 1:
            fit_map(mll, FIT_OPTIONS, objective=objective, **kwargs)
        elif not objectives:  # BoTorch's L-BFGS-B of batches, for all elements together
            fit_map(mll, **kwargs)
        else:
            parameters, ends = list(mll.parameters()), []
            start = [p.detach().clone() for p in parameters]
            for objective in objectives:
                fit_map(mll, FIT_OPTIONS, objective=objective, **kwargs)
                ends.append(objective.read())
                # a retry draws the parameters of all elements
                for p, value in zip(parameters, start, strict=True):
                    p.data.copy_(value)
            for objective, end in zip(objectives, ends, strict=True):
                objective.write(end)
            self._clear_cache()

    def _fit_objectives(
        self, mll: MarginalLogLikelihood, kwargs: dict[str, Any]
    ) -> list[LeafObjective]:
        """Objectives in closed form, of each element; empty where there are none."""
        if self._aug_batch_shape.numel() > 1:
            by_leaf = self.tree.decision_columns and self._is_by_leaf()
            if not by_leaf or not self._has_own_evidence():
                return []
            return objectives_of_elements(self, mll, kwargs)
        objective = self.fit_objective(mll)
        return [] if objective is None else [objective]

    def _has_own_evidence(self) -> bool:
        return has_methods_of(LeafModel, self, "_fast_evidence")

    def fit_objective(self, mll: MarginalLogLikelihood) -> LeafObjective | None:
        """The objective in closed form; None if there is none, see ``LeafObjective``.

        Args:
            mll: An objective of this model; put in training mode.
        """
        single = self._is_structured() or self._is_flat()
        if not (self._has_own_evidence() and single):
            return None
        mll.train()  # in evaluation mode inputs are transformed already
        return LeafObjective.of(mll)

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
                "with {} for a space without decisions, got None. In Ax, use "
                "botorch_structured.integrations.ax.structured_generation_strategy, or "
                "keep the hierarchy: give the generator transforms=Mixed_transforms + "
                "Y_trans and transform_configs={'Cast': {'flatten_hss': False}}; where "
                "there is none, give the ModelConfig "
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


# -- hyperparameters of an earlier fit as the start of the next one ----------------
#
# Data and branches may have been added in between. Entries of a parameter are matched
# by what they belong to: a column (by its name if a ``SearchSpace`` gives one), a value
# of a decision, a path. New entries keep their start.


def take_values(model: Any, earlier: Any) -> None:
    """Set the parameters of a model, and its choice of a kernel, to an earlier one's.

    Args:
        model: The model.
        earlier: A model of the same class and options.

    Raises:
        ValueError: For a model of another class or other options, and for other columns
            where values would be taken by position.
    """
    if type(earlier) is not type(model):
        raise ValueError(
            f"start_from: expected a {type(model).__name__} as is fitted, got "
            f"{type(earlier).__name__}."
        )
    for name, mine, other in _options(model, earlier):
        if mine != other:
            raise ValueError(
                "start_from: expected a model with the same options, got one with "
                f"another {name} ({other} for {mine})."
            )
    values = dict(earlier.named_parameters())
    to, of = _entries(model), _entries(earlier)
    alike = _named_columns(model) == _named_columns(earlier)
    taken: list[tuple[Tensor, Tensor]] = []  # nothing is written before all is checked
    for name, parameter in model.named_parameters():
        if name not in values or not parameter.requires_grad:
            continue  # of branches that are new, or held
        value = values[name].detach()
        here, there = to.get(name), of.get(name)
        if (
            here is not None
            and there is not None
            and parameter.shape[-1:] == (len(here),)
            and value.shape == (*parameter.shape[:-1], len(there))
        ):
            place = {key: i for i, key in enumerate(there)}
            known = [i for i, key in enumerate(here) if key in place]
            new = parameter.detach().clone()
            new[..., known] = value[..., [place[here[i]] for i in known]]
            value = new
        # one value for all, or entries by position
        elif value.shape != parameter.shape:
            raise ValueError(
                "start_from: expected a model with the same options, got one with "
                f"{name} of shape {tuple(value.shape)} for {tuple(parameter.shape)}."
            )
        elif not alike and parameter.shape[len(model._aug_batch_shape) :].numel() > 1:
            raise ValueError(
                "start_from: expected a model with the same columns and decisions in "
                f"the same order, as {name} has entries whose columns are not known, "
                "got one with others."
            )
        taken.append((parameter, value))
    with torch.no_grad():
        for target, value in taken:
            target.copy_(value)
    kernel = model.covar_module
    if isinstance(kernel, TreeStructuredKernel):
        kernel.set_correlation(earlier.covar_module.correlation.name)


def _options(model: Any, earlier: Any) -> Iterator[tuple[str, object, object]]:
    """Name, and value of both models, of what may not differ."""
    for part in ("covar_module", "likelihood", "mean_module"):
        yield (
            part,
            _module_classes(getattr(model, part)),
            _module_classes(getattr(earlier, part)),
        )
    a, b = model.covar_module, earlier.covar_module
    if isinstance(a, TreeStructuredKernel):
        yield "leaf_inputs", a.leaf_inputs, b.leaf_inputs
        yield "context_features", a.context_columns, b.context_columns
        sharing = a.leaf_hyperparameters.sharing, b.leaf_hyperparameters.sharing
        yield "leaf_hyperparameters", *sharing
        yield "leaf_kernel", model._choose_kernel, earlier._choose_kernel


def _module_classes(module: torch.nn.Module) -> list[type]:
    """The classes of a kernel and of what it is made of, of a likelihood or mean."""
    if isinstance(module, TreeStructuredKernel):
        return [type(module)]  # its parts depend on the branches
    return [type(part) for part in module.modules()]


def _named_columns(model: Any) -> tuple[object, object]:
    """Columns in their order, and decisions; of equal ones positions are the same."""
    tree = model.tree
    columns = list(range(tree.dim)) if tree.space is None else list(tree.space.names)
    return columns, tree.decision_values


def _entries(model: Any) -> dict[str, Sequence[Hashable]]:
    """Names of parameters with an entry for each of something, and what these are."""
    tree, kernel = model.tree, model.covar_module
    column = int if tree.space is None else tree.space.names.__getitem__

    def paths() -> list[Hashable]:
        every = (path.decisions.items() for path in tree.paths)
        return [frozenset((column(c), v) for c, v in items) for items in every]

    out: dict[str, Sequence[Hashable]] = {}
    if hasattr(model.mean_module, "raw_offset"):
        out["mean_module.raw_offset"] = paths()
    if isinstance(kernel, TreeStructuredKernel):
        edges = [(column(c), v) for c, vs in tree.decision_values.items() for v in vs]
        leaf, weights = kernel.leaf_hyperparameters, kernel.weights
        names = "covar_module.leaf_hyperparameters.{}.raw_value".format
        if leaf.sharing == "independent":
            out[names("outputscale")] = every = paths()
            if hasattr(leaf, "lengthscale"):
                used = leaf.pair < leaf.lengthscale.raw_value.shape[-1]
                out[names("lengthscale")] = [
                    (every[p], column(kernel.columns[j]))
                    for p, j in used.nonzero().tolist()
                ]
        else:
            of_leaves = kernel.columns[: leaf.num_columns]
            out[names("relative_lengthscale")] = [column(c) for c in of_leaves]
            out[names("relative_outputscale")] = edges
        context = [column(c) for c in kernel.context_columns]
        out[names("context_lengthscale")] = context
        names = "covar_module.weights.{}.raw_value".format
        nodes = [([None, *edges])[i] for i in weights.node_columns.tolist()]
        out[names("node_variance")] = nodes[: weights.num_inner]
        out[names("offset_variance")] = nodes[weights.num_inner :]
        for kind, columns in (
            ("linear", weights.linear_columns),
            ("onehot", weights.onehot_columns),
            ("smooth", weights.smooth_columns),
        ):
            out[names(f"{kind}_variance")] = [column(c) for c in columns]
        out[names("smooth_lengthscale")] = out[names("smooth_variance")]
    else:
        for name, part in kernel.named_modules(prefix="covar_module"):
            count = getattr(part, "ard_num_dims", None)
            dims = getattr(part, "active_dims", None)
            of_kernel = range(tree.dim) if dims is None else dims.tolist()
            if len(of_kernel) == count:
                out[f"{name}.raw_lengthscale"] = [column(c) for c in of_kernel]
    return out
