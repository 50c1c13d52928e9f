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
        values: Its declared values, ascending; for a numeric column its ``(lo, hi)``
            intervals, closed at both ends.
        numeric: Whether ``values`` are intervals.
        strict: Whether values that were not declared are an error.
    """

    col: int
    values: tuple[float, ...] | tuple[tuple[float, float], ...]
    numeric: bool
    strict: bool

    def __len__(self) -> int:
        return len(self.values)

    @property
    def limits(self) -> tuple[list[float], list[float]]:
        """Lower and upper ends of what counts as each outcome."""
        if self.numeric:
            return [v[0] for v in self.values], [v[1] for v in self.values]  # type: ignore[index]  # intervals
        gaps = [b - a for a, b in zip(self.values, self.values[1:], strict=False)]  # type: ignore[operator]  # numbers
        slack = _TOLERANCE * min(gaps, default=1.0)
        return [v - slack for v in self.values], [v + slack for v in self.values]  # type: ignore[operator]  # numbers

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
        for code, value in enumerate(self.values):
            low, high = value if self.numeric else (value, value)  # type: ignore[misc]  # see `numeric`
            if any(lo <= low and high <= hi for lo, hi in spans):
                bits |= 2 << code
        return bits
