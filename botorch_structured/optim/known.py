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
    width = problem.bounds[1] - problem.bounds[0]
    slack = _SAME.get(X.dtype, 1e-5) * width
    # Equal points have equal projections on a line: sorted, few are left to compare.
    weight = torch.linspace(1.0, 2.0, X.shape[-1], dtype=X.dtype, device=X.device).sin()
    weight = weight / torch.where(width > 0, width, 1.0)
    line, _ = (known @ weight).sort()
    at = X @ weight
    size = (X.abs() @ weight.abs()).max() + (known.abs() @ weight.abs()).max()
    reach = slack @ weight + 64 * torch.finfo(X.dtype).eps * size
    first = torch.searchsorted(line, at - reach)
    last = torch.searchsorted(line, at + reach, right=True)
    rows = (last > first).nonzero().squeeze(-1)
    if not len(rows):
        return found
    # On the same path the same columns are active, so the fill values agree, too.
    keys, known_keys = problem.tree.path_key(X[rows]), problem.tree.path_key(known)
    piece = max(1, _MAX_NUMBERS // (len(known) * X.shape[-1]))
    for i in range(0, len(rows), piece):
        part = rows[i : i + piece]
        same = (keys[i : i + piece, None] == known_keys) & (
            (X[part, None] - known).abs() <= slack
        ).all(-1)
        found[part] = same.any(-1)
    return found
