"""The base of the tree models: fast where their covariance is a ``LeafKernel``.

The kernel's ``forward`` defines the covariance. The evidence of a fit and predictions
are computed leaf by leaf (``leaf_inference``) where that is faster than the dense
algebra of GPyTorch; the results are equal up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputTransform,
    Log10,
    Normalize,
)
from botorch.models.utils import check_min_max_scaling
from botorch.posteriors import GPyTorchPosterior
from botorch.settings import propagate_grads, validate_input_scaling
from botorch.utils.datasets import SupervisedDataset
from gpytorch import settings
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from linear_operator.operators import DenseLinearOperator
from torch import Tensor

from botorch_structured._botorch_names import functorch_is_active
from botorch_structured.kernels.leaf_kernels import (
    ConditionalKernel,
    LeafKernel,
    Structure,
)
from botorch_structured.kernels.tree_structured_kernel import PathMean
from botorch_structured.linalg.parameters import FIT_START, START
from botorch_structured.models.checks import (
    ShapeError,
    check_modules,
    check_training_data,
    dataset_task,
)
from botorch_structured.models.fast_inference import FastSingleTaskGP, noise_is_known
from botorch_structured.models.outcome_scale import ScaledNormal, linear_outcome
from botorch_structured.models.tree.form import Form
from botorch_structured.models.tree.leaf_inference import log_evidence
from botorch_structured.models.tree.moments import (
    Array,
    ColumnScales,
    MomentsOnPaths,
)
from botorch_structured.models.tree.objective import LeafObjective, device_units
from botorch_structured.models.tree.solver import (
    LeafSolver,
    SolverBatch,
    differentiable_moments,
    fantasy_shapes,
    make_solver,
)
from botorch_structured.models.tree.warm_start import take_values
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import check_count

#: After so many fits that start from an earlier one, a full one is made.
MAX_SHORT_FITS = 4
#: Up to so many rows of a model on another device are fitted on the host.
HOST_ROWS = 200
#: The same if minus the objective per data point has grown by so much.
MAX_LOSS = 0.1

#: What models take for the structure of their inputs.
Dependencies = SearchSpace | ParameterTree | Mapping[int, Mapping[float, Sequence[int]]]

# GPyTorch's prediction copies the training data for each element of a t-batch, so
# predictions by leaf are faster unless weights are more than rows and than this. (With
# 2,100 weights and 100 rows its copies took more than 20 GB.)
_MANY_WEIGHTS = 8192


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
    check_modules(
        input_transform=input_transform,
        covar_module=covar_module,
        **modules,
    )
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
        space = dependencies
        dependencies = dependencies.tree
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
        codes = dict(space.categorical_features)
        for c in tree.decision_columns:
            codes.pop(c, None)
        categorical = codes or None
    return tree, input_transform, categorical


def output_dimensions(model: FastSingleTaskGP) -> dict[str, int]:
    """``_subset_batch_dict`` of a model of this package, for ``subset_output``.

    Args:
        model: A model whose parameters have the batch shape in front.
    """
    batch = len(model._aug_batch_shape)
    dimensions = {}
    for name, parameter in model.named_parameters():
        dimensions[name] = batch - 1 - parameter.ndim
    return dimensions


def is_mean_of_paths(mean: Any) -> bool:
    """Whether a prior mean is known to be constant on a path."""
    return type(mean) in (ConstantMean, PathMean)


def column_scales(transform: InputTransform | None, width: int) -> ColumnScales | None:
    """A transform in evaluation mode as one of single columns; None for other kinds.

    Args:
        transform: ``Normalize``, ``Log10``, a chain of both, or None.
        width: The number of columns.
    """
    parts: list[Any] = [] if transform is None else [transform]
    if isinstance(transform, ChainedInputTransform):
        parts = [*transform.values()]
    log = np.zeros(width + 1, dtype=bool)
    factor = np.ones(width + 1)
    shift = np.zeros(width + 1)
    for part in parts:
        if type(part) not in (Normalize, Log10) or part.reverse:
            return None
        if not part.transform_on_eval:
            continue
        indices = getattr(part, "indices", None)
        at = np.arange(width) if indices is None else indices.numpy()
        if isinstance(part, Log10):
            if log[at].any() or (factor[at] != 1.0).any() or shift[at].any():
                return None
            log[at] = True
            continue
        coefficient = part.coefficient
        if coefficient.numel() != coefficient.shape[-1]:
            return None
        rate = 1.0 / coefficient.flatten().numpy()
        factor[at] *= rate
        shift[at] = (shift[at] - part.offset.flatten().numpy()) * rate
    return ColumnScales(log, factor, shift)


def begin_fit(likelihood: GaussianLikelihood) -> None:
    """Set a free noise that is as the constructor left it to where a fit begins.

    Args:
        likelihood: From ``default_likelihood``.
    """
    raw = likelihood.noise_covar.raw_noise
    if raw.requires_grad:
        # in single precision, of which the host fits a copy in double precision
        as_made = raw.data.float() == math.log(START)
        raw.data.masked_fill_(as_made, math.log(FIT_START))


class _FitRecord(NamedTuple):
    """The last fits of a model.

    Attributes:
        short: Fits since the last full one.
        loss: Minus the objective per data point after the last full one.
    """

    short: int
    loss: float


class _Fit(NamedTuple):
    """A fit: minus the objective per data point, the kernel, the parameters."""

    loss: float
    kernel: str | None
    values: list[Any]


class _Parameters:
    """The state of a fit without a closed form, with methods of ``LeafObjective``."""

    def __init__(self, mll: MarginalLogLikelihood) -> None:
        self._mll: Any = mll

    def read(self) -> list[Tensor]:
        return [p.detach().clone() for p in self._mll.parameters()]

    def write(self, values: list[Tensor]) -> None:
        for p, value in zip(self._mll.parameters(), values, strict=True):
            p.data.copy_(value)

    def read_correlation(self) -> None:
        """The model reads it itself."""

    def loss(self) -> float:
        """Minus the objective per data point, summed over the batch."""
        self._mll.train()
        with torch.no_grad():
            return float(self._mll.model.compute_custom_loss(self._mll).sum())


class LeafModel(FastSingleTaskGP):
    """A ``SingleTaskGP`` over a tree, fast where its kernel is a ``LeafKernel``."""

    tree: ParameterTree

    _data_caches = ("_structure_cache",)
    _fit_caches = ("_solver_cache", "_form_cache")
    # that of the last fit
    _form_cache: Form | None = None
    # state of a fit, not a hyperparameter: copied and pickled, not in ``state_dict``
    _fit_record: _FitRecord | None = None
    #: Whether fits begin at another noise than training loops, see ``noise``.
    _begins_fits = False
    _structure_cache: Structure | None = None

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

    # -- evidence -----------------------------------------------------------------

    def kernel_by_leaf(self) -> Kernel:
        """The kernel by leaf: without decisions, any kernel on the only leaf."""
        kernel = self.covar_module
        if isinstance(kernel, LeafKernel) or self.tree.decision_columns:
            return kernel
        return ConditionalKernel(kernel, self.tree)

    def _is_by_leaf(self) -> bool:
        """Whether the leaves and the weights define the covariance of the data."""
        kernel = self.kernel_by_leaf()
        return (
            isinstance(kernel, LeafKernel)
            and kernel.is_by_leaf
            and noise_is_known(self.likelihood)
            and "forward" not in self.redefined
            and self.train_inputs is not None
        )

    def _is_single(self) -> bool:
        """Whether there is one data set with one outcome."""
        return (
            self.train_inputs is not None
            and self.train_inputs[0].ndim == 2
            and self.train_targets.ndim == 1
            and not self.covar_module.batch_shape
        )

    def _fast_evidence(
        self,
        mll: ExactMarginalLogLikelihood,
        kwargs: dict[str, Any],
    ) -> Tensor | None:
        kernel = self.covar_module
        if mll.likelihood is not self.likelihood or kwargs or not self._is_single():
            return None
        if "__call__" in self.redefined or not isinstance(kernel, LeafKernel):
            return None
        if not self._is_by_leaf():
            return None
        X = self.transform_inputs(self.train_inputs[0])
        noise = self.likelihood.noise.expand(len(X))
        residual = self.train_targets - self.mean_module(X)
        return log_evidence(
            kernel,
            X,
            self.structure(kernel),
            noise,
            residual,
        )

    def structure(self, kernel: LeafKernel) -> Structure:
        """The leaves of one data set, which do not depend on an input transform.

        Args:
            kernel: From ``kernel_by_leaf``.
        """
        structure = self._structure_cache
        if structure is None:
            structure = kernel.structure(self.train_inputs[0])
            self.__dict__["_structure_cache"] = structure
        return structure

    # -- posterior ----------------------------------------------------------------

    def _make_solver(self) -> SolverBatch | None:
        """See ``FastInference``."""
        if not self._is_by_leaf():
            return None
        if self.train_targets.requires_grad or self.train_inputs[0].requires_grad:
            return None
        kernel = self.kernel_by_leaf()
        if kernel.num_weights > max(self.train_inputs[0].shape[-2], _MANY_WEIGHTS):
            return None
        if kernel is self.covar_module:
            return make_solver(self, kernel)
        if not self._is_single():
            return None
        # of a SingleTaskGP, points one by one; GPyTorch makes its other predictions
        solver = make_solver(self, kernel)
        return None if solver.moments is None else solver

    def get_fantasy_model(
        self,
        inputs: Any,
        targets: Tensor,
        **kwargs: Any,
    ) -> Any:
        """A model with more data and the same hyperparameters, see ``ExactGP``.

        Data without a batch dimension, a gradient, or (with inferred noise) a noise of
        their own are appended. Others condition the posterior of the rows before; no
        factorisation is repeated for them. As in GPyTorch, a noise of their own beside
        an inferred one is forgotten by copies, and when the new model is trained.
        """
        X = inputs[0] if isinstance(inputs, (list, tuple)) else inputs
        old_X = self.train_inputs[0]
        old_y = self.train_targets
        shapes = fantasy_shapes(
            old_y.shape[:-1],
            X.shape[:-2],
            targets.shape[:-1],
        )
        solver = self.solver
        if shapes is None or solver is None or not solver.is_joint:
            return super().get_fantasy_model(inputs, targets, **kwargs)
        kept = [old_X, old_y, self.likelihood, self.prediction_strategy]
        kept.append(self._original_train_inputs)
        new = deepcopy(self, {id(thing): thing for thing in kept})
        new.likelihood = self.likelihood.get_fantasy_likelihood(**kwargs)
        inputs_shape, targets_shape = shapes
        rows = [t.expand(*inputs_shape, *t.shape[-2:]) for t in (old_X, X)]
        outcomes = [t.expand(*targets_shape, t.shape[-1]) for t in (old_y, targets)]
        all_X = torch.cat(rows, dim=-2).expand(*targets_shape, -1, -1)
        new.set_train_data(
            all_X,
            torch.cat(outcomes, dim=-1),
            strict=False,
        )
        fixed_noise = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        if (
            X.ndim == 2
            and targets.ndim == 1
            and old_y.ndim == 1
            and not (X.requires_grad or targets.requires_grad)
            and isinstance(solver.solvers[0], LeafSolver)
            and (fixed_noise or kwargs.get("noise") is None)
        ):
            return new
        conditioned = solver.append(self, X, targets, kwargs.get("noise"))
        new.__dict__["_solver_cache"] = (conditioned,)
        return new

    def _point_posterior(self, X: Tensor) -> GPyTorchPosterior | None:
        """See ``FastSingleTaskGP._point_posterior``.

        BoTorch's general steps around the moments take as long as the moments of one
        point.
        """
        plain = X.numel() and propagate_grads.off() and self.train_targets.ndim == 1
        if not plain or "__call__" in self.redefined or functorch_is_active():
            return None
        outcome = linear_outcome(self, X)
        solver = self.solver
        if outcome is None or solver is None or solver.moments is None:
            return None
        scale, shift = outcome
        transformed = self.transform_inputs(X)
        if transformed.shape[-2] != 1:
            return None
        shape = transformed.shape[:-1]
        flat = transformed.reshape(-1, transformed.shape[-1])
        mean, variance = differentiable_moments(flat, solver.moments)
        mean = (mean + self.mean_module(flat)) * scale + shift
        square = scale**2
        covariance = DenseLinearOperator((variance * square).view(*shape, 1))
        normal = ScaledNormal(mean.view(shape), covariance)
        normal.least = settings.min_variance.value(X.dtype) * square
        return GPyTorchPosterior(normal)

    def point_means(self, X: Tensor) -> Tensor | None:
        """Posterior means of points, without variances; None for ``posterior``'s.

        Args:
            X: ``n x d``, not transformed.
        """
        outcome = linear_outcome(self, X)
        solver = self.solver
        if outcome is None or solver is None or solver.moments is None:
            return None
        scale, shift = outcome
        x = self.transform_inputs(X)
        leaves = solver.moments.solver
        mean = leaves.means(leaves.kernel.rows(x)) + self.mean_module(x)
        return mean * scale + shift

    def moments_on(
        self,
        rows: Tensor,
        path: bool = False,
    ) -> MomentsOnPaths | None:
        """Moments of ``posterior`` without autograd; None where they are not at hand.

        For optimisers: they evaluate points on few paths again and again.

        Args:
            rows: ``m x d`` points, of which only the decisions matter.
            path: Whether moments of ``path_posterior`` are wanted.
        """
        names = {"posterior", "__call__", "_fast_posterior"}
        if path:
            names.add("path_posterior")
        transform = getattr(self, "input_transform", None)
        scales = column_scales(transform, rows.shape[-1])
        outcome = linear_outcome(self, rows)
        if self.redefined & names or scales is None or outcome is None:
            return None
        solver = self.solver
        if solver is None or solver.moments is None:
            return None
        rows = rows.detach()
        prior: Any = self._prior_mean
        if type(self.mean_module) is ConstantMean:
            constant = self.mean_module.constant.item()
            prior = np.full(len(rows), constant, rows.numpy().dtype)
        elif is_mean_of_paths(self.mean_module):
            with torch.no_grad():
                prior = self.mean_module(rows).expand(len(rows)).numpy()
        return MomentsOnPaths(
            solver.moments,
            rows,
            path,
            scales,
            outcome,
            settings.min_variance.value(rows.dtype),
            prior,
        )

    def _prior_mean(
        self,
        X: Array,
        gradient: bool,
    ) -> tuple[Array, Any]:
        """Prior means that are not constant on a path, and their gradients."""
        points = torch.from_numpy(X).requires_grad_(gradient)
        with torch.set_grad_enabled(gradient):
            prior = self.mean_module(self.transform_inputs(points))
            if not prior.requires_grad:
                return prior.numpy(), 0.0
            (slope,) = torch.autograd.grad(prior.sum(), points, allow_unused=True)
        return prior.detach().numpy(), 0.0 if slope is None else slope.numpy()

    # -- as BoTorch calls it ------------------------------------------------------

    def _fit_on_host(self, mll: MarginalLogLikelihood, kwargs: dict[str, Any]) -> bool:
        """Fit a copy in double precision on the CPU where it has a closed form.

        Evidences in single precision lose their digits at a noise below 1e-6, and fits
        of few rows take less time on one thread than on a GPU.

        Returns:
            Whether there is one, and the parameters are those of its fit.
        """
        tensors = (*self.train_inputs, self.train_targets, *mll.parameters())
        kinds = set()
        for tensor in tensors:
            kinds.add((tensor.device.type, tensor.dtype))
        rows = self.train_targets.shape[-1]
        if (
            kinds == {("cpu", torch.float64)}
            or kwargs.get("closure") is not None
            or kwargs.get("optimizer") is not None
            or any(t.grad_fn is not None for t in tensors)
            or (rows > HOST_ROWS and any(device != "cpu" for device, _ in kinds))
        ):
            return False
        twin = deepcopy(mll).to("cpu", torch.float64)
        if not twin.model._fit_objectives(twin, kwargs):
            return False
        twin.model.custom_fit(twin, **kwargs)
        mll.load_state_dict(twin.state_dict())
        self._fit_record = twin.model._fit_record
        return True

    def custom_fit(
        self,
        mll: MarginalLogLikelihood,
        start_from: Self | None = None,
        num_restarts: int = 1,
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        r"""Fit by L-BFGS-B, with BoTorch's retries.

        ``fit_gpytorch_mll(mll, start_from=model)`` calls this; every argument of it is
        honoured. Not for direct use.

        Objectives in closed form are evaluated on the host in double precision, those
        of single precision and of up to ``HOST_ROWS`` rows on another device, too.

        Args:
            mll: The objective.
            start_from: A fitted model of the same class and options, with fewer data
                (or branches): its hyperparameters are the start of one short fit, and
                its kernel is kept. A full fit, which tries every kernel from the
                default start and keeps the best result, is made if there has been
                none for ``MAX_SHORT_FITS`` fits, or if the objective per data point is
                more than ``MAX_LOSS`` worse than after the last one.
            num_restarts: Starts of a full fit, of which the best end is kept: the model
                as it is, and draws from the priors, which in closed form are the same
                in each fit. Of 200 data sets of 10 to 60 rows one start ended more than
                .1 nats below the best of 36 in 7 % (``as_published`` 9 %,
                ``ConditionalGP`` 6 %), and four starts in 1 % (5 %, 5 %). On a GPU 16
                draws for each start are screened, and all starts climb in one batch.
            kwargs: See ``fit_gpytorch_mll``.

        Raises:
            ValueError: If ``start_from`` has another class or other options.
        """
        if mll.training and self.training and self.likelihood.training:
            self._clear_cache()
        else:
            mll.train()  # in evaluation mode inputs are transformed already
        if num_restarts != 1:
            check_count("num_restarts", num_restarts)
        arguments = {"start_from": start_from, "num_restarts": num_restarts}
        if self._fit_on_host(mll, {**arguments, **kwargs}):
            return mll.eval()
        if num_restarts > 1:
            kwargs["max_attempts"] = num_restarts
            kwargs["pick_best_of_all_attempts"] = True
        objectives = self._fit_objectives(mll, kwargs)
        states: list[Any] = [*objectives] or [_Parameters(mll)]
        failure: ModelFittingError | None = None

        def restore(values: list[Any], kernel: str | None) -> None:
            if kernel is not None:
                self.covar_module.set_correlation(kernel)
            for state, value in zip(states, values, strict=True):
                state.write(value)
                state.read_correlation()

        def read() -> list[Any]:
            values = []
            for state in states:
                values.append(state.read())
            return values

        cold = read()
        best = _Fit(math.inf, self._kernels(chosen=True)[0], cold)

        def fit(kernel: str | None) -> None:
            nonlocal best, failure
            if len(objectives) == 1 and not kwargs.get("pick_best_of_all_attempts"):
                objectives[0].compete(best.loss)
            try:
                self._fit(mll, objectives, **kwargs)
                loss = 0.0
                for state in states:
                    loss += state.loss()
            except ModelFittingError as error:
                failure = error
                return
            if loss < best.loss:
                best = _Fit(loss, kernel, read())

        record = None
        try:
            if self._begins_fits and kwargs.get("optimizer") is None:
                begin_fit(self.likelihood)
            first = read()
            if start_from is not None:
                take_values(self, start_from)
                kernel = self._kernels(chosen=True)[0]
                restore(read(), kernel)
                fit(kernel)
                last = start_from._fit_record
                if last is not None and best.loss <= last.loss + MAX_LOSS:
                    if last.short < MAX_SHORT_FITS:
                        record = _FitRecord(last.short + 1, last.loss)
            if record is None:
                for kernel in self._kernels():
                    restore(first, kernel)
                    fit(kernel)
            if best.loss == math.inf:
                raise failure or ModelFittingError("The evidence is not finite.")
        finally:  # of a fit that is interrupted, the best so far
            restore(best.values, best.kernel)
            mll.eval()
        self._fit_record = record or _FitRecord(0, best.loss)
        if len(objectives) == 1:
            self.__dict__["_form_cache"] = objectives[0].form
        return mll

    def _kernels(self, chosen: bool = False) -> list[str | None]:
        """Names of the kernels among which a fit chooses; None for no choice.

        Args:
            chosen: Only the one in use.
        """
        return [None]

    def _fit(
        self,
        mll: MarginalLogLikelihood,
        objectives: list[LeafObjective],
        **kwargs: Any,
    ) -> None:
        """One fit, in closed form where there are objectives for that."""
        # it loads BoTorch's fits, see ``_botorch_names``
        from botorch_structured.models import map_fit

        by_leaf = isinstance(self.covar_module, LeafKernel)
        if not objectives:
            # BoTorch's options of a SingleTaskGP, and of batches that are fitted as one
            single = self._aug_batch_shape.numel() == 1
            with_decisions = single and bool(self.tree.decision_columns)
            map_fit.fit_map(
                mll,
                map_fit.FIT_OPTIONS if with_decisions else None,
                units=device_units,
                **kwargs,
            )
            return
        options = map_fit.FIT_OPTIONS if by_leaf else map_fit.FLAT_FIT_OPTIONS
        for objective in objectives:
            map_fit.fit_map(
                mll,
                options,
                objective=objective,
                evaluate=False,
                **kwargs,
            )

    def _fit_objectives(
        self,
        mll: MarginalLogLikelihood,
        kwargs: dict[str, Any],
    ) -> list[LeafObjective]:
        """Objectives in closed form, one for each element of the batch.

        Empty where there are none, and where one optimisation has to be for the whole
        batch: its elements share parameters, or the caller has a closure, an optimiser,
        or arguments that name parameters.

        Args:
            mll: The objective, in training mode.
            kwargs: See ``fit_gpytorch_mll``.
        """
        if not self._aug_batch_shape:
            objective = self.fit_objective(mll)
            return [] if objective is None else [objective]
        shape = self.train_targets.shape[:-1]
        options = kwargs.get("optimizer_kwargs") or {}
        custom = [kwargs.get(n) for n in ("closure", "closure_kwargs", "optimizer")]
        if any(custom) or options.keys() - {"options", "method"}:
            return []
        if not (self.tree.decision_columns and self._is_by_leaf()):
            return []
        if any(prior.batch_shape for _, _, prior, _, _ in mll.named_priors()):
            return []
        for module in mll.modules():
            for p in module.parameters(recurse=False):
                if getattr(module, "batch_shape", p.shape[:-1]) != shape:
                    return []
        objectives = []
        for index in np.ndindex(shape):
            objective = LeafObjective.of(mll, index)
            if objective is None:
                return []
            objectives.append(objective)
        return objectives

    def fit_objective(self, mll: MarginalLogLikelihood) -> LeafObjective | None:
        """The objective in closed form; None if there is none, see ``LeafObjective``.

        Args:
            mll: An objective of this model; put in training mode.
        """
        if not self._is_single():
            return None
        if not mll.training or not self.training:
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
