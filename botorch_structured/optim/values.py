"""`Values`: what the columns of a space may hold."""

from __future__ import annotations

__all__ = ["Values"]

from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Values:
    """What ``d`` columns may hold: any number, any integer, or the values in a list.

    The values in a list have *positions* 0, 1, 2, ...; integers and real numbers are
    their own positions, so that one expression serves columns of all kinds.

    Args:
        whole: ``d`` booleans: columns of integers.
        logarithmic: ``d`` booleans: the columns of integers, all of them positive, that
            are drawn and moved on a logarithmic scale.
        listed: ``d`` booleans: columns with a list.
        ordered: ``d`` booleans: the discrete columns in which neighbouring positions
            are alike (integers), so that a search steps along them; in the others
            (categoricals) it tries all values.
        table: ``d x w`` listed values, ascending, followed by at least one infinity.
    """

    whole: Tensor
    logarithmic: Tensor
    listed: Tensor
    ordered: Tensor
    table: Tensor

    @cached_property
    def discrete(self) -> Tensor:
        """``d`` booleans: columns of integers or with a list."""
        return self.whole | self.listed

    def take(self, columns: Tensor) -> Values:
        """The same of some columns."""
        parts = (getattr(self, part.name) for part in fields(self))
        return Values(*(part[columns] for part in parts))

    def position(self, X: Tensor) -> Tensor:
        """``n x d`` positions of the nearest admissible values."""
        at = X.mT.contiguous()
        right = torch.searchsorted(self.table, at).clamp(1, self.table.shape[1] - 1)
        left = right - 1
        near = at - self.table.gather(1, left) <= self.table.gather(1, right) - at
        listed = torch.where(near, left, right).mT.to(X)
        return torch.where(self.listed, listed, torch.where(self.whole, X.round(), X))

    def value(self, position: Tensor) -> Tensor:
        """``n x d`` admissible values at these positions."""
        index = position.mT.clamp(0, self.table.shape[1] - 1).long()
        return torch.where(self.listed, self.table.gather(1, index).mT, position)

    def snap(self, X: Tensor) -> Tensor:
        """``n x d`` nearest admissible values."""
        return self.value(self.position(X))

    def inside(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The first and last admissible values in ``[lower, upper]``, ``n x d`` each.

        The first is above the last where there is none.
        """
        table, end = self.table, self.table.shape[1] - 1
        first = torch.searchsorted(table, lower.mT.contiguous()).clamp_max(end)
        last = torch.searchsorted(table, upper.mT.contiguous(), right=True) - 1
        low, high = table.gather(1, first).mT, table.gather(1, last.clamp_min(0)).mT
        high = torch.where(last.mT >= 0, high, -torch.inf)
        return (
            torch.where(self.listed, low, torch.where(self.whole, lower.ceil(), lower)),
            torch.where(
                self.listed, high, torch.where(self.whole, upper.floor(), upper)
            ),
        )
