"""Input transforms that keep decision columns, and arguments that Ax passes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy

import torch
from botorch.exceptions.errors import BotorchError
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputTransform,
    Normalize,
)
from botorch.models.utils import fantasize as fantasize_flag
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from torch import Tensor

from botorch_structured.spaces import ParameterTree


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
    keep = [c for c in before if c not in named]
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
