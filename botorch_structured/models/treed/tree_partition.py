"""A partition of the input space by a binary tree, for a batch of data sets.

Here a tree is a module of buffers, so that it moves with a model, is part of its state,
and sends points to leaves on any device. Nodes are in the order of ``TreeNode.walk``,
parents before children and left before right, which together with the columns they are
split at (-1: a leaf) is the tree.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from botorch_structured.models.treed.cart import Array, ChangePoint, Split, TreeNode

# the change point of each node, see ``ChangePoint``
_CHANGE = ("starts", "ends", "weights")
#: Most intervals that a change point may be in.
MAX_CHANGES = 16


class TreePartition(nn.Module):
    """Which leaf each point belongs to.

    A point exactly at a threshold goes left. Between the threshold and the nearest
    point to the right of it there are no data, and where in this gap the regimes change
    is not known: the probability that a point is on the left is one minus the
    distribution function of a change point uniform over the gap.

    Args:
        roots: The trees of the elements of a batch, in order.
        data: The inputs that each was grown on, ``n x d``.
        batch_shape: Shape of the batch.
    """

    column: Tensor
    threshold: Tensor
    categorical: Tensor
    size: Tensor
    starts: Tensor
    ends: Tensor
    weights: Tensor

    def __init__(
        self,
        roots: Sequence[TreeNode],
        data: Sequence[Array],
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
    ) -> None:
        super().__init__()
        trees = [root.walk() for root in roots]
        shape = len(trees), max(len(nodes) for nodes in trees)
        # nodes that do not exist are leaves
        buffers = {
            "column": torch.full(shape, -1),
            "threshold": torch.zeros(shape, dtype=torch.float64),
            "categorical": torch.zeros(shape, dtype=torch.bool),
            "size": torch.zeros(shape, dtype=torch.long),
        }
        for name in _CHANGE:
            buffers[name] = torch.zeros(*shape, MAX_CHANGES, dtype=torch.float64)
        for i, (nodes, X) in enumerate(zip(trees, data, strict=True)):
            for k, node in enumerate(nodes):
                buffers["size"][i, k] = node.size
                if node.split is None:
                    continue
                for name in ("column", "threshold", "categorical"):
                    buffers[name][i, k] = getattr(node.split, name)
                change = node.change or _nearest(node, X)
                if change is not None:
                    for name in _CHANGE:
                        row = getattr(change, name)
                        buffers[name][i, k, : len(row)] = row
        for name, values in buffers.items():
            self.register_buffer(name, values.reshape(*batch_shape, *values.shape[1:]))

    def adopt(self, state: Mapping[str, Tensor]) -> None:
        """Be the trees of a state, which may be of another size."""
        for name, values in list(self.named_buffers()):
            self.register_buffer(name, state[name].to(values, copy=True))

    # -- trees --------------------------------------------------------------------

    @property
    def tree_shape(self) -> torch.Size:
        """The shape of the batch of trees."""
        return self.column.shape[:-1]

    @property
    def num_leaves(self) -> int:
        """The number of leaves; of a batch, the largest."""
        return 1 + int((self.column >= 0).sum(-1).max())

    @property
    def nodes(self) -> list[TreeNode]:
        """The tree of an unbatched partition (otherwise use ``element``), without data.

        Each node has its ``split``, ``depth`` and ``size``.
        """
        if self.tree_shape:
            raise ValueError(
                "nodes: expected a partition without a batch, got one of shape "
                f"{tuple(self.tree_shape)}; use element(i).nodes."
            )
        return self.tree(np.empty((0, 1 + max(int(self.column.max()), 0)))).walk()

    def tree(self, X: Array) -> TreeNode:
        """The tree with (other) data sent down it; the partition has no batch.

        Args:
            X: ``n x d``.
        """
        root = TreeNode.root(X)
        leaves = itertools.count()
        names = (self.column, self.threshold, self.categorical, self.size)
        # intervals in the middle too may have weights that underflow
        likely = self.weights > 0
        blurred = likely.any(-1).tolist()
        rows = enumerate(zip(*(t.tolist() for t in names), blurred, strict=True))

        def follow(node: TreeNode) -> None:
            k, (column, threshold, categorical, node.size, blurs) = next(rows)
            if column < 0:
                node.leaf = next(leaves)
                return
            node.split = Split(column, threshold, categorical)
            if blurs:
                change = (getattr(self, name)[k, likely[k]] for name in _CHANGE)
                node.change = ChangePoint(*change)
            node.children = node.divided(X, node.split)
            for child in node.children:
                follow(child)

        follow(root)
        return root

    def element(self, index: int) -> TreePartition:
        """The partition of one element of the (flattened) batch."""
        return self.take(torch.tensor(index)) if self.tree_shape else self

    def take(self, where: Tensor) -> TreePartition:
        """The partitions of elements of the (flattened) batch, of any shape."""
        taken = object.__new__(TreePartition)
        nn.Module.__init__(taken)
        for name, values in self.named_buffers():
            shape = values.shape[len(self.tree_shape) :]
            elements = values.reshape(-1, *shape)[where.to(values.device)]
            taken.register_buffer(name, elements)
        return taken

    # -- points -------------------------------------------------------------------

    def leaf_index(self, X: Tensor) -> Tensor:
        """The leaf of each point.

        Args:
            X: ``batch_shape x n x d`` transformed points
                (``model.transform_inputs(X)``), as thresholds are of these; a batch of
                trees is the end of ``batch_shape``.

        Returns:
            ``batch_shape x n``, leaves counted from left to right.
        """
        return self.by_tree(
            X, lambda _, tree, x: tree.leaf_probabilities(x, blend=False).argmax(-1)
        )

    def by_tree(
        self,
        X: Tensor,
        value: Callable[[int, TreePartition, Tensor], Tensor],
    ) -> Tensor:
        """Values of points, each found with the tree of its batch element.

        Args:
            X: ``batch_shape x n x d``; a batch of trees is the end of ``batch_shape``.
            value: The number of an element, its partition and points ``b x n x d`` to
                values ``b x ...``.

        Returns:
            ``batch_shape x ...``.
        """
        shape = torch.broadcast_shapes(X.shape[:-2], self.tree_shape)
        X = X.expand(*shape, *X.shape[-2:])
        trees = self.tree_shape.numel()
        points = X.reshape(shape.numel() // trees, trees, *X.shape[-2:])  # n may be 0
        values = [value(e, self.element(e), points[:, e]) for e in range(trees)]
        stacked = torch.stack(values, dim=1)
        return stacked.reshape(*shape, *stacked.shape[2:])

    def leaf_probabilities(
        self,
        X: Tensor,
        blend: bool,
    ) -> Tensor:
        """Probability of each leaf, ``batch_shape x n x L``; no batch of trees.

        Args:
            X: ``batch_shape x n x d`` transformed points, see ``leaf_index``.
            blend: Whether leaves mix where the change may be; otherwise it is at the
                threshold.
        """
        probabilities = []

        def reach(node: TreeNode, probability: Tensor) -> None:
            if node.split is None:
                probabilities.append(probability)
                return
            left = left_probability(X, node, blend)
            reach(node.children[0], probability * left)
            reach(node.children[1], probability * (1.0 - left))

        reach(self.nodes[0], X.new_ones(X.shape[:-1]))
        return torch.stack(probabilities, dim=-1)


def left_probability(
    X: Tensor,
    node: TreeNode,
    blend: bool,
) -> Tensor:
    """Probability that a point at an inner node is one of its left child.

    Args:
        X: ``batch_shape x n x d``.
        node: With a split.
        blend: See ``TreePartition.leaf_probabilities``.

    Returns:
        ``batch_shape x n``.
    """
    assert node.split is not None
    if node.change is None or not blend:
        return node.split.left(X).to(X)
    return node.change.left_probability(X[..., node.split.column])


def _nearest(node: TreeNode, X: Array) -> ChangePoint | None:
    """A change between tau and the smallest value of the right child's own points."""
    assert node.split is not None
    home = node.children[1].home
    if node.split.categorical or len(home) == 0:
        return None
    upper = X[home, node.split.column].min()
    ends = (node.split.threshold, float(upper), 1.0)
    return ChangePoint(*(torch.tensor([v], dtype=torch.float64) for v in ends))
