"""Arguments of a `Study`: a space, parameters to fix, and tables of evaluations."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import brief
from botorch_structured.spaces.columns import Constant, takes


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
            found = SearchSpace.from_dictionaries(space)
        except ValueError as error:
            message = str(error).removeprefix("dictionaries: ")
            raise ValueError(f"space: {message}") from None
        # the first decision may be one of our own
        if told_apart and found.shown_names[0] is None:
            _check_alternatives([*space])
        return found
    raise ValueError(
        "space: expected a SearchSpace, a ConfigurationSpace, or dictionaries, got "
        f"{type(space).__name__}."
    )


def _check_alternatives(dictionaries: Sequence[Mapping[str, Any]]) -> None:
    """Raise where a misspelt name is why no parameter tells dictionaries apart.

    That is so where they have no name in common, or where each has one text or
    estimator under a name that not all have: it is there to tell them apart.
    """
    common = set.intersection(*map(set, dictionaries))
    single = [{k for k, v in d.items() if _is_label(v)} for d in dictionaries]
    if not common or all(names - common for names in single):
        names = " and ".join(str(list(d)) for d in dictionaries)
        raise ValueError(
            "space: expected a parameter that all dictionaries have, with other "
            "choices in each, such as 'learner': ['svm'] and 'learner': ['forest'], "
            f"got {names}. If the names are to tell them apart, give "
            "SearchSpace.from_dictionaries(space)."
        )


def _is_label(values: Any) -> bool:
    one = values[0] if isinstance(values, list) and len(values) == 1 else values
    return isinstance(one, str) or hasattr(one, "get_params")


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
    # the parameters of these names that some configuration has with these values
    left = {
        name: [p for p in named[name] if space.can_have(p, columns)] for name in fixed
    }
    for name, value in fixed.items():
        wrong = [p for p in left[name] if not takes(p, value)]
        good = [p for p in named[name] if takes(p, value)]
        if good and not wrong:
            continue
        hint = ""
        if any(takes(p, value) for p in left[name]):
            hint = " Others take it: hold what tells them apart, too."
            if None in space.shown_names:
                hint = " Others take it, but no parameter tells them apart."
        expected = " or ".join(
            dict.fromkeys(p.expected() for p in wrong or named[name])
        )
        raise ValueError(
            f"fixed: {name!r}: expected {expected}, got {brief(value)}.{hint}"
        )
    for name, parameters in left.items():
        if not parameters:
            others = {k: v for k, v in fixed.items() if k != name}
            raise ValueError(
                f"fixed: expected parameters of one configuration, got {name!r}, which "
                f"none has with {others}."
            )
    return columns


def read_csv(
    path: str | os.PathLike[str],
    space: SearchSpace,
    outcomes: Sequence[str],
    check: Callable[[Mapping[str, str], Any, Any], None],
) -> tuple[list[dict[str, str]], list[Any], list[Any]]:
    """Configurations, values and costs of the rows of a CSV file.

    Args:
        path: The file; its first line has the names of the columns.
        space: The space.
        outcomes: Names of outcomes, all of which are columns. A row without any of them
            (empty, NaN or NA) is an evaluation that failed. Cells of inactive
            parameters are as empty.
        check: Called with the configuration, the value and the cost of each row; raises
            a ``ValueError`` for what is wrong, which is raised with the line.

    Raises:
        ValueError: A name is both a parameter and an outcome, a column is missing or
            there twice, a row has too many cells or too few, or ``check`` says so.
    """
    choices = {
        name: [c for p in several for c in getattr(p, "choices", ())]
        for name, several in space.named().items()
    }
    if clash := choices.keys() & {*outcomes, "cost"}:
        raise ValueError(
            "space: expected no parameter called 'cost', or as an outcome, for a "
            f"table, got {sorted(clash)}: tell the evaluations instead."
        )
    configs: list[dict[str, str]] = []
    values: list[Any] = []
    costs: list[Any] = []
    with open(path, newline="", encoding="utf-8-sig") as file:  # Excel begins with BOM
        table = csv.DictReader(file)
        columns = list(table.fieldnames or ())
        repeated = {c for c in columns if c.strip() and columns.count(c) > 1}
        if repeated:
            raise ValueError(
                f"{path} line 1: expected each column once, got {sorted(repeated)} "
                "more than once."
            )
        if missing := [name for name in outcomes if name not in columns]:
            hint = " Cells are separated by commas." if len(columns) < 2 else ""
            raise ValueError(
                f"{path} line 1: expected columns {list(outcomes)}, got none for "
                f"{missing} among {columns}.{hint}"
            )
        for row in table:
            where = f"{path} line {table.line_num}"
            if None in row or None in row.values():
                raise ValueError(
                    f"{where}: expected {len(columns)} cells as in line 1, got more or "
                    "fewer."
                )
            if cell := row.get("", "").strip():
                raise ValueError(
                    f"{where}: expected a name in line 1 for each column, got none for "
                    f"that of {cell!r}. Pandas writes its index so: use "
                    "to_csv(..., index=False)."
                )
            cells = [_cell(row.pop(name)) for name in outcomes]
            numbers = dict(zip(outcomes, map(_number_or_text, cells), strict=True))
            value = numbers if any(cells) else None
            cost = _number_or_text(_cell(row.pop("cost", ""))) or None
            blank = {name: _cell(cell) for name, cell in row.items()}
            config = {
                name: cell if cell.strip() in choices.get(name, ()) else blank[name]
                for name, cell in row.items()
            }
            try:
                check(config, value, cost)
            except ValueError as error:
                config = blank  # the text "NA" may be a choice on another path
                try:
                    check(config, value, cost)
                except ValueError:
                    raise ValueError(f"{where}: {error}") from None
            configs.append(config)
            values.append(value)
            costs.append(cost)
    return configs, values, costs


def _cell(text: str) -> str:
    """A cell without spaces around it; empty where pandas, R or NumPy had nothing."""
    text = text.strip()
    return "" if text.lower() in ("nan", "na") else text


def _number_or_text(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell
