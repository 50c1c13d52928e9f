"""Columns of a search space: how one parameter's values become numbers and back.

A `Column` is one parameter as one column of numbers. Its ``bounds`` are those of the
numbers; ``fill`` is their middle, which it holds where the parameter is inactive (or
the legal value next to that); ``discrete`` says whether the numbers are whole,
``ordered`` whether neighbouring ones are alike; ``default`` is the number of the
declared default, None if there is none. All kinds have these methods:

====================  ==================================================================
``encode(value)``     the number of a value; ValueError if the parameter cannot take it
``decode(x)``         the value of a number, in its native type and inside the bounds
``within(lo, hi)``    the least and largest number from ``lo`` to ``hi``, or None
``middle(span)``      the middle of what `within` gave, on the scale of the parameter
``draw(n, ...)``      ``n`` numbers within a ``span`` (default: the bounds) of a kind:
                      ``"random"`` ones, distributed as the parameter is; ``"spread"``:
                      one of them in each n-th of the distribution, in random order;
                      ``"middle"``; ``"default"``: the default, or else the middle
``expected()``        the values that the parameter takes, in words
``takes_blank``       whether None, NaN or empty text is one of them
====================  ==================================================================

A `Constant` is a parameter without a column.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces.arguments import check_seed
from botorch_structured.spaces.conditions import ALWAYS, Condition

#: The share of a distribution that is left out at each of its ends.
TAIL = 1e-3
#: How far from a number another one may lie and still count as rounding, relative to
#: the numbers. Fits float32.
SLACK = 1e-6

Span = tuple[float, float]
# Where random numbers come from; None: PyTorch's own generator.
Source = torch.Generator | None


def random_source(seed: int | None) -> Source:
    """Random numbers of a seed, which is checked; PyTorch's own for None."""
    seed = check_seed(seed)
    return None if seed is None else torch.Generator().manual_seed(seed)


def native(value: Any) -> Any:
    """``value`` as a Python number, if it is one of NumPy's."""
    return value.item() if isinstance(value, np.generic) else value


def described(column: Column) -> str:
    """The values of a column, and their scale or order, in words."""
    words = column.expected()
    if isinstance(column, QuantileColumn):
        return f"{words}, by quantiles of {column.distribution}"
    if column.log:
        return f"{words}, on a logarithmic scale"
    if isinstance(column, CategoricalColumn) and column.ordered:
        return f"{words}, in this order"
    return words


def is_blank(value: Any) -> bool:
    """Whether tables write ``value`` where there is none: None, NaN, empty text."""
    if isinstance(value, str):
        return not value.strip()
    # The missing values of pandas are recognised by name, so as not to import it.
    if value is None or type(value).__name__ in (
        "NAType",
        "NaTType",
    ):
        return True
    return isinstance(value, Real) and value != value


def _number(value: Any) -> float | None:
    """The number that a value is, or that is read where a table has its text."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    # "1_000" is a number in Python, but not in tables
    if is_number or (isinstance(value, str) and "_" not in value):
        with suppress(ValueError, OverflowError):
            return float(value)
    return None


def _refuse(column: Column, value: Any) -> NoReturn:
    raise ValueError(f"{column.name!r}: expected {column.expected()}, got {value!r}.")


def takes(parameter: Column, value: Any) -> bool:
    """Whether a parameter can have a value."""
    try:
        parameter.encode(value)
    except ValueError:
        return False
    return True


def with_slack(bounds: Span, whole: bool = False) -> Span:
    """The bounds, and numbers beyond them that still count as rounding.

    Args:
        bounds: The bounds.
        whole: Whether the column holds integers. Then what counts at an end is the size
            of that end: from 1 to 1e12, 0 is not rounding.
    """
    lo, hi = bounds
    largest = SLACK * max(hi - lo, abs(lo), abs(hi))
    rooms = [largest, largest]
    if whole:
        rooms = [min(largest, max(0.25, SLACK * abs(end))) for end in bounds]
    return lo - rooms[0], hi + rooms[1]


def is_equal(a: Any, b: Any) -> bool:
    """Whether two values are equal, or both NaN; arrays only to themselves."""
    if a is b:
        return True
    try:
        return bool(a == b) or bool(a != a and b != b)
    except (TypeError, ValueError, RuntimeError):
        return False


def is_same(a: Any, b: Any) -> bool:
    """Whether two values are equal and of one type."""
    return type(a) is type(b) and is_equal(a, b)


class _Column:
    """A parameter with a column."""

    default: float | None = None
    log = False
    takes_blank = False
    bounds: Span
    ordered: bool

    def draw(
        self,
        n: int,
        generator: Source,
        span: Span | None = None,
        kind: str = "random",
    ) -> Tensor:
        """``n`` numbers within ``span``; see the module docstring."""
        lo, hi = span or self.bounds
        if kind in ("middle", "default"):
            value = self.middle((lo, hi))
            default = self.default
            if kind == "default" and default is not None and lo <= default <= hi:
                value = default
            return torch.full((n,), value, dtype=torch.double)
        u = torch.rand(n, generator=generator, dtype=torch.double)
        if kind == "spread":
            order = torch.randperm(n, generator=generator)
            u = (order + u) / max(n, 1)
        if kind == "inner" and self.ordered:
            u = 0.25 + 0.5 * u
        return self._at(u, (lo, hi))

    def middle(self, span: Span) -> float:
        """The middle of ``span``."""
        raise NotImplementedError

    def _at(self, u: Tensor, span: Span) -> Tensor:
        """Numbers by the share of the distribution within ``span`` below them."""
        raise NotImplementedError


class _Range(_Column):
    """A column between two bounds."""

    discrete = False
    ordered = True

    def __init__(
        self,
        name: str,
        lower: float,
        upper: float,
        log: bool,
        largest: float,
    ) -> None:
        if not -largest <= lower <= upper <= largest:
            raise ValueError(
                f"{name!r}: expected bounds in ascending order, no number above "
                f"{largest} in size, got {lower} and {upper}."
            )
        if log and lower <= 0:
            raise ValueError(
                f"{name!r}: expected a positive lower bound on a logarithmic scale, "
                f"got {lower}."
            )
        self.name = name
        self.lower = lower
        self.upper = upper
        self.log = log

    def within(self, lo: float, hi: float) -> Span | None:
        lo = max(lo, self.bounds[0])
        hi = min(hi, self.bounds[1])
        if self.discrete:
            lo = float(math.ceil(lo))
            hi = float(math.floor(hi))
        return (lo, hi) if lo <= hi else None


class FloatColumn(_Range):
    """A real parameter: the number itself, or its decimal logarithm.

    Logarithms have 14 decimal places, so that the value of a number has the very same
    number again. It is one of few digits if there is one: a value of up to 13 digits
    comes back as it was, others within 1e-13 of it.
    """

    _digits = 13

    def __init__(
        self,
        name: str,
        lower: float,
        upper: float,
        log: bool = False,
    ) -> None:
        # models square differences
        largest = sys.float_info.max if log else 1e150
        super().__init__(name, float(lower), float(upper), log, largest)
        self._places = 14 if log else None
        self.bounds = (
            self.number(self.lower),
            self.number(self.upper),
        )
        self.fill = self.middle(self.bounds)

    def number(self, value: float) -> float:
        """The number of a value within the bounds."""
        return round(math.log10(value), self._places) if self.log else value

    def _backward(self, x: float) -> float:
        return 10.0**x

    def expected(self) -> str:
        return f"a number in [{self.lower}, {self.upper}]"

    def encode(self, value: Any) -> float:
        number = _number(native(value))
        if number is None or (self.log and number <= 0.0):
            _refuse(self, value)
        x = self.number(number)
        lo, hi = self.bounds
        # numbers that were written with ten digits may lie beyond the bounds
        room = 1e-9 * (hi - lo) + 1e-15 * max(abs(lo), abs(hi))
        if not lo - room <= x <= hi + room:
            _refuse(self, value)
        return min(max(x, lo), hi)

    def decode(self, x: float) -> float:
        if x <= self.bounds[0]:
            return self.lower
        if x >= self.bounds[1]:
            return self.upper
        if self._places is None:
            return x
        x = round(x, self._places)
        value = min(max(self._backward(x), self.lower), self.upper)
        short = float(f"{value:.{self._digits}g}")
        return short if self.number(short) == x else value

    def beside_cuts(self, x: float, intervals: Sequence[Span]) -> float:
        """A number, or one on the same side of the cuts that is told from them.

        A number next to a cut may be taken for the cut itself, where other parameters
        are active: by ConfigSpace, which rounds, and on a logarithmic scale, as
        logarithms are denser than values. A number of few decimal places is meant as it
        is, and may be the cut.

        Args:
            x: The number.
            intervals: The closed intervals between the cuts.
        """
        scale = max(
            self.upper - self.lower,
            abs(self.lower),
            abs(self.upper),
            1.0,
        )
        places = self._places or 12 - math.ceil(math.log10(scale))
        if round(x, places) == x:
            return x
        room = 1e-8 if self._places else 1e-12 * scale
        for lo, hi in intervals:
            if lo <= x <= hi and hi - lo > 2 * room:
                return min(max(x, lo + room), hi - room)
        return x

    def middle(self, span: Span) -> float:
        return 0.5 * (span[0] + span[1])

    def _at(self, u: Tensor, span: Span) -> Tensor:
        lo, hi = span
        x = lo + (hi - lo) * u
        if self._places is not None:
            x = x.round(decimals=self._places)
        return x.clamp(lo, hi)


class QuantileColumn(FloatColumn):
    """A real parameter with a distribution: the share of it that is below the number.

    So random draws have the distribution, and the scale is logarithmic where that of
    the distribution is. The share has 12 decimal places.

    Args:
        name: The name of the parameter.
        frozen: The distribution, of ``scipy.stats``.
    """

    _digits = 11

    def __init__(self, name: str, frozen: Any) -> None:
        self._frozen = frozen
        values = map(repr, frozen.args)
        named = (f"{k}={v}" for k, v in frozen.kwds.items())
        self.distribution = f"{frozen.dist.name}({', '.join([*values, *named])})"
        super().__init__(name, *frozen.ppf([TAIL, 1.0 - TAIL]))
        self._places = 12

    def number(self, value: float) -> float:
        return round(float(self._frozen.cdf(value)), 12)

    def _backward(self, x: float) -> float:
        return float(self._frozen.ppf(x))


class IntegerColumn(_Range):
    """A whole parameter: the number itself, also where its scale is logarithmic."""

    discrete = True
    lower: int
    upper: int

    def __init__(
        self,
        name: str,
        lower: int,
        upper: int,
        log: bool = False,
    ) -> None:
        super().__init__(name, int(lower), int(upper), log, 2.0**53)
        self.bounds = (float(self.lower), float(self.upper))
        self.fill = float((self.lower + self.upper) // 2)

    def expected(self) -> str:
        return f"an integer in [{self.lower}, {self.upper}]"

    def encode(self, value: Any) -> float:
        number = _number(native(value))
        if number is not None and number.is_integer():
            if self.lower <= number <= self.upper:
                return number
        _refuse(self, value)

    def decode(self, x: float) -> int:
        return min(max(round(float(x)), self.lower), self.upper)

    def middle(self, span: Span) -> float:
        lo, hi = span
        if self.log:
            return float(round(math.sqrt(lo * hi)))
        return float((lo + hi) // 2)

    def _at(self, u: Tensor, span: Span) -> Tensor:
        lo = span[0] - 0.5
        hi = span[1] + 0.5
        x = lo * (hi / lo) ** u if self.log else lo + (hi - lo) * u
        return x.round().clamp(*span)


class CategoricalColumn(_Column):
    """A choice: the number that stands for it, by default its position.

    Args:
        name: The name of the parameter.
        choices: Its values.
        weights: How often random draws take each of them. Default: equally often.
        codes: The numbers that stand for them, ascending. Default: 0, 1, ...
        ordered: Whether the order of the choices means something.
    """

    discrete = True

    def __init__(
        self,
        name: str,
        choices: Sequence[Any],
        weights: Sequence[float] | None = None,
        codes: Sequence[float] | None = None,
        ordered: bool = False,
    ) -> None:
        self.name = name
        self.choices = tuple(native(c) for c in choices)
        self.ordered = ordered
        codes = codes or range(len(choices))
        self.codes = tuple(map(float, codes))
        ascending = tuple(sorted(set(self.codes)))
        if not ascending or self.codes != ascending or len(codes) != len(choices):
            raise ValueError(
                f"{name!r}: expected at least one choice and as many ascending codes, "
                f"got {list(self.choices)} and {list(self.codes)}."
            )
        by_text: dict[str, list[Any]] = {}
        for choice in self.choices:
            others = by_text.setdefault(repr(choice), [])
            if any(is_same(choice, other) for other in others):
                raise ValueError(
                    f"{name!r}: expected distinct choices, got {choice!r} twice in "
                    f"{list(self.choices)}."
                )
            others.append(choice)
        equal = [1.0] * len(self.choices)
        self.weights = tuple(map(float, equal if weights is None else weights))
        self.bounds = (self.codes[0], self.codes[-1])
        self.fill = self.middle(self.bounds)
        self.takes_blank = any(map(is_blank, self.choices))
        numbers = [abs(c) for c in self.choices if isinstance(c, float)]
        self._rounding = 1e-12 * max(numbers, default=0.0)

    def expected(self) -> str:
        if len(self.choices) == 1:
            return repr(self.choices[0])
        return f"one of {list(self.choices)}"

    def position(self, value: Any) -> int:
        """The position of a choice; ValueError if it is none.

        ``True``, ``1`` and ``1.0`` are told apart where all of them are choices. What
        is none of them may be one that a table has written: as text, or a number that
        was text, TRUE or 1 for True, or nothing at all for None. Or a number but for
        rounding.
        """
        value = native(value)
        for i, choice in enumerate(self.choices):
            if is_same(choice, value):
                return i
        for test in (is_equal, self._is_alike, _is_truth):
            places = [i for i, c in enumerate(self.choices) if test(c, value)]
            if len(places) == 1:
                return places[0]
        _refuse(self, value)

    def _is_alike(self, choice: Any, value: Any) -> bool:
        """Whether a table that was given a choice may have a value in its place."""
        if is_blank(value):
            return is_blank(choice)
        one = _number(choice)
        other = _number(value)
        if one is not None and other is not None:
            return abs(one - other) <= self._rounding  # 0.3 for 0.1 + 0.2
        text = str(choice).strip()
        written = str(value).strip()
        if isinstance(choice, bool):  # Excel and R write TRUE
            return text.lower() == written.lower()
        return text == written

    def encode(self, value: Any) -> float:
        return self.codes[self.position(value)]

    def decode(self, x: float) -> Any:
        nearest = min(
            range(len(self.codes)),
            key=lambda i: abs(self.codes[i] - x),
        )
        return self.choices[nearest]

    def within(self, lo: float, hi: float) -> Span | None:
        codes = [code for code in self.codes if lo <= code <= hi]
        return (codes[0], codes[-1]) if codes else None

    def middle(self, span: Span) -> float:
        lo, hi = span
        codes = [code for code in self.codes if lo <= code <= hi]
        return codes[(len(codes) - 1) // 2]

    def _at(self, u: Tensor, span: Span) -> Tensor:
        codes = torch.tensor(self.codes, dtype=torch.double)
        weights = torch.tensor(self.weights, dtype=torch.double)
        inside = (codes >= span[0]) & (codes <= span[1])
        weights = weights * inside if weights[inside].any() else inside.double()
        shares = (weights / weights.sum()).cumsum(0)
        last = int(weights.nonzero()[-1])  # its share is 1, but for rounding
        place = torch.bucketize(u, shares[:last], right=True)
        return codes[place]


Column = FloatColumn | IntegerColumn | CategoricalColumn


class Constant(CategoricalColumn):
    """A parameter with one value; it takes part in configurations, not in points.

    Args:
        name: Its name.
        value: Its value.
        condition: Where it is active. Default: everywhere.
    """

    def __init__(
        self,
        name: str,
        value: Any,
        condition: Condition = ALWAYS,
    ) -> None:
        super().__init__(name, [value])
        self.condition = condition

    @property
    def value(self) -> Any:
        """Its value."""
        return self.choices[0]


def positions(
    parameters: Mapping[str, Column],
) -> dict[str, int]:
    """The columns of parameters, by name; constants have none."""
    names = [name for name, p in parameters.items() if not isinstance(p, Constant)]
    return {name: i for i, name in enumerate(names)}


def is_same_parameter(a: Column, b: Column) -> bool:
    """Whether two columns, or constants, were made with the same arguments."""

    def parts(p: Column) -> list[Any]:
        values = {k: v for k, v in vars(p).items() if k not in ("_frozen", "choices")}
        return [
            type(p),
            *values.items(),
            *getattr(p, "choices", ()),
        ]

    one = parts(a)
    other = parts(b)
    return len(one) == len(other) and all(map(is_same, one, other))


def _is_truth(choice: Any, value: Any) -> bool:
    """Whether a choice is True or False and a value the text of the number of it."""
    return isinstance(choice, bool) and _number(value) == choice
