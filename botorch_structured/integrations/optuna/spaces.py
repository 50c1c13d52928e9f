"""Between the parameters of trials and the columns of a space."""

from __future__ import annotations

__all__ = [
    "DeclaredSpace",
    "TrialSpace",
    "check_declared",
    "configurations",
    "encoded",
    "possible",
    "starts_left",
]

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor

from botorch_structured.integrations.optuna.learning import Asked
from botorch_structured.integrations.optuna.parameter import Parameter, Values
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import brief
from botorch_structured.spaces.columns import (
    Column,
    Constant,
    FloatColumn,
    IntegerColumn,
)

# Random points among which one is looked for that can have what a trial asked for,
# where a first one cannot.
_DRAWS = 2_000


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
        self._names = {*space.names, *(space._shown(c.name) for c in space.constants)}

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


def encoded(space: SearchSpace, values: Values) -> dict[int, float]:
    """Columns and what a trial has in them; what they do not take is left out."""
    found = {}
    for c, column in enumerate(space.columns):
        if column.name in values:
            with suppress(ValueError):
                found[c] = column.encode(values[column.name][1])
    return found


def check_declared(
    space: SearchSpace, parameter: Parameter, held: Mapping[int, float]
) -> None:
    """That an objective takes all values of a declared parameter.

    Those that it does not take would be suggested again and again, as something else is
    evaluated in their place. What the space has on other paths only does not matter.

    Args:
        space: The declared space.
        parameter: What a trial asks for.
        held: What it has asked for before, see `encoded`.

    Raises:
        ValueError: It takes some of them only.
    """
    name, lacking, expected = parameter.name, [], []
    others = {c: x for c, x in held.items() if space.columns[c].name != name}
    for c, column in enumerate(space.columns):
        if column.name == name and (missing := _not_taken(column, parameter)):
            if space.tree.can_be_active(c, others):
                lacking += missing
                expected.append(column.expected())
    for constant in space.constants:
        if space._shown(constant.name) == name and not parameter.takes(constant.value):
            if space.tree.can_hold(constant.condition, others):
                lacking.append(brief(constant.value))
                expected.append(f"its constant {constant.value!r}")
    if lacking:
        raise ValueError(
            f"{name!r}: expected an objective that takes all values of the declared "
            f"space, {' or '.join(expected)}, got {parameter.distribution}, which does "
            f"not take {' and '.join(lacking)}."
        )


def _not_taken(column: Column, parameter: Parameter) -> list[str]:
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
    space: SearchSpace,
    entries: Sequence[Mapping[str, Any]],
    whole: Sequence[bool],
    seeds: Sequence[int | None],
) -> list[dict[str, Any] | None]:
    """Configurations of a space from what is known of them.

    Args:
        space: The space.
        entries: Of each, names of columns and constants and what they hold.
        whole: Of each, whether active columns that are missing are not part of it:
            then they hold the middle of their range.
        seeds: Of each, what draws those that are missing otherwise; None: not drawn.

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
    others = _RandomPoints(space)
    for i, seed in enumerate(seeds):
        lacks = not set(active[i].nonzero().flatten().tolist()) <= known[i].keys()
        if not lacks or not usable[i] or whole[i]:
            continue
        drawn = None
        if seed is not None and known[i]:
            drawn = others.draw(X[i], list(known[i]), seed)
        if drawn is None:
            usable[i] = False
        else:
            X[i] = drawn
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


def starts_left(
    space: SearchSpace,
    starts: Sequence[Mapping[str, Any]],
    configs: Sequence[Mapping[str, Any] | None],
    entries: Sequence[Mapping[str, Any]],
    whole: Sequence[bool],
) -> list[Mapping[str, Any]] | None:
    """Starts on paths that no trial has asked for.

    A configuration with drawn decisions says nothing about its path, unless there are
    twice as many of them as starts: then they may fail for what they ask for first.

    Args:
        space: The space.
        starts: A start on each path, or on some.
        configs: Those of trials, see `configurations`.
        entries: Of each, what the trial has asked for.
        whole: Of each, whether it has asked for all.

    Returns:
        The starts; None where a study finds them itself, as no configuration that
        counts has drawn decisions.
    """
    deciding = {space.names[c] for c in space.tree.decision_values}
    asked, drawn = [], 0
    for config, entry, is_whole in zip(configs, entries, whole, strict=True):
        if config is not None:
            if is_whole or not config.keys() & deciding - entry.keys():
                asked.append(config)
            else:
                drawn += 1
    if not 0 < drawn < 2 * len(starts):
        return None
    known = set(space.tree.path_key(space.encode(asked)).tolist()) if asked else set()
    keys = space.tree.path_key(space.encode(starts)).tolist()
    left = [start for start, key in zip(starts, keys, strict=True) if key not in known]
    return left[: max(len(starts) - len(known), 0)]


class _RandomPoints:
    """Random points that hold what others do in some columns.

    Args:
        space: The space.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space

    def draw(self, x: Tensor, columns: list[int], seed: int) -> Tensor | None:
        """A point that has, and has active, what ``x`` has in some columns.

        Those of them that no path has active together with the others do not matter.

        Returns:
            The point, feasible; None if none is found.
        """
        tree = self._space.tree
        held = {c: x[c].item() for c in columns}
        columns = [c for c in columns if tree.can_be_active(c, held)]

        def possible(X: Tensor) -> Tensor:
            active = tree.active_mask(X, strict=False)[:, columns].all(-1)
            return active & self._space.feasible(X)

        own = self._with(x, columns, self._sample(1, seed))
        if possible(own).all():
            return own[0]
        for X in (self._many, self._starts):
            X = self._with(x, columns, X)
            if len(rows := possible(X).nonzero().flatten()):
                found = X[rows[seed % len(rows)]].unsqueeze(0)
                # The rest of it as in its own draw: all at once, or what can be.
                rest = [c for c in range(len(x)) if c not in tree.decision_values]
                for group in (rest, *([c] for c in rest)):
                    other = found.clone()
                    other[:, group] = own[:, group]
                    if possible(other).all():
                        found = other
                        if group is rest:
                            break
                return found[0]
        return None

    @staticmethod
    def _with(x: Tensor, columns: list[int], X: Tensor) -> Tensor:
        X = X.clone()
        X[:, columns] = x[columns]
        return X

    def _sample(self, n: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.stack([c.draw(n, generator) for c in self._space.columns], -1)

    @cached_property
    def _many(self) -> Tensor:
        return self._sample(_DRAWS, seed=0)

    @cached_property
    def _starts(self) -> Tensor:
        return self._space.starts(seed=0)  # rare paths, too
