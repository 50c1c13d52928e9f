"""`TrialParameter`: one of Optuna's parameters as one column of a space."""

from __future__ import annotations

__all__ = ["TrialParameter", "Values", "with_one_nan"]

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
            room = 0.0 if log or ours.log else self._width
            for end in (ours.low, ours.high):
                if abs(value - end) <= _ROUNDING * max(abs(end), room):
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
