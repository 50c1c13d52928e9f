"""Local maximisation from the best candidates: by gradient, and over neighbours."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import OptimizationGradientError
from botorch.generation import gen_candidates_scipy
from botorch.models.model import Model
from torch import Tensor

from botorch_structured.optim.boxes import Boxes
from botorch_structured.optim.problem import Array, KnownPoints, first_of_each
from botorch_structured.optim.view import View, view_on
from botorch_structured.spaces.arguments import check_count

# Most iterations of a climb, and of a walk.
_MAX_CLIMB = 40
_MAX_WALK = 32
# After so many iterations of a climb, or steps of a walk, a start ends, too, if it is
# behind the best one by more than so many times its next or last gain.
_PATIENCE = 1
_OPTIMISM = 3.0
# A climb ends where a gain is less, relative to the value.
_TOLERANCE = 1e-8
# The lengths of a step that are tried, in steps of Newton.
_LENGTHS = np.array([1.0, 0.5, 2.0, 0.2, 0.04, 5.0])
# With more slots a walk tries those again that gained most, so many of them.
_MANY_SLOTS = 128
_FEW_SLOTS = 32
# Numbers of the points that it evaluates at once.
_CACHED = 1 << 18
# Most points beside starts at which second derivatives begin.
_MOST_BESIDE = 256
# The next smaller step of real columns, relative to a step. On expected improvement a
# ratio of 0.1 needs 1.4 times as many calls of the acquisition function as this one;
# 0.5 needs 0.9 times as many, with 1.7 times the rows in each.
_SHRINK = 0.25


class Evaluator:
    """An acquisition function on rows of a matrix, each a candidate of its own.

    Args:
        acq_function: Maps ``b x 1 x d`` to ``b``.
        batch_limit: Most rows in one call; by default as many as memory allows.
        device: Where it is evaluated.
    """

    def __init__(
        self,
        acq_function: AcquisitionFunction,
        batch_limit: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.acq_function = acq_function
        self.device = device
        self._view: View | None = None
        self.batch_limit = (
            self._default_limit()
            if batch_limit is None
            else check_count("batch_limit", batch_limit)
        )

    def _default_limit(self) -> int:
        """Most rows by the numbers that a call needs at once, at most 2^25.

        They are points times training points times Monte Carlo samples.
        """
        # training points of all members of an ensemble
        inputs = _train_inputs(self.acq_function)
        n = max((t.shape[:-1].numel() for t in inputs), default=1)
        shape = getattr(getattr(self.acq_function, "sampler", None), "sample_shape", ())
        # A Monte Carlo acquisition holds a joint sample with its baseline points.
        width = n + 16 * math.prod(shape) if shape else n
        return max(64, min(1 << 14, (1 << 25) // max(width, 1)))

    def on(self, rows: Array) -> Evaluator:
        """The same for points on the paths of some rows, ``m x d``."""
        new = copy(self)
        new._view = view_on(self.acq_function, torch.from_numpy(rows).to(self.device))
        return new

    def values(self, X: Array, row: Array | None = None) -> Array:
        """``n`` values of ``n x d`` points; -inf for NaN.

        Args:
            X: The points.
            row: For each, the number of the row of `on` whose path it is on; by default
                they are any points.
        """
        if row is None:
            return self.on(X).values(X, np.arange(len(X)))
        return self.value_and_gradient(X, row, gradient=False)[0]

    def value_and_gradient(
        self, X: Array, row: Array, gradient: bool = True
    ) -> tuple[Array, Array]:
        """``n`` values and ``n x d`` gradients, zero where they are not finite."""
        if not len(X):
            return np.zeros(0, X.dtype), X
        size = self.batch_limit
        if len(X) > size:
            parts = [
                self.value_and_gradient(X[i : i + size], row[i : i + size], gradient)
                for i in range(0, len(X), size)
            ]
            values, slopes = zip(*parts, strict=True)
            return np.concatenate(values), np.concatenate(slopes)
        value, slope = (self._view or self._by_autograd)(X, row, gradient)
        value = np.where(np.isnan(value), -np.inf, value)
        if slope is None:
            return value, np.zeros_like(X)
        return value, np.where(np.isfinite(slope), slope, 0.0)

    def _by_autograd(
        self, X: Array, row: Array, gradient: bool
    ) -> tuple[Array, Array | None]:
        leaf = torch.from_numpy(X).to(self.device).unsqueeze(-2)
        leaf.requires_grad_(gradient)
        with torch.set_grad_enabled(gradient):
            value = self.acq_function(leaf).reshape(-1)
        slope = None
        if value.requires_grad and gradient:
            (slope,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True)
        values = value.detach().cpu().numpy()
        return values, None if slope is None else slope.squeeze(-2).cpu().numpy()


def _train_inputs(module: torch.nn.Module) -> list[Tensor]:
    """Those of the models in a module, also of models inside of others."""
    tables: Any = ()
    if isinstance(module, Model):
        tables = getattr(module, "train_inputs", None) or ()
    inputs = [table for table in tables if isinstance(table, Tensor)]
    if not inputs:
        for child in module.children():
            inputs += _train_inputs(child)
    return inputs


# Values, gradients, and which points may be proposed (None: all of them).
Answer = tuple[Array, Array, Array | None]


@np.errstate(invalid="ignore", over="ignore")  # of infinities, and of 1e300
def maximize_in_unit_box(
    evaluate: Callable[[Array, Array], Answer],
    U: Array,
    valid: Array,
    box: Array | None = None,
    patience: float = math.inf,
) -> tuple[Array, Array]:
    """Climb from every start to a local maximum in ``[0, 1]^k``, all of them together.

    An evaluation takes nearly as long for 60 points as for one. So the first one has
    the gradients beside the starts, too, whose differences are second derivatives; in
    each further one are several lengths of the step of every start, which moves to its
    best one and updates its derivatives (BFGS). A climb crosses regions that are not
    admissible, but does not end there: the best admissible point that was met is
    returned.

    Args:
        evaluate: Maps ``n x k`` points and the ``n`` numbers of the starts they came
            from to ``n`` values, ``n x k`` gradients, and whether the points are
            admissible.
        U: ``S x k`` starts.
        valid: ``S x k`` booleans; coordinates that are not valid do not move.
        box: ``S`` numbers: starts in the same box may lead to the same maximum.
            Default: every start has its own.
        patience: After so many iterations starts end that will not become the best.

    Returns:
        ``S x k`` points and ``S`` values; -inf where none is admissible.
    """
    count, k = U.shape
    start = np.arange(count)
    box = start if box is None else box
    few = max(1, _MOST_BESIDE // k)
    owner, column = valid[:few].nonzero()
    h = np.cbrt(np.finfo(U.dtype).eps)
    shift = np.where(U[owner, column] > 0.5, -h, h).astype(U.dtype)
    beside = U[owner]
    beside[np.arange(len(owner)), column] += shift
    value, slope, admissible = evaluate(
        np.concatenate([U, beside]), np.concatenate([start, owner])
    )
    second = np.zeros((count, k, k), U.dtype)
    second[owner, column] = (slope[count:] - slope[owner]) / shift[:, None]
    x = U
    value = value[:count]
    slope = slope[:count]
    best_x = U.copy()
    best = value.copy()
    if admissible is not None:
        best[~admissible[:count]] = -np.inf
    slope = np.where(valid, slope, 0.0)
    second = np.where(valid[:, None], second, 0.0)
    curvature = _curvature(second[:few], slope[:few])
    if few < count:  # the others begin as these do on average
        others = np.broadcast_to(curvature.mean(0), (count - few, k, k))
        curvature = np.concatenate([curvature, others])
    eye = np.eye(k)
    going = np.isfinite(value)
    for sweep in range(_MAX_CLIMB):
        # along a bound that it would cross a climb slides
        free = valid[start] & np.where(slope > 0.0, x < 1.0, x > 0.0)
        ascent = np.where(free, slope, 0.0)
        matrix = np.where(free[:, :, None] & free[:, None], curvature, eye)
        diagonal = matrix.reshape(len(matrix), -1)[:, :: k + 1]
        diagonal += 1e-10 * diagonal.sum(-1, keepdims=True)
        step = np.linalg.solve(matrix, ascent[:, :, None])[:, :, 0]
        expected = 0.5 * (step * ascent).sum(-1)
        going = going & (expected > _TOLERANCE * np.abs(value))
        if sweep >= patience:
            top = best.argmax()
            lead = best[top] - value
            going &= lead <= _OPTIMISM * expected
            gap = np.abs(x + step - best_x[top]).max(-1)
            is_same = (box[start] == box[top]) & (gap <= 0.5 * np.abs(step).max(-1))
            going &= ~is_same | (lead <= 0.0)
        rows = going.nonzero()[0]
        if not len(rows):
            break
        if len(rows) < len(going):
            start = start[rows]
            x = x[rows]
            value = value[rows]
            slope = slope[rows]
            curvature = curvature[rows]
            step = step[rows]
        trial = x[:, None] + _LENGTHS[:, None] * step[:, None]
        trial = np.minimum(np.maximum(trial, 0.0), 1.0)  # faster than clip
        trial = trial.reshape(-1, k).astype(U.dtype, copy=False)
        owner = start.repeat(len(_LENGTHS))
        values, slopes, admissible = evaluate(trial, owner)
        values = np.where(np.isnan(values), -np.inf, values)
        top = values.reshape(-1, len(_LENGTHS)).argmax(-1)
        top += len(_LENGTHS) * np.arange(len(x))
        gain = values[top] - value
        better = gain > 0.0
        if admissible is not None:
            order = values.argsort()
            order = order[admissible[order] & (values[order] > best[owner[order]])]
            best[owner[order]] = values[order]
            best_x[owner[order]] = trial[order]
        moved = better[:, None]
        to = np.where(moved, trial[top], x)
        slope_there = np.where(moved, slopes[top], slope)
        fall = np.where(valid[start], slope - slope_there, 0.0)
        curvature = _updated(curvature, to - x, fall)
        curvature[~better] *= 100.0  # all steps were too long
        x = to
        slope = slope_there
        value = np.maximum(value, values[top])
        going = ~better | (gain > _TOLERANCE * np.abs(value))
        if admissible is None:
            best[start] = value
            best_x[start] = x
    return best_x, best


def _curvature(second: Array, slope: Array) -> Array:
    """Positive definite matrices with the sizes of curvatures, whatever their signs.

    So the steps of Newton lead upwards; in no direction are they longer than the box.

    Args:
        second: Second derivatives, ``S x k x k``.
        slope: Gradients, ``S x k``.
    """
    second = np.where(np.isfinite(second), second, 0.0)
    size, axes = np.linalg.eigh(0.5 * (second + second.swapaxes(1, 2)))
    along = (slope[:, None] @ axes)[:, 0]
    size = np.maximum(np.abs(size), np.abs(along))
    size = np.maximum(size, 1e-8 * size.max(-1, keepdims=True))
    size = np.maximum(size, np.finfo(size.dtype).tiny)
    return (axes * size[:, None]) @ axes.swapaxes(1, 2)


def _updated(curvature: Array, step: Array, fall: Array) -> Array:
    """The update of BFGS, where the slope has fallen along the step.

    Args:
        curvature: The negated second derivatives, ``S x k x k``.
        step: Steps, ``S x k``.
        fall: Gradients before less those behind it, ``S x k``.
    """
    product = (step * fall).sum(-1)
    length = np.square(step).sum(-1) * np.square(fall).sum(-1)
    fell = product > 1e-10 * np.sqrt(length)
    before = (curvature @ step[:, :, None])[:, :, 0]
    size = np.where(fell, (before * step).sum(-1), 1.0)[:, None, None]
    product = np.where(fell, product, 1.0)[:, None, None]
    more = fall[:, :, None] * fall[:, None] / product
    less = before[:, :, None] * before[:, None] / size
    return np.where(fell[:, None, None], curvature + more - less, curvature)


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
        rng: Draws columns that decisions switch on; None where the boxes are paths, in
            which no decision changes.
        row: For each box, the number of its path for an evaluator; None where
            decisions change.
    """

    def __init__(
        self,
        boxes: Boxes,
        moves: Sequence[tuple[int, float, float]],
        rng: np.random.Generator | None = None,
        row: Array | None = None,
    ) -> None:
        self.boxes = boxes
        self.rng = rng
        self.row = row
        slots = np.array(moves, dtype=np.float64).reshape(-1, 3)
        self.columns = slots[:, 0].astype(int)
        self._lower, self._upper = (p[:, self.columns] for p in boxes.positions)
        discrete = boxes.problem.values.discrete[self.columns]
        width = np.where(discrete, 1.0, self._upper - self._lower)
        self._move = slots[:, 1] * width
        self._inner = slots[:, 2] * width
        decides = boxes.problem.tree.decision_columns if rng is not None else []
        self._decides = np.isin(self.columns, decides)

    def of(
        self,
        X: Array,
        active: Array,
        box: Array,
        chosen: Array | bool = True,
    ) -> tuple[Array, Array, Array, Array]:
        """All neighbours of some points, admissible or not.

        Args:
            X: ``S x d`` points, inactive columns at the fill value.
            active: ``S x d`` booleans.
            box: ``S`` numbers of the boxes they lie in.
            chosen: The slots wanted, ``S x slots`` booleans. Default: all.

        Returns:
            ``M x d`` neighbours, ``M x d`` booleans: their active columns, the ``M``
            rows of ``X`` they belong to, ascending, and their slots.
        """
        problem = self.boxes.problem
        columns = self.columns
        lower = self._lower[box]
        upper = self._upper[box]
        position = problem.values.position(X)[:, columns]
        inner = position + self._inner[box]
        to = np.clip(position + self._move[box], lower, upper).astype(X.dtype)
        values = problem.values.value(to, columns)
        inside = np.where(self._move[box] < 0, inner > lower, inner < upper)
        changes = active[:, columns] & inside & (values != X[:, columns]) & chosen
        owner, slot = changes.nonzero()
        near = X[owner]
        near[np.arange(len(owner)), columns[slot]] = values[owner, slot]
        on = active[owner]
        rows = self._decides[slot].nonzero()[0]
        if self.rng is not None and len(rows):
            drawn = self.boxes.draw(np.zeros_like(rows), self.rng)
            joined = np.where(on[rows], near[rows], drawn)
            on[rows] = problem.active(joined)
            near[rows] = np.where(on[rows], joined, problem.fill)
        return near, on, owner, slot


def best_of_each(group: Array, values: Array) -> Array:
    """The first row with the largest value in each group, groups ascending.

    Args:
        group: ``n`` small numbers from 0 on, such as those of boxes.
        values: ``n``, without NaN.
    """
    top = np.full(group.max(initial=-1) + 1, -np.inf)
    np.maximum.at(top, group, values)  # sorting takes several times as long
    rows = (values == top[group]).nonzero()[0][::-1]
    best = np.full(len(top), -1)
    best[group[rows]] = rows  # of several the last, which is the first row
    return best[best >= 0]


def walk(
    hood: Neighbourhood,
    evaluator: Evaluator,
    X: Array,
    values: Array,
    active: Array,
    box: Array,
    avoid: KnownPoints,
    max_iter: int,
    patience: float = math.inf,
) -> tuple[Array, Array]:
    """Move every start to its best neighbour, again and again, until none is better.

    Args:
        hood: The neighbours.
        evaluator: The acquisition function.
        X: ``S x d`` starts.
        values: Their ``S`` values; -inf where they may not be proposed.
        active: ``S x d`` booleans.
        box: ``S`` numbers of the boxes they lie in.
        avoid: Points that no walk steps on.
        max_iter: Iterations, that is calls of the acquisition function.
        patience: After so many of them starts end that will not become the best.

    Returns:
        ``S x d`` points and their ``S`` values, never less than those of the starts.
    """
    X = X.copy()
    values = values.copy()
    if hood.rng is None and len(hood.columns) > _MANY_SLOTS:
        _walk_by_gain(hood, evaluator, X, values, active, box, avoid, max_iter)
        return X, values
    active = active.copy()
    walking = np.arange(len(X))
    for sweep in range(max_iter):
        near, on, owner, _ = hood.of(X[walking], active[walking], box[walking])
        new = hood.boxes.problem.is_new(near, on, avoid)
        near = near[new]
        on = on[new]
        owner = walking[owner[new]]
        row = None if hood.row is None else hood.row[box[owner]]
        value = evaluator.values(near, row)
        best = best_of_each(owner, value)
        best = best[value[best] > values[owner[best]]]
        if not len(best):
            break
        walking = owner[best]
        with np.errstate(invalid="ignore"):  # of two infinities
            gain = value[best] - values[walking]
        X[walking] = near[best]
        active[walking] = on[best]
        values[walking] = value[best]
        if sweep >= patience:
            walking = walking[values.max() - values[walking] <= _OPTIMISM * gain]
    return X, values


def _walk_by_gain(
    hood: Neighbourhood,
    evaluator: Evaluator,
    X: Array,
    values: Array,
    active: Array,
    box: Array,
    avoid: KnownPoints,
    max_iter: int,
) -> None:
    """`walk` on paths where slots are many: moves ``X`` and ``values`` themselves.

    First all slots are tried, later those that gained most when they were last tried,
    and the best changes of several columns at once. All are tried again where the best
    start of all is no more improved by these.
    """
    gains = np.full((len(X), len(hood.columns)), -np.inf)
    tries_all = np.ones(len(X), dtype=bool)
    walking = np.arange(len(X))
    is_new = hood.boxes.problem.is_new
    # tables that fit into a cache take a half of the time of those that do not
    size = max(64, _CACHED // X.shape[1])

    def tried(points: Array, owner: Array) -> tuple[Array, Array, Array]:
        """Which points are new, their owners and values."""
        new = is_new(points, active[owner], avoid).nonzero()[0]
        owner = owner[new]
        row = box[owner] if hood.row is None else hood.row[box[owner]]
        parts = [
            evaluator.values(points[new[i : i + size]], row[i : i + size])
            for i in range(0, len(new), size)
        ]
        return new, owner, np.concatenate([values[:0], *parts])

    for _ in range(max_iter):
        least = np.partition(gains[walking], -_FEW_SLOTS)[:, -_FEW_SLOTS, None]
        chosen = tries_all[walking, None] | (gains[walking] >= least)
        near, _, owner, slot = hood.of(
            X[walking], active[walking], box[walking], chosen
        )
        new, owner, value = tried(near, walking[owner])
        near = near[new]
        slot = slot[new]
        before = np.where(np.isfinite(values), values, 0.0)[owner]
        gains[owner, slot] = gain = value - before
        better = value > values[owner]
        points = []
        owners = []
        for i in np.unique(owner[better]):
            rows = (better & (owner == i)).nonzero()[0]
            rows = rows[(-gain[rows]).argsort(kind="stable")]
            rows = rows[first_of_each(hood.columns[slot[rows]])]
            columns = hood.columns[slot[rows]]
            for count in 1 << np.arange(1, len(rows).bit_length() + 1):
                point = X[i].copy()
                point[columns[:count]] = near[rows[:count], columns[:count]]
                points.append(point)
                owners.append(i)
        if points:
            several = np.array(points)
            new, more, worth = tried(several, np.array(owners))
            near = np.concatenate([near, several[new]])
            owner = np.concatenate([owner, more])
            value = np.concatenate([value, worth])
        best = best_of_each(owner, value)
        best = best[value[best] > values[owner[best]]]
        moved = owner[best]
        with np.errstate(invalid="ignore"):  # of two infinities
            step = value[best] - values[moved]
        X[moved] = near[best]
        values[moved] = value[best]
        is_top = walking[values[walking] == values.max()]
        stuck = is_top[~np.isin(is_top, moved) & ~tries_all[is_top]]
        tries_all[:] = False
        tries_all[stuck] = True
        moved = moved[values.max() - values[moved] <= _OPTIMISM * step]
        walking = np.union1d(moved, stuck)
        if not len(walking):
            break


def refine(
    evaluator: Evaluator,
    X: Array,
    values: Array,
    boxes: Boxes,
    box: Array,
    avoid: KnownPoints,
) -> tuple[Array, Array]:
    """Local maxima of the acquisition function near some starts.

    A climb by gradient; then a walk over the values of discrete columns and, where
    there is a border that is no bound, by steps along it; then a second climb from
    where the walk has led.

    Args:
        evaluator: The acquisition function on the paths of the boxes.
        X: ``S x d`` admissible starts, the best ones first.
        values: Their ``S`` values.
        boxes: The boxes.
        box: ``S`` numbers of the boxes that the starts lie in.
        avoid: Points that a walk steps over.

    Returns:
        ``S x d`` admissible points, and values at least as good as those of the starts.
    """
    problem = boxes.problem
    starts = boxes.take(box)
    continuous = starts.continuous
    relaxed = _relaxed(starts)
    moving = continuous | relaxed
    bordered = _has_border(starts, avoid)
    if moving.any():
        X_new, new = _climb(
            evaluator,
            X,
            values,
            starts,
            box,
            moving,
            avoid,
        )
        if relaxed.any():
            X_new = problem.snap(X_new, starts.free)
            new = evaluator.values(X_new, box)
        X = np.where((new > values)[:, None], X_new, X)
        values = np.maximum(values, new)
    # Beside a border real columns take steps along it, too.
    moves = slots_of(
        starts,
        steps_between(0.2, 1e-5) if bordered else [],
        True,
        64,
    )
    if not moves:
        return X, values
    hood = Neighbourhood(starts, moves, row=box)
    index = np.arange(len(X))
    patience = math.inf if _is_cut(starts) else _PATIENCE
    for _ in range(3 if bordered else 1):
        # A start at a known point gets -inf, so that any neighbour is better.
        worth = np.where(avoid.contains(X), -np.inf, values)
        active = starts.active
        X_new, values = walk(
            hood, evaluator, X, worth, active, index, avoid, _MAX_WALK, patience
        )
        changed = np.any(X_new != X, axis=-1)
        if relaxed.any():  # real columns were chosen for values between whole numbers
            changed[values.argmax()] = True
        rows = np.flatnonzero(changed & continuous.any(-1))
        X = X_new
        if not len(rows):
            break
        X[rows], values[rows] = _climb(
            evaluator,
            X[rows],
            values[rows],
            starts.take(rows),
            box[rows],
            continuous[rows],
            avoid,
        )
    return X, values


def _has_border(starts: Boxes, avoid: KnownPoints) -> bool:
    """Whether a point that is not admissible may be beside one that is."""
    distant = starts.problem.min_distance > 0.0 and len(avoid.X) > 0
    return distant or _is_cut(starts)


def _is_cut(starts: Boxes) -> bool:
    """Whether constraints or ``feasible`` cut boxes in two: by a real column."""
    return bool((starts.continuous & starts.problem.restricting).any())


def _relaxed(starts: Boxes) -> Array:
    """Booleans of discrete columns with so many values that a gradient helps."""
    # ``feasible`` gets admissible values only
    problem = starts.problem
    steps = starts.free & problem.values.ordered & ~problem.restricting
    if not steps.any():
        return steps
    first, last = starts.positions
    return steps & (last - first >= 8)


def steps_between(largest: float, smallest: float) -> list[float]:
    """Steps of real columns, in widths of the box, the largest first."""
    count = 1 + int(math.log(smallest / largest) / math.log(_SHRINK) + 1e-9)
    return [largest * _SHRINK**k for k in range(count)]


def slots_of(
    boxes: Boxes, steps: Sequence[float], far: bool, most: float = math.inf
) -> list[tuple[int, float, float]]:
    """The slots of a neighbourhood.

    Args:
        boxes: The boxes.
        steps: Steps of real columns, in widths of the box, the largest first.
        far: Whether ordered discrete columns move by 1, 2, 4, ..., or by 1 alone.
        most: Most other values of a category, in each direction.
    """
    moves: list[tuple[int, float, float]] = []
    for step, inner in zip(steps, [*steps[1:], 0.0], strict=False):
        for way in (-1, 1):
            for column in np.flatnonzero(boxes.continuous.any(0)).tolist():
                moves.append((column, way * step, way * inner))
    values = boxes.problem.values
    discrete = boxes.free & values.discrete
    for column in np.flatnonzero(discrete.any(0)).tolist():
        moving = discrete[:, column]
        first, last = boxes.positions
        widest = int((last - first)[moving, column].max())
        if not values.ordered[column]:
            sizes = list(range(1, int(min(widest, most)) + 1))
        elif far:
            sizes = [1 << k for k in range(widest.bit_length())]
        else:
            sizes = [1]
        for size in sizes:
            moves.append((column, -size, 1 - size))
            moves.append((column, size, size - 1))
    return moves


def _climb(
    evaluator: Evaluator,
    X: Array,
    values: Array,
    starts: Boxes,
    row: Array,
    moving: Array,
    avoid: KnownPoints,
) -> tuple[Array, Array]:
    """By gradient: together in the unit box, or one by one under linear constraints.

    Args:
        evaluator: The acquisition function.
        X: ``S x d`` starts.
        values: Their ``S`` values.
        starts: Their boxes.
        row: ``S`` numbers of these for the evaluator.
        moving: ``S x d`` booleans: the columns that move.
        avoid: Known points.

    Returns:
        ``S x d`` points and their values, none worse than where its climb began.
    """
    bound: Array = np.zeros(len(X), dtype=bool)
    for c in starts.problem.constraints:
        binds = starts.active[:, c.columns].all(-1)
        bound |= binds & moving[:, c.columns].any(-1)
    X = X.copy()
    values = values.copy()
    rows = np.flatnonzero(~bound & moving.any(-1))
    if len(rows):
        ends, new = _climb_together(
            evaluator, X[rows], starts.take(rows), row[rows], moving[rows], avoid
        )
        better = new > values[rows]
        X[rows[better]] = ends[better]
        values[rows[better]] = new[better]
    for i in bound.nonzero()[0][:4]:
        X[i], values[i] = _climb_constrained(
            evaluator, X[i], values[i], starts, i, row[i], moving[i]
        )
    return X, values


def _climb_together(
    evaluator: Evaluator,
    X: Array,
    starts: Boxes,
    row: Array,
    moving: Array,
    avoid: KnownPoints,
) -> tuple[Array, Array]:
    """The climbs of all starts in the unit box of the columns that move.

    See `_climb` for the arguments.

    Returns:
        ``S x d`` points and their values, -inf where no admissible one was met.
    """
    problem = starts.problem
    bordered = _has_border(starts, avoid)
    # Columns that move side by side, ``S x k``; a start that has fewer than others is
    # given real ones that do not move, which models without codes of categories know.
    order = np.where(moving, 0, 1 + problem.values.listed).argsort(-1, kind="stable")
    columns = order[:, : int(moving.sum(-1).max())]
    start = np.arange(len(X))
    at = start[:, None], columns
    valid = moving[at]
    lower = np.where(valid, starts.lower[at], X[at])
    upper = np.where(valid, starts.upper[at], X[at])
    logs = valid & problem.values.logarithmic[columns]
    any_logs = logs.any()
    least = np.log(lower, out=lower.copy(), where=logs)
    width = np.log(upper, out=upper.copy(), where=logs) - least

    def points(U: Array, start: Array) -> tuple[Array, Array]:
        """``n x d`` points, and the values of the columns that move, ``n x k``."""
        x = least[start] + U * width[start]
        if any_logs:
            np.exp(x, out=x, where=logs[start])
        top = upper[start]
        x = np.minimum(np.maximum(x, lower[start]), top)
        x = np.where(U < 1.0, x, top)  # exact at both bounds
        near = X[start]
        near[np.arange(len(near))[:, None], columns[start]] = x
        return near, x

    def evaluate(U: Array, start: Array) -> Answer:
        near, x = points(U, start)
        value, slope = evaluator.value_and_gradient(near, row[start])
        slope = slope[np.arange(len(near))[:, None], columns[start]] * width[start]
        if any_logs:
            slope = slope * np.where(logs[start], x, 1.0)  # dx / d log x = x
        if not bordered:
            return value, slope, None
        new = problem.admissible(near, starts.active[start])
        if problem.min_distance:
            new &= ~avoid.contains(near)
        return value, slope, new

    place = np.log(X[at], out=X[at], where=logs) - least
    U = np.where(valid, place / np.where(valid, width, 1.0), 0.5).clip(0.0, 1.0)
    best, values = maximize_in_unit_box(
        evaluate,
        U,
        valid,
        row,
        _PATIENCE,
    )
    return points(best, start)[0], values


def _climb_constrained(
    evaluator: Evaluator,
    x: Array,
    value: float,
    starts: Boxes,
    i: int,
    row: int,
    moving: Array,
) -> tuple[Array, float]:
    """SLSQP from one start, then back into the feasible set, left by rounding."""
    problem = starts.problem
    tensor = problem.tensor
    constraints = [
        (tensor(np.array(c.columns)), c.coefficients.to(problem.device), c.rhs)
        for c in problem.constraints
        if starts.active[i, c.columns].all() and moving[c.columns].any()
    ]
    fixed = {int(c): float(x[c]) for c in (~moving).nonzero()[0]}
    try:
        # BoTorch's warnings of an early end pass all filters: record them instead
        with warnings.catch_warnings(record=True):
            candidate, _ = gen_candidates_scipy(
                tensor(x[None, None]),
                evaluator.acq_function,
                lower_bounds=tensor(starts.lower[i]),
                upper_bounds=tensor(starts.upper[i]),
                inequality_constraints=constraints,
                fixed_features=fixed,
                options={"maxiter": 200, "ftol": 1e-12},
            )
    except OptimizationGradientError:
        return x, value
    end = candidate.detach().cpu().numpy().reshape(1, -1)
    back = np.array([0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2], x.dtype)
    trial = np.where(moving, end + back[:, None] * (x - end), x)
    trial = trial.clip(starts.lower[i], starts.upper[i])
    ok = problem.admissible(trial, np.tile(starts.active[i], (len(trial), 1)))
    if not ok.any():
        return x, value
    trial = trial[ok][:1]
    (new,) = evaluator.values(trial, np.array([row]))
    return (trial[0], new) if new > value else (x, value)
