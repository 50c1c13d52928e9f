r"""The objective of treed GPs: evidences of the nodes on each leaf's path, weighted.

Assael et al. (2014), equation (2): the hyperparameters of leaf j maximise

.. math:: \sum_{i \in path_j} w_i \log p(y_i | x_i, \theta) + \log p(\theta), \quad
    w_i = \frac{|M_j|}{|M_i|} \frac{1}{1 + depth_j - depth_i}

over the nodes i from the root to j, with their data M_i. The nodes of a path are
nested, so with the rows of the leaf first, then what its parent has besides, and so on,
the Cholesky factor of the root's covariance has those of all others as leading blocks:
one factorisation gives every term, and with

    G = 1/2 sum_i w_i (alpha_i alpha_i' - K_i^-1),   K_i^-1 = J_i' J_i,   J = L^-1,

one matrix product the gradient of all of them.
"""

from __future__ import annotations

__all__ = ["PathGroup", "log_path_evidence", "nested_groups", "node_groups"]

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_structured.inference.cart import Rows, TreeNode

# Elements of a batch of matrices: what fits into a cache, and never gigabytes
_MAX_ELEMENTS = 2_000_000


@dataclass(frozen=True)
class PathGroup:
    """Leaves whose evidences are taken together.

    Attributes:
        leaves: Numbers of the leaves, ``B``.
        rows: Their data, nested node by node, ``B x m``.
        members: Which of these rows a node on the path has, ``B x D x m``; of a single
            node, all.
        weights: Weight of that node, ``B x D``; 0 for fewer nodes than ``D``.
        node: Position of the one node in the tree, if all are of the same ancestor.
    """

    leaves: Tensor
    rows: Tensor
    members: Tensor
    weights: Tensor
    node: int | None = None

    @property
    def row_weights(self) -> Tensor:
        """Sum of the weights of the nodes that a row is in, ``B x m``."""
        return (self.members * self.weights.unsqueeze(-1)).sum(-2)

    def to(self, like: Tensor) -> PathGroup:
        """The same in the dtype and on the device of a tensor."""
        return PathGroup(
            self.leaves.to(like.device),
            self.rows.to(like.device),
            self.members.to(like),
            self.weights.to(like),
            self.node,
        )


def path_weight(
    leaf: TreeNode, node: TreeNode, count: Callable[[TreeNode], int]
) -> float:
    """w_i of equation (2), as printed.

    Args:
        leaf: j.
        node: i, on the path from j to the root.
        count: Number of data in a node.
    """
    if count(node) == 0:
        return 0.0
    return count(leaf) / count(node) / (1.0 + leaf.depth - node.depth)


def nested_groups(root: TreeNode, data: Callable[[TreeNode], Rows]) -> list[PathGroup]:
    """One factorisation per leaf: for what all nodes of a path share.

    Args:
        root: The tree.
        data: The rows of a node that count, nested along each path.
    """
    leaves = root.leaves()
    n = len(data(root))
    deepest = 1 + max(leaf.depth for leaf in leaves)
    rows = np.zeros((len(leaves), n), dtype=np.int64)
    members = np.zeros((len(leaves), deepest, n))
    weights = np.zeros((len(leaves), deepest))
    for j, leaf in enumerate(leaves):
        seen = np.zeros(0, dtype=np.int64)
        for k, node in enumerate(leaf.path()):
            new = np.setdiff1d(data(node), seen, assume_unique=True)
            seen = np.concatenate([seen, new])
            members[j, k, : len(seen)] = 1.0
            weights[j, k] = path_weight(leaf, node, lambda v: len(data(v)))
        rows[j] = seen
    step = max(1, _MAX_ELEMENTS // max(1, n * n))
    return [
        PathGroup(
            torch.arange(i, min(i + step, len(leaves))),
            torch.as_tensor(rows[i : i + step]),
            torch.as_tensor(members[i : i + step]),
            torch.as_tensor(weights[i : i + step]),
        )
        for i in range(0, len(leaves), step)
    ]


def node_groups(root: TreeNode, data: Callable[[TreeNode], Rows]) -> list[PathGroup]:
    """One factorisation per leaf and node: for nodes that have values of their own.

    Leaves below the same node have the same rows there: a batch without padding.

    Args:
        root: The tree.
        data: The rows of a node that count.
    """
    number = {id(leaf): j for j, leaf in enumerate(root.leaves())}
    groups = []
    for position, node in enumerate(root.walk()):
        rows = torch.as_tensor(data(node))
        below = node.leaves()
        m = len(rows)
        if m == 0:
            continue
        weights = [path_weight(leaf, node, lambda v: len(data(v))) for leaf in below]
        step = max(1, _MAX_ELEMENTS // (m * m))
        for i in range(0, len(below), step):
            some = below[i : i + step]
            size = len(some)
            groups.append(
                PathGroup(
                    torch.tensor([number[id(leaf)] for leaf in some]),
                    rows.expand(size, m),
                    torch.ones(size, 1, m),
                    torch.tensor(weights[i : i + step]).unsqueeze(-1),
                    None if node.split is None else position,
                )
            )
    return groups


class _PathEvidence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: PathGroup,
        covariance: Tensor,
        noise: Tensor,
        residual: Tensor,
    ) -> Tensor:
        noisy = covariance.clone()
        noisy.diagonal(dim1=-1, dim2=-2).add_(noise)
        chol = psd_safe_cholesky(noisy)
        half = torch.linalg.solve_triangular(chol, residual.unsqueeze(-1), upper=False)
        half = half.squeeze(-1)
        row_weights = group.row_weights
        logs = 2.0 * chol.diagonal(dim1=-1, dim2=-2).log() + math.log(2.0 * math.pi)
        ctx.saved = (group, chol, half, row_weights)
        return -0.5 * (row_weights * (half.square() + logs)).sum(-1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        group, chol, half, row_weights = ctx.saved
        scale = 0.5 * grad[:, None, None]
        if group.members.shape[-2] == 1:
            # a single node: the inverse is cheaper than the inverse of the factor
            alpha = torch.linalg.solve_triangular(
                chol.mT, half.unsqueeze(-1), upper=True
            ).mT
            g = torch.cholesky_inverse(chol)
            g.mul_(-scale * group.weights.unsqueeze(-1))
        else:
            eye = torch.eye(chol.shape[-1], dtype=chol.dtype, device=chol.device)
            root = torch.linalg.solve_triangular(chol, eye.expand_as(chol), upper=False)
            alpha = (group.members * half.unsqueeze(-2)) @ root
            g = root.mT @ root.mul(row_weights.unsqueeze(-1) * -scale)
        weighted = alpha * group.weights.unsqueeze(-1)
        g.baddbmm_(weighted.mT, alpha * scale)
        d_residual = -weighted.sum(-2) * grad.unsqueeze(-1)
        return None, g, g.diagonal(dim1=-1, dim2=-2), d_residual


def log_path_evidence(
    group: PathGroup, covariance: Tensor, noise: Tensor, residual: Tensor
) -> Tensor:
    """Sum of weighted log evidences of the nodes on each path, ``B``.

    Differentiable once in everything but the group.

    Args:
        group: What is summed.
        covariance: Prior covariances of the rows without noise, ``B x m x m``.
        noise: Noise variances, ``B x m``.
        residual: Observations minus prior means, ``B x m``.

    Raises:
        NotPSDError: If a covariance is not positive definite even with jitter.
    """
    return _PathEvidence.apply(group, covariance, noise, residual)
