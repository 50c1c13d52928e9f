"""The space of a search column by column, and the points that it avoids.

Tensors come in at the door (``regions``) and go out at the end; between them a search
works on NumPy arrays, whose operations take a third of the time at this size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from botorch_structured.spaces import ParameterTree
from botorch_structured.spaces.arguments import check_booleans

Array = NDArray[Any]
Feasible = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
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
    """

    whole: Array
    logarithmic: Array
    listed: Array
    ordered: Array
    table: Array

    @cached_property
    def discrete(self) -> Array:
        """``d`` booleans: columns of integers or with a list."""
        return self.whole | self.listed

    def position(self, X: Array, columns: Any = slice(None)) -> Array:
        """Positions of the nearest admissible values.

        Args:
            X: ``n x k`` numbers.
            columns: Their columns, ``k`` or ``n x k``. Default: all.
        """
        position: Array = np.where(self.whole[columns], np.rint(X), X)
        listed = np.broadcast_to(self.listed[columns], X.shape).nonzero()
        if len(listed[0]):
            tables = self.table[self._columns(X, columns)[listed]]
            position[listed] = np.abs(tables - X[listed][:, None]).argmin(-1)
        return position

    def value(self, position: Array, columns: Any = slice(None)) -> Array:
        """Admissible values at these positions, with columns as of `position`."""
        listed = np.broadcast_to(self.listed[columns], position.shape).nonzero()
        if not len(listed[0]):
            return position
        value = position.copy()
        index = position[listed].clip(0, self.table.shape[1] - 1).astype(int)
        value[listed] = self.table[self._columns(position, columns)[listed], index]
        return value

    def _columns(self, X: Array, columns: Any) -> Array:
        """The column of each number."""
        return np.broadcast_to(np.arange(len(self.listed))[columns], X.shape)

    def inside(self, lower: Array, upper: Array) -> tuple[Array, Array]:
        """The first and last admissible values in ``[lower, upper]``, ``n x d`` each.

        The first is above the last where there is none.
        """
        first = np.where(self.whole, np.ceil(lower), lower)
        last = np.where(self.whole, np.floor(upper), upper)
        columns = self.listed.nonzero()[0]
        if len(columns):
            table = self.table[columns]
            row = np.arange(len(columns))
            start = (table < lower[:, columns, None]).sum(-1)
            stop = (table <= upper[:, columns, None]).sum(-1) - 1
            first[:, columns] = table[row, start.clip(max=table.shape[1] - 1)]
            last[:, columns] = np.where(stop >= 0, table[row, stop], -np.inf)
        return first, last


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
        values: What each column may hold where it is active, whatever the path. A
            decision by value is a column with a list.
        lower: ``d`` smallest admissible values; fixed columns hold their value.
        upper: ``d`` largest ones; below ``lower`` in columns that have none.
        fixed: Column -> its value, where the column is active.
        constraints: Linear constraints, binding where all their columns are active.
        feasible: Any other restriction.
        X_avoid: ``m x d`` points not to be proposed, pending ones included.
        good: ``k x d`` points to look around, the best first.
        max_paths: The number of paths up to which all of them are searched.
        min_distance: How far from known points to stay, in widths of the bounds.
        avoid_paths: Keys of paths on which nothing is proposed.
        restricting: ``d`` booleans: the columns of constraints and of ``feasible``.
        device: That of the bounds.
    """

    tree: ParameterTree
    listed: ParameterTree
    bounds: Array
    fill: Array
    values: Values
    lower: Array
    upper: Array
    fixed: dict[int, float]
    constraints: list[LinearConstraint]
    feasible: Feasible | None
    X_avoid: Array
    good: Array
    max_paths: int
    min_distance: float
    avoid_paths: Array
    restricting: Array
    device: torch.device

    @cached_property
    def empty(self) -> Array:
        """``d`` booleans: columns without an admissible value."""
        return self.lower > self.upper

    @cached_property
    def shared(self) -> Array:
        """``d`` booleans: columns active on several paths."""
        return mask_of(self.tree.shared_columns, self.tree.dim)

    @cached_property
    def room(self) -> Array:
        """``d`` differences up to which two points are the same to any model."""
        width = self.bounds[1] - self.bounds[0]
        room = (1e-8 if width.itemsize == 8 else 1e-5) * width
        values = self.values
        # the next value of a discrete column is another point; between the infinities
        # that fill a table up the difference is NaN
        with np.errstate(invalid="ignore"):
            gap = np.diff(values.table, axis=-1)
        gap = np.nan_to_num(gap, nan=np.inf, posinf=np.inf).min(-1)
        gap = np.where(values.whole, 1.0, gap)
        room = np.where(values.discrete, np.minimum(room, 0.25 * gap), room)
        if self.min_distance:
            distance = np.where(values.discrete, 0.0, self.min_distance * width)
            room = np.maximum(room, distance)
        return room

    @property
    def is_restricted(self) -> bool:
        """Whether a constraint or ``feasible`` restricts the points."""
        return bool(self.constraints) or self.feasible is not None

    def tensor(self, X: Array) -> Tensor:
        """An array as a tensor on the device of the bounds."""
        return torch.from_numpy(X).to(self.device)

    def active(self, X: Array) -> Array:
        """``n x d`` booleans: which columns of points are active."""
        return self.tree.active_mask(torch.from_numpy(X)).numpy()

    def keys(self, X: Array) -> Array:
        """``n`` numbers: the paths of points."""
        return self.tree.path_key(torch.from_numpy(X)).numpy()

    def impute(self, X: Array) -> Array:
        """``n x d`` points with the fill value in their inactive columns."""
        return np.where(self.active(X), X, self.fill)

    def snap(self, X: Array, free: Array, columns: Any = slice(None)) -> Array:
        """Free discrete columns at their nearest admissible value.

        Args:
            X: ``n x k`` numbers.
            free: ``n x k`` booleans.
            columns: Their columns, ``k`` or ``n x k``. Default: all.
        """
        if not (free & self.values.discrete[columns]).any():
            return X
        position = self.values.position(X, columns)
        return np.where(free, self.values.value(position, columns), X)

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
        if self.feasible is not None and ok.any():
            verdict = self.feasible(self.tensor(X[ok]))
            shape = torch.Size([int(ok.sum())])
            ok[ok] = check_booleans("feasible", verdict, shape).cpu().numpy()
        return ok

    def is_new(self, X: Array, active: Array, avoid: KnownPoints) -> Array:
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
        # in a column without room any other number is far away
        self._scale = np.maximum(problem.room, 1e-150)
        self._nearest = cKDTree(X / self._scale)

    def __len__(self) -> int:
        return len(self.X)

    def and_also(self, X: Array) -> KnownPoints:
        """These points and others."""
        return KnownPoints(self.problem, np.concatenate([self.X, X]))

    def contains(self, X: Array) -> Array:
        """Which points equal one of these on the columns that are active.

        Or, in the columns that move continuously, are nearer than ``min_distance``.

        Args:
            X: ``n x d`` points, inactive columns at the fill value.

        Returns:
            ``n`` booleans.
        """
        if not len(X) or not len(self):
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
    _, first = np.unique(np.asarray(keys), return_index=True)
    return np.sort(first)
