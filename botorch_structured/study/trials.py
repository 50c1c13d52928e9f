"""Evaluations as a study is told of them, and as models see them."""

from __future__ import annotations

__all__ = ["Trial"]

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from botorch_structured.spaces.arguments import brief, check_number

_SIGNS = {"minimize": -1.0, "maximize": 1.0}


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

    def copy(self) -> Trial:
        """One of its own; see `detached`."""
        return replace(
            self,
            config=detached(self.config),
            values=dict(self.values),
            sem=dict(self.sem),
            metadata=deepcopy(self.metadata),
        )

    @property
    def state(self) -> Literal["complete", "failed"]:
        """Whether there are values."""
        return "complete" if self.values else "failed"

    @property
    def value(self) -> float | None:
        """That of the first objective; None where the evaluation failed."""
        return next(iter(self.values.values()), None)


def detached(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration to give away: lists and dictionaries among choices are copies.

    Other choices, such as estimators, are the same objects.
    """
    return {
        k: deepcopy(v) if isinstance(v, (list, dict)) else v for k, v in config.items()
    }


class Constraint(NamedTuple):
    """``sign * (outcome - bound) <= 0``.

    Attributes:
        name: The outcome.
        sign: 1 for an upper bound, -1 for a lower one.
        bound: The bound.
    """

    name: str
    sign: float
    bound: float

    @classmethod
    def parse(cls, text: Any) -> Constraint:
        """Read ``"name <= number"`` or ``"name >= number"``."""
        parts = re.split("(<=|>=)", text) if isinstance(text, str) else []
        if len(parts) == 3:
            name, sign, number = parts
            with suppress(ValueError):
                bound = float(number)
                if name.strip() and math.isfinite(bound):
                    return cls(
                        name.strip(),
                        1.0 if sign == "<=" else -1.0,
                        bound,
                    )
        raise ValueError(
            "constraints: expected texts such as 'memory <= 8.0' or "
            f"'accuracy >= 0.9', got {text!r}."
        )

    def __str__(self) -> str:
        return f"{self.name} {'<=' if self.sign > 0 else '>='} {self.bound!r}"


class Goals:
    """Objectives and constraints: their names, and how models see their values.

    Args:
        objectives: A direction, or ``{name: direction}``.
        constraints: Texts, see `Constraint.parse`.

    Raises:
        ValueError: An argument is not what it should be.
    """

    def __init__(self, objectives: Any, constraints: Any = None) -> None:
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
        texts = () if constraints is None else constraints
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise ValueError(f"constraints: expected a list, got {constraints!r}.")
        self.objectives: dict[str, str] = dict(named)
        self.constraints = [Constraint.parse(text) for text in texts]
        #: The names of the outcomes that an evaluation has to give.
        self.names = list(
            dict.fromkeys([*self.objectives, *(c.name for c in self.constraints)])
        )

    def read(self, value: Any, returned: str = "") -> dict[str, float]:
        """``{name: number}`` of an outcome; empty for a failure.

        Args:
            value: What `Study.tell` was given, None for a failure.
            returned: What returned it, if a function did: then None is an error,
                because it may have forgotten to.

        Raises:
            ValueError: It is no outcome, or a number is NaN or infinite.
        """
        name = returned or "value"
        failure = "an exception in `catch`" if returned else "None"
        if value is None and not returned:
            return {}
        if not isinstance(value, Mapping):
            if len(self.names) > 1:
                raise ValueError(
                    f"{name}: expected {{name: number}} with the names {self.names}, "
                    f"or {failure} for a failure, got {brief(value)}."
                )
            return {self.names[0]: _number(name, value, failure)}
        if value.keys() != set(self.names):
            raise ValueError(
                f"{name}: expected numbers for {self.names}, got them for "
                f"{list(value)}."
            )
        failure += " in place of all of them"
        return {k: _number(f"{name}[{k!r}]", value[k], failure) for k in self.names}

    def read_sem(self, sem: Any, worked: bool) -> dict[str, float]:
        """``{objective: number}`` of standard errors; empty for None."""
        if sem is None:
            return {}
        names = list(self.objectives)
        errors = sem if isinstance(sem, Mapping) else {names[0]: sem}
        if not worked or errors.keys() != set(names):
            expected = f"one for each of {names}" if worked else "None for a failure"
            raise ValueError(f"sem: expected {expected}, got {brief(sem)}.")
        errors = {name: check_number("sem", errors[name]) for name in names}
        if not all(e > 0.0 and 0.0 < e * e < math.inf for e in errors.values()):
            raise ValueError(
                "sem: expected positive numbers, the squares of which are positive and "
                f"finite, got {brief(sem)}."
            )
        return errors

    def train_Yvar(self, trials: Sequence[Trial]) -> Tensor | None:
        """``n x m`` variances of the objectives' noise; None if one is not known."""
        good = [t for t in trials if t.values]
        if not good or not all(t.sem for t in good):
            return None
        # that of a failure does not matter, but has to be a number
        sems = [list((t.sem or good[0].sem).values()) for t in trials]
        return torch.tensor(sems, dtype=torch.double).square()

    def train_Y(self, trials: Sequence[Trial]) -> Tensor:
        """``n x m`` objectives, larger ones are better; ``-inf`` for failures."""
        signs = {name: _SIGNS[d] for name, d in self.objectives.items()}
        rows = [
            [s * t.values[k] if t.values else -math.inf for k, s in signs.items()]
            for t in trials
        ]
        return torch.tensor(rows, dtype=torch.double).reshape(len(rows), len(signs))

    def train_C(self, trials: Sequence[Trial]) -> Tensor:
        """``n x k`` constraints, feasible where at most 0; NaN for failures."""
        rows = [
            [
                c.sign * (t.values[c.name] - c.bound) if t.values else math.nan
                for c in self.constraints
            ]
            for t in trials
        ]
        return torch.tensor(rows, dtype=torch.double).reshape(
            len(rows), len(self.constraints)
        )

    def feasible(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trials that have values and keep the constraints."""
        trials = [*trials]  # another thread may tell more
        keep = (self.train_C(trials) <= 0.0).all(-1).tolist()
        return [t for t, good in zip(trials, keep, strict=True) if t.values and good]


def read_metadata(metadata: Any) -> dict[str, Any]:
    """``{name: value}`` as a log gives it back; empty for None.

    Args:
        metadata: The values are those of JSON, or scalars of an array library.

    Raises:
        ValueError: It is something else.
    """
    if metadata is None:
        return {}
    if isinstance(metadata, Mapping) and all(isinstance(k, str) for k in metadata):
        try:
            text = json.dumps(dict(metadata), default=lambda scalar: scalar.item())
        except (TypeError, ValueError, RuntimeError, AttributeError):
            pass
        else:
            read: dict[str, Any] = json.loads(text)
            return read
    raise ValueError(
        "metadata: expected {name: number, text, or list or dictionary of these}, got "
        f"{brief(metadata)}."
    )


def _number(name: str, value: Any, failure: str) -> float:
    """A finite number, of any library, but no array and no truth value."""
    dtype: Any = getattr(value, "dtype", type(value).__name__)
    is_other = isinstance(value, (str, bytes)) or str(dtype).endswith("bool")
    if not (is_other or getattr(value, "ndim", False)):
        with suppress(TypeError, ValueError, RuntimeError, OverflowError):
            if math.isfinite(number := float(value)):
                return number + 0.0  # -0.0 and 0.0 are one value
    raise ValueError(
        f"{name}: expected a finite number, or {failure} for a failure, got "
        f"{brief(value)}."
    )
