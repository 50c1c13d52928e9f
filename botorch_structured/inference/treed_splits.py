"""Which split of a node is best: where two GPs explain its data better than one does.

Most of the thresholds are not worth a fit of two GPs. So a few are tried in each
column, each by fits of a few steps; the best of them again, in earnest; then their
neighbours. What a split must gain is set by a prior on trees that makes deep ones
improbable (Chipman, George and McCulloch 1998).
"""

from __future__ import annotations

__all__ = ["FULL_STEPS", "best_split_by_evidence", "thinned"]

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from botorch_structured.inference.cart import (
    Array,
    ChangePoint,
    Proposal,
    Rows,
    Split,
    TreeNode,
    split_by_variance,
)
from botorch_structured.inference.treed_node import NodeEvidence, NodeFit

_QUANTILES = 9  # thresholds tried in each column, besides CART's
_REFINE = 2  # points to either side of the best threshold that are tried then
_REFINE_ROUNDS = 2
# P(a node at depth k is split) = alpha (1 + k)^-beta
_ALPHA, _BETA = 0.5, 2.0
# nodes with more rows are scored on so many of them
_SCORED_ROWS = 150
_FINALISTS = 4
# thresholds that share the probability of being the change point
_CHANGES = 13
#: Steps of a fit that decides.
FULL_STEPS = 12
_QUICK = 3  # steps of a fit that finds out whether it may


def thinned(rows: Rows) -> Rows:
    """At most so many rows, the same ones each time: what decisions are made on.

    Args:
        rows: Any number of them.
    """
    if len(rows) <= _SCORED_ROWS:
        return rows
    chosen = np.random.default_rng(0).permutation(len(rows))[:_SCORED_ROWS]
    return rows[np.sort(chosen)]


def _log_prior_gain(depth: int, columns: int) -> float:
    """Log prior odds of splitting a node once, in one column, against no split."""
    here = _ALPHA * (1.0 + depth) ** -_BETA
    below = _ALPHA * (2.0 + depth) ** -_BETA
    odds = math.log(here) + 2.0 * math.log(1.0 - below) - math.log(1.0 - here)
    return odds - math.log(columns)


def best_split_by_evidence(
    node: TreeNode,
    X: Array,
    evidence: NodeEvidence,
    min_leaf_size: int,
    categorical: Sequence[int],
) -> Proposal | None:
    """The split that explains a node's data best, if it is better than none.

    Its children, and their fits, are part of it.

    Args:
        node: With its ``fit``.
        X: ``n x d``, all data.
        evidence: Of subsets of these data.
        min_leaf_size: Fewest points of a child, the shared one included.
        categorical: Columns without an order.
    """
    if len(node.rows) < 2 * min_leaf_size - 1:
        return None
    scored = thinned(node.home)
    base = node.fit
    if len(scored) < len(node.home):
        base = evidence.fit(scored, [node.fit.theta], FULL_STEPS)
    in_score = np.zeros(len(X), dtype=bool)
    in_score[scored] = True
    trials: dict[Split, _Trial] = {}

    def attempt(splits: Sequence[Split], like: _Trial | None, steps: int) -> None:
        """Score splits; fits begin where an earlier trial or the parent is."""
        starts = (base, base) if like is None else like.fits
        for split in splits:
            seen = trials.get(split)
            trial = _score(
                node,
                X,
                split,
                evidence,
                starts if seen is None else seen.fits,
                in_score,
                min_leaf_size,
                steps,
            )
            if trial is not None:
                trials[split] = trial

    def best_of(count: int) -> list[Split]:
        return sorted(trials, key=lambda split: -trials[split].value)[:count]

    attempt(_candidates(node, X, evidence.y, min_leaf_size, categorical), None, _QUICK)
    attempt(best_of(_FINALISTS), None, FULL_STEPS)
    if not trials:
        return None
    (best,) = best_of(1)
    values = np.unique(X[node.home, best.column])

    def place_of(split: Split) -> int:
        return int(np.searchsorted(values, split.threshold))

    if not best.categorical:
        for _ in range(_REFINE_ROUNDS):
            place = place_of(best)
            low, high = max(place - _REFINE, 0), place + _REFINE + 1
            near = [Split(best.column, float(v)) for v in values[low:high]]
            new = [split for split in near if split not in trials]
            attempt(new, trials[best], _QUICK)
            (best,) = best_of(1)
    attempt([best], None, FULL_STEPS)
    trial = trials[best]
    prior = _log_prior_gain(node.depth, X.shape[1]) - base.log_evidence
    if not trial.value + prior > 0:
        return None
    change = None
    if best.categorical:
        choices = len(np.unique(X[node.home, best.column]))
        value = trial.value - math.log(choices)
    else:
        low, high = (
            max(place_of(best) - _CHANGES // 2, 0),
            place_of(best) + _CHANGES // 2,
        )
        near = [Split(best.column, float(v)) for v in values[low : high + 1]]
        attempt([s for s in near if s not in trials], trial, _QUICK)
        value, change = _average(trials, best, values, low, high)
    gain = value + prior
    if not gain > 0:
        return None
    for child, fit in zip(trial.children, trial.fits, strict=True):
        child.fit = fit
        if len(scored) < len(node.home):
            child.fit = evidence.fit(child.home, [fit.theta], FULL_STEPS)
    return Proposal(gain, best, trial.children, change)


def _average(
    trials: dict[Split, _Trial], best: Split, values: Array, low: int, high: int
) -> tuple[float, ChangePoint]:
    """Evidence averaged over the thresholds of a column, and where the change is.

    Splits that were not tried have evidences in between those of their neighbours.

    Args:
        trials: What was tried.
        best: The best split.
        values: All thresholds of its column, ascending.
        low: First of those near the best.
        high: Last of those near the best.
    """
    tried = sorted(
        (split.threshold, trial.value)
        for split, trial in trials.items()
        if split.column == best.column
    )
    places = np.searchsorted(values, [threshold for threshold, _ in tried])
    admissible = np.arange(places[0], places[-1] + 1)
    evidence = np.interp(admissible, places, [value for _, value in tried])
    peak = float(evidence.max())
    average = peak + math.log(float(np.exp(evidence - peak).mean()))
    near = admissible[(admissible >= low) & (admissible <= high)]
    near = near[near + 1 < len(values)]
    weights = np.exp(evidence[near - admissible[0]] - peak)
    change = ChangePoint(values[near], values[near + 1], weights / weights.sum())
    return average, change


def _candidates(
    node: TreeNode,
    X: Array,
    y: Array,
    min_leaf_size: int,
    categorical: Sequence[int],
) -> list[Split]:
    found: list[Split] = []
    for column in range(X.shape[1]):
        values = np.unique(X[node.home, column])
        if column in categorical:
            found += [Split(column, float(v), True) for v in values]
            continue
        places = np.linspace(0, len(values) - 1, _QUANTILES + 2)[1:-1]
        chosen = values[np.unique(np.round(places).astype(int))]
        found += [Split(column, float(v)) for v in chosen]
    cart = split_by_variance(X[node.home], y[node.home], min_leaf_size, categorical)
    if cart is not None and cart[1] not in found:
        found.append(cart[1])
    return found


@dataclass(frozen=True)
class _Trial:
    """A split that was tried.

    Attributes:
        value: Sum of the log evidences of the children.
        children: What it would make.
        fits: Theirs.
    """

    value: float
    children: tuple[TreeNode, TreeNode]
    fits: tuple[NodeFit, NodeFit]


def _score(
    node: TreeNode,
    X: Array,
    split: Split,
    evidence: NodeEvidence,
    starts: tuple[NodeFit, NodeFit],
    in_score: np.ndarray,
    min_leaf_size: int,
    steps: int,
) -> _Trial | None:
    left, right = children = node.divided(X, split)
    # the point at the threshold counts as one of the right child, but is not at home
    if len(left.home) < min_leaf_size or len(right.home) < max(min_leaf_size - 1, 1):
        return None
    fits = []
    for child, start in zip(children, starts, strict=True):
        rows = child.home[in_score[child.home]]
        if len(rows) < 2:
            return None
        fits.append(evidence.fit(rows, [start.theta], steps))
    value = fits[0].log_evidence + fits[1].log_evidence
    if not math.isfinite(value):
        return None
    return _Trial(value, children, (fits[0], fits[1]))
