"""Tell points that are known already from new ones."""

from __future__ import annotations

__all__ = ["is_known"]

import torch
from torch import Tensor

from botorch_structured.optim.problem import Problem

# Closer than this, in widths of the bounds, two points are the same to any model.
_SAME = {torch.float64: 1e-8, torch.float32: 1e-5}
_MAX_NUMBERS = 1 << 24


def is_known(problem: Problem, X: Tensor, known: Tensor) -> Tensor:
    """Which candidates equal a known point on the columns that are active.

    Args:
        problem: The tree and the bounds.
        X: ``n x d`` candidates, inactive columns at the fill value.
        known: ``m x d`` points, likewise.

    Returns:
        ``n`` booleans.
    """
    found = torch.zeros(len(X), dtype=torch.bool, device=X.device)
    if not len(X) or not len(known):
        return found
    # On the same path the same columns are active, so the fill values agree, too.
    same_path = problem.tree.path_key(X)[:, None] == problem.tree.path_key(known)
    width = (problem.bounds[1] - problem.bounds[0]).clamp_min(1e-300)
    slack = _SAME.get(X.dtype, 1e-5) * width
    piece = max(1, _MAX_NUMBERS // (len(known) * X.shape[-1]))
    for i in range(0, len(X), piece):
        part = slice(i, i + piece)
        near = ((X[part, None] - known).abs() <= slack).all(-1)
        found[part] = (near & same_path[part]).any(-1)
    return found
