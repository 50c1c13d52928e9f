"""From data to trees, and from trees to the hyperparameters a fit starts from."""

from __future__ import annotations

__all__ = ["NOISE_FLOOR", "GrownTrees", "grow_trees"]

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from botorch_structured.inference.cart import Array, TreeNode
from botorch_structured.inference.treed_growth import (
    fit_nodes,
    grow_by_evidence,
    grow_by_variance,
)
from botorch_structured.inference.treed_node import NodeEvidence, NodePrior

#: Smallest noise variance, in units of the variance of the outcomes.
NOISE_FLOOR = 1e-6


@dataclass(frozen=True)
class GrownTrees:
    """The trees of a batch of data sets.

    Attributes:
        roots: One for each element of the flattened batch; each node has been fitted.
        inputs: Its data, ``n x d`` each.
    """

    roots: list[TreeNode]
    inputs: list[Array]

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
    """
    n, d = X.shape[-2:]
    inputs = X.detach().expand(*y.shape[:-1], n, d).reshape(-1, n, d).cpu().double()
    targets = y.detach().reshape(-1, n).cpu().double()
    known = None if noise is None else noise.detach().expand(y.shape).reshape(-1, n)
    roots, data = [], []
    for e, (points, values) in enumerate(zip(inputs, targets, strict=True)):
        x, t = points.numpy(), values.numpy()
        evidence = NodeEvidence(
            x,
            t,
            NodePrior.of_dimension(d, NOISE_FLOOR),
            noise=None if known is None else known[e].cpu().double().numpy(),
            categorical=categorical,
        )
        if by_evidence:
            root = grow_by_evidence(x, evidence, min_leaf_size, max_leaves, categorical)
        else:
            root = grow_by_variance(x, t, min_leaf_size, max_leaves, categorical)
        fit_nodes(root, evidence)
        roots.append(root)
        data.append(x)
    return GrownTrees(roots, data)
