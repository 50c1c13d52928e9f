"""What a parameter tree consists of: outcomes, conditions, paths and their counts."""

from __future__ import annotations

__all__ = ["TreeStructure"]

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from botorch_structured.spaces.arguments import check_count
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
from botorch_structured.spaces.drawing import draw
from botorch_structured.spaces.outcomes import Outcomes, cut_intervals
from botorch_structured.spaces.paths import Path, Paths

if TYPE_CHECKING:
    from botorch_structured.spaces.search_space import SearchSpace


class TreeStructure:
    """The part of `ParameterTree` that needs no points; see there."""

    def __init__(
        self,
        dim: int,
        hierarchical_dependencies: HierarchicalDependencies | None = None,
        conditions: Mapping[int, Condition] | None = None,
        values: Mapping[int, Sequence[float]] | None = None,
    ) -> None:
        self.dim = dim = check_count("dim", dim)
        # The space that says what columns hold; see `ParameterTree.of_space`.
        self.space: SearchSpace | None = None
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
                        f"values[{col}]: expected all values of column {col}, those "
                        f"its conditions name included, got {list(declared)} without "
                        f"{missing}."
                    )
                outcomes.append(Outcomes.of_values(col, declared, strict=True))
            elif any(isinstance(a, Between) for a in here):
                cuts = cut_intervals([*here, *(Equals(col, v) for v in points)])
                outcomes.append(Outcomes.of_intervals(col, cuts))
            else:
                outcomes.append(Outcomes.of_values(col, sorted(points)))
        return outcomes

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

    def _identity(self) -> tuple[Any, ...]:
        return (self.dim, tuple(self._outcomes), tuple(self._exprs))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TreeStructure):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __getstate__(self) -> dict[str, Any]:
        # What can be computed again is: tables live on devices, nodes are many.
        keep = ("dim", "conditions", "_values", "_outcomes", "_exprs", "space")
        return {k: self.__dict__[k] for k in keep}

    def __deepcopy__(self, memo: dict[int, Any]) -> TreeStructure:
        return self  # nothing about it changes

    def __repr__(self) -> str:
        return draw(self.dim, self.num_paths, self.conditions, self.decision_values)
