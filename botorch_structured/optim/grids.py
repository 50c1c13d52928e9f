"""Columns that take only some values: integers, and the values of a categorical."""

from __future__ import annotations

__all__ = ["Grid"]

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Other values of a categorical that one step of a local search looks at, at most.
_MAX_ALTERNATIVES = 64


@dataclass(frozen=True)
class Grid:
    """The values a discrete column may take, as positions 0, 1, 2, ...

    Args:
        values: The admissible values, ascending; ``None`` for all integers.
        ordered: Whether neighbouring positions are alike (integers), so that a search
            steps along them, or not (categoricals), so that it tries them all.
    """

    values: tuple[float, ...] | None = None
    ordered: bool = True

    def _table(self, like: Tensor) -> Tensor:
        return torch.tensor(self.values, dtype=like.dtype, device=like.device)

    def position(self, X: Tensor) -> Tensor:
        """The position of the nearest admissible value."""
        if self.values is None:
            return X.round()
        table = self._table(X)
        if len(table) == 1:
            return torch.zeros_like(X)
        right = torch.searchsorted(table, X.contiguous()).clamp(1, len(table) - 1)
        left = right - 1
        nearer = X - table[left] <= table[right] - X
        return torch.where(nearer, left, right).to(X)

    def value(self, position: Tensor) -> Tensor:
        """The admissible value at a position."""
        if self.values is None:
            return position
        return self._table(position)[position.long()]

    def snap(self, X: Tensor) -> Tensor:
        """The nearest admissible value."""
        return self.value(self.position(X))

    def inside(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The first and last admissible value in ``[lower, upper]``.

        The first is above the last where there is none.
        """
        if self.values is None:
            return lower.ceil(), upper.floor()
        table = torch.tensor(
            [-math.inf, *self.values, math.inf], dtype=lower.dtype, device=lower.device
        )
        first = torch.searchsorted(table, lower.contiguous())
        last = torch.searchsorted(table, upper.contiguous(), right=True) - 1
        return table[first], table[last]

    def steps(self, span: float) -> list[int]:
        """How far a local search moves from a position, along ``span`` positions."""
        widest = int(span)
        if not self.ordered:
            widest = min(widest, _MAX_ALTERNATIVES)
            return [s for k in range(1, widest + 1) for s in (-k, k)]
        powers = [1 << k for k in range(widest.bit_length())]
        return [s for power in powers if power <= widest for s in (-power, power)]
