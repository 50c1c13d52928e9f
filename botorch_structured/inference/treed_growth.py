"""Which nodes of a tree to split: by variance, or by what two GPs explain.

The paper splits by CART's variance and found the entropy of GPs no better for much more
work. As a density, a tree that splits wherever it may is no better than one GP; what
helps is to split *only* where two GPs, each with its own scale, mean and noise, explain
the data better than one does, by Laplace's evidence and a prior on trees that makes
deep ones improbable (Chipman, George and McCulloch 1998).
"""

from __future__ import annotations

__all__ = ["fit_nodes", "grow_by_evidence", "grow_by_variance", "try_rbf"]

from collections.abc import Sequence

import numpy as np

from botorch_structured.inference.cart import (
    Array,
    Proposal,
    Rows,
    TreeNode,
    grow,
    split_by_variance,
)
from botorch_structured.inference.treed_node import NodeEvidence, NodeFit
from botorch_structured.inference.treed_splits import (
    FULL_STEPS,
    best_split_by_evidence,
    thinned,
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
