"""Reading a search space of ConfigSpace.

Conditions and forbidden clauses on one hyperparameter come down to closed intervals on
the axis of its column (a choice is an interval of one code), which are then written as
values where the column is a decision by value and as `Between` where it is numeric. An
integer or ordinal is a decision by value if its conditions tell all its values apart,
and numeric otherwise: "more than 5 layers" makes two paths out of a hundred values.
"""

from __future__ import annotations

__all__ = ["read_configspace"]

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import ConfigSpace
from ConfigSpace import hyperparameters as chp
from ConfigSpace.conditions import AndConjunction, Conjunction
from ConfigSpace.conditions import Condition as SimpleCondition
from ConfigSpace.forbidden import (
    ForbiddenAndConjunction,
    ForbiddenConjunction,
    ForbiddenRelation,
)

from botorch_structured.spaces.columns import (
    CategoricalColumn,
    Column,
    Constant,
    FloatColumn,
    IntegerColumn,
    native,
)
from botorch_structured.spaces.conditions import (
    And,
    Between,
    Condition,
    In,
    Inactive,
    Or,
)
from botorch_structured.spaces.forbidden import Operand, Relation, TableRelation
from botorch_structured.spaces.parameter_tree import ParameterTree

# Closed intervals on the axis of a column.
Spans = list[tuple[float, float]]

_ALWAYS, _NEVER = And(()), Or(())
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "Equals": operator.eq,
    "NotEquals": operator.ne,
    "LessThan": operator.lt,
    "LessThanEquals": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanEquals": operator.ge,
    "In": lambda value, values: value in values,
}


def read_configspace(
    cs: ConfigSpace.ConfigurationSpace,
) -> tuple[list[Column], ParameterTree, list[Constant], list[Condition]]:
    """The parts of a `SearchSpace`: columns, tree, constants and forbidden clauses."""
    if not isinstance(cs, ConfigSpace.ConfigurationSpace):
        raise ValueError(f"cs: expected a ConfigurationSpace, got {type(cs).__name__}.")
    reader = _Reader(cs)
    clauses = [reader.clause(clause) for clause in cs.forbidden_clauses]
    return list(reader.columns.values()), reader.tree(), reader.constants(), clauses


def _column(hp: chp.Hyperparameter) -> Column:
    if isinstance(hp, chp.CategoricalHyperparameter):
        return CategoricalColumn(hp.name, hp.choices, weights=hp.weights)
    if isinstance(hp, chp.OrdinalHyperparameter):
        return CategoricalColumn(hp.name, hp.sequence, ordered=True)
    if isinstance(hp, chp.IntegerHyperparameter):
        return IntegerColumn(hp.name, hp.lower, hp.upper, log=hp.log)
    if isinstance(hp, chp.FloatHyperparameter):
        return FloatColumn(hp.name, hp.lower, hp.upper, log=hp.log)
    raise ValueError(
        "cs: expected floats, integers, ordinals, categoricals and constants, got "
        f"{hp.name!r}, a {type(hp).__name__}."
    )


def _kind(statement: object) -> str:
    """What a simple condition, clause or relation says: a key of `_COMPARISONS`."""
    name = type(statement).__name__
    name = re.sub("^Forbidden|(Condition|Clause|Relation)$", "", name)
    if name not in _COMPARISONS:
        raise ValueError(
            f"cs: expected conditions and clauses of {list(_COMPARISONS)}, got "
            f"{type(statement).__name__}: {statement}."
        )
    return name


def _argument(statement: Any) -> Any:
    """What a simple condition or clause compares with."""
    if _kind(statement) == "In":
        return [native(value) for value in statement.values]
    return native(statement.value)


class _Reader:
    """One pass over a configuration space."""

    def __init__(self, cs: ConfigSpace.ConfigurationSpace) -> None:
        self.names = list(cs.keys())
        self.fixed: dict[str, Any] = {}
        self.columns: dict[str, Column] = {}
        for hp in cs.values():
            if isinstance(hp, chp.Constant):
                self.fixed[hp.name] = native(hp.value)
            else:
                self.columns[hp.name] = column = _column(hp)
                column.default = column.encode(native(hp.default_value))
        if not self.columns:
            only = f"only constants, {self.names}" if self.names else "none"
            raise ValueError(
                f"cs: expected at least one hyperparameter to search over, got {only}."
            )
        self.position = {name: i for i, name in enumerate(self.columns)}
        # ConfigSpace allows one condition (or conjunction) for each child.
        self.raw = {condition.child.name: condition for condition in cs.conditions}
        self.by_value = self._decisions_by_value()

    def _decisions_by_value(self) -> set[str]:
        """The columns whose conditions are written as values."""
        cuts: dict[str, set[float]] = {}
        for condition in self.raw.values():
            simple = (
                condition.dlcs if isinstance(condition, Conjunction) else (condition,)
            )
            for c in simple:
                column = self.columns.get(c.parent.name)
                if column is None or not column.discrete:
                    continue
                lo, hi = column.bounds
                here = cuts.setdefault(column.name, set())
                for a, b in self._spans(column, c):
                    here |= {x for x in (a, b + 1) if lo < x <= hi}
        found = set()
        for name, here in cuts.items():
            column = self.columns[name]
            lo, hi = column.bounds
            if not column.ordered or len(here) == hi - lo:
                found.add(name)
        return found

    def _spans(self, column: Column, statement: Any) -> Spans:
        """Where on the axis of ``column`` a simple condition or clause holds."""
        lo, hi = column.bounds
        kind, argument = _kind(statement), _argument(statement)
        if kind == "In":
            spans: Spans = []
            for x in sorted({column.encode(value) for value in argument}):
                if spans and column.discrete and spans[-1][1] == x - 1:
                    spans[-1] = (spans[-1][0], x)
                else:
                    spans.append((x, x))
            return spans
        x = column.encode(argument)
        below, above = x - 1, x + 1
        if not column.discrete:
            below, above = math.nextafter(x, -math.inf), math.nextafter(x, math.inf)
        spans = {
            "Equals": [(x, x)],
            "NotEquals": [(lo, below), (above, hi)],
            "LessThan": [(lo, below)],
            "LessThanEquals": [(lo, x)],
            "GreaterThan": [(above, hi)],
            "GreaterThanEquals": [(x, hi)],
        }[kind]
        return [(a, b) for a, b in spans if a <= b]

    # -- conditions ------------------------------------------------------------------

    def condition(self, name: str) -> Condition:
        """What activates a parameter."""
        return self._translate(self.raw[name]) if name in self.raw else _ALWAYS

    def _translate(self, condition: Any) -> Condition:
        if isinstance(condition, Conjunction):
            parts = [self._translate(part) for part in condition.components]
            if isinstance(condition, AndConjunction):
                return _NEVER if _NEVER in parts else And(tuple(parts))
            return _ALWAYS if _ALWAYS in parts else Or(tuple(parts))
        parent = condition.parent.name
        if parent in self.fixed:
            return self._on_constant(condition)
        column, col = self.columns[parent], self.position[parent]
        spans = self._spans(column, condition)
        parts = [self._inside(column, col, spans)]
        # A hyperparameter without a value is not equal to anything: ConfigSpace leaves
        # the child of NotEquals active where the parent is not.
        if _kind(condition) == "NotEquals" and parent in self.raw:
            parts.append(Inactive(col))
        parts = [part for part in parts if part != _NEVER]
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _inside(self, column: Column, col: int, spans: Spans) -> Condition:
        if not spans:
            return _NEVER
        if column.name in self.by_value:
            return In(col, [x for a, b in spans for x in range(int(a), int(b) + 1)])
        lo, hi = column.bounds
        parts = []
        for a, b in spans:
            if column.discrete:
                # Cut half-way; the upper half belongs to the number above.
                a, b = a - 0.5, math.nextafter(b + 0.5, -math.inf)
            a, b = -math.inf if a <= lo else a, math.inf if b >= hi else b
            parts.append(Between(col, a, b))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _on_constant(self, condition: SimpleCondition) -> Condition:
        parent, kind = condition.parent.name, _kind(condition)
        holds = _COMPARISONS[kind](self.fixed[parent], _argument(condition))
        if kind != "NotEquals":
            return self.condition(parent) if holds else _NEVER
        if parent in self.raw and not holds:
            raise ValueError(
                "cs: expected no child that is active only where the constant "
                f"{parent!r} is inactive, got {condition}."
            )
        return _ALWAYS if holds else _NEVER

    def tree(self) -> ParameterTree:
        """The tree over the columns."""
        conditions = {
            self.position[name]: condition
            for name in self.columns
            if (condition := self.condition(name)) != _ALWAYS
        }
        used = {col for condition in conditions.values() for col in condition.columns()}
        values = {
            self.position[name]: [float(x) for x in range(int(lo), int(hi) + 1)]
            for name in self.by_value
            for lo, hi in [self.columns[name].bounds]
            if self.position[name] in used
        }
        return ParameterTree(len(self.columns), conditions=conditions, values=values)

    def constants(self) -> list[Constant]:
        """The constants with their conditions."""
        return [
            Constant(name, value, self.condition(name), self.names.index(name))
            for name, value in self.fixed.items()
        ]

    # -- forbidden clauses -----------------------------------------------------------

    def clause(self, clause: Any) -> Condition:
        """A forbidden clause."""
        if isinstance(clause, ForbiddenConjunction):
            parts = tuple(self.clause(part) for part in clause.components)
            both = isinstance(clause, ForbiddenAndConjunction)
            return And(parts) if both else Or(parts)
        if isinstance(clause, ForbiddenRelation):
            return self._relation(clause)
        name = clause.hyperparameter.name
        if name in self.fixed:
            holds = _COMPARISONS[_kind(clause)](self.fixed[name], _argument(clause))
            return self.condition(name) if holds else _NEVER
        column, col = self.columns[name], self.position[name]
        half = 0.5 if column.discrete else 0.0
        spans = self._spans(column, clause)
        return Or(tuple(Between(col, a - half, b + half) for a, b in spans))

    def _operand(self, name: str) -> Operand:
        if name in self.fixed:
            return Operand.of_constant(self.fixed[name], self.condition(name))
        return Operand.of_column(self.columns[name], self.position[name])

    def _relation(self, relation: ForbiddenRelation) -> Condition:
        left = self._operand(relation.left.name)
        right = self._operand(relation.right.name)
        compare = _COMPARISONS[_kind(relation)]
        try:
            if left.values and right.values:
                table = [
                    [bool(compare(a, b)) for b in right.values] for a in left.values
                ]
                return TableRelation(left, right, tuple(map(tuple, table)))
            values = (*left.values, *right.values)
            if not all(isinstance(v, (bool, int, float)) for v in values):
                raise TypeError("numbers and other values have no order")
        except TypeError as error:
            if _kind(relation) == "Equals":
                return _NEVER
            raise ValueError(
                "cs: expected a relation between values that can be compared, got "
                f"{relation} ({error})."
            ) from None
        return Relation(left, right, compare)
