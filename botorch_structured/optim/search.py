"""The search itself: candidates in every box, one call, then climb from the best."""

from __future__ import annotations

__all__ = [
    "Found",
    "Settings",
    "boxes_to_search",
    "good_points",
    "greedily",
    "make_generator",
    "make_settings",
    "nothing_left",
    "promising_points",
    "search",
]

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.objective import IdentityMCObjective
from botorch.exceptions.errors import CandidateGenerationError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.posteriors.fully_bayesian import MCMC_DIM
from torch import Tensor

from botorch_structured.optim.boxes import Boxes, boxes_at, path_rows, random_rows
from botorch_structured.optim.evaluation import Evaluator
from botorch_structured.optim.problem import Problem, check_points, is_known
from botorch_structured.optim.raw import Sample, all_candidates, raw_candidates
from botorch_structured.optim.refine import refine
from botorch_structured.spaces.arguments import check_count, check_seed

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


# ----------------------------------------------------------------------
# Points worth searching around: the best ones that the model was trained on.

_MAX_ROWS = 2048


def promising_points(problem: Problem, acq_function: AcquisitionFunction) -> Tensor:
    """The best training point of every path, the best of all first.

    Args:
        problem: The space.
        acq_function: Its model, objective and direction say what is best.

    Returns:
        ``k x d`` points; none if the acquisition function has no model with one table
        of training points.
    """
    d = problem.tree.dim
    nothing = problem.bounds.new_zeros(0, d)
    model = getattr(acq_function, "model", None)
    X = _training_points(model)
    if X is None or X.dim() != 2 or X.shape[-1] != d or not len(X):
        return nothing
    X = X.detach().to(problem.bounds)
    with torch.no_grad():
        score = _score(acq_function, model, X)
    if score is None:
        return nothing
    order = score.to(X.device).argsort(descending=True, stable=True)
    keys = problem.tree.path_key(X[order]).tolist()
    first: dict[int, int] = {}
    for i, key in enumerate(keys):
        first.setdefault(key, i)
    best = torch.tensor(list(first.values()), device=X.device)
    return problem.tree.impute(X[order[best]], problem.fill)


def _training_points(model: Any) -> Tensor | None:
    """The training points as they were given, before any input transform."""
    original = getattr(model, "_original_train_inputs", None)
    if isinstance(original, Tensor) and not model.training:
        return _of_one_sample(model, original, ndim=2)
    inputs = getattr(model, "train_inputs", None)
    if not inputs or not isinstance(inputs[0], Tensor):
        return None
    return _of_one_sample(model, inputs[0], ndim=2)


def _of_one_sample(model: Any, values: Tensor, ndim: int) -> Tensor:
    """An ensemble holds its data once for each of its members."""
    if getattr(model, "_is_ensemble", False):
        while values.dim() > ndim:
            values = values[0]
    return values


def _score(acq_function: AcquisitionFunction, model: Any, X: Tensor) -> Tensor | None:
    """How good every training point is, larger is better."""
    sign = 1.0 if getattr(acq_function, "maximize", True) else -1.0
    transform = getattr(acq_function, "posterior_transform", None)
    objective = getattr(acq_function, "objective", None)
    plain = transform is None and isinstance(objective, IdentityMCObjective | None)
    targets = getattr(model, "train_targets", None)
    if isinstance(targets, Tensor):
        targets = _of_one_sample(model, targets, ndim=1)
    if plain and isinstance(targets, Tensor) and targets.shape == X.shape[:1]:
        return sign * targets
    if len(X) > _MAX_ROWS:
        return None
    # Any posterior transform and objective apply to the mean; one point a batch, as a
    # joint covariance is not needed.
    posterior = model.posterior(X.unsqueeze(-2), posterior_transform=transform)
    mean = posterior.mean
    if getattr(model, "_is_ensemble", False):
        mean = mean.mean(dim=MCMC_DIM)
    score = mean if objective is None else objective(mean, X.unsqueeze(-2))
    score = score.reshape(len(X), -1)
    return sign * score[:, 0] if score.shape[-1] == 1 else None


# ----------------------------------------------------------------------
# What the optimisers share once their arguments are checked.


def make_settings(num_restarts: int, raw_samples: int | None) -> Settings:
    """The checked effort of a search."""
    if raw_samples is not None:
        check_count("raw_samples", raw_samples)
    return Settings(check_count("num_restarts", num_restarts), raw_samples)


def make_generator(seed: int | None) -> torch.Generator:
    """A CPU generator; without a seed, seeded by torch's global one."""
    seed = check_seed(seed)
    if seed is None:
        seed = int(torch.randint(1 << 31, (1,)))
    return torch.Generator().manual_seed(seed)


def good_points(
    problem: Problem, acq_function: AcquisitionFunction, X_start: Tensor | None
) -> Tensor:
    """``k x d`` points to look around, the best first."""
    if X_start is None:
        return promising_points(problem, acq_function)
    X_start = check_points("X_start", X_start, problem.tree, problem.bounds)
    return problem.tree.impute(X_start, problem.fill)


def boxes_to_search(
    problem: Problem, seen: Tensor, generator: torch.Generator
) -> Boxes:
    """The boxes of all paths (of many, if there are too many).

    Raises:
        ValueError: The arguments leave no path.
    """
    boxes, ok = boxes_at(problem, path_rows(problem, seen, generator))
    if not ok.any():
        raise ValueError(
            "fixed_features, categorical_features, bounds: expected to leave at least "
            f"one path of the tree, got fixed_features={problem.fixed}, "
            f"bounds={problem.bounds.tolist()} for decisions "
            f"{problem.tree.decision_values}."
        )
    return boxes.take(ok.nonzero().squeeze(-1))


def nothing_left(problem: Problem, known: Tensor) -> CandidateGenerationError:
    """The error for a space without a new admissible point."""
    why = f"{len(known)} points are known or pending"
    if problem.feasible is not None or problem.constraints:
        why += "; no other point satisfying feasible and the constraints was found"
    return CandidateGenerationError(
        f"Expected a path with a new point to propose, got none: {why}."
    )


def _told_if_worthless(x: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    if bool(value == -math.inf):
        warnings.warn(
            "The acquisition function is NaN or -inf wherever it was evaluated: the "
            "candidate is an arbitrary point. Look at the model's posterior.",
            OptimizationWarning,
            stacklevel=4,
        )
    return x, value


def greedily(
    problem: Problem,
    acq_functions: list[AcquisitionFunction],
    q: int,
    propose: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Choose ``q`` candidates one after the other, the earlier ones pending.

    Args:
        problem: The space.
        acq_functions: Told of the pending points if they can be, the last one must;
            afterwards they are as they were.
        q: How many.
        propose: Maps ``m x d`` known points to ``1 x d`` and its value.

    Returns:
        ``q x d`` candidates, and a number (``q=1``) or ``q`` values.
    """
    last = acq_functions[-1]
    if q > 1 and not hasattr(last, "X_pending"):
        raise ValueError(
            "acq_function: expected one that takes pending points, such as "
            f"qLogExpectedImprovement, for q={q}, got {type(last).__name__}."
        )
    told = [a for a in acq_functions if hasattr(a, "X_pending")]
    before: list[Any] = [a.X_pending for a in told]
    known = problem.known
    for pending in before:
        if isinstance(pending, Tensor):
            flat = pending.reshape(-1, pending.shape[-1])
            flat = check_points("X_pending", flat, problem.tree, known)
            known = torch.cat([known, problem.tree.impute(flat, problem.fill)])
    if q == 1:
        return _told_if_worthless(*propose(known))
    candidates: list[Tensor] = []
    values = []
    try:
        for _ in range(q):
            x, value = _told_if_worthless(*propose(known))
            candidates.append(x)
            values.append(value)
            known = torch.cat([known, x])
            batch = torch.cat(candidates)
            for acqf, pending in zip(told, before, strict=True):
                acqf.set_X_pending(
                    batch if pending is None else torch.cat([pending.to(batch), batch])
                )
    finally:
        for acqf, pending in zip(told, before, strict=True):
            acqf.set_X_pending(pending)
    return torch.cat(candidates), torch.stack(values)
