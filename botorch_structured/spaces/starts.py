"""Points to begin with, see `SearchSpace.starts`.

Paths are chosen first, by the states of their decisions (see `lookup`), then the
active columns of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces.columns import Column, Source, Span, random_source
from botorch_structured.spaces.conditions import And, Atom, Between, Condition, Or
from botorch_structured.spaces.lookup import State, negated

# A forbidden start is replaced by one of 100 random points on its path; if none of them
# is feasible, by one of 1,000, then of 10,000.
_OTHERS = (100, 1_000, 10_000)


class Starts:
    """The starts of a space.

    Args:
        space: The `SearchSpace`.
        kind: See `SearchSpace.starts`.
        seed: Decides everything, unless it is None.
    """

    def __init__(self, space: Any, kind: str, seed: int | None) -> None:
        self.space = space
        self.tree = space.tree
        self.kind = kind
        self.seed = seed

    def draw(self, n: int | None, at_most: int | None) -> Tensor:
        """``n x d`` points, see `SearchSpace.starts`."""
        empty: list[Condition] = []  # paths on which no point was found
        for _ in range(20):
            generator = random_source(self.seed)
            paths = self._choose_paths(n, at_most, generator, empty)
            states = torch.from_numpy(paths).long()
            distinct = len({*map(tuple, paths.tolist())})
            first = len(states) if self.kind == "spread" else distinct
            X, good = self._points(states[:first], self.kind, generator)
            again, good_again = self._points(states[first:], "random", generator)
            X = torch.cat([X, again])
            good = torch.cat([good, good_again])
            if good.all():
                return X
            for path in paths[~good.numpy()].tolist():
                active = [(k, state) for k, state in enumerate(path) if state]
                empty.append(And(tuple(State(k, 1 << state) for k, state in active)))
        others = self.space.sample(len(X) - int(good.sum()), self.seed)
        return torch.cat([X[good], others])

    def _choose_paths(
        self,
        n: int | None,
        at_most: int | None,
        generator: Source,
        empty: Sequence[Condition],
    ) -> np.ndarray:
        """``n x D`` states of the decisions; ``empty``: paths that are not chosen."""
        search = self.tree._search
        outcomes = []
        excluded: list[Condition] = list(empty)
        for k, decision in enumerate(self.tree._decisions):
            for code in range(len(decision)):
                outcomes.append(State(k, 2 << code))
                if self._span(k, code) is None:
                    excluded.append(outcomes[-1])
        excluded += [c.replaced(self._certain) for c in self.space._forbidden]
        where = negated(Or(tuple(excluded)))
        goals = [*outcomes, *self.tree.over_states]
        many = 0 if at_most is None else min(at_most, 10)
        some, is_complete = search.where(where, many + 1)
        if not len(some):
            raise ValueError(
                "space: expected some path that has points within the bounds that are "
                f"not forbidden, got none of {self.tree.num_paths}"
                + (f" (of {_OTHERS[-1]} random draws on each)." if empty else ".")
            )
        first = some[:0]
        columns = self.space.columns
        if self.kind == "default" and any(c.default is not None for c in columns):
            x = [_draw(c, 1, self.kind, generator, c.bounds) for c in columns]
            X = torch.stack(x, -1)
            states = 1 + self.tree.decision_codes(X, strict=False).numpy()
            is_path = bool(self.tree.is_declared(X))
            if is_path and search.holds(where, states).all():
                first = states
        seed = int(torch.randint(1 << 62, (), generator=generator))
        if at_most is not None and (not is_complete or len(some) > many):
            first = search.cover(at_most, where, goals, seed, first)
            n = min(at_most, max(len(first), 5))
        return search.spread(n, where, goals, seed, first)

    def _span(self, k: int, code: int) -> Span | None:
        """Where the ``k``-th decision has an outcome; None if outside of the bounds."""
        decision = self.tree._decisions[k]
        return self.space.columns[decision.col].within(*decision.intervals[code])

    def _certain(self, clause: Condition) -> Condition:
        """On which paths a clause forbids every point (False where that is not seen).

        Of clauses that compare parameters it is not: draws show that.
        """
        if not isinstance(clause, Atom) or clause.col not in self.tree._position:
            return Or(())
        if not isinstance(clause, Between):
            return self.tree._states(clause)
        k = self.tree._position[clause.col]
        mask = 0
        for code in range(len(self.tree._decisions[k])):
            span = self._span(k, code)
            if span and clause.lo <= span[0] and span[1] <= clause.hi:
                mask |= 2 << code
        return State(k, mask)

    def _points(
        self, states: Tensor, kind: str, generator: Source
    ) -> tuple[Tensor, Tensor]:
        """``n x D`` states -> ``n x d`` points, and which are feasible.

        All are, but those on paths where no feasible point is found.
        """
        X = self._place(states, kind, generator)
        good = self.space.feasible(X)
        lower, upper = self.space.bounds
        width = (upper - lower).clamp(min=1e-300)
        for i in (~good).nonzero().flatten().tolist():
            for size in _OTHERS:
                same_path = states[i].expand(size, -1)
                others = self._place(same_path, "random", generator)
                others = others[self.space.feasible(others)]
                if not len(others):
                    continue
                distance = ((others - X[i]) / width).square().sum(-1)
                nearest = 0 if kind == "random" else distance.argmin()
                X[i] = others[nearest]
                good[i] = True
                break
        return X, good

    def _place(self, states: Tensor, kind: str, generator: Source) -> Tensor:
        """``n x D`` states -> ``n x d`` points, feasible or not."""
        X = self.space.fill.repeat(len(states), 1)
        active = self.tree.active_at(states)
        for c in active.any(0).nonzero().flatten().tolist():
            column = self.space.columns[c]
            k = self.tree._position.get(c)
            # without an outcome, or by outcomes
            group = active[:, c].long() if k is None else states[:, k]
            for state in group.unique().tolist():
                if not state:
                    continue
                span = column.bounds if k is None else self._span(k, state - 1)
                assert span is not None  # it is a path within the bounds
                rows = group == state
                X[rows, c] = _draw(column, int(rows.sum()), kind, generator, span)
        return X


def _draw(column: Column, n: int, kind: str, generator: Source, span: Span) -> Tensor:
    """``n`` numbers of a column within ``span``."""
    if kind in ("spread", "random"):
        return column.draw(n, generator, span, spread=kind == "spread")
    value = column.middle(span)
    if kind == "default" and column.default is not None:
        is_inside = span[0] <= column.default <= span[1]
        value = column.default if is_inside else value
    return torch.full((n,), value, dtype=torch.double)
