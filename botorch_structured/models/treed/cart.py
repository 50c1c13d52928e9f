r"""Binary trees over data, grown best first, and the splits of CART.

After Assael et al. (2014), section 3.1: a node A is split at ``h(x) > tau`` where the
empirical variance U is reduced most,

.. math:: I = U(A) - \frac{|A'|}{|A|} U(A') - \frac{|A''|}{|A|} U(A''), \quad (1)

with tau exactly *at* a data point, which belongs to both children (so that there is no
gap between them without data). Its ``home`` is the left child, which predicts there.

A tree is made of ``TreeNode`` wherever it is: while it grows, in the objective, and in
predictions. ``TreePartition`` holds one as buffers and gives it back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Rows = NDArray[np.int64]


def as_array(values: Tensor) -> Array:
    """A tensor as a double precision array, without its graph."""
    return values.detach().cpu().double().numpy()


@dataclass(frozen=True)
class Split:
    """A test that sends a point to the left child, or to the right one.

    Attributes:
        column: The column it looks at.
        threshold: tau: left are the points with ``x <= tau`` (categorical: ``==``).
        categorical: Whether the column has no order (one against the rest).
    """

    column: int
    threshold: float
    categorical: bool = False

    def left(self, X: Any) -> Any:
        """Which points ``... x d`` (an array or a tensor) are at home on the left."""
        x = X[..., self.column]
        return x == self.threshold if self.categorical else x <= self.threshold

    def right(self, X: Any) -> Any:
        """Which points belong to the right child, those shared with the left too."""
        x = X[..., self.column]
        return x != self.threshold if self.categorical else x >= self.threshold


@dataclass(frozen=True)
class ChangePoint:
    """Where regimes change, as a distribution: uniform within each of some intervals.

    A split at a data point says that the change is between it and the next one.

    Attributes:
        starts: Data points that the split might be at, ascending, ``k``.
        ends: The next data points, ``k``.
        weights: Probabilities, ``k``.
    """

    starts: Tensor
    ends: Tensor
    weights: Tensor

    def left_probability(self, x: Tensor) -> Tensor:
        """One minus the distribution function at values of the column."""
        starts, ends, weights = (
            t.to(x) for t in (self.starts, self.ends, self.weights)
        )
        x = x.unsqueeze(-1)
        width = ends - starts
        within = (ends - x) / torch.where(width > 0.0, width, 1.0)
        # an interval that is none in another precision is a step
        beyond = torch.where(width > 0.0, within, (x <= starts).to(x))
        return (beyond.clamp(0.0, 1.0) * weights).sum(-1)


@dataclass(eq=False)
class TreeNode:
    """A node and the data in it.

    Attributes:
        rows: The rows of all its data, M_i of the paper.
        home: The rows that are predicted here: without those shared from the left.
        size: How many rows it had when the tree was grown, shared ones included.
        depth: Edges from the root.
        parent: None for the root.
        split: None for a leaf.
        children: Left and right.
        leaf: Number of the leaf, left to right, in a tree from a ``TreePartition``.
        change: Where else the split might have been; None if that is not known.
        fit: What a criterion wants to remember about the node.
    """

    rows: Rows
    home: Rows
    size: int = 0
    depth: int = 0
    parent: TreeNode | None = None
    split: Split | None = None
    children: tuple[TreeNode, ...] = ()
    leaf: int | None = None
    change: ChangePoint | None = None
    fit: Any = field(default=None, repr=False)

    @classmethod
    def root(cls, X: Array) -> TreeNode:
        """The root of a tree over data ``n x d``."""
        rows = np.arange(len(X))
        return cls(rows=rows, home=rows, size=len(rows))

    def divided(
        self,
        X: Array,
        split: Split,
    ) -> tuple[TreeNode, TreeNode]:
        """The children that a split would make."""
        left = split.left(X)

        def child(inside: NDArray[np.bool_], home: NDArray[np.bool_]) -> TreeNode:
            rows = self.rows[inside[self.rows]]
            return TreeNode(
                rows=rows,
                home=self.home[home[self.home]],
                size=len(rows),
                depth=self.depth + 1,
                parent=self,
            )

        return child(left, left), child(split.right(X), ~left)

    def walk(self) -> list[TreeNode]:
        """This node and all below it, parents before children, left before right."""
        nodes = [self]
        for child in self.children:
            nodes += child.walk()
        return nodes

    def leaves(self) -> list[TreeNode]:
        """Leaves below this node, left to right."""
        return [node for node in self.walk() if node.split is None]

    def path(self) -> list[TreeNode]:
        """This node, its parent, and so on to the root."""
        nodes = [self]
        while nodes[-1].parent is not None:
            nodes.append(nodes[-1].parent)
        return nodes


@dataclass(frozen=True)
class Proposal:
    """How a node might be split.

    Attributes:
        value: What is gained; the largest is carried out first.
        split: The split.
        children: The nodes it makes.
        change: Where else the split might have been.
    """

    value: float
    split: Split
    children: tuple[TreeNode, TreeNode]
    change: ChangePoint | None = None


def grow(
    root: TreeNode,
    propose: Callable[[TreeNode], Proposal | None],
    max_leaves: int | None = None,
) -> None:
    """Split leaves, the one that gains most first, until nothing is proposed.

    Args:
        root: The tree, changed in place.
        propose: The best split of a node, or None.
        max_leaves: Where to stop.
    """
    pending: list[tuple[TreeNode, Proposal]] = []
    leaves: Sequence[TreeNode] = [root]
    for count in itertools.count(1):
        if count == max_leaves:
            return
        proposals = [(node, propose(node)) for node in leaves]
        pending += [(node, split) for node, split in proposals if split is not None]
        if not pending:
            return
        # the oldest of those that gain as much
        chosen = max(pending, key=lambda pair: pair[1].value)
        pending.remove(chosen)
        node, proposal = chosen
        node.split = proposal.split
        node.change = proposal.change
        node.children = leaves = proposal.children


def split_by_variance(
    X: Array,
    y: Array,
    min_leaf_size: int,
    categorical: Collection[int] = (),
) -> tuple[float, Split] | None:
    """The split that reduces U the most, equation (1), in O(d n log n).

    Args:
        X: ``n x d``.
        y: ``n``.
        min_leaf_size: Fewest points of a child, shared ones included.
        categorical: Columns without an order.

    Returns:
        I and the split; None if none reduces U or leaves enough points on both sides.
        Ties go to the first column and the smallest threshold.
    """
    n = len(y)
    centred = y - y.mean()
    total = float(centred @ centred)
    best: tuple[float, Split] | None = None
    # smaller reductions are rounding errors
    best_reduction = 1e-12 * total / n
    for column, x in enumerate(X.T):
        values, codes = np.unique(x, return_inverse=True)
        # number, sum and sum of squares of the outcomes at each value
        at_value = np.stack([np.bincount(codes, centred**k) for k in range(3)])
        left = at_value if column in categorical else at_value.cumsum(-1)
        right = at_value.sum(-1, keepdims=True) - left
        if column not in categorical:  # a threshold belongs to both
            right += at_value
        size, sums, squares = np.stack([left, right], axis=1)
        allowed = (size.min(0) >= max(min_leaf_size, 1)) & (size.max(0) < n)
        within = (squares - sums**2 / np.maximum(size, 1)).sum(0)
        reduction = np.where(allowed, (total - within) / n, -np.inf)
        place = int(reduction.argmax())
        if reduction[place] > best_reduction:
            best_reduction = float(reduction[place])
            split = Split(column, float(values[place]), column in categorical)
            best = best_reduction, split
    return best


def propose_by_variance(
    node: TreeNode,
    X: Array,
    y: Array,
    min_leaf_size: int,
    categorical: Sequence[int] = (),
) -> Proposal | None:
    """The split of a node by CART, as in section 3.1 of Assael et al. (2014).

    Args:
        node: The node.
        X: ``n x d``, all data.
        y: ``n``.
        min_leaf_size: Fewest points of a child, shared ones included.
        categorical: Columns without an order.
    """
    best = split_by_variance(
        X[node.rows],
        y[node.rows],
        min_leaf_size,
        categorical,
    )
    if best is None:
        return None
    reduction, split = best
    children = node.divided(X, split)
    return Proposal(reduction * len(node.rows), split, children)
