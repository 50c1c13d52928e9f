"""Maximise acquisition functions without gradients: local search from random points.

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne, R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. International Joint Conference on Neural
    Networks, 2017.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from botorch.acquisition import AcquisitionFunction
from torch import Tensor

from botorch_structured.optim.boxes import project, whole_box
from botorch_structured.optim.problem import (
    Array,
    Feasible,
    KnownPoints,
    Problem,
)
from botorch_structured.optim.search import Search
from botorch_structured.optim.walk import Neighbourhood, slots_of, steps_between, walk
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import check_count, check_number


def optimize_acqf_local_search(
    acq_function: AcquisitionFunction,
    bounds: Tensor | None = None,
    tree: ParameterTree | None = None,
    q: int = 1,
    num_restarts: int = 10,
    step: float = 0.2,
    raw_samples: int = 1000,
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
    min_step: float = 1e-4,
    max_iter: int = 500,
    space: SearchSpace | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Local search over one-exchange neighbours, from the best of 1,000 random points.

    For acquisition functions whose gradient does not exist, is useless or takes too
    long, and for spaces of integers and categoricals: section III-B of
    [Levesque2017conditional]_, equations (6) and (7); SMAC's search is of this kind.
    Only admissible points are evaluated, under `torch.no_grad`; discrete columns are
    never relaxed. Where there is a gradient `optimize_acqf_paths` needs fewer calls,
    and searches every path.

        >>> acqf = LogExpectedImprovement(model, best_f=train_Y.max())
        >>> X, value = optimize_acqf_local_search(acqf, bounds, tree, X_avoid=train_X)

    A neighbour differs in one active parameter: a real by a step down or up (cut at the
    bounds), an integer by one, a categorical or a decision by any other value. Where a
    decision changes, the parameters that it switches on are drawn at random, and those
    that stay active keep their values. Each iteration scores all neighbours of all
    starts in one call and moves every start to its best neighbour, if that is better.
    So the value never falls, and a climb ends where none of the neighbours drawn is
    better.

    The paper has one fixed step. Here each real tries ``step`` and smaller ones, each
    a quarter of the one before, down to ``min_step``, in the same call, because late in
    a run the maximum of the acquisition function is narrow and next to a known point.
    ``min_step=step`` is the paper's search.

    Random points are uniform over the space as in `SearchSpace.sample`: every
    parameter, decisions included, takes each of its values (each number between its
    bounds) with the same probability. Columns that hold logarithms are uniform in the
    logarithm; integers are equally likely.

    Args:
        acq_function: Any acquisition function of ``b x 1 x d`` points; its gradient is
            not used. One-shot ones raise an error.
        bounds: As in `optimize_acqf_paths`, like all arguments not described here.
        tree: Which columns are active where.
        q: The number of candidates, one after the other, the earlier ones pending.
        num_restarts: The number of random points to climb from, and the number of
            points of ``X_start``.
        step: The largest step of real columns, in widths of the bounds.
        raw_samples: Random points, known and inadmissible ones not counted. There are
            fewer where less than one draw in 64 is admissible.
        integer_features: Columns with integer values. Steps are of one: a range of
            thousands may take as many iterations (see ``max_iter``).
        categorical_features: Column -> its admissible values. Of a column that is among
            the integers, too, the neighbours are the next values on both sides.
        fixed_features: Column -> its value.
        inequality_constraints: Linear constraints in BoTorch's form. A climb follows
            their borders along the axes only.
        feasible: Any other restriction.
        X_avoid: Known points. A climb may begin at one, but does not step on any.
        fill: What inactive columns hold.
        X_start: ``k x d`` points to climb from, the best first. By default the best
            training point of the model on every path.
        min_distance: How far from known points to stay, in widths of the bounds.
        seed: Makes the answer repeatable.
        min_step: The smallest step of real columns, in widths of the bounds.
        max_iter: Iterations, each one call of the acquisition function, after which
            climbs stop. With 0 the answer is
            the best of the random points, the maximiser of "GP-cond" and "GP-laplace".
        space: A `SearchSpace` in place of the arguments that describe one.

    Returns:
        ``q x d`` candidates and their values, shaped as by `optimize_acqf_paths`.

    Raises:
        ValueError: An argument is not what it should be; no path is left.
        CandidateGenerationError: Nothing is left to propose.
    """
    check_count("raw_samples", raw_samples)
    check_count("max_iter", max_iter, least=0)
    steps = _steps(step, min_step)
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
    evaluator = search.evaluator
    whole = whole_box(problem)
    # eq. (7); a column that is an integer and categorical moves to the next values
    hood = Neighbourhood(whole, slots_of(whole, steps, far=False), search.rng)
    good = project(whole, problem.good)[:num_restarts]

    def propose(avoid: KnownPoints) -> tuple[Array, Array]:
        X = search.random(raw_samples, avoid)
        values = evaluator.values(X)
        best = (-values).argsort(kind="stable")[:num_restarts]
        new = problem.is_new(good, problem.active(good), avoid)
        # A start that may not be proposed gets -inf, less than any admissible
        # neighbour.
        worth = np.full(len(good), -np.inf)
        worth[new] = evaluator.values(good[new])
        starts = np.concatenate([X[best], good])
        worth = np.concatenate([values[best], worth])
        active = problem.active(starts)
        box = np.zeros(len(starts), dtype=int)
        ends, reached = walk(
            hood,
            evaluator,
            starts,
            worth,
            active,
            box,
            avoid,
            max_iter,
        )
        moved = reached > -np.inf
        points = np.concatenate([X[best], ends[moved]])
        return points, np.concatenate([values[best], reached[moved]])

    return search.greedily(propose)


def _steps(step: float, min_step: float) -> list[float]:
    """The steps of real columns, the largest first."""
    if not 0.0 < check_number("step", step, finite=False) <= 1.0:
        raise ValueError(
            "step: expected a share of the width of the bounds, above 0 and at most 1, "
            f"got {step!r}."
        )
    if not 0.0 < check_number("min_step", min_step) <= step:
        raise ValueError(
            f"min_step: expected a number above 0 and at most step={step}, got "
            f"{min_step!r}."
        )
    return steps_between(step, min_step)
