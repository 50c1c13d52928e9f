r"""The objective of a treed GP: equation (2) of [Assael2014treed]_.

The hyperparameters of leaf j maximise

.. math:: \sum_{i \in path_j} w_i \log p(y_i | x_i, \theta) + \log p(\theta), \quad
    w_i = \frac{|M_j|}{|M_i|} \frac{1}{1 + depth_j - depth_i}

over the nodes i from the root to j, with their data M_i. ``path_evidence`` is the sum
over all leaves, plainly, for any kernel, batch and device; ``LeafDensity`` is that of
one leaf with the gradient written out, for the default kernel on a CPU, which
``LeafProblem`` adds up for SciPy.

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

Each leaf has the large nodes on its path, with little weight: all of their rows would
take nearly all of the time. So a fit has some of the rows of these nodes, spread evenly
over the leaves, with weights that make up for the others. With up to 90 rows it is
equation (2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.mlls import MarginalLogLikelihood
from linear_operator.utils.cholesky import psd_safe_cholesky
from scipy.linalg import blas, lapack
from scipy.spatial.distance import cdist
from torch import Tensor

from botorch_structured.linalg.blocks import cholesky, failed
from botorch_structured.linalg.correlations import Correlation
from botorch_structured.linalg.parameters import UnknownFormError
from botorch_structured.models.map_fit import ArrayPosterior
from botorch_structured.models.treed.cart import Array, Rows, TreeNode, as_array

# A fit has as many rows of a node above the leaves as have this sum of cubes over the
# leaves, which is what an evaluation takes.
_WORK = 2e7


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
        device = self.y.device
        terms = []
        for i, node in enumerate(self.root.walk()):
            leaves = [leaf for leaf in node.leaves() if len(self.data(leaf))]
            if not leaves:
                continue
            weights = [path_weight(leaf, node, self.data) for leaf in leaves]
            terms.append(
                NodeTerms(
                    i,
                    torch.as_tensor(self.data(node), device=device),
                    torch.tensor([leaf.leaf for leaf in leaves], device=device),
                    torch.tensor(weights).to(self.y),
                    node.split is None,
                )
            )
        return terms


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
    matrices = []
    residuals = []
    for node, rows, leaves, _, is_leaf in terms:
        K, m, v = (
            t.index_select(0, leaves).index_select(1, rows)
            for t in (covariance, mean, noise)
        )
        K = K.index_select(2, rows)
        if levels is not None and not is_leaf:
            amplitude, level, node_noise = levels
            wanted = amplitude[node]
            average = K.diagonal(dim1=-1, dim2=-2).mean(-1)
            # without a prior, output scales may go to zero, which no factor can undo
            factor = wanted / (average + 1e-12 * wanted)
            K = K * factor[:, None, None]
            m = level[node].expand_as(m)
            if node_noise is not None:
                v = node_noise[node].expand_as(v)
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
        sizes: How many of the rows each node has, the smallest first.
        weights: Of the nodes.
        level: Amplitude, mean and noise variance of a node that does not share those of
            the leaf; None if it does.
    """

    X: Array
    y: Array
    noise: Array | None
    sizes: Sequence[int]
    weights: Array
    level: Array | None

    @cached_property
    def membership(self) -> Array:
        """One for the rows of each node, else zero, ``m x k``."""
        return (np.arange(len(self.y))[:, None] < self.sizes).astype(float)


def leaf_terms(
    tree: TreeData, noise: Array | None, levels: Array | None
) -> list[list[LeafTerm]]:
    """The terms of each leaf; of leaves without data none.

    Args:
        tree: The tree; the rows of its nodes are nested along each path.
        noise: Known noise variances, ``n``; None if they are not.
        levels: Amplitude, mean and noise variance of each node, which it has above the
            leaves; None if it has those of the leaf there.
    """
    data = tree.data
    X = as_array(tree.X)
    y = as_array(tree.y)
    n = len(y)
    leaves = tree.root.leaves()
    most = round(min(n, (_WORK / len(leaves)) ** (1.0 / 3.0)))
    by_leaf = np.concatenate([leaf.home for leaf in leaves])
    sampled = np.zeros(n, dtype=bool)
    sampled[by_leaf[np.linspace(0, n - 1, most).round().astype(int)]] = True

    def term(
        nodes: Sequence[TreeNode], leaf: TreeNode, level: Array | None
    ) -> LeafTerm:
        kept = sampled.copy()
        for node in nodes:
            if node is leaf or len(data(node)) <= most:
                kept[data(node)] = True
        parts = [data(node)[kept[data(node)]] for node in nodes]
        weights = [
            path_weight(leaf, node, data) * len(data(node)) / len(part)
            for node, part in zip(nodes, parts, strict=True)
        ]
        # each row once, with the first node that has it
        rows = np.concatenate(parts)
        rows = rows[np.sort(np.unique(rows, return_index=True)[1])]
        return LeafTerm(
            X=X[rows],
            y=y[rows],
            noise=None if noise is None else noise[rows],
            sizes=[len(part) for part in parts],
            weights=np.array(weights),
            level=level,
        )

    number = {id(node): k for k, node in enumerate(tree.root.walk())}
    terms: list[list[LeafTerm]] = []
    for leaf in leaves:
        path = leaf.path()
        if len(data(leaf)) == 0:
            terms.append([])
        elif levels is None:
            terms.append([term(path, leaf, None)])
        else:
            above = [term([node], leaf, levels[number[id(node)]]) for node in path[1:]]
            terms.append([term([leaf], leaf, None), *above])
    return terms


@dataclass(frozen=True)
class LeafDensity:
    """The sum of equation (2) of one leaf without the prior, as a function of theta.

    Attributes:
        terms: Of the leaf.
        correlation: Of its kernel.
    """

    terms: Sequence[LeafTerm]
    correlation: Correlation

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient.

        Raises:
            NotPSDError: If a covariance is not positive definite even with jitter.
        """
        value = 0.0
        gradient = np.zeros_like(theta)
        for term in self.terms:
            part, by_part = self._term_evidence(term, theta)
            value += part
            gradient[: len(by_part)] += by_part
        return value, gradient

    def _term_evidence(self, term: LeafTerm, theta: Array) -> tuple[float, Array]:
        """Weighted log evidence of a term, and its derivatives by theta.

        By the log lengthscales alone if the term does not have the leaf's amplitude.
        """
        m, d = term.X.shape
        weights = term.weights
        if term.level is None:
            mean = theta[d + 1]
            amplitude, v = np.exp(theta[[d, d + 2]])
        else:
            amplitude, mean, v = term.level
        scaled = term.X * np.exp(-theta[:d])
        squared = cdist(scaled, scaled, "sqeuclidean")
        covariance, slope = self.correlation.array_value_and_slope(squared)
        covariance *= amplitude
        noisy = covariance.copy()
        noisy.ravel()[:: m + 1] += v if term.noise is None else term.noise
        chol = cholesky(noisy)
        half = lapack.dtrtrs(chol, term.y - mean, lower=1)[0]
        row_weights = term.membership @ weights
        fit = float(row_weights @ (half * half))
        logs = float(row_weights @ np.log(chol.diagonal()))
        mass = float(weights @ term.sizes)
        value = -0.5 * (fit + mass * math.log(2.0 * math.pi)) - logs
        parts = term.membership * half[:, None]
        alpha = lapack.dtrtrs(chol, parts, lower=1, trans=1)[0]
        # the lower triangle of G, see the module
        chol /= np.sqrt(row_weights)
        g = blas.dsyrk(
            0.5,
            alpha * np.sqrt(weights),
            beta=-0.5,
            c=lapack.dpotri(chol, lower=1, overwrite_c=1)[0],
            lower=1,
            overwrite_c=1,
        )
        gradient = np.zeros(d + 3)
        diagonal = g.diagonal()
        trace = float(diagonal.sum())
        by_noise = v * trace if term.noise is None else float(diagonal @ term.noise)
        # of symmetric matrices, of which G has one half
        gradient[d] = 2.0 * float((g * covariance).sum()) - amplitude * trace
        gradient[d + 1] = float(alpha.sum(0) @ weights)
        gradient[d + 2] = by_noise if term.noise is None else 0.0
        g *= slope.T
        ones = np.ones((m, 1))
        sums = blas.dsymm(1.0, g, np.hstack([scaled, ones]), lower=1)
        inner = (sums[:, d:] * scaled - sums[:, :d]) * scaled
        gradient[:d] = 4.0 * amplitude * inner.sum(0)
        return value, gradient if term.level is None else gradient[:d]


class LeafProblem(ArrayPosterior):
    """Minus the objective of a treed GP per data point, an ``ArrayObjective``.

    Args:
        mll: The objective.
        raw: Raw lengthscales ``L x d``, amplitudes ``L`` (None if they are one), means
            ``L`` and noise variances, ``L`` or one for all (None if known).
        densities: Of the leaves.

    Raises:
        UnknownFormError: See ``ArrayPosterior``, and if other parameters are free too.
    """

    def __init__(
        self,
        mll: MarginalLogLikelihood,
        raw: tuple[Tensor, Tensor | None, Tensor, Tensor | None],
        densities: Sequence[LeafDensity],
    ) -> None:
        super().__init__(mll)
        self.densities = densities
        lengths, variances, means, noise = raw
        L, d = lengths.shape
        parameters = self.parameters
        # where theta is among all parameters; behind them is what is no parameter
        self._places = places = np.full((L, d + 3), len(parameters.values))
        places[:, :d] = parameters.logarithm(lengths).reshape(L, d)
        places[:, d + 1] = parameters.unbounded(means)
        if variances is not None:
            places[:, d] = parameters.logarithm(variances)
        if noise is not None:
            places[:, d + 2] = parameters.logarithm(noise)
        if not set(parameters.free) <= set(places.flat):
            raise UnknownFormError
        # what many leaves have in common matters more
        self.units = np.bincount(places.flat)[parameters.free] ** -0.5

    def evidence(self, u: Array) -> tuple[float, Array]:
        """See ``ArrayPosterior``."""
        u = np.append(u, 0.0)
        value = 0.0
        gradient = np.zeros_like(u)
        for density, place in zip(self.densities, self._places, strict=True):
            part, by_part = density(u[place])
            value += part
            gradient[place] += by_part
        return value, gradient[:-1]
