"""Parameters that are held while a study is asked for the others."""

from __future__ import annotations

__all__ = ["Point", "hold", "read_fixed"]

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import brief
from botorch_structured.spaces.columns import Constant
from botorch_structured.suggest.criterion import hold as hold_columns

Point = tuple[float, ...]


def read_fixed(space: SearchSpace, fixed: Any) -> dict[int, float]:
    """Columns and what they hold.

    Args:
        space: The space.
        fixed: ``{name: value}``, or None.

    Raises:
        ValueError: A name or a value is not that of a parameter, on a path that the
            other values leave; or no such path has the parameter.
    """
    fixed = {} if fixed is None else fixed
    if not isinstance(fixed, Mapping):
        raise ValueError(f"fixed: expected {{name: value}}, got {brief(fixed)}.")
    places = _places(space)
    held: dict[int, float] = {}
    refused: dict[str, list[int | Constant]] = {}
    for name, value in fixed.items():
        if name not in places:
            raise ValueError(
                f"fixed: expected names among {list(places)}, got {name!r}."
            )
        for place in places[name]:
            try:
                if isinstance(place, Constant):
                    place.check(value)
                else:
                    held[place] = space.columns[place].encode(value)
            except ValueError:
                refused.setdefault(name, []).append(place)

    def is_left(place: int | Constant) -> bool:
        """Whether some configuration with the other values has the parameter."""
        if isinstance(place, Constant):
            return space.tree.can_hold(place.condition, held)
        return space.tree.can_be_active(place, held)

    for name, wrong in refused.items():
        left = list(filter(is_left, wrong))
        rest = [place for place in places[name] if place not in wrong]
        if not left and rest:
            continue
        expected = dict.fromkeys(_expected(space, place) for place in left or wrong)
        hint = " Others take it: hold what tells them apart, too."
        if None in space.shown_names:
            hint = " Others take it, but no parameter tells them apart."
        raise ValueError(
            f"fixed: {name!r}: expected {' or '.join(expected)}, got "
            f"{brief(fixed[name])}.{hint if any(map(is_left, rest)) else ''}"
        )
    for name in fixed:
        if not any(map(is_left, places[name])):
            others = {k: v for k, v in fixed.items() if k != name}
            raise ValueError(
                f"fixed: expected parameters of one configuration, got {name!r}, which "
                f"none has with {others}."
            )
    return held


def _expected(space: SearchSpace, place: int | Constant) -> str:
    """What a parameter takes, in words."""
    if isinstance(place, Constant):
        return f"its constant {place.value!r}"
    return space.columns[place].expected()


def _places(space: SearchSpace) -> dict[str, list[int | Constant]]:
    """Columns and constants by name, in the order in which they were declared.

    There are several of one name where dictionaries have other values for it.
    """
    found: dict[str, list[int | Constant]] = {}
    column = itertools.count()
    for parameter in space._ordered():
        place = parameter if isinstance(parameter, Constant) else next(column)
        if (shown := space._shown(parameter.name)) is not None:
            found.setdefault(shown, []).append(place)
    return found


def hold(
    space: SearchSpace, points: Sequence[Point], held: Mapping[int, float]
) -> list[Point]:
    """Points with some columns held; those whose path has another value are left out.

    Args:
        space: The space.
        points: Points of it.
        held: Column -> its value wherever it is active.
    """
    if not held or not points:
        return list(points)
    X = torch.tensor(points, dtype=torch.double)
    return [tuple(x) for x in hold_columns(space, X, held)[0].tolist()]
