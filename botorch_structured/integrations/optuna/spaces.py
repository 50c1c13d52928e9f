"""Between the parameters of trials and the columns of a space."""

from __future__ import annotations

__all__ = ["DeclaredSpace", "TrialSpace", "configurations"]

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from optuna.distributions import BaseDistribution

from botorch_structured.integrations.optuna.learning import Asked
from botorch_structured.spaces import SearchSpace

Values = dict[str, tuple[BaseDistribution | None, Any]]


class TrialSpace(Protocol):
    """A space whose configurations are trials."""

    space: SearchSpace

    def entries(self, values: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
        """Names of columns and what they hold, of ``{name: (distribution, value)}``."""

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

    def entries(self, values: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
        """See `TrialSpace`; other parameters are left out."""
        return {k: value for k, (_, value) in values.items() if k in self._names}

    def values(self, config: Mapping[str, Any]) -> Values:
        """See `TrialSpace`."""
        return {k: (self._distributions.get(k), v) for k, v in config.items()}


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
    X = space.fill.repeat(len(entries), 1)
    given = torch.zeros(X.shape, dtype=torch.bool)
    usable = []
    for i, entry in enumerate(entries):
        try:
            for name, value in entry.items():
                c = columns[name]
                X[i, c] = space.columns[c].encode(value)
                given[i, c] = True
            usable.append(True)
        except ValueError:
            usable.append(False)
    missing = (space.tree.active_mask(X) & ~given).any(-1).tolist()
    keep = [
        i for i in range(len(entries)) if usable[i] and (whole[i] or not missing[i])
    ]
    X = space.impute(X)
    keep = [i for i, good in zip(keep, space.feasible(X[keep]), strict=True) if good]
    found: list[dict[str, Any] | None] = [None] * len(entries)
    for i, config in zip(keep, space.decode(X[keep]), strict=True):
        found[i] = config
    return found
