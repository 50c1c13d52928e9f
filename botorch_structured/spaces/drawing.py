"""Drawing a small parameter tree in plain text."""

from __future__ import annotations

__all__ = ["draw"]

from collections.abc import Mapping, Sequence
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
    if isinstance(condition, Equals):
        return [(condition.col, condition.value)]
    if isinstance(condition, In):
        return [(condition.col, v) for v in condition.values]
    if isinstance(condition, Or):
        parts = [_places(part) for part in condition.parts]
        if parts and all(part is not None for part in parts):
            return [pair for part in parts for pair in part or []]
    return None


def _label(columns: Sequence[int]) -> str:
    return ("column " if len(columns) == 1 else "columns ") + ", ".join(
        map(str, columns)
    )


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
    under: dict[tuple[int, float], list[int]] = {}
    top: list[int] = []
    for col in range(dim):
        places = _places(conditions[col]) if col in conditions else None
        for place in places or []:
            under.setdefault(place, []).append(col)
        if not places:
            top.append(col)
    lines: list[str] = []
    drawn: set[int] = set()

    def subtrees(columns: Sequence[int]) -> list[tuple[str, list[int]]]:
        """Decisions one by one; the other columns together."""
        plain = [
            c for c in columns if c not in decision_values and _is_placed(c, conditions)
        ]
        rest = [c for c in columns if c not in plain]
        return [(_label([c]), [c]) for c in rest] + (
            [(_label(plain), [])] if plain else []
        )

    def add(columns: Sequence[int], indent: str) -> None:
        items = subtrees(columns)
        for i, (label, deeper) in enumerate(items):
            if len(lines) > _MAX_LINES:
                return
            last = i == len(items) - 1
            col = deeper[0] if deeper else None
            if col is not None and not _is_placed(col, conditions):
                label += f" where {phrase(conditions[col])}"
            lines.append(indent + ("`-- " if last else "|-- ") + label)
            if col is None or col not in decision_values or col in drawn:
                continue
            drawn.add(col)
            outcomes(col, indent + ("    " if last else "|   "))

    def outcomes(col: int, indent: str) -> None:
        values = decision_values[col]
        for i, value in enumerate(values):
            if len(lines) > _MAX_LINES:
                return
            last = i == len(values) - 1
            if isinstance(value, tuple):
                label, below = f"in [{value[0]:g}, {value[1]:g}]", []
            else:
                label, below = f"= {value:g}", under.get((col, value), [])
            lines.append(indent + ("`-- " if last else "|-- ") + label)
            add(below, indent + ("    " if last else "|   "))

    add(top, "")
    return "\n".join([title, *lines]) if len(lines) <= _MAX_LINES else title


def _is_placed(col: int, conditions: Mapping[int, Condition]) -> bool:
    """Whether the drawing itself shows where ``col`` is active."""
    return col not in conditions or bool(_places(conditions[col]))
