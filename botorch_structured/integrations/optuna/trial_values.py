"""`TrialValues`: what trials were worth, in the words of `botorch_structured.Study`."""

from __future__ import annotations

__all__ = ["TrialValues"]

import math
import statistics
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState


class TrialValues:
    """Objectives and constraints of a study, and the values of its trials.

    Args:
        study: The study.
        trials: Its trials.

    Attributes:
        arguments: ``objectives``, and ``constraints`` if there are any, for `Study`.
    """

    def __init__(self, study: optuna.Study, trials: Sequence[FrozenTrial]) -> None:
        directions = [direction.name.lower() for direction in study.directions]
        self._names = [f"value_{k}" for k in range(len(directions))]
        limited = sorted({key for t in trials for key in t.constraints})
        self._satisfied = {key: _satisfied(key, trials) for key in limited}
        self.arguments: dict[str, Any] = {"objectives": directions[0]}
        if len(directions) > 1 or limited:
            names = dict(zip(self._names, directions, strict=True))
            self.arguments["objectives"] = names
        if limited:
            limits = [f"constraint_{k} <= 0" for k in range(len(limited))]
            self.arguments["constraints"] = limits
        maximized = study.directions[0] == StudyDirection.MAXIMIZE
        self._sign = -1.0 if maximized else 1.0
        done = [t.values[0] for t in trials if t.state == TrialState.COMPLETE]
        self._best = min((self._sign * value for value in done), default=math.nan)

    def value(self, trial: FrozenTrial) -> Any:
        """What `Study.tell` takes for a trial that has ended; None for a failure."""
        values = list(trial.values or ())
        if trial.state == TrialState.PRUNED and trial.last_step is not None:
            last = trial.intermediate_values[trial.last_step]
            # an intermediate value below all final ones cannot be compared with them
            values = [last] if self._sign * last > self._best else []
        elif trial.state != TrialState.COMPLETE:
            return None
        constraints = {**self._satisfied, **trial.constraints}
        if not values or not all(map(math.isfinite, [*values, *constraints.values()])):
            return None
        if len(values) == 1 and not constraints:
            return values[0]
        named = dict(zip(self._names, values, strict=True))
        for k, key in enumerate(self._satisfied):
            named[f"constraint_{k}"] = constraints[key]
        return named


def _satisfied(key: str, trials: Sequence[FrozenTrial]) -> float:
    """The value of a constraint in a trial that does not set it.

    To Optuna it holds there: a negative number as large as the others are.
    """
    found = (abs(t.constraints[key]) for t in trials if key in t.constraints)
    sizes = [size for size in found if math.isfinite(size)]
    return -(statistics.median(sizes) if sizes else 0.0) or -1.0
