"""Conditions that compare parameters with each other, to forbid points.

A space forbids points by conditions (`Between`, ``&``, ``|``) and by those here. They
hold, and the point is forbidden, only where the parameters they refer to are active. An
`Operand` is one side of a comparison: a column or a constant.
"""

from __future__ import annotations

__all__ = ["Comparison", "LinearClause", "Operand", "Relation", "TableRelation"]

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
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


class Comparison(Condition):
    """What holds only where all of its ``operands`` are active."""

    operands: tuple[Operand, ...]

    def holds(self, X: Tensor, active: Tensor | None = None) -> Tensor:
        known = (operand.is_active(X, active) for operand in self.operands)
        return reduce(torch.logical_and, known, self._compare(X))

    def _compare(self, X: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class LinearClause(Comparison):
    """``sum_i weights_i x_i <= bound`` (or ``= bound``) is violated."""

    operands: tuple[Operand, ...]
    weights: tuple[float, ...]
    bound: float
    equality: bool = False

    def _compare(self, X: Tensor) -> Tensor:
        values = [operand.evaluate(X) for operand in self.operands]
        excess = torch.full_like(values[0], -self.bound)
        for weight, value in zip(self.weights, values, strict=True):
            excess = excess + weight * value
        return (excess.abs() if self.equality else excess) > 1e-8


@dataclass(frozen=True, eq=False)
class _OfTwo(Comparison):
    left: Operand
    right: Operand

    @property
    def operands(self) -> tuple[Operand, ...]:  # type: ignore[override]  # not a field
        return self.left, self.right


@dataclass(frozen=True, eq=False)
class Relation(_OfTwo):
    """A comparison of two numbers."""

    compare: Callable[[Any, Any], Any]

    def _compare(self, X: Tensor) -> Tensor:
        verdict: Tensor = self.compare(self.left.evaluate(X), self.right.evaluate(X))
        return verdict


@dataclass(frozen=True, eq=False)
class TableRelation(_OfTwo):
    """A comparison of two choices, worked out beforehand for every pair."""

    table: tuple[tuple[bool, ...], ...]

    def _compare(self, X: Tensor) -> Tensor:
        table = torch.tensor(self.table, device=X.device)
        return table[self.left.index(X), self.right.index(X)]
