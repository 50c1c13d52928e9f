"""The best of many random points: the plain maximiser of acquisition functions.

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne, R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. International Joint Conference on Neural
    Networks, 2017.
"""

from __future__ import annotations

__all__ = ["optimize_acqf_random", "random_candidates"]

from collections.abc import Mapping, Sequence

import torch
from botorch.acquisition import AcquisitionFunction
from torch import Tensor

from botorch_structured.optim.domain import Domain, make_domain
from botorch_structured.optim.evaluation import Evaluator
from botorch_structured.optim.problem import (
    MAX_PATHS,
    Feasible,
    check_acquisition,
    is_known,
    make_problem,
)
from botorch_structured.optim.raw import all_candidates, raw_candidates
from botorch_structured.optim.search import (
    Settings,
    boxes_to_search,
    greedily,
    make_generator,
    nothing_left,
)
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import check_count

# Draws thrown away because they are known or not admissible, in multiples of the
# points wanted.
_MAX_DRAWS = 64


def optimize_acqf_random(
    acq_function: AcquisitionFunction,
    bounds: Tensor | None = None,
    tree: ParameterTree | None = None,
    q: int = 1,
    raw_samples: int = 1000,
    integer_features: Sequence[int] | None = None,
    categorical_features: Mapping[int, Sequence[float]] | None = None,
    fixed_features: Mapping[int, float] | None = None,
    inequality_constraints: Sequence[tuple[Tensor, Tensor, float]] | None = None,
    feasible: Feasible | None = None,
    X_avoid: Tensor | None = None,
    fill: float | Tensor | None = None,
    min_distance: float = 0.0,
    seed: int | None = None,
    max_paths: int = MAX_PATHS,
    batch_limit: int | None = None,
    space: SearchSpace | None = None,
) -> tuple[Tensor, Tensor]:
    r"""The best of 1,000 random points under an acquisition function.

    The plain maximiser of section III-B of [Levesque2017conditional]_ ("GP-cond" and
    "GP-laplace" there), and the baseline that others are held against: one call of
    the acquisition function, no gradient, no climb. `optimize_acqf_local_search` goes
    on from its best points; `optimize_acqf_paths` is the default choice.

        >>> acqf = LogExpectedImprovement(model, best_f=train_Y.max())
        >>> X, value = optimize_acqf_random(acqf, bounds, tree, X_avoid=train_X)

    Points are uniform over the space as in `SearchSpace.sample`: every parameter,
    decisions included, takes each of its values (each number between its bounds) with
    the same probability; what is then inactive holds ``fill``. So a value of a decision
    gets the same share of the points however many parameters hang under it. Columns
    that hold logarithms are uniform in these; whole numbers are equally likely.

    Args:
        acq_function: Any acquisition function of ``b x 1 x d`` points.
        bounds: As in `optimize_acqf_paths`, like all arguments not described here.
        tree: Which columns are active where.
        q: The number of candidates, one after the other, the earlier ones pending.
        raw_samples: Random points for each of them, known and inadmissible ones not
            counted. There are fewer where less than one draw in 64 is admissible.
        integer_features: Columns with integer values.
        categorical_features: Column -> its admissible values.
        fixed_features: Column -> its value.
        inequality_constraints: Linear constraints in BoTorch's form.
        feasible: Any other restriction.
        X_avoid: Known points.
        fill: What inactive columns hold.
        min_distance: How far from known points to stay, in widths of the bounds.
        seed: Makes the answer repeatable.
        max_paths: So many paths are looked into one by one where no random point can
            be proposed.
        batch_limit: Rows that the acquisition function gets at once.
        space: A `SearchSpace` in place of ``bounds``, ``tree``,
            ``integer_features``, ``categorical_features`` and ``fill``: what it forbids
            is never proposed, nor is what ``feasible`` rejects.

    Returns:
        ``q x d`` candidates and their values, shaped as by `optimize_acqf_paths`.

    Raises:
        ValueError: An argument is not what it should be; no path is left.
        CandidateGenerationError: Nothing is left to propose.
    """
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
        space,
        acq_function,
    )
    check_count("raw_samples", raw_samples)
    generator = make_generator(seed)
    evaluator = Evaluator(acq_function, batch_limit)

    def propose(known: Tensor) -> tuple[Tensor, Tensor]:
        domain = make_domain(problem, known)
        X = random_candidates(domain, raw_samples, known, generator)
        values = evaluator.values(X)
        best = values.argmax()
        return X[best : best + 1], values[best]

    return greedily(problem, [acq_function], check_count("q", q), propose)


def random_candidates(
    domain: Domain, n: int, known: Tensor, generator: torch.Generator
) -> Tensor:
    """Different random points that may be proposed.

    Args:
        domain: What they are drawn from, uniformly.
        n: How many, repeated ones counted.
        known: ``m x d`` points that are not returned.
        generator: A CPU generator.

    Returns:
        At least one and at most ``n x d`` points in random order. Where no draw can be
        proposed, those that the search of all paths would look at.

    Raises:
        ValueError: The arguments leave no path.
        CandidateGenerationError: Nothing is left to propose.
    """
    found: list[Tensor] = []
    missing, size, drawn = n, n, 0
    while missing > 0 and drawn < _MAX_DRAWS * n:
        X = domain.draw(size, generator)
        active = domain.problem.tree.active_mask(X)
        X = torch.where(active, X, domain.problem.fill)
        found.append(X[domain.is_new(X, active, known)][:missing])
        missing -= len(found[-1])
        drawn += size
        size = min(2 * size, _MAX_DRAWS * n - drawn)
    X = torch.cat(found)
    return _distinct(X if len(X) else _last_resort(domain, known, generator))


def _last_resort(domain: Domain, known: Tensor, generator: torch.Generator) -> Tensor:
    """New points of thin feasible sets and of spaces that are nearly used up."""
    problem = domain.problem
    boxes = boxes_to_search(problem, known, generator)
    none = boxes.lower[:0]
    per_box = Settings(1, None).per_box(len(boxes))
    nowhere = torch.zeros(0, dtype=torch.long, device=none.device)
    X = raw_candidates(problem, boxes, per_box, none, nowhere, generator).X
    X = X[~is_known(problem, X, known)]
    if not len(X):
        X = all_candidates(problem, boxes).X
        X = X[~is_known(problem, X, known)]
    if not len(X):
        raise nothing_left(problem, known)
    return X


def _distinct(X: Tensor) -> Tensor:
    """``X`` without repetitions, the order kept."""
    _, group = X.unique(dim=0, return_inverse=True)
    row = torch.arange(len(X), device=X.device)
    first = torch.full_like(row, len(X)).scatter_reduce(0, group, row, "amin")
    return X[first[first < len(X)].sort().values]
