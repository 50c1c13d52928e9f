"""The scale of problems whose optimum is not known: the best value of a long search.

Scaled regret is 0 at the best value that is known, and 1 at the median of random
points (mostly 1,000). Both are in ``optima.json``, with the command that made them.
The search has nothing to do with the methods that are compared: random points, then
random changes of the best ones. A run may therefore find a better value than the table
has, and its scaled regret is then slightly negative.

    python -m benchmarks.suite.optima yahpo learners --data DIR

makes the table; what stands there is replaced.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.suite.problem import SuiteProblem
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.columns import IntegerColumn

_FILE = Path(__file__).with_name("optima.json")
_SMALLEST_STEP, _LARGEST_STEP = 1e-3, 0.5  # of the width of the bounds
_CHANGED = 0.3  # how often a change concerns a column
_ANOTHER_CHOICE = 0.1  # how often such a change draws another category


class Scale(NamedTuple):
    """Where scaled regret is 0, and where it is 1."""

    optimal: float
    middle: float


@cache
def _table() -> dict[str, dict[str, dict[str, list[float]]]]:
    """``{kind: {command: {name: [optimal, middle]}}}``."""
    return json.loads(_FILE.read_text())


def find_scale(problem: Any) -> Scale:
    """The best of random points and of their improvements; 1,000 points' median.

    Args:
        problem: A `ScaledProblem`; its ``effort`` is how many random points there are,
            how many of the best are improved, generations and children of each.
    """
    count, most, generations, children = problem.effort
    X = problem.space.sample(count, seed=1)
    values = problem.truths(X)
    chosen = values.argsort(stable=True)[:most]
    _, best = improve(
        problem.space,
        problem.truths,
        X[chosen],
        values[chosen],
        generations,
        children,
    )
    middle = problem.truths(problem.space.sample(1000, seed=0)).median()
    return Scale(float(best.min()), float(middle))


class ScaledProblem(SuiteProblem):
    """A problem without noise whose scale is in the table.

    Args:
        space: The space.
        kind: Of the problem, such as ``"yahpo"``.
        name: Of the problem among those of its kind.
    """

    effort: tuple[int, int, int, int]
    """Sizes of the search for the optimum, see `find_scale`."""

    def __init__(self, space: SearchSpace, kind: str, name: str) -> None:
        super().__init__(space)
        self.kind = kind
        self.name = name

    @property
    def optimal_value(self) -> float:
        """The best known value; an AttributeError where there is none."""
        return self._scale().optimal

    @property
    def middle_value(self) -> float:
        """The median value of random points; likewise."""
        return self._scale().middle

    def _scale(self) -> Scale:
        for values in _table().get(self.kind, {}).values():
            if self.name in values:
                return Scale(*values[self.name])
        raise AttributeError(f"No optimum is known of {self.kind} {self.name!r}.")


def improve(
    space: SearchSpace,
    function: Callable[[Tensor], Tensor],
    X: Tensor,
    values: Tensor,
    generations: int,
    children: int,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Random changes of points, each kept where it is the best of its generation.

    An evolution strategy of ``k`` separate parents: each generation, every parent has
    ``children`` copies with about a third of its columns changed, by a normal step
    (on the scale of the column) whose size is drawn between 0.001 and 0.5 of the bounds
    for each copy; a category is drawn again. The best copy replaces its parent if it is
    better. For functions that take many points at once and cost next to nothing.

    Args:
        space: The space of the points.
        function: ``n x d`` points -> ``n`` values, to be minimised.
        X: ``k x d`` points to begin with.
        values: Their ``k`` values.
        generations: How often.
        children: How many copies each parent has.
        seed: The same seed gives the same points.

    Returns:
        ``k x d`` points and their ``k`` values, none larger than before.
    """
    generator = torch.Generator().manual_seed(seed)
    (k, d), rows = X.shape, len(X) * children
    low, high = space.bounds
    logs = [
        c
        for c, column in enumerate(space.columns)
        if isinstance(column, IntegerColumn) and column.log
    ]
    chosen = [
        c for c, column in enumerate(space.columns) if c in space.categorical_features
    ]
    whole = space.integer_features
    forward_low, forward_high = low.clone(), high.clone()
    forward_low[logs], forward_high[logs] = low[logs].log10(), high[logs].log10()
    width = forward_high - forward_low
    ratio = torch.tensor(_LARGEST_STEP / _SMALLEST_STEP, dtype=torch.double)
    every = torch.arange(k)
    X, values = X.clone(), values.clone()

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.double)

    for _ in range(generations):
        parents = X.repeat_interleave(children, 0)
        parents[:, logs] = parents[:, logs].log10()
        step = _SMALLEST_STEP * ratio ** uniform(rows, 1) * width
        normal = torch.randn(rows, d, generator=generator, dtype=torch.double)
        # One column is changed in any case.
        changed = uniform(rows, d) < _CHANGED
        changed[torch.arange(rows), (uniform(rows) * d).long().clamp(max=d - 1)] = True
        moved = torch.where(changed, parents + step * normal, parents)
        moved = torch.minimum(torch.maximum(moved, forward_low), forward_high)
        moved[:, logs] = 10 ** moved[:, logs]
        moved[:, whole] = moved[:, whole].round()
        moved = torch.minimum(torch.maximum(moved, low), high)
        for c in chosen:
            again = uniform(rows) < _ANOTHER_CHOICE
            drawn = space.columns[c].draw(rows, generator)
            moved[:, c] = torch.where(again, drawn, parents[:, c])
        moved = space.impute(moved)
        found = function(moved).reshape(k, children)
        found = found.masked_fill(
            ~space.feasible(moved).reshape(k, children), torch.inf
        )
        best = found.argmin(1)
        better = found[every, best] < values
        X[better] = moved.reshape(k, children, d)[every, best][better]
        values[better] = found[every, best][better]
    return X, values


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    from benchmarks.suite.__main__ import problems

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kinds", nargs="+")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    options = parser.parse_args(arguments)
    table = _table()
    for kind in options.kinds:
        command = f"python -m benchmarks.suite.optima {kind} --data DIR"
        every = [problems(half, [kind], options.data) for half in ("develop", "report")]
        scales = {}
        for factory in (factory for half in every for factory in half.values()):
            problem: Any = factory(0)
            scales[problem.name] = find_scale(problem)
            print(problem.name, *scales[problem.name], flush=True)
        table[kind] = {command: scales}
    text = json.dumps(table, indent=1, sort_keys=True)
    # a line for each problem, not one for each number
    _FILE.write_text(re.sub(r"\[\s+(\S+),\s+(\S+)\s+\]", r"[\1, \2]", text) + "\n")


if __name__ == "__main__":
    main()
