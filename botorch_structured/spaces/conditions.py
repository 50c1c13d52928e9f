"""Conditions under which a column of a search space is active, or a point forbidden.

Three atoms speak about one *parent* column each, and ``&`` and ``|`` combine them:

    Equals(0, 1)                        column 0 takes the value 1
    In(0, [1, 2])                       column 0 takes one of these values
    Between(3, 0.5, float("inf"))       column 3 is at least 0.5 (both ends belong)
    Equals(0, 1) & Between(3, 0, 0.5)   both hold

In a `ParameterTree` an atom holds only where its parent is active itself. The exception
is ``Inactive(col)``, which holds where the parent is not: ConfigSpace reads its
``NotEquals`` as "another value, or inactive".

A space forbids points by these, and by a `Comparison` of parameters with each other. It
holds, and the point is forbidden, only where all of them are active. An `Operand` is
one side of it: a column or a constant.

A `Decision` is a column that others depend on: its declared values, or the intervals of
a numeric one. At a point it has a *state* (0: inactive, ``c + 1``: outcome ``c``, the
last one: a value that was not declared), and conditions can be written over states:
their parts are `State` in place of `Atom`.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, reduce
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces.arguments import check_count, check_number, check_values

Span = tuple[float, float]


class Condition:
    """A statement about points; ``&`` and ``|`` combine them."""

    def __and__(self, other: Condition) -> Condition:
        return And((self, other)) if isinstance(other, Condition) else NotImplemented

    def __or__(self, other: Condition) -> Condition:
        return Or((self, other)) if isinstance(other, Condition) else NotImplemented

    def atoms(self) -> Iterator[Any]:
        """The parts without parts of their own, from left to right."""
        yield self

    def columns(self) -> frozenset[int]:
        """The parent columns this expression refers to."""
        raise NotImplementedError

    def replaced(self, replace: Callable[[Any], Condition]) -> Condition:
        """The expression with other conditions in place of its atoms."""
        return replace(self)

    def evaluate(self, truth: Callable[[Any], Any]) -> Any:
        """Where the expression holds.

        Args:
            truth: Gives for each atom where it holds: arrays or tensors of booleans.

        Returns:
            Booleans of that kind; one for an expression without atoms.
        """
        return truth(self)

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


@dataclass(unsafe_hash=True)
class Atom(Condition):
    """A statement about one parent column."""

    #: How far from its intervals a number counts as one of them, relative to it.
    rounding: ClassVar[float] = 1e-6
    col: int

    def __post_init__(self) -> None:
        self.col = check_count("col", self.col, least=0)

    @property
    def intervals(self) -> list[Span]:
        """Where on the axis of the column it holds: closed intervals."""
        raise NotImplementedError

    def columns(self) -> frozenset[int]:
        return frozenset({self.col})

    def takes(self, x: Tensor) -> Tensor:
        """Whether it holds at numbers of the column, where that is active."""
        x = x.double()  # a float32 point is compared with the very bounds
        is_inside = torch.zeros_like(x, dtype=torch.bool)
        for lo, hi in self.intervals:
            room = self.rounding * max(1.0, abs(lo)) if self.rounding else 0.0
            is_inside |= (x >= lo - room) & (x <= hi + room)
        return is_inside

    def holds(self, X: Tensor, active: Tensor | None = None) -> Tensor:
        mask = self.takes(X[..., self.col])
        return mask if active is None else mask & active[..., self.col]


@dataclass(unsafe_hash=True)
class In(Atom):
    """Column ``col`` takes one of ``values`` (up to rounding)."""

    values: Sequence[float]  # kept as an ascending tuple

    def __post_init__(self) -> None:
        super().__post_init__()
        self.values = check_values("values", self.values)

    @property
    def intervals(self) -> list[Span]:
        return [(v, v) for v in self.values]


class Equals(In):
    """Column ``col`` takes the value ``value`` (up to rounding)."""

    def __init__(self, col: int, value: float) -> None:
        super().__init__(col, [value])


@dataclass(unsafe_hash=True)
class Between(Atom):
    """``lo <= x <= hi`` in column ``col``; either end may be infinite."""

    rounding = 0.0
    lo: float
    hi: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lo = check_number("lo", self.lo, finite=False)
        self.hi = check_number("hi", self.hi, finite=False)
        if self.lo > self.hi or self.lo == math.inf or self.hi == -math.inf:
            raise ValueError(
                f"lo: expected lo <= hi and a number between, got {self.lo}, {self.hi}."
            )

    @property
    def intervals(self) -> list[Span]:
        return [(self.lo, self.hi)]


@dataclass(unsafe_hash=True)
class Inactive(Atom):
    """Column ``col`` is not active."""

    @property
    def intervals(self) -> list[Span]:
        return []

    def holds(self, X: Tensor, active: Tensor | None = None) -> Tensor:
        if active is None:
            return X.new_zeros(X.shape[:-1], dtype=torch.bool)
        return ~active[..., self.col]


@dataclass(unsafe_hash=True)
class _Combination(Condition):
    """Several conditions at once; nested ones of the same kind are flattened."""

    parts: tuple[Condition, ...]
    is_all: ClassVar[bool]

    def __post_init__(self) -> None:
        flat: dict[Condition, None] = {}
        for part in self.parts:
            parts = part.parts if isinstance(part, type(self)) else (part,)
            flat.update(dict.fromkeys(parts))
        self.parts = tuple(flat)

    def atoms(self) -> Iterator[Any]:
        for part in self.parts:
            yield from part.atoms()

    def columns(self) -> frozenset[int]:
        return frozenset().union(*(part.columns() for part in self.parts))

    def replaced(self, replace: Callable[[Any], Condition]) -> Condition:
        parts = [part.replaced(replace) for part in self.parts]
        return parts[0] if len(parts) == 1 else type(self)(tuple(parts))

    def evaluate(self, truth: Callable[[Any], Any]) -> Any:
        if not self.parts:
            return self.is_all
        combine = operator.and_ if self.is_all else operator.or_
        return reduce(
            combine,
            [part.evaluate(truth) for part in self.parts],
        )

    def holds(self, X: Tensor, active: Tensor | None = None) -> Tensor:
        verdict = self.evaluate(lambda part: part.holds(X, active))
        return X.new_ones(X.shape[:-1], dtype=torch.bool) & verdict


class And(_Combination):
    """All of ``parts`` hold (``And(())`` always does)."""

    is_all = True


class Or(_Combination):
    """At least one of ``parts`` holds (``Or(())`` never does)."""

    is_all = False


#: The condition that holds everywhere.
ALWAYS = And(())
#: The condition that holds nowhere.
NEVER = Or(())


@dataclass(frozen=True)
class Operand:
    """One side of a comparison.

    Args:
        active: Where it is active.
        col: The column; None for a constant.
        codes: For choices the numbers that stand for them.
        values: For choices, and for a constant, the numbers that are compared.
        log: Whether the column holds the decimal logarithm of its value.
    """

    active: Condition
    col: int | None
    codes: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    log: bool = False

    def evaluate(self, X: Tensor) -> Tensor:
        """``batch_shape x n`` numbers."""
        if self.col is None:
            return X.new_full(
                X.shape[:-1],
                self.values[0],
                dtype=torch.double,
            )
        x = X[..., self.col].double()
        if self.values:
            nearest = (x.unsqueeze(-1) - x.new_tensor(self.codes)).abs().argmin(-1)
            return x.new_tensor(self.values)[nearest]
        return 10.0**x if self.log else x


@dataclass(frozen=True)
class Comparison(Condition):
    """A weighted sum compares with a bound, and all of its ``operands`` are active."""

    operands: tuple[Operand, ...]
    weights: tuple[float, ...]
    compare: Callable[[Any, Any], Any]
    bound: float

    def columns(self) -> frozenset[int]:
        return frozenset().union(*(o.active.columns() for o in self.operands))

    def holds(self, X: Tensor, active: Tensor | None = None) -> Tensor:
        total = X.new_zeros(X.shape[:-1], dtype=torch.double)
        is_active = torch.ones_like(total, dtype=torch.bool)
        for operand, weight in zip(self.operands, self.weights, strict=True):
            total = total + weight * operand.evaluate(X)
            is_active &= operand.active.holds(X, active)
        return is_active & self.compare(total, self.bound)


@dataclass(frozen=True)
class State(Condition):
    """The state of decision ``k`` is in the bit set ``mask``."""

    k: int
    mask: int

    def columns(self) -> frozenset[int]:
        """The decision."""
        return frozenset({self.k})


def negated(condition: Condition) -> Condition:
    """The condition, over states, that holds exactly where another one does not."""
    if isinstance(condition, State):
        # ``~mask`` is negative and has all bits but those of the state.
        return State(condition.k, ~condition.mask)
    assert isinstance(condition, (And, Or))
    parts = tuple(map(negated, condition.parts))
    return Or(parts) if isinstance(condition, And) else And(parts)


@lru_cache(maxsize=65536)
def bits(mask: int, size: int) -> np.ndarray:
    """Whether each of ``size`` states is in a bit set; not to be written to."""
    octets = (mask & ((1 << size) - 1)).to_bytes(size // 8 + 1, "little")
    digits = np.frombuffer(octets, dtype=np.uint8)
    return np.unpackbits(digits, count=size, bitorder="little").astype(bool)


def cut_intervals(atoms: Iterable[Atom]) -> list[Span]:
    """The intervals of the real line that ``atoms`` on one column cut.

    Every boundary is brought to the form ``x >= cut`` (``x > hi`` is ``x >=`` the next
    float), so that the intervals are closed at both ends and do not overlap: both of
    their ends may be used as bounds.
    """
    cuts = set()
    for a in atoms:
        for lo, hi in a.intervals:
            cuts.add(lo)
            cuts.add(math.nextafter(hi, math.inf))
    cuts -= {-math.inf, math.inf}
    spans = []
    low = -math.inf
    for cut in sorted(cuts):
        spans.append((low, math.nextafter(cut, -math.inf)))
        low = cut
    return [*spans, (low, math.inf)]


@dataclass(frozen=True)
class Decision:
    """A column that others depend on, and its outcomes.

    Args:
        col: The column.
        intervals: Its intervals, ascending and closed; or its declared values, twice
            each.
        numeric: Whether these are intervals.
        strict: Whether values that were not declared are an error. It does not matter
            for equality.
    """

    col: int
    intervals: tuple[Span, ...]
    numeric: bool
    strict: bool = field(compare=False)

    def __len__(self) -> int:
        return len(self.intervals)

    @cached_property
    def values(self) -> list[Any]:
        """The declared values, or the ``(lo, hi)`` intervals."""
        if self.numeric:
            return list(self.intervals)
        return [value for value, _ in self.intervals]

    @cached_property
    def limits(self) -> list[Span]:
        """Between which numbers a point has each outcome.

        A thousandth of the smallest gap between values counts as rounding.
        """
        if self.numeric:
            return self.values
        gaps = [b - a for a, b in pairwise(self.values)]
        slack = 1e-3 * min(gaps, default=1.0)
        return [(value - slack, value + slack) for value in self.values]

    @cached_property
    def representatives(self) -> list[float]:
        """A number of each outcome, in the middle of a bounded part of it."""
        numbers = []
        for lo, hi in self.intervals:
            low = max(lo, min(hi, 1.0) - 2.0)
            high = min(hi, max(lo, -1.0) + 2.0)
            numbers.append(0.5 * (low + high))
        return numbers

    def mask(self, atom: Atom) -> int:
        """The states in which ``atom`` holds, as a bit set."""
        if isinstance(atom, Inactive):
            return 1
        states = 0
        for lo, hi in atom.intervals:
            # both ends ascend: the outcomes inside follow each other
            start = bisect_left(self.intervals, (lo, -math.inf))
            stop = bisect_right(self.intervals, (hi, math.inf))
            if stop and self.intervals[stop - 1][1] > hi:
                stop -= 1
            if start < stop:
                states |= (2 << stop) - (2 << start)
        return states
