"""Reading a space from dictionaries: scikit-learn's way to write a conditional one."""

from __future__ import annotations

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

Columns = Mapping[str, Column]
Row = Mapping[str, Any]
# The decisions that lead to a dictionary, and their values.
Decisions = dict[int, Sequence[Any]]


@dataclass
class _Parameter:
    """One column or constant of the space; a name has one for each set of values.

    Args:
        column: The values, under the name that the dictionaries use.
        splits: Whether it is a decision between dictionaries.
        shown: Whether it is part of configurations.
        where: The decisions and their values under which it is active: one or several.
    """

    column: Column
    splits: bool
    shown: bool
    where: list[Decisions] = field(default_factory=list)


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

    dictionaries: Sequence[Columns] = field(compare=False)
    inner: Sequence[Mapping[str, str]]
    hidden: Sequence[Row]

    @cached_property
    def outer(self) -> dict[str, str]:
        """The names of the dictionaries by those of columns that they show."""
        return {i: name for d in self.inner for name, i in d.items()}

    def encode(self, row: Row) -> dict[str, Any]:
        """A configuration under the names of the columns.

        Raises:
            ValueError: No dictionary has it; what is wrong with the nearest one.
        """
        # First as it is: None may be a choice, and not the lack of one.
        for is_table in (False, True):
            for k, columns in enumerate(self.dictionaries):
                stated = _stated(row, columns) if is_table else row
                if stated.keys() == columns.keys() and not _refused_by(columns, stated):
                    inner = {self.inner[k][name]: v for name, v in stated.items()}
                    return {**inner, **self.hidden[k]}
        raise ValueError(self._mismatch(row))

    def _mismatch(self, row: Row) -> str:
        """The error of a configuration that no dictionary has."""
        names = {name for columns in self.dictionaries for name in columns}
        if unknown := [name for name in row if name not in names]:
            return (
                f"configs: expected parameters among {sorted(names)}, got unknown ones "
                f"{unknown} in {row}."
            )
        for name, value in row.items():
            same = [columns[name] for columns in self.dictionaries if name in columns]
            if not is_blank(value) and not any(takes(c, value) for c in same):
                expected = " or ".join(dict.fromkeys(c.expected() for c in same))
                return f"{name!r}: expected {expected}, got {value!r}."

        def distance(columns: Columns) -> tuple[int, int]:
            stated = _stated(row, columns)
            others = stated.keys() ^ columns.keys()
            return len(_refused_by(columns, stated)), len(others)

        nearest = min(self.dictionaries, key=distance)
        stated = _stated(row, nearest)
        for name in _refused_by(nearest, stated):
            return f"{name!r}: expected {nearest[name].expected()}, got {row[name]!r}."
        absent = [name for name in nearest if name not in stated]
        extra = [name for name in stated if name not in nearest]
        wrong = f"without {absent}" if absent else f"with {extra} in addition"
        return f"configs: expected {list(nearest)}, got {row} {wrong}."

    def decode(self, config: Row) -> dict[str, Any]:
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
    columns = [{name: _column(name, v) for name, v in d.items()} for d in many]
    reader = _DictionaryReader(columns)
    reader.split(list(range(len(columns))), {})
    return reader.assemble()


class _DictionaryReader:
    """One pass over dictionaries.

    Args:
        dictionaries: For each, the columns by the names that it uses.
    """

    def __init__(self, dictionaries: Sequence[Columns]) -> None:
        self.dictionaries = dictionaries
        self.parameters: list[_Parameter] = []
        # Name -> the numbers of its parameters.
        self.numbers: dict[str, list[int]] = {}
        # For each dictionary, the decisions that lead to it and their values.
        self.paths: list[Decisions] = [{} for _ in dictionaries]

    def split(self, group: list[int], above: Decisions) -> None:
        """Find the decisions that tell a group of dictionaries apart."""
        if len(group) <= 1:
            for k in group:
                self.paths[k] = above
            return
        name = _decision([self.dictionaries[k] for k in group])
        parts: list[tuple[Sequence[Any], list[int]]] = []
        if name is None:
            parts = [([k + 1], [k]) for k in group]
        else:
            for k in group:
                column = self.dictionaries[k][name]
                assert isinstance(column, CategoricalColumn)
                for _, part in parts:
                    if _is_same_column(column, self.dictionaries[part[0]][name]):
                        part.append(k)
                        break
                else:
                    parts.append((column.choices, [k]))
        choices = [choice for values, _ in parts for choice in values]
        decision = CategoricalColumn(name or "dictionary", choices)
        p = self._find(decision, splits=True, shown=name is not None)
        self.parameters[p].where.append(above)
        for values, part in parts:
            self.split(part, {**above, p: values})

    def _find(self, column: Column, splits: bool = False, shown: bool = True) -> int:
        """The number of a parameter, which is new if no other has the same values."""
        numbers = self.numbers.setdefault(column.name, [])
        for p in numbers:
            other = self.parameters[p]
            is_alike = other.splits == splits and other.shown == shown
            if is_alike and _is_same_column(other.column, column):
                return p
        self.parameters.append(_Parameter(column, splits, shown))
        numbers.append(len(self.parameters) - 1)
        return numbers[-1]

    def assemble(
        self,
    ) -> tuple[list[Column], ParameterTree, list[Constant], DictionaryNames]:
        """The parts of the space, once it is known which decisions lead where."""
        parameters = self.parameters
        members: list[dict[str, int]] = []  # for each dictionary, name -> number
        for dictionary, path in zip(self.dictionaries, self.paths, strict=True):
            member = {parameters[p].column.name: p for p in path if parameters[p].shown}
            for name in dictionary:
                if name not in member:
                    member[name] = self._find(dictionary[name])
                    parameters[member[name]].where.append(path)
            members.append(member)
        names: dict[int, str] = {}
        for name, numbers in self.numbers.items():
            for i, p in enumerate(numbers, 1):
                names[p] = name if len(numbers) == 1 else f"{name}@{i}"
        position: dict[int, int] = {}
        for p, parameter in enumerate(parameters):
            if len(getattr(parameter.column, "choices", ())) != 1:
                position[p] = len(position)
        if not position:
            only = f"only constants, {list(self.numbers)}" if self.numbers else "none"
            raise ValueError(
                "dictionaries: expected at least one parameter with several values, "
                f"got {only}."
            )
        columns: list[Column] = []
        conditions: dict[int, Condition] = {}
        values: dict[int, Sequence[float]] = {}
        constants: list[Constant] = []
        for p, parameter in enumerate(parameters):
            where = self._condition(parameter, position)
            column = copy(parameter.column)
            column.name = names[p]
            if p not in position:
                constants.append(Constant(names[p], column.decode(0.0), where, p))
                continue
            columns.append(column)
            if where != And(()):
                conditions[position[p]] = where
            if parameter.splits and isinstance(column, CategoricalColumn):
                values[position[p]] = column.codes
        tree = ParameterTree(len(columns), conditions=conditions, values=values)
        inner = [
            {name: names[member[name]] for name in dictionary}
            for dictionary, member in zip(self.dictionaries, members, strict=True)
        ]
        hidden = [
            {names[p]: v[0] for p, v in path.items() if not parameters[p].shown}
            for path in self.paths
        ]
        translation = DictionaryNames(self.dictionaries, inner, hidden)
        return columns, tree, constants, translation

    def _condition(self, parameter: _Parameter, position: dict[int, int]) -> Condition:
        """Where a parameter is active."""
        clauses = []
        for path in parameter.where:
            parts = []
            for p, values in path.items():
                column = self.parameters[p].column
                parts.append(In(position[p], [column.encode(v) for v in values]))
            clauses.append(And(tuple(parts)))
        if And(()) in clauses or len(clauses) == len(self.paths):
            return And(())
        return Or(tuple(clauses))


def _decision(group: Sequence[Columns]) -> str | None:
    """The parameter that tells dictionaries apart best; None if none does.

    All of them have it, with choices that are equal or disjoint from one to another.
    """
    sizes: dict[str, int] = {}
    for name in group[0]:
        distinct: list[CategoricalColumn] = []
        for columns in group:
            column = columns.get(name)
            if not isinstance(column, CategoricalColumn) or column.ordered:
                break
            if any(_is_same_column(column, other) for other in distinct):
                continue
            choices = [choice for other in distinct for choice in other.choices]
            if any(is_equal(a, b) for a in choices for b in column.choices):
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


def _stated(row: Row, columns: Columns) -> dict[str, Any]:
    """The values of a row; blanks are values only where they are choices."""
    return {
        name: value
        for name, value in row.items()
        if not is_blank(value) or (name in columns and columns[name].takes_blank)
    }


def _refused_by(columns: Columns, row: Row) -> list[str]:
    """The parameters of a dictionary that cannot take their values."""
    return [
        name for name, c in columns.items() if name in row and not takes(c, row[name])
    ]


def _column(name: str, values: Any) -> Column:
    """The column that a dictionary's entry describes."""
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
    if len(choices) == 3 and is_same(choices[2], "log") and _are_numbers(choices[:2]):
        range_text = f"({choices[0]}, {choices[1]}, 'log')"
        raise _refused(name, values, f"a tuple, {range_text}, for a range")
    ascending = sorted(set(choices)) if _are_numbers(choices) else []
    ordered = len(choices) > 1 and ascending in (choices, choices[::-1])
    return CategoricalColumn(name, choices, ordered=ordered)


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(v, Real) and not isinstance(v, bool) for v in values)


def _is_one(value: Any) -> bool:
    """Whether it is no collection: a number, a text, a function, an estimator."""
    if value is None or isinstance(value, (str, bytes, Real)):
        return True
    return callable(value) or hasattr(value, "get_params")


def _range(name: str, values: tuple[Any, ...]) -> Column:
    if len(values) not in (2, 3):
        wanted = "(low, high) or (low, high, 'log'), or a list of choices"
        raise _refused(name, values, wanted)
    low, high, *scale = map(native, values)
    if not _are_numbers([low, high]):
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
    low, high = map(native, frozen.support())
    if kind == "uniform":
        return _range(name, (float(low), float(high)))
    if hasattr(frozen.dist, "pmf"):  # of whole numbers
        if kind != "randint":
            low, high = frozen.ppf([TAIL, 1.0 - TAIL])
        if low == high:
            return CategoricalColumn(name, [int(low)])
        return _range(name, (int(low), int(high)))
    # a shifted one is not uniform on a logarithmic scale
    middle = math.sqrt(low * high) if low > 0 else math.nan
    if kind in ("loguniform", "reciprocal") and math.isclose(frozen.median(), middle):
        return _range(name, (float(low), float(high), "log"))
    return QuantileColumn(name, frozen)


def _refused(name: str, values: Any, wanted: str) -> ValueError:
    return ValueError(f"{name!r}: expected {wanted}, got {brief(values, 200)}.")
