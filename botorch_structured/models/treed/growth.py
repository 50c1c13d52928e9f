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
    "LeafObjective",
    "LeafPrior",
    "LeafTerm",
    "NOISE_FLOOR",
    "fit_nodes",
    "grow_by_evidence",
    "grow_by_variance",
    "grow_trees",
    "try_rbf",
]

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import lapack
from torch import Tensor

from botorch_structured.models.treed.scoring import (
    FULL_STEPS,
    NodeEvidence,
    NodeFit,
    NodePrior,
    Point,
    best_split_by_evidence,
    climb,
    thinned,
)
from botorch_structured.models.treed.tree import (
    Array,
    Proposal,
    Rows,
    TreeNode,
    grow,
    split_by_variance,
)


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
    root = _root(X)

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
    root = _root(X)
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
            starts = [node.parent.fit.theta]
            node.fit = evidence.fit(node.home, starts, FULL_STEPS)


def try_rbf(root: TreeNode, evidence: NodeEvidence) -> None:
    """Refit the nodes of a tree with an RBF kernel, if that explains its leaves better.

    Args:
        root: The tree, fitted with ``evidence``.
        evidence: With a Matern kernel; with an RBF kernel afterwards if that is better.
    """
    before = {id(node): node.fit for node in root.walk()}
    evidence.rbf = True
    for node in root.walk():
        starts = [node.fit.theta, evidence.prior.mode]
        node.fit = evidence.fit(node.home, starts, FULL_STEPS)
    leaves = root.leaves()
    gain = sum(leaf.fit.log_evidence - before[id(leaf)].log_evidence for leaf in leaves)
    if not gain > 0:
        evidence.rbf = False
        for node in root.walk():
            node.fit = before[id(node)]


def _fit_root(evidence: NodeEvidence, rows: Rows) -> NodeFit:
    """Fit all data, from several starts: noise or wiggles is a choice of modes."""
    mode = evidence.prior.mode
    starts = [mode + np.array(s) for s in _ROOT_STARTS]
    few = thinned(rows)
    if len(few) == len(rows):
        return evidence.fit(rows, starts)
    return evidence.fit(rows, [evidence.fit(few, starts).theta], FULL_STEPS)


_ROOT_STARTS = (
    (0.0, 0.0, 0.0, 0.0),
    (-1.0, 0.0, 0.0, -3.0),
    (1.0, 0.0, 0.0, 2.0),
    (-1.5, 0.0, 0.0, 2.0),
)


def _root(X: Array) -> TreeNode:
    rows = np.arange(len(X))
    return TreeNode(rows=rows, home=rows)


# ----------------------------------------------------------------------
# The maximum of equation (2) for one leaf, by scoring.
#
# L-BFGS takes a hundred evaluations or more to find what damped Fisher scoring finds in
# ten, as amplitude, noise and lengthscales of a small data set are strongly correlated.
# Theta is (log l_1, .., log l_d, log s^2, m, log v); of nodes above the leaf only the
# lengthscales are theta's, see ``path_sharing``.

_LOG_TWO_PI = math.log(2.0 * math.pi)


@dataclass(frozen=True)
class LeafPrior:
    """Independent Gaussians on theta, and bounds.

    Attributes:
        mode: ``d + 3``.
        scale: Standard deviations, ``d + 3``.
        lower: ``d + 3``.
        upper: ``d + 3``.
    """

    mode: Array
    scale: Array
    lower: Array
    upper: Array


class LeafTerm:
    """The weighted evidence of one node.

    Args:
        weight: w_i.
        X: ``m x d``.
        y: ``m``.
        noise: Known noise variances ``m``, or None.
        own: (variance, mean, noise) of a node above the leaf; None for the leaf.
        rbf: Whether the kernel is an RBF kernel instead of Matern-5/2.
    """

    def __init__(
        self,
        weight: float,
        X: Array,
        y: Array,
        noise: Array | None,
        own: tuple[float, float, float] | None,
        rbf: bool = False,
    ) -> None:
        self.weight, self.y, self.noise, self.own = weight, y, noise, own
        self.rbf = rbf
        self.squared = (X.T[:, :, None] - X.T[:, None, :]) ** 2

    def weighted(self, weight: float) -> LeafTerm:
        """The same data on the path of another leaf."""
        other = copy(self)
        other.weight = weight
        return other

    def evaluate(self, theta: Array) -> Point | None:
        """Log evidence of the node, without the weight; all of theta is free."""
        d, n = self.squared.shape[:2]
        length, (log_variance, mean, log_noise) = theta[:d], theta[d:]
        variance, free_noise = math.exp(log_variance), math.exp(log_noise)
        if self.own is not None:
            variance, mean, free_noise = self.own
        v = free_noise if self.noise is None else self.noise
        parts = self.squared * np.exp(-2.0 * length)[:, None, None]
        u = parts.sum(0)
        if self.rbf:
            u *= -0.5
            np.exp(u, out=u)
            u *= variance
            slope = u.copy()
        else:
            u *= 5.0
            np.sqrt(u, out=u)
            e = np.exp(-u)
            e *= variance
            slope = 1.0 + u
            slope *= e
            u *= u
            u *= e
            u *= 1.0 / 3.0
            u += slope  # the covariance
            slope *= 5.0 / 3.0
        u.flat[:: n + 1] += v
        chol, info = lapack.dpotrf(u, lower=1, clean=1, overwrite_a=1)
        if info != 0:
            return None
        r = self.y - mean
        alpha = lapack.dpotrs(chol, r, lower=1)[0]
        value = -0.5 * (float(r @ alpha) + n * _LOG_TWO_PI)
        value -= float(np.log(chol.diagonal()).sum())
        inverse, info = lapack.dpotri(chol, lower=1)
        if info != 0:
            return None
        inverse += inverse.T  # the upper triangle was zero
        inverse.flat[:: n + 1] *= 0.5
        parts *= slope  # derivatives by log l_j
        products = [inverse @ part for part in parts]
        traces = [float(product.trace()) for product in products]
        p = d + 3
        gradient = np.zeros(p)
        information = np.zeros((p, p))
        for j, part in enumerate(parts):
            gradient[j] = 0.5 * (float(alpha @ (part @ alpha)) - traces[j])
            for k in range(j + 1):
                both = 0.5 * float(np.vdot(products[k].T, products[j]))
                information[j, k] = information[k, j] = both
        if self.own is not None:
            return Point(value, gradient, information)
        squares = inverse * inverse
        trace = inverse.diagonal()
        trace_v = float((trace * v).sum())
        weighted = v * squares.sum(1) if self.noise is None else squares @ v
        s, m, q = d, d + 1, d + 2
        gradient[s] = 0.5 * (float(alpha @ (r - v * alpha)) - n + trace_v)
        gradient[m] = float(alpha.sum())
        information[s, s] = 0.5 * (n - 2.0 * trace_v + float((v * weighted).sum()))
        information[m, m] = float(inverse.sum())
        mixed = [(product * inverse).sum(1) for product in products]
        for j in range(d):
            both = 0.5 * (traces[j] - float((v * mixed[j]).sum()))
            information[s, j] = information[j, s] = both
        if self.noise is None:
            total = float(trace.sum())
            gradient[q] = 0.5 * free_noise * (float(alpha @ alpha) - total)
            information[q, q] = 0.5 * free_noise**2 * float(squares.sum())
            both = 0.5 * free_noise * (total - float(weighted.sum()))
            information[s, q] = information[q, s] = both
            for j in range(d):
                both = 0.5 * free_noise * float(mixed[j].sum())
                information[q, j] = information[j, q] = both
        return Point(value, gradient, information)


class LeafObjective:
    """Equation (2) of a leaf.

    Args:
        terms: The nodes on its path.
        prior: p(theta).
    """

    def __init__(self, terms: Sequence[LeafTerm], prior: LeafPrior) -> None:
        self.terms, self.prior = terms, prior
        known = all(term.noise is not None for term in terms)
        self.free = np.ones(len(prior.mode), dtype=bool)
        self.free[-1] = not known

    def evaluate(self, theta: Array) -> Point | None:
        """The objective up to a constant, its gradient and expected curvature."""
        z = (theta - self.prior.mode) / self.prior.scale
        value = -0.5 * float((z[self.free] ** 2).sum())
        gradient = -z / self.prior.scale
        information = np.diag(self.prior.scale**-2.0)
        for term in self.terms:
            point = term.evaluate(theta)
            if point is None:
                return None
            value += term.weight * point.value
            gradient += term.weight * point.gradient
            information += term.weight * point.information
        if not math.isfinite(value):
            return None
        free = self.free
        return Point(value, gradient[free], information[np.ix_(free, free)])

    def maximise(self, start: Array, max_steps: int = 40) -> Array | None:
        """The theta that maximises the objective; None if the start is not possible.

        Args:
            start: Where to begin, ``d + 3``.
            max_steps: Most steps.
        """
        bounds = (self.prior.lower, self.prior.upper)
        found = climb(self.evaluate, start, max_steps, self.free, bounds)
        return None if found is None else found[0]


# ----------------------------------------------------------------------
# From data to trees, and from trees to the hyperparameters a fit starts from.

#: Smallest noise variance, in units of the variance of the outcomes.
NOISE_FLOOR = 1e-8


@dataclass(frozen=True)
class GrownTrees:
    """The trees of a batch of data sets.

    Attributes:
        roots: One for each element of the flattened batch; each node has been fitted.
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
        """
        found = []
        for root in self.roots:
            nodes = root.walk() if inner else root.leaves()
            values = np.full((num_leaves, 4), np.nan)
            for k, node in enumerate(nodes):
                values[k] = node.fit.theta
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
    """
    n, d = X.shape[-2:]
    inputs = X.detach().expand(*y.shape[:-1], n, d).reshape(-1, n, d).cpu().double()
    targets = y.detach().reshape(-1, n).cpu().double()
    known = None if noise is None else noise.detach().expand(y.shape).reshape(-1, n)
    roots, data, scales, rbf = [], [], [], []
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
        fit_nodes(root, evidence)
        if kernel == "evidence":
            try_rbf(root, evidence)
        rbf.append(evidence.rbf)
        roots.append(root)
        data.append(x)
        scales.append(scale)
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
    iso = NodePrior.of_dimension(len(numeric), NOISE_FLOOR)

    def spread(values: Array, first: float) -> Array:
        return np.concatenate([np.full(len(numeric), first), values[1:]])

    prior = LeafPrior(
        mode=spread(iso.mode, iso.mode[0]),
        scale=spread(iso.scale, iso.scale[0]),
        lower=np.concatenate([np.full(len(numeric), -4.5), [-11.0, -5.0, -13.8]]),
        upper=np.concatenate([np.full(len(numeric), 4.0), [5.0, 5.0, 2.3]]),
    )
    term = LeafTerm(
        1.0,
        X[rows][:, numeric],
        y[rows],
        None if noise is None else noise[rows],
        None,
    )
    found = LeafObjective([term], prior).maximise(prior.mode, max_steps=12)
    if found is not None:
        log_length = found[: len(numeric)]
        scale[numeric] = np.exp(log_length - log_length.mean())
    return scale
