"""Which nodes of a tree to split: by variance, or by what two GPs explain.

The paper splits by CART's variance and found the entropy of GPs no better for much more
work. As a density, a tree that splits wherever it may is no better than one GP; what
helps is to split *only* where two GPs, each with its own scale, mean and noise, explain
the data better than one does, by Laplace's evidence and a prior on trees that makes
deep ones improbable (Chipman, George and McCulloch 1998).
"""

from __future__ import annotations

__all__ = [
    "GrownTrees",
    "NOISE_FLOOR",
    "grow_by_evidence",
    "grow_by_variance",
    "grow_trees",
]

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from botorch_structured.models.treed.cart import (
    Array,
    ChangePoint,
    Proposal,
    Rows,
    Split,
    TreeNode,
    grow,
    split_by_variance,
)
from botorch_structured.models.treed.scoring import (
    CONVERGED,
    FULL_STEPS,
    NodeEvidence,
    NodeFit,
    NodePrior,
    thinned,
)

#: Smallest noise variance, in units of the variance of the outcomes.
NOISE_FLOOR = 1e-8
# The same for relative lengthscales. With several lengthscales and less noise, scoring
# needs more than ``FULL_STEPS``.
_RELATIVE_FLOOR = 1e-6

_QUANTILES = 9  # thresholds tried in each column, besides CART's
_REFINE = 2  # points to either side of the best threshold that are tried then
_REFINE_ROUNDS = 2
# P(a node at depth k is split) = alpha (1 + k)^-beta
_ALPHA, _BETA = 0.5, 2.0
_FINALISTS = 4
_SCALE_ROWS = 75  # that a fit of lengthscales begins with
# of a fit on all rows of a large node, from the fit on some of them
_LAST_STEPS = 3
# Rows that find out which modes there are, and how near those of one mode are.
_MODE_ROWS, _SAME_MODE = 60, 0.2
# the change point may be at so many thresholds, the best one in the middle
_CHANGES = 13
# Steps of a fit that finds out whether it may be the best, from where the parent is and
# from where the same child of a neighbouring threshold is.
_FIRST, _QUICK = 3, 1
# The least gain, in nats, that a step of these fits has to promise: at thresholds all
# over a column, and at those next to the best.
_COARSE, _CLOSE = 0.5, 0.05


@dataclass(frozen=True)
class GrownTrees:
    """The trees of a batch of data sets.

    Attributes:
        roots: One for each element of the flattened batch; each node has a fit.
        inputs: Its data, ``n x d`` each.
        scales: Relative lengthscales of its columns, ``d`` each.
        rbf: Whether its nodes were fitted with an RBF kernel.
    """

    roots: list[TreeNode]
    inputs: list[Array]
    scales: list[Array]
    rbf: list[bool]

    def theta(self, num_leaves: int, inner: bool) -> Tensor:
        """Estimates of (log l, log s^2, m, log v), ``E x N x 4``.

        Of leaves ``N = num_leaves``, or of nodes; of those that do not exist NaN.
        A leaf has the shortest lengthscale on its path, as a longer one than that of
        another node explains its data badly, and its own slope s^2 / l.
        """
        found = []
        for root in self.roots:
            nodes = root.walk() if inner else root.leaves()
            values = np.full((num_leaves, 4), np.nan)
            for k, node in enumerate(nodes):
                values[k] = node.fit.theta
                if not inner:
                    shortest = min(v.fit.theta[0] for v in node.path())
                    values[k, :2] += shortest - values[k, 0]
            found.append(values)
        return torch.as_tensor(np.stack(found))


def grow_trees(
    X: Tensor,
    y: Tensor,
    noise: Tensor | None,
    by_evidence: bool,
    min_leaf_size: int,
    max_leaves: int | None,
    categorical: Sequence[int],
    kernel: str,
    nodes_too: bool,
    one_leaf: bool,
) -> GrownTrees:
    """Grow a tree for each element of a batch, and fit each of its nodes.

    Args:
        X: Transformed inputs, ``batch_shape x n x d``.
        y: Transformed outcomes, ``batch_shape x n``.
        noise: Known noise variances, ``batch_shape x n``; None if they are not.
        by_evidence: Whether to split by evidence, or by variance.
        min_leaf_size: Fewest points of a leaf.
        max_leaves: Most leaves.
        categorical: Columns without an order.
        kernel: "matern", "rbf", or "evidence" for the one that explains the leaves of a
            tree better (which is grown with the first).
        nodes_too: Whether nodes below the root get fits of their own; if not, and they
            were not needed to grow the tree, they have the root's.
        one_leaf: Whether the kernel of a tree without splits matters.
    """
    n, d = X.shape[-2:]
    inputs = X.detach().expand(*y.shape[:-1], n, d).reshape(-1, n, d).cpu().double()
    targets = y.detach().reshape(-1, n).cpu().double()
    known = None if noise is None else noise.detach().expand(y.shape).reshape(-1, n)
    roots, data, scales, evidences = [], [], [], []
    for e, (points, values) in enumerate(zip(inputs, targets, strict=True)):
        x, t = points.numpy(), values.numpy()
        noise_rows = None if known is None else known[e].cpu().double().numpy()
        scale = relative_lengthscales(x, t, noise_rows, categorical)
        evidence = NodeEvidence(
            x / scale,
            t,
            NodePrior.of_dimension(d, NOISE_FLOOR),
            noise=noise_rows,
            categorical=categorical,
            rbf=kernel == "rbf",
        )
        if by_evidence:
            root = grow_by_evidence(x, evidence, min_leaf_size, max_leaves, categorical)
        else:
            root = grow_by_variance(x, t, min_leaf_size, max_leaves, categorical)
        roots.append(root)
        data.append(x)
        scales.append(scale)
        evidences.append(evidence)
    single = all(root.split is None for root in roots)
    for root, evidence in zip(roots, evidences, strict=True):
        if not nodes_too:
            fit = root.fit or _fit_root(evidence, thinned(root.home))
            for node in root.walk():
                node.fit = node.fit or fit
        else:
            fit_nodes(root, evidence)
            if kernel == "evidence" and (one_leaf or not single):
                try_rbf(root, evidence)
    rbf = [evidence.rbf for evidence in evidences]
    return GrownTrees(roots, data, scales, rbf)


def relative_lengthscales(
    X: Array, y: Array, noise: Array | None, categorical: Sequence[int]
) -> Array:
    """How much faster the outcome changes in one column than in another.

    The one lengthscale of a node is in these units: otherwise a node whose GP cannot
    tell relevant from irrelevant columns is split where one GP would do.

    Args:
        X: ``n x d``.
        y: ``n``.
        noise: Known noise variances, ``n``; None if they are not.
        categorical: Columns without an order, which have scale 1.

    Returns:
        ``d``, with geometric mean 1.
    """
    n, d = X.shape
    scale = np.ones(d)
    numeric = [j for j in range(d) if j not in categorical]
    if len(numeric) < 2 or n < 2:
        return scale
    rows = thinned(np.arange(n))
    count = len(numeric)
    prior = NodePrior.of_dimension(count, _RELATIVE_FLOOR, lengthscales=count)
    evidence = NodeEvidence(
        X[rows][:, numeric], y[rows], prior, None if noise is None else noise[rows]
    )
    everything = np.arange(len(rows))
    few = thinned(everything, _SCALE_ROWS)
    found = evidence.fit(few, [prior.mode], FULL_STEPS)
    if len(few) < len(rows):
        found = evidence.fit(everything, [found.theta], _LAST_STEPS)
    log_length = found.theta[:count]
    scale[numeric] = np.exp(log_length - log_length.mean())
    return scale


def grow_by_variance(
    X: Array,
    y: Array,
    min_leaf_size: int,
    max_leaves: int | None = None,
    categorical: Sequence[int] = (),
) -> TreeNode:
    """CART as in section 3.1 of Assael et al. (2014): as deep as it goes.

    Args:
        X: ``n x d``.
        y: ``n``.
        min_leaf_size: Fewest points of a leaf, shared ones included.
        max_leaves: Where to stop.
        categorical: Columns without an order.
    """
    root = TreeNode.root(X)

    def propose(node: TreeNode) -> Proposal | None:
        found = split_by_variance(
            X[node.rows], y[node.rows], min_leaf_size, categorical
        )
        if found is None:
            return None
        reduction, split = found
        children = node.divided(X, split)
        return Proposal(reduction * len(node.rows), split, children)

    grow(root, propose, max_leaves)
    return root


def grow_by_evidence(
    X: Array,
    evidence: NodeEvidence,
    min_leaf_size: int,
    max_leaves: int | None = None,
    categorical: Sequence[int] = (),
) -> TreeNode:
    """Split where two GPs explain the data better than one; none may be the answer.

    Each node's ``fit`` is left behind.

    Args:
        X: ``n x d``.
        evidence: Of subsets of these data.
        min_leaf_size: Fewest points of a leaf, shared ones included.
        max_leaves: Where to stop.
        categorical: Columns without an order.
    """
    root = TreeNode.root(X)
    root.fit = _fit_root(evidence, root.home)

    def propose(node: TreeNode) -> Proposal | None:
        return best_split_by_evidence(node, X, evidence, min_leaf_size, categorical)

    grow(root, propose, max_leaves)
    return root


def fit_nodes(root: TreeNode, evidence: NodeEvidence) -> None:
    """Fit the nodes of a tree that are not fitted, each from where its parent is.

    Args:
        root: The tree.
        evidence: Of subsets of its data.
    """
    for node in root.walk():
        if node.fit is not None:
            continue
        if node.parent is None:
            node.fit = _fit_root(evidence, node.home)
        else:
            node.fit = _fit(evidence, node.home, [node.parent.fit.theta])


def try_rbf(root: TreeNode, evidence: NodeEvidence) -> None:
    """Refit the nodes of a tree with an RBF kernel, if that explains its leaves better.

    Args:
        root: The tree, fitted with ``evidence``.
        evidence: With a Matern kernel; with an RBF kernel afterwards if that is better.
    """
    before = {id(node): node.fit for node in root.walk()}
    evidence.rbf = True
    for node in root.leaves():
        starts = [node.fit.theta, evidence.prior.mode]
        node.fit = _fit(evidence, node.home, starts)
    leaves = root.leaves()
    gain = sum(leaf.fit.log_evidence - before[id(leaf)].log_evidence for leaf in leaves)
    evidence.rbf = gain > 0
    for node in root.walk():
        if not evidence.rbf:
            node.fit = before[id(node)]
        elif node.split is not None:
            starts = [node.fit.theta, evidence.prior.mode]
            node.fit = _fit(evidence, node.home, starts)


def _fit(
    evidence: NodeEvidence, rows: Rows, starts: Sequence[Array], steps: int = FULL_STEPS
) -> NodeFit:
    """Fit a node, of many rows first to some of them."""
    few = thinned(rows)
    if len(few) == len(rows):
        return evidence.fit(rows, starts, steps)
    return evidence.fit(rows, [evidence.fit(few, starts, steps).theta], _LAST_STEPS)


def _fit_root(evidence: NodeEvidence, rows: Rows) -> NodeFit:
    """Fit all data, from several starts: noise or wiggles is a choice of modes."""
    starts = [evidence.prior.mode + np.array(s) for s in _ROOT_STARTS]
    few = thinned(rows, _MODE_ROWS)
    if len(few) < len(rows):
        modes: list[Array] = []
        for start in starts:
            theta = evidence.fit(few, [start]).theta
            if all(np.abs(theta - mode).max() > _SAME_MODE for mode in modes):
                modes.append(theta)
        starts = modes
    return _fit(evidence, rows, starts, 30)


_ROOT_STARTS = (
    (0.0, 0.0, 0.0, 0.0),
    (-1.0, 0.0, 0.0, -3.0),
    (1.0, 0.0, 0.0, 2.0),
    (-1.5, 0.0, 0.0, 2.0),
)


# -- the best split of a node ----------------------------------------------------------
#
# Two GPs are fitted for each threshold that is tried. To save fits, a few thresholds
# are tried in each column by fits of few steps, each from where the last one ended; the
# best ``_FINALISTS`` again by ``FULL_STEPS``, and then the neighbours of the best one.


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

    def attempt(
        splits: Sequence[Split],
        like: _Trial | None,
        steps: int,
        least_gain: float = CONVERGED,
    ) -> None:
        """Score splits; fits begin where an earlier trial or the parent is."""
        for split in splits:
            left, right = children = node.divided(X, split)
            # the right child has the point at the threshold too, but not in its home
            least = max(min_leaf_size - 1, 1)
            if len(left.home) < min_leaf_size or len(right.home) < least:
                continue
            rows = [child.home[in_score[child.home]] for child in children]
            if min(map(len, rows)) < 2:
                continue
            seen = trials.get(split)
            earlier = seen or like
            starts = (base, base) if earlier is None else earlier.fits
            first, second = (
                evidence.fit(
                    own, [start.theta], steps, start.point if seen else None, least_gain
                )
                for own, start in zip(rows, starts, strict=True)
            )
            value = first.log_evidence + second.log_evidence
            if math.isfinite(value):
                trials[split] = _Trial(value, children, (first, second))

    def best_of(count: int) -> list[Split]:
        return sorted(trials, key=lambda split: -trials[split].value)[:count]

    for chain in _candidates(node, X, evidence.y, min_leaf_size, categorical):
        last = None
        for split in chain:
            attempt([split], last, _FIRST if last is None else _QUICK, _COARSE)
            last = trials.get(split, last)
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
        # a fit that falls short makes the change point surer than the data do
        attempt([split for split in near if split != best], trial, _FIRST, _CLOSE)
        value, change = _average(trials, best, values, low, high)
    gain = value + prior
    if not gain > 0:
        return None
    for child, fit in zip(trial.children, trial.fits, strict=True):
        child.fit = fit
        if len(scored) < len(node.home):
            child.fit = evidence.fit(child.home, [fit.theta], _LAST_STEPS)
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
    change = ChangePoint(
        *map(torch.as_tensor, (values[near], values[near + 1], weights / weights.sum()))
    )
    return average, change


def _candidates(
    node: TreeNode, X: Array, y: Array, min_leaf_size: int, categorical: Sequence[int]
) -> list[list[Split]]:
    """Splits that are tried first, in chains from the middle of a column outwards."""
    found: list[list[Split]] = []
    for column in range(X.shape[1]):
        values = np.unique(X[node.home, column])
        if column in categorical:
            found += [[Split(column, float(v), True)] for v in values]
            continue
        places = np.linspace(0, len(values) - 1, _QUANTILES + 2)[1:-1]
        chosen = values[np.unique(np.round(places).astype(int))]
        splits = [Split(column, float(v)) for v in chosen]
        middle = len(splits) // 2
        found += [splits[middle:], splits[:middle][::-1]]
    cart = split_by_variance(X[node.home], y[node.home], min_leaf_size, categorical)
    if cart is not None and not any(cart[1] in chain for chain in found):
        found.append([cart[1]])
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
