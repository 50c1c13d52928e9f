"""The space as boxes, and the first candidates in each of them.

On a path the inactive columns hold the fill value, decisions hold the values of the
path, and the other columns move between bounds. So a path is a box, with zero width in
inactive columns and decisions, and points on different paths are points in different
boxes: one array, one call of the acquisition function. The whole space is a box, too
(`whole_box`), in which decisions move like any other discrete column; a point of it is
a point of the space once its inactive columns hold the fill value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import torch
from botorch.exceptions.errors import InfeasibilityError
from botorch.utils.sampling import get_polytope_samples
from torch.quasirandom import SobolEngine

from botorch_structured.linalg.blocks import positions
from botorch_structured.optim.problem import MAX_PATHS, Array, Problem, first_of_each

# Distances, as powers of ten of the width of the box, at which points known to be good
# are perturbed: without noise the optimum of expected improvement may be at 1e-5.
_LOCAL_SCALES = (-5.0, -0.5)
_NUM_SCALES = 3


class Slots:
    """Boxes by the few columns that move in them: ``K`` slots, not ``d`` columns.

    With one path for each learner of many, nearly all columns of a point are inactive:
    with 64 learners of four columns a search takes 0.7 of the time by slots.

    Args:
        boxes: The boxes.

    Attributes:
        columns: ``P x K`` columns that move, ascending; a slot that is not used has the
            column of another one.
        free: ``P x K`` booleans: the slots that are used.
        lower: ``P x K``.
        upper: ``P x K``.
    """

    def __init__(self, boxes: Boxes) -> None:
        self.values = boxes.problem.values
        self._lowest = boxes.lower
        d = boxes.lower.shape[1]
        columns = positions(torch.from_numpy(boxes.free)).numpy()
        self.free = columns < d
        self.columns = np.where(self.free, columns, 0)
        row = np.arange(len(columns))[:, None]
        self.lower = boxes.lower[row, self.columns]
        self.upper = boxes.upper[row, self.columns]
        self.discrete = self.free & self.values.discrete[self.columns]
        self.logarithmic = self.free & self.values.logarithmic[self.columns]
        if self.discrete.any():
            first, last = boxes.positions
            self._first = first[row, self.columns]
            self._size = last[row, self.columns] - self._first + 1

    def at(self, U: Array, box: Array) -> Array:
        """Points of the unit cube, carried to boxes.

        Args:
            U: ``n x K`` numbers in [0, 1].
            box: ``n`` numbers of boxes.

        Returns:
            ``n x K`` values; discrete ones are admissible, each equally likely.
        """
        lower = self.lower[box]
        upper = self.upper[box]
        x = np.clip(lower + (upper - lower) * U, lower, upper).astype(lower.dtype)
        if self.discrete.any():
            size = self._size[box]
            step = np.minimum(np.floor(U * size), size - 1)
            value = self.values.value(self._first[box] + step, self.columns[box])
            x = np.where(self.discrete[box], value, x).astype(lower.dtype)
        if self.logarithmic.any():  # as `IntegerColumn.draw`
            logs = self.logarithmic[box]
            low = np.log(np.where(logs, lower - 0.5, 1.0))
            high = np.log(np.where(logs, upper + 0.5, 1.0))
            drawn = np.rint(np.exp(low + (high - low) * U))
            x = np.where(logs, np.clip(drawn, lower, upper), x).astype(lower.dtype)
        return x

    def snap(self, x: Array, box: Array) -> Array:
        """``n x K`` values in the boxes, discrete ones at the nearest admissible."""
        x = np.clip(x, self.lower[box], self.upper[box])
        if not self.discrete.any():
            return x
        columns = self.columns[box]
        value = self.values.value(self.values.position(x, columns), columns)
        return np.where(self.discrete[box], value, x)

    def widen(self, x: Array, box: Array) -> Array:
        """``n x d`` points from their values in slots."""
        X = self._lowest[box]
        row, slot = self.free[box].nonzero()
        X[row, self.columns[box[row], slot]] = x[row, slot]
        return X


@dataclass
class Boxes:
    """The values that each column may have, in ``P`` parts of the space.

    Args:
        problem: The space.
        lower: ``P x d`` smallest values.
        upper: ``P x d`` largest values.
        active: ``P x d`` booleans: the active columns of the part.
        keys: ``P`` numbers: the paths.
    """

    problem: Problem
    lower: Array
    upper: Array
    active: Array
    keys: Array
    #: The few columns that move.
    slots: ClassVar[cached_property[Slots]] = cached_property(Slots)

    def __post_init__(self) -> None:
        #: ``P x d`` booleans: the columns that can move.
        self.free = self.upper > self.lower
        #: ``P x d`` booleans: the columns that move continuously.
        self.continuous = self.free & ~self.problem.values.discrete

    @cached_property
    def positions(self) -> tuple[Array, Array]:
        """``P x d`` positions of the smallest and of the largest values."""
        ends = np.concatenate([self.lower, self.upper])
        first, last = np.split(self.problem.values.position(ends), 2)
        return first, last

    @cached_property
    def counts(self) -> Array:
        """The number of points in every box, infinite where a column is continuous."""
        finite = np.logical_not(self.continuous.any(-1))
        counts = np.full(len(finite), np.inf)
        if finite.any():
            first, last = self.positions
            size = np.where(self.free, last - first + 1, 1)[finite]
            counts[finite] = size.prod(-1, dtype=np.float64)
        return counts

    def take(self, index: Any) -> Boxes:
        """The boxes at ``index``."""
        return Boxes(
            self.problem,
            self.lower[index],
            self.upper[index],
            self.active[index],
            self.keys[index],
        )

    def pin(self, columns: Array, X: Array) -> Boxes:
        """The boxes with the active ones of some columns held at the values of ``X``.

        Args:
            columns: ``d`` booleans.
            X: ``P x d``, one row for each box.
        """
        pinned = columns & self.active
        lower = np.where(pinned, X, self.lower)
        upper = np.where(pinned, X, self.upper)
        return replace(self, lower=lower, upper=upper)

    def draw(self, box: Array, rng: np.random.Generator) -> Array:
        """``n x d`` random points of ``n`` boxes, discrete values equally likely."""
        slots = self.slots
        U = rng.random((len(box), slots.columns.shape[1]))
        return slots.widen(slots.at(U, box), box)


def whole_box(problem: Problem) -> Boxes:
    """The whole space as one box, decisions included.

    The admissible values of a parameter do not depend on the others; whether it is
    active does. Columns without an admissible value hold any declared number: points
    where one of them is active are not proposed.
    """
    some = problem.fill.copy()
    for col in problem.tree.decisions_by_value:
        some[col] = problem.tree.decision_values[col][0]
    lower = np.where(problem.empty, some, problem.lower)[None]
    upper = np.where(problem.empty, some, problem.upper)[None]
    active = np.ones_like(lower, dtype=bool)
    return Boxes(
        problem,
        lower,
        upper,
        active,
        np.zeros(1, dtype=np.int64),
    )


def project(space: Boxes, X: Array) -> Array:
    """The nearest points of the whole space; points on paths outside of it are dropped.

    Args:
        space: `whole_box`.
        X: ``k x d`` points, inactive columns at the fill value.

    Returns:
        At most ``k x d`` points.
    """
    problem = space.problem
    near = problem.snap(np.clip(X, space.lower, space.upper), space.free)
    near = np.where(problem.active(near), near, problem.fill)
    return near[problem.keys(near) == problem.keys(X)]


def boxes_at(problem: Problem, rows: Array) -> tuple[Boxes, Array]:
    """The boxes of the paths that some rows are on.

    Args:
        problem: Bounds, discrete columns, fixed features.
        rows: ``n x d`` points, of which only the decisions are used.

    Returns:
        The boxes, and ``n`` booleans: which rows have one. Rows have none where a
        fixed feature, a bound or the list of a categorical rules their path out.
    """
    located = problem.tree.locate(torch.from_numpy(rows))
    codes, active, keys = map(torch.Tensor.numpy, located)
    lower = np.where(active, problem.lower, problem.fill)
    upper = np.where(active, problem.upper, problem.fill)
    for k, col in enumerate(problem.tree.decision_columns):
        on = active[:, col]
        code = codes[on, k]
        low, high = problem.outcomes[k]
        lower[on, col] = low[code]
        upper[on, col] = high[code]
    ok = np.all(lower <= upper, axis=-1)
    return Boxes(
        problem,
        lower,
        upper,
        active,
        keys,
    ), ok


def path_boxes(
    problem: Problem,
    points: Array,
    rng: np.random.Generator,
) -> Boxes:
    """The boxes of the paths to be searched.

    All paths, or 1,024 random ones if there are more, and those of known points
    beside them.

    Args:
        problem: The space.
        points: ``m x d`` points whose paths are searched, too.
        rng: Draws the random paths.

    Raises:
        ValueError: The arguments leave no path.
    """
    if problem.tree.num_paths <= MAX_PATHS:
        rows = problem.tree.path_points.numpy().astype(problem.lower.dtype)
    else:
        generator = torch.Generator().manual_seed(int(rng.integers(1 << 31)))
        drawn: Array = problem.tree.random_paths(MAX_PATHS, generator).numpy()
        drawn = drawn.astype(problem.lower.dtype)
        for col, value in problem.fixed.items():
            drawn[:, col] = value
        near = np.concatenate([points, problem.good])[-MAX_PATHS:]
        rows = np.concatenate([drawn, near])
        rows = rows[first_of_each(problem.keys(rows))]
    boxes, ok = boxes_at(problem, rows)
    if ok.any():
        return boxes.take(ok)
    raise ValueError(
        "fixed_features, categorical_features, bounds: expected to leave at least one "
        f"path of the tree, got fixed_features={problem.fixed}, "
        f"bounds={problem.bounds.tolist()} for decisions "
        f"{problem.tree.decision_values}."
    )


@dataclass
class Sample:
    """Candidates, the box each lies in, and the source each comes from.

    Args:
        X: ``n x d`` points.
        box: ``n`` numbers of boxes.
        source: ``n`` integers, 0 for points spread over the box, the default. Starts of
            the refinement are taken from each source.
    """

    X: Array
    box: Array
    source: Any = None

    def __post_init__(self) -> None:
        if self.source is None:
            self.source = np.zeros_like(self.box)

    def take(self, index: Any) -> Sample:
        """The candidates at ``index``."""
        return Sample(self.X[index], self.box[index], self.source[index])


def join(samples: Sequence[Sample]) -> Sample:
    """All candidates, one sample after the other."""
    fields = zip(*map(attrgetter("X", "box", "source"), samples), strict=True)
    return Sample(*map(np.concatenate, fields))


def _admissible(boxes: Boxes, sample: Sample) -> Sample:
    """The candidates that satisfy the constraints and ``feasible``."""
    return sample.take(boxes.problem.admissible(sample.X, boxes.active[sample.box]))


def _listed(boxes: Boxes, chosen: Array) -> list[Sample]:
    """Every point of each of the chosen boxes, which are finite."""
    free = boxes.free[chosen].any(-1)
    single = chosen[~free]
    samples = [Sample(boxes.lower[single], single)]
    first, last = boxes.positions
    for b in chosen[free]:
        columns = boxes.free[b].nonzero()[0]
        steps = []
        for c in columns:
            steps.append(np.arange(first[b, c], last[b, c] + 1))
        grid = np.stack(np.meshgrid(*steps, indexing="ij"), axis=-1)
        position = grid.reshape(-1, len(columns)).astype(boxes.lower.dtype)
        X = np.tile(boxes.lower[b], (len(position), 1))
        X[:, columns] = boxes.problem.values.value(position, columns)
        samples.append(Sample(X, np.full(len(X), b)))
    return samples


def all_candidates(boxes: Boxes) -> Sample:
    """Every admissible point of the finite boxes that can be listed.

    For the end of a search, when all random points in them are known.
    """
    finite = (boxes.counts <= 1 << 16).nonzero()[0]
    return _admissible(boxes, join(_listed(boxes, finite)))


def raw_candidates(
    boxes: Boxes,
    per_box: int,
    good: Array,
    keys: Array,
    rng: np.random.Generator,
) -> Sample:
    """Candidates in every box, all of them admissible.

    Small finite boxes are listed. Others get Sobol points; half as many perturbations
    of the good points in them at distances spread over five orders of magnitude; points
    with the shared columns of the best of all; and copies of some of these with
    shared columns on the bounds, where linear effects have their optimum.

    Args:
        boxes: ``P`` boxes.
        per_box: Sobol points for each box.
        good: ``k x d`` points worth searching around, the best first.
        keys: The keys of their paths.
        rng: The source of random numbers.

    Returns:
        The candidates. Boxes without an admissible point have none.
    """
    is_small = boxes.counts <= 4 * per_box
    large = (~is_small).nonzero()[0]
    samples = []
    if len(large) < len(boxes.keys):
        samples = _listed(boxes, is_small.nonzero()[0])
    if len(large):
        samples.append(_spread(boxes, large, per_box, good, keys, rng))
    sample = join(samples)
    if not boxes.problem.is_restricted:
        return sample
    sample = _admissible(boxes, sample)
    return _with_replacements(boxes, sample, large, per_box, rng)


def _sobol(slots: Slots, box: Array, rng: np.random.Generator) -> Array:
    """A Sobol point in each of ``n`` boxes, in slots."""
    k = slots.columns.shape[1]
    if k > SobolEngine.MAXDIM:
        return slots.at(rng.random((len(box), k)), box)
    engine = SobolEngine(k, scramble=True, seed=int(rng.integers(1 << 31)))
    return slots.at(engine.draw(len(box), dtype=torch.double).numpy(), box)


def _spread(
    boxes: Boxes,
    chosen: Array,
    per_box: int,
    good: Array,
    keys: Array,
    rng: np.random.Generator,
) -> Sample:
    """Sobol points, perturbations, transfers and points on the bounds."""
    problem = boxes.problem
    slots = boxes.slots
    is_shared = problem.shared[slots.columns] & slots.free
    box = chosen.repeat(per_box)
    x = _sobol(slots, box, rng)
    samples = [Sample(x, box)]  # their X has values in slots
    place = np.arange(len(box)) % per_box
    if len(good):
        samples += _perturbed(boxes, max(per_box // 2, 1), good, keys, rng)
    if len(good) and is_shared.any():
        # The values of the best of all in the shared columns that a path has.
        few = place < max(1, per_box // 4)
        some = box[few]
        best = slots.snap(good[0][slots.columns[some]], some)
        moved = np.where(is_shared[some], best, x[few])
        samples.append(Sample(moved, some, np.ones_like(some)))
    if is_shared.any():
        few = place < max(1, per_box // 2)
        for inner in (samples[0].take(few), *samples[1:]):
            low = rng.random(inner.X.shape) < 0.5
            ends = np.where(low, slots.lower[inner.box], slots.upper[inner.box])
            moved = np.where(is_shared[inner.box], ends, inner.X)
            samples.append(Sample(moved, inner.box, inner.source + 2 + _NUM_SCALES))
    sample = join(samples)
    sample.X = slots.widen(sample.X, sample.box)
    return sample


def _perturbed(
    boxes: Boxes,
    per_box: int,
    good: Array,
    keys: Array,
    rng: np.random.Generator,
) -> list[Sample]:
    """Points around the good points of every box, near and far."""
    slots = boxes.slots
    values = boxes.problem.values
    number = dict(zip(boxes.keys.tolist(), range(len(boxes.keys)), strict=True))
    by_box: dict[int, list[int]] = {}
    for i, key in enumerate(keys.tolist()):
        if key in number:
            by_box.setdefault(number[key], []).append(i)
    if not by_box:
        return []
    turn = np.arange(per_box)
    turns = []
    for some in by_box.values():
        turns.append(np.array(some)[turn % len(some)])
    rows = np.concatenate(turns)
    box = np.array([*by_box]).repeat(per_box)
    lower = slots.lower[box]
    upper = slots.upper[box]
    columns = slots.columns[box]
    centre = good[rows[:, None], columns]
    least, most = _LOCAL_SCALES
    level = rng.random((len(rows), 1))
    scale = 10 ** (least + (most - least) * level)
    # With many columns, change few at a time.
    share = (3.0 / slots.free.sum(-1, keepdims=True).clip(min=1)).clip(min=0.25)
    moved = rng.random(columns.shape) < share[box]
    by = np.where(moved, scale * rng.standard_normal(columns.shape), 0.0)
    discrete = slots.discrete[box]
    if discrete.any():
        # A small move of a discrete column rounds to none: make few, but wide ones.
        wide = rng.random(columns.shape) < 0.3
        width = np.where(values.ordered[columns], 0.1, 1.0)
        by = np.where(discrete, np.where(wide, by * width / scale, 0.0), by)
    x = centre + by * (upper - lower)
    logs = slots.logarithmic[box]
    if logs.any():
        ratio = np.where(logs, upper / np.where(logs, lower, 1.0), 1.0)
        x = np.where(logs, centre * ratio**by, x)
    x = slots.snap(x.astype(lower.dtype), box)
    source = 2 + np.minimum(level[:, 0] * _NUM_SCALES, _NUM_SCALES - 1).astype(int)
    return [Sample(x, box, source)]


def _with_replacements(
    boxes: Boxes,
    sample: Sample,
    chosen: Array,
    per_box: int,
    rng: np.random.Generator,
) -> Sample:
    """More points for boxes in which none was admissible, but another one may be."""
    space = boxes.problem.space
    if space is not None and len(chosen):
        arrays = boxes.lower, boxes.upper, boxes.active
        forbidden = space.forbids(*map(torch.from_numpy, arrays)).numpy()
        chosen = chosen[~forbidden[chosen]]
    missing = chosen[~np.isin(chosen, sample.box)]
    if not len(missing):
        return sample
    # No more than 2^17 rows, whatever the number of boxes.
    n = min(64 * per_box, max(1, (1 << 17) // len(missing)))
    box = missing.repeat(n)
    X = boxes.slots.widen(_sobol(boxes.slots, box, rng), box)
    more = _admissible(boxes, Sample(X, box))
    parts = [sample, more]
    if boxes.problem.constraints:
        for b in missing[~np.isin(missing, more.box)][:8].tolist():
            parts.append(_polytope(boxes, b, per_box, rng))
    return join(parts)


def _polytope(
    boxes: Boxes,
    b: int,
    n: int,
    rng: np.random.Generator,
) -> Sample:
    """Points of a box in a thin feasible set, by hit and run."""
    free = boxes.free[b]
    lower = torch.from_numpy(boxes.lower[b])
    upper = torch.from_numpy(boxes.upper[b])
    constraints = [
        (torch.tensor(c.columns), c.coefficients, c.rhs)
        for c in boxes.problem.constraints
        if boxes.active[b, c.columns].all()
    ]
    still = torch.from_numpy(~free)
    one = torch.ones(1).to(lower)
    columns = still.nonzero()
    # a column that does not move is held by an equation, inside of its bounds
    equations = [(column, one, float(lower[column])) for column in columns]
    bounds = torch.stack([lower - still.to(lower), upper + still.to(lower)])
    seed = int(rng.integers(1 << 31))
    try:
        draws = get_polytope_samples(
            n,
            bounds,
            constraints,
            equations,
            seed=seed,
            n_burnin=200,
            n_thinning=8,
        )
    except (ValueError, InfeasibilityError):  # an empty polytope
        return Sample(boxes.lower[:0], np.zeros(0, dtype=np.int64))
    X = np.where(free, draws.numpy(), boxes.lower[b])
    X = boxes.problem.snap(X, free)
    return _admissible(boxes, Sample(X, np.full(n, b)))
