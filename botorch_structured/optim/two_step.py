"""Choose a path first, then search in it: the paper's two-step optimisation."""

from __future__ import annotations

__all__ = ["optimize_acqf_two_step"]

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
            found = search.maximise(every, known, first, ranks=True)
        else:
            # whether all points of a path are known is for the second step to find out
            held = every.pin(~matters, every.lower)
            listed = problem.listed.num_paths <= problem.max_paths
            if listed and not held.free.any():  # one point on each path
                values = first.values(held.lower)
                order = values.argsort(descending=True, stable=True)
                return every.take(order), held.lower[order]
            found = search.maximise(
                held, known[:0], first, per_box=_PER_PATH, ranks=True
            )
        X = found.X[first_of_each(problem.tree.path_key(found.X))]
        return boxes_at(problem, X)[0], X

    def propose(known: Tensor) -> tuple[Tensor, Tensor]:
        paths, X = ranked(search.paths(known), known)
        if fix_shared:
            paths = paths.pin(problem.shared, X)
        for i in range(0, len(paths), top_k):
            few = paths.take(slice(i, i + top_k))
            found = search.maximise(few, known, evolve=False)
            if len(found.X):
                return found.X, found.values
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
