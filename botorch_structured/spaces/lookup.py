"""Which outcome, which columns active: the tensor side of a parameter tree.

`Outcomes` are what one decision column can decide: its declared values, or the
intervals of a numeric one. `Lookup` finds the outcomes of whole tensors of points, and
the columns that they switch on.

All tables live on one device and are indexed, never looped over per row. Where there
are few combinations of outcomes, one row for each says everything. Otherwise conditions
are evaluated level by level: within a level of the tree they are independent of each
other, so one gather does for any number of plain ``parent == value`` conditions; only
compound ones are walked through one by one.
"""

from __future__ import annotations

__all__ = ["Located", "Lookup", "Outcomes", "cut_intervals", "mix"]

import math
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from graphlib import TopologicalSorter

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces.conditions import Atom, Inactive
from botorch_structured.spaces.decomposition import Expr, refers_to

# How far from a declared value still counts as it, in units of the smallest gap.
_TOLERANCE = 1e-3
# Up to so many combinations of outcomes are tabulated.
_MAX_TABLE = 4096
# From so many levels on one matrix product is faster than a pass over them, if the
# matrix has no more entries than that.
_MANY_LEVELS, _MAX_NEEDS = 16, 1 << 21
# Of so many tables of points what is located is kept, if they have at most so many
# numbers each, and all together: a search asks several times for the training data,
# among its candidates.
_KEPT, _MAX_KEPT, _MAX_ALL = 8, 1 << 20, 1 << 21
_KEY_BITS = 62
_KEY_MASK = (1 << _KEY_BITS) - 1


def cut_intervals(
    atoms: Iterable[Atom],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Both ends of the intervals of the real line that ``atoms`` on one column cut.

    Every boundary is brought to the form ``x >= cut`` (``x > hi`` is ``x >=`` the next
    float), so that the intervals are closed at both ends and do not overlap: both of
    their ends may be used as bounds.
    """
    cuts: set[float] = set()
    for a in atoms:
        for lo, hi in a.intervals:
            cuts.add(lo)
            cuts.add(math.nextafter(hi, math.inf))
    cuts -= {-math.inf, math.inf}
    lows = (-math.inf, *sorted(cuts))
    return lows, (*(math.nextafter(cut, -math.inf) for cut in lows[1:]), math.inf)


@dataclass(frozen=True)
class Outcomes:
    """What decision column ``col`` can decide.

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
    def limits(self) -> tuple[list[float], list[float]]:
        """Lower and upper ends of what counts as each outcome."""
        slack = 0.0
        if not self.numeric:
            pairs = zip(self.lows, self.lows[1:], strict=False)
            slack = _TOLERANCE * min((b - a for a, b in pairs), default=1.0)
        return [v - slack for v in self.lows], [v + slack for v in self.highs]

    def spans(self, bounds: list[float] | None) -> tuple[list[float], list[float]]:
        """Finite lower and upper ends to draw a value of each outcome from.

        Args:
            bounds: Intervals are cut to these; those outside are left out.
        """
        spans = list(zip(self.lows, self.highs, strict=True))
        if bounds is not None and self.numeric:
            lo, hi = bounds
            inside = [(max(a, lo), min(b, hi)) for a, b in spans if a <= hi and b >= lo]
            spans = inside or spans
        ends = [[x for x in span if math.isfinite(x)] or [0.0] for span in spans]
        return [e[0] for e in ends], [e[-1] for e in ends]

    def mask(self, atom: Atom) -> int:
        """The states in which ``atom`` holds, as a bit set (see `decomposition`)."""
        if isinstance(atom, Inactive):
            return 1
        bits = 0
        for lo, hi in atom.intervals:
            # both ends ascend: the outcomes inside follow each other
            start, stop = bisect_left(self.lows, lo), bisect_right(self.highs, hi)
            if start < stop:
                bits |= (2 << stop) - (2 << start)
        return bits


def _signed(value: int) -> int:
    """A 64-bit pattern as the int64 it is in torch."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = 0x9E3779B97F4A7C15
_M1 = _signed(0xBF58476D1CE4E5B9)
_M2 = _signed(0x94D049BB133111EB)


def mix(z: Tensor) -> Tensor:
    """The finaliser of splitmix64: a bijection of int64 that scatters its input."""
    # Torch shifts arithmetically; the masks make the shifts logical.
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _M1
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _M2
    return z ^ ((z >> 31) & ((1 << 33) - 1))


class _Level:
    """Conditions to evaluate once all the decisions they refer to are known.

    Plain ones, a single atom each, are kept as index tensors (where to write, which
    atom, which decision); compound ones with the positions they decide.
    """

    def __init__(
        self,
        conditions: Sequence[tuple[int, Expr]],
        atoms: dict[Expr, int],
        device: torch.device,
    ) -> None:
        plain: list[tuple[int, int, int]] = []
        self.compound: dict[Expr, list[int]] = {}
        for position, expr in conditions:
            if isinstance(expr, tuple) and expr[0] == "atom":
                plain.append((position, atoms[expr], expr[1]))
            else:
                self.compound.setdefault(expr, []).append(position)
        self.plain = torch.tensor(plain, dtype=torch.long, device=device).t()


class Located:
    """What a lookup says of some points; each part is worked out once it is asked for.

    Those of the last points are kept, and shared: nothing here may be written to.

    Args:
        lookup: The tables.
        values: ``batch_shape x n x D`` float64 values of the decision columns.

    Attributes:
        checked: Whether no decision has a value that is an error.
    """

    def __init__(self, lookup: Lookup, values: Tensor) -> None:
        self._lookup, self.values = lookup, values
        self.checked = False

    @cached_property
    def codes(self) -> Tensor:
        """``batch_shape x n x D`` outcomes, their number where undeclared."""
        return self._lookup.codes(self.values)

    @cached_property
    def decisions(self) -> Tensor:
        """``batch_shape x n x D`` booleans: which decisions are active."""
        return self._lookup.active_decisions(self.codes)

    @cached_property
    def declared(self) -> Tensor:
        """``batch_shape x n`` booleans: whether all active decisions are declared."""
        return ~(self.decisions & (self.codes == self._lookup.sizes)).any(-1)

    @cached_property
    def columns(self) -> Tensor:
        """``batch_shape x n x d`` booleans: which columns are active."""
        return self._lookup.active_columns(self.codes, self.decisions)

    @cached_property
    def keys(self) -> Tensor:
        """``batch_shape x n`` integers, equal where the paths are the same."""
        return self._lookup.keys(self.values, self.codes, self.decisions)


class Lookup:
    """The tables of one tree on one device.

    Args:
        dim: Number of columns.
        outcomes: The outcomes of the ``D`` decisions, columns ascending.
        conditions: For every column what activates it, over the decisions.
        device: Where the tables live.
    """

    def __init__(
        self,
        dim: int,
        outcomes: Sequence[Outcomes],
        conditions: Sequence[Expr],
        device: torch.device,
    ) -> None:
        self.dim, self.device = dim, device
        # that asked for last is the last
        self._last: OrderedDict[tuple[torch.Size, bytes], Located] = OrderedDict()
        self.columns = [o.col for o in outcomes]
        D, width = len(outcomes), max((len(o) for o in outcomes), default=0)

        def index(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.long, device=device)

        # Padded to one width: beyond the last outcome nothing is ever found.
        low = torch.full((D, width), torch.inf, dtype=torch.double)
        high = torch.full((D, width), -torch.inf, dtype=torch.double)
        for k, o in enumerate(outcomes):
            lows, highs = o.limits
            low[k, : len(o)] = torch.tensor(lows, dtype=torch.double)
            high[k, : len(o)] = torch.tensor(highs, dtype=torch.double)
        self.low, self.high = low.to(device), high.to(device)
        self.sizes = index([len(o) for o in outcomes])
        self.all_columns = index(self.columns)
        self._places = np.array(self.columns, dtype=np.int64)
        self.strict = torch.tensor([o.strict for o in outcomes], device=device)
        self.any_strict = any(o.strict for o in outcomes)
        self.all_strict = all(o.strict or o.numeric for o in outcomes)

        # One row of truth values per atom, laid end to end; False where undeclared.
        exprs: dict[Expr, None] = {}
        for expr in conditions:
            exprs.update(dict.fromkeys(_atoms(expr)))
        self.atoms: dict[Expr, int] = {a: i for i, a in enumerate(exprs)}
        truth: list[bool] = []
        offsets = []
        for _, k, mask in self.atoms:
            offsets.append(len(truth))
            size = len(outcomes[k])
            digits = f"{mask >> 1:0{size}b}"[:size]  # the highest bit first
            truth += [digit == "1" for digit in reversed(digits)]
            truth.append(False)
        self.truth = torch.tensor(truth, dtype=torch.bool, device=device)
        self.atom_offset = index(offsets)
        self.atom_decision = index([a[1] for a in self.atoms])

        of_decisions = [conditions[c] for c in self.columns]
        depth = _depths(of_decisions)
        self.conditional = any(e is not True for e in of_decisions)
        decided = [(k, e) for k, e in enumerate(of_decisions) if e is not True]
        self.levels = [
            _Level([(k, e) for k, e in decided if depth[k] == d], self.atoms, device)
            for d in range(max(depth, default=-1) + 1)
        ]
        off = [bool(a[2] & 1) for a in self.atoms]  # holds where inactive
        self.off = torch.tensor(off, device=device) if any(off) else None
        self.needs = self._needs(device)
        others = dict(enumerate(conditions))
        for c in self.columns:
            del others[c]
        others = {c: e for c, e in others.items() if e is not True}
        self.others = _Level(list(others.items()), self.atoms, device)
        # Digit 0 is "inactive" where that can happen; outcomes count from there, and an
        # undeclared value from behind them.
        shifts = [0 if e is True else 1 for e in of_decisions]
        strides, total = _radix(
            [len(o) + 1 + shifts[k] for k, o in enumerate(outcomes)]
        )
        self.shifts = index(shifts)
        self.strides = index(strides) if total <= 1 << _KEY_BITS else None
        self.salts = index([_signed((k + 1) * _GOLDEN) for k in range(D)])

        strides, total = _radix([len(o) + 1 for o in outcomes])
        self.combinations: Tensor | None = None
        self.ranks: Tensor | None = None  # their path numbers, once they are needed
        if total <= _MAX_TABLE:
            ranges = [torch.arange(len(o) + 1, device=device) for o in outcomes]
            every = torch.cartesian_prod(*ranges) if D else self.sizes.new_zeros(1, 0)
            every = every.reshape(total, D)
            self.combination_strides = index(strides)
            self.decision_table = self.active_decisions(every)
            self.column_table = self.active_columns(every)
            self.combinations = every

    def _needs(self, device: torch.device) -> Tensor | None:
        """Which atoms each decision needs, those of decisions above it included.

        One product with it takes the place of a pass over levels.

        Returns:
            ``A x D`` zeros and ones; None where that is no faster, or a decision needs
            something else than that atoms hold.
        """
        A, D = len(self.atoms), len(self.columns)
        plain = self.off is None and not any(level.compound for level in self.levels)
        if not plain or len(self.levels) < _MANY_LEVELS or A * D > _MAX_NEEDS:
            return None
        needs = torch.zeros(A, D, device=device)
        for level in self.levels:
            if level.plain.numel():
                positions, atoms, parents = level.plain
                needs[:, positions] = needs[:, parents]
                needs[atoms, positions] = 1.0
        return needs

    def at(self, X: Tensor) -> Located:
        """What there is to say of points.

        A suggestion asks several times for the same points: for the training data and
        those to avoid, say. They are told by their values.

        Args:
            X: ``batch_shape x n x d`` points.
        """
        X = X.detach()
        try:  # in a third of the time of torch
            array = X.numpy().take(self._places, -1).astype(np.float64, copy=False)
        except (RuntimeError, TypeError):  # under a transform of functorch; on a GPU
            values = X.index_select(-1, self.all_columns).to(torch.double)
            return Located(self, values)
        if X.numel() > _MAX_KEPT:
            return Located(self, torch.from_numpy(array))
        name = X.shape, array.tobytes()
        found = self._last.pop(name, None)
        self._last[name] = at = found or Located(self, torch.from_numpy(array))
        if found is None:
            sizes = [shape.numel() for shape, _ in self._last]
            while len(self._last) > _KEPT or sum(sizes) > _MAX_ALL:
                self._last.popitem(last=False)
                del sizes[0]
        return at

    def codes(self, values: Tensor) -> Tensor:
        """The outcomes that values of the decision columns stand for.

        Args:
            values: ``batch_shape x n x D`` float64 values.

        Returns:
            ``batch_shape x n x D`` codes; the number of outcomes is the code of a value
            that was not declared.
        """
        if not self.columns:
            return torch.zeros(values.shape, dtype=torch.long, device=values.device)
        flat = values.reshape(-1, len(self.columns)).t().contiguous()
        found = (torch.searchsorted(self.low, flat, right=True) - 1).clamp_(min=0)
        # Comparisons that are False for NaN, which is no outcome.
        known = (flat <= self.high.gather(1, found)) & (flat >= self.low[:, :1])
        found = torch.where(known, found, self.sizes.unsqueeze(-1))
        return found.t().reshape(values.shape)

    def rows_of(self, codes: Tensor) -> Tensor:
        """``batch_shape x n x D`` outcomes -> their rows among the `combinations`."""
        if codes.shape[-1] == 1:
            return codes[..., 0]
        return (codes * self.combination_strides).sum(-1)

    def active_decisions(self, codes: Tensor) -> Tensor:
        """Which decisions are active.

        Args:
            codes: ``batch_shape x n x D`` outcomes.

        Returns:
            ``batch_shape x n x D`` booleans.
        """
        if not self.conditional:
            return torch.ones_like(codes, dtype=torch.bool)
        if self.combinations is not None:
            return self.decision_table[self.rows_of(codes)]
        return self._walk(codes)[0]

    def active_columns(self, codes: Tensor, decisions: Tensor | None = None) -> Tensor:
        """Which columns are active.

        Args:
            codes: ``batch_shape x n x D`` outcomes.
            decisions: ``batch_shape x n x D`` booleans: which decisions are active, if
                that is known already.

        Returns:
            ``batch_shape x n x d`` booleans.
        """
        if self.combinations is not None:
            return self.column_table[self.rows_of(codes)]
        if decisions is None:
            decisions, truth = self._walk(codes)
        else:
            truth = self._truth(codes)
        shape = (*codes.shape[:-1], self.dim)
        active = torch.ones(shape, dtype=torch.bool, device=codes.device)
        if self.conditional:
            active[..., self.all_columns] = decisions
        self._apply(self.others, active, decisions, truth)
        return active

    def keys(self, values: Tensor, codes: Tensor, active: Tensor) -> Tensor:
        """``batch_shape x n`` integers, equal exactly where the paths are the same.

        With fewer than 2^62 combinations of outcomes the key is a mixed-radix number
        and exact; beyond, and for values that were not declared, it is a hash of 62
        bits (those of undeclared values lie above 2^62).

        Args:
            values: ``batch_shape x n x D`` values of the decision columns.
            codes: ``batch_shape x n x D`` outcomes.
            active: ``batch_shape x n x D`` booleans: which decisions are active.
        """
        digits = codes + self.shifts
        if self.conditional:
            digits = digits * active
        if self.strides is not None:
            key = (digits * self.strides).sum(-1)
        else:
            key = mix(digits + self.salts).sum(-1) & _KEY_MASK
        if self.all_strict:
            return key
        odd = codes == self.sizes
        odd = odd & active if self.conditional else odd
        # On a GPU reading the answer would make the host wait.
        if codes.device.type == "cpu" and not odd.any():
            return key
        bits = (values + 0.0).contiguous().view(torch.long)  # -0.0 becomes 0.0
        extra = mix(mix(bits) + self.salts).masked_fill(~odd, 0).sum(-1)
        hashed = (mix(mix(key) + extra) & _KEY_MASK) | (1 << _KEY_BITS)
        return torch.where(odd.any(-1), hashed, key)

    def _walk(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Active decisions, and the truth of all atoms as if every decision were."""
        truth = self._truth(codes)
        if self.needs is not None:
            return (~truth).to(self.needs) @ self.needs == 0.0, truth
        active = torch.ones_like(codes, dtype=torch.bool)
        for level in self.levels:
            self._apply(level, active, active, truth)
        return active, truth

    def _truth(self, codes: Tensor) -> Tensor:
        """The truth of all atoms as if every decision were active."""
        of_atoms = codes.index_select(-1, self.atom_decision)
        return self.truth[of_atoms + self.atom_offset]

    def _apply(
        self, level: _Level, target: Tensor, decisions: Tensor, truth: Tensor
    ) -> None:
        """Write the truth of a level's conditions into ``target``, in place."""
        if level.plain.numel():
            positions, atoms, parents = level.plain
            holds = truth.index_select(-1, atoms)
            above = decisions.index_select(-1, parents)
            target.index_copy_(-1, positions, self._with_off(holds, above, atoms))
        for expr, where in level.compound.items():
            holds = self._evaluate(expr, decisions, truth)
            for position in where:
                target[..., position] = holds

    def _with_off(self, holds: Tensor, active: Tensor, atoms: Tensor | int) -> Tensor:
        """The truth of atoms, given which of their decisions are active."""
        found = holds & active
        return found if self.off is None else found | (self.off[atoms] & ~active)

    def _evaluate(self, expr: Expr, decisions: Tensor, truth: Tensor) -> Tensor:
        if isinstance(expr, bool):
            return torch.full_like(truth[..., :1].any(-1), expr)
        if expr[0] == "atom":
            atom = self.atoms[expr]
            return self._with_off(truth[..., atom], decisions[..., expr[1]], atom)
        parts = [self._evaluate(part, decisions, truth) for part in expr[1]]
        operation = torch.logical_and if expr[0] == "and" else torch.logical_or
        return reduce(operation, parts)


def _radix(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Strides of a mixed-radix number with these digits, the last one fastest."""
    strides, total = [0] * len(sizes), 1
    for k in reversed(range(len(sizes))):
        strides[k] = total
        total *= sizes[k]
    return strides, total


def _atoms(expr: Expr) -> list[Expr]:
    """The atoms of an expression."""
    if isinstance(expr, bool):
        return []
    if expr[0] == "atom":
        return [expr]
    return [a for part in expr[1] for a in _atoms(part)]


def _depths(conditions: Sequence[Expr]) -> list[int]:
    """How many decisions stand above each one (0: none)."""
    above = {k: refers_to(expr) for k, expr in enumerate(conditions)}
    depth: dict[int, int] = {}
    for k in TopologicalSorter(above).static_order():
        depth[k] = max((depth[j] + 1 for j in above[k]), default=0)
    return [depth[k] for k in range(len(conditions))]
