"""Input transforms in conditional spaces: values with names stay as they are."""

from __future__ import annotations

__all__ = ["protect_decisions"]

from collections.abc import Collection
from copy import deepcopy

import torch
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputTransform,
    Normalize,
)
from torch import Tensor

from botorch_structured.spaces import ParameterTree


def protect_decisions(
    input_transform: InputTransform | None,
    tree: ParameterTree,
    train_X: Tensor,
    categorical: Collection[int] = (),
) -> InputTransform | None:
    """An input transform that leaves named values alone and ignores inactive ones.

    ``Normalize`` is rebuilt without decision and categorical columns (whose declared
    values would no longer be found); bounds that it would have learned are taken over
    the rows where a column is active, so that the fill value of inactive columns has no
    influence. What is given is not changed.

    Args:
        input_transform: What the user gave.
        tree: The parameter tree.
        train_X: ``batch_shape x n x d``.
        categorical: Categorical columns besides the decisions.

    Returns:
        The transform to use; None where nothing is left to transform.

    Raises:
        ValueError: If a transform other than ``Normalize`` changes such a column, or
            learns from data, inactive entries included.
    """
    if input_transform is None or not (tree.decision_columns or categorical):
        return input_transform
    columns = sorted({*tree.decision_columns, *categorical})
    if isinstance(input_transform, ChainedInputTransform):
        parts = {}
        X = train_X
        for name, part in input_transform.items():
            safe = protect_decisions(part, tree, X, categorical)
            if safe is None:
                continue
            parts[name] = safe
            with torch.no_grad():
                X = deepcopy(safe).to(X).preprocess_transform(X)
        return ChainedInputTransform(**parts) if parts else None
    if isinstance(input_transform, Normalize):
        return _restrict_normalize(input_transform, tree, train_X, columns)
    if getattr(input_transform, "learn_coefficients", False):
        raise ValueError(
            "input_transform: expected Normalize, whose bounds are learned from active "
            f"entries, or a fixed transform, got {type(input_transform).__name__}, "
            "which would learn from inactive entries too."
        )
    with torch.no_grad():
        probe = deepcopy(input_transform).to(train_X)
        transformed = probe.preprocess_transform(train_X)
    if transformed.shape[-1] != train_X.shape[-1] or not torch.equal(
        transformed[..., columns], train_X[..., columns]
    ):
        raise ValueError(
            "input_transform: expected a transform that leaves the decision and "
            f"categorical columns {columns} unchanged (use its `indices`), got "
            f"{type(input_transform).__name__}, which changes them."
        )
    return input_transform


def _restrict_normalize(
    transform: Normalize, tree: ParameterTree, train_X: Tensor, named: list[int]
) -> Normalize | None:
    given = getattr(transform, "indices", None)
    before = list(range(tree.dim)) if given is None else given.tolist()
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
    known = upper - lower >= min_range  # False where never active, too
    lower, upper = torch.where(known, lower, 0.0), torch.where(known, upper, 1.0)
    return torch.stack([lower, upper], dim=-2)
