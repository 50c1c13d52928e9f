"""Where to look first: points in every box, before any gradient."""

from __future__ import annotations

__all__ = ["Sample", "all_candidates", "raw_candidates", "sample_boxes"]

from dataclasses import dataclass

import torch
from botorch.exceptions.errors import InfeasibilityError
from botorch.utils.sampling import get_polytope_samples
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_structured.optim.boxes import Boxes
from botorch_structured.optim.problem import Problem

# Distances, as powers of ten of the width of the box, at which points known to be good
# are perturbed: a noise-free optimum of expected improvement may be 1e-5 from them.
_LOCAL_SCALES = (-5.0, -0.5)
_NUM_SCALES = 3
_RETRIES = 3
_MAX_LISTED = 1 << 16


@dataclass(frozen=True)
class Sample:
    """Candidates, the box each lies in, and the source each comes from.

    Args:
        X: ``n x d`` points.
        box: ``n`` numbers of boxes.
        source: ``n`` integers; starts for the refinement are taken from each.
    """

    X: Tensor
    box: Tensor
    source: Tensor

    def take(self, index: Tensor) -> Sample:
        """The candidates at ``index``."""
        return Sample(self.X[index], self.box[index], self.source[index])


def _join(samples: list[Sample]) -> Sample:
    return Sample(
        torch.cat([s.X for s in samples]),
        torch.cat([s.box for s in samples]),
        torch.cat([s.source for s in samples]),
    )


def _sized(problem: Problem, boxes: Boxes) -> dict[int, tuple[Tensor, Tensor]]:
    """First position and number of positions of every discrete column in every box."""
    found = {}
    for col, grid in problem.grids.items():
        first = grid.position(boxes.lower[:, col])
        size = grid.position(boxes.upper[:, col]) - first + 1
        found[col] = (first, torch.where(boxes.free[:, col], size, 1.0))
    return found


def _counts(boxes: Boxes, sizes: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
    """The number of points in every box, infinite where a column is continuous."""
    continuous = boxes.free.clone()
    continuous[:, list(sizes)] = False
    count = torch.ones(len(boxes), dtype=torch.double, device=boxes.lower.device)
    for _, size in sizes.values():
        count *= size
    return torch.where(continuous.any(-1), torch.inf, count)


def all_candidates(problem: Problem, boxes: Boxes) -> Sample:
    """Every admissible point of the finite boxes that can be listed.

    For the end of a search, when samples of them meet known points only.
    """
    sizes = _sized(problem, boxes)
    finite = (_counts(boxes, sizes) <= _MAX_LISTED).nonzero().view(-1)
    none = torch.zeros(0, dtype=torch.long, device=boxes.lower.device)
    samples = [Sample(boxes.lower[:0], none, none)]
    samples += [_listed(problem, boxes, b, sizes) for b in finite]
    sample = _join(samples)
    return sample.take(problem.admissible(sample.X, boxes.active[sample.box]))


def sample_boxes(problem: Problem, boxes: Boxes, box: Tensor, U: Tensor) -> Tensor:
    """Points of the unit cube, carried to boxes.

    Args:
        problem: The discrete columns.
        boxes: The boxes.
        box: ``n`` numbers of boxes.
        U: ``n x d`` numbers in [0, 1].

    Returns:
        ``n x d`` points; discrete columns at admissible values, each equally likely.
    """
    here = boxes.take(box)
    X = torch.lerp(here.lower, here.upper, U)
    X = torch.minimum(torch.maximum(X, here.lower), here.upper)
    free = here.free
    for col, grid in problem.grids.items():
        first = grid.position(here.lower[:, col])
        size = grid.position(here.upper[:, col]) - first + 1
        step = torch.minimum((U[:, col] * size).floor(), size - 1).clamp_min(0)
        # Columns that do not move may hold something else than a grid value.
        value = grid.value(torch.where(free[:, col], first + step, 0.0))
        X[:, col] = torch.where(free[:, col], value, X[:, col])
    return X


def raw_candidates(
    problem: Problem,
    boxes: Boxes,
    per_box: int,
    good: Tensor,
    good_box: Tensor,
    generator: torch.Generator,
) -> Sample:
    """Candidates in every box, all of them admissible.

    Small finite boxes are listed. Others get Sobol points; half as many perturbations
    of the good points in them at distances spread over five orders of magnitude; points
    that share what they can with the best of all; and copies of some of these with
    shared columns on the bounds, where linear effects have their optimum.

    Args:
        problem: The space.
        boxes: ``P`` boxes.
        per_box: Sobol points for each box.
        good: ``k x d`` points worth searching around, the best first.
        good_box: ``k`` numbers of the boxes they lie in, -1 for none of them.
        generator: A CPU generator.

    Returns:
        The candidates. Boxes without an admissible point have none.
    """
    sizes = _sized(problem, boxes)
    small = _counts(boxes, sizes) <= 4 * per_box
    samples = [_listed(problem, boxes, b, sizes) for b in small.nonzero().view(-1)]
    large = (~small).nonzero().squeeze(-1)
    if len(large):
        samples.append(
            _spread(problem, boxes, large, per_box, good, good_box, generator)
        )
    sample = _join(samples)
    if problem.constraints or problem.feasible is not None:
        ok = problem.admissible(sample.X, boxes.active[sample.box])
        sample = _with_replacements(
            problem, boxes, sample.take(ok), large, per_box, generator
        )
    return sample


def _listed(
    problem: Problem, boxes: Boxes, b: Tensor, sizes: dict[int, tuple[Tensor, Tensor]]
) -> Sample:
    """Every point of a finite box."""
    X = boxes.lower[b].unsqueeze(0)
    for col, (first, size) in sizes.items():
        n = int(size[b])
        if n == 1:
            continue
        steps = torch.arange(n, dtype=X.dtype, device=X.device)
        values = problem.grids[col].value(first[b] + steps)
        X = X.repeat_interleave(n, 0)
        X[:, col] = values.repeat(len(X) // n)
    zero = torch.zeros(len(X), dtype=torch.long, device=X.device)
    return Sample(X, zero + b, zero)


def _uniform(
    shape: tuple[int, ...], like: Tensor, generator: torch.Generator
) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.double).to(like)


def _sobol(
    n: int, problem: Problem, boxes: Boxes, generator: torch.Generator
) -> Tensor:
    """``n x d`` numbers; only columns that move in some box are drawn."""
    columns = boxes.free.any(0).nonzero().squeeze(-1)
    U = boxes.lower.new_zeros(n, problem.tree.dim)
    seed = int(torch.randint(1 << 31, (1,), generator=generator))
    k = len(columns)
    if 0 < k <= SobolEngine.MAXDIM:
        draw = SobolEngine(k, scramble=True, seed=seed).draw(n, dtype=torch.double)
        U[:, columns] = draw.to(U)
    elif k:
        U[:, columns] = _uniform((n, k), U, generator)
    return U


def _spread(
    problem: Problem,
    boxes: Boxes,
    chosen: Tensor,
    per_box: int,
    good: Tensor,
    good_box: Tensor,
    generator: torch.Generator,
) -> Sample:
    """Sobol points, perturbations, transfers and points on the bounds."""
    box = chosen.repeat_interleave(per_box)
    U = _sobol(len(box), problem, boxes, generator)
    parts = [Sample(sample_boxes(problem, boxes, box, U), box, torch.zeros_like(box))]
    rank = torch.arange(len(box), device=box.device) % per_box
    if len(good):
        local = _perturbed(problem, boxes, per_box // 2, good, good_box, generator)
        if local is not None:
            parts.append(local)
        some = parts[0].take(rank < max(1, per_box // 4))
        # The best of all, as far as a path has its columns.
        shared = problem.shared & boxes.free[some.box]
        here = boxes.take(some.box)
        best = torch.minimum(torch.maximum(good[0], here.lower), here.upper)
        X = torch.where(shared, problem.snap(best, here.free), some.X)
        parts.append(Sample(X, some.box, torch.full_like(some.source, 1)))
    if problem.shared.any():
        for k, part in enumerate(list(parts)):
            some = part.take(rank < max(1, per_box // 2)) if k == 0 else part
            here = boxes.take(some.box)
            end = _uniform(tuple(some.X.shape), some.X, generator) < 0.5
            bound = torch.where(end, here.lower, here.upper)
            X = torch.where(problem.shared & here.free, bound, some.X)
            parts.append(Sample(X, some.box, some.source + 2 + _NUM_SCALES))
    return _join(parts)


def _perturbed(
    problem: Problem,
    boxes: Boxes,
    per_box: int,
    good: Tensor,
    good_box: Tensor,
    generator: torch.Generator,
) -> Sample | None:
    """Points around the good points of every box, near and far."""
    rows: list[int] = []
    by_box: dict[int, list[int]] = {}
    for i, b in enumerate(good_box.tolist()):
        if b >= 0:
            by_box.setdefault(b, []).append(i)
    per_box = max(per_box, 1)
    for members in by_box.values():
        rows += [members[i % len(members)] for i in range(per_box)]
    if not rows:
        return None
    index = torch.tensor(rows, device=good.device)
    box = good_box[index]
    here = boxes.take(box)
    free = here.free
    lo, hi = _LOCAL_SCALES
    level = _uniform((len(index), 1), good, generator)
    scale = 10 ** (lo + (hi - lo) * level)
    shape = tuple(here.lower.shape)
    noise = torch.randn(shape, generator=generator, dtype=torch.double).to(good)
    # Few columns at a time where there are many.
    share = (3.0 / free.sum(-1, keepdim=True).clamp_min(1)).clamp_min(0.25)
    moved = _uniform(shape, good, generator) < share
    noise = torch.where(moved, noise, torch.zeros_like(noise))
    for col, grid in problem.grids.items():
        # Small moves of a discrete column are none: make few, but wide ones.
        wide = _uniform((len(index),), good, generator) < 0.3
        width = 1.0 if not grid.ordered else 0.1
        noise[:, col] *= torch.where(wide, width / scale[:, 0], 0.0)
    X = good[index] + scale * noise * (here.upper - here.lower)
    X = torch.minimum(torch.maximum(X, here.lower), here.upper)
    X = problem.snap(X, free)
    source = 2 + (level[:, 0] * _NUM_SCALES).floor().long().clamp_max(_NUM_SCALES - 1)
    return Sample(X, box, source)


def _with_replacements(
    problem: Problem,
    boxes: Boxes,
    sample: Sample,
    chosen: Tensor,
    per_box: int,
    generator: torch.Generator,
) -> Sample:
    """More points for boxes in which none was admissible."""
    for attempt in range(_RETRIES):
        missing = chosen[~torch.isin(chosen, sample.box)]
        if not len(missing):
            return sample
        # No more than 2^17 rows at a time, whatever the number of boxes.
        n = min(per_box * 4 ** (attempt + 1), max(1, (1 << 17) // len(missing)))
        box = missing.repeat_interleave(n)
        U = _sobol(len(box), problem, boxes, generator)
        more = Sample(sample_boxes(problem, boxes, box, U), box, torch.zeros_like(box))
        ok = problem.admissible(more.X, boxes.active[more.box])
        sample = _join([sample, more.take(ok)])
    missing = chosen[~torch.isin(chosen, sample.box)]
    if problem.constraints and len(missing):
        found = [
            _polytope(problem, boxes, int(b), per_box, generator) for b in missing[:8]
        ]
        sample = _join([sample, *(f for f in found if f is not None)])
    return sample


def _polytope(
    problem: Problem, boxes: Boxes, b: int, n: int, generator: torch.Generator
) -> Sample | None:
    """Points of a box in a thin feasible set, by hit and run."""
    columns = boxes.free[b].nonzero().squeeze(-1)
    place = {int(c): i for i, c in enumerate(columns)}
    constraints = []
    for c in problem.constraints:
        moving = [i for i, col in enumerate(c.columns) if col in place]
        if not moving or not boxes.active[b, c.columns].all():
            continue
        held = [i for i in range(len(c.columns)) if i not in moving]
        rest = sum(
            float(c.coefficients[i] * boxes.lower[b, c.columns[i]]) for i in held
        )
        index = torch.tensor([place[c.columns[i]] for i in moving])
        constraints.append((index, c.coefficients[moving], c.rhs - rest))
    if not constraints:
        return None
    bounds = torch.stack([boxes.lower[b, columns], boxes.upper[b, columns]])
    seed = int(torch.randint(1 << 31, (1,), generator=generator))
    try:
        draws = get_polytope_samples(
            n, bounds, constraints, seed=seed, n_burnin=200, n_thinning=8
        )
    except (ValueError, InfeasibilityError):  # an empty polytope
        return None
    X = boxes.lower[b].repeat(n, 1)
    X[:, columns] = draws.to(X)
    box = torch.full((n,), b, dtype=torch.long, device=X.device)
    free = boxes.free[b].expand_as(X)
    X = problem.snap(X, free)
    ok = problem.admissible(X, boxes.active[box])
    return Sample(X, box, torch.zeros_like(box)).take(ok) if ok.any() else None
