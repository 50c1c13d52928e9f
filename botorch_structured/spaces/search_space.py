"""`SearchSpace`: names, bounds and native values around a `ParameterTree`."""

from __future__ import annotations

__all__ = ["SearchSpace"]

import copy
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputTransform,
    Log10,
    Normalize,
)
from torch import Tensor

from botorch_structured.spaces.arguments import check_booleans, check_count, check_seed
from botorch_structured.spaces.codec import Codec, Constant
from botorch_structured.spaces.columns import Column, IntegerColumn
from botorch_structured.spaces.forbidden import Clause
from botorch_structured.spaces.numbers import read_numbers
from botorch_structured.spaces.parameter_tree import ParameterTree

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
