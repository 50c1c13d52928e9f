"""The search itself: candidates in every box, one call, then climb from the best."""

from __future__ import annotations

__all__ = ["Found", "Settings", "search"]

from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_structured.optim.boxes import Boxes, boxes_at, random_rows
from botorch_structured.optim.evaluation import Evaluator
from botorch_structured.optim.known import is_known
from botorch_structured.optim.problem import Problem
from botorch_structured.optim.raw import Sample, all_candidates, raw_candidates
from botorch_structured.optim.refine import refine

# Candidates for each path by default, and for all of them together.
_PER_BOX, _IN_ALL = 64, 4096
# Where paths are too many to list: rounds in which decisions of the best change.
_ROUNDS, _PARENTS, _CHILDREN = 8, 16, 256
_POOL = 512


@dataclass(frozen=True)
class Settings:
    """How thoroughly to search.

    Args:
        num_restarts: Candidates to climb from.
        raw_samples: Sobol points in all boxes together, ``None``: 64 in each, as long
            as these are not too many.
    """

    num_restarts: int
    raw_samples: int | None

    def per_box(self, num_boxes: int) -> int:
        """Sobol points for each box."""
        if self.raw_samples is None:
            return max(4, min(_PER_BOX, _IN_ALL // max(num_boxes, 1)))
        return max(1, -(-self.raw_samples // max(num_boxes, 1)))


@dataclass(frozen=True)
class Found:
    """New and admissible points, the best first.

    Args:
        X: ``n x d`` points.
        values: ``n`` acquisition values.
        boxes: ``n`` boxes they lie in.
    """

    X: Tensor
    values: Tensor
    boxes: Boxes


def search(
    problem: Problem,
    evaluator: Evaluator,
    boxes: Boxes,
    settings: Settings,
    good: Tensor,
    known: Tensor,
    generator: torch.Generator,
    evolve: bool = False,
) -> Found:
    """Maximise an acquisition function over boxes.

    Args:
        problem: The space.
        evaluator: The acquisition function.
        boxes: The boxes, at least one.
        settings: How thoroughly.
        good: ``k x d`` points to look around, the best first.
        known: ``m x d`` points not to be returned.
        generator: A CPU generator.
        evolve: Also change the decisions of the best candidates; for spaces with more
            paths than boxes.

    Returns:
        The points found; none where everything admissible is known.
    """
    sample = raw_candidates(
        problem,
        boxes,
        settings.per_box(len(boxes)),
        good,
        _boxes_of(problem, boxes, good),
        generator,
    )
    sample = _unknown(problem, boxes, sample, known)
    if not len(sample.X):
        sample = _unknown(problem, boxes, all_candidates(problem, boxes), known)
    if not len(sample.X):
        return Found(sample.X, sample.X.new_zeros(0), boxes.take(sample.box))
    with evaluator.frozen():
        values = evaluator.values(sample.X)
        if evolve:
            sample, values, boxes = _evolve(
                problem, evaluator, sample, values, boxes, known, generator
            )
        starts = _starts(sample, values, settings.num_restarts)
        X, refined = refine(
            problem,
            evaluator,
            sample.X[starts],
            values[starts],
            boxes.take(sample.box[starts]),
            known,
        )
    pool = values.topk(min(_POOL, len(values))).indices
    # One more of each box, so that none is lost from the ranking of paths.
    pool = torch.cat([pool, _best_of_each(sample.box, values)])
    X = torch.cat([X, sample.X[pool]])
    values = torch.cat([refined, values[pool]])
    box = torch.cat([sample.box[starts], sample.box[pool]])
    order = values.argsort(descending=True, stable=True)
    order = order[~is_known(problem, X[order], known)]
    return Found(X[order], values[order], boxes.take(box[order]))


def _unknown(problem: Problem, boxes: Boxes, sample: Sample, known: Tensor) -> Sample:
    """The candidates without those that are known."""
    if not len(known):
        return sample
    if problem.min_distance:
        return sample.take(~is_known(problem, sample.X, known))
    # Where something moves continuously none meets a known point by chance.
    free = boxes.free.clone()
    free[:, list(problem.grids)] = False
    rows = (~free.any(-1))[sample.box].nonzero().squeeze(-1)
    keep = torch.ones(len(sample.X), dtype=torch.bool, device=sample.X.device)
    keep[rows] = ~is_known(problem, sample.X[rows], known)
    return sample.take(keep)


def _boxes_of(problem: Problem, boxes: Boxes, rows: Tensor) -> Tensor:
    """The number of the box whose path each row is on, -1 for none."""
    place = {
        key: b for b, key in enumerate(problem.tree.path_key(boxes.lower).tolist())
    }
    keys = problem.tree.path_key(rows).tolist()
    return torch.tensor(
        [place.get(k, -1) for k in keys], dtype=torch.long, device=rows.device
    )


def _best_of_each(group: Tensor, values: Tensor) -> Tensor:
    """Of every group the row with the largest value, the best group first."""
    order = values.argsort(descending=True, stable=True)
    by_group = order[group[order].argsort(stable=True)]
    first = torch.ones_like(by_group, dtype=torch.bool)
    first[1:] = group[by_group][1:] != group[by_group][:-1]
    best = by_group[first]
    return best[values[best].argsort(descending=True, stable=True)]


def _starts(sample: Sample, values: Tensor, num_restarts: int) -> Tensor:
    """The candidates to climb from.

    Of each path and each source (far, near, nearer, on the bounds) the best one at
    most: neighbours of the very best would all climb the same hill. Half of the starts
    are the best of these, the others the best of each path.
    """
    n_sources = int(sample.source.max()) + 1
    group = sample.box * n_sources + sample.source
    diverse = _best_of_each(group, values)
    paths = _best_of_each(sample.box, values)
    half = (num_restarts + 1) // 2
    chosen: dict[int, None] = dict.fromkeys(diverse[:half].tolist())
    for rest in (paths, diverse, values.topk(min(num_restarts, len(values))).indices):
        for i in rest[:num_restarts].tolist():
            if len(chosen) < num_restarts:
                chosen.setdefault(i)
    index = torch.tensor(list(chosen), device=values.device)
    return index[values[index].argsort(descending=True, stable=True)]


def _evolve(
    problem: Problem,
    evaluator: Evaluator,
    sample: Sample,
    values: Tensor,
    boxes: Boxes,
    known: Tensor,
    generator: torch.Generator,
) -> tuple[Sample, Tensor, Boxes]:
    """Change one or two decisions of the best candidates, again and again."""
    decisions = problem.tree.decision_columns
    device = values.device
    for _ in range(_ROUNDS):
        best = values.topk(min(_PARENTS, len(values))).indices
        pick = torch.randint(len(best), (_CHILDREN,), generator=generator)
        chosen = best[pick.to(device)]
        parent, had = sample.X[chosen], boxes.active[sample.box[chosen]]
        other = random_rows(problem, _CHILDREN, generator)
        swap = torch.zeros_like(parent, dtype=torch.bool)
        for count in (_CHILDREN, _CHILDREN // 2):
            col = torch.randint(len(decisions), (count,), generator=generator)
            swap[torch.arange(count), torch.tensor(decisions)[col]] = True
        child = torch.where(swap, other, parent)
        more, ok = boxes_at(problem, child)
        more, parent, had = more.take(ok), parent[ok], had[ok]
        noise = torch.rand(parent.shape, generator=generator, dtype=torch.double)
        span = more.upper - more.lower
        # What the parent has too is inherited, the rest is drawn.
        inherited = had & (parent >= more.lower) & (parent <= more.upper)
        X = torch.where(inherited, parent, more.lower + noise.to(span) * span)
        X = problem.snap(X, more.free)
        ok = problem.admissible(X, more.active) & ~is_known(problem, X, known)
        more = more.take(ok)
        X = X[ok]
        if not len(X):
            continue
        new_box = len(boxes) + torch.arange(len(X), device=device)
        boxes = boxes.join(more)
        sample = Sample(
            torch.cat([sample.X, X]),
            torch.cat([sample.box, new_box]),
            torch.cat([sample.source, torch.zeros_like(new_box)]),
        )
        values = torch.cat([values, evaluator.values(X)])
    return sample, values, boxes
