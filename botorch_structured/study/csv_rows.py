"""Evaluations in the rows of a CSV file."""

from __future__ import annotations

__all__ = ["read_csv"]

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botorch_structured.spaces import SearchSpace

_COST = "cost"
# What pandas, R and NumPy write in cells that are empty.
_MISSING = ("nan", "na")


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
    # Names of parameters, and the texts among their choices.
    choices = {
        name: [c for p in several for c in getattr(p, "choices", ())]
        for name, several in space._named().items()
    }
    parameters = {k: [c for c in v if isinstance(c, str)] for k, v in choices.items()}
    if clash := parameters.keys() & {*outcomes, _COST}:
        raise ValueError(
            f"space: expected no parameter called {_COST!r}, or as an outcome, for a "
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
            raise ValueError(
                f"{path} line 1: expected columns {list(outcomes)}, got none for "
                f"{missing} among {columns}."
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
            pairs = zip(outcomes, map(_number_or_text, cells), strict=True)
            value = dict(pairs) if any(cells) else None
            cell = _cell(row.pop(_COST, ""))
            cost = _number_or_text(cell) if cell else None
            without = {name: _cell(cell) for name, cell in row.items()}
            for name, cell in without.items():
                if row[name].strip() not in parameters.get(name, ()):
                    row[name] = cell
            try:
                check(row, value, cost)
            except ValueError as error:
                row = without  # the text "NA" may be a choice on another path
                try:
                    check(row, value, cost)
                except ValueError:
                    raise ValueError(f"{where}: {error}") from None
            configs.append(row)
            values.append(value)
            costs.append(cost)
    return configs, values, costs


def _cell(text: str) -> str:
    """A cell without spaces around it; empty where nothing was written."""
    text = text.strip()
    return "" if text.lower() in _MISSING else text


def _number_or_text(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell
