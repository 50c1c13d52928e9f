"""Shared by the peers: outcomes without NaN, points made one parameter at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from graphlib import TopologicalSorter
from typing import Any

import torch
from torch import Tensor

from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.columns import CategoricalColumn, Column

# So many forbidden suggestions are refused before a random point takes their place.
_TRIES = 50


def native(column: Column, x: float) -> Any:
    """The value of a number of a column; for choices their position in the list."""
    if isinstance(column, CategoricalColumn):
        return column.position(column.decode(x))
    return column.decode(x)


def active_values(space: SearchSpace, X: Tensor) -> list[dict[str, Any]]:
    """``n x d`` points as `native` values of their active parameters, by name.

    Numbers stay on their side of the values that others depend on.
    """
    choices = {c.name: c for c in space.columns if isinstance(c, CategoricalColumn)}
    names = set(space.names)
    return [
        {
            name: choices[name].position(value) if name in choices else value
            for name, value in config.items()
            if name in names  # and no constant
        }
        for config in space.decode(X)
    ]


def from_native(column: Column, value: Any) -> float:
    """The number of a value that `native` gives."""
    if isinstance(column, CategoricalColumn):
        return column.codes[value]
    return column.encode(value)


def walk(space: SearchSpace, value_of: Callable[[int], Any]) -> Tensor:
    """A ``d`` point whose active parameters are asked for one after the other.

    Args:
        space: The space.
        value_of: Column -> its value, as in `native`. It is called for the active
            columns only, decisions before what depends on them.
    """
    conditions = space.tree.conditions
    above = {
        c: conditions[c].columns() if c in conditions else () for c in range(space.dim)
    }
    X = space.fill.clone().unsqueeze(0)
    active = torch.zeros(1, space.dim, dtype=torch.bool)
    for c in TopologicalSorter(above).static_order():
        if c not in conditions or bool(conditions[c].holds(X, active)):
            X[0, c] = from_native(space.columns[c], value_of(c))
            active[0, c] = True
    return space.impute(X)[0]


def all_columns(space: SearchSpace, value_of: Callable[[int], Any]) -> Tensor:
    """As `walk`, but inactive parameters are asked for, too, and then ignored."""
    values = [from_native(space.columns[c], value_of(c)) for c in range(space.dim)]
    return space.impute(space.fill.new_tensor([values]))[0]


def first_feasible(space: SearchSpace, points: Iterable[Tensor], seed: int) -> Tensor:
    """The first of some ``d`` points that the space allows; else a random one.

    Peers that cannot be told what is forbidden are asked again, at most 50 times.
    """
    for point in itertools.islice(points, _TRIES):
        if bool(space.feasible(point.unsqueeze(0))):
            return point
    return space.sample(1, seed=seed)[0]
