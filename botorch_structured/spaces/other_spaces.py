"""Reading the search spaces of ConfigSpace, and of Ax, hierarchical ones included.

Conditions and forbidden clauses on one hyperparameter of ConfigSpace come down to
closed intervals on the axis of its column (a choice is an interval of one code), which
are then written as values where the column is a decision by value and as `Between`
where it is numeric. An integer or ordinal is a decision by value if its conditions tell
all its values apart, and numeric otherwise: "more than 5 layers" makes two paths out of
a hundred values.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    described,
    native,
)
from botorch_structured.spaces.conditions import (
    And,
    Between,
    Condition,
    In,
    Inactive,
    LinearClause,
    Operand,
    Or,
    Relation,
)
from botorch_structured.spaces.parameter_tree import ParameterTree

# Columns, tree, constants and what is forbidden: the arguments of a `SearchSpace`.
Parts = tuple[list[Column], ParameterTree, list[Constant], list[Condition]]
# Closed intervals on the axis of a column.
Spans = list[tuple[float, float]]

_ALWAYS = And(())
_NEVER = Or(())
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "Equals": operator.eq,
    "NotEquals": operator.ne,
    "LessThan": operator.lt,
    "LessThanEquals": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanEquals": operator.ge,
    "In": lambda value, values: value in values,
}


def _any_of(parts: Iterable[Condition]) -> Condition:
    """At least one of ``parts``, simplified."""
    some = [part for part in parts if part != _NEVER]
    if _ALWAYS in some:
        return _ALWAYS
    return some[0] if len(some) == 1 else Or(tuple(some))


class _Reader:
    """Parameters by name: those with a column, and constants.

    Args:
        argument: What the space is called in errors.
        names: All names, in order.
        columns: Those with a column.
        fixed: The constants.
    """

    def __init__(
        self,
        argument: str,
        names: Iterable[str],
        columns: dict[str, Column],
        fixed: dict[str, Any],
    ) -> None:
        self.names = list(names)
        self.columns = columns
        self.fixed = fixed
        if not columns:
            only = f"only constants, {self.names}" if self.names else "none"
            raise ValueError(
                f"{argument}: expected at least one parameter to search over, got "
                f"{only}."
            )
        self.position = {name: i for i, name in enumerate(columns)}

    def condition(self, name: str) -> Condition:
        """The condition under which a parameter is active."""
        raise NotImplementedError

    def operand(self, name: str) -> Operand:
        """A parameter as one side of a comparison."""
        if name in self.fixed:
            values = (self.fixed[name],)
            return Operand(None, (0.0,), values, condition=self.condition(name))
        column = self.columns[name]
        col = self.position[name]
        if isinstance(column, CategoricalColumn):
            return Operand(col, codes=column.codes, values=column.choices)
        return Operand(col, log=isinstance(column, FloatColumn) and column.log)

    def parts(
        self, values: Mapping[str, Sequence[float]], clauses: list[Condition]
    ) -> Parts:
        """The parts of the space; ``values``: of the decisions that declare them."""
        conditions = {
            self.position[name]: condition
            for name in self.columns
            if (condition := self.condition(name)) != _ALWAYS
        }
        used = {col for condition in conditions.values() for col in condition.columns()}
        declared = {
            self.position[name]: codes
            for name, codes in values.items()
            if self.position[name] in used
        }
        tree = ParameterTree(len(self.columns), conditions=conditions, values=declared)
        constants = [
            Constant(name, value, self.condition(name), self.names.index(name))
            for name, value in self.fixed.items()
        ]
        return list(self.columns.values()), tree, constants, clauses


def read_configspace(cs: ConfigSpace.ConfigurationSpace) -> Parts:
    """A space of ConfigSpace with its forbidden clauses."""
    if not isinstance(cs, ConfigSpace.ConfigurationSpace):
        raise ValueError(f"cs: expected a ConfigurationSpace, got {type(cs).__name__}.")
    reader = _ConfigSpaceReader(cs)
    values = {}
    for name in reader.by_value:
        lo, hi = reader.columns[name].bounds
        values[name] = [float(x) for x in range(int(lo), int(hi) + 1)]
    return reader.parts(values, [reader.clause(c) for c in cs.forbidden_clauses])


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
    """The key of `_COMPARISONS` for a simple condition, clause or relation."""
    name = type(statement).__name__
    name = re.sub("^Forbidden|(Condition|Clause|Relation)$", "", name)
    if name not in _COMPARISONS:
        raise ValueError(
            f"cs: expected conditions and clauses of {list(_COMPARISONS)}, got "
            f"{type(statement).__name__}: {statement}."
        )
    return name


def _argument(statement: Any) -> Any:
    """The value, or values, that a simple condition or clause compares with."""
    if _kind(statement) == "In":
        return [native(value) for value in statement.values]
    return native(statement.value)


class _ConfigSpaceReader(_Reader):
    """One pass over a configuration space."""

    def __init__(self, cs: ConfigSpace.ConfigurationSpace) -> None:
        fixed: dict[str, Any] = {}
        columns: dict[str, Column] = {}
        for hp in cs.values():
            if isinstance(hp, chp.Constant):
                fixed[hp.name] = native(hp.value)
            else:
                columns[hp.name] = column = _column(hp)
                column.default = column.encode(native(hp.default_value))
        super().__init__("cs", cs.keys(), columns, fixed)
        # ConfigSpace allows one condition (or conjunction) for each child.
        self.raw = {condition.child.name: condition for condition in cs.conditions}
        self.by_value = self._decisions_by_value()

    def _decisions_by_value(self) -> set[str]:
        """The columns whose conditions are written as values."""
        cuts: dict[str, set[float]] = {}
        for condition in self.raw.values():
            simple: Any = (condition,)
            if isinstance(condition, Conjunction):
                simple = condition.dlcs
            for c in simple:
                column = self.columns.get(c.parent.name)
                if column is None or not column.discrete:
                    continue
                lo, hi = column.bounds
                ends = {x for a, b in self._spans(column, c) for x in (a, b + 1)}
                cuts.setdefault(column.name, set()).update(
                    x for x in ends if lo < x <= hi
                )
        return {
            name
            for name, ends in cuts.items()
            if not self.columns[name].ordered
            or len(ends) == self.columns[name].bounds[1] - self.columns[name].bounds[0]
        }

    def _spans(self, column: Column, statement: Any) -> Spans:
        """Where on the axis of ``column`` a simple condition or clause holds."""
        lo, hi = column.bounds
        kind = _kind(statement)
        argument = _argument(statement)
        if kind == "In":
            spans: Spans = []
            for x in sorted({column.encode(value) for value in argument}):
                if spans and column.discrete and spans[-1][1] == x - 1:
                    spans[-1] = (spans[-1][0], x)
                else:
                    spans.append((x, x))
            return spans
        x = column.encode(argument)
        below = x - 1 if column.discrete else math.nextafter(x, -math.inf)
        above = x + 1 if column.discrete else math.nextafter(x, math.inf)
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
        """The condition under which a parameter is active."""
        return self._translate(self.raw[name]) if name in self.raw else _ALWAYS

    def _translate(self, condition: Any) -> Condition:
        if isinstance(condition, Conjunction):
            parts = [self._translate(part) for part in condition.components]
            if isinstance(condition, AndConjunction):
                return _NEVER if _NEVER in parts else And(tuple(parts))
            return _any_of(parts)
        parent = condition.parent.name
        if parent in self.fixed:
            return self._on_constant(condition)
        column = self.columns[parent]
        col = self.position[parent]
        parts = [self._inside(column, col, self._spans(column, condition))]
        # A hyperparameter without a value is not equal to anything: ConfigSpace leaves
        # the child of NotEquals active where the parent is not.
        if _kind(condition) == "NotEquals" and parent in self.raw:
            parts.append(Inactive(col))
        return _any_of(parts)

    def _inside(self, column: Column, col: int, spans: Spans) -> Condition:
        if spans and column.name in self.by_value:
            return In(col, [x for a, b in spans for x in range(int(a), int(b) + 1)])
        lo, hi = column.bounds
        parts = []
        for a, b in spans:
            if column.discrete:
                # Cut half-way; the upper half belongs to the number above.
                a -= 0.5
                b = math.nextafter(b + 0.5, -math.inf)
            low = -math.inf if a <= lo else a
            high = math.inf if b >= hi else b
            parts.append(Between(col, low, high))
        return _any_of(parts)

    def _on_constant(self, condition: SimpleCondition) -> Condition:
        parent = condition.parent.name
        kind = _kind(condition)
        holds = _COMPARISONS[kind](self.fixed[parent], _argument(condition))
        if kind != "NotEquals":
            return self.condition(parent) if holds else _NEVER
        if parent in self.raw and not holds:
            raise ValueError(
                "cs: expected no child that is active only where the constant "
                f"{parent!r} is inactive, got {condition}."
            )
        return _ALWAYS if holds else _NEVER

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
        column = self.columns[name]
        half = 0.5 if column.discrete else 0.0
        return Or(
            tuple(
                Between(self.position[name], a - half, b + half)
                for a, b in self._spans(column, clause)
            )
        )

    def _relation(self, relation: ForbiddenRelation) -> Condition:
        both = (self.operand(relation.left.name), self.operand(relation.right.name))
        left, right = (operand.values for operand in both)
        compare = _COMPARISONS[_kind(relation)]
        try:
            if left and right:
                rows = (tuple(bool(compare(a, b)) for b in right) for a in left)
                return Relation(both, compare, tuple(rows))
            if not all(isinstance(v, (bool, int, float)) for v in (*left, *right)):
                raise TypeError("numbers and other values have no order")
        except TypeError as error:
            if _kind(relation) == "Equals":
                return _NEVER
            raise ValueError(
                "cs: expected a relation between values that can be compared, got "
                f"{relation} ({error})."
            ) from None
        return Relation(both, compare)


def read_ax(search_space: Any, aligned: Iterable[Iterable[str]] = ()) -> Parts:
    """A space of Ax with its parameter constraints.

    Args:
        search_space: ``ax.core.SearchSpace``. Range parameters on a logit scale are
            read as linear ones. Those with ``digits``, on a linear scale and with up to
            1,000 values, become ordered choices; other rounding is left to Ax.
        aligned: Groups of names that become one column, with the first one's name.

    Raises:
        ImportError: Ax is not installed.
        ValueError: Derived and disabled parameters, tasks and fidelities, equalities
            of parameters that are not integers or choices, something that is no search
            space, or aligned parameters that cannot be one column.
    """
    try:
        from ax.core.parameter import (  # type: ignore[import-not-found, unused-ignore]  # optional
            ChoiceParameter,
            FixedParameter,
            ParameterType,
            RangeParameter,
        )
        from ax.core.search_space import (  # type: ignore[import-not-found, unused-ignore]  # optional
            SearchSpace,
        )
    except ImportError as error:
        raise ImportError(
            "SearchSpace.from_ax needs Ax: pip install 'botorch-structured[ax]'."
        ) from error
    if not isinstance(search_space, SearchSpace):
        raise ValueError(
            f"search_space: expected an ax.core.SearchSpace, got "
            f"{type(search_space).__name__}."
        )
    groups = check_aligned(aligned)
    parameters = search_space.parameters
    columns: dict[str, Column] = {}
    fixed: dict[str, Any] = {}
    above: dict[str, list[tuple[str, Any]]] = {name: [] for name in parameters}
    for name, p in parameters.items():
        for value, children in (p.dependents if p.is_hierarchical else {}).items():
            for child in children:
                above[child].append((name, value))
        if p.is_disabled:
            raise ValueError(
                f"Parameter {name!r}: expected one that is not disabled. Begin an "
                "experiment without it, and attach the trials to it."
            )
        if isinstance(p, FixedParameter):
            fixed[name] = native(p.value)
        elif p.is_fidelity or getattr(p, "is_task", False):
            raise ValueError(
                f"Parameter {name!r}: expected one to search over, got a task or a "
                "fidelity: fix it to its target value."
            )
        elif isinstance(p, ChoiceParameter):
            columns[name] = CategoricalColumn(name, p.values, ordered=p.is_ordered)
        elif isinstance(p, RangeParameter) and p.parameter_type is ParameterType.INT:
            columns[name] = IntegerColumn(
                name, int(p.lower), int(p.upper), log=p.log_scale
            )
        elif isinstance(p, RangeParameter):
            columns[name] = FloatColumn(name, p.lower, p.upper, log=p.log_scale)
            if not p.log_scale and (rounded := _rounded_values(p)):
                columns[name] = CategoricalColumn(name, rounded, ordered=True)
        else:
            raise ValueError(
                "search_space: expected range, choice and fixed parameters, got "
                f"{name!r}, a {type(p).__name__}."
            )
    for first, *others in groups:
        _check_group([first, *others], columns, above, search_space)
        for name in others:
            above[first] += above[name]
            del columns[name]
    reader = _AxReader("search_space", parameters, columns, fixed)
    reader.above = above
    clauses: list[Condition] = []
    for c in search_space.parameter_constraints:
        weights = c.constraint_dict
        is_equal = bool(getattr(c, "is_equality", False))
        numbers = [n for n in weights if isinstance(columns.get(n), FloatColumn)]
        if numbers and is_equal:
            raise ValueError(
                "parameter_constraints: expected equalities of integers and choices "
                f"only, got {c}. Compute one of {numbers} from the others in your "
                "function."
            )
        operands = tuple(map(reader.operand, weights))
        factors = tuple(map(float, weights.values()))
        clauses.append(LinearClause(operands, factors, float(c.bound), is_equal))
    values = {
        name: column.codes
        for name, column in columns.items()
        if isinstance(column, CategoricalColumn) and parameters[name].is_hierarchical
    }
    return reader.parts(values, clauses)


class _AxReader(_Reader):
    """One pass over a search space of Ax.

    Attributes:
        above: The parents of each parameter, with the value that it hangs under.
    """

    above: dict[str, list[tuple[str, Any]]]

    def condition(self, name: str) -> Condition:
        parts: list[Condition] = []
        for parent, value in self.above[name]:
            if parent not in self.fixed:
                code = self.columns[parent].encode(value)
                parts.append(In(self.position[parent], [code]))
            elif self.fixed[parent] == value:  # active with its parent
                parts.append(self.condition(parent))
        return _any_of(parts) if self.above[name] else _ALWAYS


def _rounded_values(p: Any, most: int = 1000) -> list[float]:
    """The values that Ax's rounding leaves of a range; none if they are many."""
    if p.digits is None or (p.upper - p.lower) * 10.0**p.digits >= most:
        return []
    first = math.floor(p.lower * 10.0**p.digits)
    values = (p.cast((first + i) / 10.0**p.digits) for i in range(most + 1))
    return [v for v in dict.fromkeys(values) if p.lower <= v <= p.upper]


def check_aligned(aligned: Any) -> list[list[str]]:
    """``aligned`` as a list of lists, if these are names in groups of two or more."""
    groups = []
    if not isinstance(aligned, str) and isinstance(aligned, Iterable):
        aligned = groups = [g if isinstance(g, str) else list(g) for g in aligned]
    names = [name for group in groups for name in group]
    if (
        aligned is not groups
        or not all(isinstance(g, list) and len(g) > 1 for g in groups)
        or not all(isinstance(name, str) for name in names)
        or len(set(names)) < len(names)
    ):
        raise ValueError(
            "aligned: expected groups of two or more names, all different, such as "
            f"[['rate_adam', 'rate_sgd']], got {aligned!r}."
        )
    return groups


def _check_group(
    group: Sequence[str],
    columns: Mapping[str, Column],
    above: Mapping[str, Sequence[tuple[str, Any]]],
    search_space: Any,
) -> None:
    """Raise unless the parameters of a group can be one column."""
    if unknown := [name for name in group if name not in columns]:
        raise ValueError(f"aligned: expected names among {[*columns]}, got {unknown}.")
    kinds = {name: described(columns[name]) for name in group}
    alike = [vars(columns[name]) | {"name": ""} for name in group]
    under = {name: above[name] for name in group}
    edges = [edge for several in under.values() for edge in several]
    split = len({parent for parent, _ in edges}) == 1 and all(under.values())
    deep = [name for name in group if search_space.parameters[name].is_hierarchical]
    constraints = search_space.parameter_constraints
    tied = [
        name for name in group if any(name in c.constraint_dict for c in constraints)
    ]
    for wrong, expected, got in (
        (deep, "parameters without dependents", deep),
        (any(one != alike[0] for one in alike), "the same bounds or values", kinds),
        (
            not split or len({*edges}) < len(edges),
            "different values of a choice",
            under,
        ),
        (tied, "parameters without constraints", tied),
    ):
        if wrong:
            raise ValueError(f"aligned: expected {expected}, got {got}.")
