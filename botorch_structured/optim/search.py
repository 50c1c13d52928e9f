"""The part that all optimisers share: their arguments, and the search over paths."""

from __future__ import annotations

__all__ = ["Search", "make_generator"]

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import CandidateGenerationError
from botorch.exceptions.warnings import OptimizationWarning
from torch import Tensor

from botorch_structured.optim.boxes import (
    Boxes,
    Sample,
    all_candidates,
    boxes_at,
    path_boxes,
    random_rows,
    raw_candidates,
    uniform,
    whole_box,
)
from botorch_structured.optim.climb import Evaluator, best_of_each, refine
from botorch_structured.optim.problem import (
    check_acquisition,
    first_of_each,
    is_known,
    make_problem,
)
from botorch_structured.spaces.arguments import check_count, check_seed

# Candidates for each path by default, and for all of them together.
_PER_BOX, _IN_ALL = 64, 4096
# With too many paths to list: rounds in which decisions of the best are changed.
_ROUNDS, _PARENTS, _CHILDREN = 8, 16, 256
_POOL = 512
# Most draws that are discarded as known or inadmissible, in multiples of the points
# wanted.
_MAX_DRAWS = 64


def make_generator(seed: int | None) -> torch.Generator:
    """A CPU generator; without a seed, seeded by torch's global one."""
    seed = check_seed(seed)
    if seed is None:
        seed = int(torch.randint(1 << 31, (1,)))
    return torch.Generator().manual_seed(seed)


class Search:
    """The arguments that the optimisers share, checked, and their common search.

    An optimiser calls ``Search(**locals())`` before it assigns anything: its arguments
    have the names of those here, of `make_problem` and of its own, which are ignored.

    Args:
        acq_function: The acquisition function.
        q: The number of candidates.
        num_restarts: How many points to climb from.
        raw_samples: Sobol points in all boxes together (default: 64 in each, up to a
            limit), or random points.
        batch_limit: Most rows in one call of the acquisition function.
        seed: The seed; None: drawn from torch's global generator.
        path_acq_function: Another acquisition function that has points pending.
        **arguments: Arguments of `make_problem`.

    Raises:
        ValueError: For arguments that are not valid.
    """

    def __init__(
        self,
        acq_function: AcquisitionFunction,
        q: int = 1,
        num_restarts: int = 1,
        raw_samples: int | None = None,
        batch_limit: int | None = None,
        seed: int | None = None,
        path_acq_function: AcquisitionFunction | None = None,
        **arguments: Any,
    ) -> None:
        check_acquisition(acq_function, "acq_function")
        self.q = check_count("q", q)
        if self.q > 1 and not hasattr(acq_function, "X_pending"):
            raise ValueError(
                "acq_function: expected one that takes pending points, such as "
                f"qLogExpectedImprovement, for q={q}, got "
                f"{type(acq_function).__name__}."
            )
        self._told: list[Any] = [
            a for a in (path_acq_function, acq_function) if hasattr(a, "X_pending")
        ]
        self.problem = make_problem(
            acq_function=acq_function,
            pending=[a.X_pending for a in self._told],
            **arguments,
        )
        self.num_restarts = check_count("num_restarts", num_restarts)
        if raw_samples is not None:
            check_count("raw_samples", raw_samples)
        self.raw_samples = raw_samples
        self.evaluator = Evaluator(acq_function, batch_limit)
        self.generator = make_generator(seed)

    def greedily(
        self, propose: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Choose ``q`` candidates one after the other, the earlier ones pending.

        Acquisition functions get the pending points if they have ``set_X_pending``;
        afterwards their own pending points are restored.

        Args:
            propose: Maps ``m x d`` known points to points and their values, of which
                the best is taken; no points where nothing is left.

        Returns:
            ``q x d`` candidates, and a number (``q=1``) or ``q`` values.
        """
        known = self.problem.known
        before = [a.X_pending for a in self._told]
        X, values = known[:0], []
        try:
            for k in range(self.q):
                if k:
                    for acqf, pending in zip(self._told, before, strict=True):
                        acqf.set_X_pending(
                            X if pending is None else torch.cat([pending.to(X), X])
                        )
                found, worth = propose(torch.cat([known, X]))
                if not len(found):
                    why = f"{len(known) + k} points are known or pending"
                    if self.problem.is_restricted:
                        why += "; no other point satisfying feasible and the "
                        why += "constraints was found"
                    if self.problem.fixed:
                        why += f"; fixed_features hold {self.problem.fixed}"
                    raise CandidateGenerationError(
                        f"Expected a path with a new point to propose, got none: {why}."
                    )
                best = worth.argmax()
                value = worth[best]
                if bool(value == -math.inf):
                    warnings.warn(
                        "The acquisition function is NaN or -inf wherever it was "
                        "evaluated: the candidate is an arbitrary point. Look at the "
                        "model's posterior.",
                        OptimizationWarning,
                        stacklevel=3,
                    )
                X = torch.cat([X, found[best : best + 1]])
                values.append(value)
        finally:
            if self.q > 1:
                for acqf, pending in zip(self._told, before, strict=True):
                    acqf.set_X_pending(pending)
        return X, values[0] if self.q == 1 else torch.stack(values)

    def paths(self, known: Tensor) -> Boxes:
        """The boxes of all paths (of many, if there are too many).

        Raises:
            ValueError: The arguments leave no path.
        """
        problem = self.problem
        seen = torch.cat([known, problem.good])
        boxes = path_boxes(problem, seen, self.generator)
        if not len(boxes):
            raise ValueError(
                "fixed_features, categorical_features, bounds: expected to leave at "
                f"least one path of the tree, got fixed_features={problem.fixed}, "
                f"bounds={problem.bounds.tolist()} for decisions "
                f"{problem.tree.decision_values}."
            )
        return boxes

    def maximise(
        self,
        boxes: Boxes,
        known: Tensor,
        evaluator: Evaluator | None = None,
        evolve: bool = True,
        per_box: int = _PER_BOX,
        ranks: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Maximise the acquisition function over boxes.

        Args:
            boxes: The boxes, at least one.
            known: ``m x d`` points not to be returned.
            evaluator: Another acquisition function.
            evolve: Whether to change decisions of the best candidates, too, where there
                are more paths than ``max_paths``.
            per_box: Sobol points in each box where ``raw_samples`` is not given.
            ranks: Whether the best point of every box is wanted, not only of all.

        Returns:
            ``n x d`` points and their ``n`` values, the best first, the best of all
            among them; none where everything admissible is known.
        """
        evaluator = evaluator or self.evaluator
        raw = self.raw_samples
        sample = self._sample(boxes, raw, known, per_box)
        if not len(sample.X):
            return sample.X, sample.X.new_zeros(0)
        with evaluator.frozen():
            values = evaluator.values(sample.X)
            if evolve and self.problem.listed.num_paths > self.problem.max_paths:
                sample, values, boxes = self._evolve(
                    evaluator, sample, values, boxes, known
                )
            by_box = _ranked(best_of_each(sample.box, values), values)
            starts = _starts(sample, values, by_box, self.num_restarts)
            here = boxes.take(sample.box[starts])
            X, refined = refine(
                evaluator, sample.X[starts], values[starts], here, known
            )
        if not ranks:
            found = self._new(X, refined, known)
            # as a rule: the first start is the best of the sample
            if len(found[0]) and found[1][0] >= values[starts[0]]:
                return found
        pool = values.topk(min(_POOL, len(values))).indices
        rows = torch.cat([pool, by_box])
        X = torch.cat([X, sample.X[rows]])
        return self._new(X, torch.cat([refined, values[rows]]), known)

    def _new(self, X: Tensor, values: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """The points that are not known, the best first."""
        order = _ranked(torch.arange(len(X), device=X.device), values)
        order = order[~is_known(self.problem, X[order], known)]
        return X[order], values[order]

    def random(self, n: int, known: Tensor) -> Tensor:
        """Different random points that may be proposed.

        Args:
            n: The number of points drawn, repeated ones counted.
            known: ``m x d`` points that are not returned.

        Returns:
            At most ``n x d`` points in random order, uniform in the whole space. Where
            no draw can be proposed, the candidates of the search over all paths, and no
            points if nothing is left.

        Raises:
            ValueError: The arguments leave no path.
        """
        problem, space = self.problem, whole_box(self.problem)
        found: list[Tensor] = []
        missing, size, drawn = n, n, 0
        while missing > 0 and drawn < _MAX_DRAWS * n:
            U = uniform((size, problem.tree.dim), problem.bounds, self.generator)
            X = space.draw(torch.zeros(size, dtype=torch.long, device=U.device), U)
            active = problem.tree.active_mask(X)
            X = torch.where(active, X, problem.fill)
            found.append(X[problem.is_new(X, active, known)][:missing])
            missing -= len(found[-1])
            drawn += size
            size = min(2 * size, _MAX_DRAWS * n - drawn)
        X = torch.cat(found)
        if not len(X):
            # The feasible set is thin, or nearly all points are known.
            X = self._sample(self.paths(known), None, known, around=False).X
            X = X[~is_known(problem, X, known)]
        _, group = X.unique(dim=0, return_inverse=True)
        return X[first_of_each(group)]

    def _sample(
        self,
        boxes: Boxes,
        raw_samples: int | None,
        known: Tensor,
        per_box: int = _PER_BOX,
        around: bool = True,
    ) -> Sample:
        """Candidates without those that are known; all there are, if none is left."""
        num = len(boxes)
        if raw_samples is None:
            per_box = max(4, min(per_box, _IN_ALL // num))
        else:
            per_box = -(-raw_samples // num)
        good = self.problem.good if around else known[:0]
        sample = raw_candidates(boxes, per_box, good, self.generator)
        sample = self._unknown(boxes, sample, known)
        if len(sample.X):
            return sample
        return self._unknown(boxes, all_candidates(boxes), known)

    def _unknown(self, boxes: Boxes, sample: Sample, known: Tensor) -> Sample:
        """The candidates without those that are known."""
        if not len(known):
            return sample
        if self.problem.min_distance:
            return sample.take(~is_known(self.problem, sample.X, known))
        # A random value of a continuous column equals a known one with probability 0.
        finite = ~boxes.continuous.any(-1)
        if not finite.any():
            return sample
        rows = finite[sample.box].nonzero().squeeze(-1)
        keep = torch.ones(len(sample.X), dtype=torch.bool, device=sample.X.device)
        keep[rows] = ~is_known(self.problem, sample.X[rows], known)
        return sample.take(keep)

    def _evolve(
        self,
        evaluator: Evaluator,
        sample: Sample,
        values: Tensor,
        boxes: Boxes,
        known: Tensor,
    ) -> tuple[Sample, Tensor, Boxes]:
        """Change one or two decisions of the best candidates, again and again."""
        problem, generator = self.problem, self.generator
        decisions = torch.tensor(problem.tree.decision_columns)
        for _ in range(_ROUNDS):
            best = values.topk(min(_PARENTS, len(values))).indices
            pick = torch.randint(len(best), (_CHILDREN,), generator=generator)
            chosen = best[pick.to(best)]
            parent, had = sample.X[chosen], boxes.active[sample.box[chosen]]
            other = random_rows(problem, _CHILDREN, generator)
            swap = torch.zeros_like(parent, dtype=torch.bool)
            for count in (_CHILDREN, _CHILDREN // 2):
                col = torch.randint(len(decisions), (count,), generator=generator)
                swap[torch.arange(count), decisions[col]] = True
            more, ok = boxes_at(problem, torch.where(swap, other, parent))
            more, parent, had = more.take(ok), parent[ok], had[ok]
            U = uniform(tuple(parent.shape), parent, generator)
            # Columns that the parent has, too, are inherited; the others are drawn.
            inherited = had & (parent >= more.lower) & (parent <= more.upper)
            drawn = more.draw(torch.arange(len(more), device=U.device), U)
            X = problem.snap(torch.where(inherited, parent, drawn), more.free)
            ok = problem.admissible(X, more.active) & ~is_known(problem, X, known)
            if not ok.any():
                continue
            X, more = X[ok], more.take(ok)
            new_box = len(boxes) + torch.arange(len(X), device=X.device)
            boxes = boxes.join(more)
            sample = Sample.join([sample, Sample.spread(X, new_box)])
            values = torch.cat([values, evaluator.values(X)])
        return sample, values, boxes


def _ranked(index: Tensor, values: Tensor) -> Tensor:
    """``index``, that with the largest value first."""
    # NumPy sorts small arrays in a fraction of the time
    order = (-values[index].cpu().numpy()).argsort(kind="stable")
    return index[torch.from_numpy(order).to(index.device)]


def _starts(
    sample: Sample, values: Tensor, by_box: Tensor, num_restarts: int
) -> Tensor:
    """The candidates to climb from.

    Of each path and each source (far, near, nearer, on the bounds) the best one at
    most: neighbours of the best one would all reach the same maximum. Half of the
    starts are the best of these, the others the best of each path.

    Args:
        sample: The candidates.
        values: Their values.
        by_box: The best one of each path, the best of all first.
        num_restarts: How many are wanted.
    """
    group = sample.box * (int(sample.source.max()) + 1) + sample.source
    diverse = _ranked(best_of_each(group, values), values)
    half = (num_restarts + 1) // 2
    chosen: dict[int, None] = dict.fromkeys(diverse[:half].tolist())

    def add(rest: Tensor) -> None:
        for i in rest[:num_restarts].tolist():
            if len(chosen) < num_restarts:
                chosen.setdefault(i)

    add(by_box)
    add(diverse)
    if len(chosen) < num_restarts:
        add(values.topk(min(num_restarts, len(values))).indices)
    return _ranked(torch.tensor(list(chosen), device=values.device), values)
