"""The whole space as one box: what each column may hold where it is active."""

from __future__ import annotations

__all__ = ["Domain", "make_domain"]

from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_structured.optim.problem import Grid, Problem, is_known


@dataclass(frozen=True)
class Domain:
    """Every parameter on its own, decisions included.

    `Boxes` are paths: they are looked up by the decisions. Here a decision by value is
    a discrete column like any other. What a parameter may be does not depend on the
    others, only whether it is active does.

    Args:
        problem: The space.
        lower: ``d`` smallest admissible values.
        upper: ``d`` largest admissible values.
        whole: ``d`` booleans: columns that hold all integers between these.
        tables: Column -> its admissible values, ascending; decisions by value and
            columns with a list of values.
        ordered: Those of the ``tables`` whose neighbouring values are alike.
        empty: ``d`` booleans: columns without an admissible value. Nothing is proposed
            where one is active.
    """

    problem: Problem
    lower: Tensor
    upper: Tensor
    whole: Tensor
    tables: dict[int, Tensor]
    ordered: frozenset[int]
    empty: Tensor

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Uniformly random values of all columns, active or not.

        Args:
            n: How many.
            generator: A CPU generator.

        Returns:
            ``n x d`` points: each column uniform between its bounds, or over its
            values, and independent of the others.
        """
        d = len(self.lower)
        U = torch.rand(n, d, generator=generator, dtype=torch.double).to(self.lower)
        X = U * (self.upper - self.lower + self.whole)
        X = torch.where(self.whole, X.floor(), X) + self.lower
        X = torch.minimum(X, self.upper)
        for col, table in self.tables.items():
            position = (U[:, col] * len(table)).long().clamp_max(len(table) - 1)
            X[:, col] = table[position]
        return X

    def impute(self, X: Tensor) -> Tensor:
        """``n x d`` points with the fill value in their inactive columns."""
        return self.problem.tree.impute(X, self.problem.fill)

    def project(self, X: Tensor) -> Tensor:
        """The nearest points of the domain, without those on paths outside of it.

        Args:
            X: ``k x d`` points, inactive columns at the fill value.

        Returns:
            At most ``k x d`` points.
        """
        near = torch.minimum(torch.maximum(X, self.lower), self.upper)
        near = torch.where(self.whole, near.round(), near)
        for col, table in self.tables.items():
            near[:, col] = Grid(tuple(table.tolist())).snap(near[:, col])
        near = self.impute(near)
        tree = self.problem.tree
        return near[tree.path_key(near) == tree.path_key(X)]

    def is_new(self, X: Tensor, active: Tensor, known: Tensor) -> Tensor:
        """Which points may be proposed: admissible ones that are not known.

        Args:
            X: ``n x d`` points, active columns at values of the domain, the others at
                the fill value.
            active: ``n x d`` booleans.
            known: ``m x d`` points, likewise.

        Returns:
            ``n`` booleans.
        """
        # Only what may be proposed is shown to `feasible`.
        new = ~(active & self.empty).any(-1) & ~is_known(self.problem, X, known)
        if self.problem.constraints or self.problem.feasible is not None:
            rows = new.nonzero().squeeze(-1)
            new[rows] = self.problem.admissible(X[rows], active[rows])
        return new


def make_domain(problem: Problem, seen: Tensor) -> Domain:
    """The domain of a problem.

    Args:
        problem: Bounds, discrete columns, fixed features.
        seen: ``m x d`` points. Outcomes that the tree does not declare are only known
            from these.
    """
    tree = problem.listed
    lower, upper = problem.bounds[0].clone(), problem.bounds[1].clone()
    by_value = [c for c in tree.decision_columns if c not in tree.numeric_decisions]
    grids = dict(problem.grids)
    codes = tree.decision_codes(seen)
    for k, col in enumerate(tree.decision_columns):
        if col in by_value:
            declared = tree.decision_values[col]
            odd = seen[codes[:, k] == len(declared), col].tolist()
            grids[col] = _admissible(problem, col, [*declared, *odd])
    for col, grid in grids.items():
        ends = grid.inside(lower[col : col + 1], upper[col : col + 1])
        lower[col], upper[col] = ends[0][0], ends[1][0]
    for col, value in problem.fixed.items():
        if col in tree.decision_columns:
            # A decision leaves paths on which it has this value, within the bounds.
            lower[col].clamp_(min=value)
            upper[col].clamp_(max=value)
        else:
            lower[col] = upper[col] = value
    empty = lower > upper
    # Where nothing is proposed any number does, if the tree knows it.
    some = problem.fill.clone()
    for col in by_value:
        some[col] = tree.decision_values[col][0]
    lower = torch.where(empty, some, lower)
    upper = torch.where(empty, some, upper)
    whole = torch.zeros_like(empty)
    tables = {}
    for col, grid in grids.items():
        if empty[col] or lower[col] == upper[col]:
            continue
        if grid.values is None:
            whole[col] = True
            continue
        table = lower.new_tensor(grid.values)
        tables[col] = table[(lower[col] <= table) & (table <= upper[col])]
    ordered = frozenset(c for c in tables if grids[c].ordered)
    return Domain(problem, lower, upper, whole, tables, ordered, empty)


def _admissible(problem: Problem, col: int, values: list[float]) -> Grid:
    """The values that a decision may take; to a search none is like another."""
    table = torch.tensor(sorted(set(values)), dtype=torch.double)
    if col in problem.grids:
        table = table[problem.grids[col].snap(table) == table]
    if col in problem.fixed:
        table = table[table == problem.fixed[col]]
    return Grid(tuple(table.tolist()), ordered=False)
