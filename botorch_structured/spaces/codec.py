"""Configurations to points and back."""

from __future__ import annotations

__all__ = ["Codec", "Constant"]

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_structured.spaces.columns import (
    CategoricalColumn,
    Column,
    FloatColumn,
    is_blank,
    slack,
)
from botorch_structured.spaces.conditions import Condition
from botorch_structured.spaces.parameter_tree import ParameterTree

# How far from a cut a value is kept: in decades on a logarithmic scale, on a linear one
# relative to the range or the bounds, whichever is larger, but as if that were at least
# 1. ConfigSpace, which rounds, does not tell values from the cut that are nearer.
_BESIDE_LOG_CUT = 1e-8
_BESIDE_CUT = 1e-12


@dataclass(frozen=True)
class Constant:
    """A parameter with one value; it takes part in configurations, not in points.

    Args:
        name: Its name.
        value: Its value.
        condition: Where it is active. Default: everywhere.
        place: How many of the space's parameters come before it.
    """

    name: str
    value: Any
    condition: Condition | None = None
    place: int = 0


class Codec:
    """The part of `SearchSpace` that translates; see there.

    Args:
        columns: The parameters that are not constant.
        tree: Which of them are active where.
        constants: The constant ones.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        tree: ParameterTree,
        constants: Sequence[Constant] = (),
    ) -> None:
        all_names = [c.name for c in columns] + [c.name for c in constants]
        if len(set(all_names)) < len(all_names):
            raise ValueError(
                f"names: expected distinct names, got {sorted(all_names)}."
            )
        if tree.dim != len(columns):
            raise ValueError(
                f"tree: expected as many columns as there are names ({len(columns)}), "
                f"got {tree.dim}."
            )
        self.columns = tuple(columns)
        self.constants = tuple(constants)
        self.tree = tree
        self.names = [c.name for c in columns]
        self.bounds = torch.tensor(
            [[c.bounds[i] for c in columns] for i in (0, 1)], dtype=torch.double
        )
        self.fill = torch.tensor([c.fill for c in columns], dtype=torch.double)
        self.integer_features = [
            i for i, c in enumerate(columns) if c.discrete and not _is_categorical(c)
        ]
        self.categorical_features = {
            i: list(c.codes)
            for i, c in enumerate(columns)
            if isinstance(c, CategoricalColumn) and _is_categorical(c)
        }
        # Decisions by value are looked up by the tree as they are: it knows what is
        # too far from a declared value. Everything else that is discrete is rounded.
        by_value = set(tree.decision_columns) - set(tree.numeric_decisions)
        self._rounded = [
            i for i, c in enumerate(columns) if c.discrete and i not in by_value
        ]
        self._position = {name: i for i, name in enumerate(self.names)}

    @property
    def dim(self) -> int:
        """The number of columns."""
        return len(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        parts = ", ".join(f"{c.name}: {c.expected()}" for c in self.columns)
        return f"SearchSpace({parts})"

    def encode(self, configs: Any) -> Tensor:
        """Configurations as points.

        Rows of a table are taken as they are read: None, NaN or "" stand for a
        parameter that is inactive, numbers may be text ("3", "0.5", also "3.0" for an
        integer), and so may choices ("True").

        Args:
            configs: A mapping of the active parameters, constants included, such as a
                dictionary, a row of ``csv.DictReader``, a ConfigSpace Configuration or
                a pandas Series; or several of them; or a pandas DataFrame.

        Returns:
            ``n x d`` points without NaN.

        Raises:
            ValueError: Unknown names, active parameters that are missing, inactive ones
                that are given, values a parameter cannot take.
        """
        rows = _rows(configs)
        names = {*self.names, *(c.name for c in self.constants)}
        fill = self.fill.tolist()
        numbers: list[list[float]] = []
        marks: list[list[bool]] = []
        blanks: list[list[bool]] = []
        for row in rows:
            if not row.keys() <= names:
                raise ValueError(
                    "configs: expected parameters among "
                    f"{[c.name for c in self._ordered()]}, got unknown ones "
                    f"{[k for k in row if k not in names]} in {row}."
                )
            x, given = list(fill), [False] * self.dim
            blank = [False] * self.dim
            for name, value in row.items():
                c = self._position.get(name)
                if c is None:
                    continue
                column, blank[c] = self.columns[c], is_blank(value)
                # Nothing may be a choice, too.
                if not blank[c] or _has_blank(column):
                    x[c], given[c] = column.encode(value), True
            numbers.append(x)
            marks.append(given)
            blanks.append(blank)
        X = torch.tensor(numbers, dtype=torch.double).reshape(len(rows), self.dim)
        given_mask = torch.tensor(marks, dtype=torch.bool).reshape(X.shape)
        blank_mask = torch.tensor(blanks, dtype=torch.bool).reshape(X.shape)
        active = self.tree.active_mask(X)
        given_mask &= active | ~blank_mask
        self._check_given(rows, X, active, given_mask)
        return torch.where(active, X, self.fill)

    def _ordered(self) -> list[Column | Constant]:
        """Columns and constants in the order they were declared in."""
        ordered: list[Column | Constant] = list(self.columns)
        for constant in sorted(self.constants, key=lambda c: c.place):
            ordered.insert(constant.place, constant)
        return ordered

    def _constants_active(self, X: Tensor, active: Tensor) -> Tensor:
        """``n x num_constants`` booleans."""
        masks = [
            torch.ones(len(X), dtype=torch.bool)
            if c.condition is None
            else c.condition.holds(X, active)
            for c in self.constants
        ]
        return torch.stack(masks, -1) if masks else X.new_zeros(len(X), 0).bool()

    def _check_given(
        self, rows: list[dict[str, Any]], X: Tensor, active: Tensor, given: Tensor
    ) -> None:
        """Raise unless each row gives exactly what is active, constants included."""
        present = self._constants_active(X, active).tolist()
        wrong = (active != given).any(-1).tolist()
        constants = {c.name for c in self.constants}
        for i, row in enumerate(rows):
            pairs = zip(self.constants, present[i], strict=True)
            fixed = {c.name: c.value for c, on in pairs if on}
            stated = {k for k in constants & row.keys() if not is_blank(row[k])}
            stated |= {k for k in fixed.keys() & row.keys() if is_blank(fixed[k])}
            if wrong[i] or stated != fixed.keys():
                raise ValueError(self._mismatch(row, active[i], given[i], fixed))
            for name, value in fixed.items():
                try:
                    CategoricalColumn(name, [value]).position(row[name])
                except ValueError:
                    raise ValueError(
                        f"{name!r}: expected its constant {value!r}, got {row[name]!r}."
                    ) from None

    def _mismatch(
        self, row: dict[str, Any], active: Tensor, given: Tensor, fixed: dict[str, Any]
    ) -> str:
        """What is missing from a row or given though inactive."""
        missing = set((active & ~given).nonzero().flatten().tolist())
        # A missing decision leaves open what hangs on it: speak of what is certain.
        certain = [
            c
            for c in active.nonzero().flatten().tolist()
            if not self._above(c) & missing
        ]
        expected = [self.names[c] for c in certain] + list(fixed)
        absent = [self.names[c] for c in certain if c in missing]
        absent += [
            n
            for n, value in fixed.items()
            if n not in row or (is_blank(row[n]) and not is_blank(value))
        ]
        if absent:
            if absent[0] in row and absent[0] in self._position:
                column = self.columns[self._position[absent[0]]]
                return (
                    f"{column.name!r}: expected {column.expected()}, as it is active, "
                    f"got {row[column.name]!r}."
                )
            return (
                f"configs: expected values for the active parameters {expected}, got "
                f"{row} without {absent}."
            )
        extra = [self.names[c] for c in (given & ~active).nonzero().flatten().tolist()]
        extra += [
            c.name
            for c in self.constants
            if not is_blank(row.get(c.name)) and c.name not in fixed
        ]
        return (
            f"configs: expected the active parameters {expected} only, got {row} with "
            f"{extra}, inactive there."
        )

    def _above(self, col: int) -> set[int]:
        """All columns that ``col`` depends on."""
        found: set[int] = set()
        todo = [col]
        while todo:
            condition = self.tree.conditions.get(todo.pop())
            new = (condition.columns() if condition is not None else set()) - found
            found |= new
            todo.extend(new)
        return found

    def decode(self, X: Tensor) -> list[dict[str, Any]]:
        """Points as configurations: the active parameters with native values.

        Numbers are rounded where the parameter is discrete and drawn into the bounds
        where they exceed them by no more than rounding.

        Args:
            X: ``n x d`` points (or ``d``: one point).

        Returns:
            ``n`` dictionaries, constants included.

        Raises:
            ValueError: A point beyond the bounds, or a decision between its values.
        """
        X = X.unsqueeze(0) if isinstance(X, Tensor) and X.dim() == 1 else X
        if not isinstance(X, Tensor) or X.dim() != 2 or X.shape[-1] != self.dim:
            got = (
                f"shape {tuple(X.shape)}" if isinstance(X, Tensor) else type(X).__name__
            )
            raise ValueError(f"X: expected n x {self.dim} points, got {got}.")
        X = self._snap(X.detach().double().cpu())
        active = self.tree.active_mask(X)
        outside = active & ~self._inside(X)
        if outside.any():
            i, c = outside.nonzero()[0].tolist()
            lo, hi = self.columns[c].bounds
            raise ValueError(
                f"X: expected numbers in [{lo}, {hi}] for {self.names[c]!r} (column {c}"
                f"), got {X[i, c].item()} in row {i}."
            )
        present = self._constants_active(X, active).tolist()
        index = {c.name: k for k, c in enumerate(self.constants)}
        ordered = self._ordered()
        configs = []
        for row, on, fixed in zip(X.tolist(), active.tolist(), present, strict=True):
            config: dict[str, Any] = {}
            for item in ordered:
                if isinstance(item, Constant):
                    if fixed[index[item.name]]:
                        config[item.name] = item.value
                elif on[self._position[item.name]]:
                    c = self._position[item.name]
                    config[item.name] = self._decode(c, row[c])
            configs.append(config)
        return configs

    def _decode(self, c: int, x: float) -> Any:
        """The value of a number, on the same side of the cuts of the tree.

        A number next to a cut may be taken for the cut itself, where other parameters
        are active: by ConfigSpace, which rounds, and on a logarithmic scale, as
        logarithms are denser than values. A value of few digits is meant as it is, and
        may be the cut.
        """
        column = self.columns[c]
        value = column.decode(x)
        if (
            isinstance(column, FloatColumn)
            and c in self.tree.numeric_decisions
            and not _is_round(column, value, x)
        ):
            room = _beside_cut(column)
            for lo, hi in self.tree.decision_values[c]:
                if lo <= x <= hi and hi - lo > 2 * room:
                    return column.decode(min(max(x, lo + room), hi - room))
        return value

    def _snap(self, X: Tensor) -> Tensor:
        """Round what is discrete and not a decision by value."""
        if not self._rounded:
            return X
        X = X.clone()
        for c in self._rounded:
            column = self.columns[c]
            if isinstance(column, CategoricalColumn):
                codes = torch.tensor(column.codes, dtype=X.dtype, device=X.device)
                far = (X[..., c] < codes[0] - 0.5) | (X[..., c] > codes[-1] + 0.5)
                near = codes[(X[..., c, None] - codes).abs().argmin(-1)]
                X[..., c] = torch.where(far, X[..., c], near)
            else:
                X[..., c] = X[..., c].round()
        return X

    def _inside(self, X: Tensor) -> Tensor:
        room = torch.tensor([slack(c.bounds) for c in self.columns])
        bounds, room = self.bounds.to(X), room.to(X)
        return (X >= bounds[0] - room) & (X <= bounds[1] + room)


def _rows(configs: Any) -> list[dict[str, Any]]:
    """Configurations as dictionaries, whatever they came in."""
    if getattr(configs, "ndim", None) == 2 and hasattr(configs, "to_dict"):
        configs = configs.to_dict("records")  # a DataFrame
    if hasattr(configs, "keys"):
        configs = [configs]
    many = (
        [configs]
        if isinstance(configs, str) or not hasattr(configs, "__iter__")
        else list(configs)
    )
    for config in many:
        if not hasattr(config, "keys"):
            raise ValueError(
                "configs: expected a mapping of names to values, or several of them, "
                f"got {config!r}."
            )
    return [{name: config[name] for name in config.keys()} for config in many]


def _has_blank(column: Column) -> bool:
    """Whether nothing, or empty text, is one of the values of a parameter."""
    return isinstance(column, CategoricalColumn) and any(map(is_blank, column.choices))


def _is_categorical(column: Column) -> bool:
    return isinstance(column, CategoricalColumn) and not column.ordered


def _beside_cut(column: FloatColumn) -> float:
    """How far from a cut the numbers of a column are kept."""
    return _BESIDE_LOG_CUT if column.log else _BESIDE_CUT * _scale(column)


def _is_round(column: FloatColumn, value: float, x: float) -> bool:
    """Whether ``value`` has few digits, and is that of the very number ``x``."""
    if column.log:
        return float(f"{value:.12g}") == value and math.log10(value) == x
    # Not counted from its first one: 5e-324, the number next to a cut at 0, has few.
    return round(value, 12 - math.ceil(math.log10(_scale(column)))) == value


def _scale(column: FloatColumn) -> float:
    lower, upper = column.lower, column.upper
    return max(upper - lower, abs(lower), abs(upper), 1.0)
