"""`ParameterTree`: which columns of a search space are active where.

A column is *active* where its condition holds; a *decision* is a column that conditions
refer to; a *path* is one joint setting of the active decisions. Paths are never listed
unless asked for: see `decomposition` (counting) and `lookup` (the work on tensors).
"""

from __future__ import annotations

__all__ = ["ParameterTree"]

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces.conditions import (
    And,
    Atom,
    Between,
    Condition,
    Equals,
    In,
    Or,
)
from botorch_structured.spaces.declaration import (
    HierarchicalDependencies,
    check_acyclic,
    normalise_conditions,
    normalise_values,
)
from botorch_structured.spaces.decomposition import (
    Decomposition,
    Expr,
    all_of,
    any_of,
    atom,
    evaluate,
)
from botorch_structured.spaces.lookup import Lookup
from botorch_structured.spaces.outcomes import Outcomes, cut_intervals
from botorch_structured.spaces.paths import Path, Paths

# Path numbers are int64; numbers of undeclared paths lie above those of declared ones.
_MAX_INDEXED = 1 << 62
_MAX_PRINTED = 60


class ParameterTree:
    """A search space whose columns depend on each other.

    Use it wherever some parameters only matter for some settings of others: a learner
    and its hyperparameters, a number of layers and the width of each, an optional
    step. Plain tensors ``batch_shape x n x d`` hold the points; the tree says which of
    their columns are active, and which rows are on the same path::

            column 0 (learner)
           /        |         \\
        0.0        1.0        2.0
         |          |          |
      column 1   columns 1, 2  (none)        column 3 is always active

        # Ex1: BoTorch's and Ax's convention; a child may stand under several values
        ParameterTree(4, {0: {0: [1], 1: [1, 2], 2: []}})
        # Ex2: the same, in conditions
        ParameterTree(4, conditions={1: In(0, [0, 1]), 2: Equals(0, 1)},
                      values={0: [0, 1, 2]})
        # Ex3: column 1 is active where column 0 is at least 0.5
        ParameterTree(2, conditions={1: Between(0, 0.5, float("inf"))})

    Columns named as a child in both ``hierarchical_dependencies`` and ``conditions``
    are active where either says so. A decision is *categorical-like* if its conditions
    name values only, or if all its values are declared; it is *numeric* if a `Between`
    refers to it, and its outcomes are then the intervals that the conditions cut.

    Args:
        dim: The number of columns ``d``.
        hierarchical_dependencies: ``{parent: {value: [children]}}``. Children may stand
            under several values and several parents (active when any holds); there may
            be several roots, any depth, and values without children.
        conditions: ``{child: condition}``, see `conditions`.
        values: ``{decision: [all its values]}``. Values that are not listed are then an
            error; without it a value that no condition names is a path of its own.

    Raises:
        ValueError: Columns out of range, a column that depends on itself (the cycle is
            printed), values that are not finite numbers, listed twice or, where
            ``values`` is given, missing from it.
    """

    def __init__(
        self,
        dim: int,
        hierarchical_dependencies: HierarchicalDependencies | None = None,
        conditions: Mapping[int, Condition] | None = None,
        values: Mapping[int, Sequence[float]] | None = None,
    ) -> None:
        if isinstance(dim, bool) or not isinstance(dim, int) or dim < 1:
            raise ValueError(f"dim expects a positive integer, got {dim!r}.")
        self.dim = dim
        self.conditions, named = normalise_conditions(
            dim, hierarchical_dependencies, conditions
        )
        self._values = normalise_values(dim, values)
        check_acyclic(self.conditions)
        self._outcomes = self._collect_outcomes(named)
        position = {o.col: k for k, o in enumerate(self._outcomes)}

        def symbolic(condition: Condition) -> Expr:
            if isinstance(condition, And):
                return all_of(symbolic(part) for part in condition.parts)
            if isinstance(condition, Or):
                return any_of(symbolic(part) for part in condition.parts)
            assert isinstance(condition, Atom)
            k = position[condition.col]
            return atom(k, self._outcomes[k].mask(condition))

        self._exprs: list[Expr] = [
            symbolic(self.conditions[c]) if c in self.conditions else True
            for c in range(dim)
        ]
        self._lookups: dict[torch.device, Lookup] = {}

    def _collect_outcomes(self, named: dict[int, set[float]]) -> list[Outcomes]:
        atoms: dict[int, list[Atom]] = {c: [] for c in named}
        for condition in self.conditions.values():
            for a in condition.atoms():
                atoms.setdefault(a.col, []).append(a)
        outcomes = []
        for col in sorted({*atoms, *self._values}):
            here = atoms.get(col, [])
            points = set(named.get(col, ()))
            for a in here:
                if isinstance(a, Equals):
                    points.add(a.value)
                elif isinstance(a, In):
                    points.update(a.values)
            declared = self._values.get(col)
            if declared is not None:
                missing = sorted(points - set(declared))
                if missing:
                    raise ValueError(
                        f"values[{col}] expects all values of column {col}, those its "
                        f"conditions name included; got {list(declared)} without "
                        f"{missing}."
                    )
                outcomes.append(Outcomes(col, declared, numeric=False, strict=True))
            elif any(isinstance(a, Between) for a in here):
                cuts = cut_intervals([*here, *(Equals(col, v) for v in points)])
                outcomes.append(Outcomes(col, tuple(cuts), numeric=True, strict=False))
            else:
                found = tuple(sorted(points))
                outcomes.append(Outcomes(col, found, numeric=False, strict=False))
        return outcomes

    # -- what the tree consists of ---------------------------------------------------

    @cached_property
    def decision_columns(self) -> list[int]:
        """The columns that conditions refer to (or whose values are declared)."""
        return [o.col for o in self._outcomes]

    @cached_property
    def numeric_decisions(self) -> list[int]:
        """The decision columns whose outcomes are intervals."""
        return [o.col for o in self._outcomes if o.numeric]

    @cached_property
    def decision_values(self) -> dict[int, list[Any]]:
        """Decision column -> declared values, or ``(lo, hi)`` intervals, ascending."""
        return {o.col: list(o.values) for o in self._outcomes}

    @cached_property
    def edge_offsets(self) -> list[int]:
        """Where the edges of every decision start; see `num_edges`."""
        sizes = [len(o) for o in self._outcomes]
        return [sum(sizes[:k]) for k in range(len(sizes))]

    @cached_property
    def num_edges(self) -> int:
        """The number of edges, one per decision and declared outcome.

        Outcome ``code`` of the ``k``-th decision has the number
        ``edge_offsets[k] + code``.
        """
        return sum(len(o) for o in self._outcomes)

    @cached_property
    def leaf_edges(self) -> Tensor:
        """``num_edges`` booleans: whether that outcome switches on no decision."""
        leaf = torch.ones(self.num_edges, dtype=torch.bool)
        for col in self.decision_columns:
            if col not in self.conditions:
                continue
            for a in self.conditions[col].atoms():
                k = self.decision_columns.index(a.col)
                mask = self._outcomes[k].mask(a)
                for code in range(len(self._outcomes[k])):
                    if mask >> code + 1 & 1:
                        leaf[self.edge_offsets[k] + code] = False
        return leaf

    @cached_property
    def _decomposition(self) -> Decomposition:
        return Decomposition(
            [len(o) for o in self._outcomes],
            [self._exprs[o.col] for o in self._outcomes],
        )

    @cached_property
    def num_paths(self) -> int:
        """The number of paths over declared outcomes."""
        return self._decomposition.num_paths

    @cached_property
    def paths(self) -> Paths:
        """The declared paths in the order of `path_index`, built when asked for."""
        return Paths(
            self.num_paths, lambda i: self._path(self._decomposition.unrank(i))
        )

    @cached_property
    def _path_counts(self) -> list[int]:
        """On how many declared paths every column is active."""
        counts: dict[Expr, int] = {}
        for expr in self._exprs:
            if expr not in counts:
                counts[expr] = self._decomposition.count_where(expr)
        return [counts[expr] for expr in self._exprs]

    def _is_free(self, col: int) -> bool:
        return col not in self.decision_columns or col in self.numeric_decisions

    @cached_property
    def own_columns(self) -> list[int]:
        """The columns, other than decisions by value, that are active on one path."""
        counts = self._path_counts
        return [c for c in range(self.dim) if counts[c] == 1 and self._is_free(c)]

    @cached_property
    def shared_columns(self) -> list[int]:
        """The columns, other than decisions by value, active on more than one path."""
        counts = self._path_counts
        return [c for c in range(self.dim) if counts[c] > 1 and self._is_free(c)]

    def leaf_columns(self, path: Path | int) -> list[int]:
        """The columns that are active on this path and on no other.

        Args:
            path: One of `paths`, or its number.
        """
        if not isinstance(path, Path):
            path = self.paths[path]
        own = set(self.own_columns)
        return [c for c in path.active_columns if c in own]

    def _path(self, codes: dict[int, int], odd: Mapping[int, float] = {}) -> Path:  # noqa: B006  # never written to
        """The path of these outcomes; ``odd``: decisions at undeclared values."""
        decisions: dict[int, Any] = {
            self._outcomes[k].col: odd.get(k)
            if k in odd
            else self._outcomes[k].values[code]
            for k, code in sorted(codes.items())
        }
        truth: dict[Expr, bool] = {}
        for expr in self._exprs:
            if expr not in truth:
                truth[expr] = evaluate(expr, codes)
        active = tuple(c for c, expr in enumerate(self._exprs) if truth[expr])
        return Path(decisions, active)

    # -- what the tree says about points ---------------------------------------------

    def decision_codes(self, X: Tensor) -> Tensor:
        """The outcome of every decision.

        Args:
            X: ``batch_shape x n x d`` points.

        Returns:
            ``batch_shape x n x num_decisions`` integers in the order of
            `decision_columns`: the number of the outcome in `decision_values`; -1 where
            the decision is inactive; the number of outcomes for an undeclared value.
        """
        codes, active = self._checked_codes(X)
        return torch.where(active, codes, -1)

    def is_declared(self, X: Tensor) -> Tensor:
        """Whether all active decisions of a row have values that were declared.

        Args:
            X: ``batch_shape x n x d`` points.

        Returns:
            ``batch_shape x n`` booleans.
        """
        codes, active = self._checked_codes(X, strict=False)
        odd = active & (codes == self._lookup(X.device).sizes)
        return ~odd.any(-1)

    def active_mask(self, X: Tensor, strict: bool = True) -> Tensor:
        """Which columns are active.

        Args:
            X: ``batch_shape x n x d`` points.
            strict: Whether to raise where a strictly declared decision has another
                value; otherwise nothing hangs on such a value.

        Returns:
            ``batch_shape x n x d`` booleans.
        """
        codes, _ = self._checked_codes(X, strict)
        return self._lookup(X.device).active_columns(codes)

    def impute(self, X: Tensor, fill: float | Tensor = 0.5) -> Tensor:
        """Set the inactive columns to a constant.

        Active columns keep their very bits and their gradients.

        Args:
            X: ``batch_shape x n x d`` points.
            fill: A number, or ``d`` numbers, one for each column.

        Returns:
            ``batch_shape x n x d`` points.
        """
        value = torch.as_tensor(fill, dtype=X.dtype, device=X.device)
        if value.dim() > 1 or (value.dim() == 1 and value.shape[0] != self.dim):
            raise ValueError(
                f"fill expects a number or {self.dim} numbers, got shape "
                f"{tuple(value.shape)}."
            )
        return torch.where(self.active_mask(X), X, value)

    def path_key(self, X: Tensor) -> Tensor:
        """Integers that are equal exactly where two rows are on the same path.

        The cheap way to tell paths apart: no path is listed, nothing is read back from
        the device, and undeclared values are not refused even where they are strict.

        Args:
            X: ``batch_shape x n x d`` points.

        Returns:
            ``batch_shape x n`` integers (exact below 2^62 combinations of outcomes;
            beyond that, and for undeclared values, hashes of 62 bits).
        """
        self._check_points(X)
        lookup = self._lookup(X.device)
        return lookup.keys(*lookup.codes(X))

    def path_index(self, X: Tensor) -> Tensor:
        """The number of every row's path in `paths`.

        Args:
            X: ``batch_shape x n x d`` points.

        Returns:
            ``batch_shape x n`` integers. Rows with undeclared values have numbers from
            `num_paths` on, one for each distinct path.

        Raises:
            ValueError: A strictly declared decision has another value, or there are
                more paths than int64 can number.
        """
        if self.num_paths > _MAX_INDEXED:
            raise ValueError(
                f"path_index expects at most 2^62 paths, this tree has {self.num_paths}"
                ": use path_key or decision_codes."
            )
        codes, active = self._checked_codes(X)
        lookup = self._lookup(X.device)
        odd = (active & (codes == lookup.sizes)).any(-1)
        flat = codes.reshape(-1, codes.shape[-1]).cpu().numpy()
        declared = ~odd.reshape(-1).cpu().numpy()
        number = np.zeros(len(flat), dtype=np.int64)
        number[declared] = self._decomposition.rank(flat[declared])
        index = torch.from_numpy(number).to(X.device).reshape(X.shape[:-1])
        if declared.all():
            return index
        key = lookup.keys(*lookup.codes(X)) & (_MAX_INDEXED - 1)
        return torch.where(odd, self.num_paths + key, index)

    def path_of(self, x: Tensor) -> Path:
        """The path of one point, undeclared values included.

        Args:
            x: ``d`` (or ``1 x d``) point.
        """
        row = x.reshape(1, -1)
        codes = self.decision_codes(row)[0].tolist()
        values = row[0].double().tolist()
        found = {k: code for k, code in enumerate(codes) if code >= 0}
        odd = {
            k: values[self._outcomes[k].col]
            for k, code in found.items()
            if code == len(self._outcomes[k])
        }
        return self._path(found, odd)

    def random_paths(
        self,
        n: int,
        generator: torch.Generator | None = None,
        bounds: Tensor | None = None,
    ) -> Tensor:
        """Points on random paths, for spaces with too many paths to list.

        Every decision takes each of its outcomes with the same probability (numeric
        ones a uniform number inside the interval; if that is unbounded its finite end,
        or 0). The other columns are 0.

        Args:
            n: The number of points.
            generator: A CPU generator.
            bounds: ``2 x d`` bounds to cut the intervals to.

        Returns:
            ``n x d`` float64 points.
        """
        X = torch.zeros(n, self.dim, dtype=torch.double)
        for o in self._outcomes:
            if not len(o):
                continue
            lows, highs = (torch.tensor([v] * 2).double() for v in (0.0, 0.0))
            if o.numeric:
                spans = torch.tensor(o.values, dtype=torch.double)
                if bounds is not None:
                    lo, hi = bounds[:, o.col].double().cpu()
                    inside = (spans[:, 0] <= hi) & (spans[:, 1] >= lo)
                    spans = spans[inside].clamp(lo, hi)
                lows, highs = spans.unbind(-1)
                lows, highs = (
                    torch.where(lows.isfinite(), lows, highs),
                    torch.where(highs.isfinite(), highs, lows),
                )
                lows, highs = lows.nan_to_num(0, 0, 0), highs.nan_to_num(0, 0, 0)
            else:
                lows = highs = torch.tensor(o.values, dtype=torch.double)
            code = torch.randint(len(lows), (n,), generator=generator)
            u = torch.rand(n, generator=generator, dtype=torch.double)
            X[:, o.col] = torch.minimum(
                lows[code] + u * (highs - lows)[code], highs[code]
            )
        return X

    def _lookup(self, device: torch.device) -> Lookup:
        if device not in self._lookups:
            self._lookups[device] = Lookup(
                self.dim, self._outcomes, self._exprs, device
            )
        return self._lookups[device]

    def _check_points(self, X: Tensor) -> None:
        if X.dim() < 1 or X.shape[-1] != self.dim or not X.is_floating_point():
            raise ValueError(
                f"X expects floating-point rows of {self.dim} columns, got shape "
                f"{tuple(X.shape)} of {X.dtype}."
            )

    def _checked_codes(self, X: Tensor, strict: bool = True) -> tuple[Tensor, Tensor]:
        """Outcomes and activity of all decisions; strict decisions are checked."""
        self._check_points(X)
        lookup = self._lookup(X.device)
        values, codes = lookup.codes(X)
        active, _ = lookup.active_decisions(codes)
        if strict and lookup.any_strict:
            bad = active & lookup.strict & (codes == lookup.sizes)
            if bad.any():
                k = int(bad.reshape(-1, bad.shape[-1]).any(0).nonzero()[0])
                got = values[..., k][bad[..., k]].unique().tolist()
                o = self._outcomes[k]
                raise ValueError(
                    f"Column {o.col} expects one of its declared values "
                    f"{list(o.values)}, got {got}."
                )
        return codes, active

    # -- the tree as an object -------------------------------------------------------

    @classmethod
    def from_any(
        cls, x: ParameterTree | HierarchicalDependencies | None, dim: int
    ) -> ParameterTree:
        """``x`` if it is a tree over ``dim`` columns, else the tree of that dictionary.

        Raises:
            ValueError: ``x`` is a tree over another number of columns.
        """
        if not isinstance(x, ParameterTree):
            return cls(dim, x)
        if x.dim != dim:
            raise ValueError(
                f"Expected a ParameterTree over {dim} columns, got one over {x.dim}."
            )
        return x

    def _identity(self) -> tuple[Any, ...]:
        return (self.dim, tuple(self._outcomes), tuple(self._exprs))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ParameterTree):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __getstate__(self) -> dict[str, Any]:
        # What can be computed again is: tables live on devices, nodes are many.
        keep = ("dim", "conditions", "_values", "_outcomes", "_exprs")
        return {**{k: self.__dict__[k] for k in keep}, "_lookups": {}}

    def __repr__(self) -> str:
        return f"ParameterTree(dim={self.dim}, num_paths={self.num_paths})"
