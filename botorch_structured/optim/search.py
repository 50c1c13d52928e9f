"""The search over paths: all of them at once, or, as the paper does, few first.

`Search` is the part that all optimisers share.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
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
    raw_candidates,
    whole_box,
)
from botorch_structured.optim.climb import PATIENCE, Evaluator
from botorch_structured.optim.problem import (
    MAX_PATHS,
    Array,
    Feasible,
    KnownPoints,
    Problem,
    check_acquisition,
    first_of_each,
)
from botorch_structured.optim.walk import (
    Neighbourhood,
    best_of_each,
    refine,
    slots_of,
    walk,
)
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import check_count, check_seed

# Most neighbours of the points that change decisions, but of one at least.
_MOST_NEIGHBOURS = 480
# Sobol points on each path by default.
_PER_BOX = 64


def make_rng(seed: int | None) -> np.random.Generator:
    """Random numbers; without a seed, seeded by torch's global generator."""
    seed = check_seed(seed)
    if seed is None:
        seed = int(torch.randint(1 << 31, (1,)))
    return np.random.default_rng(seed % (1 << 64))


class Search:
    """The search that the optimisers share.

    Args:
        problem: Where candidates may lie.
        acq_function: The acquisition function.
        q: The number of candidates.
        num_restarts: How many points to climb from.
        raw_samples: Sobol points in all boxes together (default: 64 in each, up to a
            limit), or random points.
        seed: The seed; None: drawn from torch's global generator.
        path_acq_function: Another acquisition function that has points pending.

    Raises:
        ValueError: For arguments that are not valid.
    """

    def __init__(
        self,
        problem: Problem,
        acq_function: AcquisitionFunction,
        q: int,
        num_restarts: int = 1,
        raw_samples: int | None = None,
        seed: int | None = None,
        path_acq_function: AcquisitionFunction | None = None,
    ) -> None:
        self.problem = problem
        self.q = check_count("q", q)
        if self.q > 1 and not hasattr(acq_function, "X_pending"):
            raise ValueError(
                "acq_function: expected one that takes pending points, such as "
                f"qLogExpectedImprovement, for q={q}, got "
                f"{type(acq_function).__name__}."
            )
        self.num_restarts = check_count("num_restarts", num_restarts)
        if raw_samples is not None:
            check_count("raw_samples", raw_samples)
        self.raw_samples = raw_samples
        self.evaluator = Evaluator(acq_function, problem.device)
        self.rng = make_rng(seed)
        # those that are told what is pending, and what they have pending themselves
        self._told: list[tuple[Any, Tensor | None]] = []
        told: Any
        for told in (path_acq_function, acq_function):
            if hasattr(told, "X_pending"):
                self._told.append((told, told.X_pending))

    def greedily(
        self, propose: Callable[[KnownPoints], tuple[Array, Array]]
    ) -> tuple[Tensor, Tensor]:
        """Choose ``q`` candidates one after the other, the earlier ones pending.

        Acquisition functions get the pending points if they have ``set_X_pending``;
        afterwards their own pending points are restored.

        Args:
            propose: Maps points to avoid to points and their values, of which the best
                is taken; no points where nothing is left.

        Returns:
            ``q x d`` candidates, and a number (``q=1``) or ``q`` values.
        """
        problem = self.problem
        avoid = KnownPoints(problem, problem.X_avoid)
        chosen = problem.X_avoid[:0]
        values = []
        try:
            for k in range(self.q):
                if k:
                    both = np.concatenate([problem.X_avoid, chosen])
                    avoid = KnownPoints(problem, both)
                    new = problem.tensor(chosen)
                    for acqf, pending in self._told:
                        before = new[:0] if pending is None else pending.to(new)
                        acqf.set_X_pending(torch.cat([before, new]))
                X, worth = propose(avoid)
                if not len(X):
                    raise CandidateGenerationError(self._why_nothing(len(avoid.X)))
                best = worth.argmax()
                if worth[best] == -np.inf:
                    warnings.warn(
                        "The acquisition function is NaN or -inf wherever it was "
                        "evaluated: the candidate is an arbitrary point. Look at the "
                        "model's posterior.",
                        OptimizationWarning,
                        stacklevel=3,
                    )
                chosen = np.concatenate([chosen, X[best : best + 1]])
                values.append(worth[best])
        finally:
            if self.q > 1:
                for acqf, pending in self._told:
                    acqf.set_X_pending(pending)
        reached = problem.tensor(np.array(values, dtype=chosen.dtype))
        return problem.tensor(chosen), reached[0] if self.q == 1 else reached

    def _why_nothing(self, count: int) -> str:
        why = f"{count} points are known or pending"
        if self.problem.is_restricted:
            why += "; no other point satisfying feasible and the constraints was found"
        if self.problem.fixed:
            why += f"; fixed_features hold {self.problem.fixed}"
        return f"Expected a path with a new point to propose, got none: {why}."

    def maximise(
        self,
        boxes: Boxes,
        avoid: KnownPoints,
        evaluator: Evaluator | None = None,
        evolve: bool = True,
        per_box: int = _PER_BOX,
    ) -> tuple[Array, Array]:
        """Maximise the acquisition function over boxes.

        Args:
            boxes: The boxes, at least one.
            avoid: Points not to be returned.
            evaluator: Another acquisition function.
            evolve: Whether to change decisions of the best candidates, too, where there
                are more paths than are searched.
            per_box: Sobol points in each box where ``raw_samples`` is not given.

        Returns:
            ``n x d`` points and their ``n`` values, the best first, that of each box
            among them; none where everything admissible is known.
        """
        evaluator = evaluator or self.evaluator
        sample = self._sample(
            boxes,
            self.raw_samples,
            avoid,
            per_box,
        )
        if not len(sample.X):
            return sample.X, np.zeros(0)
        on_paths = evaluator.on(boxes.lower)
        values = on_paths.values(sample.X, sample.box)
        if evolve and self.problem.tree.num_paths > MAX_PATHS:
            X, values = self._change_decisions(evaluator, sample.X, values, avoid)
            sample = Sample(X, np.arange(len(X)))
            boxes, _ = boxes_at(self.problem, X)
            on_paths = evaluator.on(boxes.lower)
        by_box = _ranked(best_of_each(sample.box, values), values)
        starts = _starts(
            sample,
            values,
            by_box,
            self.num_restarts,
        )
        starting = sample.take(starts)
        X, refined = refine(
            on_paths,
            starting.X,
            values[starts],
            boxes,
            starting.box,
            avoid,
        )
        # a climb may end at a known point
        rows = np.concatenate([starts, by_box])
        X = np.concatenate([X, sample.X[rows]])
        values = np.concatenate([refined, values[rows]])
        order = _ranked(np.arange(len(X)), values)
        order = order[~avoid.contains(X[order])]
        return X[order], values[order]

    def random(self, n: int, avoid: KnownPoints) -> Array:
        """Different random points that may be proposed.

        Args:
            n: The number of points drawn, repeated ones counted.
            avoid: Points that are not returned.

        Returns:
            At most ``n x d`` points in random order, uniform in the whole space. Where
            no draw can be proposed, the candidates of the search over all paths, and no
            points if nothing is left.

        Raises:
            ValueError: The arguments leave no path.
        """
        problem = self.problem
        space = whole_box(problem)
        parts: list[Array] = []
        missing = size = n
        left = 64 * n  # draws that may be discarded as known or inadmissible
        while missing > 0 and left > 0:
            X = space.draw(np.zeros(size, dtype=int), self.rng)
            active = problem.active(X)
            X = np.where(active, X, problem.fill)
            parts.append(X[problem.is_new(X, active, avoid)][:missing])
            missing -= len(parts[-1])
            left -= size
            size = min(2 * size, left)
        X = np.concatenate(parts)
        if not len(X):
            # The feasible set is thin, or nearly all points are known.
            X = self._sample(
                path_boxes(self.problem, avoid.X, self.rng),
                None,
                avoid,
                around=False,
            ).X
        _, first = np.unique(X, axis=0, return_index=True)
        return X[np.sort(first)]

    def _sample(
        self,
        boxes: Boxes,
        raw_samples: int | None,
        avoid: KnownPoints,
        per_box: int = _PER_BOX,
        around: bool = True,
    ) -> Sample:
        """Candidates without those that are known; all there are, if none is left."""
        if raw_samples is None:
            per_box = max(4, min(per_box, 4096 // len(boxes.keys)))
        else:
            per_box = -(-raw_samples // len(boxes.keys))
        good = self.problem.good if around else avoid.X[:0]
        keys = self.problem.good_keys
        sample = raw_candidates(boxes, per_box, good, keys, self.rng)
        sample = sample.take(~avoid.contains(sample.X))
        if len(sample.X):
            return sample
        sample = all_candidates(boxes)
        return sample.take(~avoid.contains(sample.X))

    def _change_decisions(
        self,
        evaluator: Evaluator,
        X: Array,
        values: Array,
        avoid: KnownPoints,
    ) -> tuple[Array, Array]:
        """Walks from the best candidates over decisions and other discrete columns."""
        whole = whole_box(self.problem)
        moves = slots_of(whole, [], True, 64)
        hood = Neighbourhood(whole, moves, self.rng)
        few = max(1, min(8, _MOST_NEIGHBOURS // len(moves)))
        best = _ranked(np.arange(len(values)), values)[:few]
        return walk(
            hood,
            evaluator,
            X[best],
            values[best],
            self.problem.active(X[best]),
            np.zeros_like(best),
            avoid,
            8,
            PATIENCE,
        )


def _ranked(index: Array, values: Array) -> Array:
    """``index``, that with the largest value first."""
    return index[(-values[index]).argsort(kind="stable")]


def _starts(
    sample: Sample,
    values: Array,
    by_box: Array,
    num_restarts: int,
) -> Array:
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
    group = sample.box * (sample.source.max() + 1) + sample.source
    diverse = _ranked(best_of_each(group, values), values)
    half = (num_restarts + 1) // 2
    best = _ranked(np.arange(len(values)), values)[:num_restarts]
    order = np.concatenate(
        [diverse[:half], by_box[:num_restarts], diverse[:num_restarts], best]
    )
    return _ranked(order[first_of_each(order)][:num_restarts], values)


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
    space: SearchSpace | None = None,
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
        space: A `SearchSpace` in place of ``bounds``, ``tree``, ``integer_features``,
            ``categorical_features`` and ``fill``. What it forbids is never proposed,
            nor is what ``feasible`` rejects.

    Returns:
        ``q x d`` candidates and their acquisition values, as BoTorch's
        ``optimize_acqf(sequential=True)`` gives them: a number for ``q=1``, else ``q``
        of them, each given the earlier candidates.

    Raises:
        ValueError: An argument is not what it should be; the model has other columns
            than the space; no path is left by ``fixed_features``,
            ``categorical_features`` and ``bounds``.
        CandidateGenerationError: Nothing is left to propose: every admissible point
            is known, or none was found that is feasible.
    """
    problem = Problem(
        [acq_function],
        bounds,
        tree,
        integer_features,
        categorical_features,
        fill,
        space,
        fixed_features=fixed_features,
        inequality_constraints=inequality_constraints,
        feasible=feasible,
        X_avoid=X_avoid,
        X_start=X_start,
        min_distance=min_distance,
    )
    search = Search(
        problem,
        acq_function,
        q,
        num_restarts,
        raw_samples,
        seed,
    )

    def propose(avoid: KnownPoints) -> tuple[Array, Array]:
        return search.maximise(path_boxes(problem, avoid.X, search.rng), avoid)

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
    of_paths = (
        PathContextLogExpectedImprovement,
        PathExpectedImprovement,
        PathLogExpectedImprovement,
    )
    if isinstance(acq_function, of_paths):
        raise ValueError(
            "acq_function: expected one that tells the points of a path apart, got "
            f"{type(acq_function).__name__}: give it as path_acq_function, the first."
        )
    check_count("top_k", top_k)
    problem = Problem(
        [acq_function, path_acq_function],
        bounds,
        tree,
        integer_features,
        categorical_features,
        fill,
        space,
        fixed_features=fixed_features,
        inequality_constraints=inequality_constraints,
        feasible=feasible,
        X_avoid=X_avoid,
        X_start=X_start,
        min_distance=min_distance,
    )
    search = Search(
        problem,
        acq_function,
        q,
        num_restarts,
        raw_samples,
        seed,
        path_acq_function,
    )
    first = Evaluator(path_acq_function, problem.device)
    matters = _columns_that_matter(path_acq_function, problem)

    def ranked(paths: Boxes, avoid: KnownPoints) -> tuple[Boxes, Array]:
        """Paths and the points on them by which they are ranked, the best first."""
        if matters is None:
            points, _ = search.maximise(paths, avoid, first)
        else:
            # whether all points of a path are known is for the second step to find out
            pinned = paths.pin(~matters, paths.lower)
            nothing = KnownPoints(problem, avoid.X[:0])
            points, _ = search.maximise(
                pinned,
                nothing,
                first,
                per_box=16,
            )
        X = points[first_of_each(problem.keys(points))]
        return boxes_at(problem, X)[0], X

    def propose(avoid: KnownPoints) -> tuple[Array, Array]:
        paths, X = ranked(path_boxes(problem, avoid.X, search.rng), avoid)
        if fix_shared:
            paths = paths.pin(problem.shared, X)
        for i in range(0, len(paths.keys), top_k):
            few = paths.take(slice(i, i + top_k))
            points, values = search.maximise(few, avoid, evolve=False)
            if len(points):
                return points, values
        return avoid.X[:0], np.zeros(0)

    return search.greedily(propose)


def _columns_that_matter(
    acq_function: AcquisitionFunction, problem: Problem
) -> Array | None:
    """``d`` booleans, or None where restrictions or the function involve any column."""
    kinds = (PathExpectedImprovement, PathLogExpectedImprovement)
    if type(acq_function) not in kinds or problem.is_restricted:
        return None
    columns = getattr(acq_function.model, "path_columns", None)
    if columns is None:
        return None
    matters = np.zeros_like(problem.shared)
    matters[[*columns, *problem.tree.numeric_decisions]] = True
    return matters
