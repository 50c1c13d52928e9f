"""Rows of a data set grouped by leaf, and leaves of like size grouped into batches."""

from __future__ import annotations

__all__ = ["Bucket", "LeafLayout", "group_rows"]

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bucket:
    """Leaves of similar size, padded to a common number of rows.

    Attributes:
        leaves: Which leaves of the layout these are, ``B``.
        index: Their rows, ``B x N``; ``n`` (one past the last row) where padded.
        real: ``B x N``, False where padded; None if nothing is padded.
    """

    leaves: Tensor
    index: Tensor
    real: Tensor | None


def group_rows(group: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """Sort rows by group.

    Args:
        group: The group of each row, ``n``.
        num_groups: Number of groups.

    Returns:
        The row numbers sorted by group (stable), ``n``, and the number of rows of each
        group, ``num_groups``.
    """
    order = torch.argsort(group, stable=True)
    return order, torch.bincount(group, minlength=num_groups)


def pad_groups(order: Tensor, start: Tensor, size: Tensor, width: int) -> Tensor:
    """Row numbers of some groups, ``B x width``, padded with ``n``.

    Args:
        order: Rows sorted by group, ``n``.
        start: Position of each group's first row in ``order``, ``B``.
        size: Number of rows of each group, ``B``.
        width: Common width, at least the largest size.
    """
    offset = torch.arange(width, device=order.device)
    position = start.unsqueeze(-1) + offset
    padded = torch.cat([order, order.new_full((1,), order.shape[0])])
    inside = offset < size.unsqueeze(-1)
    return padded[torch.where(inside, position, order.shape[0])]


def _bucket_widths(sizes: list[int]) -> dict[int, int]:
    """Common width for each leaf size: within a quarter, plus four rows.

    LAPACK's Cholesky is two to four times slower at multiples of 128 than two rows
    more, so those widths are avoided.
    """
    widths: dict[int, int] = {}
    width: int | None = None
    for size in sorted(set(sizes), reverse=True):
        if width is None or 1.25 * size + 4 < width:
            width = size + 2 if size % 128 == 0 else size
        widths[size] = width
    return widths


class LeafLayout:
    """The grouping of ``n`` rows by leaf.

    Args:
        keys: The leaf of each row as any integer, ``n``: equal if and only if two rows
            are on the same leaf.

    Attributes:
        num_rows: ``n``.
        num_leaves: Number of leaves with data.
        keys: The distinct keys, ascending, ``num_leaves``.
        leaf_of_row: ``n``.
        representative: One row of each leaf, ``num_leaves``.
        max_size: Size of the largest leaf.
        sizes: Rows of each leaf, ``num_leaves``, a list of integers.
        buckets: The leaves in batches.
    """

    def __init__(self, keys: Tensor) -> None:
        self.num_rows = keys.shape[0]
        self.keys, self.leaf_of_row = torch.unique(keys, return_inverse=True)
        self.num_leaves = self.keys.shape[0]
        order, counts = group_rows(self.leaf_of_row, self.num_leaves)
        start = counts.cumsum(0) - counts
        self.representative = order[start]
        self.sizes: list[int] = counts.tolist()
        self.max_size = max(self.sizes)
        widths = _bucket_widths(self.sizes)
        leaf_widths = [widths[size] for size in self.sizes]
        self.buckets: list[Bucket] = []
        for width in sorted(set(leaf_widths)):
            leaves = torch.tensor(
                [p for p, w in enumerate(leaf_widths) if w == width],
                device=keys.device,
            )
            index = pad_groups(order, start[leaves], counts[leaves], width)
            full = all(s == width for s in self.sizes if widths[s] == width)
            real = None if full else index < self.num_rows
            self.buckets.append(Bucket(leaves, index, real))

    def find(self, keys: Tensor) -> Tensor:
        """The leaf of other rows, ``m``; ``num_leaves`` for a leaf without data."""
        position = torch.searchsorted(self.keys, keys).clamp_max(self.num_leaves - 1)
        known = self.keys[position] == keys
        return torch.where(known, position, self.num_leaves)
