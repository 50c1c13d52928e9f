"""Which outcome, which columns active: the tensor side of a parameter tree.

A `Decision` is a column that others depend on: its declared values, or the intervals of
a numeric one. `Lookup` finds, for whole tensors of points, the *state* of each decision
(0: inactive, ``c + 1``: outcome ``c``, the last one: a value that was not declared) and
the columns that these states switch on.

An atom is a row of truth values, one for each state of its decision. Each distinct
condition is evaluated once; those of decisions from the top of the tree down.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces.conditions import Atom, Inactive
from botorch_structured.spaces.expressions import Expr, atoms, bits, holds

_KEY_BITS = 62
_KEY_MASK = (1 << _KEY_BITS) - 1


def cut_intervals(atoms: Iterable[Atom]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Both ends of the intervals of the real line that ``atoms`` on one column cut.

    Every boundary is brought to the form ``x >= cut`` (``x > hi`` is ``x >=`` the next
    float), so that the intervals are closed at both ends and do not overlap: both of
    their ends may be used as bounds.
    """
    cuts: set[float] = set()
    for a in atoms:
        for lo, hi in a.intervals:
            cuts |= {lo, math.nextafter(hi, math.inf)}
    lows = (-math.inf, *sorted(cuts - {-math.inf, math.inf}))
    return lows, (*(math.nextafter(cut, -math.inf) for cut in lows[1:]), math.inf)


@dataclass(frozen=True)
class Decision:
    """A column that others depend on, and its outcomes.

    Args:
        col: The column.
        lows: The lower ends of its intervals, ascending; or its declared values.
        highs: The upper ends, which belong to the intervals; or the values again.
        numeric: Whether these are intervals.
        strict: Whether values that were not declared are an error.
    """

    col: int
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    numeric: bool
    strict: bool

    def __len__(self) -> int:
        return len(self.lows)

    @property
    def values(self) -> list[float] | list[tuple[float, float]]:
        """The declared values, or the ``(lo, hi)`` intervals."""
        if self.numeric:
            return list(zip(self.lows, self.highs, strict=True))
        return list(self.lows)

    @property
    def limits(self) -> list[tuple[float, float]]:
        """Between which numbers a point has each outcome.

        A thousandth of the smallest gap between values counts as rounding.
        """
        slack = 0.0
        if not self.numeric:
            pairs = zip(self.lows, self.lows[1:], strict=False)
            slack = 1e-3 * min((b - a for a, b in pairs), default=1.0)
        spans = zip(self.lows, self.highs, strict=True)
        return [(lo - slack, hi + slack) for lo, hi in spans]

    def spans(self, bounds: list[float] | None) -> list[tuple[float, float]]:
        """Finite intervals to draw a value of each outcome from.

        Args:
            bounds: Intervals are cut to these; those outside are left out.
        """
        spans = list(zip(self.lows, self.highs, strict=True))
        if bounds is not None and self.numeric:
            lo, hi = bounds
            inside = [(max(a, lo), min(b, hi)) for a, b in spans if a <= hi and b >= lo]
            spans = inside or spans
        ends = [[x for x in span if math.isfinite(x)] or [0.0] for span in spans]
        return [(end[0], end[-1]) for end in ends]

    def mask(self, atom: Atom) -> int:
        """The states in which ``atom`` holds, as a bit set (see `expressions`)."""
        if isinstance(atom, Inactive):
            return 1
        states = 0
        for lo, hi in atom.intervals:
            # both ends ascend: the outcomes inside follow each other
            start = bisect_left(self.lows, lo)
            stop = bisect_right(self.highs, hi)
            if start < stop:
                states |= (2 << stop) - (2 << start)
        return states


def _signed(value: int) -> int:
    """A 64-bit pattern as the int64 it is in torch."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def mix(z: Tensor) -> Tensor:
    """The finaliser of splitmix64: a bijection of int64 that scatters its input."""
    # Torch shifts arithmetically; the masks make the shifts logical.
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    return z ^ ((z >> 31) & ((1 << 33) - 1))


class Located:
    """Where points are; `Lookup` may return the same one again, nothing changes it.

    Attributes:
        values: ``batch_shape x n x D`` float64 values of the decision columns.
        states: ``batch_shape x n x D`` states: 0 where inactive, else the number of the
            outcome plus 1, which is the number of outcomes plus 1 where undeclared.
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
        """Which values are an error, ``batch_shape x n x D`` booleans; None if none.

        NaN is one wherever the decision is active, an undeclared value only where
        declared strictly.
        """
        refused = self.values.isnan() | (self._lookup.strict & self.undeclared)
        refused &= self.states > 0
        return refused if refused.any() else None

    @cached_property
    def active(self) -> Tensor:
        """Which columns are active, ``batch_shape x n x d`` booleans."""
        return self._lookup.active(self.states)

    @cached_property
    def keys(self) -> Tensor:
        """``batch_shape x n`` integers, equal exactly where the paths are the same.

        With fewer than 2^62 combinations of outcomes the key is a mixed-radix number
        and exact; beyond, and for values that were not declared, it is a hash of 62
        bits (those of undeclared values lie above 2^62).
        """
        lookup = self._lookup
        key = lookup.key(self.states)
        # On a GPU reading the answer would make the host wait.
        if key.device.type == "cpu" and not self.undeclared.any():
            return key
        pattern = (self.values + 0.0).contiguous().view(torch.long)  # -0.0 becomes 0.0
        value = mix(mix(pattern) + lookup.salts).masked_fill(~self.undeclared, 0)
        hashed = (mix(mix(key) + value.sum(-1)) & _KEY_MASK) | (1 << _KEY_BITS)
        return torch.where(self.undeclared.any(-1), hashed, key)


class Lookup:
    """The tables of one tree on one device.

    Args:
        decisions: The ``D`` decisions, columns ascending.
        conditions: For every column what activates it, over the decisions.
        order: The decisions, parents first.
        device: Where the tables live.
    """

    def __init__(
        self,
        decisions: Sequence[Decision],
        conditions: Sequence[Expr],
        order: Sequence[int],
        device: torch.device,
    ) -> None:
        D = len(decisions)
        width = max(map(len, decisions), default=0)

        def index(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.long, device=device)

        # Beyond the last outcome no number is in an interval.
        beyond = (torch.inf, -torch.inf)
        limits = [[*o.limits, *[beyond] * (width - len(o))] for o in decisions]
        ends = torch.tensor(limits, dtype=torch.double, device=device)
        self._low = ends.reshape(D, width, 2)[..., 0].contiguous()
        self._high = ends.reshape(D, width, 2)[..., 1].contiguous()
        self.columns = index([o.col for o in decisions])
        self.undeclared = index([len(o) + 1 for o in decisions])
        strict = [o.strict for o in decisions]
        self.strict = torch.tensor(strict, dtype=torch.bool, device=device)

        # Rows of truth values: False, True, then the atoms. None holds for values that
        # were not declared.
        distinct = dict.fromkeys(part for expr in conditions for part in atoms(expr))
        self._row = {part: i for i, part in enumerate([False, True, *distinct])}
        self._parents = index([0, 0, *(k for _, k, _ in distinct)])
        truth = np.zeros((2 + len(distinct), width + 2), dtype=bool)
        truth[1] = True
        for row, (_, k, mask) in enumerate(distinct, 2):
            size = len(decisions[k]) + 1
            truth[row, :size] = bits(mask, size)
        self._truth = torch.from_numpy(truth).to(device)
        own = [conditions[o.col] for o in decisions]
        self._dependent = [(k, own[k]) for k in order if own[k] is not True]
        self._always = torch.tensor([e is True for e in conditions], device=device)
        self._distinct = list(dict.fromkeys(conditions))
        place = {expr: i for i, expr in enumerate(self._distinct)}
        self._which = index([place[expr] for expr in conditions])

        # A digit of the key is a state, from 1 on where it cannot be "inactive".
        always = [expr is True for expr in own]
        self._first = index([int(is_on) for is_on in always])
        radix = [len(o) + 2 - is_on for o, is_on in zip(decisions, always, strict=True)]
        is_exact = math.prod(radix) <= 1 << _KEY_BITS
        strides = [math.prod(radix[k + 1 :]) for k in range(D)] if is_exact else None
        self._strides = None if strides is None else index(strides)
        golden = 0x9E3779B97F4A7C15
        self.salts = index([_signed((k + 1) * golden) for k in range(D)])

        @lru_cache(maxsize=16)
        def remembered(shape: torch.Size, data: bytes) -> Located:
            values = torch.frombuffer(bytearray(data or bytes(8)), dtype=torch.double)
            return self._find(values[: shape.numel()].view(shape))

        self._remembered = remembered

    def at(self, X: Tensor) -> Located:
        """The states of all decisions.

        Args:
            X: ``batch_shape x n x d`` points.
        """
        values = X.detach().index_select(-1, self.columns).to(torch.double)
        # A search asks for the same few points many times: a suggestion is 1.07 x as
        # fast. A trace would keep what is remembered as constants.
        if X.is_cpu and X.numel() <= 100_000 and not torch.jit.is_tracing():
            with suppress(RuntimeError):  # tensors of functorch have no data
                return self._remembered(values.shape, values.numpy().tobytes())
        return self._find(values)

    def _find(self, values: Tensor) -> Located:
        D = len(self.columns)
        if not D:
            return Located(self, values, values.long())
        flat = values.reshape(-1, D).t().contiguous()
        code = (torch.searchsorted(self._low, flat, right=True) - 1).clamp_(min=0)
        # Comparisons that are False for NaN, which is no outcome.
        declared = (flat <= self._high.gather(1, code)) & (flat >= self._low[:, :1])
        states = torch.where(declared, code + 1, self.undeclared.unsqueeze(-1))
        for k, expr in self._dependent:
            states[k] *= holds(expr, partial(self._atom_holds, states))
        return Located(self, values, states.t().reshape(values.shape))

    def _atom_holds(self, states: Tensor, part: Expr) -> Tensor | bool:
        """Where an atom holds (``part`` may be False), given ``D x n`` states."""
        return self._truth[self._row[part], states[part[1]]] if part else False

    def active(self, states: Tensor) -> Tensor:
        """Which columns are active, ``batch_shape x n x d`` booleans."""
        shape = (*states.shape[:-1], len(self._which))
        if not len(self.columns):
            return self._always.expand(shape)
        flat = states.reshape(-1, len(self.columns)).t()
        truth = self._truth.gather(1, flat[self._parents])
        rows = dict(zip(self._row, truth, strict=True))
        distinct = torch.stack([holds(e, rows.__getitem__) for e in self._distinct])
        return distinct[self._which].t().contiguous().reshape(shape)

    def key(self, states: Tensor) -> Tensor:
        """``batch_shape x n`` keys of declared outcomes."""
        digits = states - self._first
        if self._strides is not None:
            return (digits * self._strides).sum(-1)
        return mix(digits + self.salts).sum(-1) & _KEY_MASK
