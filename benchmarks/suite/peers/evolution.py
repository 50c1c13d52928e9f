"""CMA-ES for numbers, integers and choices together, by the package ``cmaes``."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from torch import Tensor

from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.columns import CategoricalColumn, Column, IntegerColumn

# Standard deviation at first, in widths of the bounds; that of Optuna's sampler.
_WIDTH = 1.0 / 6.0
# Integers with more values than this are rounded numbers.
_MANY = 1000
# So many forbidden points in a row end in a random one.
_REFUSED = 1000


class CMAES:
    """CatCMA with margin (``cmaes.CatCMAwM``) on all columns, inactive ones included.

    The mean is at first at the best start, choices are equally likely. The strategy has
    a memory: its ``state`` is a seed and the number of starts, from which every step
    repeats the search up to now. A forbidden point counts as the worst
    cost so far.
    """

    keeps_state: Literal[True] = True

    def __call__(
        self, problem: Any, X: Tensor, Y: Tensor, seed: int, state: Any
    ) -> tuple[Tensor, Any]:
        state = {"seed": seed, "starts": len(X)} if state is None else state
        space, starts = problem.space, state["starts"]
        costs = _without_failures((-Y).squeeze(-1).tolist())
        best = min(range(starts), key=lambda i: costs[i])
        strategy = _Strategy(space, X[best], state["seed"])
        generation: list[tuple[Any, float]] = []
        used, refused = starts, 0
        while True:
            solution, point = strategy.ask()
            if not space.is_restricted or bool(space.feasible(point.unsqueeze(0))):
                if used == len(costs):
                    return point, state
                cost, used, refused = costs[used], used + 1, 0
            elif refused == _REFUSED:
                return space.sample(1, seed=seed)[0], state
            else:
                cost, refused = max(costs[:used]), refused + 1
            generation.append((solution, cost))
            if len(generation) == strategy.size:
                strategy.tell(generation)
                generation = []


def _without_failures(costs: list[float]) -> list[float]:
    """Costs, the worst one before it in the place of each failure (NaN, infinite).

    Not the worst of all: what the strategy was told must not change later on.
    """
    found: list[float] = []
    first = next((c for c in costs if math.isfinite(c)), 0.0)
    for cost in costs:
        found.append(cost if math.isfinite(cost) else max(found, default=first))
    return found


class _Strategy:
    """``cmaes.CatCMAwM`` over the columns of a space.

    Args:
        space: The space. Numeric columns are in [0, 1] on their own scale, columns with
            one value are left out.
        mean: ``d`` first mean.
        seed: Of the strategy's random numbers.
    """

    def __init__(self, space: SearchSpace, mean: Tensor, seed: int) -> None:
        from cmaes import CatCMAwM  # type: ignore[import-untyped, unused-ignore]

        self.space = space
        self.reals: list[int] = []
        self.integers: list[int] = []
        self.choices: list[int] = []
        for c, column in enumerate(space.columns):
            lo, hi = column.bounds
            if isinstance(column, CategoricalColumn) and len(column.codes) > 1:
                few = len(column.codes) == 2  # as the package recommends
                kind = self.integers if column.ordered and not few else self.choices
                kind.append(c)
            elif lo < hi:
                few = column.discrete and 1 < hi - lo < _MANY
                (self.integers if few else self.reals).append(c)
        numbers = self.reals + self.integers
        self.values = {c: _values(space.columns[c]) for c in self.integers}
        self.scaled = {
            c: np.array([_scaled(space.columns[c], v) for v in values])
            for c, values in self.values.items()
        }
        first = [_scaled(space.columns[c], x) for c, x in enumerate(mean.tolist())]
        self.strategy = CatCMAwM(
            x_space=[[0.0, 1.0] for _ in self.reals] or None,
            z_space=[self.scaled[c].tolist() for c in self.integers] or None,
            c_space=[len(self._codes(c)) for c in self.choices] or None,
            mean=np.array([first[c] for c in numbers]) if numbers else None,
            cov=np.eye(len(numbers)) * _WIDTH**2 if numbers else None,
            sigma=1.0 if numbers else None,
            seed=seed % 2**32,
        )

    def _codes(self, c: int) -> tuple[float, ...]:
        column = self.space.columns[c]
        assert isinstance(column, CategoricalColumn)
        return column.codes

    @property
    def size(self) -> int:
        """How many points are a generation."""
        return self.strategy.population_size

    def ask(self) -> tuple[Any, Tensor]:
        """A solution and its ``d`` point."""
        solution = self.strategy.ask()
        x = self.space.fill.clone()
        for i, c in enumerate(self.reals):
            x[c] = _unscaled(self.space.columns[c], float(solution.x[i]))
        for i, c in enumerate(self.integers):
            x[c] = self.values[c][int(np.abs(self.scaled[c] - solution.z[i]).argmin())]
        for i, c in enumerate(self.choices):
            x[c] = self._codes(c)[int(solution.c[i].argmax())]
        return solution, self.space.impute(x.unsqueeze(0))[0]

    def tell(self, generation: list[tuple[Any, float]]) -> None:
        """The costs of a generation."""
        self.strategy.tell(generation)


def _values(column: Column) -> list[float]:
    """All numbers of a column, ascending."""
    if isinstance(column, CategoricalColumn):
        return list(column.codes)
    lo, hi = column.bounds
    return [float(v) for v in range(int(lo), int(hi) + 1)]


def _is_log(column: Column) -> bool:
    return isinstance(column, IntegerColumn) and column.log


def _scaled(column: Column, x: float) -> float:
    """A number of a column in [0, 1]."""
    lo, hi = column.bounds
    if lo == hi:
        return 0.0
    if _is_log(column):
        lo, hi, x = math.log(lo), math.log(hi), math.log(x)
    return (x - lo) / (hi - lo)


def _unscaled(column: Column, u: float) -> float:
    """The number of a column from [0, 1], rounded where it is discrete."""
    lo, hi = column.bounds
    x = lo * (hi / lo) ** u if _is_log(column) else lo + (hi - lo) * u
    return min(max(float(round(x)) if column.discrete else x, lo), hi)
