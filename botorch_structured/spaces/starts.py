"""Points to begin with, see `SearchSpace.starts`.

Paths are chosen first, by the states of their decisions (see `conditions`), then the
active columns of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces.columns import Span, random_source
from botorch_structured.spaces.conditions import (
    NEVER,
    Atom,
    Condition,
    Or,
    State,
    negated,
)

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
        self.generator = random_source(seed)

    def draw(self, n: int | None, at_most: int | None) -> Tensor:
        """``n x d`` points, see `SearchSpace.starts`."""
        paths = self._choose_paths(n, at_most)
        states = torch.from_numpy(paths).long()
        first = len(states)
        if self.kind != "spread":
            first = len({*map(tuple, paths.tolist())})
        X, good = self._points(states[:first], self.kind)
        again, good_again = self._points(states[first:], "random")
        X = torch.cat([X, again])[torch.cat([good, good_again])]
        if n is None and at_most is None:
            if not len(X):
                raise self._no_path()
            return X
        others = self.space.sample(len(states) - len(X), self.seed)
        return torch.cat([X, others])

    def _no_path(self) -> ValueError:
        return ValueError(
            "space: expected some path that has points within the bounds that are not "
            f"forbidden, got none of {self.tree.num_paths} (by up to {_OTHERS[-1]} "
            "random draws on each)."
        )

    def _choose_paths(self, n: int | None, at_most: int | None) -> np.ndarray:
        """``n x D`` states of the decisions."""
        search = self.tree._search
        outcomes = []
        of_top = []
        excluded = [c.replaced(self._certain) for c in self.space._forbidden]
        for k, decision in enumerate(self.tree._decisions):
            for code in range(len(decision)):
                outcomes.append(State(k, 2 << code))
                if decision.col == self.tree.top_decision:
                    of_top.append(outcomes[-1])
                if self._span(k, code) is None:
                    excluded.append(outcomes[-1])
        where = negated(Or(tuple(excluded)))
        goals = [*outcomes, *self.tree.over_states]
        many = 0 if at_most is None else min(at_most, 10)
        some, is_complete = search.where(where, many + 1)
        if not len(some):
            raise self._no_path()
        first = some[:0]
        columns = self.space.columns
        if self.kind == "default" and any(c.default is not None for c in columns):
            x = [c.draw(1, self.generator, kind=self.kind) for c in columns]
            X = torch.stack(x, -1)
            states = 1 + self.tree.decision_codes(X, strict=False).numpy()
            is_path = bool(self.tree.is_declared(X))
            if is_path and search.holds(where, states).all():
                first = states
        seed = int(torch.randint(1 << 62, (), generator=self.generator))
        if at_most is not None:
            few = search.cover(at_most, where, of_top, seed, first)
            if len(few) > 1:
                return few
        if at_most is not None and (not is_complete or len(some) > many):
            first = search.cover(at_most, where, goals, seed, first)
            n = min(at_most, max(len(first), 5))
        return search.spread(n, where, goals, seed, first)

    def _span(self, k: int, code: int) -> Span | None:
        """Where the ``k``-th decision has an outcome; None if outside of the bounds."""
        decision = self.tree._decisions[k]
        return self.space.columns[decision.col].within(*decision.intervals[code])

    def _certain(self, clause: Condition) -> Condition:
        """On which paths a clause forbids every point (on none where that is not seen).

        Of clauses that compare parameters it is not: draws show that.
        """
        if not isinstance(clause, Atom) or clause.col not in self.tree._position:
            return NEVER
        k = self.tree._position[clause.col]
        mask = 0
        for code in range(len(self.tree._decisions[k])):
            low, high = self._span(k, code) or (
                -torch.inf,
                torch.inf,
            )
            if any(lo <= low and high <= hi for lo, hi in clause.intervals):
                mask |= 2 << code
        return State(k, mask)

    def _points(self, states: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """``n x D`` states -> ``n x d`` points, and which are feasible.

        All are, but those on paths where no feasible point is found.
        """
        X = self.place(states, kind)
        good = self.space.feasible(X)
        lower, upper = self.space.bounds
        width = (upper - lower).clamp(min=1e-300)
        for i in (~good).nonzero().flatten().tolist():
            for size in _OTHERS:
                others = self.place(states[i].expand(size, -1), "random")
                others = others[self.space.feasible(others)]
                if len(others):
                    distance = ((others - X[i]) / width).square().sum(-1)
                    X[i] = others[distance.argmin()]
                    good[i] = True
                    break
        return X, good

    def place(self, states: Tensor, kind: str) -> Tensor:
        """``n x D`` states -> ``n x d`` points, feasible or not."""
        X = self.space.fill.repeat(len(states), 1)
        active = self.tree.active_mask(self.tree.points_at(states))
        for c in active.any(0).nonzero().flatten().tolist():
            column = self.space.columns[c]
            k = self.tree._position.get(c)
            spans: list[Span | None] = [column.bounds]
            group = active[:, c].long()
            if k is not None:
                outcomes = range(len(self.tree._decisions[k]))
                spans = [self._span(k, code) for code in outcomes]
                group = states[:, k]
            for state, span in enumerate(spans, 1):
                rows = group == state
                n = int(rows.sum())
                if n and span:
                    X[rows, c] = column.draw(n, self.generator, span, kind)
        return X
