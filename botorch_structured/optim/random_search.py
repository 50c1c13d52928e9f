"""The best of many random points, a baseline for optimisers.

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne, R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. International Joint Conference on Neural
    Networks, 2017.
"""

from __future__ import annotations

__all__ = ["optimize_acqf_random"]

from collections.abc import Mapping, Sequence

from botorch.acquisition import AcquisitionFunction
from torch import Tensor

from botorch_structured.optim.problem import MAX_PATHS, Feasible
from botorch_structured.optim.search import Search
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import check_count


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

    The maximiser of "GP-cond" and "GP-laplace" in [Levesque2017conditional]_ (section
    III-B), and a baseline for other optimisers: one call of the acquisition function,
    no gradient, no local search. `optimize_acqf_local_search` climbs
    from the best of these points; `optimize_acqf_paths` is the default choice.

        >>> acqf = LogExpectedImprovement(model, best_f=train_Y.max())
        >>> X, value = optimize_acqf_random(acqf, bounds, tree, X_avoid=train_X)

    Points are uniform over the space as in `SearchSpace.sample`: every parameter,
    decisions included, takes each of its values (each number between its bounds) with
    the same probability; inactive columns hold ``fill``. So each value of a decision
    gets the same share of the points, however many parameters it activates. Columns
    that hold logarithms are uniform in the logarithm; integers are equally likely.

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
        max_paths: If no random point can be proposed, at most so many paths are
            searched for one.
        batch_limit: Most rows in one call of the acquisition function.
        space: A `SearchSpace` in place of the arguments that describe one.

    Returns:
        ``q x d`` candidates and their values, shaped as by `optimize_acqf_paths`.

    Raises:
        ValueError: An argument is not what it should be; no path is left.
        CandidateGenerationError: Nothing is left to propose.
    """
    check_count("raw_samples", raw_samples)
    search = Search(**locals(), X_start=())  # all arguments, by name

    def propose(known: Tensor) -> tuple[Tensor, Tensor]:
        X = search.random(raw_samples, known)
        return X, search.evaluator.values(X)

    return search.greedily(propose)
