"""The outcomes of a decision column: declared values, or intervals of a numeric one."""

from __future__ import annotations

__all__ = ["Outcomes", "cut_intervals"]

import math
from collections.abc import Iterable
from dataclasses import dataclass

from botorch_structured.spaces.conditions import Atom, Between, Equals, Inactive

# How far from a declared value still counts as it, in units of the smallest gap.
_TOLERANCE = 1e-3


def cut_intervals(atoms: Iterable[Atom]) -> list[tuple[float, float]]:
    """The intervals of the real line that ``atoms`` on one column tell apart.

    Every boundary is brought to the form ``x >= cut`` (``x > hi`` is ``x >=`` the next
    float), so that the intervals are closed at both ends and do not overlap: both of
    their ends may be used as bounds.
    """
    cuts: set[float] = set()
    for a in atoms:
        if isinstance(a, Between):
            ends = [(a.lo, a.hi)]
        elif isinstance(a, Inactive):
            ends = []
        else:
            ends = [(v, v) for v in ([a.value] if isinstance(a, Equals) else a.values)]
        for lo, hi in ends:
            cuts.add(lo)
            cuts.add(math.nextafter(hi, math.inf))
    cuts -= {-math.inf, math.inf}
    lows = [-math.inf, *sorted(cuts)]
    highs = [math.nextafter(cut, -math.inf) for cut in lows[1:]] + [math.inf]
    return list(zip(lows, highs, strict=True))


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

    @classmethod
    def of_values(
        cls, col: int, values: Iterable[float], strict: bool = False
    ) -> Outcomes:
        """A decision by value."""
        values = tuple(values)
        return cls(col, values, values, numeric=False, strict=strict)

    @classmethod
    def of_intervals(cls, col: int, spans: Iterable[tuple[float, float]]) -> Outcomes:
        """A numeric decision."""
        lows, highs = zip(*spans, strict=True)
        return cls(col, lows, highs, numeric=True, strict=False)

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
        if isinstance(atom, Between):
            spans = [(atom.lo, atom.hi)]
        else:
            values = [atom.value] if isinstance(atom, Equals) else atom.values
            spans = [(v, v) for v in values]
        bits = 0
        for code, (low, high) in enumerate(zip(self.lows, self.highs, strict=True)):
            if any(lo <= low and high <= hi for lo, hi in spans):
                bits |= 2 << code
        return bits
