"""`SearchSpace`: names, bounds and native values around a `ParameterTree`."""

from __future__ import annotations

__all__ = ["Constant", "SearchSpace"]

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputTransform,
    Log10,
    Normalize,
)
from torch import Tensor

from botorch_structured.spaces.columns import (
    CategoricalColumn,
    Column,
    FloatColumn,
    IntegerColumn,
    native,
    slack,
)
from botorch_structured.spaces.conditions import Condition
from botorch_structured.spaces.forbidden import Clause
from botorch_structured.spaces.parameter_tree import ParameterTree

if TYPE_CHECKING:
    from ax.core.search_space import SearchSpace as AxSearchSpace
    from ConfigSpace import ConfigurationSpace

# Random draws are thrown away where they are forbidden; so many in a row are too many.
_MAX_DRAWS = 1_000_000


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


class SearchSpace:
    """A search space with names, bounds and native values.

    Use it at the border between configurations (dictionaries of the active parameters)
    and the points that models and optimisers work on. Most spaces come from
    `from_configspace` or `from_ax`; the constructor is for spaces given as numbers.

    ============  ====================================================================
    parameter     column
    ============  ====================================================================
    float         the number; its decimal logarithm where the scale is logarithmic
    integer       the number, also where the scale is logarithmic
    ordinal       the position, in ``integer_features``
    categorical   the position, in ``categorical_features``
    constant      none; `decode` adds it
    ============  ====================================================================

    Columns of inactive parameters hold ``fill``, the middle of the bounds.

    Args:
        names: The names of the ``d`` columns.
        bounds: ``2 x d`` bounds, those of the logarithm for ``log_features``.
        tree: Which columns are active where. Default: all are, everywhere.
        integer_features: The columns that hold whole numbers.
        categorical_features: ``{column: [its numbers]}``. Decisions of the tree whose
            values are declared need not be listed.
        choices: ``{column: [values]}``: what the numbers of categorical columns stand
            for. Default: themselves.
        log_features: The columns that hold decimal logarithms (or, among the
            ``integer_features``, numbers on a logarithmic scale).
        feasible: ``m x d`` points -> ``m`` booleans: a further constraint.

    Raises:
        ValueError: Names are repeated, or arguments do not fit each other.
    """

    def __init__(
        self,
        names: Sequence[str],
        bounds: Tensor,
        tree: ParameterTree | None = None,
        integer_features: Sequence[int] = (),
        categorical_features: Mapping[int, Sequence[float]] | None = None,
        choices: Mapping[int, Sequence[Any]] | None = None,
        log_features: Sequence[int] = (),
        feasible: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        d = len(names)
        bounds = torch.as_tensor(bounds, dtype=torch.double)
        if bounds.shape != (2, d):
            raise ValueError(
                f"bounds expects 2 x {d} numbers for {d} names, got shape "
                f"{tuple(bounds.shape)}."
            )
        tree = ParameterTree(d) if tree is None else tree
        categorical: dict[int, Sequence[float]] = {
            c: tree.decision_values[c]
            for c in tree.decision_columns
            if c not in tree.numeric_decisions and c not in integer_features
        }
        categorical.update(categorical_features or {})
        given = [*integer_features, *categorical, *log_features, *(choices or {})]
        if any(not 0 <= c < d for c in given):
            raise ValueError(f"Expected columns in [0, {d - 1}], got {sorted(given)}.")
        columns: list[Column] = []
        for c, name in enumerate(names):
            lo, hi = bounds[:, c].tolist()
            if c in categorical:
                codes = [float(v) for v in categorical[c]]
                plain = [int(v) if v.is_integer() else v for v in codes]
                values = (choices or {}).get(c, plain)
                columns.append(CategoricalColumn(name, values, codes=codes))
            elif c in integer_features:
                columns.append(IntegerColumn(name, lo, hi, log=c in log_features))
            elif c in log_features:
                columns.append(FloatColumn(name, 10.0**lo, 10.0**hi, log=True))
            else:
                columns.append(FloatColumn(name, lo, hi))
        self._setup(columns, tree, feasible=feasible)

    @classmethod
    def from_columns(
        cls,
        columns: Sequence[Column],
        tree: ParameterTree,
        constants: Sequence[Constant] = (),
        forbidden: Sequence[Clause] = (),
        feasible: Callable[[Tensor], Tensor] | None = None,
    ) -> SearchSpace:
        """The space of these columns; what the other ways to build one end in."""
        space = cls.__new__(cls)
        space._setup(columns, tree, constants, forbidden, feasible)
        return space

    @classmethod
    def from_configspace(cls, cs: ConfigurationSpace) -> SearchSpace:
        """Read a ConfigSpace; it is not needed afterwards, nor changed.

        Random draws follow its scales and weights; normal and beta hyperparameters are
        drawn uniformly within their bounds.

        Args:
            cs: Floats, integers, ordinals, categoricals and constants; any conditions
                and forbidden clauses.

        Raises:
            ValueError: A hyperparameter, condition or clause of another kind.
        """
        from botorch_structured.spaces.configspace import read_configspace

        return cls.from_columns(*read_configspace(cs))

    @classmethod
    def from_ax(cls, search_space: AxSearchSpace) -> SearchSpace:
        """Read a search space of Ax; parameter constraints go into `feasible`.

        Args:
            search_space: Range, choice (also with ``dependents``) and fixed parameters.

        Raises:
            ImportError: Ax is not installed.
            ValueError: A parameter of another kind.
        """
        from botorch_structured.spaces.ax_space import read_ax

        return cls.from_columns(*read_ax(search_space))

    def _setup(
        self,
        columns: Sequence[Column],
        tree: ParameterTree,
        constants: Sequence[Constant] = (),
        forbidden: Sequence[Clause] = (),
        feasible: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        all_names = [c.name for c in columns] + [c.name for c in constants]
        if len(set(all_names)) < len(all_names):
            raise ValueError(f"names expects distinct names, got {sorted(all_names)}.")
        if tree.dim != len(columns):
            raise ValueError(
                f"tree expects as many columns as there are names ({len(columns)}), got "
                f"{tree.dim}."
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
        self._forbidden = tuple(forbidden)
        self._feasible = feasible
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

    # -- configurations to points and back -------------------------------------------

    def encode(self, configs: Any) -> Tensor:
        """Configurations as points.

        Args:
            configs: A mapping of the active parameters, constants included, or a
                ConfigSpace Configuration; or several of them.

        Returns:
            ``n x d`` points without NaN.

        Raises:
            ValueError: Unknown names, active parameters that are missing, inactive ones
                that are given, values a parameter cannot take.
        """
        many = [configs] if isinstance(configs, Mapping) else list(configs)
        rows = [dict(config) for config in many]
        X = self.fill.repeat(len(rows), 1)
        given = torch.zeros(len(rows), self.dim, dtype=torch.bool)
        constant_names = {c.name for c in self.constants}
        for i, row in enumerate(rows):
            unknown = [
                k for k in row if k not in self._position and k not in constant_names
            ]
            if unknown:
                raise ValueError(
                    f"Expected parameters among {self._all_names()}, got unknown ones "
                    f"{unknown} in {row}."
                )
            for name, value in row.items():
                if name in self._position:
                    c = self._position[name]
                    X[i, c] = self.columns[c].encode(value)
                    given[i, c] = True
        active = self.tree.active_mask(X)
        self._check_given(rows, X, active, given)
        return X

    def _all_names(self) -> list[str]:
        return [c.name for c in self._ordered()]

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
        present = self._constants_active(X, active)
        wrong = (active != given).any(-1)
        for i, row in enumerate(rows):
            fixed = {
                c.name: c.value
                for c, on in zip(self.constants, present[i].tolist(), strict=True)
                if on
            }
            missing = [int(c) for c in (active[i] & ~given[i]).nonzero()]
            # A missing decision makes its children unknown: name only the decision.
            top = [c for c in missing if not self._above(c) & set(missing)]
            absent = [self.names[c] for c in top] + [k for k in fixed if k not in row]
            expected = [self.names[c] for c in active[i].nonzero().flatten().tolist()]
            if absent:
                raise ValueError(
                    f"Expected values for the active parameters {expected + list(fixed)}"
                    f", got {row} without {absent}."
                )
            extra = [self.names[int(c)] for c in (given[i] & ~active[i]).nonzero()]
            extra += [
                c.name for c in self.constants if c.name in row and c.name not in fixed
            ]
            if bool(wrong[i]) or extra:
                raise ValueError(
                    f"Expected the active parameters {expected + list(fixed)} only, got "
                    f"{row} with {extra}, which is inactive there."
                )
            for name, value in fixed.items():
                if native(row[name]) != value:
                    raise ValueError(
                        f"{name!r} expects its constant {value!r}, got {row[name]!r}."
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
        X = X.unsqueeze(0) if X.dim() == 1 else X
        if X.dim() != 2 or X.shape[-1] != self.dim:
            raise ValueError(
                f"X expects n x {self.dim} points, got shape {tuple(X.shape)}."
            )
        X = self._snap(X.detach().double().cpu())
        active = self.tree.active_mask(X)
        outside = active & ~self._inside(X)
        if outside.any():
            i, c = outside.nonzero()[0].tolist()
            lo, hi = self.columns[c].bounds
            raise ValueError(
                f"{self.names[c]!r} (column {c}) expects numbers in [{lo}, {hi}], got "
                f"{X[i, c].item()} in row {i}."
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
                    config[item.name] = self.columns[c].decode(row[c])
            configs.append(config)
        return configs

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

    # -- sets of points --------------------------------------------------------------

    def feasible(self, X: Tensor) -> Tensor:
        """Which points are configurations of this space.

        Discrete columns are rounded first. A point is not feasible if an active column
        is out of bounds, a decision between its values, or a combination forbidden.

        Args:
            X: ``batch_shape x m x d`` points.

        Returns:
            ``batch_shape x m`` booleans.
        """
        points = self._snap(X.detach())
        active = self.tree.active_mask(points, strict=False)
        good = (self._inside(points) | ~active).all(-1) & self.tree.is_declared(points)
        for clause in self._forbidden:
            good = good & ~clause.holds(points, active)
        if self._feasible is not None:
            good = good & self._feasible(points)
        return good

    def impute(self, X: Tensor) -> Tensor:
        """``batch_shape x n x d`` points with ``fill`` in their inactive columns."""
        return self.tree.impute(X, self.fill)

    def sample(self, n: int, seed: int | None = None) -> Tensor:
        """Random feasible points, every parameter drawn on its own scale.

        Args:
            n: How many.
            seed: The same seed gives the same points. Default: PyTorch's generator.

        Returns:
            ``n x d`` points.

        Raises:
            ValueError: Next to nothing is feasible.
        """
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        found: list[Tensor] = []
        missing, drawn, batch = n, 0, n
        while missing > 0:
            X = torch.stack([c.draw(batch, generator) for c in self.columns], -1)
            X = self.impute(X)
            drawn += batch
            found.append(X[self.feasible(X)][:missing])
            missing -= len(found[-1])
            if missing and drawn > _MAX_DRAWS:
                raise ValueError(
                    f"sample expects a space where some points are feasible, got "
                    f"{n - missing} of {drawn} random draws that are."
                )
            batch = max(64, min(2 * batch, 16384))
        return torch.cat(found) if found else self.bounds.new_zeros(0, self.dim)

    def input_transform(self) -> InputTransform | None:
        """The transform that brings the columns to the unit interval for a model.

        Integers on a logarithmic scale pass through `Log10` first. Decisions and
        categorical columns are left alone, since they are looked up by value.

        Returns:
            A BoTorch input transform; None if there is nothing to transform.
        """
        alone = {*self.tree.decision_columns, *self.categorical_features}
        lo, hi = self.bounds
        numbers = [c for c in range(self.dim) if c not in alone and bool(lo[c] < hi[c])]
        if not numbers:
            return None
        logs = [
            c
            for c in numbers
            if isinstance(col := self.columns[c], IntegerColumn) and col.log
        ]
        bounds = self.bounds.clone()
        bounds[:, logs] = bounds[:, logs].log10()
        normalize = Normalize(self.dim, indices=numbers, bounds=bounds)
        if not logs:
            return normalize
        return ChainedInputTransform(log=Log10(indices=logs), normalize=normalize)


def _is_categorical(column: Column) -> bool:
    return isinstance(column, CategoricalColumn) and not column.ordered
