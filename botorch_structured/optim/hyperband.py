r"""Successive halving, and its evaluations as data for a model with a context.

Hyperband [Li2016hyperband]_ evaluates many candidates at a cheap context (a small share
of the training set), the better ones at a dearer one, and so on. What it leaves are
triplets of candidate, context and outcome, and perhaps costs. Choose it for the first
evaluations of a search with ``TreeStructuredGP(..., context_features=[...])``, as
[Jenatton2017tree]_ suggests in section 5: ``successive_halving`` makes them,
``encode_triplets`` reads those of another program.

References:

.. [Jenatton2017tree]
    R. Jenatton, C. Archambeau, J. Gonzalez and M. Seeger. Bayesian Optimization with
    Tree-structured Dependencies. ICML 2017.

.. [Li2016hyperband]
    L. Li, K. Jamieson, G. DeSalvo, A. Rostamizadeh and A. Talwalkar. Hyperband: A Novel
    Bandit-Based Approach to Hyperparameter Optimization. JMLR 18, 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import check_column, check_count, check_number

Rungs = list[tuple[int, float]]


def hyperband_rungs(
    smallest: float, largest: float = 1.0, eta: float = 3.0
) -> list[Rungs]:
    r"""Hyperband's brackets: how many candidates at which context.

    With :math:`s_{max} = \lfloor \log_\eta(largest / smallest) \rfloor`, bracket
    :math:`s = s_{max}, \dots, 0` starts with :math:`\lceil (s_{max} + 1) / (s + 1)\,
    \eta^s \rceil` candidates at :math:`largest\; \eta^{-s}`; each further rung has one
    in eta of them, at eta times the context (algorithm 1 of [Li2016hyperband]_).

        >>> hyperband_rungs(1 / 9)[0]  # the first bracket
        [(9, 0.111), (3, 0.333), (1, 1.0)]

    Args:
        smallest: The smallest context, positive.
        largest: The context that counts.
        eta: One in ``eta`` candidates stays.

    Returns:
        For each bracket the rungs ``(count, context)``, the cheapest one first.

    Raises:
        ValueError: ``smallest`` or ``largest`` is not positive, ``smallest`` is above
            ``largest``, or ``eta`` is not above 1.
    """
    for name, value in (("smallest", smallest), ("largest", largest)):
        if check_number(name, value) <= 0.0:
            raise ValueError(f"{name}: expected a positive number, got {value!r}.")
    if smallest > largest:
        raise ValueError(
            f"smallest: expected at most `largest`, {largest!r}, got {smallest!r}."
        )
    if check_number("eta", eta) <= 1.0:
        raise ValueError(f"eta: expected a number above 1, got {eta!r}.")
    # a power of eta may be a little less than one in floating point
    most = math.floor(math.log(largest / smallest) / math.log(eta) + 1e-9)
    brackets = []
    for s in range(most, -1, -1):
        count = math.ceil((most + 1) / (s + 1) * eta**s - 1e-9)
        rungs = [
            (max(math.floor(count / eta**i + 1e-9), 1), largest * eta ** (i - s))
            for i in range(s + 1)
        ]
        brackets.append(rungs)
    return brackets


def successive_halving(
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
    X: Tensor,
    column: int,
    rungs: Sequence[tuple[int, float]],
    maximize: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Evaluate candidates at rising contexts, the better ones go on.

        >>> rungs = [(9, 1 / 9), (3, 1 / 3), (1, 1.0)]
        >>> X, Y, cost = successive_halving(evaluate, space.sample(9), c, rungs)

    Args:
        evaluate: ``m x d`` points, contexts included -> ``m`` outcomes and ``m`` costs.
            Outcomes that are NaN or ``-inf`` (failures) are the worst ones in either
            direction; ``-inf`` is what `suggest` takes for a failure.
        X: ``n x d`` candidates; what they hold in the context column is not used.
        column: The context column.
        rungs: ``(count, context)``, see ``hyperband_rungs``; contexts in the units of
            ``X`` (decimal logarithms in a logarithmic column; in a column of integers
            integers: they are not rounded here, and ``decode`` would). Of the
            candidates, the first ``count`` are in the first rung, the best ones in the
            later ones.
        maximize: Whether larger outcomes are better.

    Returns:
        All evaluations in their order: points ``N x d``, outcomes ``N x 1`` and costs
        ``N x 1``, which a model takes.

    Raises:
        ValueError: For a column out of range, counts that grow or are more than the
            candidates, or answers of another shape.
    """
    if X.ndim != 2:
        raise ValueError(f"X: expected n x d candidates, got shape {tuple(X.shape)}.")
    column = check_column("column", column, X.shape[-1], negative=True)
    counts = [check_count("rungs", count) for count, _ in rungs]
    limits = [len(X), *counts]
    if not counts or any(a > b for a, b in zip(counts, limits, strict=False)):
        raise ValueError(
            f"rungs: expected counts that do not grow, from at most {len(X)} "
            f"candidates, got {counts}."
        )
    parts = []
    for count, context in rungs:
        X = X[:count].clone()
        X[:, column] = check_number("rungs", context)
        outcomes, cost = (answer.reshape(-1) for answer in evaluate(X))
        if len(outcomes) != count or len(cost) != count:
            raise ValueError(
                f"evaluate: expected {count} outcomes and costs, got {len(outcomes)} "
                f"and {len(cost)}."
            )
        parts.append((X, outcomes.unsqueeze(-1), cost.unsqueeze(-1)))
        score = outcomes if maximize else -outcomes
        failed = outcomes.isnan() | (outcomes == -torch.inf)
        score = score.masked_fill(failed, -torch.inf)
        X = X[score.argsort(descending=True, stable=True)]
    points, outcomes, cost = (torch.cat(part) for part in zip(*parts, strict=True))
    return points, outcomes, cost


def encode_triplets(
    space: SearchSpace, triplets: Iterable[Sequence[Any]], context: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Evaluations of Hyperband, from any program, as data for models.

        >>> X, Y, cost = encode_triplets(space, [(config, 0.33, 0.91, 12.5)], "share")

    Args:
        space: The search space, with the context as one of its parameters.
        triplets: ``(configuration, context, outcome)`` or, all of them, with a cost as
            the fourth; a configuration is what ``space.encode`` takes, without context.
            The outcome is ``-inf`` where the evaluation failed, as for `suggest`.
        context: The name of the context.

    Returns:
        Points ``n x d``, outcomes ``n x 1``, and costs ``n x 1`` or None.

    Raises:
        ValueError: For an unknown name, no or unequal rows, numbers that are none, and
            configurations that ``space.encode`` refuses.
    """
    if context not in space.names:
        raise ValueError(
            f"context: expected a name among {space.names}, got {context!r}."
        )
    rows = [tuple(row) for row in triplets]
    lengths = {len(row) for row in rows}
    if lengths not in ({3}, {4}):
        raise ValueError(
            "triplets: expected rows of 3 (configuration, context, outcome), or all of "
            f"4 with a cost, got rows of {sorted(lengths)}."
        )
    configs: list[Mapping[str, Any]] = [{**row[0], context: row[1]} for row in rows]
    X = space.encode(configs)
    Y, *cost = (
        X.new_tensor([[_number(row[i], failed=i == 2)] for row in rows])
        for i in range(2, lengths.pop())
    )
    return X, Y, cost[0] if cost else None


def _number(value: Any, failed: bool) -> float:
    if failed and check_number("triplets", value, finite=False) == -math.inf:
        return -math.inf
    return check_number("triplets", value)
