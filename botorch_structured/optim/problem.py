"""The arguments that the optimisers of this package share, checked once."""

from __future__ import annotations

__all__ = [
    "Feasible",
    "Grid",
    "MAX_PATHS",
    "Problem",
    "check_acquisition",
    "check_points",
    "is_known",
    "make_problem",
]

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction, OneShotAcquisitionFunction
from torch import Tensor

from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import (
    check_booleans,
    check_by_column,
    check_column,
    check_columns,
    check_count,
    check_number,
)
from botorch_structured.spaces.columns import slack

# ----------------------------------------------------------------------
# Columns that take only some values: integers, and the values of a categorical.

# Other values of a categorical that one step of a local search looks at, at most.
_MAX_ALTERNATIVES = 64


@dataclass(frozen=True)
class Grid:
    """The values a discrete column may take, as positions 0, 1, 2, ...

    Args:
        values: The admissible values, ascending; ``None`` for all integers.
        ordered: Whether neighbouring positions are alike (integers), so that a search
            steps along them, or not (categoricals), so that it tries them all.
    """

    values: tuple[float, ...] | None = None
    ordered: bool = True

    def _table(self, like: Tensor) -> Tensor:
        return torch.tensor(self.values, dtype=like.dtype, device=like.device)

    def position(self, X: Tensor) -> Tensor:
        """The position of the nearest admissible value."""
        if self.values is None:
            return X.round()
        table = self._table(X)
        if len(table) == 1:
            return torch.zeros_like(X)
        right = torch.searchsorted(table, X.contiguous()).clamp(1, len(table) - 1)
        left = right - 1
        nearer = X - table[left] <= table[right] - X
        return torch.where(nearer, left, right).to(X)

    def value(self, position: Tensor) -> Tensor:
        """The admissible value at a position."""
        if self.values is None:
            return position
        return self._table(position)[position.long()]

    def snap(self, X: Tensor) -> Tensor:
        """The nearest admissible value."""
        return self.value(self.position(X))

    def inside(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The first and last admissible value in ``[lower, upper]``.

        The first is above the last where there is none.
        """
        if self.values is None:
            return lower.ceil(), upper.floor()
        table = torch.tensor(
            [-math.inf, *self.values, math.inf], dtype=lower.dtype, device=lower.device
        )
        first = torch.searchsorted(table, lower.contiguous())
        last = torch.searchsorted(table, upper.contiguous(), right=True) - 1
        return table[first], table[last]

    def steps(self, span: float) -> list[int]:
        """How far a local search moves from a position, along ``span`` positions."""
        widest = int(span)
        if not self.ordered:
            widest = min(widest, _MAX_ALTERNATIVES)
            return [s for k in range(1, widest + 1) for s in (-k, k)]
        powers = [1 << k for k in range(widest.bit_length())]
        return [s for power in powers if power <= widest for s in (-power, power)]


# ----------------------------------------------------------------------
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
            verdict = check_booleans("feasible", self.feasible(X[rows]), rows.shape)
            ok[rows] = verdict.to(X.device)
        return ok


def check_acquisition(acq_function: Any, name: str) -> None:
    """Raise unless ``acq_function`` maps ``b x 1 x d`` points to ``b`` values."""
    if isinstance(acq_function, OneShotAcquisitionFunction):
        raise ValueError(
            f"{name}: expected an acquisition function of one point at a time, got the "
            f"one-shot {type(acq_function).__name__}: use qLogNoisyExpectedImprovement "
            "here, or botorch.optim.optimize_acqf_mixed for this one."
        )
    if not isinstance(acq_function, AcquisitionFunction):
        raise ValueError(
            f"{name}: expected a BoTorch AcquisitionFunction, got "
            f"{type(acq_function).__name__}."
        )


def make_problem(
    bounds: Tensor | None,
    tree: ParameterTree | None,
    integer_features: Sequence[int] | None,
    categorical_features: Mapping[int, Sequence[float]] | None,
    fixed_features: Mapping[int, float] | None,
    inequality_constraints: Sequence[tuple[Tensor, Tensor, float]] | None,
    feasible: Feasible | None,
    X_avoid: Tensor | None,
    fill: float | Tensor | None,
    max_paths: int,
    min_distance: float = 0.0,
    space: SearchSpace | None = None,
    acq_function: AcquisitionFunction | None = None,
) -> Problem:
    """Check the arguments shared by all optimisers.

    A ``space`` is its bounds and its tree; and a tree that belongs to a space brings
    along what that says about columns. What is given beside it restricts further.
    ``acq_function`` tells where the numbers of a space are to live.

    Raises:
        ValueError: Which argument, what was expected, what came.
    """
    if space is not None:
        instead = {
            "bounds": bounds,
            "tree": tree,
            "integer_features": integer_features,
            "categorical_features": categorical_features,
            "fill": fill,
        }
        _check_space(space, [k for k, v in instead.items() if v is not None])
        modelled = getattr(getattr(acq_function, "model", None), "tree", None)
        if isinstance(modelled, ParameterTree) and modelled.dim != space.dim:
            raise ValueError(
                f"space: expected one of {modelled.dim} columns, as many as the model "
                f"of the acquisition function has, got {space.dim}."
            )
        bounds, tree = space.bounds.to(_like(space.bounds, acq_function)), space.tree
    tree = _check_tree(bounds, tree)
    d = tree.dim
    bounds = _check_bounds(bounds, d)
    if feasible is not None and not callable(feasible):
        raise ValueError(f"feasible: expected a callable, got {feasible!r}.")
    whole = check_columns(
        "integer_features",
        () if integer_features is None else integer_features,
        d,
        True,
    )
    listed = check_by_column("categorical_features", categorical_features, d, True)
    known_space = tree.space
    if known_space is not None:
        _check_scale(bounds, known_space)
        whole = sorted({*whole, *known_space.integer_features})
        listed = _within_categories(listed, known_space)
        if known_space.is_restricted:
            feasible = _both(known_space.feasible, feasible)
        fill = known_space.fill if fill is None else fill
    fill_row = _check_fill(0.5 if fill is None else fill, d, bounds)
    distance = check_number("min_distance", min_distance)
    if not 0.0 <= distance < 1.0:
        raise ValueError(
            "min_distance: expected a share of the width of the bounds, from 0 to less "
            f"than 1, got {min_distance!r}."
        )
    grids = _grids(whole, listed)
    fixed = _fixed(d, fixed_features, grids, bounds)
    known = bounds.new_zeros(0, d)
    if X_avoid is not None:
        known = check_points("X_avoid", X_avoid, tree, bounds)
    return Problem(
        tree=tree,
        listed=_with_outcomes(tree, listed, fixed),
        bounds=bounds,
        fill=fill_row.expand(d),
        grids=grids,
        fixed=fixed,
        constraints=_constraints(d, inequality_constraints, bounds),
        feasible=feasible,
        known=tree.impute(known, fill_row),
        max_paths=check_count("max_paths", max_paths),
        min_distance=distance,
    )


def _check_space(space: SearchSpace, also: list[str]) -> None:
    if not isinstance(space, SearchSpace):
        raise ValueError(
            "space: expected a SearchSpace (SearchSpace.from_configspace(cs)), got "
            f"{type(space).__name__}."
        )
    if also:
        raise ValueError(
            "space: expected in place of bounds, tree, integer_features, "
            f"categorical_features and fill, got {', '.join(also)} as well."
        )


def _like(numbers: Tensor, acq_function: AcquisitionFunction | None) -> Tensor:
    """A tensor of the acquisition function's precision and device."""
    parameters = () if acq_function is None else acq_function.parameters()
    return next((p for p in parameters if p.is_floating_point()), numbers)


def _check_tree(bounds: Any, tree: Any) -> ParameterTree:
    if bounds is None or tree is None:
        got = f"{type(bounds).__name__} and {type(tree).__name__}"
        raise ValueError(
            "bounds, tree: expected both of them, or space=... (a SearchSpace) in "
            f"their place, got {got}."
        )
    if not isinstance(tree, ParameterTree):
        raise ValueError(
            "tree: expected a ParameterTree (model.tree, ParameterTree(d, {...})), "
            f"got {type(tree).__name__}."
        )
    return tree


def _check_bounds(bounds: Any, d: int) -> Tensor:
    if (
        not isinstance(bounds, Tensor)
        or bounds.shape != (2, d)
        or not bounds.is_floating_point()
    ):
        got: Any = type(bounds).__name__
        if isinstance(bounds, Tensor):
            got = f"shape {tuple(bounds.shape)} of {bounds.dtype}"
        raise ValueError(
            f"bounds: expected a floating-point 2 x {d} tensor, got {got}."
        )
    if not bounds.isfinite().all() or (bounds[0] > bounds[1]).any():
        raise ValueError(
            "bounds: expected finite lower bounds at most as large as the upper ones, "
            f"got {bounds.tolist()}."
        )
    return bounds.detach()


def _both(first: Feasible, second: Feasible | None) -> Feasible:
    """Where both hold."""
    if second is None:
        return first
    return lambda X: (
        first(X) & check_booleans("feasible", second(X), X.shape[:-1]).to(X.device)
    )


def _within_categories(
    listed: dict[int, list[Any]], space: SearchSpace
) -> dict[int, list[Any]]:
    """The values of categorical columns: those of the space, or fewer."""
    for col, codes in space.categorical_features.items():
        odd = [v for v in listed.get(col, ()) if v not in codes]
        if odd:
            raise ValueError(
                f"categorical_features[{col}]: expected among the values that the "
                f"space of the tree has, {codes}, got {odd}."
            )
    return {**space.categorical_features, **listed}


def _check_scale(bounds: Tensor, space: SearchSpace) -> None:
    """What a space says about columns holds on its own scale only."""
    columns = set(range(space.dim) if space.is_restricted else space.integer_features)
    # Categories are looked up whatever the bounds are.
    for c in sorted(columns - space.categorical_features.keys()):
        lo, hi = space.bounds[:, c].tolist()
        room = slack((lo, hi))
        here = bounds[:, c].tolist()
        if here[0] < lo - room or here[1] > hi + room:
            raise ValueError(
                "bounds: expected those of the space that the tree belongs to, or "
                f"narrower ones, {lo} to {hi} for column {c} ({space.names[c]!r}), got "
                f"{here[0]} to {here[1]}. Another scale needs a tree of its own."
            )


def _check_fill(fill: Any, d: int, like: Tensor) -> Tensor:
    try:
        row = torch.as_tensor(fill, dtype=like.dtype, device=like.device)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"fill: expected a number or {d}, got {fill!r}.") from None
    if row.dim() > 1 or row.numel() not in (1, d):
        raise ValueError(
            f"fill: expected a number or {d} numbers, got shape {tuple(row.shape)}."
        )
    if not row.isfinite().all():
        raise ValueError(f"fill: expected finite numbers, got {row.tolist()}.")
    return row


def check_points(name: str, X: Any, tree: ParameterTree, like: Tensor) -> Tensor:
    """``X`` if it is ``m x d`` numbers, finite where columns are active.

    Args:
        name: Of the argument.
        X: What was given.
        tree: Says which columns are active. What the others hold does not matter.
        like: A tensor of the precision and on the device that is wanted.
    """
    if not isinstance(X, Tensor) or X.dim() != 2 or X.shape[-1] != tree.dim:
        got: Any = tuple(X.shape) if isinstance(X, Tensor) else type(X).__name__
        raise ValueError(f"{name}: expected an m x {tree.dim} tensor, got {got}.")
    X = X.detach().to(like)
    try:
        active = tree.active_mask(X)
    except ValueError as error:
        raise ValueError(f"{name}: {str(error).removeprefix('X: ')}") from None
    bad = active & ~X.isfinite()
    if bad.any():
        row, col = bad.nonzero()[0].tolist()
        raise ValueError(
            f"{name}: expected finite numbers in active columns, got {X[row, col]} in "
            f"row {row}, column {col}."
        )
    return X


def _grids(
    whole: Sequence[int], categorical_features: Mapping[int, list[Any]]
) -> dict[int, Grid]:
    grids = {c: Grid() for c in whole}
    for col, values in categorical_features.items():
        name = f"categorical_features[{col}]"
        found = tuple(sorted({check_number(name, v) for v in values}))
        if not found:
            raise ValueError(f"{name}: expected at least one value, got {values}.")
        # A column named in both is an integer with gaps: neighbours are alike.
        grids[col] = Grid(found, ordered=col in grids)
    return grids


def _fixed(
    d: int,
    fixed_features: Mapping[int, float] | None,
    grids: Mapping[int, Grid],
    bounds: Tensor,
) -> dict[int, float]:
    if fixed_features is not None and not isinstance(fixed_features, Mapping):
        raise ValueError(
            f"fixed_features: expected {{column: value}}, got {fixed_features!r}."
        )
    fixed = {}
    for c, v in (fixed_features or {}).items():
        col = check_column("fixed_features", c, d, True)
        if col in fixed:
            raise ValueError(
                "fixed_features: expected each column once, got column "
                f"{col} twice in {dict(fixed_features or {})}."
            )
        value = check_number(f"fixed_features[{c}]", v)
        lo, hi = bounds[:, col].tolist()
        room = slack((lo, hi))
        if not lo - room <= value <= hi + room:
            raise ValueError(
                f"fixed_features[{c}]: expected a number within the bounds, {lo} to "
                f"{hi}, got {v}."
            )
        if col in grids:
            nearest = grids[col].snap(torch.tensor([value], dtype=torch.double))
            if abs(float(nearest) - value) > 1e-9:
                values = grids[col].values
                expected = f"one of {list(values)}" if values else "an integer"
                raise ValueError(f"fixed_features[{c}]: expected {expected}, got {v}.")
        fixed[col] = min(max(value, lo), hi)
    return fixed


def _constraints(
    d: int,
    inequality_constraints: Sequence[tuple[Tensor, Tensor, float]] | None,
    like: Tensor,
) -> list[LinearConstraint]:
    found = []
    if not isinstance(inequality_constraints, Sequence | None):
        raise ValueError(
            "inequality_constraints: expected a list of (indices, coefficients, rhs), "
            f"got {inequality_constraints!r}."
        )
    for k, constraint in enumerate(inequality_constraints or ()):
        name = f"inequality_constraints[{k}]"
        try:
            indices, coefficients, rhs = constraint
            indices = torch.as_tensor(indices)
            coefficients = torch.as_tensor(coefficients).to(like)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(
                f"{name}: expected (indices, coefficients, rhs), got {constraint!r}."
            ) from None
        if indices.dim() != 1 or indices.shape != coefficients.shape:
            raise ValueError(
                f"{name}: expected as many coefficients as columns of one point, got "
                f"shapes {tuple(indices.shape)} and {tuple(coefficients.shape)}."
            )
        if not coefficients.isfinite().all():
            raise ValueError(
                f"{name}: expected finite coefficients, got {coefficients.tolist()}."
            )
        columns = check_columns(name, indices.tolist(), d, True)
        found.append(LinearConstraint(columns, coefficients, check_number(name, rhs)))
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
                    f"{name}[{col}]: expected among the values that the tree "
                    f"declares, {list(declared)}, got {new}."
                )
            if new:
                extended[col] = sorted({*extended.get(col, declared), *new})
    if not extended:
        return tree
    return ParameterTree(
        tree.dim, conditions=tree.conditions, values={**strict, **extended}
    )


# ----------------------------------------------------------------------
# Tell points that are known already from new ones.

# Closer than this, in widths of the bounds, two points are the same to any model.
_SAME = {torch.float64: 1e-8, torch.float32: 1e-5}
_MAX_NUMBERS = 1 << 24


def is_known(problem: Problem, X: Tensor, known: Tensor) -> Tensor:
    """Which candidates equal a known point on the columns that are active.

    Or, in the columns that move continuously, are nearer than ``min_distance``.

    Args:
        problem: The tree and the bounds.
        X: ``n x d`` candidates, inactive columns at the fill value.
        known: ``m x d`` points, likewise.

    Returns:
        ``n`` booleans.
    """
    found = torch.zeros(len(X), dtype=torch.bool, device=X.device)
    if not len(X) or not len(known):
        return found
    width = problem.bounds[1] - problem.bounds[0]
    slack = _SAME.get(X.dtype, 1e-5) * width
    if problem.min_distance:
        near = problem.min_distance * width
        near[list(problem.grids)] = 0.0  # neighbours on a grid are other points
        slack = torch.maximum(slack, near)
    # Equal points have equal projections on a line: sorted, few are left to compare.
    weight = torch.linspace(1.0, 2.0, X.shape[-1], dtype=X.dtype, device=X.device).sin()
    weight = weight / torch.where(width > 0, width, 1.0)
    line, order = (known @ weight).sort()
    at = X @ weight
    size = (X.abs() @ weight.abs()).max() + (known.abs() @ weight.abs()).max()
    reach = slack @ weight + 64 * torch.finfo(X.dtype).eps * size
    first = torch.searchsorted(line, at - reach)
    last = torch.searchsorted(line, at + reach, right=True)
    count = (last - first).clamp_min(0)
    keys, known_keys = problem.tree.path_key(X), problem.tree.path_key(known)
    piece = max(1, _MAX_NUMBERS // X.shape[-1])
    rows = (count > 0).nonzero().squeeze(-1)
    # As many rows at a time as have at most that many pairs, but at least one.
    group = (count[rows].cumsum(0) - 1).div(piece, rounding_mode="floor")
    for g in group.unique():
        part = rows[group == g]
        row = part.repeat_interleave(count[part])
        start = count[part].cumsum(0) - count[part]
        step = torch.arange(len(row), device=X.device)
        step = step - start.repeat_interleave(count[part])
        other = order[first[row] + step]
        # On the same path the same columns are active: the fill values agree, too.
        same = keys[row] == known_keys[other]
        row, other = row[same], other[same]
        same = ((X[row] - known[other]).abs() <= slack).all(-1)
        found[row[same]] = True
    return found
