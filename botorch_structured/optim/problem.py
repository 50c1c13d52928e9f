"""The arguments of an optimiser, checked once, and their meaning column by column.

`Problem` is their door. Tensors come in at this door and go out at the end; between
them a search works on NumPy arrays, whose operations take a third of the time at this
size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction, OneShotAcquisitionFunction
from botorch.acquisition.objective import IdentityMCObjective
from botorch.models import MultiTaskGP, SingleTaskGP
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import (
    check_booleans,
    check_by_column,
    check_column,
    check_columns,
    check_function,
    check_number,
    check_values,
)
from botorch_structured.spaces.columns import with_slack

Array = NDArray[Any]
Feasible = Callable[[Tensor], Tensor]
# Bounds, tree, columns of integers, column -> its admissible values, fill.
Columns = tuple[
    Tensor,
    ParameterTree,
    Sequence[int],
    Mapping[int, Sequence[float]],
    Tensor,
]
# All paths are searched up to this number of them; of more, random ones.
MAX_PATHS = 1024


@dataclass
class Values:
    """The contents of ``d`` columns: any number, any integer, or the values in a list.

    Those in a list have *positions* 0, 1, ...; other numbers are their own positions.

    Args:
        whole: ``d`` booleans: columns of integers.
        logarithmic: ``d`` booleans: the positive integers on a logarithmic scale.
        listed: ``d`` booleans: columns with a list.
        ordered: ``d`` booleans: the discrete columns along which a search steps, as
            neighbours are alike (integers); of others (categoricals) it tries all.
        table: ``d x w`` listed values, ascending, followed by at least one infinity.
        discrete: ``d`` booleans: columns of integers or with a list.
    """

    whole: Array
    logarithmic: Array
    listed: Array
    ordered: Array
    table: Array
    discrete: Array

    def position(self, X: Array, columns: Any = slice(None)) -> Array:
        """Positions of the nearest admissible values.

        Args:
            X: ``n x k`` numbers.
            columns: Their columns, ``k`` or ``n x k``. Default: all.
        """
        position: Array = np.where(self.whole[columns], np.rint(X), X)
        listed = np.broadcast_to(self.listed[columns], X.shape).nonzero()
        if len(listed[0]):
            numbers = np.arange(len(self.table))[columns]
            column = np.broadcast_to(numbers, X.shape)[listed]
            distance = np.abs(X[listed][:, None] - self.table[column])
            position[listed] = distance.argmin(-1)
        return position

    def value(self, position: Array, columns: Any = slice(None)) -> Array:
        """Admissible values at these positions, with columns as of `position`."""
        listed = np.broadcast_to(self.listed[columns], position.shape).nonzero()
        value = position.copy()
        numbers = np.arange(len(self.table))[columns]
        column = np.broadcast_to(numbers, position.shape)[listed]
        index = position[listed].clip(0, self.table.shape[1] - 1).astype(int)
        value[listed] = self.table[column, index]
        return value


@dataclass(frozen=True)
class LinearConstraint:
    """``sum_i coefficients[i] x[columns[i]] >= rhs``."""

    columns: list[int]
    coefficients: Tensor
    rhs: float


class Problem:
    """Where candidates may lie: the arguments of an optimiser, checked once.

    They are those of `optimize_acqf_paths`; the first acquisition function is the one
    that chooses candidates. Points that any of them has pending are known.

    Attributes:
        tree: What is active where. Every outcome that may be proposed is declared.
        space: The `SearchSpace` that the tree belongs to, or None.
        bounds: ``2 x d``.
        fill: ``d`` numbers that inactive columns hold.
        values: What each column may hold where it is active, whatever the path. A
            decision by value is a column with a list.
        lower: ``d`` smallest admissible values; fixed columns hold their value.
        upper: ``d`` largest ones; below ``lower`` in columns that have none.
        empty: ``d`` booleans: columns without an admissible value.
        outcomes: For each decision, the least and largest admissible value of each
            outcome.
        fixed: Column -> its value, where the column is active.
        constraints: Linear constraints, binding where all their columns are active.
        restrictions: What a space forbids, and ``feasible``.
        is_restricted: Whether there are constraints or restrictions.
        restricting: ``d`` booleans: the columns on which that depends.
        X_avoid: ``m x d`` points not to be proposed, pending ones included.
        good: ``k x d`` points to look around, the best first.
        good_keys: The keys of their paths.
        min_distance: How far from known points to stay, in widths of the bounds.
        device: That of the bounds.

    Raises:
        ValueError: Which argument, what was expected, what came.
    """

    def __init__(
        self,
        acq_functions: Sequence[Any],
        bounds: Tensor | None,
        tree: ParameterTree | None,
        integer_features: Sequence[int] | None,
        categorical_features: Mapping[int, Sequence[float]] | None,
        fill: float | Tensor | None,
        space: SearchSpace | None,
        *,
        fixed_features: Mapping[int, float] | None = None,
        inequality_constraints: Sequence[tuple[Tensor, Tensor, float]] | None = None,
        feasible: Feasible | None = None,
        X_avoid: Tensor | None = None,
        X_start: Tensor | None = None,
        min_distance: float = 0.0,
    ) -> None:
        check_acquisition(acq_functions[0], "acq_function")
        beside: dict[str, Any] = {
            "bounds": bounds,
            "tree": tree,
            "integer_features": integer_features,
            "categorical_features": categorical_features,
            "fill": fill,
        }
        if space is None:
            columns = _read_columns(**beside)
        else:
            columns = _columns_of(space, acq_functions[0], beside)
        limits, tree, whole, lists, row = columns
        d = tree.dim
        for acq_function in acq_functions:
            _check_model(acq_function, d)
        if feasible is not None:
            check_function("feasible", feasible)
        distance = check_number("min_distance", min_distance)
        if not 0.0 <= distance < 1.0:
            raise ValueError(
                "min_distance: expected a share of the width of the bounds, from 0 to "
                f"less than 1, got {min_distance!r}."
            )
        fixed = read_fixed(tree, limits, fixed_features, whole, lists)
        constraints = []
        if inequality_constraints is not None:
            constraints = _constraints(d, inequality_constraints, limits)
        tables = [limits[:0]]
        if X_avoid is not None:
            tables.append(check_points("X_avoid", X_avoid, tree, row))
        for acq_function in acq_functions:
            X = getattr(acq_function, "X_pending", None)
            if X is not None:
                X = X.reshape(-1, X.shape[-1])
                tables.append(check_points("X_pending", X, tree, row))
        avoid = torch.cat(tables).cpu()
        if X_start is None:
            start, rows = promising(tree, row, acq_functions[0])
        else:
            start = check_points("X_start", X_start, tree, row)
            rows = torch.arange(len(start))
        start = start.cpu()
        declaring = _declaring(tree, lists, fixed, [avoid, start])
        restricting: Sequence[int] = range(d) if feasible or constraints else ()
        restrictions = [feasible] if feasible else []
        informed = tree.space
        if informed is not None and informed.is_restricted:
            restricting = restricting or informed.restricting_columns
            restrictions.insert(0, informed.feasible)
        self.tree = declaring
        self.space = informed
        self.bounds = limits.cpu().numpy()
        self.fill = row.cpu().numpy()
        self.fixed = fixed
        self.values = self._read_values(whole, lists)
        self.empty = self.lower > self.upper
        self.outcomes = [*map(self._outcomes, declaring.decision_columns)]
        self.constraints = constraints
        self.restrictions = restrictions
        self.is_restricted = bool(constraints or restrictions)
        self.restricting = mask_of(restricting, d)
        self.X_avoid = avoid.numpy()
        self.good = start[rows].numpy()
        self.good_keys = declaring.path_key(start)[rows].numpy()
        self.min_distance = distance
        self.device = limits.device

    def _read_values(
        self, integers: Sequence[int], lists: Mapping[int, Sequence[float]]
    ) -> Values:
        """Admissible values of the columns within the bounds; sets the limits.

        Args:
            integers: The columns of integers.
            lists: Column -> its admissible values.
        """
        tree = self.tree
        tables: dict[int, Sequence[float]] = dict(lists)
        for c in tree.decisions_by_value:
            tables.setdefault(c, tree.decision_values[c])
        width = 2
        for numbers in tables.values():
            width = max(width, 1 + len(numbers))
        d = tree.dim
        low, high = self.bounds
        table = np.full((d, width), np.inf, low.dtype)
        for c, numbers in tables.items():
            table[c, : len(numbers)] = numbers
        inside = (low[:, None] <= table) & (table <= high[:, None])
        for c, value in self.fixed.items():
            inside[c] &= table[c] == low.dtype.type(value)
        table = np.sort(np.where(inside, table, np.inf))
        listed = mask_of([*tables], d)
        ordered = mask_of(integers, d)
        whole = ordered & ~listed
        self.lower = np.where(whole, np.ceil(low), low)
        self.upper = np.where(whole, np.floor(high), high)
        for c, value in self.fixed.items():
            self.lower[c] = self.upper[c] = value
        last = np.where(table < np.inf, table, -np.inf).max(-1)
        self.lower = np.where(listed, table[:, 0], self.lower)
        self.upper = np.where(listed, last, self.upper)
        logs = [] if self.space is None else self.space.log_integers
        logarithmic = mask_of(logs, d)
        # A column named in both is an integer with gaps: neighbours are alike. To a
        # search no outcome of a decision is like another.
        ordered[tree.decisions_by_value] = False
        return Values(
            whole,
            logarithmic & ~listed,
            listed,
            ordered,
            table,
            discrete=whole | listed,
        )

    def _outcomes(self, c: int) -> tuple[Array, Array]:
        """The least and largest admissible value of each outcome of a decision."""
        ends = np.array(self.tree.decision_values[c], self.lower.dtype)
        ends = ends.reshape(len(ends), -1)
        low = np.maximum(ends[:, 0], self.lower[c])
        high = np.minimum(ends[:, -1], self.upper[c])
        if self.values.whole[c]:
            return np.ceil(low), np.floor(high)
        if not self.values.listed[c]:
            return low, high
        table = self.values.table[c]
        last = table.searchsorted(high, "right") - 1
        first = table[table.searchsorted(low).clip(max=len(table) - 1)]
        return first, np.where(last < 0, -np.inf, table[last])

    @cached_property
    def shared(self) -> Array:
        """``d`` booleans: columns active on several paths."""
        return mask_of(self.tree.shared_columns, self.tree.dim)

    def tensor(self, X: Array) -> Tensor:
        """An array as a tensor on the device of the bounds."""
        return torch.from_numpy(X).to(self.device)

    def active(self, X: Array) -> Array:
        """``n x d`` booleans: which columns of points are active."""
        return self.tree.active_mask(torch.from_numpy(X)).numpy()

    def keys(self, X: Array) -> Array:
        """``n`` numbers: the paths of points."""
        return self.tree.path_key(torch.from_numpy(X)).numpy()

    def snap(self, X: Array, free: Array) -> Array:
        """``n x d`` points with free discrete columns at the nearest admissible value.

        Args:
            X: ``n x d`` numbers.
            free: ``n x d`` booleans.
        """
        if not (free & self.values.discrete).any():
            return X
        return np.where(free, self.values.value(self.values.position(X)), X)

    def admissible(self, X: Array, active: Array) -> Array:
        """Which points satisfy the linear constraints and ``feasible``.

        Args:
            X: ``n x d`` points, discrete columns at admissible values.
            active: ``n x d`` booleans.

        Returns:
            ``n`` booleans.
        """
        ok = np.ones(len(X), dtype=bool)
        for c in self.constraints:
            binds = active[:, c.columns].all(-1)
            # by torch, as a caller may check it: other sums round in other ways
            total = torch.from_numpy(X[:, c.columns]) @ c.coefficients
            ok &= ~binds | (total >= c.rhs).numpy()
        for restriction in self.restrictions:
            some = self.tensor(X[ok])
            if len(some):
                verdict = restriction(some)
                checked = check_booleans("feasible", verdict, some.shape[:1])
                ok[ok] = checked.cpu().numpy()
        return ok

    def is_new(
        self,
        X: Array,
        active: Array,
        avoid: KnownPoints,
    ) -> Array:
        """Which points may be proposed: admissible ones that are not known.

        Args:
            X: ``n x d`` points, active columns at admissible values, the others at the
                fill value.
            active: ``n x d`` booleans.
            avoid: The known points.

        Returns:
            ``n`` booleans.
        """
        # Only what may be proposed is shown to `feasible`.
        new = ~(active & self.empty).any(-1) & ~avoid.contains(X)
        if self.is_restricted:
            new[new] = self.admissible(X[new], active[new])
        return new


class KnownPoints:
    """Points that are not proposed again.

    Args:
        problem: The tree, the bounds and the distance.
        X: ``m x d`` points, inactive columns at the fill value.
    """

    def __init__(self, problem: Problem, X: Array) -> None:
        self.problem = problem
        self.X = X
        width = problem.bounds[1] - problem.bounds[0]
        # up to these differences two points are the same to any model
        share = max(1e-8 if width.itemsize == 8 else 1e-5, problem.min_distance)
        room = np.where(problem.values.discrete, 1e-6, share * width)
        # in a column without room any other number is far away
        self._scale = np.maximum(room, 1e-150)
        self._nearest = cKDTree(X / self._scale)

    def contains(self, X: Array) -> Array:
        """Which points equal one of these on the columns that are active.

        Or, in the columns that move continuously, are nearer than ``min_distance``.

        Args:
            X: ``n x d`` points, inactive columns at the fill value.

        Returns:
            ``n`` booleans.
        """
        if not len(X) or not len(self.X):
            return np.zeros(len(X), dtype=bool)
        distance, nearest = self._nearest.query(
            X / self._scale, p=np.inf, distance_upper_bound=1.0 + 1e-6
        )
        near = np.isfinite(distance)
        if near.any():
            # On the same path the same columns are active: the fill values agree, too.
            keys = self.problem.keys(self.X[nearest[near]])
            near[near] = keys == self.problem.keys(X[near])
        return near


def mask_of(columns: Sequence[int], d: int) -> Array:
    """``d`` booleans: which are these columns."""
    mask = np.zeros(d, dtype=bool)
    mask[list(columns)] = True
    return mask


def first_of_each(keys: Any) -> Array:
    """The numbers of the rows whose key no earlier row has, ascending."""
    return np.sort(np.unique(keys, return_index=True)[1])


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


def _train_inputs(model: Any) -> Tensor | None:
    """``n x d`` training points as they were given, before any input transform."""
    X = getattr(model, "_original_train_inputs", None)
    if not isinstance(X, Tensor) or model.training:
        X = (getattr(model, "train_inputs", None) or (None,))[0]
    if not isinstance(X, Tensor):
        return None
    # batches and ensembles have them once a member
    return X.reshape(-1, *X.shape[-2:])[0]


def _check_model(acq_function: AcquisitionFunction, d: int) -> None:
    """Raise for a model of other columns: it cannot be evaluated at points."""
    model: Any = getattr(acq_function, "model", None)
    # models of several tasks have one of them as a column that points may lack
    if isinstance(model, SingleTaskGP) and not isinstance(model, MultiTaskGP):
        X = _train_inputs(model)
        if X is not None and X.shape[-1] != d:
            raise ValueError(
                f"acq_function: expected a model of {d} columns, as many as the space "
                f"has, got one of {X.shape[-1]}."
            )


def _columns_of(
    space: Any, acq_function: AcquisitionFunction, beside: Mapping[str, Any]
) -> Columns:
    """The columns of a space, in place of other arguments.

    In the precision and on the device of the acquisition function.
    """
    if not isinstance(space, SearchSpace):
        raise ValueError(
            "space: expected a SearchSpace (SearchSpace.from_configspace(cs)), got "
            f"{type(space).__name__}."
        )
    for name, argument in beside.items():
        if argument is not None:
            raise ValueError(
                f"space: expected in place of {', '.join(beside)}, got {name} as well."
            )
    like = space.bounds
    for parameter in acq_function.parameters():
        if parameter.is_floating_point():
            like = parameter
            break
    return (
        space.bounds.to(like),
        space.tree,
        space.integer_features,
        space.categorical_features,
        space.fill.to(like),
    )


def _read_columns(
    bounds: Any,
    tree: Any,
    integer_features: Sequence[int] | None,
    categorical_features: Mapping[int, Sequence[float]] | None,
    fill: Any,
) -> Columns:
    """The same from its own arguments; what a space says the tree brings along."""
    if bounds is None or tree is None:
        raise ValueError(
            "bounds, tree: expected both of them, or space=... (a SearchSpace) in "
            f"their place, got {type(bounds).__name__} and {type(tree).__name__}."
        )
    if not isinstance(tree, ParameterTree):
        raise ValueError(
            "tree: expected a ParameterTree (model.tree, ParameterTree(d, {...})), "
            f"got {type(tree).__name__}."
        )
    d = tree.dim
    bounds = check_bounds(bounds, d)
    integers = () if integer_features is None else integer_features
    whole = check_columns("integer_features", integers, d, True)
    lists = check_by_column("categorical_features", categorical_features, d, True)
    for c, numbers in lists.items():
        name = f"categorical_features[{c}]"
        lists[c] = list(check_values(name, {check_number(name, v) for v in numbers}))
        _check_declared(name, tree, c, lists[c])
    if (space := tree.space) is not None:
        _check_scale(bounds, space)
        for c, codes in space.categorical_features.items():
            odd = [v for v in lists.setdefault(c, codes) if v not in codes]
            if odd:
                raise ValueError(
                    f"categorical_features[{c}]: expected among the values that the "
                    f"space of the tree has, {codes}, got {odd}."
                )
        whole = sorted({*whole, *space.integer_features})
        fill = space.fill if fill is None else fill
    fill = 0.5 if fill is None else fill
    try:
        row = torch.as_tensor(fill).to(bounds).detach().expand(d)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"fill: expected a number or {d}, got {fill!r}.") from None
    if not row.isfinite().all():
        raise ValueError(f"fill: expected finite numbers, got {fill!r}.")
    return bounds, tree, whole, lists, row


def check_bounds(bounds: Any, d: int | None = None) -> Tensor:
    """``bounds`` if they are ``2 x d``; any positive ``d`` where None is given."""
    fits = isinstance(bounds, Tensor) and bounds.is_floating_point() and bounds.numel()
    if not (fits and bounds.shape == (2, d or bounds.numel() // 2)):
        got: Any = type(bounds).__name__
        if isinstance(bounds, Tensor):
            got = f"shape {tuple(bounds.shape)} of {bounds.dtype}"
        raise ValueError(
            f"bounds: expected a floating-point 2 x {d or 'd'} tensor, got {got}."
        )
    ends = bounds.detach().cpu().numpy()
    if not (np.isfinite(ends).all() and (ends[0] <= ends[1]).all()):
        raise ValueError(
            "bounds: expected finite lower bounds at most as large as the upper ones, "
            f"got {bounds.tolist()}."
        )
    return bounds.detach()


def _check_scale(bounds: Tensor, space: SearchSpace) -> None:
    """Check that bounds are on the scale of a space that knows about columns."""
    columns = set(range(space.dim) if space.is_restricted else space.integer_features)
    # Categories are looked up whatever the bounds are.
    for c in sorted(columns - space.categorical_features.keys()):
        lo, hi = space.bounds[:, c].tolist()
        least, most = with_slack((lo, hi), c in space.integer_features)
        lower, upper = bounds[:, c].tolist()
        if lower < least or upper > most:
            raise ValueError(
                "bounds: expected those of the space that the tree belongs to, or "
                f"narrower ones, {lo} to {hi} for column {c} ({space.names[c]!r}), got "
                f"{lower} to {upper}. Another scale needs a tree of its own."
            )


def check_points(
    name: str,
    X: Any,
    tree: ParameterTree,
    fill: Tensor,
) -> Tensor:
    """``X`` if it is ``m x d`` numbers, finite where columns are active.

    Args:
        name: The name of the argument.
        X: Its value.
        tree: Says which columns are active.
        fill: ``d`` numbers that the others hold in the answer, of the precision and on
            the device that is wanted.
    """
    if not isinstance(X, Tensor) or X.dim() != 2 or X.shape[-1] != tree.dim:
        got: Any = tuple(X.shape) if isinstance(X, Tensor) else type(X).__name__
        raise ValueError(f"{name}: expected an m x {tree.dim} tensor, got {got}.")
    X = X.detach().to(fill)
    try:
        active = tree.active_mask(X)
    except ValueError as error:
        raise ValueError(f"{name}: {str(error).removeprefix('X: ')}") from None
    X = torch.where(active, X, fill)
    if not X.isfinite().all():
        row, col = (~X.isfinite()).nonzero()[0].tolist()
        raise ValueError(
            f"{name}: expected finite numbers in active columns, got {X[row, col]} in "
            f"row {row}, column {col}."
        )
    return X


def _declaring(
    tree: ParameterTree,
    lists: Mapping[int, Sequence[float]],
    fixed: Mapping[int, float],
    points: Sequence[Tensor],
) -> ParameterTree:
    """The tree with the outcomes declared that arguments and points have.

    Args:
        tree: The tree.
        lists: Column -> its admissible values.
        fixed: Column -> its value.
        points: Tables ``n x d`` of known points.
    """
    values: dict[int, Any] = {}
    for c in tree.decisions_by_value:
        values[c] = {*tree.decision_values[c], *lists.get(c, ())}
        if c in fixed:
            values[c].add(fixed[c])
    for X in points:
        if tree.is_declared(X).all():
            continue
        codes = tree.decision_codes(X, strict=False)
        for k, decision in enumerate(tree._decisions):
            undeclared = codes[:, k] == len(decision)
            if undeclared.any():
                values[decision.col] |= {*X[undeclared, decision.col].tolist()}
    for c, outcomes in values.items():
        if len(outcomes) > len(tree.decision_values[c]):
            return ParameterTree(tree.dim, conditions=tree.conditions, values=values)
    return tree


def read_fixed(
    tree: ParameterTree,
    bounds: Tensor,
    fixed_features: Mapping[int, float] | None,
    whole: Sequence[int],
    lists: Mapping[int, Sequence[float]],
) -> dict[int, float]:
    """Columns and the admissible values that they are held at.

    Args:
        tree: The space.
        bounds: ``2 x d``.
        fixed_features: What was given.
        whole: The columns of integers.
        lists: Column -> its admissible values.

    Raises:
        ValueError: For columns and values that are not admissible.
    """
    if fixed_features is not None and not isinstance(fixed_features, Mapping):
        raise ValueError(
            f"fixed_features: expected {{column: value}}, got {fixed_features!r}."
        )
    fixed: dict[int, float] = {}
    for c, v in (fixed_features or {}).items():
        name = f"fixed_features[{c}]"
        col = check_column("fixed_features", c, tree.dim, True)
        value = check_number(name, v)
        lo, hi = bounds[:, col].tolist()
        least, most = with_slack((lo, hi), col in whole)
        if not least <= value <= most:
            raise ValueError(
                f"{name}: expected a number within the bounds, {lo} to {hi}, got {v}."
            )
        if col in lists or col in whole:
            near = lists.get(col, [round(value)])
            nearest = min(near, key=lambda x: abs(x - value))
            if abs(nearest - value) > 1e-9:
                expected = f"one of {near}" if col in lists else "an integer"
                raise ValueError(f"{name}: expected {expected}, got {v}.")
            value = float(nearest)
        elif col not in tree.decisions_by_value:
            value = min(max(value, lo), hi)
        _check_declared(name, tree, col, [value])
        fixed[col] = value
    return fixed


def _check_declared(
    name: str,
    tree: ParameterTree,
    col: int,
    values: Sequence[float],
) -> None:
    new = [float(v) for v in values if v not in tree.decision_values.get(col, ())]
    if new and col in tree._values:
        declared = list(tree.decision_values[col])
        raise ValueError(
            f"{name}: expected among the values that the tree declares, {declared}, "
            f"got {new}."
        )


def _constraints(
    d: int,
    inequality_constraints: Sequence[tuple[Tensor, Tensor, float]] | None,
    like: Tensor,
) -> list[LinearConstraint]:
    constraints = []
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
        columns = check_columns(
            name,
            indices.tolist(),
            d,
            True,
        )
        weights = coefficients.detach().cpu()
        constraints.append(LinearConstraint(columns, weights, check_number(name, rhs)))
    return constraints


def promising(
    tree: ParameterTree,
    fill: Tensor,
    acq_function: AcquisitionFunction,
) -> tuple[Tensor, Tensor]:
    """The best training point of every path, the best of all first.

    Args:
        tree: The space.
        fill: ``d`` numbers that inactive columns hold.
        acq_function: Its model, objective and direction say what is best.

    Returns:
        ``n x d`` training points, and the rows that are the best; none if the
        acquisition function has no model with one table of training points.
    """
    nothing = fill.new_empty(0, tree.dim), torch.arange(0)
    model: Any = getattr(acq_function, "model", None)
    X = _train_inputs(model)
    if X is None or X.shape[-1] != tree.dim or not len(X):
        return nothing
    X = X.detach().to(fill)
    transform = getattr(acq_function, "posterior_transform", None)
    objective = getattr(acq_function, "objective", None)
    score = getattr(model, "train_targets", X)
    is_plain = transform is None and isinstance(objective, IdentityMCObjective | None)
    if not is_plain or score.shape != X.shape[:1]:  # also of fantasies
        if len(X) > 2048:
            return nothing
        # One point a batch, as a joint covariance is not needed.
        points = X.unsqueeze(-2)
        with torch.no_grad():
            posterior = model.posterior(points, posterior_transform=transform)
        score = getattr(posterior, "mixture_mean", posterior.mean)
        score = score if objective is None else objective(score, points)
        if score.numel() > len(X):  # several objectives
            return nothing
    sign = 1.0 if getattr(acq_function, "maximize", True) else -1.0
    return tree.impute(X, fill), best_of_paths(tree, X, sign * score.flatten())


def best_of_paths(tree: ParameterTree, X: Tensor, score: Tensor) -> Tensor:
    """The row with the largest score on each path, the best of all first."""
    order = np.argsort(-score.detach().cpu().numpy(), kind="stable")
    keys = tree.path_key(X).cpu().numpy()
    first = order[first_of_each(keys[order])]
    return torch.from_numpy(first)
