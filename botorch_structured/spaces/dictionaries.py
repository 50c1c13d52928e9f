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
    positions,
    takes,
)
from botorch_structured.spaces.conditions import ALWAYS, And, Condition, In, Or

Columns = Mapping[str, Column]
Row = Mapping[str, Any]
# Parameters and their conditions by name, and the decisions that declare their values.
Parts = tuple[dict[str, Column], dict[str, Condition], list[str]]
# The decisions that lead to a dictionary, and their numbers.
Decisions = dict[int, Sequence[float]]


@dataclass
class _Parameter:
    """One column or constant of the space; a name has one for each set of values.

    Args:
        column: The values, under the name that the dictionaries use.
        splits: Whether it is a decision between dictionaries.
        shown: Whether it is part of configurations.
        where: The decisions and their numbers under which it is active: one or several.
        name: Its name in the space.
    """

    column: Column
    splits: bool
    shown: bool
    where: list[Decisions] = field(default_factory=list)
    name: str = ""


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

        def distance(columns: Columns) -> tuple[int, int]:
            stated = _stated(row, columns)
            others = stated.keys() ^ columns.keys()
            return len(_refused_by(columns, stated)), len(others)

        nearest = min(self.dictionaries, key=distance)
        stated = _stated(row, nearest)
        for name in _refused_by(nearest, stated):
            named = [columns[name] for columns in self.dictionaries if name in columns]
            wanted = [c.expected() for c in named if not takes(c, row[name])]
            expected = " or ".join(dict.fromkeys(wanted))
            return f"{name!r}: expected {expected}, got {row[name]!r}."
        absent = [name for name in nearest if name not in stated]
        extra = [name for name in stated if name not in nearest]
        wrong = f"without {absent}" if absent else f"with {extra} in addition"
        return f"configs: expected {list(nearest)}, got {row} {wrong}."

    def decode(self, config: Row) -> dict[str, Any]:
        """A configuration under the names of the dictionaries."""
        return {self.outer[k]: v for k, v in config.items() if k in self.outer}


def read_dictionaries(
    dictionaries: Any,
) -> tuple[Parts, DictionaryNames]:
    """The parts of a `SearchSpace`, and the names in configurations.

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
    many = list(many) if isinstance(many, Iterable) else [many]
    for d in many:
        if not isinstance(d, Mapping) or not all(isinstance(name, str) for name in d):
            raise ValueError(
                "dictionaries: expected {name: values}, or a list of dictionaries, "
                f"got {d!r}."
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
        self.same: dict[str, list[int]] = {}
        # For each dictionary, the decisions that lead to it and their numbers.
        self.paths: list[Decisions] = [{} for _ in dictionaries]

    def split(self, group: list[int], above: Decisions) -> None:
        """Find the decisions that tell a group of dictionaries apart."""
        for k in group:
            self.paths[k] = above
        if len(group) <= 1:
            return
        parts = _decision({k: self.dictionaries[k] for k in group})
        shown = bool(parts)
        if not shown:
            parts = [(CategoricalColumn("dictionary", [k + 1]), [k]) for k in group]
        choices = [choice for column, _ in parts for choice in column.choices]
        decision = CategoricalColumn(parts[0][0].name, choices)
        p = self._find(
            decision,
            above,
            splits=True,
            shown=shown,
        )
        start = 0
        for column, part in parts:
            end = start + len(column.choices)
            self.split(part, {**above, p: decision.codes[start:end]})
            start = end

    def _find(
        self,
        column: Column,
        where: Decisions,
        splits: bool = False,
        shown: bool = True,
    ) -> int:
        """The number of a parameter, which is new if no other has the same values."""
        same = self.same.setdefault(column.name, [])
        for p in same:
            other = self.parameters[p]
            is_alike = other.splits == splits and other.shown == shown
            if is_alike and is_same_parameter(other.column, column):
                break
        else:
            p = len(self.parameters)
            self.parameters.append(_Parameter(column, splits, shown))
            same.append(p)
        self.parameters[p].where.append(where)
        return p

    def assemble(self) -> tuple[Parts, DictionaryNames]:
        """The parts of the space, once it is known which decisions lead where."""
        members: list[dict[str, int]] = []  # for each dictionary, name -> number
        for dictionary, path in zip(self.dictionaries, self.paths, strict=True):
            shown = [p for p in path if self.parameters[p].shown]
            member = {self.parameters[p].column.name: p for p in shown}
            for name in dictionary:
                if name not in member:
                    member[name] = self._find(dictionary[name], path)
            members.append(member)
        for name, several in self.same.items():
            for i, p in enumerate(several, 1):
                self.parameters[p].name = name if len(several) == 1 else f"{name}@{i}"
        parameters: dict[str, Column] = {}
        for parameter in self.parameters:
            column = copy(parameter.column)
            column.name = parameter.name
            if isinstance(column, CategoricalColumn) and len(column.choices) == 1:
                column = Constant(column.name, column.choices[0])
            parameters[column.name] = column
        position = positions(parameters)
        conditions = {p.name: self._condition(p, position) for p in self.parameters}
        by_value = [p.name for p in self.parameters if p.splits]
        inner = [
            {name: self.parameters[p].name for name, p in member.items()}
            for member in members
        ]
        # an added decision has the number of the dictionary
        hidden = []
        for k, path in enumerate(self.paths, 1):
            decisions = [self.parameters[p] for p in path]
            hidden.append({p.name: k for p in decisions if not p.shown})
        names = DictionaryNames(self.dictionaries, inner, hidden)
        return (parameters, conditions, by_value), names

    def _condition(
        self,
        parameter: _Parameter,
        position: Mapping[str, int],
    ) -> Condition:
        """Where a parameter is active."""
        clauses = []
        for path in parameter.where:
            parts = [
                In(
                    position[self.parameters[p].name],
                    numbers,
                )
                for p, numbers in path.items()
            ]
            clauses.append(And(tuple(parts)))
        if ALWAYS in clauses or len(clauses) == len(self.paths):
            return ALWAYS
        return Or(tuple(clauses))


def _decision(
    group: Mapping[int, Columns],
) -> list[tuple[CategoricalColumn, list[int]]]:
    """The parameter that tells dictionaries apart best, and its parts.

    All of them have it, with choices that are equal or disjoint from one to another.

    Args:
        group: The dictionaries by their numbers.

    Returns:
        Each set of choices with the dictionaries that have it; none where there is no
        such parameter.
    """
    best: list[tuple[CategoricalColumn, list[int]]] = []
    fewest = math.inf
    for name in next(iter(group.values())):
        parts = _parts({k: columns.get(name) for k, columns in group.items()})
        count = sum(len(column.choices) for column, _ in parts)
        if len(parts) > 1 and count < fewest:
            best = parts
            fewest = count
    return best


def _parts(
    columns: Mapping[int, Column | None],
) -> list[tuple[CategoricalColumn, list[int]]]:
    """Equal columns together; none if two of them have only some choices in common."""
    parts: list[tuple[CategoricalColumn, list[int]]] = []
    # only columns with a hash in common can have a choice in common
    by_hash: dict[int, dict[int, None]] = {}
    for k, column in columns.items():
        if not isinstance(column, CategoricalColumn) or column.ordered:
            return []
        hashes = [*map(_hash, column.choices)]
        near = {i: None for h in hashes for i in by_hash.get(h, ())}
        for i in near:
            other, part = parts[i]
            if is_same_parameter(column, other):
                part.append(k)
                break
        else:
            choices = [choice for i in near for choice in parts[i][0].choices]
            if any(is_equal(a, b) for a in choices for b in column.choices):
                return []
            for h in hashes:
                by_hash.setdefault(h, {})[len(parts)] = None
            parts.append((column, [k]))
    return parts


def _hash(choice: Any) -> int:
    """Equal choices have the same; NaN and what has no hash share one."""
    try:
        return hash(choice) if choice == choice else 0
    except (TypeError, ValueError, RuntimeError):
        return 0


def _stated(row: Row, columns: Columns) -> Row:
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
    is_list = isinstance(values, Sequence) or hasattr(values, "__array__")
    if not is_list or getattr(values, "ndim", 1) != 1 or not len(values):
        wanted = "a list, or an array with one axis, of at least one choice"
        raise _refused(
            name,
            values,
            f"{wanted}, or a range (low, high)",
        )
    listed = values.tolist() if isinstance(values, torch.Tensor) else values
    choices = [native(v) for v in listed]
    if len(choices) == 3 and is_same(choices[2], "log") and _are_numbers(choices[:2]):
        range_text = f"({choices[0]}, {choices[1]}, 'log')"
        raise _refused(
            name,
            values,
            f"a tuple, {range_text}, for a range",
        )
    ascending = sorted(set(choices)) if _are_numbers(choices) else []
    ordered = len(choices) > 1 and ascending in (
        choices,
        choices[::-1],
    )
    return CategoricalColumn(name, choices, ordered=ordered)


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(v, Real) and not isinstance(v, bool) for v in values)


def _is_one(value: Any) -> bool:
    """Whether it is no collection: a number, a text, a function, an estimator."""
    if value is None or isinstance(value, (str, bytes, Real)):
        return True
    return callable(value) or hasattr(value, "get_params")


def _range(name: str, values: tuple[Any, ...]) -> Column:
    ends = [native(value) for value in values[:2]]
    scale = values[2:]
    is_range = len(ends) == 2 and _are_numbers(ends) and ends[0] < ends[1]
    if not is_range or scale not in ((), ("log",)):
        wanted = "(low, high) or (low, high, 'log') with numbers low < high"
        raise _refused(
            name,
            values,
            f"{wanted}, or a list of choices {list(values)}",
        )
    low, high = ends
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
    if kind in (
        "loguniform",
        "reciprocal",
    ) and math.isclose(frozen.median(), middle):
        return _range(name, (float(low), float(high), "log"))
    return QuantileColumn(name, frozen)


def _refused(name: str, values: Any, wanted: str) -> ValueError:
    return ValueError(f"{name!r}: expected {wanted}, got {brief(values, 200)}.")
