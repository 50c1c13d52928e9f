"""Which outcome, which columns active: the tensor side of a parameter tree.

A `Decision` is a column that others depend on: its declared values, or the intervals of
a numeric one. `Lookup` finds, for whole tensors of points, the *state* of each decision
(0: inactive, ``c + 1``: outcome ``c``, the last one: a value that was not declared) and
the columns that these states switch on.

Conditions are written over these states: their parts are `State` in place of `Atom`.
Each distinct one is evaluated once; those of decisions from the top of the tree down.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces.conditions import (
    ALWAYS,
    And,
    Atom,
    Condition,
    Inactive,
    Or,
)

Span = tuple[float, float]
# Keys of paths have 62 bits; beyond them are those of undeclared values.
_UNDECLARED = 1 << 62
# So many tables of rows are known again: a search asks for the same few.
_MOST_RECENT = 8
# Numbers of a table that is too large to be known again.
_LARGE = 100_000


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


def mix(z: Tensor) -> Tensor:
    """The finaliser of splitmix64: a bijection of int64 that scatters its input."""
    # Torch shifts arithmetically; the masks make the shifts logical.
    z = z ^ ((z >> 30) & ((1 << 34) - 1))
    z = z * -0x40A7B892E31B1A47
    z = z ^ ((z >> 27) & ((1 << 37) - 1))
    z = z * -0x6B2FB644ECCEEE15
    return z ^ ((z >> 31) & ((1 << 33) - 1))


class Located:
    """Where some points are. `Lookup` returns the same one again: nothing changes it.

    Args:
        lookup: The tables.
        values: ``batch_shape x n x D`` float64 numbers of the decision columns.
        states: Their states, of the same shape.
    """

    def __init__(self, lookup: Lookup, values: Tensor, states: Tensor) -> None:
        self._lookup = lookup
        self.values = values
        self.states = states

    @cached_property
    def undeclared(self) -> Tensor:
        """Which states are of undeclared values, ``batch_shape x n x D`` booleans."""
        return self.states == self._lookup.undeclared

    @cached_property
    def refused(self) -> Tensor | None:
        """Which values are an error, ``batch_shape x n x D`` booleans; None if none."""
        # NaN is one wherever the decision is active
        refused = self.undeclared & (self._lookup.strict | self.values.isnan())
        return refused if refused.any() else None

    @cached_property
    def active(self) -> Tensor:
        """Which columns are active, ``batch_shape x n x d`` booleans."""
        return self._lookup.active(self.states)

    @cached_property
    def keys(self) -> Tensor:
        """``batch_shape x n`` integers, equal exactly where the paths are the same.

        With fewer than 2^62 combinations of states the key is a mixed-radix number and
        exact; beyond, and for values that were not declared, it is a hash of 62 bits
        (those of undeclared values lie above 2^62).
        """
        strides = self._lookup.strides
        key = (self.states * strides).sum(-1) & (_UNDECLARED - 1)
        # on a GPU reading the answer would make the host wait
        if key.is_cpu and not self.undeclared.any():
            return key
        pattern = (self.values + 0.0).view(torch.long)  # -0.0 becomes 0.0
        other = torch.where(self.undeclared, mix(pattern + strides), 0).sum(-1)
        hashed = (key + other) & (_UNDECLARED - 1)
        return torch.where(self.undeclared.any(-1), hashed | _UNDECLARED, key)


class Lookup:
    """The tables of one tree on one device.

    Values and states are ``batch_shape x n x D`` tensors: the float64 numbers of the
    decision columns, and what `find` makes of them.

    Args:
        decisions: The ``D`` decisions, columns ascending.
        conditions: For every column what activates it, over the decisions.
        parts: The distinct states that these are about.
        order: The decisions, parents first.
        device: Where the tables live.

    Attributes:
        undeclared: The state of each decision at values that were not declared.
        strict: Whether these are errors.
        strides: What the states are multiplied with in the key of a path.
    """

    def __init__(
        self,
        decisions: Sequence[Decision],
        conditions: Sequence[Condition],
        parts: Collection[State],
        order: Sequence[int],
        device: torch.device,
    ) -> None:
        D = len(decisions)
        sizes = [len(o) for o in decisions]
        width = max([1, *sizes])
        index = partial(torch.tensor, dtype=torch.long, device=device)
        self._columns = index([o.col for o in decisions])
        self._recent: dict[tuple[torch.Size, bytes], Located] = {}
        self.undeclared = index([size + 1 for size in sizes])
        strict = [o.strict for o in decisions]
        self.strict = torch.tensor(strict, dtype=torch.bool, device=device)

        # No number is beyond the last outcome or before the first one.
        low = np.full((D, width), np.inf)
        high = np.full((D, width + 1), -np.inf)
        for k, decision in enumerate(decisions):
            for code, (lo, hi) in enumerate(decision.limits):
                low[k, code] = lo
                high[k, code + 1] = hi
        self._low = torch.from_numpy(low).to(device)
        self._high = torch.from_numpy(high).to(device)

        # None of the parts holds for values that were not declared.
        truth = np.zeros((len(parts), width + 2), dtype=bool)
        for i, part in enumerate(parts):
            states = sizes[part.k] + 1
            truth[i, :states] = bits(part.mask, states)
        self._truth = torch.from_numpy(truth).to(device)
        self._parents = index([part.k for part in parts])
        # Row of the truth at points: the parts, True, then what combines them.
        self._row: dict[Condition, int] = {part: i for i, part in enumerate(parts)}
        self._row[ALWAYS] = len(parts)
        place = [self._row.setdefault(c, len(self._row)) for c in conditions]
        self._place = index(place)
        self._combined = [*self._row][len(parts) + 1 :]
        above = [(k, conditions[decisions[k].col]) for k in order]
        self._dependent = [(k, c) for k, c in above if c != ALWAYS]

        # The states are the digits of a key; with too many of them it is a hash.
        digits = [size + 2 for size in sizes]
        if math.prod(digits) <= _UNDECLARED:
            self.strides = index([math.prod(digits[k + 1 :]) for k in range(D)])
        else:
            generator = torch.Generator().manual_seed(0)
            strides = torch.randint(_UNDECLARED, (D,), generator=generator)
            self.strides = strides.to(device)

    def find(self, X: Tensor) -> Located:
        """Where ``batch_shape x n x d`` points are."""
        values = X.detach().index_select(-1, self._columns).double()
        name = None
        if values.is_cpu and values.numel() <= _LARGE and not torch.jit.is_tracing():
            with suppress(RuntimeError):  # tensors of functorch have no data
                name = values.shape, values.numpy().tobytes()
        if name is None:
            return Located(self, values, self._states(values))
        located = self._recent.get(name)
        if located is None:
            located = Located(self, values, self._states(values))
            if len(self._recent) >= _MOST_RECENT:
                self._recent = {}
            self._recent[name] = located
        return located

    def _states(self, values: Tensor) -> Tensor:
        """The states of all decisions, from the top of the tree down."""
        if not len(self._columns):
            return values.long()
        flat = values.unsqueeze(0).flatten(0, -2).t().contiguous()
        states = torch.searchsorted(self._low, flat, right=True)
        # a comparison that is False for NaN, which is no outcome
        is_declared = flat <= self._high.gather(1, states)
        states = torch.where(
            is_declared,
            states,
            self.undeclared.unsqueeze(-1),
        )
        for k, condition in self._dependent:
            if isinstance(condition, State):
                states[k] *= self._truth[self._row[condition], states[condition.k]]
            else:
                states[k] *= condition.evaluate(
                    lambda part: self._truth[self._row[part], states[part.k]]
                )
        return states.t().reshape(values.shape)

    def active(self, states: Tensor) -> Tensor:
        """Which columns are active, ``batch_shape x n x d`` booleans."""
        shape = (*states.shape[:-1], len(self._place))
        if len(self._row) == 1:  # all columns are, everywhere
            return states.new_ones(shape, dtype=torch.bool)
        flat = states.unsqueeze(0).flatten(0, -2).t()
        truth = self._truth.gather(1, flat[self._parents])
        rows = [truth, truth.new_ones(1, truth.shape[1])]
        for condition in self._combined:
            verdict = condition.evaluate(lambda part: truth[self._row[part]])
            verdict = torch.as_tensor(verdict, device=truth.device)
            rows.append(verdict.expand(1, truth.shape[1]))
        return torch.cat(rows)[self._place].t().contiguous().reshape(shape)
