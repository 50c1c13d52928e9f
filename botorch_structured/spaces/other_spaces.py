"""Reading the search spaces of ConfigSpace, and of Ax, hierarchical ones included.

Conditions and forbidden clauses on one hyperparameter of ConfigSpace come down to
closed intervals on the axis of its column, which are written as `Between`, or as values
where it is a choice. An integer or ordinal is a decision by value if its conditions
tell all its values apart, and numeric otherwise: "more than 5 layers" makes two paths
out of a hundred values.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any

import ConfigSpace
from ConfigSpace import hyperparameters as chp
from ConfigSpace.conditions import Conjunction
from ConfigSpace.forbidden import (
    ForbiddenConjunction,
    ForbiddenRelation,
)

from botorch_structured.spaces.columns import (
    CategoricalColumn,
    Column,
    Constant,
    FloatColumn,
    IntegerColumn,
    Span,
    described,
    native,
    positions,
)
from botorch_structured.spaces.conditions import (
    ALWAYS,
    NEVER,
    And,
    Between,
    Comparison,
    Condition,
    In,
    Inactive,
    Operand,
    Or,
    cut_intervals,
)

# Parameters and their conditions by name, those that declare their values, and what is
# forbidden: the arguments of `SearchSpace.from_parameters`.
Parts = tuple[
    dict[str, Column],
    dict[str, Condition],
    Iterable[str],
    list[Condition],
]

_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "Equals": operator.eq,
    "LessThan": operator.lt,
    "LessThanEquals": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanEquals": operator.ge,
}


def _any_of(parts: Iterable[Condition]) -> Condition:
    """At least one of ``parts``, simplified."""
    some = [part for part in parts if part != NEVER]
    if ALWAYS in some:
        return ALWAYS
    return some[0] if len(some) == 1 else Or(tuple(some))


class _Reader:
    """Parameters by name: those with a column, and constants.

    Args:
        parameters: All of them, in order.
    """

    def __init__(self, parameters: dict[str, Column]) -> None:
        self.parameters = parameters
        self.position = positions(parameters)

    def condition(self, name: str) -> Condition:
        """The condition under which a parameter is active."""
        raise NotImplementedError

    def operand(
        self,
        name: str,
        number: Callable[[Any], float] = float,
    ) -> Operand:
        """A parameter as one side of a comparison.

        Args:
            name: Its name.
            number: What its choices are compared by.
        """
        column = self.parameters[name]
        col = self.position.get(name)
        active = self.condition(name)
        if col is not None:
            active = Between(col, -math.inf, math.inf)
        if isinstance(column, CategoricalColumn):
            values = tuple(map(number, column.choices))
            return Operand(active, col, column.codes, values)
        return Operand(
            active,
            col,
            log=isinstance(column, FloatColumn) and column.log,
        )

    def parts(
        self,
        by_value: Iterable[str],
        clauses: list[Condition],
    ) -> Parts:
        """The parts of the space; ``by_value``: decisions that declare their values."""
        conditions = {name: self.condition(name) for name in self.parameters}
        used = {c for name in self.position for c in conditions[name].columns()}
        by_value = [name for name in by_value if self.position.get(name) in used]
        return (
            self.parameters,
            conditions,
            by_value,
            clauses,
        )


def read_configspace(
    cs: ConfigSpace.ConfigurationSpace,
) -> Parts:
    """A space of ConfigSpace with its forbidden clauses."""
    if not isinstance(cs, ConfigSpace.ConfigurationSpace):
        raise ValueError(f"cs: expected a ConfigurationSpace, got {type(cs).__name__}.")
    reader = _ConfigSpaceReader(cs)
    clauses = [reader.translated(clause) for clause in cs.forbidden_clauses]
    return reader.parts(reader.by_value, clauses)


def _column(hp: chp.Hyperparameter) -> Column:
    if isinstance(hp, chp.Constant):
        return Constant(hp.name, hp.value)
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
    """The statement of a condition, clause or relation: "Equals", "In", ..."""
    pattern = "^Forbidden|(Condition|Clause|Relation)$"
    return re.sub(pattern, "", type(statement).__name__)


def _spans(column: Column, statement: Any) -> list[Span]:
    """Where on the axis of ``column`` a simple condition or clause holds."""
    lo, hi = column.bounds
    kind = _kind(statement)
    values = statement.values if kind == "In" else [statement.value]
    spans: list[Span] = []
    for x in sorted({column.encode(native(value)) for value in values}):
        if spans and column.discrete and spans[-1][1] == x - 1:
            spans[-1] = (spans[-1][0], x)
        else:
            spans.append((x, x))
    if kind in ("In", "Equals"):
        return spans
    ((x, _),) = spans
    below = x - 1 if column.discrete else math.nextafter(x, -math.inf)
    above = x + 1 if column.discrete else math.nextafter(x, math.inf)
    spans = {
        "NotEquals": [(lo, below), (above, hi)],
        "LessThan": [(lo, below)],
        "LessThanEquals": [(lo, x)],
        "GreaterThan": [(above, hi)],
        "GreaterThanEquals": [(x, hi)],
    }[kind]
    return [(a, b) for a, b in spans if a <= b]


def _values_between(col: int, lo: float, hi: float) -> Condition:
    """A column of whole numbers has one of those between two others."""
    return In(col, range(math.ceil(lo), math.floor(hi) + 1))


class _ConfigSpaceReader(_Reader):
    """One pass over a configuration space.

    Attributes:
        by_value: The columns whose conditions are written as values.
    """

    def __init__(self, cs: ConfigSpace.ConfigurationSpace) -> None:
        super().__init__({hp.name: _column(hp) for hp in cs.values()})
        for hp in cs.values():
            column = self.parameters[hp.name]
            column.default = column.encode(native(hp.default_value))
        # ConfigSpace allows one condition (or conjunction) for each child.
        self.raw = {condition.child.name: condition for condition in cs.conditions}
        self.by_value: list[str] = []
        conditions = [self.translated(condition) for condition in cs.conditions]
        atoms = [a for condition in conditions for a in condition.atoms()]
        for name, col in self.position.items():
            column = self.parameters[name]
            lo, hi = column.bounds
            cut = cut_intervals([a for a in atoms if a.col == col])
            is_cut = len(cut) == hi - lo + 1
            if column.discrete and (is_cut or not column.ordered):
                self.by_value.append(name)

    def condition(self, name: str) -> Condition:
        return self.translated(self.raw[name]) if name in self.raw else ALWAYS

    def translated(self, statement: Any) -> Condition:
        """A condition, or a forbidden clause."""
        if isinstance(statement, (Conjunction, ForbiddenConjunction)):
            parts = [self.translated(part) for part in statement.components]
            if "And" not in type(statement).__name__:
                return _any_of(parts)
            return NEVER if NEVER in parts else And(tuple(parts))
        if isinstance(statement, ForbiddenRelation):
            return self._relation(statement)
        has_child = hasattr(statement, "child")
        hp = statement.parent if has_child else statement.hyperparameter
        column = self.parameters[hp.name]
        spans = _spans(column, statement)
        # A hyperparameter without a value is not equal to anything: ConfigSpace leaves
        # the child of NotEquals active where the parent is not.
        also_inactive = (
            has_child and _kind(statement) == "NotEquals" and hp.name in self.raw
        )
        if isinstance(column, Constant):
            if also_inactive:
                raise ValueError(
                    "cs: expected no child that is active only where the constant "
                    f"{hp.name!r} is inactive, got {statement}."
                )
            return self.condition(hp.name) if spans else NEVER
        col = self.position[hp.name]
        parts = [self._inside(column, col, a, b) for a, b in spans]
        if also_inactive:
            parts.append(Inactive(col))
        return _any_of(parts)

    def _inside(self, column: Column, col: int, a: float, b: float) -> Condition:
        """A column is between two of its numbers."""
        if column.name in self.by_value or (column.discrete and not column.ordered):
            return _values_between(col, a, b)
        lo, hi = column.bounds
        if column.discrete:
            # Cut half-way; the upper half belongs to the number above.
            a -= 0.5
            b = math.nextafter(b + 0.5, -math.inf)
        low = -math.inf if a <= lo else a
        high = math.inf if b >= hi else b
        return Between(col, low, high)

    def _relation(self, relation: ForbiddenRelation) -> Condition:
        names = (relation.left.name, relation.right.name)
        choices = [getattr(self.parameters[k], "choices", ()) for k in names]
        kind = _kind(relation)
        number: Callable[[Any], float] = float
        try:
            if all(choices):  # equal ones have one place in their order
                distinct = list(dict.fromkeys([*choices[0], *choices[1]]))
                if kind != "Equals":
                    distinct.sort()
                number = distinct.index
            operands = tuple(self.operand(name, number) for name in names)
        except (TypeError, ValueError) as error:
            raise ValueError(
                "cs: expected a relation between values that can be compared, got "
                f"{relation} ({error})."
            ) from None
        return Comparison(operands, (1.0, -1.0), _COMPARISONS[kind], 0.0)


def read_ax(search_space: Any, aligned: Iterable[Iterable[str]] = ()) -> Parts:
    """A space of Ax with its parameter constraints.

    Args:
        search_space: ``ax.core.SearchSpace``. Range parameters on a logit scale are
            read as linear ones. Those with ``digits``, on a linear scale and with up to
            1,000 values, become ordered choices; other rounding is left to Ax.
        aligned: Groups of names that become one column, with the first one's name.

    Raises:
        ValueError: Derived and disabled parameters, tasks and fidelities, equalities,
            something that is no search space, or aligned parameters that cannot be one
            column.
    """
    if not hasattr(search_space, "parameter_constraints"):
        raise ValueError(
            "search_space: expected an ax.core.SearchSpace, got "
            f"{type(search_space).__name__}."
        )
    groups = check_aligned(aligned)
    parameters = {name: _ax_column(p) for name, p in search_space.parameters.items()}
    above: dict[str, list[tuple[str, Any]]] = {name: [] for name in parameters}
    for name, p in search_space.parameters.items():
        for value, children in (p.dependents if p.is_hierarchical else {}).items():
            for child in children:
                above[child].append((name, value))
    for first, *others in groups:
        _check_group(
            [first, *others],
            parameters,
            above,
            search_space,
        )
        for name in others:
            above[first] += above[name]
            del parameters[name]
    reader = _AxReader(parameters)
    reader.above = above
    clauses: list[Condition] = []
    for c in search_space.parameter_constraints:
        weights = tuple(map(float, c.constraint_dict.values()))
        operands = tuple(map(reader.operand, c.constraint_dict))
        if getattr(c, "is_equality", False):
            raise ValueError(
                f"parameter_constraints: expected inequalities, got {c}. Compute one "
                "parameter from the others in your function."
            )
        clauses.append(Comparison(operands, weights, operator.gt, c.bound + 1e-8))
    by_value = [
        name for name in parameters if search_space.parameters[name].is_hierarchical
    ]
    return reader.parts(by_value, clauses)


def _ax_column(p: Any) -> Column:
    """The column, or constant, of a parameter of Ax."""
    kind = type(p).__name__
    if kind == "FixedParameter" and not p.is_disabled:
        return Constant(p.name, p.value)
    is_other = p.is_disabled or p.is_fidelity or getattr(p, "is_task", False)
    if is_other or kind not in (
        "ChoiceParameter",
        "RangeParameter",
    ):
        raise ValueError(
            f"Parameter {p.name!r}: expected a range, choice or fixed parameter that "
            f"is not disabled, and no task or fidelity (fix it), got {p}."
        )
    if kind == "ChoiceParameter":
        return CategoricalColumn(p.name, p.values, ordered=p.is_ordered)
    if p.parameter_type.name == "INT":
        return IntegerColumn(
            p.name,
            int(p.lower),
            int(p.upper),
            log=p.log_scale,
        )
    if p.digits is not None and not p.log_scale:
        steps = (p.upper - p.lower) * 10.0**p.digits
        if steps < 1000:  # values that the rounding leaves
            numbers = (p.cast(p.lower + i / 10.0**p.digits) for i in range(1001))
            values = [v for v in dict.fromkeys(numbers) if p.lower <= v <= p.upper]
            return CategoricalColumn(p.name, values, ordered=True)
    return FloatColumn(p.name, p.lower, p.upper, log=p.log_scale)


class _AxReader(_Reader):
    """One pass over a search space of Ax.

    Attributes:
        above: The parents of each parameter, with the value that it hangs under.
    """

    above: Mapping[str, Sequence[tuple[str, Any]]]

    def condition(self, name: str) -> Condition:
        parts: list[Condition] = []
        for parent, value in self.above[name]:
            column = self.parameters[parent]
            if parent in self.position:
                parts.append(
                    In(
                        self.position[parent],
                        [column.encode(value)],
                    )
                )
            elif column.decode(0.0) == value:  # active with its parent
                parts.append(self.condition(parent))
        return _any_of(parts) if self.above[name] else ALWAYS


def check_aligned(aligned: Any) -> list[list[str]]:
    """``aligned`` as a list of lists, if these are names in groups of two or more."""
    try:
        groups = [list(group) for group in aligned]
        names = [name for group in groups for name in group]
        is_good = all(len(group) > 1 for group in groups)
        is_good &= len(set(names)) == len(names)
    except TypeError:
        is_good = False
    if not is_good:
        raise ValueError(
            "aligned: expected groups of two or more names, all different, such as "
            f"[['rate_adam', 'rate_sgd']], got {aligned!r}."
        )
    return groups


def _check_group(
    group: Sequence[str],
    parameters: Mapping[str, Column],
    above: Mapping[str, Sequence[tuple[str, Any]]],
    search_space: Any,
) -> None:
    """Raise unless the parameters of a group can be one column."""
    names = [k for k, p in parameters.items() if not isinstance(p, Constant)]
    if unknown := [name for name in group if name not in names]:
        raise ValueError(f"aligned: expected names among {names}, got {unknown}.")
    kinds = {described(parameters[name]) for name in group}
    edges = [edge for name in group for edge in above[name]]
    parents = {parent for parent, _ in edges}
    constraints = search_space.parameter_constraints
    busy = {name for c in constraints for name in c.constraint_dict}
    busy |= {k for k, p in search_space.parameters.items() if p.is_hierarchical}
    is_split = len(parents) == 1 and len({*edges}) == len(edges)
    is_same = len(kinds) == 1 and is_split and all(map(above.get, group))
    if not is_same or busy.intersection(group):
        raise ValueError(
            "aligned: expected parameters with the same bounds or values, below "
            "different values of one choice, without dependents and constraints, got "
            f"{sorted(kinds)} for {group}, below {edges}."
        )
