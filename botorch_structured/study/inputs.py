"""Arguments of a `Study`: a space, parameters to fix, and tables of evaluations."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import brief
from botorch_structured.spaces.columns import Constant, is_blank, takes


def read_space(space: Any, told_apart: bool = True) -> SearchSpace:
    """A space, a ``ConfigurationSpace``, or dictionaries, as a `SearchSpace`.

    Args:
        space: See `Study`.
        told_apart: Whether a parameter has to tell several dictionaries apart.

    Raises:
        ValueError: It is something else, or dictionaries that nothing tells apart.
    """
    if isinstance(space, SearchSpace):
        return space
    if any(kind.__name__ == "ConfigurationSpace" for kind in type(space).__mro__):
        return SearchSpace.from_configspace(space)
    if isinstance(space, (Mapping, list, tuple)):
        try:
            read = SearchSpace.from_dictionaries(space)
        except ValueError as error:
            message = str(error).removeprefix("dictionaries: ")
            raise ValueError(f"space: {message}") from None
        # the first decision may be one of our own
        if told_apart and read.shown_names[0] is None:
            _check_common_name([*space])
        return read
    raise ValueError(
        "space: expected a SearchSpace, a ConfigurationSpace, or dictionaries, got "
        f"{type(space).__name__}."
    )


def _check_common_name(dictionaries: Sequence[Mapping[str, Any]]) -> None:
    """Raise for dictionaries without a name in common: one may be misspelt."""
    if not set.intersection(*map(set, dictionaries)):
        names = " and ".join(str(list(d)) for d in dictionaries)
        raise ValueError(
            "space: expected a parameter that all dictionaries have, with other "
            "choices in each, such as 'learner': ['svm'] and 'learner': ['forest'], "
            f"got {names}. If the names are to tell them apart, give "
            "SearchSpace.from_dictionaries(space)."
        )


def read_fixed(space: SearchSpace, fixed: Any) -> dict[int, float]:
    """Columns and what they hold.

    Args:
        space: The space.
        fixed: ``{name: value}``.

    Raises:
        ValueError: A name or a value is not that of a parameter, on a path that the
            other values leave; or no such path has the parameter.
    """
    if not isinstance(fixed, Mapping):
        raise ValueError(f"fixed: expected {{name: value}}, got {brief(fixed)}.")
    named = space.named()
    columns: dict[int, float] = {}
    for name, value in fixed.items():
        if name not in named:
            raise ValueError(
                f"fixed: expected names among {list(named)}, got {name!r}."
            )
        for p in named[name]:
            if not isinstance(p, Constant) and takes(p, value):
                columns[space._position[p.name]] = p.encode(value)
    possible = space.possible_with(columns)
    for name, value in fixed.items():
        # the parameters of this name that some configuration has with these values
        left = [p for p in named[name] if p.name in possible]
        wrong = [p for p in left if not takes(p, value)]
        if not left:
            others = {k: v for k, v in fixed.items() if k != name}
            raise ValueError(
                f"fixed: expected parameters of one configuration, got {name!r}, which "
                f"none has with {others}."
            )
        if wrong:
            expected = " or ".join(dict.fromkeys(p.expected() for p in wrong))
            raise ValueError(
                f"fixed: {name!r}: expected {expected}, got {brief(value)}."
            )
    return columns


def read_rows(
    path: str | os.PathLike[str],
) -> tuple[list[str], list[tuple[str, dict[str, str]]]]:
    """A table in a CSV file whose first line has the names of the columns.

    Columns without a name, such as the index of pandas, are left out.

    Returns:
        The names, and of each row where it is, for messages, and its cells.

    Raises:
        ValueError: A name is there twice, or a row has too many cells or too few.
    """
    rows = []
    # Excel begins with BOM
    with open(path, newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file)
        names = [name for name in table.fieldnames or () if name.strip()]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(
                f"{path} line 1: expected each column once, got {sorted(repeated)} "
                "more than once."
            )
        for row in table:
            where = f"{path} line {table.line_num}"
            if None in row or None in row.values():
                raise ValueError(
                    f"{where}: expected as many cells as in line 1, got more or fewer."
                )
            rows.append((where, {name: row[name].strip() for name in names}))
    return names, rows


def read_csv(
    path: str | os.PathLike[str],
    space: SearchSpace,
    outcomes: Sequence[str],
    check: Callable[[Mapping[str, str], Any, Any], None],
) -> tuple[list[dict[str, str]], list[Any], list[Any]]:
    """Configurations, values and costs of the rows of a CSV file.

    Args:
        path: The file, see `read_rows`.
        space: The space.
        outcomes: Names of outcomes, all of which are columns. A row without any of them
            (empty, NaN or NA) is an evaluation that failed. Cells of inactive
            parameters are as empty.
        check: Called with the configuration, the value and the cost of each row; raises
            a ``ValueError`` for what is wrong, which is raised with the line.

    Raises:
        ValueError: A name is both a parameter and an outcome, a column is missing, or
            ``check`` says so.
    """
    named = space.named()
    if clash := named.keys() & {*outcomes, "cost"}:
        raise ValueError(
            "space: expected no parameter called 'cost', or as an outcome, for a "
            f"table, got {sorted(clash)}: tell the evaluations instead."
        )
    names, rows = read_rows(path)
    if missing := [name for name in outcomes if name not in names]:
        raise ValueError(
            f"{path} line 1: expected columns {list(outcomes)}, separated by commas, "
            f"got none for {missing} among {names}."
        )
    told = []
    for where, row in rows:
        numbers = {name: read_number(row.pop(name)) for name in outcomes}
        value = None if set(numbers.values()) == {None} else numbers
        cost = read_number(row.pop("cost", ""))
        config = {}
        for name, cell in row.items():
            # the text "NA" may be a choice
            choices = [getattr(p, "choices", ()) for p in named.get(name, ())]
            is_empty = is_missing(cell) and not any(cell in some for some in choices)
            config[name] = "" if is_empty else cell
        try:
            check(config, value, cost)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        told.append((config, value, cost))
    configs, values, costs = zip(*told, strict=True) if told else ((), (), ())
    return list(configs), list(values), list(costs)


def is_missing(cell: Any) -> bool:
    """Whether tables of pandas, R or NumPy have this where there is nothing."""
    return is_blank(cell) or str(cell).strip().lower() in ("nan", "na")


def read_number(cell: Any) -> Any:
    """The number in a cell; None where nothing is, and text as it is."""
    if is_missing(cell):
        return None
    try:
        return float(cell)
    except (TypeError, ValueError):
        return cell
