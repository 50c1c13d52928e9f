"""Search paths: all of them at once, or, as the paper does, few chosen first."""

from __future__ import annotations

__all__ = ["optimize_acqf_paths", "optimize_acqf_two_step"]

from collections.abc import Mapping, Sequence

import torch
from botorch.acquisition import AcquisitionFunction
from torch import Tensor

from botorch_structured.acquisition import (
    PathContextLogExpectedImprovement,
    PathExpectedImprovement,
    PathLogExpectedImprovement,
)
from botorch_structured.optim.boxes import Boxes, boxes_at
from botorch_structured.optim.climb import Evaluator
from botorch_structured.optim.problem import (
    MAX_PATHS,
    Feasible,
    Problem,
    check_acquisition,
    first_of_each,
)
from botorch_structured.optim.search import Search
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import check_count

_OF_PATHS = (
    PathContextLogExpectedImprovement,
    PathExpectedImprovement,
    PathLogExpectedImprovement,
)
# Sobol points for each path in a search of the columns that matter to paths.
_PER_PATH = 16


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

    Returns:
        ``q x d`` candidates and their acquisition values, as BoTorch's
        ``optimize_acqf(sequential=True)`` gives them: a number for ``q=1``, else ``q``
        of them, each given the earlier candidates.

    Raises:
        ValueError: An argument is not what it should be; no path is left by
            ``fixed_features``, ``categorical_features`` and ``bounds``.
        CandidateGenerationError: Nothing is left to propose: every admissible point
            is known, or none was found that is feasible.
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
