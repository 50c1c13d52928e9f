"""Climb from the best candidates: by gradient, and over discrete neighbours."""

from __future__ import annotations

__all__ = ["refine"]

import math
import warnings

import torch
from botorch.exceptions import OptimizationWarning
from botorch.exceptions.errors import OptimizationGradientError
from botorch.generation import gen_candidates_scipy
from torch import Tensor

from botorch_structured.optim.bfgs import maximize_in_unit_box
from botorch_structured.optim.boxes import Boxes
from botorch_structured.optim.evaluation import Evaluator
from botorch_structured.optim.known import is_known
from botorch_structured.optim.problem import Problem

# Ordered discrete columns with more values than this are continuous to begin with.
_RELAXED_FROM = 8
_MAX_ROUNDS = 16
_PATIENCE, _OPTIMISM = 2, 10.0
_MAX_CONSTRAINED = 4


def refine(
    problem: Problem,
    evaluator: Evaluator,
    X: Tensor,
    values: Tensor,
    here: Boxes,
    known: Tensor,
) -> tuple[Tensor, Tensor]:
    """Local maxima of the acquisition function near some starts.

    Args:
        problem: The space.
        evaluator: The acquisition function.
        X: ``S x d`` admissible starts, the best ones first.
        values: Their ``S`` values.
        here: ``S`` boxes, one for each start.
        known: ``m x d`` points that a discrete search steps over.

    Returns:
        ``S x d`` admissible points, and values at least as good as those of the starts.
    """
    free = here.free
    discrete = torch.zeros_like(free)
    discrete[:, list(problem.grids)] = True
    discrete &= free
    relaxed = _relaxed(problem, here) if discrete.any() else torch.zeros_like(free)
    if (free & (~discrete | relaxed)).any():
        moving = free & (~discrete | relaxed)
        X_new, new = _climb(problem, evaluator, X, values, here, moving)
        if relaxed.any():
            X_new = problem.snap(X_new, free)
            new = evaluator.values(X_new)
        better = (new > values) & problem.admissible(X_new, here.active)
        X = torch.where(better[:, None], X_new, X)
        values = torch.where(better, new, values)
    if not discrete.any():
        return X, values
    X_new, new = _walk(problem, evaluator, X, values, here, known)
    changed = (X_new != X).any(-1) & (free & ~discrete).any(-1)
    if changed.any():
        rows = changed.nonzero().squeeze(-1)
        part = here.take(rows)
        X_new[rows], new[rows] = _climb(
            problem, evaluator, X_new[rows], new[rows], part, (free & ~discrete)[rows]
        )
    return X_new, new


def _relaxed(problem: Problem, here: Boxes) -> Tensor:
    """Discrete columns with so many values that a gradient helps."""
    mask = torch.zeros_like(here.active)
    if problem.constraints or problem.feasible is not None:
        return mask  # these are only asked about admissible values
    for col, grid in problem.grids.items():
        if grid.ordered:
            first = grid.position(here.lower[:, col])
            last = grid.position(here.upper[:, col])
            mask[:, col] = here.free[:, col] & (last - first >= _RELAXED_FROM)
    return mask


def _climb(
    problem: Problem,
    evaluator: Evaluator,
    X: Tensor,
    values: Tensor,
    here: Boxes,
    moving: Tensor,
) -> tuple[Tensor, Tensor]:
    """By gradient: together in the unit box, or one by one under linear constraints."""
    bound = torch.zeros(len(X), dtype=torch.bool, device=X.device)
    for c in problem.constraints:
        binds = here.active[:, c.columns].all(-1)
        bound |= binds & moving[:, c.columns].any(-1)
    X, values = X.clone(), values.clone()
    together = (~bound & moving.any(-1)).nonzero().squeeze(-1)
    if len(together):
        X[together], values[together] = _climb_together(
            problem,
            evaluator,
            X[together],
            values[together],
            here.take(together),
            moving[together],
        )
    for i in bound.nonzero().squeeze(-1)[:_MAX_CONSTRAINED].tolist():
        X[i], values[i] = _climb_constrained(
            problem, evaluator, X[i], values[i], here, i, moving[i]
        )
    return X, values


def _climb_together(
    problem: Problem,
    evaluator: Evaluator,
    X: Tensor,
    values: Tensor,
    here: Boxes,
    moving: Tensor,
) -> tuple[Tensor, Tensor]:
    # Only columns that move, side by side: ``S x k``.
    k = int(moving.sum(-1).max())
    columns = moving.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    columns = columns[:, :k]
    valid = moving.gather(-1, columns)
    low = here.lower.gather(-1, columns)
    high = here.upper.gather(-1, columns)
    width = torch.where(valid, high - low, 1.0)
    U = torch.where(valid, (X.gather(-1, columns) - low) / width, 0.5).clamp(0, 1)
    checked = problem.feasible is not None

    def points(U: Tensor, start: Tensor) -> Tensor:
        new = torch.lerp(low[start], high[start], U)
        new = torch.minimum(torch.maximum(new, low[start]), high[start])
        old = X[start]
        new = torch.where(valid[start], new, old.gather(-1, columns[start]))
        return old.scatter(-1, columns[start], new)

    def value_and_gradient(U: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        at = points(U, start)
        value, gradient = evaluator.value_and_gradient(at)
        if checked:
            ok = problem.admissible(at, here.active[start])
            value = torch.where(ok, value, -math.inf)
        gradient = gradient.gather(-1, columns[start]) * width[start]
        return value, gradient.masked_fill(~valid[start], 0.0)

    U, new = maximize_in_unit_box(value_and_gradient, U, valid)
    start = torch.arange(len(X), device=X.device)
    better = new > values
    X = torch.where(better[:, None], points(U, start), X)
    return X, torch.where(better, new, values)


def _climb_constrained(
    problem: Problem,
    evaluator: Evaluator,
    x: Tensor,
    value: Tensor,
    here: Boxes,
    i: int,
    moving: Tensor,
) -> tuple[Tensor, Tensor]:
    """SLSQP from one start, then back into the feasible set by what rounding took."""
    constraints = [
        (torch.tensor(c.columns, device=x.device), c.coefficients, c.rhs)
        for c in problem.constraints
        if here.active[i, c.columns].all() and moving[c.columns].any()
    ]
    held = {int(c): float(x[c]) for c in (~moving).nonzero().squeeze(-1)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizationWarning)
            found, _ = gen_candidates_scipy(
                x[None, None],
                evaluator.acq_function,
                lower_bounds=here.lower[i],
                upper_bounds=here.upper[i],
                inequality_constraints=constraints,
                fixed_features=held,
                options={"maxiter": 200, "ftol": 1e-12},
            )
    except OptimizationGradientError:
        return x, value
    back = x.new_tensor([0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2])
    trial = found.view(1, -1) + back[:, None] * (x - found.view(-1))
    trial = torch.where(moving, trial, x)
    trial = torch.minimum(torch.maximum(trial, here.lower[i]), here.upper[i])
    ok = problem.admissible(trial, here.active[i].expand_as(trial))
    if not ok.any():
        return x, value
    trial = trial[ok][:1]
    new = evaluator.values(trial)[0]
    return (trial[0], new) if new > value else (x, value)


def _walk(
    problem: Problem,
    evaluator: Evaluator,
    X: Tensor,
    values: Tensor,
    here: Boxes,
    known: Tensor,
) -> tuple[Tensor, Tensor]:
    """Steepest ascent over the neighbours in discrete columns, all starts at once."""
    X, values = X.clone(), values.clone()
    # A start at a known point is worth nothing: any neighbour is better.
    values[is_known(problem, X, known)] = -math.inf
    walking = torch.arange(len(X), device=X.device)
    for sweep in range(_MAX_ROUNDS):
        near, owner = _neighbours(problem, X[walking], here.take(walking))
        if not len(near):
            break
        owner = walking[owner]
        ok = problem.admissible(near, here.active[owner])
        ok &= ~is_known(problem, near, known)
        near, owner = near[ok], owner[ok]
        new = evaluator.values(near)
        order = new.argsort(descending=True, stable=True)
        order = order[owner[order].argsort(stable=True)]
        owners = owner[order]
        first = torch.ones_like(owners, dtype=torch.bool)
        first[1:] = owners[1:] != owners[:-1]
        best = order[first]
        best = best[new[best] > values[owner[best]]]
        if not len(best):
            break
        walking, gain = owner[best], new[best] - values[owner[best]]
        X[walking], values[walking] = near[best], new[best]
        if sweep >= _PATIENCE:
            # A start that gains little of what it lacks will not become the best.
            walking = walking[values.max() - values[walking] <= _OPTIMISM * gain]
            if not len(walking):
                break
    return X, values


def _neighbours(problem: Problem, X: Tensor, here: Boxes) -> tuple[Tensor, Tensor]:
    """Points that differ in one discrete column, and the rows they belong to."""
    found, owners = [X[:0]], [torch.zeros(0, dtype=torch.long, device=X.device)]
    free = here.free
    for col, grid in problem.grids.items():
        if not free[:, col].any():
            continue
        rows = free[:, col].nonzero().squeeze(-1)
        first = grid.position(here.lower[rows, col])
        last = grid.position(here.upper[rows, col])
        steps = X.new_tensor(grid.steps(float((last - first).max())))
        position = grid.position(X[rows, col])[:, None] + steps
        inside = (position >= first[:, None]) & (position <= last[:, None])
        which, _ = inside.nonzero(as_tuple=True)
        moved = X[rows[which]].clone()
        moved[:, col] = grid.value(position[inside])
        found.append(moved)
        owners.append(rows[which])
    return torch.cat(found), torch.cat(owners)
