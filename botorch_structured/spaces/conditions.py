"""Conditions under which a column of a search space is active.

Three atoms speak about one *parent* column each, and ``&`` and ``|`` combine them:

    Equals(0, 1)                        column 0 takes the value 1
    In(0, [1, 2])                       column 0 takes one of these values
    Between(3, 0.5, float("inf"))       column 3 is at least 0.5 (both ends belong)
    Equals(0, 1) & Between(3, 0, 0.5)   both hold

In a `ParameterTree` an atom holds only where its parent is active itself. The exception
is ``Inactive(col)``, which holds where the parent is not: ConfigSpace reads its
``NotEquals`` as "another value, or inactive".
"""

from __future__ import annotations

__all__ = ["And", "Atom", "Between", "Condition", "Equals", "In", "Inactive", "Or"]

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from botorch_structured.spaces.arguments import as_integer, check_number, check_values


class Condition:
    """What the three atoms and their combinations have in common."""

    def __and__(self, other: Condition) -> Condition:
        return And((self, other)) if isinstance(other, Condition) else NotImplemented

    def __or__(self, other: Condition) -> Condition:
        return Or((self, other)) if isinstance(other, Condition) else NotImplemented

    def atoms(self) -> Iterator[Atom]:
        """The atoms of this expression, from left to right."""
        raise NotImplementedError

    def columns(self) -> frozenset[int]:
        """The parent columns this expression refers to."""
        return frozenset(atom.col for atom in self.atoms())

    def holds(self, X: Tensor, active: Tensor | None = None) -> Tensor:
        """Evaluate the expression on every row.

        Args:
            X: ``batch_shape x n x d`` points.
            active: ``batch_shape x n x d`` booleans: which columns are active. An atom
                whose parent is inactive does not hold. Default: all are active.

        Returns:
            ``batch_shape x n`` booleans.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Atom(Condition):
    """A statement about one parent column."""

    col: int

    def __post_init__(self) -> None:
        index = as_integer(self.col)
        if index is None or index < 0:
            raise ValueError(
                f"col: expected a column index (an integer >= 0), got {self.col!r}."
            )
        object.__setattr__(self, "col", index)

    @property
    def intervals(self) -> list[tuple[float, float]]:
        """Where on the axis of the column it holds: closed intervals."""
        raise NotImplementedError

    def atoms(self) -> Iterator[Atom]:
        yield self

    def _test(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def holds(self, X: Tensor, active: Tensor | None = None) -> Tensor:
        mask = self._test(X[..., self.col])
        return mask if active is None else mask & active[..., self.col]


@dataclass(frozen=True)
class Equals(Atom):
    """Column ``col`` takes the value ``value`` (up to rounding)."""

    value: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "value", check_number("value", self.value))

    @property
    def intervals(self) -> list[tuple[float, float]]:
        return [(self.value, self.value)]

    def _test(self, x: Tensor) -> Tensor:
        return (x - self.value).abs() <= 1e-6 * max(1.0, abs(self.value))


@dataclass(frozen=True)
class In(Atom):
    """Column ``col`` takes one of ``values`` (up to rounding)."""

    values: Sequence[float]  # kept as an ascending tuple

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "values", check_values("values", self.values))

    @property
    def intervals(self) -> list[tuple[float, float]]:
        return [(v, v) for v in self.values]

    def _test(self, x: Tensor) -> Tensor:
        tests = (Equals(self.col, v)._test(x) for v in self.values)
        return reduce(torch.logical_or, tests)


@dataclass(frozen=True)
class Between(Atom):
    """``lo <= x <= hi`` in column ``col``; either end may be infinite."""

    lo: float
    hi: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "lo", check_number("lo", self.lo, finite=False))
        object.__setattr__(self, "hi", check_number("hi", self.hi, finite=False))
        if self.lo > self.hi or self.lo == math.inf or self.hi == -math.inf:
            raise ValueError(
                f"lo: expected lo <= hi and a number between, got {self.lo}, {self.hi}."
            )

    @property
    def intervals(self) -> list[tuple[float, float]]:
        return [(self.lo, self.hi)]

    def _test(self, x: Tensor) -> Tensor:
        # In float64: a float32 point is compared with the very bounds that were given.
        x = x.double()
        return (x >= self.lo) & (x <= self.hi)


@dataclass(frozen=True)
class Inactive(Atom):
    """Column ``col`` is not active."""

    @property
    def intervals(self) -> list[tuple[float, float]]:
        return []

    def holds(self, X: Tensor, active: Tensor | None = None) -> Tensor:
        if active is None:
            return torch.zeros(X.shape[:-1], dtype=torch.bool, device=X.device)
        return ~active[..., self.col]


@dataclass(frozen=True)
class _Combination(Condition):
    """Several conditions at once; nested ones of the same kind are flattened."""

    parts: tuple[Condition, ...]

    def __post_init__(self) -> None:
        flat: dict[Condition, None] = {}
        for part in self.parts:
            if not isinstance(part, Condition):
                raise ValueError(
                    "parts: expected conditions (Equals, In, Between, or their "
                    f"combinations), got {part!r}."
                )
            parts = part.parts if isinstance(part, type(self)) else (part,)
            flat.update(dict.fromkeys(parts))
        object.__setattr__(self, "parts", tuple(flat))

    def atoms(self) -> Iterator[Atom]:
        for part in self.parts:
            yield from part.atoms()


class And(_Combination):
    """All of ``parts`` hold (``And(())`` always does)."""

    def holds(self, X: Tensor, active: Tensor | None = None) -> Tensor:
        start = torch.ones(X.shape[:-1], dtype=torch.bool, device=X.device)
        return reduce(
            torch.logical_and, (p.holds(X, active) for p in self.parts), start
        )


class Or(_Combination):
    """At least one of ``parts`` holds (``Or(())`` never does)."""

    def holds(self, X: Tensor, active: Tensor | None = None) -> Tensor:
        start = torch.zeros(X.shape[:-1], dtype=torch.bool, device=X.device)
        return reduce(torch.logical_or, (p.holds(X, active) for p in self.parts), start)
