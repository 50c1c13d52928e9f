"""Conditions that compare parameters with each other, to forbid points.

A space forbids points by conditions (`Between`, ``&``, ``|``) and by those here. They
hold, and the point is forbidden, only where the parameters they refer to are active. An
`Operand` is one side of a comparison: a column or a constant.
"""

from __future__ import annotations

__all__ = ["LinearClause", "Operand", "Relation", "TableRelation"]

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_structured.spaces.columns import CategoricalColumn, Column, FloatColumn
from botorch_structured.spaces.conditions import And, Condition


@dataclass(frozen=True)
class Operand:
    """One side of a relation.

    Args:
        col: The column; None for a constant.
        log: Whether the column holds the decimal logarithm of its value.
        codes: For choices the numbers that stand for them; ``(0,)`` for a constant.
        values: The choices, or the constant alone.
        condition: Where a constant is active.
    """

    col: int | None
    log: bool = False
    codes: tuple[float, ...] = ()
    values: tuple[Any, ...] = ()
    condition: Condition = And(())

    @classmethod
    def of_column(cls, column: Column, col: int) -> Operand:
        """The parameter in column ``col``."""
        if isinstance(column, CategoricalColumn):
            return cls(col, codes=column.codes, values=column.choices)
        return cls(col, log=isinstance(column, FloatColumn) and column.log)

    @classmethod
    def of_constant(cls, value: Any, condition: Condition) -> Operand:
        """A constant that is active where ``condition`` holds."""
        return cls(None, codes=(0.0,), values=(value,), condition=condition)

    def index(self, X: Tensor) -> Tensor:
        """``batch_shape x n`` positions among the choices."""
        if self.col is None:
            return torch.zeros(X.shape[:-1], dtype=torch.long, device=X.device)
        codes = torch.tensor(self.codes, dtype=X.dtype, device=X.device)
        return (X[..., self.col, None] - codes).abs().argmin(-1)

    def evaluate(self, X: Tensor) -> Tensor:
        """``batch_shape x n`` numbers."""
        if self.values:
            values = [float(v) for v in self.values]
            table = torch.tensor(values, dtype=torch.double, device=X.device)
            return table[self.index(X)]
        x = X[..., self.col].double()
        return 10.0**x if self.log else x

    def is_active(self, X: Tensor, active: Tensor | None) -> Tensor:
        """``batch_shape x n`` booleans."""
        if self.col is None:
            return self.condition.holds(X, active)
        if active is None:
            return torch.ones(X.shape[:-1], dtype=torch.bool, device=X.device)
        return active[..., self.col]


@dataclass(frozen=True, eq=False)
class Relation(Condition):
    """A comparison of two numbers."""

    left: Operand
    right: Operand
    compare: Callable[[Any, Any], Any]

    @property
    def operands(self) -> tuple[Operand, Operand]:
        """Both sides."""
        return self.left, self.right

    def holds(self, X: Tensor, active: Tensor | None = None) -> Tensor:
        both = self.left.is_active(X, active) & self.right.is_active(X, active)
        return self.compare(self.left.evaluate(X), self.right.evaluate(X)) & both


@dataclass(frozen=True, eq=False)
class LinearClause(Condition):
    """``sum_i weights_i x_i <= bound`` (or ``= bound``) is violated."""

    operands: tuple[Operand, ...]
    weights: tuple[float, ...]
    bound: float
    equality: bool = False

    def holds(self, X: Tensor, active: Tensor | None = None) -> Tensor:
        excess = torch.full(X.shape[:-1], -self.bound, dtype=torch.double)
        excess = excess.to(X.device)
        known = torch.ones_like(excess, dtype=torch.bool)
        for operand, weight in zip(self.operands, self.weights, strict=True):
            excess = excess + weight * operand.evaluate(X)
            known = known & operand.is_active(X, active)
        excess = excess.abs() if self.equality else excess
        return (excess > 1e-8) & known


@dataclass(frozen=True, eq=False)
class TableRelation(Condition):
    """A comparison of two choices, worked out beforehand for every pair."""

    left: Operand
    right: Operand
    table: tuple[tuple[bool, ...], ...]

    @property
    def operands(self) -> tuple[Operand, Operand]:
        """Both sides."""
        return self.left, self.right

    def holds(self, X: Tensor, active: Tensor | None = None) -> Tensor:
        both = self.left.is_active(X, active) & self.right.is_active(X, active)
        table = torch.tensor(self.table, device=X.device)
        return table[self.left.index(X), self.right.index(X)] & both
