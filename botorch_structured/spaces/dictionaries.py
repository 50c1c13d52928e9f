"""Reading a space from dictionaries: scikit-learn's way to write a conditional one."""

from __future__ import annotations

__all__ = ["DictionaryNames", "read_dictionaries"]

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any

import torch

from botorch_structured.spaces.arguments import brief
from botorch_structured.spaces.columns import (
    TAIL,
    CategoricalColumn,
    Column,
    Constant,
    FloatColumn,
    IntegerColumn,
    QuantileColumn,
    is_blank,
    is_equal,
    is_same,
    is_same_parameter,
    native,
    takes,
)
from botorch_structured.spaces.conditions import And, Condition, In, Or
from botorch_structured.spaces.parameter_tree import ParameterTree

# The name of a decision between dictionaries that no parameter tells apart.
_WHICH = "dictionary"


@dataclass
class _Parameter:
    """One column or constant of the space; a name has one for each set of values.

    Args:
        column: The values, under the name that the dictionaries use.
        where: The decisions and their values under which it is active: one or several.
        splits: Whether it is a decision between dictionaries.
        shown: Whether it is part of configurations.
    """

    column: Column
    where: list[dict[int, list[Any]]] = field(default_factory=list)
    splits: bool = False
    shown: bool = True


@dataclass(frozen=True)
class DictionaryNames:
    """Translates configurations between the dictionaries' names and the columns'.

    Two things set them apart: a name that has other values in another dictionary is a
    column for each ("C@1", "C@2"), and a decision of our own says which dictionary it
    is, where no parameter does.

    Args:
        dictionaries: For each, the columns by the names that it uses; the numbers that
            they take are the dictionary's own.
        inner: For each, the names of the space's columns by the names that it uses.
        hidden: For each, the values of the decisions that are not shown.
    """

    dictionaries: Sequence[Mapping[str, Column]] = field(compare=False)
    inner: Sequence[Mapping[str, str]]
    hidden: Sequence[Mapping[str, Any]]

    @cached_property
    def outer(self) -> dict[str, str]:
        """The names of the dictionaries by those of columns that they show."""
        return {i: name for d in self.inner for name, i in d.items()}

    def encode(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A configuration under the names of the columns.

        Raises:
            ValueError: No dictionary has it; what is wrong with the nearest one.
        """
        # First as it is: None may be a choice, and not the lack of one.
        for is_table in (False, True):
            for k, own in enumerate(self.dictionaries):
                given = _given(row, own) if is_table else row
                if given.keys() == own.keys() and not _refused_by(own, given):
                    inner = {self.inner[k][name]: v for name, v in given.items()}
                    return {**inner, **self.hidden[k]}
        raise ValueError(self._mismatch(row))

    def _mismatch(self, row: Mapping[str, Any]) -> str:
        """What is wrong with a configuration that no dictionary has."""
        known = {name for d in self.dictionaries for name in d}
        if unknown := [name for name in row if name not in known]:
            return (
                f"configs: expected parameters among {sorted(known)}, got unknown ones "
                f"{unknown} in {row}."
            )
        for name, value in row.items():
            columns = [d[name] for d in self.dictionaries if name in d]
            if not is_blank(value) and not any(takes(c, value) for c in columns):
                expected = " or ".join(dict.fromkeys(c.expected() for c in columns))
                return f"{name!r}: expected {expected}, got {value!r}."

        def distance(own: Mapping[str, Column]) -> tuple[int, int]:
            given = _given(row, own)
            return len(_refused_by(own, given)), len(given.keys() ^ own.keys())

        own = min(self.dictionaries, key=distance)
        given = _given(row, own)
        for name in _refused_by(own, given):
            return f"{name!r}: expected {own[name].expected()}, got {row[name]!r}."
        absent = [name for name in own if name not in given]
        extra = [name for name in given if name not in own]
        what = f"without {absent}" if absent else f"with {extra} in addition"
        return f"configs: expected {list(own)}, got {row} {what}."

    def decode(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """A configuration under the names of the dictionaries."""
        return {self.outer[k]: v for k, v in config.items() if k in self.outer}


def read_dictionaries(
    dictionaries: Any,
) -> tuple[list[Column], ParameterTree, list[Constant], DictionaryNames]:
    """The parts of a `SearchSpace`: columns, tree, constants, names.

    A decision between dictionaries is a parameter that all of them have and whose
    choices are equal or disjoint from one to another; of several, the one with the
    fewest choices. Dictionaries with equal choices are told apart by the next such
    parameter. Where there is none, a decision is added.

    Args:
        dictionaries: One dictionary or a list, see `SearchSpace.from_dictionaries`.

    Raises:
        ValueError: Something else, or values that are none of those possible.
    """
    many = [dictionaries] if isinstance(dictionaries, Mapping) else dictionaries
    if isinstance(many, str) or not isinstance(many, Iterable):
        raise ValueError(
            f"dictionaries: expected a dictionary or several, got {dictionaries!r}."
        )
    many = list(many)
    for d in many:
        if not isinstance(d, Mapping) or not all(isinstance(name, str) for name in d):
            raise ValueError(
                f"dictionaries: expected dictionaries {{name: values}}, got {d!r}."
            )
    given = [{name: _column(name, v) for name, v in d.items()} for d in many]
    reader = _DictionaryReader(given)
    reader.split(list(range(len(given))), {})
    return reader.assemble()


class _DictionaryReader:
    """One pass over dictionaries.

    Args:
        given: For each dictionary, the columns by the names that it uses.
    """

    def __init__(self, given: Sequence[Mapping[str, Column]]) -> None:
        self.given = given
        self.parameters: list[_Parameter] = []
        # For each dictionary, the decisions that lead to it and their values.
        self.paths: list[dict[int, list[Any]]] = [{} for _ in given]

    def split(self, group: list[int], above: dict[int, list[Any]]) -> None:
        """Find the decisions that tell a group of dictionaries apart."""
        if len(group) <= 1:
            for k in group:
                self.paths[k] = above
            return
        name = _decision([self.given[k] for k in group])
        parts: list[tuple[list[Any], list[int]]] = []
        if name is None:
            parts = [([k + 1], [k]) for k in group]
        else:
            for k in group:
                column = self.given[k][name]
                assert isinstance(column, CategoricalColumn)
                for _, part in parts:
                    if _is_same_column(column, self.given[part[0]][name]):
                        part.append(k)
                        break
                else:
                    parts.append((list(column.choices), [k]))
        choices = [c for own, _ in parts for c in own]
        decision = CategoricalColumn(name or _WHICH, choices)
        p = self._find(decision, splits=True, shown=name is not None)
        self.parameters[p].where.append(above)
        for own, part in parts:
            self.split(part, {**above, p: own})

    def _find(self, column: Column, splits: bool = False, shown: bool = True) -> int:
        """The number of a parameter, which is new if no other has the same values."""
        for p, other in enumerate(self.parameters):
            if (
                (other.splits, other.shown) == (splits, shown)
                and other.column.name == column.name
                and _is_same_column(other.column, column)
            ):
                return p
        self.parameters.append(_Parameter(column, splits=splits, shown=shown))
        return len(self.parameters) - 1

    def assemble(
        self,
    ) -> tuple[list[Column], ParameterTree, list[Constant], DictionaryNames]:
        """All that makes the space, once it is known what leads to each dictionary."""
        parameters = self.parameters
        members = [
            {parameters[p].column.name: p for p in path if parameters[p].shown}
            for path in self.paths
        ]
        for own, path, member in zip(self.given, self.paths, members, strict=True):
            for name in own:
                if name not in member:
                    member[name] = p = self._find(own[name])
                    parameters[p].where.append(path)
        of_name: dict[str, list[int]] = {}
        for p, parameter in enumerate(parameters):
            of_name.setdefault(parameter.column.name, []).append(p)
        names = {
            p: name if len(same) == 1 else f"{name}@{i}"
            for name, same in of_name.items()
            for i, p in enumerate(same, 1)
        }
        choices = [getattr(p.column, "choices", ()) for p in parameters]
        varied = [p for p, own in enumerate(choices) if len(own) != 1]
        if not varied:
            only = f"only constants, {list(of_name)}" if of_name else "none"
            raise ValueError(
                "dictionaries: expected at least one parameter with several values, "
                f"got {only}."
            )
        columns = [copy(parameters[p].column) for p in varied]
        for column, p in zip(columns, varied, strict=True):
            column.name = names[p]
        position = {p: c for c, p in enumerate(varied)}
        conditions: dict[int, Condition] = {}
        values: dict[int, Sequence[float]] = {}
        constants: list[Constant] = []
        for p, parameter in enumerate(parameters):
            where = self._condition(parameter, position)
            column = parameter.column
            if p not in position:
                constants.append(Constant(names[p], column.decode(0.0), where, p))
                continue
            if where != And(()):
                conditions[position[p]] = where
            if parameter.splits and isinstance(column, CategoricalColumn):
                values[position[p]] = column.codes
        tree = ParameterTree(len(columns), conditions=conditions, values=values)
        inner = [
            {name: names[member[name]] for name in own}
            for own, member in zip(self.given, members, strict=True)
        ]
        hidden = [
            {names[p]: own[0] for p, own in path.items() if not parameters[p].shown}
            for path in self.paths
        ]
        return columns, tree, constants, DictionaryNames(self.given, inner, hidden)

    def _condition(self, parameter: _Parameter, position: dict[int, int]) -> Condition:
        """Where a parameter is active."""
        encode = {p: self.parameters[p].column.encode for p in position}
        clauses = [
            And(tuple(In(position[p], [*map(encode[p], v)]) for p, v in path.items()))
            for path in parameter.where
        ]
        if And(()) in clauses or len(clauses) == len(self.paths):
            return And(())
        return Or(tuple(clauses))


def _decision(group: Sequence[Mapping[str, Column]]) -> str | None:
    """The parameter that tells dictionaries apart best; None if none does."""
    sizes: dict[str, int] = {}
    for name in group[0]:
        distinct: list[CategoricalColumn] = []
        for d in group:
            column = d.get(name)
            if not isinstance(column, CategoricalColumn) or column.ordered:
                break
            if not any(_is_same_column(column, other) for other in distinct):
                if any(
                    is_equal(a, b)
                    for other in distinct
                    for a in other.choices
                    for b in column.choices
                ):
                    break
                distinct.append(column)
        else:
            if len(distinct) > 1:
                sizes[name] = sum(len(column.choices) for column in distinct)
    return min(sizes, key=sizes.__getitem__, default=None)


def _is_same_column(a: Column, b: Column) -> bool:
    if isinstance(a, CategoricalColumn) and isinstance(b, CategoricalColumn):
        return len(a.choices) == len(b.choices) and all(
            any(is_same(x, y) for y in b.choices) for x in a.choices
        )
    return is_same_parameter(a, b)


def _given(row: Mapping[str, Any], own: Mapping[str, Column]) -> dict[str, Any]:
    """What a row says; blanks are values only where they are choices."""
    return {
        name: value
        for name, value in row.items()
        if not is_blank(value)
        or any(map(is_blank, getattr(own.get(name), "choices", ())))
    }


def _refused_by(own: Mapping[str, Column], given: Mapping[str, Any]) -> list[str]:
    """The parameters of a dictionary that cannot take what is given."""
    return [
        name for name, c in own.items() if name in given and not takes(c, given[name])
    ]


def _column(name: str, values: Any) -> Column:
    """What a dictionary says of one parameter."""
    if isinstance(values, tuple):
        return _range(name, values)
    if hasattr(values, "dist") and hasattr(values, "support"):
        return _distribution(name, values)
    if _is_one(values):
        return CategoricalColumn(name, [values])
    if not isinstance(values, Sequence) and not hasattr(values, "__array__"):
        raise _refused(name, values, "a list of choices or a range (low, high)")
    if getattr(values, "ndim", 1) != 1:
        raise _refused(name, values, "a list or an array with one axis")
    if not len(values):
        raise _refused(name, values, "at least one choice")
    listed = values.tolist() if isinstance(values, torch.Tensor) else values
    choices = [native(v) for v in listed]
    is_log = len(choices) == 3 and isinstance(choices[2], str) and choices[2] == "log"
    if is_log and _are_numbers(choices[:2]):
        low, high, _ = choices
        raise _refused(name, values, f"a tuple, ({low}, {high}, 'log'), for a range")
    numbers = _are_numbers(choices)
    ascending = sorted(set(choices)) if numbers else []
    ordered = len(choices) > 1 and ascending in (choices, choices[::-1])
    return CategoricalColumn(name, choices, ordered=ordered)


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(v, Real) and not isinstance(v, bool) for v in values)


def _is_one(value: Any) -> bool:
    """Whether it is no collection: a number, a text, a function, an estimator."""
    alone = value is None or isinstance(value, (str, bytes, Real)) or callable(value)
    return alone or hasattr(value, "get_params")


def _range(name: str, values: tuple[Any, ...]) -> Column:
    if len(values) not in (2, 3):
        wanted = "(low, high) or (low, high, 'log'), or a list of choices"
        raise _refused(name, values, wanted)
    low, high, *scale = map(native, values)
    for v in (low, high):
        if isinstance(v, bool) or not isinstance(v, Real):
            wanted = f"numbers low and high, or a list of choices {list(values)}"
            raise _refused(name, values, wanted)
    if scale not in ([], ["log"]):
        wanted = f"({low}, {high}) or ({low}, {high}, 'log'), or a list of choices"
        raise _refused(name, values, wanted)
    if not low < high:
        raise _refused(name, values, "(low, high) with low < high")
    if isinstance(low, int) and isinstance(high, int):
        return IntegerColumn(name, low, high, log=bool(scale))
    return FloatColumn(name, low, high, log=bool(scale))


def _distribution(name: str, frozen: Any) -> Column:
    kind = getattr(frozen.dist, "name", None)
    low, high = (native(v) for v in frozen.support())
    if kind == "uniform":
        return _range(name, (float(low), float(high)))
    if hasattr(frozen.dist, "pmf"):  # of whole numbers
        ends = (low, high) if kind == "randint" else frozen.ppf([TAIL, 1.0 - TAIL])
        low, high = map(int, ends)
        one = low == high
        return CategoricalColumn(name, [low]) if one else _range(name, (low, high))
    # a shifted one is not uniform on a logarithmic scale
    middle = math.sqrt(low * high) if low > 0 else math.nan
    if kind in ("loguniform", "reciprocal") and math.isclose(frozen.median(), middle):
        return _range(name, (float(low), float(high), "log"))
    return QuantileColumn(name, frozen)


def _refused(name: str, values: Any, wanted: str) -> ValueError:
    return ValueError(f"{name!r}: expected {wanted}, got {brief(values, 200)}.")
