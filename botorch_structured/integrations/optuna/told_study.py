"""`ToldStudy`: a study of Optuna as a `Study` that is told of its trials.

It is kept between the trials of a process. Trials that have ended do not change, so
that each is read once; what follows from them is made anew only where the space or the
values of trials are others than before. What it gives depends on the trials alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from botorch_structured.integrations.optuna.learning import LearntSpace
from botorch_structured.integrations.optuna.trial_space import (
    Asked,
    DeclaredSpace,
    Values,
    configurations,
    trial_values,
)
from botorch_structured.study import Study

TrialSpace = DeclaredSpace | LearntSpace
Config = Mapping[str, Any]


class ToldStudy:
    """The trials of a study, read once.

    Args:
        read: The parameters that a trial has asked for.
    """

    def __init__(self, read: Callable[[FrozenTrial], Values]) -> None:
        self._read = read
        # by number, with the very trial: another study may have the name of this one
        self._asked: dict[int, tuple[FrozenTrial, Asked]] = {}
        self._configs: dict[int, tuple[FrozenTrial, Config | None]] = {}
        self._objects: dict[Any, Any] = {}  # one distribution for all equal ones
        self._space: TrialSpace | None = None
        self._arguments: dict[str, Any] = {}
        self._told: list[tuple[FrozenTrial, Any]] = []  # with their values
        self._study: Study | None = None

    def asked(self, trial: FrozenTrial) -> Asked:
        """The parameters that a trial asked for which has ended."""
        kept = self._asked.get(trial.number)
        if kept is not None and kept[0] is trial:
            return kept[1]
        values = {
            name: (self._objects.setdefault(distribution, distribution), value)
            for name, (distribution, value) in self._read(trial).items()
        }
        asked = Asked(values, trial.state == TrialState.COMPLETE)
        self._asked[trial.number] = trial, asked
        return asked

    def configs(
        self,
        space: TrialSpace,
        trials: Sequence[FrozenTrial],
        paths: Mapping[int, Values],
    ) -> list[Config | None]:
        """The configurations of trials; None for those that are outside of a space.

        Args:
            space: The space as it is now.
            trials: The trials.
            paths: The values of those that run, suggested ones included, by number.
        """
        if self._space is None or not _are_alike(space, self._space):
            self._configs = {}
            self._study = None
        elif isinstance(space, LearntSpace):
            space.space = self._space.space  # it has found more about itself by now
        self._space = space
        configs: dict[int, Config | None] = {}
        new = []
        for trial in trials:
            kept = self._configs.get(trial.number)
            if kept is not None and kept[0] is trial:
                configs[trial.number] = kept[1]
            else:
                new.append(trial)
        asked = [
            paths[t.number] if t.number in paths else self.asked(t).values for t in new
        ]
        entries = [space.entries(values) for values in asked]
        whole = [trial.state == TrialState.COMPLETE for trial in new]
        # Another trial that ended may have stopped before it asked for all: a parameter
        # that is missing did not matter, and may have had any value.
        seeds = [t.number if t.state.is_finished() else None for t in new]
        made = configurations(space.space, entries, whole, seeds)
        for trial, config in zip(new, made, strict=True):
            configs[trial.number] = config
            if trial.state.is_finished():
                self._configs[trial.number] = trial, config
        return [configs[trial.number] for trial in trials]

    def study(
        self,
        study: optuna.Study,
        trials: Sequence[FrozenTrial],
        configs: Sequence[Config | None],
        make: Callable[..., Study],
    ) -> Study:
        """A `Study` with the values of the trials that have ended and a configuration.

        Args:
            study: The study of Optuna.
            trials: Its trials.
            configs: Their configurations.
            make: Called with the arguments of the `Study` that are known here.
        """
        arguments, values = trial_values(study, trials)
        told = [
            (trial, config, value)
            for trial, config, value in zip(trials, configs, values, strict=True)
            if config is not None and trial.state.is_finished()
        ]
        # in the order in which they ended, so that new ones are the last
        told.sort(key=lambda row: (row[0].datetime_complete, row[0].number))
        now = [(trial, value) for trial, _, value in told]
        n = len(self._told)
        if self._study is None or (arguments, self._told) != (self._arguments, now[:n]):
            self._arguments = arguments
            self._study = make(**arguments)
            n = 0
        self._study._pending.clear()  # what is asked here is pending in the other study
        self._told = now
        self._study.tell_many(
            [config for _, config, _ in told[n:]], [value for _, value in now[n:]]
        )
        return self._study


def _are_alike(space: TrialSpace, other: TrialSpace) -> bool:
    if isinstance(space, LearntSpace) and isinstance(other, LearntSpace):
        return space.is_like(other)
    return space.space is other.space
