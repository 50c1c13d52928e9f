"""Trials of Optuna: parameters as columns, configurations, and values.

`TrialParameter` is one of Optuna's parameters as one column of a space, `Asked` those
that one trial asked for, `DeclaredSpace` a space that was declared, and `TrialValues`
what trials were worth, in the words of `botorch_structured.Study`.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property
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
from optuna.study import StudyDirection
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

    def __init__(self, name: str, distribution: BaseDistribution) -> None:
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
            return IntegerColumn(name, 0, round(self._width / self.step))
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
        # as it is written: 3 steps of 0.1 are 0.3, and digits of integers are exact
        ours = self.distribution
        low, high, step = (Decimal(str(x)) for x in (ours.low, ours.high, self.step))
        value = min(low + int(entry) * step, high)
        return int(value) if self.is_integer else float(value)

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

    def takes(self, value: Any, log: bool = False) -> bool:
        """Whether it is a value, but for rounding at the ends of a range of floats.

        Args:
            value: The value.
            log: Whether it is one of a range on a logarithmic scale.
        """
        ours = self.distribution
        is_float = isinstance(self.distribution, FloatDistribution)
        if is_float and isinstance(value, Real):
            # apart from rounding of the number, or the range unless it is logarithmic
            room = 0.0 if log or ours.log else self._width
            for end in (ours.low, ours.high):
                if abs(value - end) <= 1e-12 * max(abs(end), room):
                    return True
        return self.contains(value)

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

    def united(self, others: list[TrialParameter]) -> TrialParameter:
        """One range for all of these numbers, without steps if these differ."""
        group = [p.distribution for p in (self, *others)]
        low, high = min(d.low for d in group), max(d.high for d in group)
        kind = IntDistribution if self.is_integer else FloatDistribution
        return TrialParameter(self.name, kind(low, high, log=self.distribution.log))


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

    @cached_property
    def numbers(self) -> dict[str, float]:
        """The place of each value on the axis of its column."""
        return {
            name: TrialParameter(name, distribution).number(value)
            for name, (distribution, value) in self.values.items()
            if distribution is not None
        }


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
        self._names = space.named().keys()

    def entries(self, values: Values) -> dict[str, Any]:
        """See `LearntSpace.entries`; other parameters are left out."""
        return {k: value for k, (_, value) in values.items() if k in self._names}

    def fixed_entries(self, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """See `LearntSpace.fixed_entries`; others than the space has are left out."""
        names = [self.space.names[c] for c in _encoded(self.space, fixed)]
        return {name: fixed[name] for name in names}

    def values(self, config: Mapping[str, Any]) -> Values:
        """See `LearntSpace.values`.

        Where a distribution does not take its value it is None.
        """
        values: Values = {}
        for name, value in config.items():
            distribution = self._distributions.get(name)
            if distribution is not None:
                if not TrialParameter(name, distribution).contains(value):
                    distribution = None
            values[name] = distribution, value
        return values

    def has_seen(self, config: Mapping[str, Any]) -> bool:
        """See `LearntSpace.has_seen`: what is declared needs no trial."""
        return True


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
    name = parameter.name
    lacking = []
    expected = []
    others = {k: value for k, (_, value) in asked.items() if k != name}
    fixed = _encoded(space, others)
    for p in space.named().get(name, ()):
        missing = _not_taken(p, parameter)
        if missing and space.can_have(p, fixed):
            lacking += missing
            expected.append(p.expected())
    if lacking:
        raise ValueError(
            f"{name!r}: expected an objective that takes all values of the "
            f"declared space, {' or '.join(expected)}, got "
            f"{parameter.distribution}, which does not take "
            f"{' and '.join(lacking)}."
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
    if isinstance(column, FloatColumn):
        if parameter.is_choice or parameter.is_whole:
            return ["what is between its values (declare a list of them)"]
        values = (column.lower, column.upper)
    elif isinstance(column, IntegerColumn):
        if isinstance(parameter.distribution, FloatDistribution) and not parameter.step:
            raise ValueError(
                f"{parameter.name!r}: expected an objective that takes integers, as "
                f"declared, got {parameter.distribution}. Declare "
                f"({float(column.lower)}, {float(column.upper)}) for real numbers, or "
                "a list of values."
            )
        values = range(column.lower, column.upper + 1)
        if not parameter.is_choice:  # steps are alike everywhere
            values = sorted({values[0], values[1 % len(values)], values[-1]})
    is_log = getattr(column, "log", False)
    lacking = (v for v in values if not parameter.takes(v, is_log))
    return [brief(v) for v in islice(lacking, 2)]


def possible_together(space: SearchSpace, entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries whose columns can be active together with the others."""
    numbers = _encoded(space, entries)
    columns = [c for c in numbers if space.tree.can_be_active(c, numbers)]
    return {(name := space.names[c]): entries[name] for c in columns}


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
    numbers = []
    told: list[list[int]] = []  # the columns that entries have
    usable = []
    for entry in entries:
        x = space.fill.tolist()
        columns = {position[name]: name for name in entry if name in position}
        try:
            for c, name in columns.items():
                x[c] = space.columns[c].encode(entry[name])
            usable.append(True)
        except ValueError:
            usable.append(False)
        numbers.append(x)
        told.append(list(columns))
    X = torch.tensor(numbers, dtype=torch.double).reshape(-1, space.dim)

    @cache
    def others(rare: bool) -> Tensor:
        return space.starts(seed=0) if rare else _drawn(space, 2_000, 0)

    for i, active in enumerate(space.tree.active_mask(X).tolist()):
        lacks = any(on and c not in told[i] for c, on in enumerate(active))
        if not lacks or not usable[i] or whole[i]:
            continue
        seed = seeds[i]
        completed = None
        if seed is not None and told[i]:
            completed = _completed(space, X[i], told[i], seed, others)
        usable[i] = completed is not None
        X[i] = X[i] if completed is None else completed
    good = space.feasible(X) & torch.tensor(usable, dtype=torch.bool)
    rows = good.nonzero().flatten()
    configs: list[dict[str, Any] | None] = [None] * len(entries)
    decoded = space.decode(space.impute(X[rows]))
    for i, config in zip(rows.tolist(), decoded, strict=True):
        entry = entries[i]
        with suppress(ValueError):  # another value of a constant
            for name in config.keys() & entry.keys() - position.keys():
                Constant("", config[name]).encode(entry[name])
            # as the trial has it, not as it is after a way through tensors
            configs[i] = {
                name: entry.get(name, value) for name, value in config.items()
            }
    return configs


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
        The point, feasible; None if there is none.
    """
    tree = space.tree
    entries = {c: x[c].item() for c in columns}
    columns = [c for c in columns if tree.can_be_active(c, entries)]
    for draw in (
        lambda: _drawn(space, 1, seed),
        lambda: others(False),
        lambda: others(True),
    ):
        X = draw().clone()
        X[:, columns] = x[columns]
        active = tree.active_mask(X, strict=False)[:, columns].all(-1)
        rows = (active & space.feasible(X)).nonzero().flatten()
        if len(rows):
            return X[rows[seed % len(rows)]]
    return None


def _drawn(space: SearchSpace, n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([c.draw(n, generator) for c in space.columns], -1)


class TrialValues:
    """Objectives and constraints of a study, and the values of its trials.

    Args:
        study: The study.
        trials: Its trials.

    Attributes:
        arguments: ``objectives``, and ``constraints`` if there are any, for `Study`.
    """

    def __init__(self, study: optuna.Study, trials: Sequence[FrozenTrial]) -> None:
        directions = [direction.name.lower() for direction in study.directions]
        self._names = [f"value_{k}" for k in range(len(directions))]
        limited = sorted({key for t in trials for key in t.constraints})
        self._satisfied = {key: _satisfied(key, trials) for key in limited}
        self.arguments: dict[str, Any] = {"objectives": directions[0]}
        if len(directions) > 1 or limited:
            names = dict(zip(self._names, directions, strict=True))
            self.arguments["objectives"] = names
        if limited:
            limits = [f"constraint_{k} <= 0" for k in range(len(limited))]
            self.arguments["constraints"] = limits
        maximized = study.directions[0] == StudyDirection.MAXIMIZE
        self._sign = -1.0 if maximized else 1.0
        done = [t.values[0] for t in trials if t.state == TrialState.COMPLETE]
        self._best = min((self._sign * value for value in done), default=math.nan)

    def value(self, trial: FrozenTrial) -> Any:
        """The value of an ended trial for `Study.tell`; None for a failure."""
        values = list(trial.values or ())
        if trial.state == TrialState.PRUNED and trial.last_step is not None:
            last = trial.intermediate_values[trial.last_step]
            # an intermediate value below all final ones cannot be compared with them
            values = [last] if self._sign * last > self._best else []
        elif trial.state != TrialState.COMPLETE:
            return None
        constraints = {**self._satisfied, **trial.constraints}
        if not values or not all(map(math.isfinite, [*values, *constraints.values()])):
            return None
        if len(values) == 1 and not constraints:
            return values[0]
        named = dict(zip(self._names, values, strict=True))
        for k, key in enumerate(self._satisfied):
            named[f"constraint_{k}"] = constraints[key]
        return named


def _satisfied(key: str, trials: Sequence[FrozenTrial]) -> float:
    """The value of a constraint in a trial that does not set it.

    To Optuna it holds there: a negative number as large as the others are.
    """
    values = [t.constraints[key] for t in trials if key in t.constraints]
    sizes = [abs(value) for value in values if math.isfinite(value)]
    return -(statistics.median(sizes) if sizes else 0.0) or -1.0
