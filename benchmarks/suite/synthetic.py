"""Random conditional problems, from one generator of random numbers each.

`draw` makes the problem of a number. What it draws:

* **Tree**: 2 to 64 paths, log-uniform. Leaves are split by decisions of two or (30 %)
  three values: the shallowest leaf (balanced trees), a random one, or the last
  (chains); a third of the problems each.
* **Columns of one leaf**: 0 to ``w`` of their own, ``w`` from 1 to 8, less in large
  trees, so that there are at most about 64. In a quarter of the problems half of the
  leaves have none.
* **Shared columns**: none, few (1 to 2) or most (3 to 6, and leaves then have at most
  one of their own); a third each. A shared column is active everywhere, or below one
  value of a decision, or under several values of one decision, or in places anywhere in
  the tree. No path has more than 8 numeric columns.
* **Kinds of columns**: 0, 15 or 50 % are integers (3 to 1,000 values), ordinals,
  categories (2 to 6, without an order) instead of real numbers; 0 or 40 % of the real
  numbers and of the integers are on a logarithmic scale.
* **Functions**: each column has a position ``u`` in [0, 1] on its scale (categories at
  random). The function of leaf ``p`` is ``a_p g_p(u) + offset_p`` with

      g_p = sqrt(rho) g(shared and aligned columns) + sqrt(1 - rho) h_p(columns of p),

  the ``k``-th own columns of all leaves being aligned; the dependence ``rho`` is 0,
  0.5, 0.8 or 0.95. ``g`` and ``h_p`` are bowls (quadratic; rotated unless additive),
  or smooth or rough draws of Gaussian processes (random Fourier features; lengthscales
  0.3 to 0.8 or 0.06 to 0.2, times the root of the number of columns unless additive).
  Relevances of columns are log-normal, 40 % of the problems are additive, and in a
  quarter values are rounded down to steps, 10 to 200 in four spreads, as error rates
  are. Amplitudes ``a_p`` are all 1, or log-normal with a deviation of 0.5.
* **Offsets** between leaves: none, 0.3, 1 or 3 times the spread of a leaf; half of them
  accumulate along the tree.
* **Optimum**: bowls are centred in the middle region, anywhere, or beyond the bounds in
  some of the columns; draws have a bowl or slope added which pulls them there.
* **Tail**: in a third of the problems values above the median are stretched
  exponentially.
* **Noise**: none in half of the problems, else 0.03 to 0.3 of the spread (the distance
  of the quartiles of random points, divided by 1.35).
* **Scale** of the values: 1, 0.001, or 1,000 and shifted.

The optimum is the best of a search: 20,000 random positions spread over the leaves,
steps down the slope from the best 800, then random steps and L-BFGS from the best 24.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from benchmarks.harness import ProblemFactory
from benchmarks.suite.problem import SuiteProblem
from botorch_structured.spaces import Equals, ParameterTree, SearchSpace
from botorch_structured.spaces.columns import (
    CategoricalColumn,
    Column,
    FloatColumn,
    IntegerColumn,
)
from botorch_structured.spaces.conditions import Condition, Or

_FEATURES = 128  # random Fourier features of a draw
_MOST_ACTIVE = 8  # numeric columns on a path
_ALIGNED = 8  # own columns of a leaf, at most
_SEARCHED = 20_000
_CLIMBERS = 800
_REFINED = 24
_LEAST_ROOM = 0.1  # between middle and optimum, in spreads


@dataclass(frozen=True)
class _Node:
    """An edge of the tree: a value of a decision."""

    decision: int
    value: int
    above: tuple[int, ...]  # nodes from the root to here, this one included


class _Function:
    """A bowl plus random Fourier features over slots, of mean about 0.

    Args:
        curve: ``s x s`` and centre ``s`` of the bowl.
        waves: ``m x s`` frequencies, ``m`` phases and ``m`` weights.
    """

    def __init__(
        self,
        curve: tuple[np.ndarray, np.ndarray],
        waves: tuple[np.ndarray, np.ndarray, np.ndarray] | None,
    ) -> None:
        self.curve, self.waves = curve, waves

    def __call__(self, U: np.ndarray) -> np.ndarray:
        """``n x s`` positions, 0.5 where a slot is not used -> ``n``."""
        A, centre = self.curve
        V = U - centre
        value = np.einsum("ni,ij,nj->n", V, A, V, optimize=True)
        if self.waves is not None:
            W, phase, weight = self.waves
            value += np.cos((U - 0.5) @ W.T + phase) @ weight
        return value

    def slope(self, U: np.ndarray) -> np.ndarray:
        """``n x s`` positions -> ``n x s`` derivatives."""
        A, centre = self.curve
        value = 2.0 * (U - centre) @ A
        if self.waves is not None:
            W, phase, weight = self.waves
            value -= (np.sin((U - 0.5) @ W.T + phase) * weight) @ W
        return value


class _Scale:
    """Positions of the numbers of a column, and a number for each position."""

    def __init__(self, column: Column, rng: np.random.Generator) -> None:
        self.lo, self.hi = column.bounds
        self.log = isinstance(column, IntegerColumn) and column.log
        self.grid: np.ndarray | None = None  # positions of the whole numbers
        if column.discrete:
            numbers = np.arange(self.lo, self.hi + 1)
            self.grid = self._position(numbers)
            if not column.ordered:
                self.grid = rng.permutation(self.grid)

    def _position(self, x: np.ndarray) -> np.ndarray:
        if self.log:
            return np.log(x / self.lo) / math.log(self.hi / self.lo)
        return (x - self.lo) / (self.hi - self.lo)

    def position(self, x: np.ndarray) -> np.ndarray:
        if self.grid is None:
            return np.clip(self._position(x), 0.0, 1.0)
        k = np.clip(np.rint(x - self.lo).astype(int), 0, len(self.grid) - 1)
        return self.grid[k]

    def number(self, u: float) -> float:
        if self.grid is None:
            return min(max(self.lo + u * (self.hi - self.lo), self.lo), self.hi)
        return self.lo + float(np.abs(self.grid - u).argmin())

    def legal(self, u: np.ndarray) -> np.ndarray:
        """The nearest positions that a number has."""
        if self.grid is None:
            return np.clip(u, 0.0, 1.0)
        return self.grid[np.abs(u[:, None] - self.grid).argmin(-1)]

    def random(self, n: int, rng: np.random.Generator) -> np.ndarray:
        u = rng.random(n)
        return u if self.grid is None else rng.choice(self.grid, n)


class SyntheticProblem(SuiteProblem):
    """A problem of the generator; see the docstring of the module and `draw`.

    ``properties`` tells what was drawn.

    Args:
        rng: Where everything is drawn from.
    """

    properties: dict[str, Any]

    def __init__(self, rng: np.random.Generator) -> None:
        self.properties = _draw_properties(rng)
        nodes, leaves, num_decisions = _draw_tree(rng, self.properties)
        places, aligned = _draw_places(rng, self.properties, nodes, leaves)
        columns = _draw_columns(rng, self.properties, len(places))
        super().__init__(_make_space(nodes, num_decisions, places, columns))
        self.properties["columns"] = self.space.dim
        self._scales = [_Scale(column, rng) for column in columns]
        self._first = num_decisions
        self._leaves = self._number_leaves(nodes, leaves, num_decisions)
        order = np.argsort(self._leaves)  # from path numbers to leaves
        # Slots: the shared columns, then the aligned places of own columns.
        shared = [c for c, place in enumerate(aligned) if place < 0]
        slot = {c: k for k, c in enumerate(shared)}
        slot |= {c: len(shared) + k for c, k in enumerate(aligned) if k >= 0}
        self._slots = len(shared) + _ALIGNED
        self._active: list[list[tuple[int, int]]] = []  # (column, slot) by path number
        for leaf in order:
            above = set(nodes[leaves[leaf]].above)
            active = [c for c, at in enumerate(places) if not at or above & set(at)]
            self._active.append([(c, slot[c]) for c in active])
        self._draw_functions(rng, [nodes[leaves[leaf]].above for leaf in order])
        self._finish(rng)

    def _number_leaves(
        self, nodes: Sequence[_Node], leaves: Sequence[int], num_decisions: int
    ) -> np.ndarray:
        """The number of each leaf's path in the tree of the space."""
        X = self.space.fill.repeat(len(leaves), 1)
        for i, leaf in enumerate(leaves):
            for node in nodes[leaf].above:
                X[i, nodes[node].decision] = float(nodes[node].value)
        return self.space.tree.path_index(X).numpy()

    def _draw_functions(
        self, rng: np.random.Generator, above: Sequence[tuple[int, ...]]
    ) -> None:
        p = self.properties
        n, s = len(self._active), self._slots
        width = max(1.0, float(np.mean([len(a) for a in self._active])))
        relevance = np.exp(rng.normal(0.0, 0.7, s))
        everything = np.arange(s)
        self._common = _draw_function(rng, p, everything, s, relevance, width)
        self._own = []
        for active in self._active:
            used = np.array([k for _, k in active], dtype=int)
            factor = relevance * np.exp(rng.normal(0.0, 0.4, s))
            self._own.append(_draw_function(rng, p, used, s, factor, width))
        p["rho"] = float(rng.choice([0.0, 0.5, 0.8, 0.95]))
        self._amplitudes = np.exp(rng.normal(0.0, rng.choice([0.0, 0.5]), n))
        p["offset"] = float(rng.choice([0.0, 0.3, 1.0, 3.0]))
        p["offsets_of_nodes"] = bool(rng.random() < 0.5)
        offsets = rng.normal(size=n)
        if p["offsets_of_nodes"]:
            steps = rng.normal(size=1 + max(max(a) for a in above))
            offsets = np.array([steps[list(a)].sum() for a in above])
            offsets /= max(float(offsets.std()), 0.3)
        self._offsets = p["offset"] * offsets
        # One scale for the leaf functions: the spread within a leaf is 1 on average.
        spreads = []
        for i in range(n):
            U = self._random_positions(i, 200, rng)
            spreads.append(self._leaf(i, U, raw=True).std())
        spread = float(np.mean(spreads))
        self._spread = spread if spread > 1e-9 else 1.0

    def _leaf(self, i: int, U: np.ndarray, raw: bool = False) -> np.ndarray:
        """``n x s`` positions in leaf ``i`` -> ``n`` values before the scale."""
        rho = self.properties["rho"]
        value = math.sqrt(rho) * self._common(U) + math.sqrt(1 - rho) * self._own[i](U)
        if raw:
            return value
        return self._amplitudes[i] * value / self._spread + self._offsets[i]

    def _random_positions(self, i: int, n: int, rng: np.random.Generator) -> np.ndarray:
        U = np.full((n, self._slots), 0.5)
        for c, k in self._active[i]:
            U[:, k] = self._scales[c].random(n, rng)
        return U

    def _finish(self, rng: np.random.Generator) -> None:
        """Tail, steps, noise and the scale of values; then a search of the optimum."""
        p = self.properties
        p["tail"] = bool(rng.random() < 1 / 3)
        steps = int(round(10 ** rng.uniform(1.0, 2.3)))
        p["steps"] = steps if rng.random() < 0.25 else 0
        noise = float(rng.uniform(0.03, 0.3))
        p["noise"] = noise if rng.random() < 0.5 else 0.0
        p["factor"] = float(rng.choice([1.0, 1e-3, 1e3], p=[0.5, 0.25, 0.25]))
        shift = float(rng.normal(0.0, 3.0))
        self._shift = shift if p["factor"] == 1e3 else 0.0
        n = len(self._active)
        found, everything = [], []
        for i in range(n):
            U = self._random_positions(i, max(200, _SEARCHED // n), rng)
            values = self._leaf(i, U)
            everything.append(values)
            best = np.argsort(values)[: max(4, _CLIMBERS // n)]
            U, values = self._descend(i, U[best])
            best = np.argsort(values)[:_REFINED]
            found += [(float(values[j]), i, U[j]) for j in best]
        values = np.concatenate(everything)
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
        self._location, self._width = float(median), float(max(high - low, 1e-3)) / 1.35
        low, high = np.quantile(self._outcome(values), [0.25, 0.75])
        self.spread = float(high - low) / 1.35
        self.noise_std = p["noise"] * self.spread
        found = sorted(found, key=lambda f: f[0])[:_REFINED]
        refined = [self._refine(i, U, rng) for _, i, U in found]
        _, i, U = min(refined, key=lambda f: f[0])
        self.optimizer = self._point(i, U)

    def _outcome(self, values: np.ndarray) -> np.ndarray:
        """Values of `_leaf` with tail, steps and scale; monotone."""
        p = self.properties
        z = (values - self._location) / self._width
        if p["tail"]:
            z = np.where(z > 0, np.expm1(np.minimum(np.maximum(z, 0.0), 6.0)), z)
        if p["steps"]:
            z = np.floor(z * p["steps"] / 4.0) * 4.0 / p["steps"]
        return p["factor"] * (z + self._shift)

    def _descend(self, i: int, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Steps down from ``m x s`` positions, all at once, in the real columns."""
        real = [k for c, k in self._active[i] if self._scales[c].grid is None]
        best, values = U, self._leaf(i, U)
        if not real:
            return best, values
        rho, size = self.properties["rho"], np.zeros((len(U), len(real)))
        for step in np.geomspace(0.04, 0.002, 40):
            slope = math.sqrt(rho) * self._common.slope(U)
            slope += math.sqrt(1.0 - rho) * self._own[i].slope(U)
            slope = slope[:, real]
            size = 0.8 * size + 0.2 * slope**2  # as in RMSprop
            U = U.copy()
            moved = U[:, real] - step * slope / np.sqrt(size + 1e-12)
            U[:, real] = np.clip(moved, 0.0, 1.0)
        after = self._leaf(i, U)
        lower = after < values
        return np.where(lower[:, None], U, best), np.where(lower, after, values)

    def _refine(
        self, i: int, U: np.ndarray, rng: np.random.Generator
    ) -> tuple[float, int, np.ndarray]:
        """Random steps that shrink, then L-BFGS over the real columns."""
        active = self._active[i]
        best, value = U, float(self._leaf(i, U[None])[0])
        if not active:
            return value, i, best
        for step in np.geomspace(0.3, 0.003, 20):
            V = np.repeat(best[None], 48, 0)
            for c, k in active:
                moved = rng.random(48) < max(0.3, 1.0 / len(active))
                steps = rng.normal(0.0, step, 48)
                scale = self._scales[c]
                if scale.grid is not None:
                    V[moved, k] = scale.random(48, rng)[moved]
                else:
                    V[:, k] = scale.legal(V[:, k] + moved * steps)
            values = self._leaf(i, V)
            if values.min() < value:
                best, value = V[values.argmin()], float(values.min())
        real = [k for c, k in active if self._scales[c].grid is None]
        if not real:
            return value, i, best

        def objective(u: np.ndarray) -> float:
            V = best.copy()
            V[real] = u
            return float(self._leaf(i, V[None])[0])

        limits = [(0.0, 1.0)] * len(real)
        result = minimize(objective, best[real], method="L-BFGS-B", bounds=limits)
        if result.fun < value:
            best = best.copy()
            best[real] = np.clip(result.x, 0.0, 1.0)
            value = float(self._leaf(i, best[None])[0])
        return value, i, best

    def _point(self, i: int, U: np.ndarray) -> Tensor:
        """The ``d`` point at positions in leaf ``i``."""
        x = self.space.fill.clone()
        for decision, value in self.space.tree.paths[i].fixed_features.items():
            x[decision] = value
        for c, k in self._active[i]:
            x[self._first + c] = self._scales[c].number(float(U[k]))
        return x

    @cached_property
    def optimal_value(self) -> float:
        """The truth of ``optimizer``, the best point of the search."""
        return self.truth(self.optimizer)

    def truths(self, X: Tensor) -> Tensor:
        """``n x d`` points -> ``n`` values without noise."""
        paths = self.space.tree.path_index(X).numpy()
        numbers = X.detach().numpy()
        values = np.empty(len(X))
        for i in np.unique(paths):
            rows = paths == i
            U = np.full((int(rows.sum()), self._slots), 0.5)
            for c, k in self._active[i]:
                U[:, k] = self._scales[c].position(numbers[rows, self._first + c])
            values[rows] = self._leaf(i, U)
        return torch.from_numpy(self._outcome(values))


def _draw_properties(rng: np.random.Generator) -> dict[str, Any]:
    """Properties that do not depend on the tree."""
    return {
        "paths": int(round(2.0 ** rng.uniform(1.0, 6.0))),
        "shape": str(rng.choice(["balanced", "random", "chain"])),
        "sharing": str(rng.choice(["none", "few", "most"])),
        "width": int(rng.integers(1, 9)),
        "empty_leaves": bool(rng.random() < 0.25),
        "discrete": float(rng.choice([0.0, 0.15, 0.5])),
        "logs": float(rng.choice([0.0, 0.4])),
        "function": str(rng.choice(["bowl", "smooth", "rough"], p=[0.3, 0.4, 0.3])),
        "additive": bool(rng.random() < 0.4),
        "optimum": str(rng.choice(["middle", "anywhere", "corner"])),
    }


def _draw_tree(
    rng: np.random.Generator, p: Mapping[str, Any]
) -> tuple[list[_Node], list[int], int]:
    """Nodes, the nodes that are leaves, and the number of decisions."""
    nodes: list[_Node] = []
    leaves: list[int] = []
    decision = 0
    while len(leaves) < p["paths"]:
        above: tuple[int, ...] = ()
        if leaves:
            at = {
                "balanced": min(
                    range(len(leaves)), key=lambda k: len(nodes[leaves[k]].above)
                ),
                "random": int(rng.integers(len(leaves))),
                "chain": len(leaves) - 1,
            }[p["shape"]]
            above = nodes[leaves.pop(at)].above
        room = p["paths"] - len(leaves)
        count = 3 if room >= 3 and rng.random() < 0.3 else 2
        for value in range(count):
            leaves.append(len(nodes))
            nodes.append(_Node(decision, value, (*above, len(nodes))))
        decision += 1
    return nodes, leaves, decision


def _draw_places(
    rng: np.random.Generator,
    p: dict[str, Any],
    nodes: Sequence[_Node],
    leaves: Sequence[int],
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Numeric columns: the nodes below which one is active (none: everywhere).

    Also the aligned place of each column of one leaf, -1 for shared ones.
    """
    active = dict.fromkeys(leaves, 0)
    places: list[tuple[int, ...]] = []
    aligned: list[int] = []
    few, most = int(rng.integers(1, 3)), int(rng.integers(3, 7))
    for _ in range({"none": 0, "few": few, "most": most}[p["sharing"]]):
        place = _draw_place(rng, p["sharing"], nodes)
        below = [
            leaf for leaf in leaves if not place or set(nodes[leaf].above) & {*place}
        ]
        if max(active[leaf] for leaf in below) < _MOST_ACTIVE:
            places.append(place)
            aligned.append(-1)
            for leaf in below:
                active[leaf] += 1
    width = min(p["width"], max(1, 128 // len(leaves)))
    if p["sharing"] == "most":
        width = 1
    for leaf in leaves:
        own = min(int(rng.integers(0, width + 1)), _MOST_ACTIVE - active[leaf])
        if p["empty_leaves"] and rng.random() < 0.5:
            own = 0
        places += [(leaf,)] * own
        aligned += range(own)
    if not places:  # a problem of decisions only would be a list
        places, aligned = [()], [-1]
    return places, aligned


def _draw_place(
    rng: np.random.Generator, sharing: str, nodes: Sequence[_Node]
) -> tuple[int, ...]:
    kind = rng.choice(
        ["everywhere", "below", "siblings", "anywhere"],
        p=[0.5, 0.1, 0.2, 0.2] if sharing == "most" else [0.25, 0.25, 0.25, 0.25],
    )
    if kind == "everywhere":
        return ()
    one = int(rng.integers(len(nodes)))
    if kind == "below":
        # A node that has others below it, if there is one.
        inner = sorted({node.above[-2] for node in nodes if len(node.above) > 1})
        return (inner[int(rng.integers(len(inner)))] if inner else one,)
    if kind == "siblings":
        same = [
            k for k, node in enumerate(nodes) if node.decision == nodes[one].decision
        ]
        keep = rng.permutation(same)[: max(2, len(same) - 1)]
        return tuple(sorted(int(k) for k in keep))
    count = min(len(nodes), int(rng.integers(2, 5)))
    return tuple(sorted(int(k) for k in rng.choice(len(nodes), count, replace=False)))


def _draw_columns(
    rng: np.random.Generator, p: Mapping[str, Any], count: int
) -> list[Column]:
    columns: list[Column] = []
    for k in range(count):
        log = bool(rng.random() < p["logs"])
        if rng.random() >= p["discrete"]:
            if log:
                low = 10.0 ** float(rng.integers(-6, 1))
                high = low * 10.0 ** float(rng.integers(2, 7))
                columns.append(FloatColumn(f"x{k}", low, high, log=True))
            else:
                low = float(rng.choice([0.0, -1.0, 0.5]))
                width = float(rng.choice([1.0, 2.0, 100.0]))
                columns.append(FloatColumn(f"x{k}", low, low + width))
            continue
        kind = rng.choice(["integer", "ordinal", "category"], p=[0.5, 0.2, 0.3])
        if kind == "integer":
            values = int(round(10 ** rng.uniform(0.5, 3.0)))
            log = log and values > 10
            columns.append(IntegerColumn(f"i{k}", 1, values, log=log))
        elif kind == "ordinal":
            steps = [2**j for j in range(int(rng.integers(3, 7)))]
            columns.append(CategoricalColumn(f"o{k}", steps, ordered=True))
        else:
            names = [f"c{j}" for j in range(int(rng.integers(2, 7)))]
            columns.append(CategoricalColumn(f"k{k}", names))
    return columns


def _make_space(
    nodes: Sequence[_Node],
    num_decisions: int,
    places: Sequence[tuple[int, ...]],
    columns: Sequence[Column],
) -> SearchSpace:
    """The decisions ``d0, d1, ...``, then the numeric columns."""
    values: dict[int, list[float]] = {}
    conditions: dict[int, Condition] = {}
    for k, node in enumerate(nodes):
        values.setdefault(node.decision, []).append(float(node.value))
        if len(node.above) > 1:
            parent = nodes[node.above[-2]]
            conditions[node.decision] = Equals(parent.decision, parent.value)
        assert node.above[-1] == k
    for c, place in enumerate(places):
        parts = tuple(Equals(nodes[k].decision, nodes[k].value) for k in place)
        if parts:
            conditions[num_decisions + c] = parts[0] if len(parts) == 1 else Or(parts)
    tree = ParameterTree(
        num_decisions + len(columns), conditions=conditions, values=values
    )
    decisions = [
        CategoricalColumn(f"d{k}", [f"v{int(v)}" for v in values[k]])
        for k in range(num_decisions)
    ]
    return SearchSpace.from_columns([*decisions, *columns], tree)


def _draw_function(
    rng: np.random.Generator,
    p: Mapping[str, Any],
    used: np.ndarray,
    s: int,
    relevance: np.ndarray,
    width: float,
) -> _Function:
    """A function of the slots ``used``; columns count by their ``relevance``."""
    m, bowl = len(used), p["function"] == "bowl"
    centre = np.full(s, 0.5)
    weight = np.zeros(s)
    weight[used] = relevance[used]
    if p["optimum"] == "middle":
        centre[used] = rng.uniform(0.35, 0.65, m)
    else:
        centre[used] = rng.uniform(0.05, 0.95, m)
    if p["optimum"] == "corner":
        outer = rng.random(m) < 0.6
        side = rng.integers(0, 2, m)
        beyond = 0.15 if bowl else 0.5
        outside = np.where(side, 1.0 + beyond, -beyond)
        centre[used] = np.where(outer, outside, centre[used])
    A = np.diag(weight)
    if bowl and not p["additive"] and m > 1:
        # A rotation by coupling pairs, still positive definite.
        B = np.zeros((s, s))
        B[np.ix_(used, used)] = rng.normal(0.0, 1.0 / math.sqrt(m), (m, m))
        root = np.sqrt(weight)
        A = 0.4 * A + 0.6 * (root[:, None] * (B @ B.T) * root)
    if bowl:
        return _Function((A, centre), None)
    # A bowl of half the spread of the draw or so, which pulls the optimum to its place.
    pull = {"anywhere": 0.0, "middle": 6.0, "corner": 2.5}[p["optimum"]]
    pull /= math.sqrt(max(1, m))
    waves = None
    if m:
        rough = p["function"] == "rough"
        lo, hi = (0.06, 0.2) if rough else (0.3, 0.8)
        length = math.exp(rng.uniform(math.log(lo), math.log(hi)))
        rate = np.sqrt(relevance) / length
        W = np.zeros((_FEATURES, s))
        if p["additive"]:
            which = used[rng.integers(0, m, _FEATURES)]
            W[np.arange(_FEATURES), which] = rng.normal(size=_FEATURES) * rate[which]
        else:
            share = math.sqrt(max(1.0, min(m, width)))
            W[:, used] = rng.normal(size=(_FEATURES, m)) * rate[used] / share
        phase = rng.uniform(0.0, 2.0 * math.pi, _FEATURES)
        gain = rng.normal(size=_FEATURES) * math.sqrt(2.0 / _FEATURES)
        waves = (W, phase, gain)
    return _Function((pull * A, centre), waves)


@lru_cache(maxsize=128)
def draw(number: int) -> SyntheticProblem:
    """The problem of a number; drawn once in a process.

    A problem whose middle is hardly above its optimum, because more than half of the
    random points are optimal or nearly so, is drawn again.
    """
    rng = np.random.default_rng(number)
    while True:
        problem = SyntheticProblem(rng)
        if problem.middle_value - problem.optimal_value > _LEAST_ROOM * problem.spread:
            return problem


def make(seed: int, number: int) -> SyntheticProblem:
    """The problem of a number, the same one for all seeds."""
    return draw(number)


def _numbered(numbers: Sequence[int]) -> dict[str, ProblemFactory]:
    return {f"synthetic-{k}": partial(make, number=k) for k in numbers}


DEVELOP = _numbered(range(40))
REPORT = _numbered(range(1000, 1040))
