r"""What equation (2) asks of the hyperparameters of one leaf, on NumPy arrays.

``theta = (log l_1, .., log l_d, log s^2, m, log v)``. With the rows of the leaf first,
then what its parent has besides, and so on, one factorisation serves the terms that
share hyperparameters: see ``objective``, which has the same sum and gradient in torch,
for any kernel, batch and device. ``maximum`` adds the leaves up and climbs.
"""

from __future__ import annotations

__all__ = [
    "LeafDensity",
    "LeafTerm",
    "NodePoints",
    "leaf_terms",
]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from botorch_structured.linalg.correlations import Correlation
from botorch_structured.models.treed.objective import path_weight
from botorch_structured.models.treed.scoring import (
    Point,
    inverse_of_factor,
    likelihood,
    thinned,
)
from botorch_structured.models.treed.tree import Array, Rows, TreeNode

_LOG_TWO_PI = math.log(2.0 * math.pi)
# What is added to the diagonal of a matrix without a factor, as by GPyTorch.
_JITTERS = (0.0, 1e-8, 1e-7, 1e-6)
# Of a node with more rows, so many say what its Fisher information is.
_INFORMED_ROWS = 75
# Of more nodes, about so many say where all leaves begin.
_SAMPLED_NODES = 30
_BLOCK = 128  # rows of a matrix that is worked on at once

_NodePoint = tuple[float, Array, Array]
Scratch = tuple[Array, Array]  # a covariance and its slope; two factors of distances


@dataclass(frozen=True)
class LeafTerm:
    """Nodes on the path of a leaf that have the same hyperparameters.

    Attributes:
        X: Their data, those of nested nodes one after the other, ``m x d``.
        y: ``m``.
        noise: Known noise variances, ``m``; None if they are not.
        sizes: How many of the rows each node has.
        weights: Of the nodes.
        level: Amplitude, mean and noise variance of a node that does not share those of
            the leaf; None if it does.
        nodes: Names of the nodes.
    """

    X: Array
    y: Array
    noise: Array | None
    sizes: tuple[int, ...]
    weights: Array
    level: tuple[float, float, float] | None
    nodes: tuple[int, ...]

    @cached_property
    def of_rows(self) -> tuple[Array, Array, Array]:
        """Sums of the weights of the nodes that a row is in, and which nodes these are.

        ``m``, their inverse roots, and ``m x k``.
        """
        inside = (np.arange(len(self.y))[:, None] < self.sizes).astype(float)
        weights = inside @ self.weights
        return weights, weights**-0.5, inside

    def up_to(self, most: float) -> LeafTerm | None:
        """Without nodes with more rows than ``most``; None if there is no other."""
        count = sum(size <= most for size in self.sizes)
        if not count:
            return None
        rows = slice(self.sizes[count - 1])
        return replace(
            self,
            X=self.X[rows],
            y=self.y[rows],
            noise=None if self.noise is None else self.noise[rows],
            sizes=self.sizes[:count],
            weights=self.weights[:count],
            nodes=self.nodes[:count],
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
    place = {id(node): k for k, node in enumerate(root.walk())}

    def term(nodes: Sequence[TreeNode], leaf: TreeNode) -> LeafTerm:
        rows, seen = data(nodes[0]), np.zeros(len(X), dtype=bool)
        parts = [rows]
        for node in nodes[1:]:
            seen[rows] = True
            rows = data(node)
            parts.append(rows[~seen[rows]])
        rows = np.concatenate(parts)
        first = place[id(nodes[0])]
        own = nodes[0] is leaf
        return LeafTerm(
            X[rows],
            y[rows],
            None if noise is None else noise[rows],
            tuple(np.cumsum([len(part) for part in parts]).tolist()),
            np.array([path_weight(leaf, v, lambda u: len(data(u))) for v in nodes]),
            None if own or levels is None else tuple(levels[first].tolist()),
            tuple(place[id(node)] for node in nodes),
        )

    found = []
    for leaf in root.leaves():
        path = leaf.path() if len(data(leaf)) else []
        groups = [path] if levels is None and path else [[node] for node in path]
        found.append([term(group, leaf) for group in groups])
    return found


class LeafDensity:
    """The log posterior density of the hyperparameters of a leaf, up to a constant.

    Args:
        terms: Of the leaf.
        correlation: Of its kernel.
        mode: Of the Gaussian prior of theta.
        precision: Inverse variances; zero for what has no prior.
        scratch: Where matrices are worked on, by size; shared with other leaves, as
            fresh memory takes longer than what is computed in it.
    """

    def __init__(
        self,
        terms: Sequence[LeafTerm],
        correlation: Correlation,
        mode: Array,
        precision: Array,
        scratch: dict[int, Scratch],
    ) -> None:
        self.terms, self.correlation, self.scratch = terms, correlation, scratch
        self.mode, self.precision = mode, precision

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
        """That of the prior alone."""
        z = theta - self.mode
        slope = -self.precision * z
        return 0.5 * float(slope @ z), slope

    def up_to(self, most: float) -> LeafDensity:
        """That of the prior, and of nodes with no more rows than ``most``."""
        found = LeafDensity(
            [], self.correlation, self.mode, self.precision, self.scratch
        )
        small = (term.up_to(most) for term in self.terms)
        found.terms = [term for term in small if term is not None]
        return found


def _term_evidence(
    term: LeafTerm,
    theta: Array,
    correlation: Correlation,
    scratch: dict[int, Scratch],
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
        # what is symmetric is in the order of Fortran its own transpose
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
    # G of ``objective``, its lower triangle
    chol *= inverse_roots
    g = blas.dsyrk(
        0.5,
        alpha * np.sqrt(weights),
        beta=-0.5,
        c=inverse_of_factor(chol),
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


class NodePoints:
    """Log densities of the data of nodes, without priors, by name of the node.

    With the gradients and Fisher informations, and remembered: all leaves may begin
    at the same hyperparameters.

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
        self._squared: dict[int, Array] = {}
        self._known: dict[tuple[int, bytes, bool], _NodePoint | None] = {}

    def __call__(self, node: int, at: Array, exact: bool = True) -> _NodePoint | None:
        """Value, gradient and information; None if there is no factor.

        Args:
            node: Its name.
            at: Of its leaves.
            exact: Whether value and gradient are those of all rows; if not, and always
                for the information, some of them count for all.
        """
        name = node, at.tobytes(), exact
        if name not in self._known:
            evaluate = self._on_all_rows if exact else self._on_some_rows
            self._known[name] = evaluate(node, at)
        return self._known[name]

    def _on_some_rows(self, node: int, at: Array) -> _NodePoint | None:
        _, term, k = self.uses[node][0]
        size = term.sizes[k]
        if term.level is not None:
            amplitude, mean, v = term.level
            at = np.array([*at[:-3], math.log(amplitude), mean, math.log(v)])
        rows = thinned(np.arange(size), _INFORMED_ROWS)
        if node not in self._squared:
            X = term.X[rows].T
            self._squared[node] = (X[:, :, None] - X[:, None, :]) ** 2
        found = likelihood(
            at,
            self._squared[node],
            term.y[rows],
            self.densities[0].correlation,
            noise=None if term.noise is None else term.noise[rows],
        )
        if found is None or len(rows) == size:
            return found
        value, gradient, information = found
        share = size / len(rows)
        return share * value, share * gradient, share * information

    def _on_all_rows(self, node: int, at: Array) -> _NodePoint | None:
        point = self(node, at, exact=False)
        _, term, k = self.uses[node][0]
        size = term.sizes[k]
        if point is None or size <= _INFORMED_ROWS:
            return point
        whole = replace(
            term,
            X=term.X[:size],
            y=term.y[:size],
            noise=None if term.noise is None else term.noise[:size],
            sizes=(size,),
            weights=np.ones(1),
        )
        density = self.densities[0]
        exact = _term_evidence(whole, at, density.correlation, density.scratch)
        return None if exact is None else (*exact, point[2])

    def informations(self, theta: Array) -> Array:
        """Minus the expected second derivatives for each leaf, ``L x p x p``.

        Those of a node at the mean of the hyperparameters of its leaves.
        """
        L, p = theta.shape
        found = np.zeros((L, p, p))
        for j, density in enumerate(self.densities):
            np.fill_diagonal(found[j], density.precision)
        for node, places in self.uses.items():
            own = [theta[j] for j, *_ in places]
            at = own[0] if (own == own[0]).all() else np.mean(own, axis=0)
            point = self(node, at, exact=False)
            for j, term, k in places:
                last = slice(p if term.level is None else p - 3)
                if point is not None:
                    found[j, last, last] += term.weights[k] * point[2][last, last]
                else:  # a rough guess: updates will tell
                    found[j] += term.weights[k] * term.sizes[k] * np.eye(p)
        return found

    def sums(
        self, theta: Array, most: float = math.inf
    ) -> tuple[Array, Array, Array] | None:
        """Values, gradients and informations of leaves, priors included.

        Args:
            theta: ``L x p``.
            most: Nodes with more rows are left out.

        Returns:
            ``L``, ``L x p`` and ``L x p x p``; None if a node has no factor.
        """
        L, p = theta.shape
        values, slopes, bends = np.zeros(L), np.zeros((L, p)), np.zeros((L, p, p))
        for j, density in enumerate(self.densities):
            values[j], slopes[j] = density.prior(theta[j])
            np.fill_diagonal(bends[j], density.precision)
        for node, places in self.uses.items():
            for j, term, k in places:
                if term.sizes[k] > most:
                    continue
                point = self(node, theta[j])
                if point is None:
                    return None
                for total, part in zip((values, slopes, bends), point, strict=True):
                    total[j] += term.weights[k] * part
        return values, slopes, bends

    def kin(self, most: float) -> tuple[NDArray[np.int64], Array]:
        """Which leaves are below the same large nodes, and the data these count for.

        Args:
            most: Rows of a node that is not large.

        Returns:
            Equal numbers for the same nodes, ``L``; sums of their rows times weights,
            ``L``.
        """
        names: dict[tuple[int, ...], int] = {}
        kin, scale = [], []
        for density in self.densities:
            large = [
                (node, weight * size)
                for term in density.terms
                for node, weight, size in zip(
                    term.nodes, term.weights, term.sizes, strict=True
                )
                if size > most
            ]
            kin.append(names.setdefault(tuple(node for node, _ in large), len(names)))
            scale.append(sum(share for _, share in large))
        return np.array(kin), np.array(scale)

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

    def common(self, theta: Array, lower: Array, upper: Array) -> Point | None:
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
            bend[np.diag_indices(len(at))] += density.precision
        for node, weight in self._sample.items():
            point = self(node, at, exact=False)
            if point is None:
                return None
            value += weight * point[0]
            slope += weight * point[1]
            bend += weight * point[2]
        outwards = ((at <= lower) & (slope < 0)) | ((at >= upper) & (slope > 0))
        bend[outwards] = bend[:, outwards] = 0.0
        bend[outwards, outwards] = 1.0
        return Point(value, np.where(outwards, 0.0, slope), bend)
