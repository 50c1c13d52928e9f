"""Drawing a small parameter tree in plain text."""

from __future__ import annotations

__all__ = ["draw"]

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from botorch_structured.spaces.conditions import (
    And,
    Between,
    Condition,
    Equals,
    In,
    Or,
)

_MAX_LINES = 40


def phrase(condition: Condition) -> str:
    """A condition in words: ``0 = 1 and 3 in [0.5, inf]``."""
    if isinstance(condition, Equals):
        return f"{condition.col} = {condition.value:g}"
    if isinstance(condition, In):
        values = " or ".join(f"{v:g}" for v in condition.values)
        return f"{condition.col} = {values}"
    if isinstance(condition, Between):
        return f"{condition.col} in [{condition.lo:g}, {condition.hi:g}]"
    if isinstance(condition, (And, Or)):
        word = " and " if isinstance(condition, And) else " or "
        parts = [
            f"({phrase(p)})" if isinstance(p, (And, Or)) else phrase(p)
            for p in condition.parts
        ]
        return word.join(parts) or ("always" if word == " and " else "never")
    return f"{next(condition.atoms()).col} is inactive"


def _places(condition: Condition) -> list[tuple[int, float]] | None:
    """The (parent, value) pairs a child hangs under; None if it is not that simple."""
    if isinstance(condition, (Equals, In)):
        return [(condition.col, v) for v, _ in condition.intervals]
    if isinstance(condition, Or):
        parts = [_places(part) for part in condition.parts]
        if parts and all(part is not None for part in parts):
            return [pair for part in parts for pair in part or []]
    return None


def draw(
    dim: int,
    num_paths: int,
    conditions: Mapping[int, Condition],
    decision_values: Mapping[int, Sequence[Any]],
) -> str:
    """The tree in plain text; one line if it would be long.

    A child that hangs under several values is drawn under each, its own children only
    the first time.
    """
    title = f"ParameterTree(dim={dim}, num_paths={num_paths})"
    under: dict[tuple[int, Any], list[int]] = {}
    top: list[int] = []
    for col in range(dim):
        places = _places(conditions[col]) if col in conditions else None
        for place in places or []:
            under.setdefault(place, []).append(col)
        if not places:
            top.append(col)
    lines: list[str] = []
    drawn: set[int] = set()

    def is_placed(col: int) -> bool:
        """Whether the drawing itself shows where ``col`` is active."""
        return col not in conditions or bool(_places(conditions[col]))

    def columns(cols: Sequence[int], indent: str) -> None:
        """Decisions and columns with a condition one by one; the others together."""
        together = [c for c in cols if c not in decision_values and is_placed(c)]
        items = [[c] for c in cols if c not in together]
        items += [together] if together else []
        for item, first, then in _branches(items, indent):
            label = ("column " if len(item) == 1 else "columns ") + str(item)[1:-1]
            col = item[0]
            if not is_placed(col):
                label += f" where {phrase(conditions[col])}"
            lines.append(first + label)
            if col in decision_values and col not in drawn and len(lines) <= _MAX_LINES:
                drawn.add(col)
                outcomes(col, then)

    def outcomes(col: int, indent: str) -> None:
        for value, first, then in _branches(decision_values[col], indent):
            interval = isinstance(value, tuple)
            label = "in [{:g}, {:g}]".format(*value) if interval else f"= {value:g}"
            lines.append(first + label)
            columns(under.get((col, value), []), then)

    columns(top, "")
    return "\n".join([title, *lines]) if len(lines) <= _MAX_LINES else title


def _branches(items: Sequence[Any], indent: str) -> Iterator[tuple[Any, str, str]]:
    """Items with what stands before each, and before what hangs under it."""
    for i, item in enumerate(items, 1):
        first, then = ("`-- ", "    ") if i == len(items) else ("|-- ", "|   ")
        yield item, indent + first, indent + then
