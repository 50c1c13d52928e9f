"""Local maximisation over neighbours, and from starts: by gradient, then by these."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from botorch_structured.optim.boxes import Boxes
from botorch_structured.optim.climb import (
    OPTIMISM,
    PATIENCE,
    Evaluator,
    climb,
    has_border,
    is_cut,
)
from botorch_structured.optim.problem import Array, KnownPoints, first_of_each, mask_of

# Most sweeps of a walk.
_MAX_WALK = 32
# The next smaller step of real columns, relative to a step. On expected improvement a
# ratio of 0.1 needs 1.4 times as many calls of the acquisition function as this one;
# 0.5 needs 0.9 times as many, with 1.7 times the rows in each.
_SHRINK = 0.25
# On paths with more slots few starts walk, and a sweep tries a part of the slots. On
# 100 integers 512 points reach values that are .09 less; 16 starts take twice as long.
_MANY_SLOTS = 128
_FEW_STARTS = 4
_POINTS_OF_SWEEP = 1024


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
        lower, upper = boxes.positions
        self._lower = lower[:, self.columns]
        self._upper = upper[:, self.columns]
        discrete = boxes.problem.values.discrete[self.columns]
        width = np.where(discrete, 1.0, self._upper - self._lower)
        self._move = slots[:, 1] * width
        self._inner = slots[:, 2] * width
        decides = boxes.problem.tree.decision_columns if rng is not None else []
        self._decides = mask_of(decides, len(boxes.problem.fill))

    def of(
        self,
        X: Array,
        active: Array,
        box: Array,
        slots: Array | slice = slice(None),
    ) -> tuple[Array, Array, Array, Array]:
        """All neighbours of some points, admissible or not.

        Args:
            X: ``S x d`` points, inactive columns at the fill value.
            active: ``S x d`` booleans.
            box: ``S`` numbers of the boxes they lie in.
            slots: The numbers of the slots wanted, ascending. Default: all.

        Returns:
            ``M x d`` neighbours, ``M x d`` booleans: their active columns, the ``M``
            rows of ``X`` they belong to, ascending, and the columns changed.
        """
        problem = self.boxes.problem
        columns = self.columns[slots]
        lower = self._lower[box][:, slots]
        upper = self._upper[box][:, slots]
        move = self._move[box][:, slots]
        position = problem.values.position(X)[:, columns]
        inner = position + self._inner[box][:, slots]
        to = np.clip(position + move, lower, upper).astype(X.dtype)
        values = problem.values.value(to, columns)
        inside = np.where(move < 0, inner > lower, inner < upper)
        changes = active[:, columns] & inside & (values != X[:, columns])
        owner, slot = changes.nonzero()
        column = columns[slot]
        near = X[owner]
        near[np.arange(len(owner)), column] = values[owner, slot]
        on = active[owner]
        rows = self._decides[column].nonzero()[0]
        if self.rng is not None and len(rows):
            drawn = self.boxes.draw(np.zeros_like(rows), self.rng)
            joined = np.where(on[rows], near[rows], drawn)
            on[rows] = problem.active(joined)
            near[rows] = np.where(on[rows], joined, problem.fill)
        return near, on, owner, column


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
    """Move every start to a better neighbour, again and again, until none is better.

    A sweep tries all slots. Where a path has very many, the best starts walk alone, and
    a sweep tries the next ones of a random order and the best changes of several
    columns at once. A start ends where it has not moved since all slots were tried.

    Args:
        hood: The neighbours.
        evaluator: The acquisition function.
        X: ``S x d`` starts.
        values: Their ``S`` values; -inf where they may not be proposed.
        active: ``S x d`` booleans.
        box: ``S`` numbers of the boxes they lie in.
        avoid: Points that no walk steps on.
        max_iter: Sweeps, each one call of the acquisition function, or two.
        patience: After so many of them starts end that will not become the best.

    Returns:
        ``S x d`` points and their ``S`` values, never less than those of the starts.
    """
    X = X.copy()
    values = values.copy()
    active = active.copy()
    walking = np.arange(len(X))
    count = len(hood.columns)
    is_wide = hood.rng is None and count > _MANY_SLOTS
    if is_wide:
        walking = (-values).argsort(kind="stable")[:_FEW_STARTS]
    order = np.random.default_rng(0).permutation(count)
    size = count
    at = 0
    tried = np.zeros(len(X), dtype=int)  # slots since the last move

    def worth(near: Array, on: Array, owner: Array) -> Array:
        """Values, -inf where a point may not be proposed."""
        new = hood.boxes.problem.is_new(near, on, avoid)
        row = None if hood.row is None else hood.row[box[owner[new]]]
        value = np.full(len(near), -np.inf)
        value[new] = evaluator.values(near[new], row)
        return value

    for sweep in range(max_iter):
        if is_wide:
            size = min(count, _POINTS_OF_SWEEP // len(walking))
        slots = np.sort(order[np.arange(at, at + size) % count])
        at += size
        near, on, owner, column = hood.of(
            X[walking], active[walking], box[walking], slots
        )
        owner = walking[owner]
        value = worth(near, on, owner)
        if is_wide:
            better = (value > values[owner]).nonzero()[0]
            joined, of = _joined(X, near, column, owner, value, better)
            value = np.concatenate([value, worth(joined, active[of], of)])
            near = np.concatenate([near, joined])
            on = np.concatenate([on, active[of]])
            owner = np.concatenate([owner, of])
        best = best_of_each(owner, value)
        best = best[value[best] > values[owner[best]]]
        moved = owner[best]
        gain = np.zeros(len(X))
        with np.errstate(invalid="ignore"):  # of two infinities
            gain[moved] = value[best] - values[moved]
        X[moved] = near[best]
        active[moved] = on[best]
        values[moved] = value[best]
        tried[walking] += size
        tried[moved] = 0
        walking = walking[tried[walking] < count]
        if sweep >= patience:
            lead = values.max() - values[walking]
            walking = walking[lead <= OPTIMISM * gain[walking]]
        if not len(walking):
            break
    return X, values


def _joined(
    X: Array,
    near: Array,
    column: Array,
    owner: Array,
    value: Array,
    better: Array,
) -> tuple[Array, Array]:
    """The best changes of 2, 4, 8, ... columns of a point at once.

    Args:
        X: ``S x d`` points.
        near: ``M x d`` neighbours.
        column: The ``M`` columns that are changed.
        owner: ``M`` rows of ``X``.
        value: ``M`` values.
        better: The numbers of the neighbours that are better than their point.

    Returns:
        ``k x d`` points and the ``k`` rows of ``X`` they belong to.
    """
    points = [X[:0]]
    owners = [owner[:0]]
    better = better[(-value[better]).argsort(kind="stable")]
    for i in np.unique(owner[better]):
        rows = better[owner[better] == i]
        rows = rows[first_of_each(column[rows])]
        columns = column[rows]
        changes = near[rows, columns]
        counts = 1 << np.arange(1, 1 + (len(rows) - 1).bit_length())
        several = np.tile(X[i], (len(counts), 1))
        for point, count in zip(several, counts, strict=True):
            point[columns[:count]] = changes[:count]
        points.append(several)
        owners.append(np.full(len(counts), i))
    return np.concatenate(points), np.concatenate(owners)


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
    # discrete columns with so many values that a gradient helps
    relaxed = starts.free & problem.values.ordered & ~problem.restricting
    if relaxed.any():
        first, last = starts.positions
        relaxed &= last - first >= 8
    moving = continuous | relaxed
    bordered = has_border(starts, avoid)
    if moving.any():
        X_new, new = climb(
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
    patience = math.inf if is_cut(starts) else PATIENCE
    for _ in range(3 if bordered else 1):
        # A start at a known point gets -inf, so that any neighbour is better.
        worth = np.where(avoid.contains(X), -np.inf, values)
        active = starts.active
        X_new, values = walk(
            hood,
            evaluator,
            X,
            worth,
            active,
            index,
            avoid,
            _MAX_WALK,
            patience,
        )
        changed = np.any(X_new != X, axis=-1)
        if relaxed.any():  # real columns were chosen for values between whole numbers
            changed[values.argmax()] = True
        rows = np.flatnonzero(changed & continuous.any(-1))
        X = X_new
        if not len(rows):
            break
        X[rows], values[rows] = climb(
            evaluator,
            X[rows],
            values[rows],
            starts.take(rows),
            box[rows],
            continuous[rows],
            avoid,
        )
    return X, values


def steps_between(largest: float, smallest: float) -> list[float]:
    """Steps of real columns, in widths of the box, the largest first."""
    count = 1 + int(math.log(smallest / largest) / math.log(_SHRINK) + 1e-9)
    return [largest * _SHRINK**k for k in range(count)]


def slots_of(
    boxes: Boxes,
    steps: Sequence[float],
    far: bool,
    most: float = math.inf,
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
            sizes = (1 << np.arange(widest.bit_length())).tolist()
        else:
            sizes = [1]
        for size in sizes:
            moves.append((column, -size, 1 - size))
            moves.append((column, size, size - 1))
    return moves
