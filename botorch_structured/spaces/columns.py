"""Columns of a search space: how one parameter's values become numbers and back."""

from __future__ import annotations

__all__ = ["CategoricalColumn", "Column", "FloatColumn", "IntegerColumn"]

import math
import sys
from collections.abc import Sequence
from numbers import Real
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

# How far beyond its bounds a number may lie and still count as rounding, relative to
# the range or the bounds themselves, whichever is larger. Fits float32.
_SLACK = 1e-6
_MAX_FLOAT = sys.float_info.max


def native(value: Any) -> Any:
    """``value`` without its NumPy clothes."""
    return value.item() if isinstance(value, np.generic) else value


class Column(Protocol):
    """One parameter as one column of numbers.

    ``bounds`` are those of the numbers; ``fill`` is what the column holds where the
    parameter is inactive (the middle of the bounds, or the legal value next to it);
    ``discrete`` says whether the numbers are whole.
    """

    name: str
    bounds: tuple[float, float]
    fill: float
    discrete: bool

    def encode(self, value: Any) -> float:
        """The number of a value; ValueError if the parameter cannot take it."""

    def decode(self, x: float) -> Any:
        """The value of a number, in its native type and inside the bounds."""

    def draw(self, n: int, generator: torch.Generator | None) -> Tensor:
        """``n`` random numbers, distributed as the parameter is."""

    def expected(self) -> str:
        """The values the parameter takes, in words."""


def is_blank(value: Any) -> bool:
    """Whether tables write ``value`` where there is none: None, NaN, empty text."""
    if isinstance(value, str):
        return not value.strip()
    # pandas' own NA and NaT are told by their names: it is not imported here.
    missing = type(value).__name__ in ("NAType", "NaTType")
    return value is None or missing or (isinstance(value, Real) and value != value)


def _number(column: Column, value: Any) -> float:
    """``value`` as a number, read from text if it is one."""
    value = native(value)
    if isinstance(value, str):
        number = _read(value)
        return _refuse(column, value) if number is None else number
    if isinstance(value, bool) or not isinstance(value, Real):
        return _refuse(column, value)
    if isinstance(value, int) and abs(value) > _MAX_FLOAT:
        return _refuse(column, value)
    return value if isinstance(value, int) else float(value)


def _read(text: str) -> int | float | None:
    """The number that a text is, None if it is none."""
    if "_" in text:  # Python's own notation, no table's
        return None
    for read in (int, float):
        try:
            number = read(text)
        except ValueError:
            continue
        return number if abs(number) <= _MAX_FLOAT else float(text)
    return None


def _written(value: Any) -> Any:
    """What ``value`` is once it was text: its number, or the text itself."""
    if isinstance(value, bool) or not isinstance(value, (str, Real)):
        return str(value)
    if not isinstance(value, str):
        huge = isinstance(value, int) and abs(value) > _MAX_FLOAT
        return value if huge else float(value)
    number = _read(value)
    return value.strip() if number is None else float(number)


def _refuse(column: Column, value: Any) -> NoReturn:
    raise ValueError(f"{column.name!r}: expected {column.expected()}, got {value!r}.")


def slack(bounds: tuple[float, float]) -> float:
    """How far beyond ``bounds`` still counts as rounding."""
    lo, hi = bounds
    return _SLACK * max(hi - lo, abs(lo), abs(hi))


def _is_equal(a: Any, b: Any) -> bool:
    """Whether two values are equal; arrays are to nothing but themselves."""
    if a is b:
        return True
    try:
        return bool(a == b)
    except (TypeError, ValueError, RuntimeError):
        return False


def _is_same(a: Any, b: Any) -> bool:
    """Whether two values are equal and of one type; NaN is itself."""
    both_blank = a != a and b != b if isinstance(a, float) else False
    return type(a) is type(b) and (_is_equal(a, b) or both_blank)


class FloatColumn:
    """A real parameter: the number itself, or its decimal logarithm.

    The logarithm loses the last digits. `decode` returns the shortest decimal whose
    logarithm is the number it is given, and remembers the values met by `encode` for
    which that would not be the very same one.
    """

    discrete = False

    def __init__(
        self, name: str, lower: float, upper: float, log: bool = False
    ) -> None:
        self.name, self.lower, self.upper, self.log = (
            name,
            float(lower),
            float(upper),
            log,
        )
        if not (math.isfinite(lower) and math.isfinite(upper) and lower <= upper):
            raise ValueError(
                f"{name!r}: expected finite bounds in ascending order, got {lower} and "
                f"{upper}."
            )
        if log and lower <= 0:
            raise ValueError(
                f"{name!r}: expected a positive lower bound on a logarithmic scale, "
                f"got {lower}."
            )
        self.bounds = (self._forward(self.lower), self._forward(self.upper))
        self.fill = 0.5 * (self.bounds[0] + self.bounds[1])
        self._originals: dict[float, float] = {}

    def _forward(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def expected(self) -> str:
        return f"a number in [{self.lower}, {self.upper}]"

    def encode(self, value: Any) -> float:
        given, value = value, float(_number(self, value))
        room = 1e-12 * max(abs(self.lower), abs(self.upper))
        if not self.lower - room <= value <= self.upper + room:
            _refuse(self, given)
        if not self.log:
            return min(max(value, self.lower), self.upper)
        x = self._forward(min(max(value, self.lower), self.upper))
        if self.decode(x) != value:
            self._originals[x] = value
        return x

    def decode(self, x: float) -> float:
        x = float(x)
        if not self.log:
            return min(max(x, self.lower), self.upper)
        if x in self._originals:
            return self._originals[x]
        if x <= self.bounds[0]:
            return self.lower
        if x >= self.bounds[1]:
            return self.upper
        value = 10.0**x
        for digits in range(1, 18):
            candidate = float(f"{value:.{digits}g}")
            if self._is_exact(candidate, x):
                return candidate
        below = above = value
        for _ in range(8):  # 10**x is a few units in the last place off
            below, above = math.nextafter(below, 0.0), math.nextafter(above, math.inf)
            for candidate in (below, above):
                if self._is_exact(candidate, x):
                    return candidate
        return min(max(value, self.lower), self.upper)

    def _is_exact(self, value: float, x: float) -> bool:
        return self.lower <= value <= self.upper and math.log10(value) == x

    def draw(self, n: int, generator: torch.Generator | None) -> Tensor:
        lo, hi = self.bounds
        x = lo + (hi - lo) * torch.rand(n, generator=generator, dtype=torch.double)
        if not self.log:
            return x
        # Only numbers that are the logarithm of some value.
        return torch.tensor(
            [self._forward(self.decode(v)) for v in x.tolist()], dtype=torch.double
        )


class IntegerColumn:
    """A whole parameter: the number itself, also where its scale is logarithmic."""

    discrete = True

    def __init__(self, name: str, lower: int, upper: int, log: bool = False) -> None:
        self.name, self.lower, self.upper, self.log = name, int(lower), int(upper), log
        if self.lower > self.upper or max(abs(self.lower), abs(self.upper)) > 1 << 53:
            raise ValueError(
                f"{name!r}: expected bounds in ascending order within 2^53, got "
                f"{lower} and {upper}."
            )
        if log and self.lower <= 0:
            raise ValueError(
                f"{name!r}: expected a positive lower bound on a logarithmic scale, "
                f"got {lower}."
            )
        self.bounds = (float(self.lower), float(self.upper))
        self.fill = float((self.lower + self.upper) // 2)

    def expected(self) -> str:
        return f"an integer in [{self.lower}, {self.upper}]"

    def encode(self, value: Any) -> float:
        number = _number(self, value)
        whole = isinstance(number, int) or number.is_integer()
        if not whole or not self.lower <= number <= self.upper:
            _refuse(self, value)
        return float(number)

    def decode(self, x: float) -> int:
        return min(max(round(float(x)), self.lower), self.upper)

    def draw(self, n: int, generator: torch.Generator | None) -> Tensor:
        u = torch.rand(n, generator=generator, dtype=torch.double)
        lo, hi = self.lower - 0.5, self.upper + 0.5
        if self.log:
            x = lo * (hi / lo) ** u
        else:
            x = lo + (hi - lo) * u
        return x.round().clamp(*self.bounds)


class CategoricalColumn:
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
        self.codes = tuple(float(c) for c in (codes or range(len(self.choices))))
        ascending = all(a < b for a, b in zip(self.codes, self.codes[1:], strict=False))
        if not self.choices or len(self.codes) != len(self.choices) or not ascending:
            raise ValueError(
                f"{name!r}: expected at least one choice and as many ascending codes, "
                f"got {list(self.choices)} and {list(self.codes)}."
            )
        for i, choice in enumerate(self.choices):
            if any(_is_same(choice, other) for other in self.choices[:i]):
                raise ValueError(
                    f"{name!r}: expected distinct choices, got {choice!r} twice in "
                    f"{list(self.choices)}."
                )
        self.weights = None if weights is None else tuple(float(w) for w in weights)
        self.bounds = (self.codes[0], self.codes[-1])
        self.fill = self.codes[(len(self.codes) - 1) // 2]

    def expected(self) -> str:
        return f"one of {list(self.choices)}"

    def position(self, value: Any) -> int:
        """The position of a choice; ValueError if it is none.

        ``True``, ``1`` and ``1.0`` are told apart where all of them are choices. What
        is none of them may be one that a table has written: as text, or a number that
        was text, or nothing at all for None.
        """
        value = native(value)
        equal = [i for i, c in enumerate(self.choices) if _is_equal(c, value)]
        same = [i for i in equal if type(self.choices[i]) is type(value)]
        if equal:
            return (same or equal)[0]
        if is_blank(value):
            alike = [i for i, c in enumerate(self.choices) if is_blank(c)]
        else:
            text = _written(value)
            alike = [i for i, c in enumerate(self.choices) if _written(c) == text]
        if len(alike) != 1:
            _refuse(self, value)
        return alike[0]

    def encode(self, value: Any) -> float:
        return self.codes[self.position(value)]

    def decode(self, x: float) -> Any:
        nearest = min(range(len(self.codes)), key=lambda i: abs(self.codes[i] - x))
        return self.choices[nearest]

    def draw(self, n: int, generator: torch.Generator | None) -> Tensor:
        weights = torch.tensor(
            self.weights or [1.0] * len(self.codes), dtype=torch.double
        )
        code = torch.multinomial(
            weights, max(n, 1), replacement=True, generator=generator
        )
        return torch.tensor(self.codes, dtype=torch.double)[code[:n]]
