"""The search over paths: all of them at once, or, as the paper does, few first.

`Search` is the part that all optimisers share: their arguments, and the common search.
"""

from __future__ import annotations

__all__ = ["Search", "make_generator", "optimize_acqf_paths", "optimize_acqf_two_step"]

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import CandidateGenerationError
from botorch.exceptions.warnings import OptimizationWarning
from torch import Tensor

from botorch_structured.acquisition import (
    PathContextLogExpectedImprovement,
    PathExpectedImprovement,
    PathLogExpectedImprovement,
)
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
    MAX_PATHS,
    Feasible,
    Problem,
    check_acquisition,
    first_of_each,
    is_known,
    make_problem,
)
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import check_count, check_seed

# Candidates for each path by default, and for all of them together.
_PER_BOX, _IN_ALL = 64, 4096
# With too many paths to list: rounds in which decisions of the best are changed.
_ROUNDS, _PARENTS, _CHILDREN = 8, 16, 256
_POOL = 512
# Most draws that are discarded as known or inadmissible, in multiples of the points
# wanted.
_MAX_DRAWS = 64
_OF_PATHS = (
    PathContextLogExpectedImprovement,
    PathExpectedImprovement,
    PathLogExpectedImprovement,
)
# Sobol points for each path in a search of the columns that matter to paths.
_PER_PATH = 16


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
            CandidateGenerationError: All paths are to be avoided.
            ValueError: The arguments leave no path.
        """
        problem = self.problem
        seen = torch.cat([known, problem.good])
        boxes = path_boxes(problem, seen, self.generator)
        if not len(boxes):
            if len(problem.avoid_paths):
                raise CandidateGenerationError(
                    "Expected a path to search, got none: all that fixed_features, "
                    "categorical_features and bounds leave are among avoid_paths."
                )
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
        values = evaluator.values(sample.X)
        if evolve and self.problem.listed.num_paths > self.problem.max_paths:
            sample, values, boxes = self._evolve(
                evaluator, sample, values, boxes, known
            )
        by_box = _ranked(best_of_each(sample.box, values), values)
        starts = _starts(sample, values, by_box, self.num_restarts)
        here = boxes.take(sample.box[starts])
        X, refined = refine(evaluator, sample.X[starts], values[starts], here, known)
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


def optimize_acqf_paths(
    acq_function: AcquisitionFunction,
    bounds: Tensor | None = None,
    tree: ParameterTree | None = None,
    q: int = 1,
    num_restarts: int = 16,
    raw_samples: int | None = None,
    integer_features: Sequence[int] | None = None,
    categorical_features: Mapping[int, Sequence[float]] | None = None,
    fixed_features: Mapping[int, float] | None = None,
    inequality_constraints: Sequence[tuple[Tensor, Tensor, float]] | None = None,
    feasible: Feasible | None = None,
    X_avoid: Tensor | None = None,
    fill: float | Tensor | None = None,
    X_start: Tensor | None = None,
    min_distance: float = 0.0,
    seed: int | None = None,
    max_paths: int = MAX_PATHS,
    batch_limit: int | None = None,
    space: SearchSpace | None = None,
    avoid_paths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Maximise an acquisition function over every path of a tree at once.

    The default choice for spaces with decisions. All paths are scored in one batch, and
    the best candidates of several paths climb in one batch, so that one more path adds
    rows to it; ``botorch.optim.optimize_acqf_mixed`` runs an optimisation for each
    path, and `optimize_acqf_two_step` climbs on few paths only.

        >>> acqf = LogExpectedImprovement(model, best_f=train_Y.max())
        >>> X, value = optimize_acqf_paths(acqf, bounds, tree, X_avoid=train_X)

    A space with names, integers or forbidden combinations is best given as a whole::

        X, value = optimize_acqf_paths(acqf, space=space, X_avoid=train_X)
        config = space.decode(X)[0]

    Args:
        acq_function: Any acquisition function of ``b x 1 x d`` points: analytic ones,
            Monte Carlo ones, or those of this package. One-shot ones raise an error.
        bounds: ``2 x d`` lower and upper bounds. Decision values outside of them are
            not proposed.
        tree: Which columns are active where. With the tree of a `SearchSpace`
            (``space.tree``, and ``model.tree`` of a model that was given it), that
            space's integers, categories and restrictions hold besides those given here,
            and its fill values if none are given. Outcomes that the tree does not
            declare are proposed if ``categorical_features``, ``fixed_features`` or a
            point of ``X_avoid`` names them.
        q: The number of candidates. They are chosen one after the other, each with the
            earlier ones pending (``acq_function.set_X_pending``).
        num_restarts: How many candidates to climb from.
        raw_samples: Sobol points over all paths together, by default 64 for each path
            and no more than 4096. Points around those known to be good, and points with
            shared columns on the bounds, are added to them.
        integer_features: Columns with integer values.
        categorical_features: Column -> its admissible values. For a decision column:
            the values that may be proposed.
        fixed_features: Column -> its value wherever the column is active. A fixed
            decision leaves the paths on which it has that value (or is inactive).
        inequality_constraints: ``(indices, coefficients, rhs)`` as in BoTorch:
            ``sum_i coefficients[i] x[indices[i]] >= rhs``. A constraint binds on the
            paths on which all its columns are active, and on no other.
        feasible: ``m x d`` -> ``m`` booleans, for any other restriction. Points that it
            rejects are dropped, and a climb follows its border along the axes only, so
            give linear restrictions as ``inequality_constraints``.
        X_avoid: ``m x d`` known points. None is proposed again, compared on the
            active columns (the others may hold anything, NaN included); finite paths
            that are used up are skipped.
        fill: What inactive columns hold in the candidates: a number or ``d`` of them,
            by default 0.5.
        X_start: ``k x d`` points near which to search, the best first. By default the
            best training point of the model on every path.
        min_distance: Nearer than this to a point of ``X_avoid``, in widths of the
            bounds and in all continuous columns, nothing is proposed. Leave it at 0 for
            smooth objectives. For step functions (error counts) 0.01 avoids evaluations
            on a step whose value is known.
        seed: By default drawn from torch's global generator, so ``torch.manual_seed``
            makes the answer repeatable, too.
        max_paths: If there are more paths, so many random ones are searched, and one or
            two decisions of the best candidates at a time are then changed.
        batch_limit: Most rows in one call of the acquisition function, by default as
            many as memory allows.
        space: A `SearchSpace` in place of ``bounds``, ``tree``, ``integer_features``,
            ``categorical_features`` and ``fill``. What it forbids is never proposed,
            nor is what ``feasible`` rejects.
        avoid_paths: Keys of paths (``tree.path_key(X)``) on which nothing is proposed.

    Returns:
        ``q x d`` candidates and their acquisition values, as BoTorch's
        ``optimize_acqf(sequential=True)`` gives them: a number for ``q=1``, else ``q``
        of them, each given the earlier candidates.

    Raises:
        ValueError: An argument is not what it should be; no path is left by
            ``fixed_features``, ``categorical_features`` and ``bounds``.
        CandidateGenerationError: Nothing is left to propose: every admissible point
            is known, none was found that is feasible, or all paths are to be avoided.
    """
    search = Search(**locals())  # all arguments, by name

    def propose(known: Tensor) -> tuple[Tensor, Tensor]:
        return search.maximise(search.paths(known), known)

    return search.greedily(propose)


def optimize_acqf_two_step(
    path_acq_function: AcquisitionFunction,
    acq_function: AcquisitionFunction,
    bounds: Tensor | None = None,
    tree: ParameterTree | None = None,
    q: int = 1,
    num_restarts: int = 16,
    raw_samples: int | None = None,
    top_k: int = 1,
    integer_features: Sequence[int] | None = None,
    categorical_features: Mapping[int, Sequence[float]] | None = None,
    fixed_features: Mapping[int, float] | None = None,
    inequality_constraints: Sequence[tuple[Tensor, Tensor, float]] | None = None,
    feasible: Feasible | None = None,
    X_avoid: Tensor | None = None,
    fill: float | Tensor | None = None,
    X_start: Tensor | None = None,
    min_distance: float = 0.0,
    seed: int | None = None,
    max_paths: int = MAX_PATHS,
    batch_limit: int | None = None,
    fix_shared: bool = False,
    space: SearchSpace | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Choose paths by one acquisition function, points on them by another.

    For trees with too many leaves to score them all, and to reproduce the paper:
    section 3 of [Jenatton2017tree]_ maximises equation (6) over the path and its
    shared columns, and then expected improvement on that path (``top_k=1``, and
    ``fix_shared=True`` for its joint choice of both). Where all paths can be scored,
    `optimize_acqf_paths` finds better points: the first step may never return to a path
    whose first evaluations were bad. A larger ``top_k`` makes the two more similar.

        >>> optimize_acqf_two_step(
        ...     PathLogExpectedImprovement(model, best_f=train_Y.max()),
        ...     LogExpectedImprovement(model, best_f=train_Y.max()),
        ...     bounds, tree, X_avoid=train_X,
        ... )

    Args:
        path_acq_function: Chooses paths; e.g. `PathLogExpectedImprovement`. It is
            maximised over all columns; those of this package over the shared ones that
            they depend on.
        acq_function: Chooses the candidate on these paths.
        bounds: As in `optimize_acqf_paths`, like all arguments not described here.
        tree: Which columns are active where.
        q: The number of candidates.
        num_restarts: How many candidates to climb from, in each step.
        raw_samples: Sobol points, in each step. By default as in
            `optimize_acqf_paths`, and 16 for each path where few columns matter.
        top_k: The number of paths that the second step searches. If all points on them
            are known, the next ones are taken.
        integer_features: Columns with integer values.
        categorical_features: Column -> its admissible values.
        fixed_features: Column -> its value.
        inequality_constraints: Linear constraints in BoTorch's form.
        feasible: Any other restriction.
        X_avoid: Known points.
        fill: What inactive columns hold.
        X_start: Points near which to search.
        min_distance: How far from known points to stay, in widths of the bounds.
        seed: Makes the answer repeatable.
        max_paths: If there are more paths, so many random ones are searched.
        batch_limit: Most rows in one call of an acquisition function.
        fix_shared: Keep the shared columns that the first step chose.
        space: A `SearchSpace` in place of the arguments that describe one.

    Returns:
        ``q x d`` candidates and the values of ``acq_function``, shaped as by
        `optimize_acqf_paths`.

    Raises:
        ValueError: An argument is not what it should be.
        CandidateGenerationError: Nothing is left to propose.
    """
    check_acquisition(path_acq_function, "path_acq_function")
    if isinstance(acq_function, _OF_PATHS):
        raise ValueError(
            "acq_function: expected one that tells the points of a path apart, got "
            f"{type(acq_function).__name__}: give it as path_acq_function, the first."
        )
    check_count("top_k", top_k)
    if not isinstance(fix_shared, bool):
        raise ValueError(f"fix_shared: expected True or False, got {fix_shared!r}.")
    search = Search(**locals())  # all arguments, by name
    problem, first = search.problem, Evaluator(path_acq_function, batch_limit)

    matters = _columns_that_matter(path_acq_function, problem)

    def ranked(every: Boxes, known: Tensor) -> tuple[Boxes, Tensor]:
        """Paths and the points on them by which they are ranked, the best first."""
        if matters is None:
            found, _ = search.maximise(every, known, first, ranks=True)
        else:
            # whether all points of a path are known is for the second step to find out
            held = every.pin(~matters, every.lower)
            listed = problem.listed.num_paths <= problem.max_paths
            if listed and not held.free.any():  # one point on each path
                values = first.values(held.lower)
                order = values.argsort(descending=True, stable=True)
                return every.take(order), held.lower[order]
            found, _ = search.maximise(
                held, known[:0], first, per_box=_PER_PATH, ranks=True
            )
        X = found[first_of_each(problem.tree.path_key(found))]
        return boxes_at(problem, X)[0], X

    def propose(known: Tensor) -> tuple[Tensor, Tensor]:
        paths, X = ranked(search.paths(known), known)
        if fix_shared:
            paths = paths.pin(problem.shared, X)
        for i in range(0, len(paths), top_k):
            few = paths.take(slice(i, i + top_k))
            found = search.maximise(few, known, evolve=False)
            if len(found[0]):
                return found
        return known[:0], known.new_zeros(0)

    return search.greedily(propose)


def _columns_that_matter(
    acq_function: AcquisitionFunction, problem: Problem
) -> Tensor | None:
    """``d`` booleans, or None where restrictions or the function involve any column."""
    kinds = (PathExpectedImprovement, PathLogExpectedImprovement)
    if type(acq_function) not in kinds or problem.is_restricted:
        return None
    columns = getattr(acq_function.model, "path_columns", None)
    if columns is None:
        return None
    matters = torch.zeros_like(problem.shared)
    matters[[*columns, *problem.tree.numeric_decisions]] = True
    return matters
