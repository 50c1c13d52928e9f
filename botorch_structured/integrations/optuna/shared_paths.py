"""`SharedPaths`: the suggestions of running trials, where other processes see them.

A running trial shows the parameters that it has asked for so far. Those that it will
ask for are kept with the study, as user attributes ``structured:0``, ``structured:1``,
...: text in JSON, one for each trial, and empty when it has ended, in places that later
trials take over: Optuna cannot delete them.

Storages have no locks for samplers. For no two trials to be at one point, a trial that
has chosen says so, looks again, and chooses again where another trial on the same
branch has shown what it did not know: of two that choose at once at least one sees the
other. Nobody waits for a trial that is killed in between, nor does it harm: the point
is not evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial

from botorch_structured.integrations.optuna.trial_space import Values, with_one_nan
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.columns import is_equal


@dataclass(frozen=True)
class SuggestedPath:
    """The parameters that a trial should ask for.

    Args:
        values: ``{name: (distribution, value)}``; the distribution of a declared
            parameter is None.
    """

    values: Values = field(default_factory=dict)

    def shares_branch(self, values: Values) -> bool:
        """Whether no choice or whole number tells it from the values of a trial."""
        shared = self.values.keys() & values.keys()
        pairs = [(self.values[name][1], values[name][1]) for name in shared]
        return all(a == b or isinstance(a, float) for a, b in pairs) and bool(values)

    def agrees(self, values: Values) -> bool:
        """Whether a trial has its suggested values; an enqueued one need not."""
        return all(
            name not in values or is_equal(values[name][1], value)
            for name, (_, value) in self.values.items()
        )


class SharedPaths:
    """The suggestions that are kept with a study.

    Args:
        study: The study.
        declared: The space, if it was declared.

    Attributes:
        trials: The trials of the study. They are read after the suggestions, so that
            each parameter of these was asked for by one of them, or by an old study's.
        exist: Whether there are any: a bracket of `optuna.pruners.HyperbandPruner` has
            no user attributes.
    """

    def __init__(
        self,
        study: optuna.Study,
        declared: SearchSpace | None,
    ) -> None:
        self._study = study
        columns = () if declared is None else declared.columns
        self._columns: dict[str, Any] = {column.name: column for column in columns}
        self.exist = hasattr(study, "user_attrs")
        self._texts: dict[str, str] = study.user_attrs if self.exist else {}
        self.trials: Sequence[FrozenTrial] = study.get_trials(deepcopy=False)

    def read(self, number: int) -> SuggestedPath | None:
        """The suggestion of a trial; None if there is none."""
        shared = json.loads(self._texts.get(_place(number)) or "{}")
        if shared.get("trial") != number:
            return None
        values: Values = {}
        for name, text, internal in shared["values"]:
            if text:
                distribution = with_one_nan(json_to_distribution(text))
                values[name] = distribution, distribution.to_external_repr(internal)
            else:
                values[name] = None, self._columns[name].decode(internal)
        return SuggestedPath(values)

    def keep(
        self,
        number: int,
        suggestion: SuggestedPath,
    ) -> None:
        """Let other processes know of a suggestion."""
        rows: list[list[Any]] = []
        for name, (distribution, value) in suggestion.values.items():
            if distribution is not None:
                try:
                    text = distribution_to_json(distribution)
                except TypeError:  # choices that only the memory of a process holds
                    return
                rows.append([name, text, distribution.to_internal_repr(value)])
            elif name in self._columns:  # not a constant
                rows.append([name, "", self._columns[name].encode(value)])
        shared = {"trial": number, "values": rows}
        self._study.set_user_attr(_place(number), json.dumps(shared))

    def forget(self, number: int) -> None:
        """Leave nothing of a trial that ends."""
        if self.read(number) is not None:
            self._study.set_user_attr(_place(number), "")


def _place(number: int) -> str:
    """The user attribute of a trial; later trials take over those of ended ones."""
    return f"structured:{number % 256}"
