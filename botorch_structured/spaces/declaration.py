"""Reading and checking what a parameter tree is declared by."""

from __future__ import annotations

__all__ = [
    "HierarchicalDependencies",
    "check_acyclic",
    "normalise_conditions",
    "normalise_values",
]

from collections.abc import Iterable, Mapping, Sequence

from botorch_structured.spaces.arguments import check_column, check_number
from botorch_structured.spaces.conditions import Condition, In, Or

# {parent column: {parent value: [child columns]}}, the convention of BoTorch and Ax.
HierarchicalDependencies = Mapping[int, Mapping[float, Sequence[int]]]


def _check_mapping(value: object, what: str, form: str) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what}: expected {form}, got {value!r}.")


def normalise_conditions(
    dim: int,
    hierarchical_dependencies: HierarchicalDependencies | None,
    conditions: Mapping[int, Condition] | None,
) -> tuple[dict[int, Condition], dict[int, set[float]]]:
    """One condition for every conditional column, and the values the dictionary names.

    Returns:
        ``{child: condition}`` with children ascending, and ``{parent: values}``.
    """
    name = "hierarchical_dependencies"
    under: dict[int, dict[int, list[float]]] = {}  # child -> parent -> values
    named: dict[int, set[float]] = {}
    dependencies = hierarchical_dependencies
    if dependencies is None:
        dependencies = {}
    _check_mapping(dependencies, name, "{parent: {value: [children]}}")
    for parent, branches in dependencies.items():
        parent = check_column(name, parent, dim)
        _check_mapping(branches, f"{name}[{parent}]", "{value: [children]}")
        if not branches:
            raise ValueError(
                f"{name}[{parent}]: expected at least one value (a value without "
                "children is written {value: []}), got {}."
            )
        for value, children in branches.items():
            number = check_number(f"{name}[{parent}]", value)
            named.setdefault(parent, set()).add(number)
            where = f"{name}[{parent}][{value}]"
            if isinstance(children, str) or not isinstance(children, Iterable):
                raise ValueError(
                    f"{where}: expected a list of columns, got {children!r}."
                )
            columns = [check_column(where, c, dim) for c in children]
            if len(set(columns)) < len(columns):
                raise ValueError(f"{where}: expected distinct columns, got {columns}.")
            for child in columns:
                under.setdefault(child, {}).setdefault(parent, []).append(number)
    parts: dict[int, list[Condition]] = {
        child: [In(parent, values) for parent, values in parents.items()]
        for child, parents in under.items()
    }
    given = {} if conditions is None else conditions
    _check_mapping(given, "conditions", "{child: condition}")
    for child, condition in given.items():
        child = check_column("conditions", child, dim)
        if not isinstance(condition, Condition):
            raise ValueError(
                f"conditions[{child}]: expected Equals, In, Between or a combination "
                f"of them by & and |, got {condition!r}."
            )
        for parent in sorted(condition.columns()):
            check_column(f"conditions[{child}]", parent, dim)
        parts.setdefault(child, []).append(condition)
    normal = {c: p[0] if len(p) == 1 else Or(tuple(p)) for c, p in parts.items()}
    return dict(sorted(normal.items())), named


def normalise_values(
    dim: int, values: Mapping[int, Sequence[float]] | None
) -> dict[int, tuple[float, ...]]:
    """``{decision: all its values}``, both ascending."""
    given = {} if values is None else values
    _check_mapping(given, "values", "{decision: [all its values]}")
    normal = {}
    for col, listed in given.items():
        col = check_column("values", col, dim)
        if isinstance(listed, (str, bytes)) or not isinstance(listed, Iterable):
            raise ValueError(
                f"values[{col}]: expected a list of values, got {listed!r}."
            )
        numbers = sorted(check_number(f"values[{col}]", v) for v in listed)
        if not numbers or len(set(numbers)) < len(numbers):
            raise ValueError(
                f"values[{col}]: expected distinct values, at least one, got {numbers}."
            )
        normal[col] = tuple(numbers)
    return dict(sorted(normal.items()))


def check_acyclic(conditions: Mapping[int, Condition]) -> None:
    """Raise a ValueError that prints the cycle if columns wait for each other."""
    above = {c: sorted(condition.columns()) for c, condition in conditions.items()}
    done: set[int] = set()
    for start in above:
        # Depth first with an explicit stack; `trail` is the chain being followed.
        trail: list[int] = []
        stack = [(start, False)]
        while stack:
            col, leaving = stack.pop()
            if leaving:
                done.add(trail.pop())
            elif col in trail:
                cycle = [*trail[trail.index(col) :], col]
                chain = " -> ".join(map(str, reversed(cycle)))
                raise ValueError(
                    "hierarchical_dependencies, conditions: expected no cycle, got "
                    f"columns that wait for each other: {chain}."
                )
            elif col not in done:
                trail.append(col)
                stack.append((col, True))
                stack.extend((parent, False) for parent in above.get(col, ()))
