"""Parameters that are held while a study is asked for the others."""

from __future__ import annotations

__all__ = ["Point", "hold", "read_fixed"]

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from botorch_structured.spaces import SearchSpace
from botorch_structured.suggest.held import hold as hold_columns

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
        raise ValueError(f"fixed: expected {{name: value}}, got {fixed!r:.60}.")
    held: dict[int, float] = {}
    refused: dict[int, ValueError] = {}
    shown = space.shown_names
    for name, value in fixed.items():
        if name not in shown:
            known = list(dict.fromkeys(filter(None, shown)))
            raise ValueError(f"fixed: expected names among {known}, got {name!r}.")
        # several where dictionaries have other values for it
        columns = [c for c, other in enumerate(shown) if other == name]
        for column in columns:
            try:
                held[column] = space.columns[column].encode(value)
            except ValueError as error:
                refused[column] = ValueError(f"fixed: {error}")
                if len(columns) == 1:
                    raise refused[column] from None
    for path in space.tree.paths if refused else ():
        if all(path.decisions.get(c, held[c]) == held[c] for c in held):
            for column in refused.keys() & {*path.active_columns}:
                raise refused[column]
    for name in fixed:
        columns = [c for c, other in enumerate(shown) if other == name]
        if not any(space.tree.can_be_active(c, held) for c in columns):
            others = {k: v for k, v in fixed.items() if k != name}
            raise ValueError(
                f"fixed: expected parameters of one configuration, got {name!r}, which "
                f"none has with {others}."
            )
    return held


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
