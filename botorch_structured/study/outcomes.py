"""What a study is told about an evaluation, and what models see of it."""

from __future__ import annotations

__all__ = ["Outcomes"]

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from botorch_structured.spaces.arguments import check_number
from botorch_structured.study.trial import Trial

_SIGNS = {"minimize": -1.0, "maximize": 1.0}


class Outcomes:
    """Names and directions of the objectives.

    Args:
        objectives: A direction, or ``{name: direction}``.

    Raises:
        ValueError: It is not one of these.
    """

    def __init__(self, objectives: Any) -> None:
        named = {"value": objectives} if isinstance(objectives, str) else objectives
        if (
            not isinstance(named, Mapping)
            or not named
            or not all(isinstance(name, str) for name in named)
            or not all(isinstance(d, str) and d in _SIGNS for d in named.values())
        ):
            raise ValueError(
                "objectives: expected 'minimize', 'maximize' or "
                f"{{name: 'minimize' or 'maximize'}}, got {objectives!r}."
            )
        self.objectives: dict[str, str] = dict(named)

    def read(self, value: Any) -> dict[str, float]:
        """``{name: number}`` of what `Study.tell` was given; empty for a failure."""
        if value is None:
            return {}
        names = list(self.objectives)
        if not isinstance(value, Mapping):
            if len(names) > 1:
                raise ValueError(
                    f"value: expected {{name: number}} with the names {names}, or None "
                    f"for a failure, got {value!r}."
                )
            return {names[0]: _number("value", value)}
        if value.keys() != set(names):
            raise ValueError(
                f"value: expected numbers for {names}, got them for {list(value)}."
            )
        return {name: _number(f"value[{name!r}]", value[name]) for name in names}

    def train_Y(self, trials: Sequence[Trial]) -> Tensor:
        """``n x m`` objectives, larger ones are better; ``-inf`` for failures."""
        signs = {name: _SIGNS[d] for name, d in self.objectives.items()}
        rows = [
            [s * t.values[k] if t.values else -math.inf for k, s in signs.items()]
            for t in trials
        ]
        return torch.tensor(rows, dtype=torch.double).reshape(-1, len(signs))


def _number(name: str, value: Any) -> float:
    """A finite number, of any library, but no array."""
    if not getattr(value, "ndim", 0):
        try:
            return check_number(name, value)
        except ValueError:
            pass
    raise ValueError(
        f"{name}: expected a finite number, or None for a failure, got {value!r:.60}."
    )
