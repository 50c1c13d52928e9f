"""Maximise acquisition functions without gradients: climb over one-exchange neighbours.

References:

.. [Levesque2017conditional]
    J.-C. Lévesque, A. Durand, C. Gagné, and R. Sabourin. Bayesian optimization for
    conditional hyperparameter spaces. IJCNN 2017.
"""

from __future__ import annotations

__all__ = ["climb", "optimize_acqf_local_search"]

import math
from collections.abc import Mapping, Sequence

import torch
from botorch.acquisition import AcquisitionFunction
from torch import Tensor

from botorch_structured.optim.domain import make_domain
from botorch_structured.optim.evaluation import Evaluator
from botorch_structured.optim.neighbours import Neighbourhood
from botorch_structured.optim.problem import (
    MAX_PATHS,
    Feasible,
    check_acquisition,
    check_count,
    make_problem,
)
from botorch_structured.optim.proposals import good_points, greedily, make_generator
from botorch_structured.optim.random_search import random_candidates
from botorch_structured.spaces import ParameterTree

# The next step where no neighbour is better, relative to the last one.
_SHRINK = 0.5


def optimize_acqf_local_search(
    acq_function: AcquisitionFunction,
    bounds: Tensor,
    tree: ParameterTree,
    q: int = 1,
    num_restarts: int = 10,
    step: float = 0.1,
    raw_samples: int = 1000,
    integer_features: Sequence[int] | None = None,
    categorical_features: Mapping[int, Sequence[float]] | None = None,
    fixed_features: Mapping[int, float] | None = None,
    inequality_constraints: Sequence[tuple[Tensor, Tensor, float]] | None = None,
    feasible: Feasible | None = None,
    X_avoid: Tensor | None = None,
    fill: float | Tensor = 0.5,
    X_start: Tensor | None = None,
    min_distance: float = 0.0,
    seed: int | None = None,
    max_paths: int = MAX_PATHS,
    batch_limit: int | None = None,
    min_step: float = 1e-3,
    max_iter: int = 200,
) -> tuple[Tensor, Tensor]:
    r"""Climb over one-exchange neighbours from the best of 1,000 random points."""
    check_acquisition(acq_function, "acq_function")
    problem = make_problem(
        bounds,
        tree,
        integer_features,
        categorical_features,
        fixed_features,
        inequality_constraints,
        feasible,
        X_avoid,
        fill,
        max_paths,
        min_distance,
    )
    check_count("num_restarts", num_restarts)
    check_count("raw_samples", raw_samples)
    check_count("max_iter", max_iter)
    generator = make_generator(seed)
    evaluator = Evaluator(acq_function, batch_limit)

    def propose(known: Tensor) -> tuple[Tensor, Tensor]:
        good = good_points(problem, acq_function, X_start)
        domain = make_domain(problem, torch.cat([known, good]))
        X = random_candidates(domain, raw_samples, known, generator)
        values = evaluator.values(X)
        best = values.topk(min(num_restarts, len(values))).indices
        good = domain.project(good)[:num_restarts]
        starts = torch.cat([X[best], good])
        new = domain.is_new(good, tree.active_mask(good), known)
        worth = evaluator.values(good).masked_fill(~new, -math.inf)
        worth = torch.cat([values[best], worth])
        ends, reached = climb(
            Neighbourhood(domain),
            evaluator,
            starts,
            worth,
            known,
            step,
            min_step,
            max_iter,
            generator,
        )
        # A start that may not be proposed counts once it has moved.
        new = reached > -math.inf
        X = torch.cat([X[best], ends[new]])
        values = torch.cat([values[best], reached[new]])
        top = values.argmax()
        return X[top : top + 1], values[top]

    return greedily(problem, [acq_function], check_count("q", q), propose)


def climb(
    hood: Neighbourhood,
    evaluator: Evaluator,
    X: Tensor,
    values: Tensor,
    known: Tensor,
    step: float,
    min_step: float,
    max_iter: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Move every start to its best neighbour until none is better.

    Args:
        hood: The neighbours.
        evaluator: The acquisition function.
        X: ``S x d`` starts.
        values: Their ``S`` values; -inf where they may not be proposed.
        known: ``m x d`` points that no climb steps on.
        step: The first step of the reals, in widths of the bounds.
        min_step: Steps are made smaller down to this.
        max_iter: Iterations, that is calls of the acquisition function.
        generator: A CPU generator.

    Returns:
        ``S x d`` points and their ``S`` values, never less than those of the starts.
    """
    X, values, active = X.clone(), values.clone(), hood.tree.active_mask(X)
    steps = torch.full_like(values, step)
    climbing = torch.arange(len(X), device=X.device)
    for _ in range(max_iter):
        near, on, owner = hood.of(
            X[climbing], active[climbing], steps[climbing], generator
        )
        new = hood.domain.is_new(near, on, known)
        near, on, owner = near[new], on[new], owner[new]
        best, which = _best_of_each(evaluator.values(near), owner, len(climbing))
        better = best > values[climbing]
        moved = climbing[better]
        to = which[better]
        X[moved], active[moved], values[moved] = near[to], on[to], best[better]
        # Where none is better look nearer, if anything is there.
        steps[climbing[~better]] *= _SHRINK
        real = active[climbing][:, hood.reals].any(-1)
        climbing = climbing[better | (real & (steps[climbing] >= min_step))]
        if not len(climbing):
            break
    return X, values


def _best_of_each(values: Tensor, owner: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The largest value of each of ``n`` owners (-inf for none), and its row."""
    best = values.new_full((n,), -math.inf).scatter_reduce(0, owner, values, "amax")
    row = torch.arange(len(values), device=values.device)
    # The first of equals, so that the same seed climbs the same way everywhere.
    row = row.masked_fill(values < best[owner], len(values))
    which = torch.full_like(best, len(values), dtype=torch.long)
    return best, which.scatter_reduce(0, owner, row, "amin")
