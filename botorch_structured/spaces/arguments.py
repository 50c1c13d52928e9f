"""Checks of numbers that spaces and optimisers are given."""

from __future__ import annotations

import importlib
import inspect
import math
import operator
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

# The seeds of ``torch.Generator.manual_seed``.
_SEEDS = range(-(1 << 63), 1 << 64)


def as_integer(value: Any) -> int | None:
    """An integer of any library as Python's; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def brief(value: Any, most: int = 60) -> str:
    """The text of a value for an error, cut off after ``most`` characters."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."


def import_extra(name: str) -> Any:
    """A module of an optional package; an ImportError says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{name}: not installed; python -m pip install 'botorch-structured[demo]'"
        ) from error


def check_booleans(name: str, verdict: Any, shape: torch.Size) -> Tensor:
    """``verdict``, what a function returned, if it is that many booleans."""
    if isinstance(verdict, Tensor):
        if verdict.dtype == torch.bool and verdict.shape == shape:
            return verdict
        got = f"shape {tuple(verdict.shape)} of {verdict.dtype}"
    else:
        got = brief(verdict)
    raise ValueError(
        f"{name}: expected a function that returns {tuple(shape)} booleans "
        f"(torch.bool), one for each point, got {got}."
    )


def check_column(name: str, col: Any, d: int, negative: bool = False) -> int:
    """``col`` if it is one of ``d`` columns; ``negative`` ones count from the end."""
    number = as_integer(col)
    if number is None or not (-d if negative else 0) <= number < d:
        raise ValueError(f"{name}: expected columns from 0 to {d - 1}, got {col!r}.")
    return number % d


def check_columns(name: str, columns: Any, d: int, negative: bool = False) -> list[int]:
    """``columns`` if they are a list of columns."""
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise ValueError(f"{name}: expected a list of columns, got {columns!r}.")
    numbers = []
    for c in columns:
        numbers.append(check_column(name, c, d, negative))
    return numbers


def check_by_column(
    name: str, lists: Any, d: int, negative: bool = False
) -> dict[int, list[Any]]:
    """``lists`` if it has a list of values for each of some columns; None for none."""
    if lists is None:
        return {}
    if not isinstance(lists, Mapping):
        raise ValueError(f"{name}: expected {{column: [values]}}, got {lists!r}.")
    for c, values in lists.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ValueError(f"{name}[{c}]: expected a list of values, got {values!r}.")
    return {check_column(name, c, d, negative): list(v) for c, v in lists.items()}


def check_count(name: str, value: Any, least: int = 1) -> int:
    """``value`` if it is an integer of at least ``least``."""
    number = as_integer(value)
    if number is None or number < least:
        expected = f"an integer from {least} on"
        if least == 1:
            expected = "a positive integer"
        raise ValueError(f"{name}: expected {expected}, got {value!r}.")
    return number


def check_function(name: str, function: Any) -> None:
    """Raise for what cannot be called."""
    if not callable(function):
        raise ValueError(f"{name}: expected a function, got {brief(function)}.")


def check_number(name: str, value: Any, finite: bool = True) -> float:
    """``value`` as a plain float, if it is a number but not NaN (and finite)."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        number = float(value)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ):  # the last: a tensor of several
        raise ValueError(f"{name}: expected a number, got {value!r}.") from None
    if math.isnan(number) or (finite and math.isinf(number)):
        kind = "a finite number" if finite else "a number that is not NaN"
        raise ValueError(f"{name}: expected {kind}, got {value!r}.")
    return number + 0.0  # -0.0 and 0.0 are one value


def check_values(name: str, values: Any) -> tuple[float, ...]:
    """``values``, ascending, if they are a list of distinct numbers, at least one."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise ValueError(f"{name}: expected a list of values, got {values!r}.")
    numbers = sorted(check_number(name, v) for v in values)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(
            f"{name}: expected distinct values, at least one, got {numbers}."
        )
    return tuple(numbers)


def check_deviation(name: str, value: Any) -> float | None:
    """``value`` if it is a standard deviation, or None."""
    if value is not None and check_number(name, value) < 0:
        raise ValueError(f"{name}: expected no negative number, got {value!r}.")
    return value


def check_seed(seed: Any) -> int | None:
    """``seed`` if it is one for `torch.Generator`, or None."""
    number = as_integer(seed)
    if seed is not None and (number is None or number not in _SEEDS):
        raise ValueError(
            f"seed: expected an integer of at most 64 bits, or None, got {seed!r}."
        )
    return number


def later_seed(seed: int, n: int) -> int:
    """The ``n``-th seed after ``seed``; after the largest one come 0, 1, ..."""
    return seed + n if seed + n in _SEEDS else seed + n - _SEEDS.stop


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn of a line of the user's, and not of one of the code that it called."""
    frame = inspect.currentframe()
    level = 1
    while frame and frame.f_back:
        # code that stands between a line of the user and ours
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("botorch_structured", "sklearn"):
            break
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
