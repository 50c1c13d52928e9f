"""Climb from the best candidates: by gradient, and over discrete neighbours."""

from __future__ import annotations

__all__ = [
    "maximize_in_unit_box",
    "refine",
]

import math
import warnings
from collections.abc import Callable

import torch
from botorch.exceptions import OptimizationWarning
from botorch.exceptions.errors import OptimizationGradientError
from botorch.generation import gen_candidates_scipy
from torch import Tensor

from botorch_structured.optim.boxes import Boxes
from botorch_structured.optim.evaluation import Evaluator
from botorch_structured.optim.problem import Problem, is_known

# ----------------------------------------------------------------------
# Maximise many small problems at once: BFGS in the unit box, in lockstep.
#
# `botorch.optim.optimize_acqf` hands each start to scipy. Here an evaluation costs the
# same for 10 points as for 100, so what counts is how often the acquisition function is
# called in a row. Each iteration is one call: all step lengths of all starts are
# evaluated together, with their gradients, and every start moves to its best one.

# Multiples of the quasi-Newton step, and of the distance to the bounds where there is
# no curvature yet. Optima of expected improvement next to a noise-free point are as
# narrow as 1e-5 of the box.
_STEPS = (1.0, 0.5, 2.0, 0.2, 0.04, 5.0)
_FIRST_STEPS = (3e-1, 5e-2, 8e-3, 1e-3, 1e-4, 5e-6)
# After so many iterations a start has to be able to win.
_PATIENCE, _OPTIMISM = 4, 10.0
# How far to look along single coordinates for what is not admissible.
_PROBE = 2e-4

ValueAndGradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def maximize_in_unit_box(
    value_and_gradient: ValueAndGradient,
    U: Tensor,
    valid: Tensor,
    max_iter: int = 40,
    tolerance: float = 1e-10,
) -> tuple[Tensor, Tensor]:
    """Climb from every start to a local maximum in ``[0, 1]^k``.

    Args:
        value_and_gradient: Maps ``n x k`` points and the ``n`` numbers of the starts
            they came from to ``n`` values and ``n x k`` gradients; -inf where a
            point is not admissible.
        U: ``S x k`` starts.
        valid: ``S x k`` booleans; coordinates that are not valid do not move.
        max_iter: Iterations, that is calls.
        tolerance: A start is done when an iteration gains less than this, relative to
            the larger of its value and one.

    Returns:
        ``S x k`` points and ``S`` values, at least as good as the starts.
    """
    start = torch.arange(len(U), device=U.device)
    best_U = U.clone()
    best_f, g = value_and_gradient(U, start)
    best_f = best_f.clone()
    k = U.shape[-1]
    eye = torch.eye(k, dtype=U.dtype, device=U.device)
    # State of the starts still moving: number, point, value, gradient, Hessian of the
    # negated function, and whether that Hessian says anything.
    x, f, B = U, best_f.clone(), eye.expand(len(U), k, k).clone()
    informed = torch.zeros(len(U), dtype=torch.bool, device=U.device)
    # Coordinates held because moving along them leaves what is admissible.
    held = ~valid
    # Starts at a border that is not a bound: which columns lead across it?
    probing = torch.zeros_like(informed)
    ladder = U.new_tensor(_STEPS)
    first_ladder = U.new_tensor(_FIRST_STEPS)
    for sweep in range(max_iter):
        lag = tolerance * best_f.max().abs().clamp_min(1.0)
        blocked = ((x <= 0) & (g <= 0)) | ((x >= 1) & (g >= 0)) | held
        g_free = g.masked_fill(blocked, 0.0)
        steepness = g_free.abs().amax(-1)
        moving = (steepness > 1e-12) & f.isfinite()
        if not moving.all():
            start, x, f, g = start[moving], x[moving], f[moving], g[moving]
            B, informed = B[moving], informed[moving]
            held, probing = held[moving], probing[moving]
            blocked, g_free = blocked[moving], g_free[moving]
            steepness = steepness[moving]
        n = len(start)
        if n == 0:
            break
        both = ~blocked.unsqueeze(-1) & ~blocked.unsqueeze(-2)
        newton, _ = torch.linalg.solve_ex(torch.where(both, B, eye), g_free)
        informed &= (newton * g_free).sum(-1) > 0  # false for NaN, too
        steepest = g_free / steepness.unsqueeze(-1)
        direction = torch.where(informed.unsqueeze(-1), newton, steepest)
        steps = torch.where(informed.unsqueeze(-1), ladder, first_ladder)
        trial = x.unsqueeze(1) + steps.unsqueeze(-1) * direction.unsqueeze(1)
        trial = trial.clamp(0.0, 1.0)
        width = steps.shape[-1]
        if probing.any():
            axes = _steepest_axes(g_free, width)
            probe = (x.unsqueeze(1) + _PROBE * axes).clamp(0.0, 1.0)
            trial = torch.where(probing[:, None, None], probe, trial)
        f_new, g_new = value_and_gradient(
            trial.reshape(-1, k), start.repeat_interleave(width)
        )
        f_new = f_new.view(n, width)
        f_best, j = f_new.max(-1)
        row = torch.arange(n, device=U.device)
        gain = f_best - f
        better = gain > 0
        x_best = trial[row, j]
        g_best = g_new.view(n, width, k)[row, j]
        s = (x_best - x).masked_fill(~better.unsqueeze(-1), 0.0)
        y = (g - g_best).masked_fill(~better.unsqueeze(-1) | ~valid[start], 0.0)
        B, informed_now = _update(B, informed, s, y)
        # Without a gain, though one was expected: once more without curvature.
        expected = 0.5 * (newton * g_free).sum(-1)
        lost = ~better & informed & (expected > tolerance * f.abs().clamp_min(1.0))
        B = torch.where(lost[:, None, None], eye, B)
        # Nothing but inadmissible points ahead: find out why, go on along the rest.
        outside = f_new == -torch.inf
        fenced = ~better & outside.any(-1)
        if probing.any():
            outside &= probing.unsqueeze(-1)
            held |= (axes.abs() * outside.unsqueeze(-1)).amax(1) > 0
            fenced &= ~probing
            lost |= probing  # such a move says little about curvature
        probing = fenced
        lost |= fenced
        x = torch.where(better.unsqueeze(-1), x_best, x)
        g = torch.where(better.unsqueeze(-1), g_best, g)
        small = gain <= tolerance * f.abs().clamp_min(1.0)
        f = torch.where(better, f_best, f)
        best_U[start], best_f[start] = x, f
        stay = ~small | lost
        if sweep >= _PATIENCE:
            # What a start gains shrinks faster and faster: one that would need to gain
            # much more than it just did will not become the best.
            lead = best_f.max() - f
            stay &= lead <= _OPTIMISM * gain.clamp_min(0.0) + lag
            stay &= (gain > 1e3 * lag) | (lead <= 0) | lost
        informed = informed_now & ~lost
        if not stay.all():
            start, x, f, g = start[stay], x[stay], f[stay], g[stay]
            B, informed = B[stay], informed[stay]
            held, probing = held[stay], probing[stay]
    return best_U, best_f


def _steepest_axes(g: Tensor, width: int) -> Tensor:
    """``S x width x k``: signed unit vectors of the largest gradients."""
    order = g.abs().argsort(-1, descending=True)
    order = order[:, torch.arange(width, device=g.device).clamp_max(g.shape[-1] - 1)]
    axes = torch.zeros(*order.shape, g.shape[-1], dtype=g.dtype, device=g.device)
    sign = g.gather(-1, order).sign()
    return axes.scatter(-1, order.unsqueeze(-1), sign.unsqueeze(-1))


def _update(B: Tensor, informed: Tensor, s: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The BFGS update of ``S x k x k`` Hessians, where curvature is positive."""
    sy = (s * y).sum(-1)
    yy = (y * y).sum(-1)
    ss = (s * s).sum(-1)
    curved = sy > 1e-10 * (ss * yy).sqrt()
    curved &= sy > 0
    safe = torch.where(curved, sy, torch.ones_like(sy))
    # The first pair sets the scale.
    scale = torch.where(informed | ~curved, torch.ones_like(sy), yy / safe)
    B = B * scale[:, None, None]
    Bs = (B @ s.unsqueeze(-1)).squeeze(-1)
    sBs = (s * Bs).sum(-1)
    sBs = torch.where(curved, sBs, torch.ones_like(sBs))
    new = (
        B
        - Bs.unsqueeze(-1) * Bs.unsqueeze(-2) / sBs[:, None, None]
        + y.unsqueeze(-1) * y.unsqueeze(-2) / safe[:, None, None]
    )
    return torch.where(curved[:, None, None], new, B), informed | curved


# ----------------------------------------------------------------------
# Ordered discrete columns with more values than this are continuous to begin with.
_RELAXED_FROM = 8
_MAX_ROUNDS = 16
_WALK_PATIENCE, _WALK_OPTIMISM = 2, 10.0
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
        if sweep >= _WALK_PATIENCE:
            # A start that gains little of what it lacks will not become the best.
            walking = walking[values.max() - values[walking] <= _WALK_OPTIMISM * gain]
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
