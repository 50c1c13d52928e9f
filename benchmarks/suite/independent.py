"""Problems with several decisions that do not depend on each other.

As in a pipeline (which scaler, which reduction, which model) or a network (which
optimiser, how many layers, dropout or not), the paths are all combinations: 12 to 200
of 3 to 5 decisions with 2 to 5 values each. A value has up to two columns of its own,
and one to three columns are always active, all real numbers in [0, 1]. The objective is

    sum_i a_i(v_i) + sum_{i < j} b_ij(v_i, v_j) + sum_c w_c (x_c - o_c)^2

over the decisions ``v`` and the active columns ``x``, with a ~ N(0, 1), b ~ N(0, 0.09),
log w ~ N(0, 0.49) and o uniform in [0.1, 0.9]. The optimum is that of the best path.

They are for the question of how many starts such a space should have, and no part of
the tables of ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import ProblemFactory
from benchmarks.suite.problem import SuiteProblem
from botorch_structured.spaces import Equals, ParameterTree, SearchSpace
from botorch_structured.spaces.columns import CategoricalColumn, Column, FloatColumn

_PATHS = 12, 200


class IndependentProblem(SuiteProblem):
    """One of them.

    Args:
        rng: Where it is drawn from.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        sizes = [0]
        while not _PATHS[0] <= math.prod(sizes) <= _PATHS[1]:
            sizes = rng.integers(2, 6, rng.integers(3, 6)).tolist()
        columns: list[Column] = []
        for i, size in enumerate(sizes):
            choices = [f"{i}{chr(97 + v)}" for v in range(size)]
            columns.append(CategoricalColumn(f"decision{i}", choices))
        conditions = {}
        for i, size in enumerate(sizes):
            for v in range(size):
                for _ in range(rng.integers(3)):
                    conditions[len(columns)] = Equals(i, float(v))
                    columns.append(FloatColumn(f"x{len(columns)}", 0.0, 1.0))
        for _ in range(rng.integers(1, 4)):
            columns.append(FloatColumn(f"x{len(columns)}", 0.0, 1.0))
        values = {i: [float(v) for v in range(size)] for i, size in enumerate(sizes)}
        tree = ParameterTree(len(columns), conditions=conditions, values=values)
        super().__init__(SearchSpace.from_columns(columns, tree))
        self._effects = [rng.normal(size=size) for size in sizes]
        pairs = itertools.combinations(range(len(sizes)), 2)
        self._together = {
            (i, j): 0.3 * rng.normal(size=(sizes[i], sizes[j])) for i, j in pairs
        }
        self._first, count = len(sizes), len(columns) - len(sizes)
        self._weight = np.exp(0.7 * rng.normal(size=count))
        self._centre = rng.uniform(0.1, 0.9, count)

    def _of_path(self, v: np.ndarray) -> np.ndarray:
        """``n x k`` values of the decisions -> ``n``."""
        value = sum(effect[v[:, i]] for i, effect in enumerate(self._effects))
        for (i, j), both in self._together.items():
            value = value + both[v[:, i], v[:, j]]
        return np.asarray(value)

    def truths(self, X: Tensor) -> Tensor:
        """``n x d`` points -> ``n`` values."""
        k = self._first
        bowls = self._weight * np.square(X[:, k:].numpy() - self._centre)
        bowls = np.where(self.tree.active_mask(X)[:, k:].numpy(), bowls, 0.0)
        paths = self._of_path(X[:, :k].long().numpy())
        return torch.from_numpy(paths + bowls.sum(-1))

    @property
    def optimal_value(self) -> float:
        """That of the best path, whose columns are at their centres."""
        every = itertools.product(*(range(len(e)) for e in self._effects))
        return float(self._of_path(np.array(list(every))).min())


def make(seed: int, number: int) -> IndependentProblem:
    """The problem of a number, the same one for all seeds."""
    return IndependentProblem(np.random.default_rng(number))


def _numbered(numbers: Sequence[int]) -> dict[str, ProblemFactory]:
    return {f"independent-{k}": partial(make, number=k) for k in numbers}


DEVELOP = _numbered(range(20))
REPORT = _numbered(range(1000, 1020))
