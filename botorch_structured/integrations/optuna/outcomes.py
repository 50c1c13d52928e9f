"""What trials were worth, in the words of `botorch_structured.Study`."""

from __future__ import annotations

__all__ = ["Outcomes"]

import math
import statistics
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

_DIRECTIONS = {
    StudyDirection.MINIMIZE: "minimize",
    StudyDirection.MAXIMIZE: "maximize",
}


class Outcomes:
    """Objectives and constraints of a study, and what its trials have of them.

    Args:
        study: The study.
        trials: Its trials.

    Attributes:
        arguments: ``objectives``, and ``constraints`` if there are any, for `Study`.
    """

    def __init__(self, study: optuna.Study, trials: Sequence[FrozenTrial]) -> None:
        self._signs = [
            -1.0 if d == StudyDirection.MAXIMIZE else 1.0 for d in study.directions
        ]
        directions = [_DIRECTIONS[d] for d in study.directions]
        self._names = [f"value_{k}" for k in range(len(directions))]
        self._limited = sorted({key for t in trials for key in t.constraints})
        self.arguments: dict[str, Any] = {"objectives": directions[0]}
        if len(directions) > 1 or self._limited:
            names = dict(zip(self._names, directions, strict=True))
            self.arguments["objectives"] = names
        if self._limited:
            limits = [f"constraint_{k} <= 0" for k in range(len(self._limited))]
            self.arguments["constraints"] = limits
        self._satisfied = {key: _satisfied(key, trials) for key in self._limited}
        done = [t.values[0] for t in trials if t.state == TrialState.COMPLETE]
        self._best = min((self._signs[0] * value for value in done), default=math.nan)

    def value(self, trial: FrozenTrial) -> Any:
        """What `Study.tell` takes for a trial that has ended; None for a failure."""
        values = list(trial.values or ())
        if trial.state == TrialState.PRUNED and trial.last_step is not None:
            last = trial.intermediate_values[trial.last_step]
            # a value on the way that no trial has at its end is not comparable
            values = [last] if self._signs[0] * last > self._best else []
        elif trial.state != TrialState.COMPLETE:
            return None
        if not values or not all(map(math.isfinite, values)):
            return None
        if len(values) == 1 and not self._limited:
            return values[0]
        constraints = {**self._satisfied, **trial.constraints}
        if not all(map(math.isfinite, constraints.values())):
            return None
        named = dict(zip(self._names, values, strict=True))
        for k, key in enumerate(self._limited):
            named[f"constraint_{k}"] = constraints[key]
        return named


def _satisfied(key: str, trials: Sequence[FrozenTrial]) -> float:
    """What a trial has that does not set a constraint: to Optuna, it holds there.

    A negative number as large as the others are.
    """
    found = (abs(t.constraints[key]) for t in trials if key in t.constraints)
    sizes = [size for size in found if math.isfinite(size)]
    return -(statistics.median(sizes) if sizes else 0.0) or -1.0
