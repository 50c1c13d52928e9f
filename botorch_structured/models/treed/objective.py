r"""The objective of a treed GP: equation (2) of [Assael2014treed]_.

The hyperparameters of leaf j maximise

.. math:: \sum_{i \in path_j} w_i \log p(y_i | x_i, \theta) + \log p(\theta), \quad
    w_i = \frac{|M_j|}{|M_i|} \frac{1}{1 + depth_j - depth_i}

over the nodes i from the root to j, with their data M_i. ``path_evidence`` is the sum
over all leaves, plainly, for any kernel, batch and device; ``LeafDensity`` is that of
one leaf with the gradient written out, for the default kernel on a CPU, which
``maximum`` adds up and climbs.

The objective is more than a prior and a likelihood determine. ``fit_gpytorch_mll``
finds it through BoTorch's hook ``compute_custom_loss``; slice sampling, and whoever
else evaluates the mll, through the log density of the prior that ``TreedGP.forward``
returns in training mode.

``LeafDensity`` is a function of ``theta = (log l_1, .., log l_d, log s^2, m, log v)``.
Where a node has what the leaf has (``path_sharing="all"``), one factorisation serves
all terms of a leaf: the nodes of a path are nested, so with the rows of the leaf first,
then what its parent has besides, and so on, the Cholesky factor L of the root's
covariance has those of all others as leading blocks. One inverse does too: with D the
diagonal matrix of the sums of the weights of all nodes that a row is in,

.. math:: G = \tfrac12 (\sum_i w_i \alpha_i \alpha_i^\top - (L D^{-1} L^\top)^{-1})

is the derivative of the sum by the covariance. Where a node has an amplitude, a mean
and noise of its own, each node has a factorisation.
"""

from __future__ import annotations

__all__ = [
    "LeafDensity",
    "LeafTerm",
    "NodeDensities",
    "Scratch",
    "TreeData",
    "leaf_terms",
    "path_evidence",
    "path_weight",
]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from scipy.linalg import blas, lapack
from torch import Tensor

from botorch_structured.linalg.correlations import Correlation
from botorch_structured.linalg.factor import failed
from botorch_structured.models.treed.cart import Array, Rows, TreeNode
from botorch_structured.models.treed.scoring import Point, likelihood, thinned

# Added to the amplitude of a leaf, in units of that of a node: without a prior, output
# scales may go to zero, which no factor can undo.
_LEAST_AMPLITUDE = 1e-12
_LOG_TWO_PI = math.log(2.0 * math.pi)
# What is added to the diagonal of a matrix without a factor, as by GPyTorch.
_JITTERS = (0.0, 1e-8, 1e-7, 1e-6)
# Of a node with more rows, so many say what its Fisher information is.
_INFORMED_ROWS = 75
# Of more nodes, about so many say where all leaves begin.
_SAMPLED_NODES = 30
_BLOCK = 128  # rows of a matrix that is worked on at once

Scratch = tuple[Array, Array]  # a covariance and its slope; two factors of distances


# -- the definition ------------------------------------------------------------------


def path_weight(
    leaf: TreeNode, node: TreeNode, data: Callable[[TreeNode], Rows]
) -> float:
    """w_i of equation (2), as printed.

    Args:
        leaf: j.
        node: i, on the path from j to the root.
        data: The rows of a node that count.
    """
    return len(data(leaf)) / len(data(node)) / (1.0 + leaf.depth - node.depth)


class NodeTerms(NamedTuple):
    """The terms of one node i: one for each leaf j with data that has it on its path.

    Attributes:
        node: Number of the node in ``TreeNode.walk``.
        rows: M_i, ``m``.
        leaves: Numbers of the leaves, ``B``.
        weights: w_i for each of them, ``B``.
        is_leaf: Whether the node is itself the leaf.
    """

    node: int
    rows: Tensor
    leaves: Tensor
    weights: Tensor
    is_leaf: bool


@dataclass(frozen=True)
class TreeData:
    """The data of one tree.

    Attributes:
        root: The tree, with the data in it.
        X: Transformed inputs, ``n x d``.
        y: Observations, ``n``.
        data: The rows of a node that count.
    """

    root: TreeNode
    X: Tensor
    y: Tensor
    data: Callable[[TreeNode], Rows]

    @cached_property
    def terms(self) -> list[NodeTerms]:
        """The terms of equation (2), node by node."""
        found = []
        for i, node in enumerate(self.root.walk()):
            leaves = [leaf for leaf in node.leaves() if len(self.data(leaf))]
            weights = [path_weight(leaf, node, self.data) for leaf in leaves]
            if leaves:
                found.append(
                    NodeTerms(
                        i,
                        torch.as_tensor(self.data(node), device=self.y.device),
                        torch.tensor([leaf.leaf for leaf in leaves]).to(self.y.device),
                        torch.tensor(weights).to(self.y),
                        node.split is None,
                    )
                )
        return found


def path_evidence(
    terms: Sequence[NodeTerms],
    y: Tensor,
    covariance: Tensor,
    mean: Tensor,
    noise: Tensor,
    levels: tuple[Tensor, Tensor, Tensor | None] | None = None,
) -> Tensor:
    """The sum of equation (2) without the prior, over all leaves of a tree: a scalar.

    Which parameter of a kernel is the amplitude is not known. So where nodes have
    values of their own, a node above the leaf has the leaf's covariance times a factor
    that makes its mean prior variance that of the node.

    Args:
        terms: Of all nodes.
        y: Observations, ``n``.
        covariance: Prior covariances of all data in each leaf, ``L x n x n``.
        mean: Prior means, ``L x n``.
        noise: Noise variances, ``L x n``.
        levels: Amplitudes, means and noise variances of the nodes, ``N`` each, which
            nodes above the leaves have; a noise of None is that of the leaf. None if
            nodes have those of the leaf.

    Raises:
        NotPSDError: If a covariance is not positive definite even with jitter.
    """
    matrices, residuals = [], []
    for node, rows, leaves, _, is_leaf in terms:
        K, m, v = (
            t.index_select(0, leaves).index_select(1, rows)
            for t in (covariance, mean, noise)
        )
        K = K.index_select(2, rows)
        if levels is not None and not is_leaf:
            amplitude, level, own_noise = levels
            wanted = amplitude[node]
            average = K.diagonal(dim1=-1, dim2=-2).mean(-1)
            factor = wanted / (average + _LEAST_AMPLITUDE * wanted)
            K, m = K * factor[:, None, None], level[node].expand_as(m)
            v = v if own_noise is None else own_noise[node].expand_as(v)
        matrices.append(K + torch.diag_embed(v))
        residuals.append(y[rows] - m)
    factors = [torch.linalg.cholesky_ex(K) for K in matrices]
    if failed([flag for _, flag in factors]):
        roots = [psd_safe_cholesky(K) for K in matrices]
    else:
        roots = [root for root, _ in factors]
    total = y.new_zeros(())
    for term, L, r in zip(terms, roots, residuals, strict=True):
        half = torch.linalg.solve_triangular(L, r.unsqueeze(-1), upper=False)
        logs = 2.0 * L.diagonal(dim1=-1, dim2=-2).log() + math.log(2.0 * math.pi)
        density = -0.5 * (half.squeeze(-1).square() + logs).sum(-1)
        total = total + term.weights @ density
    return total


# -- one leaf, on arrays --------------------------------------------------------------


@dataclass(frozen=True)
class LeafTerm:
    """Nodes on the path of a leaf that have the same hyperparameters.

    Attributes:
        X: Their data, those of nested nodes one after the other, ``m x d``.
        y: ``m``.
        noise: Known noise variances, ``m``; None if they are not.
        nodes: Their numbers in ``TreeNode.walk``, the smallest first.
        sizes: How many of the rows each node has.
        weights: Of the nodes.
        level: Amplitude, mean and noise variance of a node that does not share those of
            the leaf; None if it does.
    """

    X: Array
    y: Array
    noise: Array | None
    nodes: tuple[int, ...]
    sizes: tuple[int, ...]
    weights: Array
    level: tuple[float, float, float] | None

    @cached_property
    def of_rows(self) -> tuple[Array, Array, Array]:
        """Sums of the weights of the nodes that a row is in, and which nodes these are.

        ``m``, their inverse roots, and ``m x k``.
        """
        inside = (np.arange(len(self.y))[:, None] < self.sizes).astype(float)
        weights = inside @ self.weights
        return weights, weights**-0.5, inside

    def first(self, count: int) -> LeafTerm:
        """That of the smallest nodes only."""
        rows = slice(self.sizes[count - 1])
        return replace(
            self,
            X=self.X[rows],
            y=self.y[rows],
            noise=None if self.noise is None else self.noise[rows],
            nodes=self.nodes[:count],
            sizes=self.sizes[:count],
            weights=self.weights[:count],
        )


def leaf_terms(
    root: TreeNode,
    data: Callable[[TreeNode], Rows],
    X: Array,
    y: Array,
    noise: Array | None = None,
    levels: Array | None = None,
) -> list[list[LeafTerm]]:
    """The terms of each leaf; of leaves without data none.

    Args:
        root: The tree.
        data: The rows of a node that count, nested along each path.
        X: ``n x d``.
        y: ``n``.
        noise: Known noise variances, ``n``; None if they are not.
        levels: Amplitude, mean and noise variance of each node, which it has above the
            leaves; None if it has those of the leaf there.
    """
    number = {id(node): k for k, node in enumerate(root.walk())}

    def term(nodes: Sequence[TreeNode], leaf: TreeNode) -> LeafTerm:
        # each row once, with the first node that has it
        rows = np.concatenate([data(node) for node in nodes])
        rows = rows[np.sort(np.unique(rows, return_index=True)[1])]
        first = number[id(nodes[0])]
        return LeafTerm(
            X[rows],
            y[rows],
            None if noise is None else noise[rows],
            tuple(number[id(node)] for node in nodes),
            tuple(len(data(node)) for node in nodes),
            np.array([path_weight(leaf, node, data) for node in nodes]),
            None
            if levels is None or nodes[0] is leaf
            else tuple(levels[first].tolist()),
        )

    found = []
    for leaf in root.leaves():
        path = leaf.path() if len(data(leaf)) else []
        groups = [path] if levels is None and path else [[node] for node in path]
        found.append([term(group, leaf) for group in groups])
    return found


@dataclass(frozen=True)
class LeafDensity:
    """The log posterior density of the hyperparameters of a leaf, up to a constant.

    Attributes:
        terms: Of the leaf.
        correlation: Of its kernel.
        mode: Of the Gaussian prior of theta.
        precision: Inverse variances; zero for what has no prior.
        scratch: Where matrices are worked on, by size; shared with other leaves, as
            fresh memory takes longer than what is computed in it.
    """

    terms: Sequence[LeafTerm]
    correlation: Correlation
    mode: Array
    precision: Array
    scratch: dict[int, Scratch]

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient; ``-inf`` where a covariance has no factor."""
        value, gradient = self.prior(theta)
        for term in self.terms:
            part = _term_evidence(term, theta, self.correlation, self.scratch)
            if part is None:
                return -math.inf, gradient
            value += part[0]
            gradient[: len(part[1])] += part[1]
        return value, gradient

    def prior(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient of the prior alone."""
        z = theta - self.mode
        slope = -self.precision * z
        return 0.5 * float(slope @ z), slope

    def of_small_nodes(self, most: float) -> LeafDensity:
        """That of the prior, and of nodes with at most so many rows."""
        counts = [sum(size <= most for size in term.sizes) for term in self.terms]
        terms = [t.first(k) for t, k in zip(self.terms, counts, strict=True) if k]
        return replace(self, terms=terms)


def _term_evidence(
    term: LeafTerm, theta: Array, correlation: Correlation, scratch: dict[int, Scratch]
) -> tuple[float, Array] | None:
    """Weighted log evidence of a term, and its derivatives by theta.

    By the log lengthscales alone if the term does not have the leaf's amplitude.
    """
    X, y, weights = term.X, term.y, term.weights
    m, d = X.shape
    if term.level is None:
        amplitude, mean, v = math.exp(theta[d]), theta[d + 1], math.exp(theta[d + 2])
    else:
        amplitude, mean, v = term.level
    if m not in scratch:
        scratch[m] = np.zeros((2, m, m)), np.ones((2, m, d + 2))
    (covariance, slope), (left, right) = scratch[m]
    # |s - s'|^2 in one product of (-2 s, |s|^2, 1) and (s, 1, |s'|^2); of symmetric
    # matrices one triangle, in blocks of rows that stay in the cache
    s = right[:, :d]
    np.multiply(X, np.exp(-theta[:d]), out=s)
    np.multiply(s, -2.0, out=left[:, :d])
    left[:, d] = right[:, d + 1] = np.einsum("ij,ij->i", s, s)
    step = m if m <= _BLOCK else _BLOCK // 2
    noise = v if term.noise is None else term.noise
    for jitter in _JITTERS:
        for first in range(0, m, step):
            block = slice(first, first + step), slice(first, m)
            squared = left[block[0]] @ right[block[1]].T
            np.abs(squared, out=squared)  # what is negative is so by rounding
            # a point is at no distance from itself in spite of rounding
            squared.ravel()[:: squared.shape[1] + 1] = 0.0
            k, slope[block] = correlation.array_value_and_slope(squared)
            np.multiply(k, amplitude, out=covariance[block])
        covariance.ravel()[:: m + 1] += noise + jitter
        # a symmetric matrix is its own transpose, which has the order of Fortran
        chol, info = lapack.dpotrf(covariance.T, lower=1, clean=0, overwrite_a=1)
        if info == 0:
            break
    else:
        return None
    half = lapack.dtrtrs(chol, y - mean, lower=1)[0]
    row_weights, inverse_roots, inside = term.of_rows
    parts = inside * half[:, None]
    fit = float(row_weights @ (half * half))
    logs = float(row_weights @ np.log(chol.diagonal()))
    mass = float(weights @ term.sizes)
    alpha = lapack.dtrtrs(chol, parts, lower=1, trans=1)[0]
    # the lower triangle of G, see the module
    chol *= inverse_roots
    g = blas.dsyrk(
        0.5,
        alpha * np.sqrt(weights),
        beta=-0.5,
        c=lapack.dpotri(chol, lower=1, overwrite_c=1)[0],
        lower=1,
        overwrite_c=1,
    )
    own = term.level is None
    gradient = np.empty(d + 3 if own else d)
    if own:
        diagonal = g.diagonal()
        trace = float(diagonal.sum())
        by_noise = v * trace if term.noise is None else float(diagonal @ term.noise)
        # the trace of G and the covariance with noise is known
        gradient[d] = 0.5 * (fit - mass) - by_noise - jitter * trace
        gradient[d + 1] = float(alpha.sum(0) @ weights)
        gradient[d + 2] = by_noise if term.noise is None else 0.0
    g *= slope.T
    sums = blas.dsymm(1.0, g, np.asfortranarray(right[:, : d + 1]), lower=1)
    inner = sums[:, d:] * s - sums[:, :d]
    gradient[:d] = np.einsum("ij,ij->j", inner, s)
    gradient[:d] *= 4.0 * amplitude
    return -0.5 * (fit + mass * _LOG_TWO_PI) - logs, gradient


class NodeDensities:
    """Log densities of the data of nodes, from some rows that count for all.

    Args:
        densities: Of the leaves.
    """

    def __init__(self, densities: Sequence[LeafDensity]) -> None:
        self.densities = densities
        self.uses: dict[int, list[tuple[int, LeafTerm, int]]] = {}
        for j, density in enumerate(densities):
            for term in density.terms:
                for k, node in enumerate(term.nodes):
                    self.uses.setdefault(node, []).append((j, term, k))

    def __call__(self, node: int, theta: Array) -> Point | None:
        """That of a node, with its Fisher information; None if it has no factor."""
        _, term, k = self.uses[node][0]
        if term.level is not None:
            amplitude, mean, v = term.level
            theta = np.array([*theta[:-3], math.log(amplitude), mean, math.log(v)])
        rows = thinned(np.arange(term.sizes[k]), _INFORMED_ROWS)
        X, share = term.X[rows].T, term.sizes[k] / len(rows)
        found = likelihood(
            theta,
            (X[:, :, None] - X[:, None, :]) ** 2,
            term.y[rows],
            self.densities[0].correlation,
            noise=None if term.noise is None else term.noise[rows],
        )
        if found is None:
            return None
        value, gradient, information = found
        return Point(share * value, share * gradient, share * information)

    def sums(self, theta: Array, least: float = 0.0) -> tuple[Array, Array, Array]:
        """Values, gradients and informations of leaves, priors apart.

        Those of a node at the mean of the hyperparameters of its leaves.

        Args:
            theta: ``L x p``.
            least: Nodes with no more rows are left out.

        Returns:
            ``L``, ``L x p`` and ``L x p x p``.
        """
        L, p = theta.shape
        values, slopes, bends = np.zeros(L), np.zeros((L, p)), np.zeros((L, p, p))
        for node, places in self.uses.items():
            _, term, k = places[0]
            if term.sizes[k] <= least:
                continue
            point = self(node, theta[[j for j, *_ in places]].mean(0))
            if point is None:  # a rough guess: updates will tell
                point = Point(0.0, np.zeros(p), term.sizes[k] * np.eye(p))
            last = slice(p if term.level is None else p - 3)
            for j, term, k in places:
                weight = term.weights[k]
                values[j] += weight * point.value
                slopes[j, last] += weight * point.gradient[last]
                bends[j, last, last] += weight * point.information[last, last]
        return values, slopes, bends

    def together(self, theta: Array, lower: Array, upper: Array) -> Point | None:
        """The sum of the log densities of all leaves at the same hyperparameters.

        Many nodes are represented by some of them: leaves only begin where it is large.

        Args:
            theta: ``p``; beyond the bounds it is as at the bounds.
            lower: ``p``.
            upper: ``p``.
        """
        at = np.clip(theta, lower, upper)
        value, slope, bend = 0.0, np.zeros_like(at), np.zeros((len(at), len(at)))
        for density in self.densities:
            prior, by_prior = density.prior(at)
            value += prior
            slope += by_prior
            bend += np.diag(density.precision)
        for node, weight in self._sample.items():
            point = self(node, at)
            if point is None:
                return None
            value += weight * point.value
            slope += weight * point.gradient
            bend += weight * point.information
        outwards = ((at <= lower) & (slope < 0)) | ((at >= upper) & (slope > 0))
        bend[outwards] = bend[:, outwards] = 0.0
        bend[outwards, outwards] = 1.0
        return Point(value, np.where(outwards, 0.0, slope), bend)

    @cached_property
    def _sample(self) -> dict[int, float]:
        """Nodes of all sizes, with weights that make them count for all nodes."""
        weight, mass = {}, {}
        for node, places in self.uses.items():
            weight[node] = sum(float(term.weights[k]) for _, term, k in places)
            _, term, k = places[0]
            mass[node] = weight[node] * term.sizes[k]
        every = math.ceil(len(mass) / _SAMPLED_NODES)
        chosen = sorted(mass, key=lambda node: -mass[node])[::every]
        factor = sum(mass.values()) / sum(mass[node] for node in chosen)
        return {node: factor * weight[node] for node in chosen}
