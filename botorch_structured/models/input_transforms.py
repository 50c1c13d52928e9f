"""Input transforms in conditional spaces: decisions stay as they are."""

from __future__ import annotations

__all__ = ["protect_decisions"]

import torch
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputTransform,
    Normalize,
)
from torch import Tensor

from botorch_structured.spaces import ParameterTree


def protect_decisions(
    input_transform: InputTransform | None, tree: ParameterTree, train_X: Tensor
) -> InputTransform | None:
    """An input transform that leaves decision columns alone and ignores inactive ones.

    ``Normalize`` is rebuilt without the decision columns (whose declared values would
    no longer be found); bounds that it would have learned are taken over the rows where
    a column is active, so that the fill value of inactive columns has no influence.

    Args:
        input_transform: What the user gave.
        tree: The parameter tree.
        train_X: ``batch_shape x n x d``.

    Raises:
        ValueError: If a transform other than ``Normalize`` changes a decision column.
    """
    if input_transform is None or not tree.decision_columns:
        return input_transform
    if isinstance(input_transform, ChainedInputTransform):
        parts = {}
        X = train_X
        for name, part in input_transform.items():
            safe = protect_decisions(part, tree, X)
            assert safe is not None
            parts[name] = safe
            with torch.no_grad():
                X = safe.to(X).preprocess_transform(X)
        return ChainedInputTransform(**parts)
    if isinstance(input_transform, Normalize):
        return _restrict_normalize(input_transform, tree, train_X)
    columns = tree.decision_columns
    with torch.no_grad():
        transformed = input_transform.to(train_X).preprocess_transform(train_X)
    if transformed.shape[-1] != train_X.shape[-1] or not torch.equal(
        transformed[..., columns], train_X[..., columns]
    ):
        raise ValueError(
            "input_transform: expected a transform that leaves the decision columns "
            f"{columns} unchanged (use its `indices`), got "
            f"{type(input_transform).__name__}, which changes them."
        )
    return input_transform


def _restrict_normalize(
    transform: Normalize, tree: ParameterTree, train_X: Tensor
) -> Normalize:
    given = getattr(transform, "indices", None)
    before = list(range(tree.dim)) if given is None else given.tolist()
    keep = [c for c in before if c not in tree.decision_columns]
    if not transform.learn_bounds and keep == before:
        return transform
    if transform.learn_bounds:
        bounds = _active_bounds(tree, train_X, transform.min_range)[:, keep]
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
    """Range of every column over the rows where it is active, ``2 x d``."""
    X = train_X.reshape(-1, tree.dim)
    active = tree.active_mask(X)
    lower = torch.where(active, X, torch.inf).amin(0)
    upper = torch.where(active, X, -torch.inf).amax(0)
    known = upper - lower >= min_range  # False where never active, too
    return torch.stack([torch.where(known, lower, 0.0), torch.where(known, upper, 1.0)])
