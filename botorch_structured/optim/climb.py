"""Local maximisation from the best candidates: by gradient, and over neighbours."""

from __future__ import annotations

__all__ = [
    "Evaluator",
    "Neighbourhood",
    "best_of_each",
    "maximize_in_unit_box",
    "real_moves",
    "refine",
    "steps_between",
    "walk",
]

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import OptimizationGradientError
from botorch.generation import gen_candidates_scipy
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from numpy.typing import NDArray
from torch import Tensor

from botorch_structured.optim.boxes import Boxes, uniform
from botorch_structured.optim.closed_form import closed_form
from botorch_structured.optim.problem import is_known
from botorch_structured.spaces.arguments import check_count

Array = NDArray[Any]

# Most numbers that one call may need at once: points times training points times Monte
# Carlo samples.
_MAX_NUMBERS = 1 << 25
_MAX_ROWS = 1 << 14
# Ordered discrete columns with more values than this are relaxed at first.
_RELAXED_FROM = 8
# Most other values of a categorical, in each direction, that one step of a walk tries.
_MAX_ALTERNATIVES = 64
# Most iterations of a climb, and of a walk.
_MAX_CLIMB, _MAX_WALK = 40, 32
# Most times that a walk and a climb take turns.
_ROUNDS = 3
# A climb ends where an iteration gains less than this, relative to the larger of the
# value and one, or where no slope in the unit box exceeds the other: expected
# improvement itself, without the logarithm, may be small everywhere.
_LEAST_GAIN, _LEAST_SLOPE = 1e-7, 1e-8
# After so many calls of a climb, or steps of a walk, a start ends, too, if it is behind
# the best one by more than so many times its last gain: the same maxima were found with
# a third fewer calls, of half as many points.
_PATIENCE, _OPTIMISM = 3, 10.0
# The largest and smallest step of real columns beside a border, in widths of the box.
_STEPS = (0.2, 1e-5)
# The next smaller step, relative to a step. On expected improvement a ratio of 0.1
# needs 1.4 times as many calls of the acquisition function as this one; 0.5 needs 0.9
# times as many, with 1.7 times the rows in each.
_SHRINK = 0.25
# The number of starts under linear constraints.
_MAX_CONSTRAINED = 4


class Evaluator:
    """An acquisition function on rows of a matrix, each a candidate of its own.

    Args:
        acq_function: Maps ``b x 1 x d`` to ``b``.
        batch_limit: Most rows in one call; by default as many as memory allows.
    """

    def __init__(
        self, acq_function: AcquisitionFunction, batch_limit: int | None = None
    ) -> None:
        self.acq_function = acq_function
        self.batch_limit = (
            self._default_limit()
            if batch_limit is None
            else check_count("batch_limit", batch_limit)
        )

    def _default_limit(self) -> int:
        modules = self.acq_function.modules()  # with the models inside of others
        every = (getattr(m, "train_inputs", None) or () for m in modules)
        inputs = [t for some in every for t in some if isinstance(t, Tensor)]
        # training points of all members of an ensemble
        n = max((t.shape[:-1].numel() for t in inputs), default=1)
        shape = getattr(getattr(self.acq_function, "sampler", None), "sample_shape", ())
        # A Monte Carlo acquisition holds a joint sample with its baseline points.
        width = n + 16 * math.prod(shape) if shape else n
        return max(64, min(_MAX_ROWS, _MAX_NUMBERS // max(width, 1)))

    def values(self, X: Tensor) -> Tensor:
        """``n`` values of ``n x d`` points; -inf for NaN."""
        return self._evaluate(X, gradient=False)[0]

    def value_and_gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """``n`` values and ``n x d`` gradients."""
        values, gradient = self._evaluate(X, gradient=True)
        return values, gradient.nan_to_num(0.0, 0.0, 0.0)

    def _evaluate(self, X: Tensor, gradient: bool) -> tuple[Tensor, Tensor]:
        form = closed_form(self.acq_function)
        found = []
        for part in X.split(self.batch_limit) if len(X) else ():
            answer = None if form is None else form.at(part, gradient)
            found.append(answer or self._by_autograd(part, gradient))
        if not found:
            return X.new_zeros(0), X
        values = torch.cat([value for value, _ in found]).to(X)
        slopes = [slope for _, slope in found if slope is not None]
        values = torch.where(values.isnan(), -math.inf, values)
        return values, torch.cat(slopes).to(X) if slopes else X

    def _by_autograd(self, X: Tensor, gradient: bool) -> tuple[Tensor, Tensor | None]:
        leaf = X.detach().unsqueeze(-2).requires_grad_(gradient)
        with torch.set_grad_enabled(gradient):
            value = self.acq_function(leaf).reshape(-1)
        if not gradient:
            return value, None
        slope = None
        if value.requires_grad:
            (slope,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True)
        slope = torch.zeros_like(leaf) if slope is None else slope
        return value.detach(), slope.squeeze(-2)


# Values, gradients, and which points may be proposed (None: all of them).
Answer = tuple[Array, Array, Array | None]


def maximize_in_unit_box(
    evaluate: Callable[[Array, Array], Answer],
    U: Array,
    valid: Array,
    patience: float = math.inf,
) -> tuple[Array, Array]:
    """Climb from every start to a local maximum in ``[0, 1]^k``, all of them together.

    BoTorch's batched L-BFGS-B: an evaluation takes nearly as long for 10 points as for
    one. A climb crosses regions that are not admissible, but does not end there: the
    best admissible point that was met is returned.

    Args:
        evaluate: Maps ``n x k`` points and the ``n`` numbers of the starts they came
            from to ``n`` values, ``n x k`` gradients, and whether the points are
            admissible.
        U: ``S x k`` starts.
        valid: ``S x k`` booleans; coordinates that are not valid do not move.
        patience: After so many calls starts end that will not become the best.

    Returns:
        ``S x k`` points and ``S`` values; -inf where none is admissible.
    """
    best_U, best, low = U.copy(), np.full(len(U), -np.inf), np.zeros(len(U))
    calls = np.zeros(len(U))

    @np.errstate(invalid="ignore")  # of two infinities
    def negated(x: Array, batch_indices: list[int]) -> tuple[Array, Array]:
        start = np.array(batch_indices)
        value, slope, admissible = evaluate(x, start)
        gain = value - best[start]
        better = gain > 0.0
        if admissible is not None:
            better &= admissible
        best[start[better]], best_U[start[better]] = value[better], x[better]
        calls[start] += 1
        late = better & (calls[start] > patience)
        done = late & (best.max() - value > _OPTIMISM * gain)
        # a step to where there is no number was too long
        finite = np.isfinite(value)
        low[start[finite]] = value[finite]
        if not finite.all():
            value = np.where(finite, value, low[start] - 1.0 - np.abs(low[start]))
        moves = valid[start] & ~done[:, None]  # where no slope is left, a climb ends
        return -value, -np.where(moves, slope, 0.0)

    fmin_l_bfgs_b_batched(
        negated,
        U,
        bounds=[(0.0, 1.0)] * U.shape[-1],
        factr=None,
        ftol=_LEAST_GAIN,
        pgtol=_LEAST_SLOPE,
        maxiter=_MAX_CLIMB,
        pass_batch_indices=True,
    )
    return best_U, best


class Neighbourhood:
    """The neighbours of points in boxes: one active column changed, the others kept.

    Every possible change is a *slot*, a column and a move; the slots are the same for
    all points. A move is a number of positions, in real columns a share of the width,
    cut at the bound. In the whole space (equation (7) of [Levesque2017conditional]_)
    decisions change, too: then the columns that a decision switches on are drawn at
    random (further decisions among them included), those that stay active keep their
    values, and those that it switches off hold the fill value.

    Args:
        boxes: A box for every point, or `whole_box` for all of them.
        moves: The slots: column, move, and the next smaller move in that direction (0
            for the smallest). Where the smaller one reaches the bound, this one is left
            out.
        generator: A CPU generator for columns that decisions switch on; None where the
            boxes are paths, in which no decision changes.
    """

    def __init__(
        self,
        boxes: Boxes,
        moves: Sequence[tuple[int, float, float]],
        generator: torch.Generator | None = None,
    ) -> None:
        self.boxes, self.generator = boxes, generator
        columns, move, inner = zip(*moves, strict=True) if moves else ((), (), ())
        like = boxes.lower
        self._columns = torch.tensor(columns, dtype=torch.long, device=like.device)
        self._values = boxes.problem.values.take(self._columns)
        self._lower, self._upper = (p[:, self._columns] for p in boxes.positions)
        width = torch.where(self._values.discrete, 1.0, self._upper - self._lower)
        self._move, self._inner = like.new_tensor(move), like.new_tensor(inner)
        self._move, self._inner = self._move * width, self._inner * width
        decides = boxes.problem.tree.decision_columns if generator else []
        self._decides = torch.isin(self._columns, self._columns.new_tensor(decides))

    def of(
        self, X: Tensor, active: Tensor, box: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All neighbours of some points, admissible or not.

        Args:
            X: ``S x d`` points, inactive columns at the fill value.
            active: ``S x d`` booleans.
            box: ``S`` numbers of the boxes they lie in.

        Returns:
            ``M x d`` neighbours, ``M x d`` booleans: their active columns, and the
            ``M`` rows of ``X`` they belong to, ascending.
        """
        problem, columns = self.boxes.problem, self._columns
        lower, upper = self._lower[box], self._upper[box]
        now = problem.values.position(X)[:, columns]
        inner = now + self._inner[box]
        to = (now + self._move[box]).clamp(lower, upper)
        values = self._values.value(to)
        inside = torch.where(self._move[box] < 0, inner > lower, inner < upper)
        changes = active[:, columns] & inside & (values != X[:, columns])
        owner, slot = changes.nonzero(as_tuple=True)
        near = X[owner].scatter(-1, columns[slot, None], values[owner, slot, None])
        on = active[owner]
        rows = self._decides[slot].nonzero().squeeze(-1)
        if self.generator is not None and len(rows):
            U = uniform((len(rows), X.shape[-1]), X, self.generator)
            drawn = self.boxes.draw(torch.zeros_like(rows), U)
            joined = torch.where(on[rows], near[rows], drawn)
            on[rows] = problem.tree.active_mask(joined)
            near[rows] = torch.where(on[rows], joined, problem.fill)
        return near, on, owner


def best_of_each(group: Tensor, values: Tensor) -> Tensor:
    """The first row with the largest value in each group, groups ascending.

    Args:
        group: ``n`` small numbers from 0 on, such as those of boxes.
        values: ``n``, without NaN.
    """
    of, worth = group.cpu().numpy(), values.cpu().numpy()
    top = np.full(of.max(initial=-1) + 1, -np.inf)
    np.maximum.at(top, of, worth)  # sorting takes several times as long
    rows = (worth == top[of]).nonzero()[0][::-1]
    best = np.full(len(top), -1)
    best[of[rows]] = rows  # of several the last, which is the first row
    return torch.from_numpy(best[best >= 0]).to(group.device)


def walk(
    hood: Neighbourhood,
    evaluator: Evaluator,
    X: Tensor,
    values: Tensor,
    active: Tensor,
    box: Tensor,
    known: Tensor,
    max_iter: int,
    patience: float = math.inf,
) -> tuple[Tensor, Tensor]:
    """Move every start to its best neighbour, again and again, until none is better.

    Args:
        hood: The neighbours.
        evaluator: The acquisition function.
        X: ``S x d`` starts.
        values: Their ``S`` values; -inf where they may not be proposed.
        active: ``S x d`` booleans.
        box: ``S`` numbers of the boxes they lie in.
        known: ``m x d`` points that no walk steps on.
        max_iter: Iterations, that is calls of the acquisition function.
        patience: After so many of them starts end that will not become the best.

    Returns:
        ``S x d`` points and their ``S`` values, never less than those of the starts.
    """
    problem = hood.boxes.problem
    X, values, active = X.clone(), values.clone(), active.clone()
    walking = torch.arange(len(X), device=X.device)
    for sweep in range(max_iter):
        near, on, owner = hood.of(X[walking], active[walking], box[walking])
        new = problem.is_new(near, on, known)
        near, on, owner = near[new], on[new], walking[owner[new]]
        value = evaluator.values(near)
        best = best_of_each(owner, value)
        best = best[value[best] > values[owner[best]]]
        if not len(best):
            break
        walking, gain = owner[best], value[best] - values[owner[best]]
        X[walking], active[walking], values[walking] = near[best], on[best], value[best]
        if sweep >= patience:
            walking = walking[values.max() - values[walking] <= _OPTIMISM * gain]
    return X, values


def refine(
    evaluator: Evaluator, X: Tensor, values: Tensor, here: Boxes, known: Tensor
) -> tuple[Tensor, Tensor]:
    """Local maxima of the acquisition function near some starts.

    A climb by gradient; then a walk over the values of discrete columns and, where
    there is a border that is no bound, by steps along it; then a second climb from
    where the walk has led.

    Args:
        evaluator: The acquisition function.
        X: ``S x d`` admissible starts, the best ones first.
        values: Their ``S`` values.
        here: ``S`` boxes, one for each start.
        known: ``m x d`` points that a walk steps over.

    Returns:
        ``S x d`` admissible points, and values at least as good as those of the starts.
    """
    problem, continuous = here.problem, here.continuous
    relaxed = _relaxed(here)
    moving = continuous | relaxed
    bordered = _has_border(here, known)
    if moving.any():
        X_new, new = _climb(evaluator, X, values, here, moving, known)
        if relaxed.any():
            X_new = problem.snap(X_new, here.free)
            new = evaluator.values(X_new)
        better = new > values
        X, values = torch.where(better[:, None], X_new, X), values.maximum(new)
    moves = _moves(here, bordered)
    if not moves:
        return X, values
    box = torch.arange(len(X), device=X.device)
    hood = Neighbourhood(here, moves)
    for _ in range(_ROUNDS if bordered else 1):
        # A start at a known point gets -inf, so that any neighbour is better.
        worth = values.masked_fill(is_known(problem, X, known), -math.inf)
        X_new, values = walk(
            hood,
            evaluator,
            X,
            worth,
            here.active,
            box,
            known,
            _MAX_WALK,
            math.inf if _is_cut(here) else _PATIENCE,
        )
        changed = (X_new != X).any(-1)
        if relaxed.any():  # real columns were chosen for values between whole numbers
            changed[values.argmax()] = True
        rows = (changed & continuous.any(-1)).nonzero().squeeze(-1)
        X = X_new
        if not len(rows):
            break
        X[rows], values[rows] = _climb(
            evaluator, X[rows], values[rows], here.take(rows), continuous[rows], known
        )
    return X, values


def _has_border(here: Boxes, known: Tensor) -> bool:
    """Whether a point that is not admissible may be beside one that is."""
    distant = here.problem.min_distance > 0.0 and len(known) > 0
    return distant or _is_cut(here)


def _is_cut(here: Boxes) -> bool:
    """Whether constraints or ``feasible`` cut boxes in two: by a real column."""
    return bool((here.continuous & here.problem.restricting).any())


def _relaxed(here: Boxes) -> Tensor:
    """Booleans of discrete columns with so many values that a gradient helps."""
    first, last = here.positions
    # ``feasible`` gets admissible values only
    values, restricting = here.problem.values, here.problem.restricting
    steps = here.free & values.ordered & ~restricting
    return steps & (last - first >= _RELAXED_FROM)


def _moves(here: Boxes, bordered: bool) -> list[tuple[int, float, float]]:
    """The slots of discrete columns: all other values, or distances 1, 2, 4, ...

    Beside a border, steps of real columns, too.
    """
    first, last = here.positions
    span = torch.where(here.free, last - first, 0.0).amax(0).tolist()
    moves: list[tuple[int, float, float]] = []
    if bordered:
        real = here.continuous.any(0).nonzero().squeeze(-1).tolist()
        moves = real_moves(real, steps_between(*_STEPS))
    for col in here.problem.discrete:
        widest = int(span[col])
        sizes = list(range(1, min(widest, _MAX_ALTERNATIVES) + 1))
        if here.problem.values.ordered[col]:
            sizes = [1 << k for k in range(widest.bit_length())]
        moves += [(col, way * s, way * (s - 1)) for s in sizes for way in (-1, 1)]
    return moves


def steps_between(largest: float, smallest: float) -> list[float]:
    """Steps of real columns, the largest first."""
    count = 1 + int(math.log(smallest / largest) / math.log(_SHRINK) + 1e-9)
    return [largest * _SHRINK**k for k in range(count)]


def real_moves(
    columns: Sequence[int], steps: Sequence[float]
) -> list[tuple[int, float, float]]:
    """The slots of real columns: each step down and up."""
    pairs = list(zip(steps, [*steps[1:], 0.0], strict=True))
    return [
        (c, way * s, way * inner)
        for s, inner in pairs
        for way in (-1, 1)
        for c in columns
    ]


def _climb(
    evaluator: Evaluator,
    X: Tensor,
    values: Tensor,
    here: Boxes,
    moving: Tensor,
    known: Tensor,
) -> tuple[Tensor, Tensor]:
    """By gradient: together in the unit box, or one by one under linear constraints.

    Returns:
        ``S x d`` points and their values, none worse than where its climb began.
    """
    bound = torch.zeros(len(X), dtype=torch.bool, device=X.device)
    for c in here.problem.constraints:
        binds = here.active[:, c.columns].all(-1)
        bound |= binds & moving[:, c.columns].any(-1)
    X, values = X.clone(), values.clone()
    rows = (~bound & moving.any(-1)).nonzero().squeeze(-1)
    if len(rows):
        found, new = _climb_together(
            evaluator, X[rows], here.take(rows), moving[rows], known
        )
        better = new > values[rows]
        X[rows[better]], values[rows[better]] = found[better], new[better]
    for i in bound.nonzero().squeeze(-1)[:_MAX_CONSTRAINED].tolist():
        X[i], values[i] = _climb_constrained(
            evaluator, X[i], values[i], here, i, moving[i]
        )
    return X, values


def _climb_together(
    evaluator: Evaluator,
    X: Tensor,
    here: Boxes,
    moving: Tensor,
    known: Tensor,
) -> tuple[Tensor, Tensor]:
    """The climbs of all starts in the unit box of the columns that move.

    Returns:
        ``S x d`` points and their values, -inf where no admissible one was met.
    """
    problem = here.problem
    # In NumPy: at this size an operation of torch takes several times as long.
    every = (X, moving, here.lower, here.upper, problem.values.logarithmic)
    old, moves, lower, upper, logarithmic = (t.cpu().numpy() for t in every)
    # Columns that move side by side, ``S x k``; a start that has fewer than others is
    # given real ones that do not move, which models without codes of categories know.
    discrete = problem.values.listed.cpu().numpy()
    order = np.where(moves, 0, 1 + discrete).argsort(-1, kind="stable")
    columns = order[:, : int(moves.sum(-1).max())]
    row = np.arange(len(old))[:, None]
    valid, held = moves[row, columns], old[row, columns]
    lower, upper = lower[row, columns], upper[row, columns]
    logs = valid & logarithmic[columns]
    least, most, start_at = (
        np.log(part, out=part.copy(), where=logs) for part in (lower, upper, held)
    )
    width = np.where(valid, most - least, 1.0)
    U = np.where(valid, (start_at - least) / width, 0.5).clip(0.0, 1.0)
    bordered = _has_border(here, known)

    def values_at(U: Array, start: Array) -> Array:
        """``n x k`` values of the columns."""
        low, high, step = least[start], most[start], width[start]
        # exact at both bounds
        x = np.where(U < 0.5, low + U * step, high - (1.0 - U) * step)
        np.exp(x, out=x, where=logs[start])
        x = x.clip(lower[start], upper[start])
        return np.where(valid[start], x, held[start])

    def points(x: Array, start: Array) -> Tensor:
        at = old[start]
        np.put_along_axis(at, columns[start], x, -1)
        return torch.from_numpy(at).to(X)

    def evaluate(U: Array, start: Array) -> Answer:
        x = values_at(U, start)
        found = evaluator.value_and_gradient(points(x, start))
        value, slope = (part.cpu().numpy() for part in found)
        slope = np.take_along_axis(slope, columns[start], -1)
        slope = np.nan_to_num(slope * width[start], posinf=0.0, neginf=0.0)
        slope *= np.where(logs[start], x, 1.0)  # dx / d log x = x
        admissible = None
        if bordered:
            at = points(x, start)
            active = here.active[torch.from_numpy(start).to(at.device)]
            new = problem.admissible(at, active)
            if problem.min_distance:
                new &= ~is_known(problem, at, known)
            admissible = new.cpu().numpy()
        return value, slope, admissible

    best, new = maximize_in_unit_box(evaluate, U, valid, _PATIENCE)
    found = points(values_at(best, row[:, 0]), row[:, 0])
    return found, torch.from_numpy(new).to(X)


def _climb_constrained(
    evaluator: Evaluator, x: Tensor, value: Tensor, here: Boxes, i: int, moving: Tensor
) -> tuple[Tensor, Tensor]:
    """SLSQP from one start, then back into the feasible set, left by rounding."""
    constraints = [
        (torch.tensor(c.columns, device=x.device), c.coefficients, c.rhs)
        for c in here.problem.constraints
        if here.active[i, c.columns].all() and moving[c.columns].any()
    ]
    held = {int(c): float(x[c]) for c in (~moving).nonzero().squeeze(-1)}
    try:
        # BoTorch's warnings of an early end pass all filters: record them instead
        with warnings.catch_warnings(record=True):
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
    trial = trial.clamp(here.lower[i], here.upper[i])
    ok = here.problem.admissible(trial, here.active[i].expand_as(trial))
    if not ok.any():
        return x, value
    trial = trial[ok][:1]
    new = evaluator.values(trial)[0]
    return (trial[0], new) if new > value else (x, value)
