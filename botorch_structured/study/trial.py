"""`Trial`: a configuration and what it was worth."""

from __future__ import annotations

__all__ = ["Trial"]

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Trial:
    """One evaluation that a `Study` was told.

    Args:
        number: Its position among those that were told, from 0 on.
        config: The active parameters.
        values: ``{name: number}`` of the objectives, then of the constrained outcomes;
            empty where the evaluation failed.
        cost: What it cost, if that was told.
        error: What went wrong, if that was told.
        sem: ``{name: number}``, standard errors of the objectives, if they were told.
        metadata: What else was told to be kept.
    """

    number: int
    config: dict[str, Any]
    values: dict[str, float] = field(default_factory=dict)
    cost: float | None = None
    error: str | None = None
    sem: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        parts = [f"{self.number}, {self.state!r}, config={self.config!r}"]
        for name in ("values", "sem", "cost", "error", "metadata"):
            if (told := getattr(self, name)) not in (None, {}):
                parts.append(f"{name}={told!r}")
        return f"Trial({', '.join(parts)})"

    @property
    def state(self) -> Literal["complete", "failed"]:
        """Whether there are values."""
        return "complete" if self.values else "failed"

    @property
    def value(self) -> float | None:
        """That of the first objective; None where the evaluation failed."""
        return next(iter(self.values.values()), None)
