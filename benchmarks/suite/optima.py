"""The scale of problems whose optimum is not known: the best value of a long search.

Scaled regret is 0 at the best value that is known, and 1 at the median of 1,000 random
points. Both are in ``optima.json`` beside this module, with the command that made them.
The search has nothing to do with the methods that are compared: random points, then
random changes of the best ones. A run may therefore find a better value than the table
has, and its scaled regret is then slightly negative.
"""

from __future__ import annotations

__all__ = ["Scale", "ScaledProblem", "improve", "read_scale", "write_scales"]

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

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


def read_scale(kind: str, name: str, path: Path = _FILE) -> Scale | None:
    """The scale of a problem; None where the table has none.

    Args:
        kind: Of the problem, such as ``"yahpo"``.
        name: Of the problem among those of its kind.
        path: Of the table.
    """
    if not path.exists():
        return None
    values = json.loads(path.read_text()).get(kind, {}).get("values", {})
    return Scale(*values[name]) if name in values else None


def write_scales(
    kind: str, command: str, scales: Mapping[str, Scale], path: Path = _FILE
) -> None:
    """Put the scales of a kind into the table; other kinds stay as they are.

    Args:
        kind: Of the problems.
        command: What made the numbers.
        scales: By the names of problems; they replace those of the same names.
        path: Of the table.
    """
    table = json.loads(path.read_text()) if path.exists() else {}
    values = table.get(kind, {}).get("values", {})
    values |= {name: [float(v) for v in scale] for name, scale in scales.items()}
    table[kind] = {"command": command, "values": values}
    lines = []
    for name, part in sorted(table.items()):
        rows = ",\n".join(
            f"   {json.dumps(key)}: {json.dumps(value)}"
            for key, value in part["values"].items()
        )
        lines.append(
            f' {json.dumps(name)}: {{\n  "command": {json.dumps(part["command"])},\n'
            f'  "values": {{\n{rows}\n  }}\n }}'
        )
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


class ScaledProblem(SuiteProblem):
    """A problem without noise whose scale is in the table.

    Args:
        space: The space.
        kind: Of the problem, such as ``"yahpo"``.
        name: Of the problem among those of its kind.
    """

    def __init__(self, space: SearchSpace, kind: str, name: str) -> None:
        super().__init__(space)
        self.kind, self.name = kind, name

    @property
    def optimal_value(self) -> float:
        """The best known value; an AttributeError where there is none."""
        return self._scale().optimal

    @property
    def middle_value(self) -> float:
        """The median value of 1,000 random points; likewise."""
        return self._scale().middle

    def _scale(self) -> Scale:
        scale = read_scale(self.kind, self.name)
        if scale is None:
            raise AttributeError(f"No optimum is known of {self.kind} {self.name!r}.")
        return scale


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

    Raises:
        ValueError: For shapes that do not fit.
    """
    if X.ndim != 2 or X.shape[1] != space.dim or values.shape != X.shape[:1]:
        raise ValueError(
            f"X, values: expected k x {space.dim} points and k values, got shapes "
            f"{tuple(X.shape)} and {tuple(values.shape)}."
        )
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
