"""`SharedPaths`: the paths suggested to running trials, where all processes see them.

A running trial shows the parameters that it has asked for so far. Those that it will
ask for are kept with the study, as user attributes ``structured:0``, ``structured:1``,
...: text in JSON, one for each trial, in places that later trials take over, so that
they do not pile up.

Storages have no locks for samplers. For no two trials to be at one point, a trial that
has chosen says so, looks again, and then says that its choice is final. Where it meets
another choice on the same branch, made without knowledge of its own, the trial with the
larger number chooses again, unless that one's choice is final; the other one waits for
its answer. A trial that is killed in between keeps nobody waiting for long, nor does
harm: the point is not evaluated.
"""

from __future__ import annotations

__all__ = ["SharedPath", "SharedPaths", "SuggestedPath"]

import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from botorch_structured.integrations.optuna.trial_parameter import Values, with_one_nan
from botorch_structured.spaces import SearchSpace

_NUM_PLACES = 256


@dataclass(frozen=True)
class SuggestedPath:
    """The parameters that a trial should ask for.

    Args:
        values: ``{name: (distribution, value)}``; the distribution of a declared
            parameter is None until a trial has asked for it.
        whole: Whether this is a whole path, and not decisions that lead to a new one.
    """

    values: Values = field(default_factory=dict)
    whole: bool = False

    def shares_branch(self, other: SuggestedPath) -> bool:
        """Whether no choice or whole number tells it from another one."""
        for name in self.values.keys() & other.values.keys():
            value, its = self.values[name][1], other.values[name][1]
            if value != its and not isinstance(value, float):
                return False
        return bool(self.values and other.values)


@dataclass(frozen=True)
class SharedPath:
    """A suggestion as other processes see it.

    Args:
        suggestion: The suggestion.
        knows: The running trials it takes into account, and their versions.
        final: Whether it will not change any more.
        version: Another one for other values.
    """

    suggestion: SuggestedPath
    knows: dict[int, int]
    final: bool
    version: int


class SharedPaths:
    """The suggestions that are kept with a study.

    Args:
        study: The study.
        declared: The space, if it was declared.

    Attributes:
        trials: The trials of the study. They are read after the suggestions, so that
            each parameter of these was asked for by one of them.
        exist: Whether there are any: a bracket of `optuna.pruners.HyperbandPruner` has
            no user attributes.
    """

    def __init__(self, study: optuna.Study, declared: SearchSpace | None) -> None:
        self._study = study
        columns = () if declared is None else declared.columns
        self._columns: dict[str, Any] = {column.name: column for column in columns}
        self.exist = hasattr(study, "user_attrs")
        self._texts: dict[str, str] = study.user_attrs if self.exist else {}
        self.trials: Sequence[FrozenTrial] = study.get_trials(deepcopy=False)

    def read(self, number: int) -> SharedPath | None:
        """The suggestion of a trial; None if there is none."""
        shared = json.loads(self._texts.get(_place(number), "{}"))
        if shared.get("trial") != number:
            return None
        rows = shared["values"]
        return SharedPath(
            SuggestedPath({row[0]: self._value(*row) for row in rows}, shared["whole"]),
            {int(n): version for n, version in shared["knows"].items()},
            shared["final"],
            zlib.crc32(json.dumps(rows).encode()),
        )

    def others(self, without: Collection[int]) -> dict[int, SharedPath]:
        """The suggestions of the trials but some, by their numbers."""
        numbers = [t.number for t in self.trials if t.number not in without]
        found = {number: self.read(number) for number in numbers}
        return {number: path for number, path in found.items() if path is not None}

    def keep(
        self,
        number: int,
        suggestion: SuggestedPath,
        knows: Mapping[int, int],
        final: bool,
    ) -> None:
        """Let other processes know of a suggestion."""
        rows = []
        for name, (distribution, value) in suggestion.values.items():
            if distribution is not None:
                internal = distribution.to_internal_repr(value)
                rows.append([name, repr(distribution), internal])
            elif name in self._columns:  # not a constant
                rows.append([name, "", self._columns[name].encode(value)])
        shared = {
            "trial": number,
            "whole": suggestion.whole,
            "values": rows,
            "knows": dict(knows),
            "final": final,
        }
        self._study.set_user_attr(_place(number), json.dumps(shared))

    def _value(
        self, name: str, kind: str, internal: float
    ) -> tuple[BaseDistribution | None, Any]:
        if not kind:
            return None, self._columns[name].decode(internal)
        known = self._distributions
        # several ranges that were taken as one are that of no trial
        distribution = known.get((name, kind), known[name, ""])
        return with_one_nan(distribution), distribution.to_external_repr(internal)

    @cached_property
    def _distributions(self) -> dict[tuple[str, str], BaseDistribution]:
        """Those of trials, by name and text; without a text, the last of a name."""
        found = {}
        for trial in self.trials:
            for name, distribution in trial.distributions.items():
                found[name, ""] = found[name, repr(distribution)] = distribution
        return found


def _place(number: int) -> str:
    return f"structured:{number % _NUM_PLACES}"
