r"""Which nodes of a tree to split: by what two GPs explain, or by variance.

The paper splits by CART's variance and found the entropy of GPs no better for much more
work. As a density, a tree that splits wherever it may is no better than one GP; what
helps is to split *only* where two GPs, each with its own scale, mean and noise, explain
the data better than one does, by Laplace's evidence and a prior on trees that makes
deep ones improbable (Chipman, George and McCulloch 1998).

Growing a tree asks for hundreds of evidences of small data sets, so these are of a
simple GP (``NodeEvidence``): a stationary kernel with one lengthscale, an amplitude, a
mean and a noise variance,

.. math:: \theta = (\log l_1, .., \log l_k, \log s^2, m, \log v),\quad k = 1,

Gaussian priors on theta, the maximum by damped Fisher scoring (the Fisher information
costs one matrix product more than the gradient, and a few steps do), and Laplace's
approximation with the same matrix. All of it is of at most 150 rows of a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import numpy as np
import torch
from scipy.linalg import lapack
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from botorch_structured.linalg.correlations import MATERN52, RBF
from botorch_structured.models.treed.cart import (
    Array,
    ChangePoint,
    Proposal,
    Rows,
    Split,
    TreeNode,
    as_array,
    grow,
    propose_by_variance,
    split_by_variance,
)

#: Smallest noise variance, in units of the variance of the outcomes.
NOISE_FLOOR = 1e-8
# A fit ends where a step promises less, in nats.
_LEAST_GAIN = 0.5
# So many thresholds are tried in each column, besides CART's, and at so many points on
# either side of the best one.
_QUANTILES = 9
_NEIGHBOURS = 6


# -- one GP on the data of a node ------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A log density, its gradient and its (expected) curvature.

    Attributes:
        value: At some theta.
        gradient: By the parameters that are not known.
        information: Of the same: positive definite, minus the expected Hessian.
    """

    value: float
    gradient: Array
    information: Array


@dataclass(frozen=True)
class NodeFit:
    """The fit of a node.

    Attributes:
        theta: Near the mode of the posterior.
        log_evidence: Laplace's approximation.
    """

    theta: Array
    log_evidence: float


class NodeEvidence:
    """Evidences of subsets of one data set; outcomes are standardised.

    The prior of log l grows with log(d) / 2, as distances do. The mode of the noise is
    small, its spread wide: most objectives have none, and in a search with few points
    wiggles must not pass for noise.

    Args:
        X: ``n x d``, in [0, 1].
        y: ``n``.
        noise_floor: Smallest noise variance.
        noise: Known noise variances, ``n``; inferred if None.
        categorical: Columns that count as equal or not.
        rbf: Whether the kernel is an RBF kernel instead of Matern-5/2.
        ard: Whether each column has a lengthscale, instead of one for all.

    Attributes:
        mode: Of the prior of theta.
        scale: Its standard deviations.
    """

    def __init__(
        self,
        X: Array,
        y: Array,
        noise_floor: float,
        noise: Array | None = None,
        categorical: Sequence[int] = (),
        rbf: bool = False,
        ard: bool = False,
    ) -> None:
        n, d = X.shape
        k = d if ard else 1
        # squared distances that go with each lengthscale
        self.squared = np.zeros((k, n, n))
        for j, x in enumerate(X.T):
            difference = x[:, None] - x
            if j in categorical:
                difference = difference != 0
            self.squared[j % k] += difference**2
        self.y = y
        self.noise_floor = noise_floor
        self.noise = noise
        self.rbf = rbf
        self.mode = np.array([math.log(0.4 * math.sqrt(d))] * k + [0.0, 0.0, -9.0])
        self.scale = np.array([1.0] * k + [1.5, 1.0, 3.0])
        # log v is a parameter if the noise is not known
        self.free = np.arange(k + 3 if noise is None else k + 2)

    def fit(
        self,
        rows: Rows,
        starts: Sequence[Array],
    ) -> NodeFit:
        """The posterior mode of theta given some of the data, the best of several.

        Args:
            rows: The data; of more than 150, so many count.
            starts: Where to begin, a theta each.
        """
        if len(rows) == 0:  # nothing was observed: the prior
            return NodeFit(self.mode, 0.0)
        rows = thinned(rows)
        # by whole rows first: half the time of both at once
        squared = self.squared.take(rows, axis=1).take(rows, axis=2)
        best = NodeFit(self.mode, -math.inf)
        highest = -math.inf
        for start in starts:
            theta, point = self._climb(start, rows, squared)
            if point is not None and point.value > highest:
                highest = point.value
                best = NodeFit(theta, _laplace(point))
        return best

    def _climb(
        self,
        theta: Array,
        rows: Rows,
        squared: Array,
    ) -> tuple[Array, Point | None]:
        """Damped scoring; the point is None if the start has no density."""
        point = self.evaluate(theta, rows, squared)
        damping = 1e-2
        for _ in range(30):
            if point is None or damping > 1e6:
                break
            damped = point.information.copy()
            damped.ravel()[:: len(damped) + 1] *= 1.0 + damping
            step = np.linalg.solve(damped, point.gradient)
            if 0.5 * float(step @ point.gradient) < _LEAST_GAIN:
                break
            trial = theta.copy()
            trial[self.free] += step * min(1.0, 2.0 / float(np.abs(step).max()))
            there = self.evaluate(trial, rows, squared)
            if there is None or there.value <= point.value:
                damping *= 8.0
                continue
            damping = max(damping / 5.0, 1e-6)
            theta = trial
            point = there
        return theta, point

    def evaluate(
        self,
        theta: Array,
        rows: Rows,
        squared: Array,
    ) -> Point | None:
        """Log posterior of theta, its gradient and the Fisher information.

        Args:
            theta: ``k + 3``.
            rows: The data, ``m``.
            squared: Their squared distances, ``k x m x m``.

        Returns:
            None where the covariance has no factor, and far from the prior.
        """
        if np.abs(theta).max() > 15.0:
            return None
        k, n = squared.shape[:2]
        variance = math.exp(theta[k])
        free_noise = math.exp(theta[k + 2])
        noise = np.full(n, free_noise + self.noise_floor)
        if self.noise is not None:
            noise = self.noise[rows]
        parts = squared * np.exp(-2.0 * theta[:k])[:, None, None]
        correlation = RBF if self.rbf else MATERN52
        covariance, slope = correlation.array_value_and_slope(parts.sum(0))
        parts *= 2.0 * variance * slope  # derivatives by log l_j
        covariance *= variance
        covariance.ravel()[:: n + 1] += noise
        # symmetric: in the order of Fortran the transpose is the same matrix, uncopied
        chol, info = lapack.dpotrf(
            covariance.T,
            lower=1,
            clean=1,
            overwrite_a=1,
        )
        if info != 0:
            return None
        residual = self.y[rows] - theta[k + 1]
        half = lapack.dtrtrs(chol, residual, lower=1)[0]
        log_det = 2.0 * float(np.log(chol.diagonal()).sum())
        inverse = lapack.dpotri(chol, lower=1, overwrite_c=1)[0].T
        inverse = inverse + inverse.T
        inverse.ravel()[:: n + 1] *= 0.5
        alpha = inverse @ residual
        # K^-1 dK by log l_j, log s^2 and log v
        products = np.empty((k + 2, n, n))
        np.matmul(inverse, parts, out=products[:k])
        products[k] = inverse * -noise
        products[k].ravel()[:: n + 1] += 1.0
        products[k + 1] = inverse * free_noise
        flat = products.reshape(k + 2, -1)
        turned = products.transpose(0, 2, 1).reshape(k + 2, -1)
        places = np.array([*range(k + 1), k + 2])
        gradient = np.empty(k + 3)
        gradient[places] = residual @ products @ alpha - flat[:, :: n + 1].sum(-1)
        gradient[places] *= 0.5
        gradient[k + 1] = alpha.sum()
        # 1/2 tr(K^-1 dK_i K^-1 dK_j), and of the mean 1' K^-1 1
        information = np.diag(self.scale**-2.0)
        information[np.ix_(places, places)] += 0.5 * flat @ turned.T
        information[k + 1, k + 1] += inverse.sum()
        free = self.free
        z = ((theta - self.mode) / self.scale)[free]
        log_scales = np.log(self.scale[free]).sum()
        constant = (n + len(free)) * math.log(2.0 * math.pi)
        value = -0.5 * (half @ half + z @ z + log_det + constant) - log_scales
        gradient = gradient[free] - z / self.scale[free]
        return Point(float(value), gradient, information[: len(free), : len(free)])


def _laplace(point: Point) -> float:
    """The log evidence, with what a further step promises: it is not taken."""
    step = np.linalg.solve(point.information, point.gradient)
    gain = min(0.5 * float(step @ point.gradient), _LEAST_GAIN)
    log_det = float(np.linalg.slogdet(point.information)[1])
    constant = len(step) * math.log(2.0 * math.pi)
    return point.value + gain + 0.5 * (constant - log_det)


def thinned(rows: Rows, most: int = 150) -> Rows:
    """At most so many rows, the same ones each time: what decisions are made on.

    Args:
        rows: Any number of them.
        most: How many.
    """
    if len(rows) <= most:
        return rows
    chosen = np.random.default_rng(0).permutation(len(rows))[:most]
    return rows[np.sort(chosen)]


# -- trees -----------------------------------------------------------------------------


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

    def estimates(self, of_leaves: bool) -> Tensor:
        """Estimates of (l, s^2, m, v) of all nodes, ``E x N x 4``.

        Or of leaves. A leaf has the shortest lengthscale on its path, as a longer one
        than that of another node explains its data badly, and its own slope s^2 / l.
        Those of nodes that do not exist are NaN.
        """
        parts = []
        for root in self.roots:
            nodes = root.leaves() if of_leaves else root.walk()
            theta = np.array([node.fit.theta for node in nodes])
            if of_leaves:
                lengths = [[v.fit.theta[0] for v in node.path()] for node in nodes]
                theta[:, :2] += [[min(path) - path[0]] for path in lengths]
            theta[:, [0, 1, 3]] = np.exp(theta[:, [0, 1, 3]])
            theta[:, 3] += NOISE_FLOOR
            parts.append(torch.as_tensor(theta))
        return pad_sequence(parts, batch_first=True, padding_value=math.nan)


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
    """

    def elements(values: Tensor, *shape: int) -> Array:
        values = values.expand(*y.shape[:-1], *shape)
        return as_array(values.reshape(-1, *shape))

    n, d = X.shape[-2:]
    inputs = list(elements(X, n, d))
    noises = [None] * len(inputs) if noise is None else list(elements(noise, n))
    grown = GrownTrees([], inputs, [], [])
    for points, outcomes, variances in zip(inputs, elements(y, n), noises, strict=True):
        scale = relative_lengthscales(
            points,
            outcomes,
            variances,
            categorical,
        )
        evidence = NodeEvidence(
            points / scale,
            outcomes,
            NOISE_FLOOR,
            variances,
            categorical,
            kernel == "rbf",
        )
        root = TreeNode.root(points)
        root.fit = fit_root(evidence, root.home)
        criterion: partial[Proposal | None]
        if by_evidence:
            criterion = partial(propose_by_evidence, evidence=evidence)
        else:
            criterion = partial(propose_by_variance, y=outcomes)
        propose = partial(
            criterion,
            X=points,
            min_leaf_size=min_leaf_size,
            categorical=categorical,
        )
        grow(root, propose, max_leaves)
        for node in root.walk():
            if node.fit is None and node.parent is not None:
                node.fit = node.parent.fit
                if nodes_too:
                    node.fit = evidence.fit(node.home, [node.fit.theta])
        if kernel == "evidence":
            try_rbf(root, evidence)
        grown.roots.append(root)
        grown.scales.append(scale)
        grown.rbf.append(evidence.rbf)
    return grown


def relative_lengthscales(
    X: Array,
    y: Array,
    noise: Array | None,
    categorical: Sequence[int],
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
    rows = thinned(np.arange(n), 75)
    evidence = NodeEvidence(
        X[rows][:, numeric],
        y[rows],
        1e-6,  # with less noise scoring takes more steps
        None if noise is None else noise[rows],
        ard=True,
    )
    fit = evidence.fit(np.arange(len(rows)), [evidence.mode])
    log_length = fit.theta[: len(numeric)]
    scale[numeric] = np.exp(log_length - log_length.mean())
    return scale


def try_rbf(root: TreeNode, evidence: NodeEvidence) -> None:
    """Refit the nodes of a tree with an RBF kernel, if that explains its leaves better.

    Args:
        root: The tree, fitted with ``evidence``.
        evidence: With a Matern kernel; with an RBF kernel afterwards if that is better.
    """
    nodes = root.walk()
    evidence.rbf = True
    gain = 0.0
    fits = []
    for node in nodes:
        fit = evidence.fit(node.home, [node.fit.theta, evidence.mode])
        fits.append(fit)
        if node.split is None:
            gain += fit.log_evidence - node.fit.log_evidence
    evidence.rbf = gain > 0.0
    if evidence.rbf:
        for node, fit in zip(nodes, fits, strict=True):
            node.fit = fit


def fit_root(evidence: NodeEvidence, rows: Rows) -> NodeFit:
    """Fit all data, from several starts: noise or wiggles is a choice of modes."""
    shifts = (0.0, 0.0), (-1.0, -3.0), (1.0, 2.0), (-1.5, 2.0)
    starts = [evidence.mode + np.array([a, 0.0, 0.0, b]) for a, b in shifts]
    best = evidence.fit(thinned(rows, 60), starts)
    return evidence.fit(rows, [best.theta])


# -- the best split of a node ----------------------------------------------------------


def propose_by_evidence(
    node: TreeNode,
    X: Array,
    evidence: NodeEvidence,
    min_leaf_size: int,
    categorical: Sequence[int] = (),
) -> Proposal | None:
    """The split where two GPs explain a node's data better than one, if there is any.

    The node's ``fit`` is of all its data then. A few thresholds are tried in each
    column, and then the neighbours of the best.

    Args:
        node: With its ``fit``.
        X: ``n x d``, all data.
        evidence: Of subsets of these data.
        min_leaf_size: Fewest points of a child, the shared one included.
        categorical: Columns without an order.
    """
    node.fit = evidence.fit(node.home, [node.fit.theta])
    if len(node.rows) < 2 * min_leaf_size - 1:
        return None
    scored = np.zeros(len(X), dtype=bool)
    scored[thinned(node.home)] = True
    trials: dict[Split, Proposal] = {}  # by the sum of the evidences

    def attempt(split: Split, starts: Sequence[TreeNode]) -> None:
        """Score a split; fits of its children begin at those of others."""
        left, right = children = node.divided(X, split)
        # the right child has the point at the threshold too, but not in its home
        if len(left.home) < min_leaf_size or len(right.home) < max(
            min_leaf_size - 1, 1
        ):
            return
        value = 0.0
        for child, start in zip(children, starts, strict=True):
            rows = child.home[scored[child.home]]
            if len(rows) < 2:
                return
            child.fit = evidence.fit(rows, [start.fit.theta])
            value += child.fit.log_evidence
        if math.isfinite(value):
            trials[split] = Proposal(value, split, children)

    def best() -> Proposal:
        return max(trials.values(), key=attrgetter("value"))

    for split in _candidates(
        node,
        X,
        evidence.y,
        min_leaf_size,
        categorical,
    ):
        attempt(split, (node, node))
    if not trials:
        return None
    column = best().split.column
    values = np.unique(X[node.home, column])
    change = None
    if column in categorical:
        average = best().value - math.log(len(values))
    else:
        for _ in range(2):
            trial = best()
            place = int(np.searchsorted(values, trial.split.threshold))
            near = slice(max(place - _NEIGHBOURS, 0), place + _NEIGHBOURS + 1)
            for value in values[near]:
                split = Split(column, float(value))
                if split not in trials:
                    attempt(split, trial.children)
        average, change = _average(trials, best().split, values)
    gain = average + _log_prior_odds(node.depth, X.shape[1]) - node.fit.log_evidence
    return replace(best(), value=gain, change=change) if gain > 0 else None


def _log_prior_odds(depth: int, columns: int) -> float:
    """Log prior odds of splitting a node once, in one column, against no split.

    A node at depth k is split with probability (1 + k)^-2 / 2.
    """
    split = 0.5 * (1.0 + depth) ** -2.0
    below = 0.5 * (2.0 + depth) ** -2.0
    odds = math.log(split) + 2.0 * math.log(1.0 - below) - math.log(1.0 - split)
    return odds - math.log(columns)


def _average(
    trials: dict[Split, Proposal],
    best: Split,
    values: Array,
) -> tuple[float, ChangePoint]:
    """Evidence averaged over the thresholds of a column, and where the change is.

    Splits that were not tried have evidences in between those of their neighbours.

    Args:
        trials: The splits that were tried.
        best: The best of them.
        values: All thresholds of its column, ascending.
    """
    tried = sorted(
        (split.threshold, trial.value)
        for split, trial in trials.items()
        if split.column == best.column
    )
    thresholds, evidences = np.array(tried).T
    places = np.searchsorted(values, thresholds)
    admissible = np.arange(places[0], places[-1] + 1)
    evidence = np.interp(admissible, places, evidences)
    peak = float(evidence.max())
    average = peak + math.log(float(np.exp(evidence - peak).mean()))
    distance = np.abs(admissible - np.searchsorted(values, best.threshold))
    chosen = (distance <= _NEIGHBOURS) & (admissible + 1 < len(values))
    near = admissible[chosen]
    weights = np.exp(evidence[chosen] - peak)
    weights /= weights.sum()
    parts = values[near], values[near + 1], weights
    return average, ChangePoint(*map(torch.as_tensor, parts))


def _candidates(
    node: TreeNode,
    X: Array,
    y: Array,
    min_leaf_size: int,
    categorical: Sequence[int],
) -> list[Split]:
    """Splits that are tried first: a few quantiles of each column, and CART's."""
    splits = []
    for column in range(X.shape[1]):
        values = np.unique(X[node.home, column])
        named = column in categorical
        if not named:
            places = np.linspace(0, len(values) - 1, _QUANTILES + 2)[1:-1]
            values = values[np.unique(np.round(places).astype(int))]
        splits += [Split(column, float(v), named) for v in values]
    cart = split_by_variance(
        X[node.home],
        y[node.home],
        min_leaf_size,
        categorical,
    )
    if cart is not None:
        splits.append(cart[1])
    return splits
