"""Paths of a search space: all of them where they are few, else some of them.

A *path* is one joint setting of the decisions that are active. Paths are rows of
states (see `lookup`), which are built up decision by decision, parents first:
a row has a successor for each outcome where the decision is active, and one where it is
not. Of more than a number of rows some are kept, random ones or those worth most.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial

import numpy as np

from botorch_structured.spaces.lookup import (
    Expr,
    all_of,
    atom,
    atoms,
    bits,
    holds,
    refers_to,
    replaced,
)

# Up to so many paths are listed.
MAX_LISTED = 4096
# Rows that are kept in the search for one good path.
_BEAM = 64
# `PathSearch.spread` lists up to so many paths if it is not told how many.
_MAX_SPREAD = 1000


class PathSearch:
    """The paths of ``D`` decisions.

    Args:
        sizes: The number of outcomes of each decision.
        conditions: For each decision what activates it, over the decisions.
        order: The decisions, parents first.

    Attributes:
        states: All paths, or random ones if these are not listed.
        is_listed: Whether there are at most `MAX_LISTED` paths.
        num_paths: The number of paths if they are listed, else of all settings: a
            bound.
    """

    def __init__(
        self, sizes: Sequence[int], conditions: Sequence[Expr], order: Sequence[int]
    ) -> None:
        self.sizes = sizes
        self.conditions = conditions
        self.order = order
        rng = np.random.default_rng(0)
        self.states, self.is_listed = self._search(True, MAX_LISTED, rng)
        self.num_paths = len(self.states)
        if not self.is_listed:
            inactive = [condition is not True for condition in conditions]
            self.num_paths = math.prod(map(operator.add, sizes, inactive))

    def holds(self, goal: Expr, states: np.ndarray) -> np.ndarray:
        """Which of ``n x D`` states a goal holds for."""
        if isinstance(goal, bool):
            return np.full(len(states), goal)
        truth = {}
        for part in atoms(goal):
            _, k, mask = part
            truth[part] = bits(mask, self.sizes[k] + 1)[states[:, k]]
        return holds(goal, truth)

    def where(
        self, goal: Expr, most: int = _BEAM, seed: Sequence[int] = (0,)
    ) -> tuple[np.ndarray, bool]:
        """Paths on which a goal holds, and whether these are all.

        Args:
            goal: The goal.
            most: How many are wanted.
            seed: Chooses among more.
        """
        if self.is_listed:
            return self.states[self.holds(goal, self.states)], True
        return self._search(goal, most, np.random.default_rng(seed))

    def _search(
        self,
        goal: Expr,
        most: int,
        rng: np.random.Generator,
        wanted: Iterable[Expr] | None = None,
    ) -> tuple[np.ndarray, bool]:
        """Paths on which a goal holds, in the order of their states.

        Args:
            goal: The goal.
            most: How many rows are kept.
            rng: Chooses among more.
            wanted: Atoms. Rows in which more of them hold are kept first, and one of
                the best is chosen in the end.

        Returns:
            ``n x D`` states, and whether these are all paths.
        """
        if goal is not True:
            goal = replaced(goal, partial(_with_parents, self._reached))
        concerned = refers_to(goal)
        worth = [np.zeros(size + 1) for size in self.sizes]
        for _, k, mask in wanted or ():
            worth[k] += bits(mask, self.sizes[k] + 1)
        states = np.zeros((1, len(self.sizes)), dtype=np.int32)
        score = np.zeros(1)
        is_complete = True
        undecided = set(self.order)
        for k in self.order:
            undecided.remove(k)
            is_active = self.holds(self.conditions[k], states)
            successors = np.where(is_active, self.sizes[k], 1)
            row = np.repeat(np.arange(len(states)), successors)
            first = np.repeat(successors.cumsum() - successors, successors)
            outcome = np.arange(len(row)) - first
            state = np.where(is_active[row], outcome + 1, 0)
            if k in concerned:
                truth = {}
                for part in atoms(goal):
                    _, j, mask = part
                    if j in undecided:
                        truth[part] = np.full(len(row), True)
                        continue
                    column = state if j == k else states[row, j]
                    truth[part] = bits(mask, self.sizes[j] + 1)[column]
                possible = holds(goal, truth)
                row = row[possible]
                state = state[possible]
            score = score[row] + worth[k][state]
            if len(row) > most:
                best = np.lexsort((rng.random(len(row)), -score))[:most]
                best.sort()
                row = row[best]
                state = state[best]
                score = score[best]
                is_complete = False
            states = states[row]
            states[:, k] = state
        if goal is False:
            states = states[:0]
        if wanted is not None and len(states):
            best = np.flatnonzero(score == score.max())
            states = states[[rng.choice(best)]]
        return states, is_complete

    @cached_property
    def _reached(self) -> dict[int, Expr]:
        """The conditions of decisions, with those of their parents."""
        reached: dict[int, Expr] = {}
        for k in self.order:
            add_parents = partial(_with_parents, reached)
            reached[k] = replaced(self.conditions[k], add_parents)
        return reached

    def cover(
        self,
        n: int | None,
        where: Expr,
        goals: Iterable[Expr],
        seed: int,
        first: np.ndarray,
    ) -> np.ndarray:
        """Paths until each goal holds on one, or there are ``n``; see `spread`."""
        rng = np.random.default_rng(seed)
        states = self.states[self.holds(where, self.states)]
        counts = {goal: self.holds(goal, states).sum() for goal in goals}
        # Models are too sure of the one of two paths with the same columns that has no
        # start. Otherwise what holds on many paths comes first: a few paths then differ
        # at the top.
        shared = self._shared([g for g in counts if counts[g]])
        if 2 * len(shared) > (n or 0):
            shared = set()
        missing = sorted(counts, key=lambda g: (g not in shared, -counts[g]))
        if self.is_listed:
            missing = [g for g in missing if counts[g]]
        paths = new = first
        while True:
            for path in new.tolist():
                missing = [g for g in missing if not _holds_on(path, g)]
            if not missing or len(paths) == n:
                return paths
            goal = all_of([missing[0], where])
            wanted = [g for g in missing if not isinstance(g, bool) and g[0] == "atom"]
            if self.is_listed:
                new = self._pick(
                    self.states[self.holds(goal, self.states)], wanted, rng
                )
            else:
                new, _ = self._search(goal, _BEAM, rng, wanted)
            paths = np.concatenate([paths, new])
            if not len(new):  # the goal cannot be reached
                missing = missing[1:]

    def _pick(
        self, paths: np.ndarray, wanted: Sequence[Expr], rng: np.random.Generator
    ) -> np.ndarray:
        """One of the paths: at each decision a wanted outcome, if one is left.

        Otherwise outcomes are drawn in proportion to their paths.
        """
        for k in self.order if len(paths) else ():
            states = paths[:, k]
            new = [s for s in np.unique(states) if atom(k, 1 << int(s)) in wanted]
            paths = paths[states == rng.choice(new or states)]
        return paths[:1]

    def _shared(self, goals: Sequence[Expr]) -> set[Expr]:
        """Outcomes on which a column is active that is so on some of the others, too.

        Args:
            goals: When columns are active.
        """
        shared: set[Expr] = set()
        for goal in goals:
            states = self.states[self.holds(goal, self.states)]
            for k in refers_to(goal):
                seen = [s for s in np.unique(states[:, k]).tolist() if s]
                if 1 < len(seen) < self.sizes[k]:
                    shared |= {atom(k, 1 << s) for s in seen}
        return shared

    def spread(
        self,
        n: int | None,
        where: Expr,
        goals: Sequence[Expr],
        seed: int,
        first: np.ndarray,
    ) -> np.ndarray:
        """Paths on which ``where`` holds, each as often as the others or once more.

        Up to 1,000 paths are listed. Beyond that, and where ``n`` is smaller than their
        number, the first ones are such that each goal holds on one of them at least (as
        many goals as ``n`` paths can have); the rest is drawn at random.

        Args:
            n: How many. Default: all of them, or as many as the goals need where they
                are too many to list.
            where: What has to hold on all paths.
            goals: What has to hold on some path, unless it cannot.
            seed: Decides what is random.
            first: Paths to begin with, on which ``where`` holds.

        Returns:
            ``n x D`` states.
        """
        most = _MAX_SPREAD if n is None else n + len(first)
        listed, is_complete = self.where(where, most, (seed, 1))
        if n is None:
            if not is_complete or len(listed) > _MAX_SPREAD:
                return self.cover(n, where, goals, seed, first)
            n = len(listed)
        if is_complete and 0 < len(listed) <= n:
            times, more = divmod(n, len(listed))
            every_path = _distinct([first, listed])
            few = self.spread(more, where, goals, seed, first) if more else listed[:0]
            return np.concatenate([*[every_path] * times, few])
        covering = self.cover(n, where, goals, seed, first)
        return _distinct([covering, np.random.default_rng(seed).permutation(listed)])[
            :n
        ]


def _with_parents(reached: Mapping[int, Expr], part: Expr) -> Expr:
    """An atom, and what has to hold for its decision to be active."""
    _, k, mask = part
    return part if mask & 1 else all_of([part, reached[k]])


def _holds_on(path: Sequence[int], goal: Expr) -> bool:
    """Whether a goal holds for the states of one path."""

    truth = {part: bool(part[2] >> path[part[1]] & 1) for part in atoms(goal)}
    return holds(goal, {**truth, True: True, False: False})


def _distinct(tables: Sequence[np.ndarray]) -> np.ndarray:
    """The rows of tables, each one once, where it comes first."""
    rows = dict.fromkeys(tuple(row) for table in tables for row in table.tolist())
    return np.array([*rows], dtype=tables[0].dtype).reshape(len(rows), -1)
