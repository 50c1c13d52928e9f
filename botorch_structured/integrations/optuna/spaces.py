"""Between the parameters of trials and the columns of a space."""

from __future__ import annotations

__all__ = [
    "DeclaredSpace",
    "TrialSpace",
    "check_declared",
    "configurations",
    "possible",
]

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from botorch_structured.integrations.optuna.learning import Asked
from botorch_structured.integrations.optuna.parameter import Parameter, Values
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import brief


class TrialSpace(Protocol):
    """A space whose configurations are trials."""

    space: SearchSpace

    def entries(self, values: Values) -> dict[str, Any]:
        """Names of columns and what they hold, of ``{name: (distribution, value)}``."""

    def held(self, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Names of columns and what they hold, of ``{name: value}``."""

    def values(self, config: Mapping[str, Any]) -> Values:
        """``{name: (distribution, value)}`` of a configuration."""


class DeclaredSpace:
    """A space that was declared: parameters are columns.

    Args:
        space: The space.
        trials: What trials asked for, which is where distributions are known from.
    """

    def __init__(self, space: SearchSpace, trials: Iterable[Asked]) -> None:
        self.space = space
        self._distributions = {
            name: distribution
            for trial in trials
            for name, (distribution, _) in trial.values.items()
        }
        self._names = set(space.names)

    def entries(self, values: Values) -> dict[str, Any]:
        """See `TrialSpace`; other parameters are left out."""
        return {k: value for k, (_, value) in values.items() if k in self._names}

    def held(self, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """See `TrialSpace`; what is not in the space is left out."""
        found = {}
        for column in self.space.columns:
            if column.name in fixed:
                try:
                    column.encode(fixed[column.name])
                except ValueError:
                    continue
                found[column.name] = fixed[column.name]
        return found

    def values(self, config: Mapping[str, Any]) -> Values:
        """See `TrialSpace`; where a distribution does not take its value it is None."""
        found: Values = {}
        for name, value in config.items():
            distribution = self._distributions.get(name)
            if distribution is not None:
                if not Parameter(name, distribution).contains(value):
                    distribution = None
            found[name] = distribution, value
        return found


def check_declared(space: SearchSpace, parameter: Parameter) -> None:
    """That an objective takes all values of a declared parameter.

    Those that it does not take would be suggested again and again, as something else is
    evaluated in their place. Numbers between two steps are no such values: rounded,
    they are near enough.

    Args:
        space: The declared space.
        parameter: What a trial asks for.

    Raises:
        ValueError: It takes some of them only.
    """
    if parameter.name not in space.names:
        return
    column = space.columns[space.names.index(parameter.name)]
    values = getattr(column, "choices", None) or map(column.decode, column.bounds)
    lacking = [brief(value) for value in values if not parameter.spans(value)]
    if lacking:
        raise ValueError(
            f"{parameter.name!r}: expected an objective that takes all values of the "
            f"declared space, {column.expected()}, got {parameter.distribution}, which "
            f"does not take {' and '.join(lacking)}."
        )


def possible(space: SearchSpace, held: Mapping[str, Any]) -> dict[str, Any]:
    """What is held of parameters that a trial may ask for, the others held.

    Args:
        space: The space.
        held: Names of columns and what they hold.
    """
    columns = {name: space.names.index(name) for name in held}
    numbers = {c: space.columns[c].encode(held[name]) for name, c in columns.items()}
    able = (name for name, c in columns.items() if space.tree.can_be_active(c, numbers))
    return {name: held[name] for name in able}


def configurations(
    space: SearchSpace, entries: Sequence[Mapping[str, Any]], whole: Sequence[bool]
) -> list[dict[str, Any] | None]:
    """Configurations of a space from what is known of them.

    Args:
        space: The space.
        entries: Of each, names of columns and what they hold.
        whole: Of each, whether active columns that are missing are not part of it:
            then they hold the middle of their range.

    Returns:
        Of each, the configuration; None where values are outside of the space, or
        missing.
    """
    columns = {name: c for c, name in enumerate(space.names)}
    numbers = [space.fill.tolist() for _ in entries]
    usable = []
    for x, entry in zip(numbers, entries, strict=True):
        try:
            for name, value in entry.items():
                x[columns[name]] = space.columns[columns[name]].encode(value)
            usable.append(True)
        except ValueError:
            usable.append(False)
    X = torch.tensor(numbers, dtype=torch.double).reshape(-1, space.dim)
    active = space.tree.active_mask(X)
    good = space.feasible(X).tolist()
    found: list[dict[str, Any] | None] = []
    for i, (entry, on) in enumerate(zip(entries, active.tolist(), strict=True)):
        names = [name for name, is_on in zip(space.names, on, strict=True) if is_on]
        complete = all(name in entry for name in names)
        if not usable[i] or not good[i] or not (complete or whole[i]):
            found.append(None)
        elif complete and not space.constants:
            found.append({name: entry[name] for name in names})
        else:
            found.append(space.decode(space.impute(X[i]))[0])
    return found
