"""Checks of data, points and input transforms, before any computation.

Errors are instances both of BoTorch's classes, which BoTorch catches, and of
``ValueError``, as for every bad argument of this package. Messages have the form
"`argument`: expected ..., got ...".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy

import torch
from botorch import settings
from botorch.exceptions.errors import (
    BotorchError,
    BotorchTensorDimensionError,
    InputDataError,
)
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputTransform,
    Normalize,
)
from botorch.models.transforms.outcome import (
    ChainedOutcomeTransform,
    OutcomeTransform,
    Standardize,
)
from botorch.models.utils import fantasize as fantasize_flag
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Tensor
from torch.nn import ModuleDict

from botorch_structured._botorch_names import DefaultType
from botorch_structured.spaces import ParameterTree

_INACTIVE = (
    " Inactive columns hold any finite value: fill them with ParameterTree.impute."
)
# Outcomes are equal if they differ by less than this many eps of the largest (up to 4
# units in the last place).
_ROUNDING = 2.0
# Margin to the numbers whose squares overflow or underflow: a sum of 1e8 squares is
# then finite, and a square times GPyTorch's smallest variance is not zero.
_MARGIN = 1e4
_KINDS: dict[str, tuple[type, ...]] = {
    "likelihood": (Likelihood,),
    "covar_module": (Kernel,),
    "mean_module": (Mean,),
    "outcome_transform": (OutcomeTransform, DefaultType),
    "input_transform": (InputTransform,),
}


class DataError(InputDataError, ValueError):
    """Data of a wrong type or dtype, with NaN or infinity, or negative variances."""


class ShapeError(BotorchTensorDimensionError, ValueError):
    """Data of a wrong shape."""


def check_modules(**modules: object) -> None:
    """Raise a ``ValueError`` for parts of a model that have the wrong type.

    Args:
        modules: Arguments of the constructor by name; each may be None.
    """
    for name, module in modules.items():
        if module is not None and not isinstance(module, _KINDS[name]):
            raise ValueError(
                f"{name}: expected {_KINDS[name][0].__name__} or None, got {module!r}."
            )


def check_training_data(
    train_X: Tensor,
    train_Y: Tensor,
    train_Yvar: Tensor | None = None,
    *,
    input_transform: InputTransform | None = None,
    outcome_transform: OutcomeTransform | DefaultType | None = None,
    missing: bool = False,
    empty: bool = False,
    tree: bool = False,
) -> None:
    """Raise an error for training data that no model accepts.

    Only shapes are checked where
    ``botorch.settings.validate_input_scaling`` is off, as in BoTorch.

    Args:
        train_X: ``batch_shape x n x d``.
        train_Y: ``batch_shape x n x m``.
        train_Yvar: ``batch_shape x n x m``; batch dimensions may be left out.
        input_transform: One with batches of its own is refused for several outputs:
            BoTorch would take its batches for the outputs.
        outcome_transform: With another one than ``Standardize`` infinite outcomes are
            allowed, as ``ClipTail`` takes them for failures. ``check_scale`` checks
            the transformed outcomes.
        missing: Whether NaN in ``train_Y`` stands for an outcome not observed.
        empty: Whether n may be 0.
        tree: Whether the model has a ``ParameterTree``. If so, the message about NaN
            says how to fill inactive columns.

    Raises:
        DataError: For data that are not tensors of one dtype, single or double
            precision; for numbers that are not finite or whose squares are not; for
            negative variances.
        ShapeError: For shapes that do not fit together.
    """
    data = {"train_Y": train_Y}
    if train_Yvar is not None:
        data["train_Yvar"] = train_Yvar
    check_tensor("train_X", train_X)
    if train_X.dtype not in (torch.float32, torch.float64):
        raise DataError(
            f"train_X: expected torch.float64 or torch.float32, got {train_X.dtype}; "
            "convert it with .double()."
        )
    for name, values in data.items():
        check_tensor(name, values, train_X.dtype)
    _check_shapes(train_X, train_Y, train_Yvar, empty)
    if input_transform is not None and train_Y.shape[-1] > 1:
        _check_batches(input_transform)
    if settings.validate_input_scaling.off():
        return
    _check_inputs("train_X", train_X, tree)
    if _takes_infinity(outcome_transform):
        finite = train_Y.masked_fill(train_Y.isinf(), 0.0)
        _check_outcomes("train_Y", finite, missing)
    else:
        _check_outcomes("train_Y", train_Y, missing)
        if train_Y.numel():
            check_spread(*extremes(train_Y))
    if train_Yvar is not None:
        _check_variances("train_Yvar", train_Yvar, train_Y)


def _check_batches(transform: InputTransform) -> None:
    # priors of a transform have a batch_shape, too, which is theirs
    parts = [p for p in transform.modules() if isinstance(p, InputTransform)]
    for part in parts:
        if shape := tuple(getattr(part, "batch_shape", ())):
            raise ValueError(
                "input_transform: expected one without a batch_shape for several "
                f"outputs, got batch_shape={shape} of {type(part).__name__}; use a "
                "model for each output, or one transform for the whole batch."
            )


def _takes_infinity(transform: OutcomeTransform | DefaultType | None) -> bool:
    """Whether infinite outcomes are allowed: ``Standardize`` would make them NaN."""
    if not isinstance(transform, OutcomeTransform):
        return False
    plain = (Standardize, ChainedOutcomeTransform, ModuleDict)
    for part in transform.modules():
        if not isinstance(part, plain):
            return True
    return False


def extremes(Y: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest outcomes, each ``batch_shape x 1 x m``.

    Args:
        Y: ``batch_shape x n x m``, n > 0. NaN and infinity are left out. If
            none are left, the smallest is infinity and the largest minus infinity.
    """
    Y = Y.detach()
    left_out = ~Y.isfinite()
    low = Y.masked_fill(left_out, torch.inf).amin(dim=-2, keepdim=True)
    return low, Y.masked_fill(left_out, -torch.inf).amax(dim=-2, keepdim=True)


def is_constant(low: Tensor, high: Tensor) -> Tensor:
    """Whether all outcomes are equal up to rounding, from the smallest and largest.

    Args:
        low: The smallest.
        high: The largest, of the same shape.
    """
    size = torch.maximum(low.abs(), high.abs())
    return high - low <= _ROUNDING * torch.finfo(low.dtype).eps * size


def check_spread(low: Tensor, high: Tensor) -> None:
    """Raise a ``DataError`` for outcomes whose variance overflows or underflows.

    Args:
        low: The smallest, as from ``extremes``.
        high: The largest, of the same shape.
    """
    finfo = torch.finfo(low.dtype)
    least = _MARGIN * finfo.tiny**0.5
    most = finfo.max**0.5 / _MARGIN
    some = low <= high
    size = torch.maximum(low.abs(), high.abs()).where(some, 0.0)
    spread = (high - low).where(some & ~is_constant(low, high), torch.inf)
    if (size > most).any() or (spread < least).any():
        raise DataError(
            "train_Y: expected outcomes whose variance is a number (about "
            f"{least:.0e} to {most:.0e} in {low.dtype}), got magnitudes up to "
            f"{float(size.max()):.1e}, and some that differ by "
            f"{float(spread.min()):.1e} at most. Rescale them."
        )


def _check_inputs(name: str, X: Tensor, tree: bool = False) -> None:
    bad = ~X.isfinite()
    if bad.any():
        raise DataError(
            f"{name}: expected finite numbers, got {_where(X, bad)}."
            f"{_INACTIVE if tree else ''}"
        )
    most = torch.finfo(X.dtype).max ** 0.5 / _MARGIN
    if (X.abs() > most).any():
        raise DataError(
            f"{name}: expected inputs whose squares, and so distances, are numbers (up "
            f"to about {most:.0e} in {X.dtype}), got magnitudes up to "
            f"{float(X.abs().max()):.1e}. Rescale them."
        )


def _check_shapes(X: Tensor, Y: Tensor, Yvar: Tensor | None, empty: bool) -> None:
    if X.ndim < 2 or not X.shape[-1]:
        raise ShapeError(
            "train_X: expected ``batch_shape x n x d`` with at least one column, got "
            f"shape {tuple(X.shape)}."
        )
    if not empty and not X.shape[-2]:
        raise ShapeError(
            f"train_X: expected at least one row, got shape {tuple(X.shape)}."
        )
    if X.shape[:-1] != Y.shape[:-1] or not Y.shape[-1]:
        raise ShapeError(
            f"train_Y: expected ``{' x '.join(map(str, X.shape[:-1]))} x m``, the rows "
            f"of train_X {tuple(X.shape)}, got {tuple(Y.shape)}. An explicit "
            "output dimension is required for targets: train_Y.unsqueeze(-1)."
        )
    # as in BoTorch, batch dimensions may be left out
    if Yvar is not None and (Yvar.ndim < 2 or Y.shape[-Yvar.ndim :] != Yvar.shape):
        raise ShapeError(
            f"train_Yvar: expected the shape of train_Y, {tuple(Y.shape)}, got "
            f"{tuple(Yvar.shape)}."
        )


def check_new_data(
    X: Tensor,
    Y: Tensor,
    noise: Tensor | None,
    num_outputs: int,
    batch_shape: torch.Size,
    missing: bool = False,
) -> torch.Size:
    """Raise an error for new data that would make a posterior NaN.

    Args:
        X: Inputs, ``batch_shape' x q x d``, already checked by ``check_points``.
        Y: Outcomes, ``batch_shape'' x q x m``.
        noise: Noise variances that broadcast to ``Y``.
        num_outputs: m.
        batch_shape: The batch shape of the model.
        missing: Whether NaN in ``Y`` stands for an outcome not observed.

    Returns:
        The shape to which the three batch shapes broadcast.

    Raises:
        DataError: For another dtype than that of ``X``, NaN, infinity and negative
            variances.
        ShapeError: For a wrong number of rows or outputs, and batch shapes or noise
            that do not broadcast.
    """
    check_tensor("Y", Y, X.dtype)
    q = X.shape[-2]
    if Y.ndim < 2 or Y.shape[-2:] != (q, num_outputs):
        raise ShapeError(
            f"Y: expected ``batch_shape x {q} x {num_outputs}``, one row for each of X "
            f"and one column for each output, got {tuple(Y.shape)}."
        )
    try:
        batch = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2], batch_shape)
    except RuntimeError:
        raise ShapeError(
            f"Y: expected batch dimensions that broadcast with those of X, "
            f"{tuple(X.shape)}, and of the model, {tuple(batch_shape)}, got "
            f"{tuple(Y.shape)}."
        ) from None
    _check_outcomes("Y", Y, missing)
    if noise is None:
        return batch
    check_tensor("noise", noise, X.dtype)
    try:
        fits = torch.broadcast_shapes(noise.shape, Y.shape) == Y.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"noise: expected variances of the shape of Y, {tuple(Y.shape)}, got "
            f"{tuple(noise.shape)}."
        )
    _check_variances("noise", noise, Y)
    return batch


def check_points(
    X: Tensor, columns: int | None, dtype: torch.dtype, tree: bool = False
) -> None:
    """Raise an error for points at which no prediction is possible.

    Args:
        X: ``batch_shape x q x d``.
        columns: d; None if the model checks it, see ``columns_of``.
        dtype: The dtype of the training data.
        tree: As in ``check_training_data``.

    Raises:
        DataError: For no tensor, another dtype, NaN, infinity, or numbers too large to
            square.
        ShapeError: For another shape.
    """
    is_tensor = isinstance(X, Tensor)
    if columns is not None and is_tensor and (X.ndim < 2 or X.shape[-1] != columns):
        raise ShapeError(
            f"X: expected ``batch_shape x q x {columns}``, got {tuple(X.shape)}."
        )
    if not is_tensor or X.dtype != dtype or X.is_sparse:
        check_tensor("X", X, dtype)
    # one reduction: a sum is finite only if all of its terms are
    flat = X.detach().reshape(-1)
    if not math.isfinite(flat.dot(flat).item()):
        _check_inputs("X", X, tree)


def columns_of(model: GPyTorchModel) -> int | None:
    """The number of columns of points to predict at.

    Args:
        model: A GP with data; it is not changed.

    Returns:
        The number; None where there may be several: where a task column may be left
        out, or the input transform depends on what it is called for.
    """
    if getattr(model, "_task_feature", None) is not None:
        return None
    raw = raw_inputs(model)
    transform = getattr(model, "input_transform", None)
    if transform is not None:
        width = deepcopy(transform).preprocess_transform(raw).shape[-1]
        for fantasize in (False, True):
            try:
                points, _ = in_evaluation(transform, raw, width, fantasize)
            except ValueError:
                return None
            if points.shape[-1] != raw.shape[-1]:
                return None
    return raw.shape[-1]


def raw_inputs(model: GPyTorchModel) -> Tensor:
    """Training inputs as given to the constructor, without input transform."""
    if model._has_transformed_inputs:
        return model._original_train_inputs
    return model.train_inputs[0]


def check_tensor(name: str, values: object, dtype: torch.dtype | None = None) -> None:
    """Raise a ``DataError`` unless ``values`` is a dense tensor of that dtype."""
    if not isinstance(values, Tensor):
        kind = f"{type(values).__module__}.{type(values).__name__}"
        raise DataError(
            f"{name}: expected a torch.Tensor, got {kind}; convert it with "
            "torch.as_tensor(..., dtype=torch.float64)."
        )
    if values.layout != torch.strided or values.is_meta:
        kind = "a meta tensor" if values.is_meta else str(values.layout)
        raise DataError(f"{name}: expected a dense tensor with values, got {kind}.")
    if dtype is not None and values.dtype != dtype:
        raise DataError(
            f"{name}: expected {dtype}, the dtype of the model, got {values.dtype}; "
            f"convert it with .to({dtype})."
        )


def _check_outcomes(name: str, Y: Tensor, missing: bool) -> None:
    bad = Y.isinf() if missing else ~Y.isfinite()
    if bad.any():
        allowed = "finite outcomes"
        if missing:
            allowed += ", or NaN for those that were not observed"
        advice = ""
        if name == "train_Y" and (Y[bad] == -math.inf).all():
            advice = " For failed evaluations: outcome_transform=ClipTail(tail='log')."
        raise DataError(f"{name}: expected {allowed}; got {_where(Y, bad)}.{advice}")


def _check_variances(name: str, variances: Tensor, Y: Tensor) -> None:
    """Variances of outcomes not observed, NaN in ``Y``, may be anything."""
    bad = ~((variances >= 0.0) & variances.isfinite())
    bad = bad & ~Y.isnan()
    if bad.any():
        raise DataError(
            f"{name}: expected a finite variance, not negative, for each outcome, got "
            f"{_where(variances.expand_as(bad), bad)}."
        )


def _where(values: Tensor, bad: Tensor) -> str:
    """Values and places of bad entries, ``batch_shape x n x d``, for a message."""
    shown = dict.fromkeys(f"{v:.4g}" for v in values[bad][:3].tolist())
    *_, rows, columns = (places.unique()[:10] for places in bad.nonzero().T)
    in_columns = f"{', '.join(shown)} in columns {columns.tolist()}"
    return f"{in_columns} of rows {rows.tolist()}"


# -- input transforms ---------------------------------------------------------------


def protect_decisions(
    input_transform: InputTransform | None,
    tree: ParameterTree,
    train_X: Tensor,
    categorical: Collection[int] = (),
) -> InputTransform | None:
    """An input transform that keeps decisions and does not learn from fill values.

    ``Normalize`` is rebuilt without decision and categorical columns, whose values must
    stay the declared ones. If it learns its bounds, they are taken over
    the rows where a column is active, so that the fill values of inactive columns have
    no influence. The transform that was given is not changed.

    Args:
        input_transform: As given by the user.
        tree: The parameter tree.
        train_X: ``batch_shape x n x d``.
        categorical: Categorical columns besides the decisions.

    Returns:
        The transform to use; None where nothing is left to transform.

    Raises:
        ValueError: If a transform other than ``Normalize`` changes such a column, or
            learns from data, inactive entries included.
    """
    columns = sorted({*tree.decision_columns, *categorical})
    if input_transform is None or not columns:
        return input_transform
    safe = _protect(input_transform, tree, train_X, columns)
    if safe is None:
        return None
    if type(safe) is Normalize and int(safe.indices.max()) < train_X.shape[-1]:
        return safe  # it has no other columns than these
    with torch.no_grad():
        trained = deepcopy(safe).to(train_X).preprocess_transform(train_X)
    if trained.shape[-1] != train_X.shape[-1]:
        raise _changes(columns, input_transform)
    before, after = in_evaluation(safe, train_X, train_X.shape[-1])
    # columns that the transform appends are not in its input
    predicted = [c for c in columns if c < before.shape[-1]]
    kept = leaves_alone(columns, train_X, trained)
    if not (kept and leaves_alone(predicted, before, after)):
        raise _changes(columns, input_transform)
    return safe


def _protect(
    input_transform: InputTransform,
    tree: ParameterTree,
    train_X: Tensor,
    columns: list[int],
) -> InputTransform | None:
    """``protect_decisions`` without the comparison of what the transform makes."""
    # a subclass may transform in another way, so its output is compared
    if type(input_transform) is ChainedInputTransform:
        parts = {}
        X = train_X
        for name, part in input_transform.items():
            safe = _protect(part, tree, X, columns)
            if safe is None:
                continue
            parts[name] = safe
            with torch.no_grad():
                X = deepcopy(safe).to(X).preprocess_transform(X)
        return ChainedInputTransform(**parts) if parts else None
    if type(input_transform) is Normalize:
        return _restrict_normalize(input_transform, tree, train_X, columns)
    if _learns(input_transform):
        raise ValueError(
            "input_transform: expected Normalize, whose bounds are learned from active "
            "entries, or a fixed transform (one that is given its bounds), got "
            f"{type(input_transform).__name__}, which would learn from inactive "
            "entries too."
        )
    return input_transform


def _learns(input_transform: InputTransform) -> bool:
    """Whether a transform, or a part of it, learns from the training data."""
    parts = [*input_transform.modules(), *getattr(input_transform, "transforms", ())]
    return any(getattr(part, "learn_coefficients", False) for part in parts)


def _changes(columns: list[int], input_transform: InputTransform) -> ValueError:
    return ValueError(
        "input_transform: expected a transform that leaves the decision and "
        f"categorical columns {columns} unchanged (use its `indices`), and training "
        f"data as many columns as they have, got {type(input_transform).__name__}."
    )


def in_evaluation(
    input_transform: InputTransform | None,
    train_X: Tensor,
    width: int,
    fantasize: bool = False,
) -> tuple[Tensor, Tensor]:
    """Untransformed and transformed inputs, as in evaluation mode.

    A transform such as ``AppendFeatures`` adds columns in evaluation mode: the inputs
    of a prediction are then the first columns of the training inputs.

    Args:
        input_transform: As given by the user, or None.
        train_X: Training inputs, ``batch_shape x n x d``.
        width: The number of columns after the transform.
        fantasize: Whether this is in a call of ``fantasize``.

    Raises:
        ValueError: If the transform gives that width for no number of columns.
    """
    if input_transform is None:
        return train_X, train_X
    # a copy, since some transforms store their last output
    probe = deepcopy(input_transform).to(train_X).eval()
    with torch.no_grad(), fantasize_flag(fantasize):
        for columns in range(train_X.shape[-1], 0, -1):
            X = train_X[..., :columns]
            try:
                after = probe(X)
            except (BotorchError, IndexError, RuntimeError, ValueError):
                continue  # the transform is for another number of columns
            if after.shape[-1] == width:
                return X, after
    where = "fantasise" if fantasize else "predict"
    raise ValueError(
        f"input_transform: expected one that makes {width} columns, as of training "
        f"data, where the model is to {where}, got "
        f"{type(input_transform).__name__}, which does not."
    )


def leaves_alone(columns: Sequence[int], before: Tensor, after: Tensor) -> bool:
    """Whether a transform keeps the values and positions of some columns.

    Args:
        columns: Their indices.
        before: ``batch_shape x n x d``.
        after: ``batch_shape x (n k) x e``, k successive rows for each row of
            ``before``, as from ``AppendFeatures`` and ``InputPerturbation``.
    """
    if after.shape[-1] <= max(columns, default=-1):
        return False
    copies = after.shape[-2] // max(before.shape[-2], 1)
    kept = before[..., columns].repeat_interleave(copies, dim=-2)
    return torch.equal(kept, after[..., columns])


def _restrict_normalize(
    transform: Normalize, tree: ParameterTree, train_X: Tensor, named: list[int]
) -> Normalize | None:
    indices = getattr(transform, "indices", None)
    before = list(range(tree.dim)) if indices is None else indices.tolist()
    keep = []
    for column in before:
        if column not in named:
            keep.append(column)
    if not keep:
        return None
    if not transform.learn_bounds and keep == before:
        return transform
    if transform.learn_bounds:
        separate = len(transform.batch_shape) > 0  # bounds for each batch element
        X = train_X if separate else train_X.reshape(-1, tree.dim)
        bounds = _active_bounds(tree, X, transform.min_range)[..., keep]
    else:
        place = [before.index(c) for c in keep]
        bounds = transform.bounds[..., place].to(train_X)
    return Normalize(
        d=tree.dim,
        indices=keep,
        bounds=bounds,
        transform_on_train=transform.transform_on_train,
        transform_on_eval=transform.transform_on_eval,
        transform_on_fantasize=transform.transform_on_fantasize,
        reverse=transform.reverse,
        min_range=transform.min_range,
        center=transform.center,
    ).to(train_X)


def _active_bounds(tree: ParameterTree, train_X: Tensor, min_range: float) -> Tensor:
    """Range of each column where it is active, ``batch_shape x 2 x d``."""
    active = tree.active_mask(train_X)
    lower = torch.where(active, train_X, torch.inf).amin(-2)
    upper = torch.where(active, train_X, -torch.inf).amax(-2)
    unknown = ~(upper - lower >= min_range)  # where never active, too
    return torch.stack(
        [lower.masked_fill(unknown, 0), upper.masked_fill(unknown, 1)], -2
    )


def dataset_task(
    training_data: SupervisedDataset, task_feature: int | None
) -> int | None:
    """Index of the task column, not negative; default: a ``MultiTaskDataset``'s."""
    if task_feature is None:
        if not isinstance(training_data, MultiTaskDataset):
            return None
        column = training_data.task_feature_index
        task_feature = -1 if column is None else column  # BoTorch appends it
    return task_feature + training_data.X.shape[-1] * (task_feature < 0)


def refuse_categories(model: type, *columns: int | None) -> None:
    """Raise a ``ValueError`` for categorical columns of a model without categories.

    Args:
        model: A class without categorical columns.
        columns: Categorical columns and the task column; None for none.
    """
    refused = [column for column in columns if column is not None]
    if refused:
        raise ValueError(
            f"categorical_features, task_feature: expected none, as {model.__name__} "
            f"takes the values of every column for numbers, got columns {refused}. "
            "Encode them one-hot, as Ax does unless given other transforms, or leave "
            "out this argument where the order of the values has a meaning."
        )


def refuse_dependencies(
    model: type,
    training_data: SupervisedDataset,
    hierarchical_dependencies: (
        ParameterTree | Mapping[int, Mapping[float, Sequence[int]]] | None
    ),
) -> None:
    """Raise a ``ValueError`` if a column depends on another.

    For models that would treat the values of inactive columns as data.

    Args:
        model: A class without inactive columns.
        training_data: The data.
        hierarchical_dependencies: As Ax gives them.
    """
    tree = ParameterTree.from_any(
        hierarchical_dependencies or {}, training_data.X.shape[-1]
    )
    if tree.conditions:
        raise ValueError(
            f"hierarchical_dependencies: expected none, as {model.__name__} has no "
            f"notion of inactive columns, got {hierarchical_dependencies!r}. Take a "
            "TreeStructuredGP or a ConditionalGP; or fill inactive columns (an Impute "
            "transform; in Ax, Cast with flatten_hss=True) and leave this argument out."
        )
