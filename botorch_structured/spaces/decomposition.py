"""Counting and numbering the paths of a search space without listing them.

A *path* is one joint setting of the decisions that are active. Which decisions those
are depends on the setting itself, so paths are counted by case distinction: give one
decision, known to be active, each of its outcomes in turn; every other decision's
condition becomes true, false (the decision is dropped, and whatever hangs on it) or a
smaller condition. What is left falls into groups that do not refer to each other, and
the counts of independent groups multiply. Equal remainders are met again and again and
are stored, so 20 independent on/off decisions take 20 steps and not 2^20.

Conditions are written as `Expr`: ``True``, ``False``, ``("atom", k, mask)`` for
"the bit of decision k's state is set in mask" (bit 0: inactive, bit c + 1: outcome c),
``("and", parts)`` and ``("or", parts)`` with a frozenset of parts. They are canonical,
hence hashable keys.
"""

from __future__ import annotations

__all__ = [
    "Decomposition",
    "Expr",
    "all_of",
    "any_of",
    "atom",
    "codes_in",
    "evaluate",
    "negated",
    "refers_to",
]

import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from itertools import accumulate
from operator import or_
from typing import Any, TypeVar

import numpy as np

# A bool, or a tuple as in the module docstring (recursive, hence Any).
Expr = Any
# The decisions not yet decided with what is left of their conditions, ordered.
State = tuple[tuple[int, Expr], ...]

# `spread` lists up to so many paths; of more it chooses some without a list.
_MAX_LISTED = 1000


def atom(k: int, mask: int) -> Expr:
    """The state of decision ``k`` is in the bit set ``mask``."""
    return ("atom", k, mask) if mask else False


def codes_in(mask: int, size: int) -> Iterator[int]:
    """The outcomes in a bit set, ascending."""
    mask = mask >> 1 & (1 << size) - 1
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _combine(kind: str, parts: Iterable[Expr]) -> Expr:
    neutral = kind == "and"
    masks: dict[int, int] = {}
    rest: set[Expr] = set()
    stack = list(parts)
    while stack:
        part = stack.pop()
        if isinstance(part, bool):
            if part is not neutral:
                return part
        elif part[0] == kind:
            stack.extend(part[1])
        elif part[0] == "atom":
            _, k, mask = part
            old = masks.get(k)
            if old is not None:
                mask = old & mask if neutral else old | mask
                if not mask:
                    return False
            masks[k] = mask
        else:
            rest.add(part)
    rest.update(atom(k, mask) for k, mask in masks.items())
    if len(rest) <= 1:
        return rest.pop() if rest else neutral
    return (kind, frozenset(rest))


def all_of(parts: Iterable[Expr]) -> Expr:
    """The conjunction of ``parts``, simplified."""
    return _combine("and", parts)


def any_of(parts: Iterable[Expr]) -> Expr:
    """The disjunction of ``parts``, simplified."""
    return _combine("or", parts)


def _shared(exprs: Iterable[Expr], sizes: Sequence[int]) -> set[Expr]:
    """Outcomes on which a column is active that is so on some of the others, too.

    Args:
        exprs: When columns are active.
        sizes: The numbers of outcomes of the decisions.
    """
    found: set[Expr] = set()
    for expr in exprs:
        for k in refers_to(expr):
            codes = codes_in(reduce(or_, _masks(expr, k)), sizes[k])
            left = [c for c in codes if _substitute(expr, k, c) is not False]
            if 1 < len(left) < sizes[k]:
                found |= {atom(k, 2 << c) for c in left}
    return found


@lru_cache(maxsize=65536)
def refers_to(expr: Expr) -> frozenset[int]:
    """The decisions an expression refers to."""
    if isinstance(expr, bool):
        return frozenset()
    if expr[0] == "atom":
        return frozenset((expr[1],))
    return frozenset().union(*(refers_to(part) for part in expr[1]))


def _masks(expr: Expr, k: int) -> set[int]:
    """The bit sets of decision ``k`` that occur in ``expr``."""
    if k not in refers_to(expr):
        return set()
    if expr[0] == "atom":
        return {expr[2]}
    return set().union(*(_masks(part, k) for part in expr[1]))


def _substitute(expr: Expr, k: int, code: int) -> Expr:
    """``expr`` once decision ``k`` has outcome ``code`` (-1: it is inactive)."""
    if k not in refers_to(expr):
        return expr
    if expr[0] == "atom":
        return bool(expr[2] >> code + 1 & 1)
    return _combine(expr[0], (_substitute(part, k, code) for part in expr[1]))


def evaluate(expr: Expr, codes: Mapping[int, int]) -> bool:
    """The truth of ``expr`` where exactly the decisions in ``codes`` are active."""
    if isinstance(expr, bool):
        return expr
    if expr[0] == "atom":
        return bool(expr[2] >> codes.get(expr[1], -1) + 1 & 1)
    test = all if expr[0] == "and" else any
    return test(evaluate(part, codes) for part in expr[1])


def negated(expr: Expr) -> Expr:
    """What holds exactly where ``expr`` does not."""
    if isinstance(expr, bool):
        return not expr
    if expr[0] == "atom":
        # ``~mask`` is negative and has all bits but those of the atom.
        return atom(expr[1], ~expr[2])
    return _combine("or" if expr[0] == "and" else "and", map(negated, expr[1]))


@dataclass(eq=False)
class _Node:
    """One case distinction: ``count`` paths, numbered from 0.

    Either independent ``factors`` (the first one counts slowest), or the outcomes of
    ``decision``, outcome ``c`` taking the numbers from ``starts[c]`` on.
    """

    count: int
    factors: Sequence[_Node] = ()
    decision: int = -1
    branches: Sequence[_Node] = ()
    starts: Sequence[int] = ()

    def rank(self, codes: np.ndarray) -> np.ndarray:
        """``n x D`` outcomes -> ``n`` path numbers."""
        numbers = np.zeros(len(codes), dtype=np.int64)
        # nodes, the rows that get there, and what one path below counts for
        todo: list[tuple[_Node, np.ndarray, int]] = [(self, np.arange(len(codes)), 1)]
        while todo:
            node, rows, unit = todo.pop()
            if node.decision < 0:
                for factor in reversed(node.factors):
                    if factor.count > 1:
                        todo.append((factor, rows, unit))
                    unit *= factor.count
                continue
            code = codes[rows, node.decision]
            numbers[rows] += unit * np.asarray(node.starts, dtype=np.int64)[code]
            # Outcomes that lead to the same remainder are followed together.
            below = [node.branches[c] for c in set(code.tolist())]
            for branch in {id(b): b for b in below if b.count > 1}.values():
                same = np.array([b is branch for b in node.branches])
                todo.append((branch, rows[same[code]], unit))
        return numbers

    def unrank(self, number: int) -> dict[int, int]:
        """The outcomes of path ``number``."""
        codes: dict[int, int] = {}
        todo = [(self, number)]
        while todo:
            node, number = todo.pop()
            if node.decision < 0:
                for factor in reversed(node.factors):
                    number, rest = divmod(number, factor.count)
                    todo.append((factor, rest))
                continue
            code = bisect_right(node.starts, number) - 1
            codes[node.decision] = code
            todo.append((node.branches[code], number - node.starts[code]))
        return codes


Result = TypeVar("Result")
Steps = Generator[Any, Any, Result]


def _run(steps: Steps[Result]) -> Result:
    """The result of a recursive generator, which yields the calls of itself.

    Trees may be deeper than Python's stack.
    """
    stack: list[Steps[Any]] = [steps]
    value: Any = None
    while stack:
        try:
            stack.append(stack[-1].send(value))
            value = None
        except StopIteration as end:
            stack.pop()
            value = end.value
    return value


def _draw(counts: Mapping[int, int], rng: random.Random) -> int:
    """A key with a probability in proportion to its count, which may be huge."""
    keys, totals = list(counts), list(accumulate(counts.values()))
    return keys[bisect_right(totals, rng.randrange(totals[-1]))]


class Decomposition:
    """The paths of ``D`` decisions, counted and numbered without listing them.

    Args:
        sizes: The number of outcomes of every decision.
        conditions: What activates every decision, over the decisions themselves; the
            references must not be cyclic.
    """

    def __init__(self, sizes: list[int], conditions: list[Expr]) -> None:
        self.sizes = sizes
        self._nodes: dict[State, _Node] = {}
        self._counts: dict[tuple[State, Expr], int] = {}
        self._waiting: list[list[int]] = [[] for _ in sizes]
        for j, expr in enumerate(conditions):
            for k in refers_to(expr):
                self._waiting[k].append(j)
        items = {k: e for k, e in enumerate(conditions) if e is not False}
        for k, expr in enumerate(conditions):
            if expr is False:
                self._assign(items, k, -1)
        self._possible = set(items)
        self.root = tuple(items.items())

    @property
    def num_paths(self) -> int:
        """The number of paths."""
        return self._node(self.root).count

    @cached_property
    def _outcome_counts(self) -> list[list[int]]:
        """On how many paths each decision is active with each of its outcomes."""
        root = self._node(self.root)
        counts = [[0] * size for size in self.sizes]
        # How often the paths of a node occur; nodes are stored after those below them.
        times = Counter({id(root): 1})
        for node in reversed(self._nodes.values()):
            here = times[id(node)]
            for factor in node.factors if node.count else ():
                times[id(factor)] += here * node.count // factor.count
            for code, branch in enumerate(node.branches):
                counts[node.decision][code] += here * branch.count
                times[id(branch)] += here
        return counts

    def count_where(self, goal: Expr) -> int:
        """The number of paths on which ``goal`` holds."""
        goal = self._at_root(goal)
        if isinstance(goal, bool) or goal[0] != "atom":
            return self._count(self.root, goal)
        _, k, mask = goal
        counts = self._outcome_counts[k]
        found = sum(counts[code] for code in codes_in(mask, len(counts)))
        return found + (self.num_paths - sum(counts) if mask & 1 else 0)

    def rank(self, codes: np.ndarray) -> np.ndarray:
        """Number paths.

        Args:
            codes: ``n x D`` outcomes; what inactive decisions hold is ignored.

        Returns:
            ``n`` numbers in ``[0, num_paths)``.
        """
        return self._node(self.root).rank(codes)

    def unrank(self, number: int) -> dict[int, int]:
        """The active decisions of path ``number`` with their outcomes."""
        return dict(sorted(self._node(self.root).unrank(number).items()))

    def spread(
        self,
        n: int | None,
        where: Expr,
        goals: Iterable[Expr],
        rng: random.Random,
        first: Sequence[dict[int, int]] = (),
    ) -> list[dict[int, int]]:
        """Paths on which ``where`` holds, each as often as the others or once more.

        Up to 1,000 paths are listed. Beyond that, and where ``n`` is smaller than their
        number, the first ones are such that each goal holds on one of them at least (as
        many goals as ``n`` paths can have); the rest is drawn at random.

        Args:
            n: How many. Default: all of them, or as many as the goals need where they
                are too many to list.
            where: What has to hold on all paths.
            goals: What has to hold on some path, unless it cannot.
            rng: Random numbers.
            first: Paths to begin with, on which ``where`` holds.

        Returns:
            The active decisions of each path with their outcomes.
        """
        every = None
        if self.num_paths <= _MAX_LISTED:
            paths = map(self.unrank, range(self.num_paths))
            rest = [p for p in paths if evaluate(where, p) and p not in first]
            every = [*first, *rest]
        if n is None:
            return self.cover(n, where, goals, rng, first) if every is None else every
        total = self.count_where(where)
        if 0 < total <= n:
            if every is None:
                every = self._fill(first, total, where, rng)
            times, more = divmod(n, total)
            few = self.spread(more, where, goals, rng, first) if more else []
            return every * times + few
        found = self.cover(n, where, goals, rng, first)
        return self._fill(found, n, where, rng) if total else found

    def cover(
        self,
        n: int | None,
        where: Expr,
        goals: Iterable[Expr],
        rng: random.Random,
        first: Sequence[dict[int, int]] = (),
    ) -> list[dict[int, int]]:
        """Paths until each goal holds on one, or there are ``n``; see `spread`."""
        found = list(first)
        counts = {g: self.count_where(all_of([g, where])) for g in goals}
        # Of two paths with the same columns, models are too sure of the one without a
        # start. Of the others, what holds on many paths comes first: a few paths then
        # differ at the top.
        shared = _shared(counts, self.sizes)
        if 2 * len(shared) > (n or 0):
            shared = set()
        missing = sorted(
            (g for g in counts if counts[g]),
            key=lambda g: (g not in shared, -counts[g]),
        )

        def choose(k: int, counts: dict[int, int]) -> int:
            new = [c for c in counts if atom(k, 2 << c) in wanted]
            return rng.choice(new) if new else _draw(counts, rng)

        new = found
        while True:
            missing = [g for g in missing if not any(evaluate(g, p) for p in new)]
            if not missing or len(found) == n:
                return found
            wanted = set(missing)
            new = [self._walk(all_of([missing[0], where]), choose)]
            found += new

    def _fill(
        self, found: Sequence[dict[int, int]], n: int, where: Expr, rng: random.Random
    ) -> list[dict[int, int]]:
        """``found``, and other random paths until there are ``n``."""
        found = list(found)
        known = {tuple(path.items()) for path in found}
        while len(found) < n:
            path = self._walk(where, lambda k, counts: _draw(counts, rng))
            if tuple(path.items()) not in known:
                known.add(tuple(path.items()))
                found.append(path)
        return found

    def _walk(
        self, goal: Expr, choose: Callable[[int, dict[int, int]], int]
    ) -> dict[int, int]:
        """A path on which ``goal`` holds, of which there has to be one.

        Args:
            goal: What has to hold.
            choose: A decision and its possible outcomes, each with the number of paths
                that it leaves -> one of these outcomes.
        """
        codes: dict[int, int] = {}
        state, goal = self.root, self._at_root(goal)
        while state:
            k = self._pick(state, goal)
            counts: dict[int, int] = {}
            below: dict[int, tuple[State, Expr]] = {}
            for first, same in self._cases(state, k, goal):
                after = self._after(state, goal, k, first)
                count = self._count(*after)
                if count:
                    counts |= dict.fromkeys(same, count)
                    below |= dict.fromkeys(same, after)
            codes[k] = choose(k, counts)
            state, goal = below[codes[k]]
        return dict(sorted(codes.items()))

    def _at_root(self, goal: Expr) -> Expr:
        """``goal`` once the decisions that are never active are."""
        for k in refers_to(goal) - self._possible:
            goal = _substitute(goal, k, -1)
        return goal

    def _after(self, state: State, goal: Expr, k: int, code: int) -> tuple[State, Expr]:
        """What is left of both once decision ``k`` has an outcome."""
        items = dict(state)
        del items[k]
        for j, decided in self._assign(items, k, code):
            goal = _substitute(goal, j, decided)
        return tuple(items.items()), goal

    def _assign(
        self, items: dict[int, Expr], k: int, code: int
    ) -> list[tuple[int, int]]:
        """Decide ``k`` in ``items``; returns all that is decided thereby."""
        todo = [(k, code)]
        for k, code in todo:
            for j in self._waiting[k]:
                if j not in items:
                    continue
                rest = _substitute(items[j], k, code)
                if rest is False:
                    del items[j]
                    todo.append((j, -1))
                else:
                    items[j] = rest
        return todo

    def _groups(self, state: State) -> list[State]:
        """``state`` split into parts that do not refer to each other."""
        parent = {k: k for k, _ in state}

        def find(k: int) -> int:
            while parent[k] != k:
                parent[k] = k = parent[parent[k]]
            return k

        for k, expr in state:
            for j in refers_to(expr):
                a, b = find(k), find(j)
                parent[max(a, b)] = min(a, b)
        groups: dict[int, list[tuple[int, Expr]]] = {}
        for item in state:
            groups.setdefault(find(item[0]), []).append(item)
        return [tuple(group) for group in groups.values()]

    def _pick(self, state: State, goal: Expr = False) -> int:
        """The active decision that most of the others (and the goal) wait for."""
        waiting = {k: 0 for k, expr in state if expr is True}
        for expr in (goal, *(expr for _, expr in state)):
            for k in refers_to(expr):
                if k in waiting:
                    waiting[k] += 1
        return max(waiting, key=lambda k: (waiting[k], -k))

    def _cases(self, state: State, k: int, goal: Expr) -> list[tuple[int, list[int]]]:
        """Outcomes of ``k`` grouped by effect: (one of them, all of them)."""
        masks = _masks(goal, k).union(*(_masks(expr, k) for _, expr in state))
        effects: list[list[int]] = [[] for _ in range(self.sizes[k])]
        for mask in masks:
            for code in codes_in(mask, self.sizes[k]):
                effects[code].append(mask)
        cases: dict[tuple[int, ...], list[int]] = {}
        for code, effect in enumerate(effects):
            cases.setdefault(tuple(effect), []).append(code)
        return [(codes[0], codes) for codes in cases.values()]

    def _node(self, state: State) -> _Node:
        return _run(self._node_steps(state))

    def _node_steps(self, state: State) -> Steps[_Node]:
        node = self._nodes.get(state)
        if node is not None:
            return node
        groups = self._groups(state)
        if len(groups) != 1:
            factors = []
            for group in groups:
                factors.append((yield self._node_steps(group)))
            node = _Node(math.prod(factor.count for factor in factors), factors)
        else:
            k = self._pick(state)
            below: dict[int, _Node] = {}
            for first, codes in self._cases(state, k, False):
                after, _ = self._after(state, False, k, first)
                found: _Node = yield self._node_steps(after)
                below |= dict.fromkeys(codes, found)
            branches = [below[code] for code in range(self.sizes[k])]
            *starts, count = accumulate((b.count for b in branches), initial=0)
            node = _Node(count, decision=k, branches=branches, starts=starts)
        self._nodes[state] = node
        return node

    def _count(self, state: State, goal: Expr) -> int:
        return _run(self._count_steps(state, goal))

    def _count_steps(self, state: State, goal: Expr) -> Steps[int]:
        if isinstance(goal, bool):
            return self._node(state).count if goal else 0
        key = (state, goal)
        if key in self._counts:
            return self._counts[key]
        factor = 1
        linked: State = ()
        concerned = refers_to(goal)
        for group in self._groups(state):
            if concerned.isdisjoint(k for k, _ in group):
                factor *= self._node(group).count
            else:
                linked += group
        k = self._pick(linked, goal)
        count = 0
        for first, codes in self._cases(linked, k, goal):
            after = self._after(linked, goal, k, first)
            count += len(codes) * (yield self._count_steps(*after))
        self._counts[key] = factor * count
        return self._counts[key]
