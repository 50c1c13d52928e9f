"""`Places`: what running trials were suggested, where all processes see it.

A running trial shows what it has asked for so far. What it will ask for is kept with
the study, as user attributes ``structured:0``, ``structured:1``, ...: text in JSON, one
for each trial, in places that later trials take over, so that they do not pile up.

Storages have no locks for samplers. For no two trials to be at one point, a trial that
has chosen says so, looks again, and then says that its choice is final. Where it meets
another choice on the same branch, made without knowledge of its own, the trial with the
larger number chooses again, unless that one's choice is final; the other one waits for
what it says. Who is killed in between keeps nobody waiting for long, nor does harm: the
point is not evaluated.
"""

from __future__ import annotations

__all__ = ["Kept", "Places", "Suggestion"]

import json
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from botorch_structured.integrations.optuna.parameter import Values, with_one_nan
from botorch_structured.spaces import SearchSpace

_NUM_PLACES = 256


@dataclass(frozen=True)
class Suggestion:
    """What a trial should ask for.

    Args:
        values: ``{name: (distribution, value)}``; the distribution of a declared
            parameter is None until a trial has asked for it.
        whole: Whether this is a whole path, and not decisions that lead to a new one.
    """

    values: Values = field(default_factory=dict)
    whole: bool = False

    def shares_branch(self, other: Suggestion) -> bool:
        """Whether no choice or whole number tells it from another one."""
        for name in self.values.keys() & other.values.keys():
            value, its = self.values[name][1], other.values[name][1]
            if value != its and not isinstance(value, float):
                return False
        return bool(self.values and other.values)


@dataclass(frozen=True)
class Kept:
    """A suggestion as it is kept.

    Args:
        suggestion: The suggestion.
        knows: The running trials it takes into account, and their versions.
        final: Whether it will not change any more.
        version: Another one for other values.
    """

    suggestion: Suggestion
    knows: dict[int, int]
    final: bool
    version: int


class Places:
    """The suggestions that are kept with a study.

    Args:
        study: The study.
        declared: The space, if it was declared.

    Attributes:
        trials: The trials of the study. They are read after the suggestions, so that
            what these hold was asked for by one of them.
        exist: Whether there are any: a bracket of `optuna.pruners.HyperbandPruner` has
            no user attributes.
    """

    def __init__(self, study: optuna.Study, declared: SearchSpace | None) -> None:
        self._study, self._declared = study, declared
        self._distributions: dict[Any, BaseDistribution] | None = None
        self._texts: dict[str, str] = {}
        self.exist = hasattr(study, "user_attrs")
        if self.exist:
            self._texts = study.user_attrs
        self.trials: Sequence[FrozenTrial] = study.get_trials(deepcopy=False)

    def read(self, number: int) -> Kept | None:
        """What is kept for a trial; None if nothing is."""
        text = self._texts.get(_place(number))
        kept = json.loads(text) if text else {}
        if kept.get("trial") != number:
            return None
        values: Values = {}
        for name, kind, internal in kept["values"]:
            distribution, value = self._value(name, kind, internal)
            values[name] = (distribution, value)
        return Kept(
            Suggestion(values, kept["whole"]),
            {int(n): version for n, version in kept["knows"].items()},
            kept["final"],
            _version(kept["values"]),
        )

    def others(self, without: Collection[int]) -> Iterator[tuple[int, Kept]]:
        """What is kept for the trials but some."""
        for trial in self.trials:
            if trial.number not in without:
                if (kept := self.read(trial.number)) is not None:
                    yield trial.number, kept

    def keep(
        self,
        number: int,
        suggestion: Suggestion,
        knows: Mapping[int, int],
        final: bool,
    ) -> None:
        """Let other processes know of a suggestion."""
        rows = []
        for name, (distribution, value) in suggestion.values.items():
            if distribution is None:
                assert self._declared is not None  # otherwise they are known
                if name in self._declared.names:  # not a constant
                    rows.append([name, "", self._column(name).encode(value)])
            else:
                internal = distribution.to_internal_repr(value)
                rows.append([name, repr(distribution), internal])
        kept = {
            "trial": number,
            "whole": suggestion.whole,
            "values": rows,
            "knows": dict(knows),
            "final": final,
        }
        self._study.set_user_attr(_place(number), json.dumps(kept))

    def _column(self, name: str) -> Any:
        assert self._declared is not None  # otherwise distributions are known
        return self._declared.columns[self._declared.names.index(name)]

    def _value(
        self, name: str, kind: str, internal: float
    ) -> tuple[BaseDistribution | None, Any]:
        if not kind:
            return None, self._column(name).decode(internal)
        if self._distributions is None:
            self._distributions = {}
            for trial in self.trials:
                for key, distribution in trial.distributions.items():
                    self._distributions[key, ""] = distribution
                    self._distributions[key, repr(distribution)] = distribution
        known = self._distributions
        # several ranges that were taken as one are that of no trial
        distribution = known.get((name, kind), known[name, ""])
        return with_one_nan(distribution), distribution.to_external_repr(internal)


def _place(number: int) -> str:
    return f"structured:{number % _NUM_PLACES}"


def _version(rows: Any) -> int:
    return zlib.crc32(json.dumps(rows).encode())
