"""Trials of Optuna: parameters as columns, configurations, and values.

`TrialParameter` is one of Optuna's parameters as one column of a space, `Asked` those
that one trial asked for, `DeclaredSpace` a space that was declared, and `TrialValues`
what trials were worth, in the words of `botorch_structured.Study`.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from numbers import Real
from typing import Any

import optuna
import torch
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState
from torch import Tensor

from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import brief
from botorch_structured.spaces.columns import (
    CategoricalColumn,
    Column,
    Constant,
    FloatColumn,
    IntegerColumn,
    takes,
)

Values = dict[str, tuple[BaseDistribution | None, Any]]
"""``{name: (distribution, value)}``; the distribution is None where it is not known."""


def with_one_nan(distribution: BaseDistribution) -> BaseDistribution:
    """A distribution that is equal to those that have another NaN among choices."""
    if isinstance(distribution, CategoricalDistribution):
        choices = [math.nan if c != c else c for c in distribution.choices]
        if math.nan in choices:  # the very object
            return CategoricalDistribution(choices)
    return distribution


class TrialParameter:
    """A name under one distribution.

    One name may have other ranges in other branches of a study; each is a parameter of
    its own. A choice is a column of the positions of its values; of those that are
    equal, as 1, 1.0 and True are, of the first, since Optuna takes all of them for that
    one. A float with a step, or an integer with a step other than 1, is a column of the
    numbers of its steps.

    Args:
        name: Its name.
        distribution: Its distribution.
    """

    def __init__(
        self,
        name: str,
        distribution: BaseDistribution,
    ) -> None:
        self.name = name
        self.distribution: Any = distribution  # each kind has attributes of its own
        self.is_choice = isinstance(distribution, CategoricalDistribution)
        self.is_integer = isinstance(distribution, IntDistribution)
        step = getattr(distribution, "step", None)
        self.step: float | None = None if self.is_integer and step == 1 else step
        self._choices: dict[int, Any] = {}  # by their numbers in storages
        for choice in getattr(distribution, "choices", ()):
            number = int(self.distribution.to_internal_repr(choice))
            self._choices.setdefault(number, choice)
        names = tuple(map(str, self._choices.values()))
        unique = len(set(names)) == len(names) and all(name.strip() for name in names)
        # distinct names for the choices: they themselves as text, or their positions
        self._labels: tuple[Any, ...] = names if unique else tuple(range(len(names)))

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole number, or the number of a step."""
        return not self.is_choice and (self.is_integer or self.step is not None)

    @property
    def size(self) -> float:
        """How many values it has."""
        if self.is_choice:
            return len(self._choices)
        if not self.is_whole:
            return math.inf
        return 1 + round(self._width / (self.step or 1))

    @property
    def _width(self) -> Any:
        return self.distribution.high - self.distribution.low

    @property
    def ends(self) -> tuple[float, float]:
        """The first and the last number of a range."""
        return self.number(self.distribution.low), self.number(self.distribution.high)

    def column(self, name: str) -> Column:
        """A column for it, under another name."""
        if self.is_choice:
            return CategoricalColumn(name, self._labels)
        if self.step is not None:
            return IntegerColumn(
                name,
                0,
                round(self._width / self.step),
            )
        kind: Any = IntegerColumn if self.is_integer else FloatColumn
        ours = self.distribution
        return kind(name, ours.low, ours.high, log=ours.log)

    def _place(self, value: Any) -> int:
        """The position of a choice."""
        return list(self._choices).index(int(self.distribution.to_internal_repr(value)))

    def entry(self, value: Any) -> Any:
        """The entry of configurations of the space for a value of the trial.

        For one between two steps something that the column refuses.
        """
        if self.is_choice:
            return self._labels[self._place(value)]
        return value if self.step is None else self._steps(value)

    def value(self, entry: Any) -> Any:
        """The value of the trial for an entry of configurations of the space."""
        if self.is_choice:
            return list(self._choices.values())[self._labels.index(entry)]
        if self.step is None:
            return int(entry) if self.is_integer else float(entry)
        value = self.distribution.low + int(entry) * self.step
        if self.is_integer:
            return value
        # 3 steps of 0.1 are 0.3
        return min(float(f"{value:.15g}"), self.distribution.high)

    def number(self, value: Any) -> float:
        """The place of a value of the trial on the axis of the column."""
        if self.is_choice:
            return float(self._place(value))
        if self.step is not None:
            return float(self._steps(value))
        log = self.distribution.log and not self.is_integer
        return math.log10(value) if log else float(value)

    def value_at(self, number: float) -> Any:
        """The value of the trial at a place on the axis of the column."""
        return self.value(self.column(self.name).decode(number))

    def contains(self, value: Any) -> bool:
        """Whether it is a value; those of enqueued trials need not be."""
        if self.is_choice:
            try:
                self._place(value)
            except ValueError:
                return False
            return True
        ours = self.distribution
        inside = isinstance(value, Real) and ours.low <= value <= ours.high
        return inside and (self.step is None or isinstance(self._steps(value), int))

    def _steps(self, value: Any) -> float:
        """How many steps lead to a number: an integer, unless it is between two."""
        low = self.distribution.low
        steps = (value - low) / self.step
        whole = round(steps)
        rounding = 8 * sys.float_info.epsilon * max(abs(value), abs(low))
        room = max(1e-8, rounding / self.step)  # to Optuna 1e-8, with any rounding
        return whole if abs(steps - whole) < room else steps

    def nearest(self, value: Any) -> Any:
        """The value in range that is next to a number; choices are as they are."""
        if self.is_choice:
            return value
        value = min(max(value, self.distribution.low), self.distribution.high)
        return self.value(value if self.step is None else round(self._steps(value)))

    def draw(self, seed: int) -> Any:
        """A random value."""
        generator = torch.Generator().manual_seed(seed)
        return self.value_at(self.column(self.name).draw(1, generator).item())


def united(distributions: Sequence[Any]) -> Any:
    """One range for all of these numbers, without steps."""
    low = min(d.low for d in distributions)
    high = max(d.high for d in distributions)
    first = distributions[0]
    kind = IntDistribution if isinstance(first, IntDistribution) else FloatDistribution
    return kind(low, high, log=first.log)


@dataclass(frozen=True)
class Asked:
    """The parameters that one trial asked for.

    Args:
        values: ``{name: (distribution, value)}``, all distributions known.
        complete: Whether the trial came to its end, so that there is nothing else.
        expected: Whether it is only a suggestion for the trial. Nothing is learnt
            from it, as the trial may ask for something else, but it is not tried twice.
    """

    values: Values
    complete: bool = True
    expected: bool = False


class DeclaredSpace:
    """A space that was declared: parameters are columns.

    It has the methods of `LearntSpace`.

    Args:
        space: The space.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self._names = space.named().keys()

    def entries(self, values: Values) -> dict[str, Any]:
        """See `LearntSpace.entries`; other parameters are left out."""
        return {k: value for k, (_, value) in values.items() if k in self._names}

    def fixed_entries(self, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """See `LearntSpace.fixed_entries`; others than the space has are left out."""
        names = [self.space.names[c] for c in _encoded(self.space, fixed)]
        return {name: fixed[name] for name in names}

    def values(self, config: Mapping[str, Any]) -> Values:
        """See `LearntSpace.values`; distributions are those of trials, None here."""
        return {name: (None, value) for name, value in config.items()}


def check_declared(
    space: SearchSpace,
    parameter: TrialParameter,
    asked: Values,
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
    name = parameter.name
    others = {k: value for k, (_, value) in asked.items() if k != name}
    fixed = _encoded(space, others)
    for p in space.named().get(name, ()):
        lacking = _not_taken(p, parameter)
        if lacking and p.name in space.possible_with(fixed):
            raise ValueError(
                f"{name!r}: expected an objective that takes all values of the "
                f"declared space, {p.expected()}, got {parameter.distribution}, which "
                f"does not take {' and '.join(lacking)}."
            )


def _encoded(space: SearchSpace, values: Mapping[str, Any]) -> dict[int, float]:
    """Columns and their numbers; values that they do not take are left out."""
    numbers = {}
    for c, column in enumerate(space.columns):
        if column.name in values:
            with suppress(ValueError):
                numbers[c] = column.encode(values[column.name])
    return numbers


def _not_taken(column: Column | Constant, parameter: TrialParameter) -> list[str]:
    """Values of a column that a parameter does not take, as text; two at most."""
    values: Sequence[Any] = getattr(column, "choices", ())
    is_real = not (parameter.is_choice or parameter.is_whole)
    if isinstance(column, FloatColumn):
        if not is_real:
            return ["what is between its values (declare a list of them)"]
        values = (column.lower, column.upper)
    elif isinstance(column, IntegerColumn):
        bounds = (float(column.lower), float(column.upper))
        if is_real:
            return [f"integers only (declare {bounds}, or a list of values)"]
        values = range(column.lower, column.upper + 1)
        if not parameter.is_choice:  # steps are alike everywhere
            values = sorted({values[0], values[1 % len(values)], values[-1]})
    lacking = (v for v in values if not parameter.contains(v))
    return [brief(v) for v in islice(lacking, 2)]


def possible_together(space: SearchSpace, entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries whose columns can be active together with the others."""
    numbers = _encoded(space, entries)
    possible = space.possible_with(numbers) if numbers else ()
    names = [name for c in numbers if (name := space.names[c]) in possible]
    return {name: entries[name] for name in names}


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
    position = {name: c for c, name in enumerate(space.names)}
    X = space.fill.repeat(len(entries), 1)
    told: list[list[int]] = []  # the columns that entries have
    usable = torch.ones(len(entries), dtype=torch.bool)
    for i, entry in enumerate(entries):
        columns = {
            position[name]: value for name, value in entry.items() if name in position
        }
        told.append(list(columns))
        try:
            numbers = [space.columns[c].encode(value) for c, value in columns.items()]
        except ValueError:
            usable[i] = False
        else:
            X[i, told[i]] = X.new_tensor(numbers)

    @cache
    def others() -> Tensor:
        return torch.cat([space.sample(2_000, seed=0), space.starts(seed=0)])

    for i, active in enumerate(space.tree.active_mask(X).tolist()):
        lacks = any(on and c not in told[i] for c, on in enumerate(active))
        if lacks and usable[i] and not whole[i]:
            seed = seeds[i]
            rows = X[:0]
            if seed is not None and told[i]:
                rows = _completions(space, X[i], told[i], others())
            usable[i] = len(rows) > 0
            if seed is not None and len(rows):
                X[i] = rows[seed % len(rows)]
    good = (usable & space.feasible(X)).nonzero().flatten()
    configs: list[dict[str, Any] | None] = [None] * len(entries)
    decoded = space.decode(space.impute(X[good]))
    for i, config in zip(good.tolist(), decoded, strict=True):
        constants = config.keys() & entries[i].keys() - position.keys()
        if all(takes(Constant("", config[k]), entries[i][k]) for k in constants):
            configs[i] = config
    return configs


def _completions(
    space: SearchSpace,
    x: Tensor,
    columns: list[int],
    others: Tensor,
) -> Tensor:
    """Feasible points that have, and have active, the entries of ``x`` in some columns.

    Those of them that no path has active together with the others do not matter.

    Args:
        space: The space.
        x: The point.
        columns: Columns of it.
        others: Points from which the rest is taken.
    """
    entries = {c: x[c].item() for c in columns}
    possible = space.possible_with(entries)
    columns = [c for c in columns if space.names[c] in possible]
    X = others.clone()
    X[:, columns] = x[columns]
    active = space.tree.active_mask(X, strict=False)[:, columns].all(-1)
    return X[active & space.feasible(X)]


def trial_values(
    study: optuna.Study, trials: Sequence[FrozenTrial]
) -> tuple[dict[str, Any], list[Any]]:
    """Objectives and constraints of a study, and the values of its trials.

    Returns:
        ``objectives``, and ``constraints`` if there are any, for `Study`; and of each
        trial the value for `Study.tell`, None for a failure.
    """
    directions = [direction.name.lower() for direction in study.directions]
    sign = -1.0 if directions[0] == "maximize" else 1.0
    done = [t.values[0] for t in trials if t.state == TrialState.COMPLETE]
    best = min((sign * value for value in done), default=math.nan)
    limited = sorted({key for t in trials for key in t.constraints})
    satisfied = {key: _satisfied(key, trials) for key in limited}
    names = [f"value_{k}" for k in range(len(directions))]
    arguments: dict[str, Any] = {"objectives": directions[0]}
    if len(directions) > 1 or limited:
        arguments["objectives"] = dict(zip(names, directions, strict=True))
    if limited:
        names += [f"constraint_{k}" for k in range(len(limited))]
        arguments["constraints"] = [f"{name} <= 0" for name in names[len(directions) :]]

    def value(trial: FrozenTrial) -> Any:
        values = list(trial.values or ())
        if trial.state == TrialState.PRUNED and trial.last_step is not None:
            last = trial.intermediate_values[trial.last_step]
            # an intermediate value below all final ones cannot be compared with them
            values = [last] if sign * last > best else []
        elif trial.state != TrialState.COMPLETE:
            return None
        constraints = satisfied | trial.constraints
        numbers = [*values, *(constraints[key] for key in limited)]
        if not values or not all(map(math.isfinite, numbers)):
            return None
        return numbers[0] if len(names) == 1 else dict(zip(names, numbers, strict=True))

    return arguments, [value(trial) for trial in trials]


def _satisfied(key: str, trials: Sequence[FrozenTrial]) -> float:
    """The value of a constraint in a trial that does not set it.

    To Optuna it holds there: a negative number as large as the others are.
    """
    values = [t.constraints[key] for t in trials if key in t.constraints]
    sizes = [abs(value) for value in values if math.isfinite(value)]
    return -(statistics.median(sizes) if sizes else 0.0) or -1.0
