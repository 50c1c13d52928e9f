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
    try_rbf,
)
from botorch_structured.inference.treed_leaf_fit import (
    LeafObjective,
    LeafPrior,
    LeafTerm,
)
from botorch_structured.inference.treed_node import NodeEvidence, NodePrior
from botorch_structured.inference.treed_splits import thinned

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
