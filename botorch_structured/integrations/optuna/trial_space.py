"""Trials as configurations of a space, and `DeclaredSpace`, one that was declared."""

from __future__ import annotations

__all__ = [
    "DeclaredSpace",
    "check_declared",
    "configurations",
    "held_where_possible",
]

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from botorch_structured.integrations.optuna.learning import Asked
from botorch_structured.integrations.optuna.trial_parameter import (
    TrialParameter,
    Values,
)
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import brief
from botorch_structured.spaces.columns import (
    Column,
    Constant,
    FloatColumn,
    IntegerColumn,
)

# Random points among which one is looked for that can have the parameters that a trial
# asked for, where a first one cannot.
_DRAWS = 2_000


class DeclaredSpace:
    """A space that was declared: parameters are columns.

    It has the methods of `LearntSpace`.

    Args:
        space: The space.
        trials: The trials, whose distributions are those of the parameters.
    """

    def __init__(self, space: SearchSpace, trials: Iterable[Asked]) -> None:
        self.space = space
        self._distributions = {
            name: distribution
            for trial in trials
            for name, (distribution, _) in trial.values.items()
        }
        self._names = {*space.names, *(space._shown(c.name) for c in space.constants)}

    def entries(self, values: Values) -> dict[str, Any]:
        """See `LearntSpace.entries`; other parameters are left out."""
        return {k: value for k, (_, value) in values.items() if k in self._names}

    def held(self, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """See `LearntSpace.held`; entries that are not in the space are left out."""
        held = _encoded(self.space, fixed)
        return {(name := self.space.names[c]): fixed[name] for c in held}

    def values(self, config: Mapping[str, Any]) -> Values:
        """See `LearntSpace.values`.

        Where a distribution does not take its value it is None.
        """
        found: Values = {}
        for name, value in config.items():
            distribution = self._distributions.get(name)
            if distribution is not None:
                if not TrialParameter(name, distribution).contains(value):
                    distribution = None
            found[name] = distribution, value
        return found


def check_declared(
    space: SearchSpace, parameter: TrialParameter, asked: Values
) -> None:
    """That an objective takes all values of a declared parameter.

    Those that it does not take would be suggested again and again, as something else is
    evaluated in their place. Values that the space has on other paths only do not
    matter.

    Args:
        space: The declared space.
        parameter: A parameter that a trial asks for.
        asked: Those that it has asked for before.

    Raises:
        ValueError: It takes some of them only.
    """
    name, lacking, expected = parameter.name, [], []
    others = {k: value for k, (_, value) in asked.items() if k != name}
    held = _encoded(space, others)
    for c, column in enumerate(space.columns):
        if column.name == name and (missing := _not_taken(column, parameter)):
            if space.tree.can_be_active(c, held):
                lacking += missing
                expected.append(column.expected())
    for constant in space.constants:
        if space._shown(constant.name) == name and not parameter.takes(constant.value):
            if space.tree.can_hold(constant.condition, held):
                lacking.append(brief(constant.value))
                expected.append(f"its constant {constant.value!r}")
    if lacking:
        raise ValueError(
            f"{name!r}: expected an objective that takes all values of the "
            f"declared space, {' or '.join(expected)}, got "
            f"{parameter.distribution}, which does not take "
            f"{' and '.join(lacking)}."
        )


def _encoded(space: SearchSpace, values: Mapping[str, Any]) -> dict[int, float]:
    """Columns and their numbers; values that they do not take are left out."""
    found = {}
    for c, column in enumerate(space.columns):
        if column.name in values:
            with suppress(ValueError):
                found[c] = column.encode(values[column.name])
    return found


def _not_taken(column: Column, parameter: TrialParameter) -> list[str]:
    """Values of a column that a parameter does not take, as text; two at most."""
    values: Sequence[Any] = getattr(column, "choices", ())
    if isinstance(column, FloatColumn):
        if parameter.is_choice or parameter.is_whole:
            return ["what is between its values (declare a list of them)"]
        values = (column.lower, column.upper)
    elif isinstance(column, IntegerColumn):
        values = range(column.lower, column.upper + 1)
        if not parameter.is_choice:  # steps are alike everywhere
            values = sorted({values[0], values[1 % len(values)], values[-1]})
    is_log = getattr(column, "log", False)
    lacking = (v for v in values if not parameter.takes(v, is_log))
    return [brief(v) for v in islice(lacking, 2)]


def held_where_possible(space: SearchSpace, held: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of ``held`` whose columns can be active together with the others."""
    numbers = _encoded(space, held)
    columns = [c for c in numbers if space.tree.can_be_active(c, numbers)]
    return {(name := space.names[c]): held[name] for c in columns}


def configurations(
    space: SearchSpace,
    entries: Sequence[Mapping[str, Any]],
    whole: Sequence[bool],
    seeds: Sequence[int | None],
) -> list[dict[str, Any] | None]:
    """Configurations of a space from entries of some columns.

    Args:
        space: The space.
        entries: Of each, names of columns and constants, and their entries.
        whole: Of each, whether active columns that are missing are not part of it:
            then they hold the middle of their range.
        seeds: Of each, the seed of those that are missing otherwise; None: not drawn.

    Returns:
        Of each, the configuration; None where values are outside of the space, or
        missing.
    """
    columns = {name: c for c, name in enumerate(space.names)}
    numbers = [space.fill.tolist() for _ in entries]
    known = [{columns[k]: v for k, v in e.items() if k in columns} for e in entries]
    usable = []
    for x, held in zip(numbers, known, strict=True):
        try:
            for c, value in held.items():
                x[c] = space.columns[c].encode(value)
            usable.append(True)
        except ValueError:
            usable.append(False)
    X = torch.tensor(numbers, dtype=torch.double).reshape(-1, space.dim)
    active = space.tree.active_mask(X)

    @cache
    def others(rare: bool) -> Tensor:
        return space.starts(seed=0) if rare else _drawn(space, _DRAWS, 0)

    for i, seed in enumerate(seeds):
        lacks = not set(active[i].nonzero().flatten().tolist()) <= known[i].keys()
        if not lacks or not usable[i] or whole[i]:
            continue
        drawn = None
        if seed is not None and known[i]:
            drawn = _completed(space, X[i], list(known[i]), seed, others)
        usable[i] = drawn is not None
        X[i] = X[i] if drawn is None else drawn
    good = space.feasible(X) & torch.tensor(usable, dtype=torch.bool)
    rows = good.nonzero().flatten()
    configs = space.decode(space.impute(X[rows]))
    found: list[dict[str, Any] | None] = [None] * len(entries)
    for i, config in zip(rows.tolist(), configs, strict=True):
        entry = entries[i]
        constants = config.keys() & entry.keys() - columns.keys()
        if all(_is_own(config[name], entry[name]) for name in constants):
            # as the trial has it, not as it is after a way through tensors
            found[i] = {name: entry.get(name, value) for name, value in config.items()}
    return found


def _is_own(constant: Any, value: Any) -> bool:
    """Whether a trial has the value of a constant."""
    try:
        Constant("", constant).check(value)
    except ValueError:
        return False
    return True


def _completed(
    space: SearchSpace,
    x: Tensor,
    columns: list[int],
    seed: int,
    others: Callable[[bool], Tensor],
) -> Tensor | None:
    """A random point that has, and has active, the entries of ``x`` in some columns.

    Those of them that no path has active together with the others do not matter.

    Returns:
        The point, feasible; None if none is found.
    """
    tree = space.tree
    held = {c: x[c].item() for c in columns}
    columns = [c for c in columns if tree.can_be_active(c, held)]

    def with_held(X: Tensor) -> Tensor:
        X = X.clone()
        X[:, columns] = x[columns]
        return X

    def possible(X: Tensor) -> Tensor:
        active = tree.active_mask(X, strict=False)[:, columns].all(-1)
        return active & space.feasible(X)

    own = with_held(_drawn(space, 1, seed))
    if possible(own).all():
        return own[0]
    for rare in (False, True):
        X = with_held(others(rare))
        if len(rows := possible(X).nonzero().flatten()):
            return X[rows[seed % len(rows)]]
    return None


def _drawn(space: SearchSpace, n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([c.draw(n, generator) for c in space.columns], -1)
