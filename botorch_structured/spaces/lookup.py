"""Which outcome, which columns active: the tensor side of a parameter tree.

A `Decision` is a column that others depend on: its declared values, or the intervals of
a numeric one. `Lookup` finds, for whole tensors of points, the *state* of each decision
(0: inactive, ``c + 1``: outcome ``c``, the last one: a value that was not declared) and
the columns that these states switch on.

Conditions are written over these states. An `Expr` is ``True``, ``False``,
``("atom", k, mask)`` for "bit s of the mask is set, where s is the state of decision
k", or ``("and", parts)`` and ``("or", parts)`` with a frozenset of parts. Equal
conditions are equal expressions, up to the laws of absorption and distribution. Each
distinct one is evaluated once; those of decisions from the top of the tree down.
"""

from __future__ import annotations

import heapq
import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial, reduce
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces.conditions import Atom, Inactive

Span = tuple[float, float]
# A bool, or a tuple as in the module docstring (recursive, hence Any).
Expr = Any
# Keys of paths have 62 bits; beyond them are those of undeclared values.
_UNDECLARED = 1 << 62


def atom(k: int, mask: int) -> Expr:
    """The state of decision ``k`` is in the bit set ``mask``."""
    return ("atom", k, mask) if mask else False


def all_of(parts: Iterable[Expr]) -> Expr:
    """The conjunction of ``parts``, simplified."""
    return _combine("and", parts)


def any_of(parts: Iterable[Expr]) -> Expr:
    """The disjunction of ``parts``, simplified."""
    return _combine("or", parts)


def _combine(kind: str, parts: Iterable[Expr]) -> Expr:
    neutral = kind == "and"
    masks: dict[int, int] = {}
    others: set[Expr] = set()
    stack = list(parts)
    while stack:
        part = stack.pop()
        if isinstance(part, bool):
            if part is not neutral:
                return part
        elif part[0] == kind:
            stack.extend(part[1])
        elif part[0] == "atom":
            _, k, mask = part
            if k in masks:
                mask = masks[k] & mask if neutral else masks[k] | mask
            masks[k] = mask
        else:
            others.add(part)
    if 0 in masks.values():
        return False
    others.update(atom(k, mask) for k, mask in masks.items())
    if len(others) <= 1:
        return others.pop() if others else neutral
    return (kind, frozenset(others))


def negated(expr: Expr) -> Expr:
    """The expression that holds exactly where ``expr`` does not."""
    if isinstance(expr, bool):
        return not expr
    if expr[0] == "atom":
        # ``~mask`` is negative and has all bits but those of the atom.
        return atom(expr[1], ~expr[2])
    return _combine("or" if expr[0] == "and" else "and", map(negated, expr[1]))


def replaced(expr: Expr, replace: Callable[[Expr], Expr]) -> Expr:
    """``expr`` with another expression in place of each atom."""
    if isinstance(expr, bool):
        return expr
    if expr[0] == "atom":
        return replace(expr)
    return _combine(expr[0], (replaced(part, replace) for part in expr[1]))


def atoms(expr: Expr) -> Iterator[Expr]:
    """The atoms of an expression."""
    if isinstance(expr, bool):
        return
    if expr[0] == "atom":
        yield expr
    else:
        for part in expr[1]:
            yield from atoms(part)


def refers_to(expr: Expr) -> set[int]:
    """The decisions of an expression."""
    return {k for _, k, _ in atoms(expr)}


@lru_cache(maxsize=65536)
def bits(mask: int, size: int) -> np.ndarray:
    """Whether each of ``size`` states is in a bit set; not to be written to."""
    octets = (mask & ((1 << size) - 1)).to_bytes(size // 8 + 1, "little")
    digits = np.frombuffer(octets, dtype=np.uint8)
    return np.unpackbits(digits, count=size, bitorder="little").astype(bool)


def holds(expr: Expr, truth: Mapping[Expr, Any]) -> Any:
    """Where an expression holds.

    Args:
        expr: The expression.
        truth: Where its atoms hold: arrays of booleans.
    """
    if isinstance(expr, bool) or expr[0] == "atom":
        return truth[expr]
    combine = operator.and_ if expr[0] == "and" else operator.or_
    return reduce(combine, [holds(part, truth) for part in expr[1]])


def parents_first(conditions: Sequence[Expr]) -> list[int]:
    """The decisions in their order, but none before those that its condition names."""
    sorter = TopologicalSorter({k: refers_to(c) for k, c in enumerate(conditions)})
    sorter.prepare()
    ready = list(sorter.get_ready())
    heapq.heapify(ready)
    order = []
    while ready:
        k = heapq.heappop(ready)
        order.append(k)
        sorter.done(k)
        for child in sorter.get_ready():
            heapq.heappush(ready, child)
    return order


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
        strict: Whether values that were not declared are an error.
    """

    col: int
    intervals: tuple[Span, ...]
    numeric: bool
    strict: bool

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

    def spans(self, bounds: Sequence[float] = (-math.inf, math.inf)) -> list[Span]:
        """Finite intervals to draw a value of each outcome from.

        Args:
            bounds: Intervals are cut to these; those outside are left out.
        """
        spans = list(self.intervals)
        if self.numeric:
            low, high = bounds
            cut = [(max(lo, low), min(hi, high)) for lo, hi in spans]
            spans = [(lo, hi) for lo, hi in cut if lo <= hi] or spans
        finite = []
        for span in spans:
            ends = [x for x in span if math.isfinite(x)] or [0.0]
            finite.append((ends[0], ends[-1]))
        return finite

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
        refused = self._lookup.strict & self.undeclared
        refused = (refused | self.values.isnan()) & (self.states > 0)
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
        lookup = self._lookup
        key = lookup.key(self.states)
        # On a GPU reading the answer would make the host wait.
        if key.device.type == "cpu" and not self.undeclared.any():
            return key
        pattern = (self.values + 0.0).contiguous().view(torch.long)  # -0.0 becomes 0.0
        value = mix(mix(pattern) + lookup.salts)
        value = torch.where(self.undeclared, value, 0).sum(-1)
        hashed = mix(mix(key) + value) & (_UNDECLARED - 1)
        return torch.where(self.undeclared.any(-1), hashed | _UNDECLARED, key)


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
        sizes = [len(o.intervals) for o in decisions]
        width = max(sizes, default=0)
        index = partial(torch.tensor, dtype=torch.long, device=device)

        # Beyond the last outcome no number is in an interval.
        beyond = (torch.inf, -torch.inf)
        limits = [o.limits + [beyond] * (width - len(o.limits)) for o in decisions]
        ends = torch.tensor(limits, dtype=torch.double, device=device)
        ends = ends.reshape(D, width, 2)
        self._low = ends[..., 0].contiguous()
        self._high = ends[..., 1].contiguous()
        self.columns = index([o.col for o in decisions])
        self.undeclared = index([size + 1 for size in sizes])
        strict = [o.strict for o in decisions]
        self.strict = torch.tensor(strict, dtype=torch.bool, device=device)

        # Rows of truth values: False, True, then the atoms. None holds for values that
        # were not declared.
        distinct = dict.fromkeys(part for expr in conditions for part in atoms(expr))
        self._row = {part: i for i, part in enumerate([False, True, *distinct])}
        self._parents = index([0, 0, *(k for _, k, _ in distinct)])
        truth = np.zeros((len(self._row), width + 2), dtype=bool)
        truth[1] = True
        for row, (_, k, mask) in enumerate(distinct, 2):
            states = sizes[k] + 1
            truth[row, :states] = bits(mask, states)
        self._truth = torch.from_numpy(truth).to(device)
        # Conditions of decisions with their atoms: row of `_truth` and decision.
        self._dependent = []
        for k in order:
            condition = conditions[decisions[k].col]
            if condition is not True:
                parts = [(part, self._row[part], part[1]) for part in atoms(condition)]
                self._dependent.append((k, condition, parts))
        is_always = [condition is True for condition in conditions]
        self._always = torch.tensor(is_always, device=device)
        self._distinct = list(dict.fromkeys(conditions))
        place = {condition: i for i, condition in enumerate(self._distinct)}
        self._which = index([place[condition] for condition in conditions])

        # The states are the digits of a key.
        digits = [size + 2 for size in sizes]
        strides = [math.prod(digits[k + 1 :]) for k in range(D)]
        is_exact = math.prod(digits) <= _UNDECLARED
        self._strides = index(strides) if is_exact else None
        generator = torch.Generator().manual_seed(0)
        self.salts = torch.randint(1 << 62, (D,), generator=generator).to(device)

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
        values = X.detach().index_select(-1, self.columns).double()
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
        state = torch.searchsorted(self._low, flat, right=True)
        code = (state - 1).clamp_(min=0)
        # Comparisons that are False for NaN, which is no outcome.
        is_declared = flat <= self._high.gather(1, code)
        is_declared &= flat >= self._low[:, :1]
        states = torch.where(is_declared, state, self.undeclared.unsqueeze(-1))
        for k, condition, parts in self._dependent:
            truth = {part: self._truth[row, states[j]] for part, row, j in parts}
            states[k] *= holds(condition, {**truth, False: False})
        return Located(self, values, states.t().reshape(values.shape))

    def active(self, states: Tensor) -> Tensor:
        """Which columns are active, ``batch_shape x n x d`` booleans."""
        shape = (*states.shape[:-1], len(self._which))
        if not len(self.columns):
            return self._always.expand(shape)
        flat = states.reshape(-1, len(self.columns)).t()
        truth = self._truth.gather(1, flat[self._parents])
        rows = dict(zip(self._row, truth, strict=True))
        active = [holds(condition, rows) for condition in self._distinct]
        return torch.stack(active)[self._which].t().contiguous().reshape(shape)

    def key(self, states: Tensor) -> Tensor:
        """``batch_shape x n`` keys of declared outcomes."""
        if self._strides is not None:
            return (states * self._strides).sum(-1)
        return mix(states + self.salts).sum(-1) & (_UNDECLARED - 1)
