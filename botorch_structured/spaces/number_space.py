"""Reading a search space that is given as numbers: names, bounds, lists of columns."""

from __future__ import annotations

__all__ = ["read_numbers"]

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from botorch_structured.spaces.arguments import (
    check_by_column,
    check_columns,
    check_number,
)
from botorch_structured.spaces.columns import (
    CategoricalColumn,
    Column,
    FloatColumn,
    IntegerColumn,
)
from botorch_structured.spaces.parameter_tree import ParameterTree

# Decimal logarithms beyond these are no float64.
_LOGS = (-307.0, 308.0)


def read_numbers(
    names: Sequence[str],
    bounds: Tensor,
    tree: ParameterTree | None,
    integer_features: Sequence[int],
    categorical_features: Mapping[int, Sequence[float]] | None,
    choices: Mapping[int, Sequence[Any]] | None,
    log_features: Sequence[int],
) -> tuple[list[Column], ParameterTree]:
    """The columns and the tree of a `SearchSpace`; see there for the arguments."""
    names = _names(names)
    d = len(names)
    limits = _bounds(bounds, names)
    if tree is not None and not isinstance(tree, ParameterTree):
        raise ValueError(
            f"tree: expected a ParameterTree (ParameterTree({d}, {{...}})), got "
            f"{type(tree).__name__}."
        )
    tree = ParameterTree.from_any({} if tree is None else tree, d)
    whole = set(check_columns("integer_features", integer_features, d))
    logs = set(check_columns("log_features", log_features, d))
    labels = check_by_column("choices", choices, d)
    codes = {
        c: tree.decision_values[c] for c in tree.decisions_by_value if c not in whole
    }
    named = check_by_column("categorical_features", categorical_features, d)
    for c, values in named.items():
        what = f"categorical_features[{c}]"
        codes[c] = [check_number(what, v) for v in values]
        if list(codes[c]) != sorted(set(codes[c])) or not codes[c]:
            raise ValueError(
                f"{what}: expected distinct ascending values, at least one, got "
                f"{codes[c]}."
            )
    for what, given in (("integer_features", whole), ("log_features", logs)):
        if given & codes.keys():
            raise ValueError(
                f"{what}: expected none of the categorical columns {list(codes)}, got "
                f"{sorted(given)}."
            )
    if labels.keys() - codes.keys():
        raise ValueError(
            f"choices: expected categorical columns ({list(codes)}), got "
            f"{sorted(labels)}."
        )
    columns: list[Column] = []
    for c, name in enumerate(names):
        lo, hi = limits[:, c].tolist()
        declared = tree._values.get(c)
        if c in codes:
            what = f"categorical_features[{c}]" if c in named else "tree"
            outside = [v for v in codes[c] if not lo <= v <= hi]
            if outside:
                raise ValueError(
                    f"{what}: expected values within the bounds of column {c}, {lo} to "
                    f"{hi}, got {outside}."
                )
            odd = sorted({*codes[c]} - {*declared}) if declared else []
            if odd:
                raise ValueError(
                    f"{what}: expected among the values that the tree declares, "
                    f"{declared}, got {odd}."
                )
            plain = [int(v) if float(v).is_integer() else v for v in codes[c]]
            values = labels.get(c, plain)
            columns.append(CategoricalColumn(name, values, codes=codes[c]))
        elif c in whole:
            if not (lo.is_integer() and hi.is_integer()):
                raise ValueError(
                    f"bounds: expected whole numbers for the integer column {c} "
                    f"({name!r}), got {lo} and {hi}."
                )
            column = IntegerColumn(name, int(lo), int(hi), log=c in logs)
            every = range(column.lower, column.upper + 1)
            if declared is not None and list(declared) != list(every):
                raise ValueError(
                    f"integer_features: expected column {c}, a decision, to have all "
                    f"whole numbers from {lo} to {hi} among its values, got "
                    f"{list(declared)}: list them in categorical_features."
                )
            columns.append(column)
        elif c in logs:
            if not (_LOGS[0] <= lo and hi <= _LOGS[1]):
                raise ValueError(
                    f"bounds: expected decimal logarithms from {_LOGS[0]} to "
                    f"{_LOGS[1]} for column {c} ({name!r}), got {lo} and {hi}."
                )
            columns.append(FloatColumn(name, 10.0**lo, 10.0**hi, log=True))
        else:
            columns.append(FloatColumn(name, lo, hi))
    return columns, tree


def _names(names: Any) -> list[str]:
    listed = not isinstance(names, str) and isinstance(names, Iterable)
    found = list(names) if listed else []
    if not found or not all(isinstance(name, str) for name in found):
        raise ValueError(f"names: expected a list of strings, got {names!r}.")
    return found


def _bounds(bounds: Any, names: list[str]) -> Tensor:
    d = len(names)
    try:
        limits = torch.as_tensor(bounds, dtype=torch.double)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"bounds: expected 2 x {d} numbers, got {bounds!r}.") from None
    if limits.shape != (2, d):
        raise ValueError(
            f"bounds: expected 2 x {d} numbers for {d} names, got shape "
            f"{tuple(limits.shape)}."
        )
    for name, lo, hi in zip(names, *limits.tolist(), strict=True):
        if not -torch.inf < lo <= hi < torch.inf:
            raise ValueError(
                "bounds: expected finite numbers in ascending order, got "
                f"{lo} and {hi} for {name!r}."
            )
    return limits.detach().cpu()
