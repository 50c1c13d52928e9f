"""The terms of the objective of treed GPs, in batches of one shape each.

A term is a leaf and a node on its path. Where the node has what the leaf has, one
factorisation serves all terms of a leaf (``nested_groups``); where it has a mean, an
amplitude and noise of its own, each term needs one (``node_groups``).
"""

from __future__ import annotations

__all__ = [
    "PathGroup",
    "batch_elements",
    "nested_groups",
    "node_groups",
    "path_weight",
]

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from botorch_structured.inference.cart import Rows, TreeNode

# Elements of a batch of matrices. A core works on half a dozen arrays of that size,
# which must stay in its cache; other devices want much at once, but never gigabytes.
_CACHE_ELEMENTS = 80_000
_DEVICE_ELEMENTS = 2_000_000
# Up to so many rows a term costs less than the calls for it: padding is cheap.
_SMALL = 48
_GROWTH, _SLACK = 1.25, 4


@dataclass(frozen=True)
class PathGroup:
    """Terms that are worked on together.

    Attributes:
        leaves: Numbers of the leaves, ``B``; each has data.
        values: Whose amplitude, mean and noise count, ``B``: j for those of leaf j of
            L, L + p for those of the node at position p of the tree.
        rows: Data, those of nested nodes one after the other, ``B x m``.
        members: Which of these rows a node on the path has, ``B x D x m``; with one
            node, the others are padding.
        weights: Weight of that node, ``B x D``; 0 for fewer nodes than ``D``.
        own: Whether any of the values are those of leaves.
        padded: Whether some of the rows are padding.
    """

    leaves: Tensor
    values: Tensor
    rows: Tensor
    members: Tensor
    weights: Tensor
    own: bool = True
    padded: bool = False

    @cached_property
    def row_weights(self) -> Tensor:
        """Sum of the weights of the nodes that a row is in, ``B x m``."""
        return (self.members * self.weights.unsqueeze(-1)).sum(-2)

    @cached_property
    def pairs(self) -> Tensor | None:
        """1 for two rows that are data, 0 for padding, ``B x m x m``; None without."""
        return self.members.mT @ self.members if self.padded else None

    def to(self, like: Tensor) -> PathGroup:
        """The same in the dtype and on the device of a tensor."""
        return PathGroup(
            self.leaves.to(like.device),
            self.values.to(like.device),
            self.rows.to(like.device),
            self.members.to(like),
            self.weights.to(like),
            self.own,
            self.padded,
        )


def batch_elements(device: torch.device) -> int:
    """How many elements the matrices of a group may have together.

    Args:
        device: Where they are worked on.
    """
    return _CACHE_ELEMENTS if device.type == "cpu" else _DEVICE_ELEMENTS


def path_weight(
    leaf: TreeNode, node: TreeNode, count: Callable[[TreeNode], int]
) -> float:
    """w_i of equation (2), as printed.

    Args:
        leaf: j.
        node: i, on the path from j to the root.
        count: Number of data in a node.
    """
    return count(leaf) / count(node) / (1.0 + leaf.depth - node.depth)


def nested_groups(
    root: TreeNode, data: Callable[[TreeNode], Rows], max_elements: int
) -> list[PathGroup]:
    """One factorisation per leaf: for what all nodes of a path share.

    Leaves without data are in no group.

    Args:
        root: The tree.
        data: The rows of a node that count, nested along each path.
        max_elements: See ``batch_elements``; one matrix may have more.
    """
    numbered = [(j, v) for j, v in enumerate(root.leaves()) if len(data(v))]
    n = len(data(root))
    deepest = 1 + max(leaf.depth for _, leaf in numbered)
    rows = np.zeros((len(numbered), n), dtype=np.int64)
    members = np.zeros((len(numbered), deepest, n))
    weights = np.zeros((len(numbered), deepest))
    for j, (_, leaf) in enumerate(numbered):
        seen = np.zeros(0, dtype=np.int64)
        for k, node in enumerate(leaf.path()):
            new = np.setdiff1d(data(node), seen, assume_unique=True)
            seen = np.concatenate([seen, new])
            members[j, k, : len(seen)] = 1.0
            weights[j, k] = path_weight(leaf, node, lambda v: len(data(v)))
        rows[j] = seen
    leaves = torch.tensor([number for number, _ in numbered])
    step = max(1, max_elements // (n * n))
    return [
        PathGroup(
            leaves[i : i + step],
            leaves[i : i + step],
            torch.as_tensor(rows[i : i + step]),
            torch.as_tensor(members[i : i + step]),
            torch.as_tensor(weights[i : i + step]),
        )
        for i in range(0, len(numbered), step)
    ]


@dataclass(frozen=True)
class _Term:
    """A leaf, whose values count, the data, and the weight."""

    leaf: int
    values: int
    rows: Rows
    weight: float


def node_groups(
    root: TreeNode, data: Callable[[TreeNode], Rows], max_elements: int
) -> list[PathGroup]:
    """One factorisation per leaf and node: for nodes that have values of their own.

    Terms with equally many rows are batched, and small ones with nearly as many.
    Leaves without data are in no group.

    Args:
        root: The tree.
        data: The rows of a node that count.
        max_elements: See ``batch_elements``; one matrix may have more.
    """
    leaves = root.leaves()
    number = {id(leaf): j for j, leaf in enumerate(leaves)}
    terms = [
        _Term(
            number[id(leaf)],
            number[id(leaf)] if node is leaf else len(leaves) + position,
            data(node),
            path_weight(leaf, node, lambda v: len(data(v))),
        )
        for position, node in enumerate(root.walk())
        for leaf in node.leaves()
        if len(data(leaf))
    ]
    terms.sort(key=lambda term: -len(term.rows))
    batches: list[list[_Term]] = []
    for term in terms:
        m = len(term.rows)
        if batches:
            batch = batches[-1]
            width = len(batch[0].rows)
            alike = m == width or (width <= _SMALL and _GROWTH * m + _SLACK >= width)
            if alike and (len(batch) + 1) * width**2 <= max_elements:
                batch.append(term)
                continue
        batches.append([term])
    return [_padded(batch, len(leaves)) for batch in batches]


def _padded(batch: list[_Term], num_leaves: int) -> PathGroup:
    """Terms in the order of their sizes, the first the largest."""
    width = len(batch[0].rows)
    rows = np.zeros((len(batch), width), dtype=np.int64)
    members = np.zeros((len(batch), 1, width))
    for i, term in enumerate(batch):
        rows[i, : len(term.rows)] = term.rows
        members[i, 0, : len(term.rows)] = 1.0
    return PathGroup(
        torch.tensor([term.leaf for term in batch]),
        torch.tensor([term.values for term in batch]),
        torch.as_tensor(rows),
        torch.as_tensor(members),
        torch.tensor([term.weight for term in batch], dtype=torch.float64)[:, None],
        own=any(term.values < num_leaves for term in batch),
        padded=len(batch[-1].rows) < width,
    )
