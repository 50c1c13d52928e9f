"""`Places`: what running trials were suggested, where all processes see it.

A running trial shows what it has asked for so far. What it will ask for is kept with
the study, as user attributes ``structured:0``, ``structured:1``, ...: text in JSON, one
for each trial, in places that later trials take over, so that they do not pile up.
"""

from __future__ import annotations

__all__ = ["Places", "Suggestion"]

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from botorch_structured.integrations.optuna.parameter import Values
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


class Places:
    """The suggestions that are kept with a study.

    Args:
        study: The study.
        trials: Its trials.
        declared: The space, if it was declared.

    Attributes:
        exist: Whether there are any: a bracket of `optuna.pruners.HyperbandPruner` has
            no user attributes.
    """

    def __init__(
        self,
        study: optuna.Study,
        trials: Sequence[FrozenTrial],
        declared: SearchSpace | None,
    ) -> None:
        self._study, self._trials, self._declared = study, trials, declared
        self._distributions: dict[Any, BaseDistribution] | None = None
        self._texts: dict[str, str] = {}
        self.exist = hasattr(study, "user_attrs")
        if self.exist:
            self._texts = study.user_attrs

    def read(self, number: int) -> Suggestion | None:
        """The suggestion of a trial; None if there is none."""
        text = self._texts.get(_place(number))
        kept = json.loads(text) if text else {}
        if kept.get("trial") != number:
            return None
        values: Values = {}
        for name, kind, internal in kept["values"]:
            distribution, value = self._value(name, kind, internal)
            values[name] = (distribution, value)
        return Suggestion(values, kept["whole"])

    def keep(self, number: int, suggestion: Suggestion) -> None:
        """Let other processes know of a suggestion."""
        if not self.exist:
            return
        rows = []
        for name, (distribution, value) in suggestion.values.items():
            if distribution is None:
                rows.append([name, "", self._column(name).encode(value)])
            else:
                internal = distribution.to_internal_repr(value)
                rows.append([name, repr(distribution), internal])
        kept = {"trial": number, "whole": suggestion.whole, "values": rows}
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
            for trial in self._trials:
                for key, distribution in trial.distributions.items():
                    self._distributions[key, ""] = distribution
                    self._distributions[key, repr(distribution)] = distribution
        known = self._distributions
        # several ranges that were taken as one are that of no trial
        distribution = known.get((name, kind), known[name, ""])
        return distribution, distribution.to_external_repr(internal)


def _place(number: int) -> str:
    return f"structured:{number % _NUM_PLACES}"
