"""`SearchSpace`: names, bounds and native values around a `ParameterTree`."""

from __future__ import annotations

__all__ = [
    "SearchSpace",
    "read_numbers",
]

import copy
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputTransform,
    Log10,
    Normalize,
)
from torch import Tensor

from botorch_structured.spaces.arguments import (
    check_booleans,
    check_by_column,
    check_columns,
    check_count,
    check_number,
    check_seed,
)
from botorch_structured.spaces.codec import Codec, Constant
from botorch_structured.spaces.columns import (
    CategoricalColumn,
    Column,
    FloatColumn,
    IntegerColumn,
)
from botorch_structured.spaces.forbidden import Clause
from botorch_structured.spaces.parameter_tree import ParameterTree

# ----------------------------------------------------------------------
# Reading a search space that is given as numbers: names, bounds, lists of columns.

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
        c: tree.decision_values[c]
        for c in tree.decision_columns
        if c not in tree.numeric_decisions and c not in whole
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
            _check_among(what, c, codes[c], declared, lo, hi)
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


def _check_among(
    what: str,
    col: int,
    codes: Sequence[float],
    declared: Sequence[float] | None,
    lo: float,
    hi: float,
) -> None:
    """Raise unless the numbers of a categorical column may occur."""
    outside = [v for v in codes if not lo <= v <= hi]
    if outside:
        raise ValueError(
            f"{what}: expected values within the bounds of column {col}, {lo} to {hi}, "
            f"got {outside}."
        )
    odd = [v for v in codes if declared is not None and v not in declared]
    if odd:
        raise ValueError(
            f"{what}: expected among the values that the tree declares, "
            f"{list(declared or ())}, got {odd}."
        )


# ----------------------------------------------------------------------
if TYPE_CHECKING:
    from ConfigSpace import ConfigurationSpace

# Random draws are thrown away where they are forbidden; so many in a row are too many.
_MAX_DRAWS = 1_000_000


class _Constraint:
    """The function of a space that says what is feasible."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        self.function = function

    def __call__(self, X: Tensor) -> Any:
        return self.function(X)

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            pickle.dumps(self.function)
        except Exception as error:  # pickle has many kinds of them
            raise pickle.PicklingError(
                "feasible: expected a function that can be pickled, defined at the top "
                f"level of a module, got {self.function!r} ({error})."
            ) from None
        return type(self), (self.function,)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Constraint:
        return self  # nothing about it changes


class SearchSpace(Codec):
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
        tree: Which columns are active where. Default: all are, everywhere. ``.tree`` is
            equal to it and knows of this space, see `ParameterTree.of_space`.
        integer_features: The columns that hold whole numbers.
        categorical_features: ``{column: [its numbers]}``. Decisions of the tree whose
            values are declared need not be listed.
        choices: ``{column: [values]}``: what the numbers of categorical columns stand
            for. Default: themselves.
        log_features: The columns that hold decimal logarithms (or, among the
            ``integer_features``, numbers on a logarithmic scale).
        feasible: ``m x d`` points -> ``m`` booleans (``torch.bool``): a further
            constraint. A space, and a model over its tree, can be pickled (saved, or
            sent to another process) only if this is a function defined at the top level
            of a module, or another object that can be.

    Raises:
        ValueError: Which argument, what was expected, what came: names that are
            repeated, values outside of the bounds, arguments that do not fit.
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
        columns, tree = read_numbers(
            names,
            bounds,
            tree,
            integer_features,
            categorical_features,
            choices,
            log_features,
        )
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
    def from_ax(cls, search_space: Any) -> SearchSpace:
        """Read a search space of Ax; parameter constraints go into `feasible`.

        Args:
            search_space: Range, choice (also with ``dependents``) and fixed parameters.
                A logit scale is read as a linear one.

        Raises:
            ImportError: Ax is not installed.
            ValueError: A parameter of another kind, a task or a fidelity.
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
        if feasible is not None and not callable(feasible):
            raise ValueError(f"feasible: expected a callable, got {feasible!r}.")
        Codec.__init__(self, columns, tree, constants)
        self.tree = tree.of_space(self)
        self._forbidden = tuple(forbidden)
        self._feasible = None if feasible is None else _Constraint(feasible)

    def __deepcopy__(self, memo: dict[int, Any]) -> SearchSpace:
        copied = copy.copy(self)
        memo[id(self)] = copied
        columns = copy.deepcopy(self.columns, memo)  # they remember values they met
        Codec.__init__(copied, columns, self.tree, self.constants)
        copied.tree = self.tree.of_space(copied)
        return copied

    @property
    def is_restricted(self) -> bool:
        """Whether a clause or a constraint forbids some points within the bounds."""
        return bool(self._forbidden) or self._feasible is not None

    def feasible(self, X: Tensor) -> Tensor:
        """Which points are configurations of this space.

        Discrete columns are rounded first. A point is not feasible if an active column
        is NaN or out of bounds, a decision between its values, or a combination
        forbidden. Inactive columns may hold anything, NaN included.

        Args:
            X: ``batch_shape x m x d`` points.

        Returns:
            ``batch_shape x m`` booleans.
        """
        self.tree._check_points(X)
        points = self._snap(X.detach())
        active = self.tree.active_mask(points, strict=False)
        good = (self._inside(points) | ~active).all(-1) & self.tree.is_declared(points)
        for clause in self._forbidden:
            good = good & ~clause.holds(points, active)
        if self._feasible is not None:
            verdict = self._feasible(points)
            good = good & check_booleans("feasible", verdict, good.shape)
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
            ValueError: An argument is not what it should be, or next to nothing is
                feasible.
        """
        n = check_count("n", n, least=0)
        seed = check_seed(seed)
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
                    "feasible: expected some points that are, got "
                    f"{n - missing} of {drawn} random draws."
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
