"""A partition of the input space by a binary tree, for a batch of data sets.

The tree is grown in numpy (``inference.cart``); here it is a module of buffers, so that
it moves with a model, is part of its state, and sends points to leaves on any device.
"""

from __future__ import annotations

__all__ = [
    "PartitionNode",
    "TreePartition",
    "left_probability",
]

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from botorch_structured.models.treed.tree import Array, ChangePoint, Split, TreeNode

# (name, fill value of nodes that do not exist, dtype); -1 stands for "none"
_BUFFERS: tuple[tuple[str, float, torch.dtype], ...] = (
    ("column", -1, torch.long),
    ("threshold", 0.0, torch.float64),
    ("categorical", 0, torch.bool),
    ("left", -1, torch.long),
    ("right", -1, torch.long),
    ("parent", -1, torch.long),
    ("size", 0, torch.long),
    # the change point of each node, see ``ChangePoint``
    ("starts", 0.0, torch.float64),
    ("ends", 0.0, torch.float64),
    ("weights", 0.0, torch.float64),
)
#: Most intervals that a change point may be in.
MAX_CHANGES = 16


def _width(name: str) -> tuple[int, ...]:
    """Dimensions of a buffer besides batch and nodes."""
    return (MAX_CHANGES,) if name in ("starts", "ends", "weights") else ()


@dataclass(frozen=True)
class PartitionNode:
    """A node of the tree, parents before children.

    Attributes:
        split: None for a leaf.
        depth: Edges from the root.
        size: How many of the data that the tree was grown on are in it, those that it
            shares with its sibling included.
        parent: Position of the parent; None for the root.
        children: Positions of the left and the right child; empty for a leaf.
        leaf: Number of the leaf, left to right; None for inner nodes.
    """

    split: Split | None
    depth: int
    size: int
    parent: int | None
    children: tuple[int, ...]
    leaf: int | None


class TreePartition(nn.Module):
    """Which leaf each point belongs to.

    A point exactly at a threshold goes left. Between the threshold and the nearest
    point to the right of it (``upper``) there are no data, and where in this gap the
    regimes change is not known: ``left_probability`` is one minus the distribution
    function of a change point uniform over the gap.

    Args:
        roots: The trees of the elements of a batch, in order.
        data: The inputs that each was grown on, ``n x d``.
        batch_shape: Shape of the batch.
    """

    column: Tensor
    threshold: Tensor
    starts: Tensor
    ends: Tensor
    weights: Tensor
    categorical: Tensor
    left: Tensor
    right: Tensor
    parent: Tensor
    size: Tensor

    def __init__(
        self,
        roots: Sequence[TreeNode],
        data: Sequence[Array],
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
    ) -> None:
        super().__init__()
        trees = [root.walk() for root in roots]
        count = max(len(nodes) for nodes in trees)
        columns = {
            name: np.full((len(trees), count, *_width(name)), fill)
            for name, fill, _ in _BUFFERS
        }
        for i, (nodes, X) in enumerate(zip(trees, data, strict=True)):
            place = {id(node): k for k, node in enumerate(nodes)}
            for k, node in enumerate(nodes):
                columns["size"][i, k] = len(node.rows)
                if node.parent is not None:
                    columns["parent"][i, k] = place[id(node.parent)]
                if node.split is None:
                    continue
                columns["column"][i, k] = node.split.column
                columns["threshold"][i, k] = node.split.threshold
                columns["categorical"][i, k] = node.split.categorical
                change = node.change or _nearest(node, X)
                for part in ("starts", "ends", "weights"):
                    row = getattr(change, part)
                    columns[part][i, k, : len(row)] = row
                for side, child in zip(("left", "right"), node.children, strict=True):
                    columns[side][i, k] = place[id(child)]
        for name, _, dtype in _BUFFERS:
            values = torch.as_tensor(columns[name]).to(dtype)
            own = values.shape[1:]
            self.register_buffer(name, values.reshape(*batch_shape, *own))

    # -- shape --------------------------------------------------------------------

    @property
    def tree_shape(self) -> torch.Size:
        """The shape of the batch of trees."""
        return self.column.shape[:-1]

    @property
    def num_leaves(self) -> int:
        """The number of leaves; of a batch, the largest."""
        return int(self._is_leaf().sum(-1).max())

    @property
    def nodes(self) -> list[PartitionNode]:
        """The tree of an unbatched partition (otherwise use ``element``)."""
        if self.tree_shape:
            raise ValueError(
                "nodes: expected a partition without a batch, got one of shape "
                f"{tuple(self.tree_shape)}; use element(i).nodes."
            )
        number = self._leaf_number().tolist()
        found: list[PartitionNode] = []
        for k in range(self.column.shape[-1]):
            if k > 0 and self.parent[k] < 0:
                break  # a shorter tree of a batch
            parent = None if k == 0 else int(self.parent[k])
            split: Split | None = None
            children: tuple[int, ...] = ()
            if self.column[k] >= 0:
                split = Split(
                    int(self.column[k]),
                    float(self.threshold[k]),
                    bool(self.categorical[k]),
                )
                children = (int(self.left[k]), int(self.right[k]))
            found.append(
                PartitionNode(
                    split=split,
                    depth=0 if parent is None else found[parent].depth + 1,
                    size=int(self.size[k]),
                    parent=parent,
                    children=children,
                    leaf=number[k] if split is None else None,
                )
            )
        return found

    def element(self, index: int) -> TreePartition:
        """The partition of one element of the (flattened) batch."""
        return self.take(torch.tensor(index)) if self.tree_shape else self

    def take(self, where: Tensor) -> TreePartition:
        """The partitions of elements of the (flattened) batch, of any shape."""
        taken = object.__new__(TreePartition)
        nn.Module.__init__(taken)
        for name, _, _ in _BUFFERS:
            values = getattr(self, name)
            own = values.shape[len(self.tree_shape) :]
            elements = values.reshape(-1, *own)[where.to(values.device)]
            taken.register_buffer(name, elements)
        return taken

    def _is_leaf(self) -> Tensor:
        exists = self.parent >= 0
        exists[..., 0] = True
        return exists & (self.column < 0)

    def _leaf_number(self) -> Tensor:
        """Number of each leaf, left to right (nodes are in that order)."""
        return (self._is_leaf().long().cumsum(-1) - 1).clamp_min(0)

    def change(self, node: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Starts, ends and weights of the change point of a node, ``k`` each.

        Args:
            node: Position of an inner node; the partition has no batch.
        """
        real = self.weights[node] > 0
        if not bool(real.any()):
            return None
        return self.starts[node][real], self.ends[node][real], self.weights[node][real]

    def tree(self, X: Array) -> TreeNode:
        """The tree with (other) data sent down it; the partition has no batch.

        Args:
            X: ``n x d``.
        """
        nodes = self.nodes
        rows = np.arange(len(X))
        trees = [TreeNode(rows=rows, home=rows)]
        trees += [trees[0]] * (len(nodes) - 1)
        for k, node in enumerate(nodes):
            if node.split is not None:
                tree = trees[k]
                tree.split = node.split
                tree.children = tree.divided(X, node.split)
                for place, child in zip(node.children, tree.children, strict=True):
                    trees[place] = child
        return trees[0]

    def resize(self, num_nodes: int) -> None:
        """Make room for another tree, which is about to be loaded."""
        trees = self.tree_shape
        for name, fill, dtype in _BUFFERS:
            old = getattr(self, name)
            dtype = old.dtype if old.is_floating_point() else dtype
            shape = (*trees, num_nodes, *_width(name))
            new = torch.full(shape, fill, dtype=dtype, device=old.device)
            setattr(self, name, new)

    # -- points -------------------------------------------------------------------

    def leaf_index(self, X: Tensor) -> Tensor:
        """The leaf of each point.

        Args:
            X: ``batch_shape x n x d``; a batch of trees is the end of ``batch_shape``.

        Returns:
            ``batch_shape x n``, leaves counted from left to right.
        """
        shape = torch.broadcast_shapes(X.shape[:-2], self.tree_shape)
        X = X.expand(*shape, *X.shape[-2:])
        tables = {
            name: getattr(self, name).expand(*shape, -1)
            for name in ("column", "threshold", "categorical", "left", "right")
        }
        node = torch.zeros(X.shape[:-1], dtype=torch.long, device=X.device)
        # a tree of N nodes has at most (N - 1) / 2 levels below the root
        for _ in range((self.column.shape[-1] - 1) // 2):
            at = {name: table.gather(-1, node) for name, table in tables.items()}
            column = at["column"].clamp_min(0).unsqueeze(-1)
            x = X.gather(-1, column).squeeze(-1)
            left = torch.where(
                at["categorical"], x == at["threshold"], x <= at["threshold"]
            )
            child = torch.where(left, at["left"], at["right"])
            node = torch.where(at["column"] < 0, node, child)
        return self._leaf_number().expand(*shape, -1).gather(-1, node)

    def leaf_probabilities(self, X: Tensor, blend: bool) -> Tensor:
        """Probability of each leaf, ``batch_shape x n x L``; no batch of trees.

        Args:
            X: ``batch_shape x n x d``.
            blend: See ``left_probability``.
        """
        nodes = self.nodes
        reach = [X.new_ones(X.shape[:-1])] * len(nodes)
        found = []
        for k, node in enumerate(nodes):
            if node.split is None:
                found.append(reach[k])
                continue
            left = left_probability(X, node.split, self.change(k) if blend else None)
            reach[node.children[0]] = reach[k] * left
            reach[node.children[1]] = reach[k] * (1.0 - left)
        return torch.stack(found, dim=-1)


def left_probability(
    X: Tensor, split: Split, change: tuple[Tensor, Tensor, Tensor] | None
) -> Tensor:
    """Probability that a point at an inner node is one of its left child.

    Args:
        X: ``batch_shape x n x d``.
        split: Of the node.
        change: Starts, ends and weights of a ``ChangePoint``, ``k`` each; None if the
            change is at the threshold.

    Returns:
        ``batch_shape x n``.
    """
    x = X[..., split.column]
    if split.categorical:
        return (x == split.threshold).to(X)
    if change is None:
        return (x <= split.threshold).to(X)
    starts, ends, weights = change
    beyond = (ends - x.unsqueeze(-1)) / (ends - starts)
    return (beyond.clamp(0.0, 1.0) * weights).sum(-1)


def _nearest(node: TreeNode, X: Array) -> ChangePoint:
    """A change between tau and the smallest value of the right child's own points."""
    assert node.split is not None
    home = node.children[1].home
    tau = node.split.threshold
    if node.split.categorical or len(home) == 0:
        return ChangePoint(np.empty(0), np.empty(0), np.empty(0))
    upper = float(X[home, node.split.column].min())
    return ChangePoint(np.array([tau]), np.array([upper]), np.ones(1))
