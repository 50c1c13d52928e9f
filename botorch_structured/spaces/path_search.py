"""Paths of a search space: all of them where they are few, else some of them.

A *path* is one joint setting of the decisions that are active. Paths are rows of
states (see `conditions`), which are built up decision by decision, parents first:
a row has a successor for each outcome where the decision is active, and one where it is
not. Of more than a number of rows random ones are kept.
"""

from __future__ import annotations

import math
from collections.abc import (
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from functools import cached_property

import numpy as np

from botorch_structured.spaces.conditions import ALWAYS, And, Condition, State, bits

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
        self,
        sizes: Sequence[int],
        conditions: Sequence[Condition],
        order: Sequence[int],
    ) -> None:
        self.sizes = sizes
        self.conditions = conditions
        self.order = order
        rng = np.random.default_rng(0)
        self.states, self.is_listed = self._search(ALWAYS, MAX_LISTED, rng)
        self.num_paths = len(self.states)
        if not self.is_listed:
            pairs = zip(sizes, conditions, strict=True)
            self.num_paths = math.prod(size + (c != ALWAYS) for size, c in pairs)

    def holds(
        self,
        goal: Condition,
        states: np.ndarray,
        undecided: Collection[int] = (),
    ) -> np.ndarray:
        """For which of ``n x D`` states a goal holds, or may hold in the end.

        Args:
            goal: The goal.
            states: The states.
            undecided: Decisions that may have any state yet.
        """

        def truth(part: State) -> np.ndarray | bool:
            if part.k in undecided:
                return True
            return bits(part.mask, self.sizes[part.k] + 1)[states[:, part.k]]

        everywhere = np.full(len(states), True)
        return everywhere if goal == ALWAYS else everywhere & goal.evaluate(truth)

    def where(
        self,
        goal: Condition,
        most: int = _BEAM,
        seed: Sequence[int] = (0,),
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
        goal: Condition,
        most: int,
        rng: np.random.Generator,
        wanted: Collection[Condition] = (),
    ) -> tuple[np.ndarray, bool]:
        """Paths on which a goal holds, in the order of their states.

        Args:
            goal: The goal.
            most: How many rows are kept.
            rng: Chooses among more.
            wanted: Outcomes: at each decision one of them is taken where rows have one.

        Returns:
            ``n x D`` states, and whether these are all paths.
        """
        concerned: Collection[int] = ()
        if goal != ALWAYS:
            goal = goal.replaced(lambda part: _with_parents(part, self._reached))
            concerned = goal.columns()
        states = np.zeros((1, len(self.sizes)), dtype=np.int32)
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
            keep = np.full(len(row), True)
            if k in concerned:
                rows = states[row]
                rows[:, k] = state
                keep = self.holds(goal, rows, undecided)
            if new := _outcomes(k, state[keep], wanted):
                keep &= state == rng.choice(new)
            chosen = np.flatnonzero(keep)
            if len(chosen) > most:
                chosen = np.sort(rng.permutation(chosen)[:most])
                is_complete = False
            states = states[row[chosen]]
            states[:, k] = state[chosen]
        return states[self.holds(goal, states)], is_complete

    @cached_property
    def _reached(self) -> dict[int, Condition]:
        """The conditions of decisions, with those of their parents."""
        reached: dict[int, Condition] = {}
        for k in self.order:
            condition = self.conditions[k]
            reached[k] = condition.replaced(lambda part: _with_parents(part, reached))
        return reached

    def cover(
        self,
        n: int | None,
        where: Condition,
        goals: Iterable[Condition],
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
        missing = sorted(
            counts,
            key=lambda g: (g not in shared, -counts[g]),
        )
        if self.is_listed:
            missing = [g for g in missing if counts[g]]
        paths = new = first
        while True:
            for path in new.tolist():
                missing = [g for g in missing if not _holds_on(path, g)]
            if not missing or len(paths) == n:
                return paths
            new = self._new_path(And((missing[0], where)), set(missing), rng)
            paths = np.concatenate([paths, new])
            if not len(new):  # the goal cannot be reached
                missing = missing[1:]

    def _new_path(
        self,
        goal: Condition,
        wanted: Collection[Condition],
        rng: np.random.Generator,
    ) -> np.ndarray:
        """A path with a goal: at each decision a wanted outcome, if one is left.

        Otherwise outcomes are drawn in proportion to their paths. ``1 x D`` states, or
        none.
        """
        if self.is_listed:
            paths = self.states[self.holds(goal, self.states)]
            for k in self.order if len(paths) else ():
                states = paths[:, k]
                new = _outcomes(k, states, wanted)
                paths = paths[states == rng.choice(new or states)]
            return paths[:1]
        paths, _ = self._search(goal, _BEAM, rng, wanted)
        if not len(paths):  # what was wanted has led astray
            paths, _ = self._search(goal, _BEAM, rng)
        return rng.permutation(paths)[:1]

    def _shared(self, goals: Sequence[Condition]) -> set[Condition]:
        """Outcomes on which a column is active that is so on some of the others, too.

        Args:
            goals: When columns are active.
        """
        shared: set[Condition] = set()
        for goal in goals:
            states = self.states[self.holds(goal, self.states)]
            for k in goal.columns():
                seen = [s for s in np.unique(states[:, k]).tolist() if s]
                if 1 < len(seen) < self.sizes[k]:
                    shared |= {State(k, 1 << s) for s in seen}
        return shared

    def spread(
        self,
        n: int | None,
        where: Condition,
        goals: Sequence[Condition],
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
        shuffled = np.random.default_rng(seed).permutation(listed)
        return _distinct([covering, shuffled])[:n]


def _with_parents(part: State, reached: Mapping[int, Condition]) -> Condition:
    """An atom, and what has to hold for its decision to be active."""
    return part if part.mask & 1 else And((part, reached[part.k]))


def _holds_on(path: Sequence[int], goal: Condition) -> bool:
    """Whether a goal holds for the states of one path."""
    return bool(goal.evaluate(lambda part: part.mask >> path[part.k] & 1))


def _outcomes(
    k: int,
    states: np.ndarray,
    wanted: Collection[Condition],
) -> list[int]:
    """Which of the states of a decision are wanted."""
    if not wanted:
        return []
    return [s for s in np.unique(states).tolist() if State(k, 1 << s) in wanted]


def _distinct(tables: Sequence[np.ndarray]) -> np.ndarray:
    """The rows of tables, each one once, where it comes first."""
    rows = dict.fromkeys(tuple(row) for table in tables for row in table.tolist())
    return np.array([*rows], dtype=tables[0].dtype).reshape(len(rows), -1)
