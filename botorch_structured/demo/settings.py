"""The options of a demonstration, kept beside its logs."""

from __future__ import annotations

__all__ = ["Settings"]

import json
from dataclasses import asdict, dataclass
from pathlib import Path


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
        text = path.read_bytes()
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            names = ", ".join(asdict(cls()))
            raise ValueError(
                f"{path}: expected an object with {names}, got {text[:60]!r}."
            ) from None

    def write(self, path: Path) -> None:
        """Put them in a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
