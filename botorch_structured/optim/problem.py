"""The arguments that the optimisers of this package share, checked once."""

from __future__ import annotations

__all__ = [
    "MAX_PATHS",
    "Feasible",
    "Problem",
    "check_acquisition",
    "check_count",
    "check_points",
    "make_problem",
]

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction, OneShotAcquisitionFunction
from torch import Tensor

from botorch_structured.optim.grids import Grid
from botorch_structured.spaces import ParameterTree

# All paths are searched up to this number of them.
MAX_PATHS = 1024

Feasible = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LinearConstraint:
    """``sum_i coefficients[i] x[columns[i]] >= rhs``."""

    columns: list[int]
    coefficients: Tensor
    rhs: float


@dataclass(frozen=True)
class Problem:
    """Where candidates may lie; see `optimize_acqf_paths` for the arguments.

    Args:
        tree: What is active where.
        listed: The same tree, with every outcome that may be proposed declared.
        bounds: ``2 x d``.
        fill: ``d`` numbers that inactive columns hold.
        grids: Discrete column -> its admissible values.
        fixed: Column -> its value, where the column is active.
        constraints: Linear constraints, binding where all their columns are active.
        feasible: Any other restriction.
        known: ``m x d`` points not to be proposed.
        min_distance: How far from them, in widths of the bounds.
        max_paths: The number of paths up to which all of them are searched.
    """

    tree: ParameterTree
    listed: ParameterTree
    bounds: Tensor
    fill: Tensor
    grids: dict[int, Grid]
    fixed: dict[int, float]
    constraints: list[LinearConstraint]
    feasible: Feasible | None
    known: Tensor
    max_paths: int
    min_distance: float = 0.0

    @cached_property
    def shared(self) -> Tensor:
        """``d`` booleans: columns active on several paths."""
        mask = torch.zeros(self.tree.dim, dtype=torch.bool, device=self.bounds.device)
        mask[self.tree.shared_columns] = True
        return mask

    @cached_property
    def own(self) -> Tensor:
        """``d`` booleans: columns active on one path only."""
        mask = torch.zeros(self.tree.dim, dtype=torch.bool, device=self.bounds.device)
        mask[self.tree.own_columns] = True
        return mask

    def snap(self, X: Tensor, free: Tensor) -> Tensor:
        """Free discrete columns at their nearest admissible value."""
        if not self.grids:
            return X
        X = X.clone()
        for col, grid in self.grids.items():
            X[:, col] = torch.where(free[:, col], grid.snap(X[:, col]), X[:, col])
        return X

    def admissible(self, X: Tensor, active: Tensor) -> Tensor:
        """Which points satisfy the linear constraints and ``feasible``.

        Args:
            X: ``n x d`` points, discrete columns at admissible values.
            active: ``n x d`` booleans.

        Returns:
            ``n`` booleans.
        """
        ok = torch.ones(len(X), dtype=torch.bool, device=X.device)
        for c in self.constraints:
            binds = active[:, c.columns].all(-1)
            ok &= ~binds | (X[:, c.columns] @ c.coefficients >= c.rhs)
        if self.feasible is not None and ok.any():
            rows = ok.nonzero().squeeze(-1)
            verdict = torch.as_tensor(self.feasible(X[rows]), device=X.device)
            if verdict.shape != rows.shape:
                raise ValueError(
                    f"feasible expects to return {len(rows)} booleans for as many "
                    f"rows, got shape {tuple(verdict.shape)}."
                )
            ok[rows] = verdict.bool()
        return ok


def check_acquisition(acq_function: Any, name: str) -> None:
    """Raise unless ``acq_function`` maps ``b x 1 x d`` points to ``b`` values."""
    if isinstance(acq_function, OneShotAcquisitionFunction):
        raise ValueError(
            f"{name} expects an acquisition function of one point at a time, got the "
            f"one-shot {type(acq_function).__name__}: use qLogNoisyExpectedImprovement "
            "here, or botorch.optim.optimize_acqf_mixed for this one."
        )
    if not isinstance(acq_function, AcquisitionFunction):
        raise ValueError(
            f"{name} expects a BoTorch AcquisitionFunction, got "
            f"{type(acq_function).__name__}."
        )


def check_count(name: str, value: Any) -> int:
    """``value`` if it is a positive integer."""
    number = _integer(value)
    if number is None or number < 1:
        raise ValueError(f"{name} expects a positive integer, got {value!r}.")
    return number


def make_problem(
    bounds: Tensor,
    tree: ParameterTree,
    integer_features: Sequence[int] | None,
    categorical_features: Mapping[int, Sequence[float]] | None,
    fixed_features: Mapping[int, float] | None,
    inequality_constraints: Sequence[tuple[Tensor, Tensor, float]] | None,
    feasible: Feasible | None,
    X_avoid: Tensor | None,
    fill: float | Tensor,
    max_paths: int,
    min_distance: float = 0.0,
) -> Problem:
    """Check the arguments shared by all optimisers.

    Raises:
        ValueError: Which argument, what was expected, what came.
    """
    if not isinstance(tree, ParameterTree):
        raise ValueError(
            "tree expects a ParameterTree (model.tree, ParameterTree(d, {...})), "
            f"got {type(tree).__name__}."
        )
    d = tree.dim
    if (
        not isinstance(bounds, Tensor)
        or bounds.shape != (2, d)
        or not bounds.is_floating_point()
    ):
        got = tuple(bounds.shape) if isinstance(bounds, Tensor) else bounds
        raise ValueError(f"bounds expects a floating-point 2 x {d} tensor, got {got}.")
    if not bounds.isfinite().all() or (bounds[0] > bounds[1]).any():
        raise ValueError(
            "bounds expects finite lower bounds at most as large as the upper ones, "
            f"got {bounds.tolist()}."
        )
    bounds = bounds.detach()
    fill_row = torch.as_tensor(fill, dtype=bounds.dtype, device=bounds.device)
    if fill_row.dim() > 1 or fill_row.numel() not in (1, d):
        raise ValueError(
            f"fill expects a number or {d} numbers, got shape {tuple(fill_row.shape)}."
        )
    if feasible is not None and not callable(feasible):
        raise ValueError(f"feasible expects a callable, got {feasible!r}.")
    if not 0.0 <= min_distance < 1.0:
        raise ValueError(
            "min_distance expects a share of the width of the bounds, from 0 to less "
            f"than 1, got {min_distance!r}."
        )
    grids = _grids(d, integer_features, categorical_features)
    fixed = _fixed(d, fixed_features, grids)
    known = bounds.new_zeros(0, d)
    if X_avoid is not None:
        known = check_points("X_avoid", X_avoid, d).to(bounds)
    return Problem(
        tree=tree,
        listed=_with_outcomes(tree, categorical_features or {}, fixed),
        bounds=bounds,
        fill=fill_row.expand(d),
        grids=grids,
        fixed=fixed,
        constraints=_constraints(d, inequality_constraints, bounds),
        feasible=feasible,
        known=tree.impute(known, fill_row),
        max_paths=check_count("max_paths", max_paths),
        min_distance=float(min_distance),
    )


def check_points(name: str, X: Any, d: int) -> Tensor:
    """``X`` if it is ``m x d`` finite numbers."""
    if not isinstance(X, Tensor) or X.dim() != 2 or X.shape[-1] != d:
        got = tuple(X.shape) if isinstance(X, Tensor) else type(X).__name__
        raise ValueError(f"{name} expects an m x {d} tensor, got {got}.")
    if not X.isfinite().all():
        raise ValueError(f"{name} expects finite numbers, got NaN or infinity.")
    return X.detach()


def _check_column(name: str, col: Any, d: int) -> int:
    number = _integer(col)
    if number is None or not -d <= number < d:
        raise ValueError(f"{name} expects columns from 0 to {d - 1}, got {col!r}.")
    return number % d


def _integer(value: Any) -> int | None:
    """An integer of any library as Python's; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _grids(
    d: int,
    integer_features: Sequence[int] | None,
    categorical_features: Mapping[int, Sequence[float]] | None,
) -> dict[int, Grid]:
    grids = {
        _check_column("integer_features", c, d): Grid() for c in integer_features or ()
    }
    for c, values in (categorical_features or {}).items():
        col = _check_column("categorical_features", c, d)
        found = tuple(sorted({float(v) for v in values}))
        if not found or not all(map(math.isfinite, found)):
            raise ValueError(
                f"categorical_features[{c}] expects at least one finite value, got "
                f"{list(values)}."
            )
        # A column named in both is an integer with gaps: neighbours are alike.
        grids[col] = Grid(found, ordered=col in grids)
    return grids


def _fixed(
    d: int, fixed_features: Mapping[int, float] | None, grids: Mapping[int, Grid]
) -> dict[int, float]:
    fixed = {}
    for c, v in (fixed_features or {}).items():
        col = _check_column("fixed_features", c, d)
        value = float(v)
        if not math.isfinite(value):
            raise ValueError(f"fixed_features[{c}] expects a finite number, got {v}.")
        if col in grids:
            nearest = grids[col].snap(torch.tensor([value], dtype=torch.double))
            if abs(float(nearest) - value) > 1e-9:
                expected = grids[col].values or "an integer"
                raise ValueError(f"fixed_features[{c}] expects {expected}, got {v}.")
        fixed[col] = value
    return fixed


def _constraints(
    d: int,
    inequality_constraints: Sequence[tuple[Tensor, Tensor, float]] | None,
    like: Tensor,
) -> list[LinearConstraint]:
    found = []
    for k, (indices, coefficients, rhs) in enumerate(inequality_constraints or ()):
        name = f"inequality_constraints[{k}]"
        indices = torch.as_tensor(indices)
        coefficients = torch.as_tensor(coefficients).to(like)
        if indices.dim() != 1 or indices.shape != coefficients.shape:
            raise ValueError(
                f"{name} expects as many coefficients as columns of one point, got "
                f"shapes {tuple(indices.shape)} and {tuple(coefficients.shape)}."
            )
        columns = [_check_column(name, int(c), d) for c in indices]
        found.append(LinearConstraint(columns, coefficients, float(rhs)))
    return found


def _with_outcomes(
    tree: ParameterTree,
    categorical_features: Mapping[int, Sequence[float]],
    fixed: Mapping[int, float],
) -> ParameterTree:
    """The tree with the outcomes declared that other arguments name."""
    strict: Mapping[int, Sequence[float]] = tree._values
    extended: dict[int, list[float]] = {}
    for col in tree.decision_columns:
        if col in tree.numeric_decisions:
            continue
        declared = tree.decision_values[col]
        named = {
            "categorical_features": list(categorical_features.get(col, ())),
            "fixed_features": [fixed[col]] if col in fixed else [],
        }
        for name, values in named.items():
            new = [float(v) for v in values if v not in extended.get(col, declared)]
            if new and col in strict:
                raise ValueError(
                    f"{name} expects for column {col} one of the values that the tree "
                    f"declares, {list(declared)}, got {new}."
                )
            if new:
                extended[col] = sorted({*extended.get(col, declared), *new})
    if not extended:
        return tree
    return ParameterTree(
        tree.dim, conditions=tree.conditions, values={**strict, **extended}
    )
