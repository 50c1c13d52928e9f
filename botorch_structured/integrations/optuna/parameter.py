"""`Parameter`: one of Optuna's parameters as one column of a space."""

from __future__ import annotations

__all__ = ["Parameter", "Values", "with_one_nan"]

import math
import sys
from decimal import Decimal
from numbers import Real
from typing import Any

import torch
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from botorch_structured.spaces.columns import (
    CategoricalColumn,
    Column,
    FloatColumn,
    IntegerColumn,
)

# Ends of ranges that differ by no more than this share, of the number or, unless it is
# logarithmic, the range, are the same but for rounding.
_ROUNDING = 1e-12

Values = dict[str, tuple[BaseDistribution | None, Any]]
"""``{name: (distribution, value)}``; the distribution is None where it is not known."""


def with_one_nan(distribution: BaseDistribution) -> BaseDistribution:
    """A distribution that is equal to those that have another NaN among choices."""
    if isinstance(distribution, CategoricalDistribution):
        choices = [math.nan if c != c else c for c in distribution.choices]
        if math.nan in choices:  # the very object
            return CategoricalDistribution(choices)
    return distribution


class Parameter:
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
        if self.is_integer and step == 1:
            step = None
        self.step: float | None = step
        self._choices: dict[int, Any] = {}  # by their numbers in storages
        self._labels: dict[int, Any] = {}
        if isinstance(distribution, CategoricalDistribution):
            for choice in distribution.choices:
                number = int(distribution.to_internal_repr(choice))
                self._choices.setdefault(number, choice)
            labels = _labels(tuple(self._choices.values()))
            self._labels = dict(zip(self._choices, labels, strict=True))

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
        return 1 + round((self._high - self._low) / (self.step or 1))

    @property
    def ends(self) -> tuple[float, float]:
        """The first and the last number of a range."""
        return self.number(self._low), self.number(self._high)

    @property
    def _low(self) -> Any:
        return self.distribution.low

    @property
    def _high(self) -> Any:
        return self.distribution.high

    def column(self, name: str) -> Column:
        """A column for it, under another name."""
        if self.is_choice:
            return CategoricalColumn(name, tuple(self._labels.values()))
        if self.step is not None:
            return IntegerColumn(name, 0, round((self._high - self._low) / self.step))
        kind: Any = IntegerColumn if self.is_integer else FloatColumn
        return kind(name, self._low, self._high, log=self.distribution.log)

    def entry(self, value: Any) -> Any:
        """What configurations of the space have for a value of the trial.

        For one between two steps something that the column refuses.
        """
        if self.is_choice:
            return self._labels[int(self.distribution.to_internal_repr(value))]
        return value if self.step is None else self._steps(value)

    def value(self, entry: Any) -> Any:
        """The value of the trial for what configurations of the space have."""
        if self.is_choice:
            place = list(self._labels.values()).index(entry)
            return list(self._choices.values())[place]
        if self.step is None:
            return int(entry) if self.is_integer else float(entry)
        # as it is written: 3 steps of 0.1 are 0.3, and digits of integers are exact
        low, step = Decimal(str(self._low)), Decimal(str(self.step))
        value = min(low + int(entry) * step, Decimal(str(self._high)))
        return int(value) if self.is_integer else float(value)

    def number(self, value: Any) -> float:
        """Where a value of the trial is on the axis of the column."""
        if self.is_choice:
            number = int(self.distribution.to_internal_repr(value))
            return float(list(self._choices).index(number))
        if self.step is not None:
            return float(self._steps(value))
        log = self.distribution.log and not self.is_integer
        return math.log10(value) if log else float(value)

    def value_at(self, number: float) -> Any:
        """The value of the trial at a place on the axis of the column."""
        return self.value(self.column(self.name).decode(number))

    def spans(self, value: Any) -> bool:
        """Whether a value is a choice, or in range, also between two steps."""
        if self.is_choice:
            try:
                self.distribution.to_internal_repr(value)
            except ValueError:
                return False
            return True
        return isinstance(value, Real) and self._low <= value <= self._high

    def contains(self, value: Any) -> bool:
        """Whether it is a value; those of enqueued trials need not be."""
        if not self.spans(value):
            return False
        return self.step is None or isinstance(self._steps(value), int)

    def takes(self, value: Any, log: bool = False) -> bool:
        """Whether it is a value, but for rounding at the ends of a range of floats.

        Args:
            value: The value.
            log: Whether it is one of a range on a logarithmic scale.
        """
        if isinstance(self.distribution, FloatDistribution) and isinstance(value, Real):
            ends = (self._low, self._high)
            room = 0.0 if log or self.distribution.log else ends[1] - ends[0]
            for end in ends:
                if abs(value - end) <= _ROUNDING * max(abs(end), room):
                    return True
        return self.contains(value)

    def _steps(self, value: Any) -> float:
        """How many steps lead to a number: an integer, unless it is between two."""
        steps = (value - self._low) / self.step
        whole = round(steps)
        rounding = 8 * sys.float_info.epsilon * max(abs(value), abs(self._low))
        room = max(1e-8, rounding / self.step)  # to Optuna 1e-8, with any rounding
        return whole if abs(steps - whole) < room else steps

    def nearest(self, value: Any) -> Any:
        """The value in range that is next to a number; choices are as they are."""
        if self.is_choice:
            return value
        value = min(max(value, self._low), self._high)
        return self.value(value if self.step is None else round(self._steps(value)))

    def draw(self, seed: int) -> Any:
        """A random value."""
        generator = torch.Generator().manual_seed(seed)
        return self.value_at(self.column(self.name).draw(1, generator).item())

    def united(self, others: list[Parameter]) -> Parameter:
        """One range for all of these numbers, without steps if these differ."""
        group = [self, *others]
        low, high = min(p._low for p in group), max(p._high for p in group)
        log = self.distribution.log
        if self.is_integer:
            return Parameter(self.name, IntDistribution(low, high, log=log))
        return Parameter(self.name, FloatDistribution(low, high, log=log))


def _labels(choices: tuple[Any, ...]) -> tuple[Any, ...]:
    """Distinct names for the choices: they themselves as text, or their positions."""
    names = tuple(map(str, choices))
    plain = len(set(names)) == len(names) and all(name.strip() for name in names)
    return names if plain else tuple(range(len(names)))
