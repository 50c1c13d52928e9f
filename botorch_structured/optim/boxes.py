"""The space as boxes, and the first candidates in each of them.

On a path the inactive columns hold the fill value, decisions hold the values of the
path, and the other columns move between bounds. So a path is a box, with zero width in
inactive columns and decisions, and points on different paths are points in different
boxes: one tensor, one call of the acquisition function. The whole space is a box, too
(`whole_box`), in which decisions move like any other discrete column; a point of it is
a point of the space once its inactive columns hold the fill value.
"""

from __future__ import annotations

__all__ = [
    "Boxes",
    "Sample",
    "all_candidates",
    "boxes_at",
    "path_boxes",
    "project",
    "random_rows",
    "raw_candidates",
    "uniform",
    "whole_box",
]

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from botorch.exceptions.errors import InfeasibilityError
from botorch.utils.sampling import get_polytope_samples
from torch import Tensor
from torch.nn.functional import pad
from torch.quasirandom import SobolEngine

from botorch_structured.linalg.block_low_rank import positions
from botorch_structured.optim.problem import Problem, Values, first_of_each

# Distances, as powers of ten of the width of the box, at which points known to be good
# are perturbed: without noise the optimum of expected improvement may be at 1e-5.
_LOCAL_SCALES = (-5.0, -0.5)
_NUM_SCALES = 3
_RETRIES = 3
_MAX_LISTED = 1 << 16


@dataclass(frozen=True)
class Boxes:
    """The values that each column may have, in ``P`` parts of the space.

    Args:
        problem: The space.
        lower: ``P x d`` smallest values.
        upper: ``P x d`` largest values.
        active: ``P x d`` booleans: the active columns of the part.
    """

    problem: Problem
    lower: Tensor
    upper: Tensor
    active: Tensor

    def __len__(self) -> int:
        return len(self.lower)

    @cached_property
    def free(self) -> Tensor:
        """``P x d`` booleans: the columns that can move."""
        return self.upper > self.lower

    @cached_property
    def continuous(self) -> Tensor:
        """``P x d`` booleans: the columns that move continuously."""
        return self.free & ~self.problem.values.discrete

    @cached_property
    def moving(self) -> Tensor:
        """The columns that can move in any of the boxes."""
        return self.free.any(0).nonzero().squeeze(-1)

    @cached_property
    def counted(self) -> Tensor:
        """``P x d`` booleans: the columns that move among discrete values."""
        return self.free & self.problem.values.discrete

    @cached_property
    def positions(self) -> tuple[Tensor, Tensor]:
        """``P x d`` positions of the smallest and of the largest values."""
        position = self.problem.values.position
        return position(self.lower), position(self.upper)

    @cached_property
    def counts(self) -> Tensor:
        """The number of points in every box, infinite where a column is continuous."""
        first, last = self.positions
        size = torch.where(self.free, last - first + 1, 1).double().prod(-1)
        return torch.where(self.continuous.any(-1), torch.inf, size)

    def take(self, index: Tensor | slice) -> Boxes:
        """The boxes at ``index``."""
        lower, upper, active = self.lower[index], self.upper[index], self.active[index]
        return Boxes(self.problem, lower, upper, active)

    def join(self, other: Boxes) -> Boxes:
        """These boxes, then the others."""
        return Boxes(
            self.problem,
            torch.cat([self.lower, other.lower]),
            torch.cat([self.upper, other.upper]),
            torch.cat([self.active, other.active]),
        )

    def pin(self, columns: Tensor, X: Tensor) -> Boxes:
        """The boxes with the active ones of some columns held at the values of ``X``.

        Args:
            columns: ``d`` booleans.
            X: ``P x d``, one row for each box.
        """
        held = columns & self.active
        lower = torch.where(held, X, self.lower)
        upper = torch.where(held, X, self.upper)
        return Boxes(self.problem, lower, upper, self.active)

    def clip(self, X: Tensor) -> Tensor:
        """The nearest points of the boxes to ``P x d`` ones, one in each box."""
        return X.clamp(self.lower, self.upper)

    def draw(self, box: Tensor, U: Tensor) -> Tensor:
        """Points of the unit cube, carried to boxes.

        Args:
            box: ``n`` numbers of boxes.
            U: ``n x d`` numbers in [0, 1].

        Returns:
            ``n x d`` points; discrete columns at admissible values, each equally
            likely.
        """
        values, lower, upper = self.problem.values, self.lower[box], self.upper[box]
        X = torch.lerp(lower, upper, U).clamp(lower, upper)
        # Columns that do not move may hold a value that is not admissible.
        if self.counted.any():
            first, last = (p[box] for p in self.positions)
            size = last - first + 1
            step = torch.minimum((U * size).floor(), size - 1)
            X = torch.where(self.counted[box], values.value(first + step), X)
            logs = self.free[box] & values.logarithmic
            if logs.any():  # as `IntegerColumn.draw`
                low, high = (first - 0.5).log(), (last + 0.5).log()
                drawn = torch.lerp(low, high, U).exp().round()
                X = torch.where(logs, drawn.clamp(lower, upper), X)
        return X

    def holding(self, X: Tensor) -> Tensor:
        """The number of the box whose path each row is on, -1 for none."""
        keys = self.problem.tree.path_key(self.lower).tolist()
        number = {key: b for b, key in enumerate(keys)}
        found = [number.get(key, -1) for key in self.problem.tree.path_key(X).tolist()]
        return torch.tensor(found, dtype=torch.long, device=X.device)


def whole_box(problem: Problem) -> Boxes:
    """The whole space as one box, decisions included.

    The admissible values of a parameter do not depend on the others; whether it is
    active does. Columns without an admissible value hold any declared number: points
    where one of them is active are not proposed.
    """
    some = problem.fill.clone()
    for col, values in problem.listed.decision_values.items():
        if col not in problem.listed.numeric_decisions:
            some[col] = values[0]
    lower = torch.where(problem.empty, some, problem.lower).unsqueeze(0)
    upper = torch.where(problem.empty, some, problem.upper).unsqueeze(0)
    return Boxes(problem, lower, upper, torch.ones_like(lower, dtype=torch.bool))


def project(space: Boxes, X: Tensor) -> Tensor:
    """The nearest points of the whole space; points on paths outside of it are dropped.

    Args:
        space: `whole_box`.
        X: ``k x d`` points, inactive columns at the fill value.

    Returns:
        At most ``k x d`` points.
    """
    problem = space.problem
    near = problem.impute(problem.snap(space.clip(X), space.free))
    return near[problem.tree.path_key(near) == problem.tree.path_key(X)]


def boxes_at(problem: Problem, rows: Tensor) -> tuple[Boxes, Tensor]:
    """The boxes of the paths that some rows are on.

    Args:
        problem: Bounds, discrete columns, fixed features.
        rows: ``n x d`` points, of which only the decisions are used.

    Returns:
        The boxes, and ``n`` booleans: which rows have one. Rows have none where a
        fixed feature, a bound or the list of a categorical rules their path out, or
        where it is to be avoided.
    """
    tree = problem.tree
    codes, active, keys = tree.locate(rows)
    lower, upper = (e.repeat(len(rows), 1) for e in (problem.lower, problem.upper))
    place = {col: k for k, col in enumerate(tree.decision_columns)}
    for col in tree.numeric_decisions:
        outcomes = rows.new_tensor(tree.decision_values[col])
        low, high = outcomes[codes[:, place[col]].clamp_min(0)].unbind(-1)
        lower[:, col] = torch.maximum(lower[:, col], low)
        upper[:, col] = torch.minimum(upper[:, col], high)
    if columns := tree.decisions_by_value:
        # The declared value, not one within the tolerance of it; an undeclared one,
        # whose code is one past the last, is itself.
        lists = [tree.decision_values[col] for col in columns]
        width = 1 + max(map(len, lists))
        padded = [[*some, *[torch.inf] * (width - len(some))] for some in lists]
        code = codes[:, [place[col] for col in columns]].clamp_min(0)
        declared = rows.new_tensor(padded).gather(1, code.mT).mT
        value = torch.where(declared.isinf(), rows[:, columns], declared)
        lower[:, columns] = upper[:, columns] = value
    lower, upper = problem.values.inside(lower, upper)
    lower = torch.where(active, lower, problem.fill)
    upper = torch.where(active, upper, problem.fill)
    ok = (lower <= upper).all(-1)
    if len(problem.avoid_paths):
        ok &= ~torch.isin(keys, problem.avoid_paths)
    return Boxes(problem, lower, upper, active), ok


def path_boxes(problem: Problem, seen: Tensor, generator: torch.Generator) -> Boxes:
    """The boxes of the paths to be searched; none if all are ruled out.

    All declared paths, or ``max_paths`` random ones if there are more. The paths of
    known points are included, since only these have undeclared values.

    Args:
        problem: The space.
        seen: ``m x d`` points whose paths are to be included.
        generator: Draws the random paths.
    """
    if problem.listed.num_paths <= problem.max_paths:
        rows = problem.listed.path_points.to(problem.bounds)
    else:
        rows = random_rows(problem, problem.max_paths, generator)
        seen = seen[-problem.max_paths :]
    rows = torch.cat([rows, seen])
    boxes, ok = boxes_at(problem, rows[first_of_each(problem.tree.path_key(rows))])
    return boxes.take(ok)


def random_rows(problem: Problem, n: int, generator: torch.Generator) -> Tensor:
    """``n`` points on random paths, with fixed decisions at their fixed values."""
    rows = problem.listed.random_paths(n, generator, problem.bounds)
    rows = rows.to(problem.bounds)
    for col, value in problem.fixed.items():
        rows[:, col] = value
    return rows


class Sample(NamedTuple):
    """Candidates, the box each lies in, and the source each comes from.

    Args:
        X: ``n x d`` points.
        box: ``n`` numbers of boxes.
        source: ``n`` integers, 0 for points spread over the box. Starts of the
            refinement are taken from each source.
    """

    X: Tensor
    box: Tensor
    source: Tensor

    @classmethod
    def spread(cls, X: Tensor, box: Tensor) -> Sample:
        """Candidates all over the boxes, source 0."""
        return cls(X, box, torch.zeros_like(box))

    @classmethod
    def join(cls, samples: list[Sample]) -> Sample:
        """All candidates, one sample after the other."""
        if len(samples) == 1:
            return samples[0]
        return cls(*map(torch.cat, zip(*samples, strict=True)))

    def take(self, index: Tensor) -> Sample:
        """The candidates at ``index``."""
        return Sample(*(part[index] for part in self))


def _admissible(boxes: Boxes, sample: Sample) -> Sample:
    """The candidates that satisfy the constraints and ``feasible``."""
    if not boxes.problem.is_restricted:
        return sample
    return sample.take(boxes.problem.admissible(sample.X, boxes.active[sample.box]))


def _listed(boxes: Boxes, chosen: Tensor) -> list[Sample]:
    """Every point of each of the chosen boxes, which are finite."""
    if not len(chosen):
        return []
    free = boxes.free[chosen].any(-1)
    single = chosen[~free]
    samples = [Sample.spread(boxes.lower[single], single)] if len(single) else []
    first, last = boxes.positions
    for b in chosen[free]:
        position = first[b].unsqueeze(0)
        for col in boxes.problem.discrete:
            if boxes.free[b, col]:
                n = int(last[b, col] - first[b, col]) + 1
                position = position.repeat_interleave(n, 0)
                steps = torch.arange(n, dtype=first.dtype, device=first.device)
                position[:, col] += steps.repeat(len(position) // n)
        X = boxes.problem.values.value(position)
        X = torch.where(boxes.free[b], X, boxes.lower[b])
        samples.append(Sample.spread(X, b.expand(len(X))))
    return samples


def all_candidates(boxes: Boxes) -> Sample:
    """Every admissible point of the finite boxes that can be listed.

    For the end of a search, when all random points in them are known.
    """
    finite = (boxes.counts <= _MAX_LISTED).nonzero().view(-1)
    none = Sample.spread(boxes.lower[:0], finite[:0])
    return _admissible(boxes, Sample.join([none, *_listed(boxes, finite)]))


def raw_candidates(
    boxes: Boxes, per_box: int, good: Tensor, generator: torch.Generator
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
        generator: A CPU generator.

    Returns:
        The candidates. Boxes without an admissible point have none.
    """
    counts = boxes.counts.cpu().numpy()
    small, large = (
        torch.from_numpy(which.nonzero()[0]).to(good.device)
        for which in (counts <= 4 * per_box, counts > 4 * per_box)
    )
    samples = _listed(boxes, small)
    if len(large):
        samples.append(_spread(boxes, large, per_box, good, generator))
    sample = _admissible(boxes, Sample.join(samples))
    if boxes.problem.is_restricted:
        sample = _with_replacements(boxes, sample, large, per_box, generator)
    return sample


def uniform(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform numbers in [0, 1), the same on every device."""
    return torch.rand(shape, generator=generator, dtype=torch.double).to(like)


def _sobol(boxes: Boxes, box: Tensor, generator: torch.Generator) -> Sample:
    """A Sobol point in each of ``n`` boxes; only columns that move are drawn."""
    n, k, like = len(box), len(boxes.moving), boxes.lower
    seed = int(torch.randint(1 << 31, (1,), generator=generator))
    if 0 < k <= SobolEngine.MAXDIM:
        draw = SobolEngine(k, scramble=True, seed=seed).draw(n, dtype=torch.double)
        U = draw.to(like)
    else:
        U = uniform((n, k), like, generator)
    if k < like.shape[-1]:
        U = like.new_zeros(n, like.shape[-1]).index_copy_(-1, boxes.moving, U)
    return Sample.spread(boxes.draw(box, U), box)


@dataclass(frozen=True)
class _Slots:
    """Boxes by the few columns that move in them: ``K`` slots, not ``d`` columns.

    With one path for each learner of many, nearly all columns of a point are inactive:
    with 64 learners of four columns a search takes 0.7 of the time by slots.
    A discrete column has the same slot in all boxes; the continuous columns of each box
    share the others.

    Args:
        columns: ``P x K`` columns; one that does not move where a slot is not used.
        boxes: The boxes, ``P x K``.
        any_shared: Whether a column is active on several paths.
        shared: ``P x K`` booleans: such columns that move.
    """

    columns: Tensor
    boxes: Boxes
    any_shared: bool
    shared: Tensor

    @classmethod
    def of(cls, full: Boxes) -> _Slots:
        """The slots of some boxes."""
        problem, free, continuous = full.problem, full.free, full.continuous
        moving = free.any(0).tolist()
        discrete = [c for c in problem.discrete if moving[c]]
        # a column that does not move, where a box has fewer than others
        still = continuous.clone()
        still[:, discrete] = True
        still = still.to(torch.uint8).argmin(-1, keepdim=True)
        places = positions(continuous)[:, : int(continuous.sum(-1).max())]
        places = torch.where(places < full.lower.shape[-1], places, still)
        named = torch.tensor(discrete, dtype=torch.long, device=free.device)
        columns = torch.cat([named.expand(len(full), -1), places], dim=-1)
        values, width = problem.values.take(named), places.shape[-1]
        none = free.new_zeros(width)
        values = Values(
            torch.cat([values.whole, none]),
            torch.cat([values.logarithmic, none]),
            torch.cat([values.listed, none]),
            torch.cat([values.ordered, none]),
            pad(values.table, (0, 0, 0, width), value=torch.inf),
        )
        narrow = replace(problem, values=values, discrete=list(range(len(discrete))))
        parts = (full.lower, full.upper, full.active)
        boxes = Boxes(narrow, *(part.gather(-1, columns) for part in parts))
        shared = problem.shared[columns]
        return cls(columns, boxes, bool(shared.any()), shared & boxes.free)

    @cached_property
    def share(self) -> Tensor:
        """``P x 1``: which share of its columns a perturbation changes."""
        # With many columns, change few at a time.
        count = self.boxes.free.sum(-1, keepdim=True).clamp_min(1)
        return (3.0 / count).clamp_min(0.25)

    def widen(self, sample: Sample, lower: Tensor) -> Sample:
        """Candidates in all columns, where those of slots are known.

        Args:
            sample: Candidates in slots.
            lower: What boxes hold in columns that do not move, ``P x d``.
        """
        X = lower[sample.box]
        X = X.scatter_(-1, self.columns[sample.box], sample.X)
        return Sample(X, sample.box, sample.source)


def _spread(
    boxes: Boxes, chosen: Tensor, per_box: int, good: Tensor, generator: torch.Generator
) -> Sample:
    """Sobol points, perturbations, transfers and points on the bounds."""
    slots = _Slots.of(boxes)
    problem, narrow = slots.boxes.problem, slots.boxes
    parts = [_sobol(narrow, chosen.repeat_interleave(per_box), generator)]
    moves = bool(slots.shared.any())

    def first(count: int) -> Sample:
        """So many of the Sobol points in each box."""
        every = (t.unflatten(0, (len(chosen), per_box)) for t in parts[0])
        return Sample(*(t[:, :count].flatten(0, 1) for t in every))

    def with_shared(sample: Sample, values: Tensor) -> Tensor:
        """Candidates with other values in the shared columns that move."""
        return torch.where(slots.shared[sample.box], values, sample.X)

    if len(good):
        local = _perturbed(slots, per_box // 2, good, boxes.holding(good), generator)
        if local is not None:
            parts.append(local)
        some = first(max(1, per_box // 4))
        X = some.X
        if moves:  # The values of the best of all in the columns that a path has.
            here = narrow.take(some.box)
            best = here.clip(good[0][slots.columns[some.box]])
            X = with_shared(some, problem.snap(best, here.free))
        parts.append(Sample(X, some.box, torch.ones_like(some.source)))
    if slots.any_shared:
        for k, some in enumerate(list(parts)):
            some = first(max(1, per_box // 2)) if k == 0 else some
            X = some.X
            end = uniform(tuple(X.shape), X, generator) < 0.5
            if moves:
                lower, upper = narrow.lower[some.box], narrow.upper[some.box]
                X = with_shared(some, torch.where(end, lower, upper))
            parts.append(Sample(X, some.box, some.source + 2 + _NUM_SCALES))
    return slots.widen(Sample.join(parts), boxes.lower)


def _perturbed(
    slots: _Slots,
    per_box: int,
    good: Tensor,
    good_box: Tensor,
    generator: torch.Generator,
) -> Sample | None:
    """Points around the good points of every box, near and far."""
    boxes, problem = slots.boxes, slots.boxes.problem
    by_box: dict[int, list[int]] = {}
    for i, b in enumerate(good_box.tolist()):
        if b >= 0:
            by_box.setdefault(b, []).append(i)
    per_box = max(per_box, 1)
    rows: list[int] = []
    for mine in by_box.values():  # again and again
        rows += (mine * (per_box // len(mine) + 1))[:per_box]
    if not rows:
        return None
    # an array of NumPy is made of a list in a fraction of the time
    index = torch.from_numpy(np.array(rows)).to(good.device)
    box = good_box[index]
    lower, upper, free = boxes.lower[box], boxes.upper[box], boxes.free[box]
    centre = good[index.unsqueeze(-1), slots.columns[box]]
    lo, hi = _LOCAL_SCALES
    level = uniform((len(index), 1), good, generator)
    scale = 10 ** (lo + (hi - lo) * level)
    shape = tuple(lower.shape)
    noise = torch.randn(shape, generator=generator, dtype=torch.double).to(good)
    moved = uniform(shape, good, generator) < slots.share[box]
    noise = torch.where(moved, noise, 0.0)
    if problem.discrete:
        # A small move of a discrete column rounds to none: make few, but wide ones.
        columns = problem.discrete
        wide = uniform((len(columns), len(index)), good, generator).mT < 0.3
        width = torch.where(problem.values.ordered[columns], 0.1, 1.0).to(good)
        noise[:, columns] *= torch.where(wide, width / scale, 0.0)
    moved_by = scale * noise
    X = centre + moved_by * (upper - lower)
    logs = free & problem.values.logarithmic
    if logs.any():
        X = torch.where(logs, centre * (upper / lower) ** moved_by, X)
    X = problem.snap(X.clamp(lower, upper), free)
    source = 2 + (level[:, 0] * _NUM_SCALES).floor().long().clamp_max(_NUM_SCALES - 1)
    return Sample(X, box, source)


def _with_replacements(
    boxes: Boxes,
    sample: Sample,
    chosen: Tensor,
    per_box: int,
    generator: torch.Generator,
) -> Sample:
    """More points for boxes in which none was admissible, but another one may be."""
    space = boxes.problem.tree.space
    if space is not None:
        forbidden = space.forbids(boxes.lower, boxes.upper, boxes.active)
        chosen = chosen[~forbidden[chosen]]
    for attempt in range(_RETRIES):
        missing = chosen[~torch.isin(chosen, sample.box)]
        if not len(missing):
            return sample
        # No more than 2^17 rows at a time, whatever the number of boxes.
        n = min(per_box * 4 ** (attempt + 1), max(1, (1 << 17) // len(missing)))
        more = _sobol(boxes, missing.repeat_interleave(n), generator)
        sample = Sample.join([sample, _admissible(boxes, more)])
    missing = chosen[~torch.isin(chosen, sample.box)]
    if boxes.problem.constraints and len(missing):
        found = [_polytope(boxes, int(b), per_box, generator) for b in missing[:8]]
        sample = Sample.join([sample, *(f for f in found if f is not None)])
    return sample


def _polytope(
    boxes: Boxes, b: int, n: int, generator: torch.Generator
) -> Sample | None:
    """Points of a box in a thin feasible set, by hit and run."""
    problem, lower, upper = boxes.problem, boxes.lower[b], boxes.upper[b]
    columns = boxes.free[b].nonzero().squeeze(-1)
    place = {int(c): i for i, c in enumerate(columns)}
    constraints = []
    for c in problem.constraints:
        moving = [i for i, col in enumerate(c.columns) if col in place]
        if not moving or not boxes.active[b, c.columns].all():
            continue
        held = [i for i in range(len(c.columns)) if i not in moving]
        rest = sum(float(c.coefficients[i] * lower[c.columns[i]]) for i in held)
        index = torch.tensor([place[c.columns[i]] for i in moving])
        constraints.append((index, c.coefficients[moving], c.rhs - rest))
    if not constraints:
        return None
    bounds = torch.stack([lower[columns], upper[columns]])
    seed = int(torch.randint(1 << 31, (1,), generator=generator))
    try:
        draws = get_polytope_samples(
            n, bounds, constraints, seed=seed, n_burnin=200, n_thinning=8
        )
    except (ValueError, InfeasibilityError):  # an empty polytope
        return None
    X = lower.repeat(n, 1)
    X[:, columns] = draws.to(X)
    X = problem.snap(X, boxes.free[b].expand_as(X))
    box = torch.full((n,), b, dtype=torch.long, device=X.device)
    return _admissible(boxes, Sample.spread(X, box))
