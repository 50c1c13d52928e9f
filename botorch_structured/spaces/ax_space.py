"""Reading a search space of Ax, hierarchical ones included."""

from __future__ import annotations

__all__ = ["check_aligned", "read_ax"]

import math
from collections.abc import Iterable, Sequence
from typing import Any

from botorch_structured.spaces.columns import (
    CategoricalColumn,
    Column,
    Constant,
    FloatColumn,
    IntegerColumn,
    native,
)
from botorch_structured.spaces.conditions import And, Condition, In, Or
from botorch_structured.spaces.forbidden import LinearClause, Operand
from botorch_structured.spaces.parameter_tree import ParameterTree

# Of a parameter that Ax rounds, at most so many values are choices.
_MOST_ROUNDED = 1000


def read_ax(
    search_space: Any, aligned: Iterable[Iterable[str]] = ()
) -> tuple[list[Column], ParameterTree, list[Constant], list[Condition]]:
    """The parts of a `SearchSpace`: columns, tree, constants, parameter constraints.

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
    first = {name: group[0] for group in groups for name in group}
    columns: dict[str, Column] = {}
    fixed: dict[str, Any] = {}
    for name, p in search_space.parameters.items():
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
            lower, upper = int(p.lower), int(p.upper)
            columns[name] = IntegerColumn(name, lower, upper, log=p.log_scale)
        elif isinstance(p, RangeParameter):
            columns[name] = FloatColumn(name, p.lower, p.upper, log=p.log_scale)
            if not p.log_scale and (rounded := _rounded_values(p)):
                columns[name] = CategoricalColumn(name, rounded, ordered=True)
        else:
            raise ValueError(
                "search_space: expected range, choice and fixed parameters, got "
                f"{name!r}, a {type(p).__name__}."
            )
    if not columns:
        raise ValueError(
            "search_space: expected at least one parameter that is not fixed, got "
            f"{list(fixed)}."
        )
    for group in groups:
        _check_group(group, columns, search_space)
    for name in first.keys() - first.values():  # the others of each group
        del columns[name]
    position = {name: i for i, name in enumerate(columns)}

    # Children of every parameter, by the value they hang under.
    above: dict[str, list[tuple[str, Any]]] = {}
    for name, p in search_space.parameters.items():
        if p.is_hierarchical:
            for value, children in p.dependents.items():
                for child in children:
                    above.setdefault(first.get(child, child), []).append((name, value))

    def condition(name: str) -> Condition:
        if name not in above:
            return And(())
        parts: list[Condition] = []
        for parent, value in above[name]:
            if parent in fixed:  # active with its parent, if the value is right
                parts.append(condition(parent) if fixed[parent] == value else Or(()))
            else:
                code = columns[parent].encode(value)
                parts.append(In(position[parent], [code]))
        return And(()) if And(()) in parts else Or(tuple(parts))

    conditions = {
        position[name]: c for name in columns if (c := condition(name)) != And(())
    }
    values = {
        position[name]: column.codes
        for name, column in columns.items()
        if isinstance(column, CategoricalColumn)
        and search_space.parameters[name].is_hierarchical
    }
    tree = ParameterTree(len(columns), conditions=conditions, values=values)
    names = list(search_space.parameters)
    constants = [
        Constant(name, value, condition(name), names.index(name))
        for name, value in fixed.items()
    ]

    def operand(name: str) -> Operand:
        if name in fixed:
            return Operand.of_constant(fixed[name], condition(name))
        return Operand.of_column(columns[name], position[name])

    for constraint in search_space.parameter_constraints:
        mine = [n for n in constraint.constraint_dict if n in columns]
        numbers = [n for n in mine if isinstance(columns[n], FloatColumn)]
        if numbers and getattr(constraint, "is_equality", False):
            raise ValueError(
                "parameter_constraints: expected equalities of integers and choices "
                f"only, got {constraint}. Compute one of {numbers} from the others in "
                "your function."
            )
    clauses: list[Condition] = [
        LinearClause(
            tuple(operand(name) for name in c.constraint_dict),
            tuple(float(w) for w in c.constraint_dict.values()),
            float(c.bound),
            bool(getattr(c, "is_equality", False)),
        )
        for c in search_space.parameter_constraints
    ]
    return list(columns.values()), tree, constants, clauses


def _rounded_values(p: Any) -> list[float]:
    """What Ax's rounding leaves of a range, if it leaves few values; else nothing."""
    if p.digits is None or (p.upper - p.lower) * 10.0**p.digits >= _MOST_ROUNDED:
        return []
    first = math.floor(p.lower * 10.0**p.digits)
    values = (p.cast((first + i) / 10.0**p.digits) for i in range(_MOST_ROUNDED + 1))
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
    group: Sequence[str], columns: dict[str, Column], search_space: Any
) -> None:
    """Raise unless the parameters of a group can be one column."""
    parents = {
        name: [
            (parent, value)
            for parent, p in search_space.parameters.items()
            if p.is_hierarchical
            for value, children in p.dependents.items()
            if name in children
        ]
        for name in group
    }
    known = [name for name in group if name in columns]
    alike = [vars(columns[name]) | {"name": ""} for name in known]
    edges = [edge for name in group for edge in parents[name]]
    constrained = {
        n for c in search_space.parameter_constraints for n in c.constraint_dict
    }
    if (
        len(known) < len(group)
        or any(one != alike[0] for one in alike)
        or not all(parents.values())
        or len({parent for parent, _ in edges}) > 1
        or len(set(edges)) < len(edges)
        or constrained & set(group)
        or any(search_space.parameters[name].is_hierarchical for name in group)
    ):
        raise ValueError(
            "aligned: expected parameters with the same bounds or values, under "
            "different values of one choice, without dependents and parameter "
            f"constraints, got {list(group)}."
        )
