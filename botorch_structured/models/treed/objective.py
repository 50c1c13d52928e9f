r"""The objective of a treed GP: equation (2) of [Assael2014treed]_.

The hyperparameters of leaf j maximise

.. math:: \sum_{i \in path_j} w_i \log p(y_i | x_i, \theta) + \log p(\theta), \quad
    w_i = \frac{|M_j|}{|M_i|} \frac{1}{1 + depth_j - depth_i}

over the nodes i from the root to j, with their data M_i. Here is the sum over all
leaves, plainly, for any kernel, batch and device; ``leaf_density`` has it with the
gradient written out, for the default kernel on a CPU.

The objective is more than a prior and a likelihood determine. ``fit_gpytorch_mll``
finds it through BoTorch's hook ``compute_custom_loss``; slice sampling, and whoever
else evaluates the mll, through the log density of the prior that ``TreedGP.forward``
returns in training mode.
"""

from __future__ import annotations

__all__ = ["NodeTerms", "TreeData", "path_evidence", "path_weight"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_structured.models.treed.cart import Rows, TreeNode

# Added to the amplitude of a leaf, in units of that of a node: without a prior, output
# scales may go to zero, which no factor can undo.
_LEAST_AMPLITUDE = 1e-12


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
    # read from the device once for all of them
    if torch.cat([failed for _, failed in factors]).any():
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
