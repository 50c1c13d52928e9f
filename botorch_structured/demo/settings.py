"""What a demonstration was asked for, kept beside its logs."""

from __future__ import annotations

__all__ = ["Settings"]

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from botorch_structured.spaces.arguments import brief
from botorch_structured.test_functions.cash import DATASETS


def _from(low: int) -> Callable[[Any], bool]:
    return lambda x: type(x) is int and low <= x < math.inf


_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "dataset": (f"one of {', '.join(DATASETS)}", lambda x: x in DATASETS),
    "seed": ("a whole number from 0", _from(0)),
    "budget": ("a whole number from 1", _from(1)),
}


@dataclass(frozen=True)
class Settings:
    """The options that a demonstration goes on with.

    Args:
        dataset: The data.
        seed: Decides folds, starts and choices.
        budget: How many evaluations each method chooses after the starts.
    """

    dataset: str = "breast_cancer"
    seed: int = 0
    budget: int = 50

    @classmethod
    def read(cls, path: Path) -> Settings:
        """Those in a file.

        Raises:
            ValueError: The file holds something else; the message names it.
        """
        try:
            given = json.loads(path.read_bytes())
        except ValueError:
            given = None
        if not isinstance(given, dict) or given.keys() != _FIELDS.keys():
            raise ValueError(
                f"{path}: expected an object with {', '.join(_FIELDS)}, got "
                f"{path.read_bytes()[:60]!r}."
            )
        for name, (description, is_one) in _FIELDS.items():
            if not is_one(given[name]):
                raise ValueError(
                    f"{path}: {name}: expected {description}, got {brief(given[name])}."
                )
        return cls(**given)

    def write(self, path: Path) -> None:
        """Put them in a file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        os.replace(partial, path)
