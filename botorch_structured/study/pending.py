"""Which pending configuration an evaluation answers."""

from __future__ import annotations

__all__ = ["answered"]

from collections.abc import Iterable

import torch

from botorch_structured.spaces import SearchSpace
from botorch_structured.study.held import Point

# Of the range of a number on its scale: as far as numbers that were rounded on the way,
# say 0.0021 for 0.0021346, may be off.
_ROUNDING = 1e-2


def answered(space: SearchSpace, key: Point, asked: Iterable[Point]) -> Point:
    """The pending point that this is, apart from rounded numbers.

    Args:
        space: The space.
        key: The point that was evaluated.
        asked: Those that are pending.

    Returns:
        ``key`` if it is pending itself or near none of them; else the nearest one with
        the same path, choices and integers.
    """
    pending = list(asked)
    if not pending or key in pending:
        return key
    X = torch.tensor([key, *pending], dtype=torch.double)
    path = space.tree.path_key(X)
    discrete = [*space.categorical_features, *space.integer_features]
    same = (path == path[0]) & (X[:, discrete] == X[0, discrete]).all(-1)
    low, high = space.bounds
    width = (high - low).clamp_min(torch.finfo(X.dtype).tiny)
    off = ((X - X[0]).abs() / width).amax(-1).masked_fill(~same, torch.inf)[1:]
    nearest = int(off.argmin())
    return pending[nearest] if off[nearest] <= _ROUNDING else key
