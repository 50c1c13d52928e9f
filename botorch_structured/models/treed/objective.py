r"""The objective of a treed GP: equation (2) of [Assael2014treed]_.

The hyperparameters of leaf j maximise

.. math:: \sum_{i \in path_j} w_i \log p(y_i | x_i, \theta) + \log p(\theta), \quad
    w_i = \frac{|M_j|}{|M_i|} \frac{1}{1 + depth_j - depth_i}

over the nodes i from the root to j, with their data M_i. ``path_evidence`` is the sum
over all leaves, plainly, for any kernel, batch and device; ``leaf_terms`` has those of
each leaf for ``stationary_evidence``, where the gradient is written out for the default
kernel on a CPU.

The objective is more than a prior and a likelihood determine. ``fit_gpytorch_mll``
finds it through BoTorch's hook ``compute_custom_loss``; slice sampling, and whoever
else evaluates the mll, through the log density of the prior that ``TreedGP.forward``
returns in training mode.

Where a node has what the leaf has (``path_sharing="all"``), one factorisation serves
all terms of a leaf, since the nodes of a path are nested. Where a node has an
amplitude, a mean and noise of its own, each node has a factorisation.

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
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_structured.linalg.blocks import failed
from botorch_structured.models.stationary_evidence import EvidenceTerm
from botorch_structured.models.treed.cart import Array, Rows, TreeNode, as_array

# A fit has as many rows of a node above the leaves as have this sum of cubes over the
# leaves, which is what an evaluation takes.
_WORK = 2e7


# -- the definition ------------------------------------------------------------------


def path_weight(
    leaf: TreeNode,
    node: TreeNode,
    data: Callable[[TreeNode], Rows],
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


def leaf_terms(
    tree: TreeData,
    noise: Array | None,
    levels: Array | None,
) -> list[list[EvidenceTerm]]:
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
        nodes: Sequence[TreeNode],
        leaf: TreeNode,
        level: Array | None,
    ) -> EvidenceTerm:
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
        return EvidenceTerm(
            X=X[rows],
            y=y[rows],
            noise=None if noise is None else noise[rows],
            sizes=[len(part) for part in parts],
            weights=np.array(weights),
            level=level,
        )

    number = {id(node): k for k, node in enumerate(tree.root.walk())}
    terms: list[list[EvidenceTerm]] = []
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
