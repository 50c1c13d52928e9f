"""Trees and data of which the speed is measured."""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_structured.spaces import ParameterTree


def binary_tree(num_paths: int, columns_per_leaf: int = 3) -> ParameterTree:
    """Binary decisions, filled level by level, with numeric columns on each leaf.

    Args:
        num_paths: Number of leaves; balanced where it is a power of two.
        columns_per_leaf: Columns of each leaf.
    """
    decisions = num_paths - 1
    dependencies: dict[int, dict[float, list[int]]] = {}
    for node in range(decisions):
        children: dict[float, list[int]] = {}
        for bit in (0, 1):
            child = 2 * node + 1 + bit
            if child < decisions:
                children[float(bit)] = [child]
            else:
                first = decisions + (child - decisions) * columns_per_leaf
                children[float(bit)] = list(range(first, first + columns_per_leaf))
        dependencies[node] = children
    return ParameterTree(decisions + num_paths * columns_per_leaf, dependencies)


def flat_tree(num_paths: int) -> ParameterTree:
    """One decision, whose values have one numeric column each."""
    children = {float(value): [1 + value] for value in range(num_paths)}
    return ParameterTree(1 + num_paths, {0: children})


def chain(num_decisions: int) -> ParameterTree:
    """Decisions, each of which exists where the one before it is 1."""
    dependencies = {
        column: {0.0: [], 1.0: [column + 1]} for column in range(num_decisions)
    }
    return ParameterTree(num_decisions + 1, dependencies)


def sizes(num_paths: int, n: int, largest: int | None = None) -> list[int]:
    """Rows of each leaf: equal, or the first as given and the others equal."""
    first = [] if largest is None else [largest]
    rest, left = num_paths - len(first), n - sum(first)
    return first + [left // rest + (p < left % rest) for p in range(rest)]


def make_points(tree: ParameterTree, path: Tensor, seed: int) -> Tensor:
    """Uniform points on paths, 0.5 where inactive, ``n x d``.

    Args:
        tree: A tree without values that are not declared.
        path: Numbers of paths, ``n``.
        seed: Seed.
    """
    g = torch.Generator().manual_seed(seed)
    X = torch.full((len(path), tree.dim), 0.5, dtype=torch.float64)
    for p in path.unique().tolist():
        rows = (path == p).nonzero()
        active = tree.paths[p].active
        X[rows, active] = torch.rand(
            len(rows), len(active), generator=g, dtype=torch.float64
        )
        for column, value in tree.paths[p].fixed_features.items():
            X[rows, column] = value
    return X


def make_data(
    tree: ParameterTree, rows: list[int], seed: int = 0, outputs: int = 1
) -> tuple[Tensor, Tensor]:
    """Points in random order, and smooth functions of a level and waves for each leaf.

    Args:
        tree: The tree.
        rows: Points on each path.
        seed: Seed.
        outputs: Number of outcomes, ``m``.

    Returns:
        ``n x d`` and ``n x m``, with noise of a tenth.
    """
    g = torch.Generator().manual_seed(1000 + seed)
    path = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(rows))
    path = path[torch.randperm(len(path), generator=g)]
    X = make_points(tree, path, seed)
    level = torch.randn(len(rows), outputs, generator=g, dtype=torch.float64)
    rate = 2.0 + 4.0 * torch.rand(tree.dim, generator=g, dtype=torch.float64)
    phase = torch.rand(tree.dim, outputs, generator=g, dtype=torch.float64)
    Y = level[path] + 0.1 * torch.randn(
        len(path), outputs, generator=g, dtype=torch.float64
    )
    own = set(tree.own_columns)
    for p in path.unique().tolist():
        mine = (path == p).nonzero().squeeze(-1)
        for c in tree.paths[p].active.tolist():
            if c in own:
                angle = rate[c] * X[mine, c].unsqueeze(-1) + 6.3 * phase[c]
                Y[mine] += angle.sin()
    return X, Y
