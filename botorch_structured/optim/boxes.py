"""Paths as boxes: what the optimisers work on.

On a path the inactive columns hold the fill value, decisions hold theirs, and the
other columns move between bounds. So a path is a box, with zero width in the columns
that it does not have, and a batch of points on different paths is a batch of points in
different boxes: one tensor, one call of the acquisition function.
"""

from __future__ import annotations

__all__ = ["Boxes", "boxes_at", "path_rows"]

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from botorch_structured.optim.problem import Problem
from botorch_structured.spaces import ParameterTree


@dataclass(frozen=True)
class Boxes:
    """One box for each path.

    Args:
        lower: ``P x d`` smallest values.
        upper: ``P x d`` largest values.
        active: ``P x d`` booleans: the columns the path has.
    """

    lower: Tensor
    upper: Tensor
    active: Tensor

    def __len__(self) -> int:
        return len(self.lower)

    @property
    def free(self) -> Tensor:
        """``P x d`` booleans: the columns that can move."""
        return self.upper > self.lower

    def take(self, index: Tensor) -> Boxes:
        """The boxes at ``index``."""
        return Boxes(self.lower[index], self.upper[index], self.active[index])

    def join(self, other: Boxes) -> Boxes:
        """These boxes, then the others."""
        return Boxes(
            torch.cat([self.lower, other.lower]),
            torch.cat([self.upper, other.upper]),
            torch.cat([self.active, other.active]),
        )

    def pin(self, columns: Tensor, X: Tensor) -> Boxes:
        """The boxes with the active ones of some columns held at the values of ``X``.

        Args:
            columns: ``d`` booleans.
            X: ``P x d``, one row for each box.
        """
        held = columns & self.active
        return Boxes(
            torch.where(held, X, self.lower),
            torch.where(held, X, self.upper),
            self.active,
        )


def boxes_at(problem: Problem, rows: Tensor) -> tuple[Boxes, Tensor]:
    """The boxes of the paths that some rows are on.

    Args:
        problem: Bounds, discrete columns, fixed features.
        rows: ``n x d`` points; only their decisions are looked at.

    Returns:
        The boxes, and ``n`` booleans: which rows have one. Rows have none where a
        fixed feature, a bound or the list of a categorical rules their path out.
    """
    tree = problem.tree
    # On a small space these are a few numbers: reading them back costs less than
    # launching kernels for them would.
    codes = tree.decision_codes(rows)
    active = tree.active_mask(rows)
    n = len(rows)
    lower = problem.bounds[0].repeat(n, 1)
    upper = problem.bounds[1].repeat(n, 1)
    ok = torch.ones(n, dtype=torch.bool, device=rows.device)
    for k, col in enumerate(tree.decision_columns):
        on = active[:, col]
        if col in tree.numeric_decisions:
            spans = torch.tensor(
                tree.decision_values[col], dtype=rows.dtype, device=rows.device
            )
            here = spans[codes[:, k].clamp_min(0)]
            lower[:, col] = torch.maximum(lower[:, col], here[:, 0])
            upper[:, col] = torch.minimum(upper[:, col], here[:, 1])
            continue
        value = rows[:, col]
        declared = tree.decision_values[col]
        if declared:
            table = torch.tensor(declared, dtype=rows.dtype, device=rows.device)
            code = codes[:, k].clamp(0, len(declared) - 1)
            value = torch.where(codes[:, k] < len(declared), table[code], value)
        inside = (lower[:, col] <= value) & (value <= upper[:, col])
        if col in problem.grids:
            inside &= problem.grids[col].snap(value) == value
        if col in problem.fixed:
            inside &= value == problem.fixed[col]
        ok &= ~on | inside
        lower[:, col] = upper[:, col] = value
    listed = {c for c in tree.decision_columns if c not in tree.numeric_decisions}
    for col, grid in problem.grids.items():
        if col not in listed:
            lower[:, col], upper[:, col] = grid.inside(lower[:, col], upper[:, col])
    for col, fixed in problem.fixed.items():
        if col in listed:
            continue
        if col in tree.numeric_decisions:
            # The paths on which the decision takes this value.
            ok &= ~active[:, col] | (
                (lower[:, col] <= fixed) & (fixed <= upper[:, col])
            )
        lower[:, col] = upper[:, col] = fixed
    lower = torch.where(active, lower, problem.fill)
    upper = torch.where(active, upper, problem.fill)
    ok &= (lower <= upper).all(-1)
    return Boxes(lower, upper, active), ok


@lru_cache(maxsize=32)
def _declared_rows(tree: ParameterTree) -> Tensor:
    """One point on every declared path."""
    rows = torch.zeros(tree.num_paths, tree.dim, dtype=torch.double)
    for row, path in zip(rows, tree.paths, strict=True):
        for col, value in path.decisions.items():
            if isinstance(value, tuple):
                ends = [v for v in value if abs(v) != float("inf")]
                value = ends[0] if ends else 0.0
            row[col] = value
    return rows


def first_of_each_path(tree: ParameterTree, rows: Tensor) -> Tensor:
    """``rows`` without those on the path of an earlier one."""
    seen: set[int] = set()
    keep = []
    for i, key in enumerate(tree.path_key(rows).tolist()):
        if key not in seen:
            seen.add(key)
            keep.append(i)
    return rows[keep]


def path_rows(problem: Problem, seen: Tensor, generator: torch.Generator) -> Tensor:
    """One point on each of the paths to be searched.

    All declared paths up to ``max_paths`` of them; else as many random ones. The paths
    of known points are among them, as undeclared values are only known from these.

    Args:
        problem: The space.
        seen: ``m x d`` points whose paths are to be included.
        generator: For random paths.

    Returns:
        ``P x d`` points on different paths.
    """
    tree = problem.listed
    if tree.num_paths <= problem.max_paths:
        rows = _declared_rows(tree).to(problem.bounds)
    else:
        rows = random_rows(problem, problem.max_paths, generator)
        seen = seen[-problem.max_paths :]
    return first_of_each_path(problem.tree, torch.cat([rows, seen]))


def random_rows(problem: Problem, n: int, generator: torch.Generator) -> Tensor:
    """``n`` points on random paths, decisions that are fixed at their values."""
    rows = problem.listed.random_paths(n, generator, problem.bounds)
    rows = rows.to(problem.bounds)
    for col, value in problem.fixed.items():
        rows[:, col] = value
    return rows
