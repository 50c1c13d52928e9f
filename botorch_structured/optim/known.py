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

    Or, in the columns that move continuously, are nearer than ``min_distance``.

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
    if problem.min_distance:
        near = problem.min_distance * width
        near[list(problem.grids)] = 0.0  # neighbours on a grid are other points
        slack = torch.maximum(slack, near)
    # Equal points have equal projections on a line: sorted, few are left to compare.
    weight = torch.linspace(1.0, 2.0, X.shape[-1], dtype=X.dtype, device=X.device).sin()
    weight = weight / torch.where(width > 0, width, 1.0)
    line, order = (known @ weight).sort()
    at = X @ weight
    size = (X.abs() @ weight.abs()).max() + (known.abs() @ weight.abs()).max()
    reach = slack @ weight + 64 * torch.finfo(X.dtype).eps * size
    first = torch.searchsorted(line, at - reach)
    last = torch.searchsorted(line, at + reach, right=True)
    count = (last - first).clamp_min(0)
    keys, known_keys = problem.tree.path_key(X), problem.tree.path_key(known)
    piece = max(1, _MAX_NUMBERS // X.shape[-1])
    rows = (count > 0).nonzero().squeeze(-1)
    # As many rows at a time as have at most that many pairs, but at least one.
    group = (count[rows].cumsum(0) - 1).div(piece, rounding_mode="floor")
    for g in group.unique():
        part = rows[group == g]
        row = part.repeat_interleave(count[part])
        start = count[part].cumsum(0) - count[part]
        step = torch.arange(len(row), device=X.device)
        step = step - start.repeat_interleave(count[part])
        other = order[first[row] + step]
        # On the same path the same columns are active: the fill values agree, too.
        same = keys[row] == known_keys[other]
        row, other = row[same], other[same]
        same = ((X[row] - known[other]).abs() <= slack).all(-1)
        found[row[same]] = True
    return found
