"""What each constant is worth by which the package chooses between two ways by size.

    python -m benchmarks.speed.thresholds [--rows NAME ...] [--repeats K]

Each row sets a constant so that one way is taken, then the other, at a size below the
constant, at it and above it, in turn in one process, and prints the time of the way
that is for large sizes over that for small ones. The constant is right if the ratio is
above 1 below it, and below 1 above it. The last column is its worth: how much longer
one of the sizes takes at least if one way, the better one, is taken always.
CPU time of one thread; for the number of threads, wall time (without
``OMP_NUM_THREADS=1``).
"""

from __future__ import annotations

__all__ = ["THRESHOLDS", "WITHOUT_A_ROW", "Threshold", "main", "measure"]

import argparse
import importlib
import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks.speed.problems import binary_tree, flat_tree, make_data, sizes
from benchmarks.speed.tree_rows import evaluation, fitted, objective
from botorch_structured.linalg.factor import inverse_factors
from botorch_structured.models import (
    MonotoneGP,
    SampledGP,
    TreedGP,
    TreeStructuredGP,
)
from botorch_structured.models.contexts import few_threads
from botorch_structured.spaces import ParameterTree

Call = Callable[[], object]


@dataclass(frozen=True)
class Threshold:
    """A constant that switches between two ways.

    Attributes:
        constant: Its module, without the package's name, and its name.
        make: Makes the call of a size; the constant is set then, too.
        sizes: Below the constant, about at it, above it.
        clock: Of the times.
        low: A value at which the way for large sizes is taken.
        high: A value at which the other way is.
    """

    constant: str
    make: Callable[[int], Call]
    sizes: tuple[int, int, int]
    clock: Callable[[], float] = time.process_time
    low: float = 0
    high: float = 1 << 40

    @property
    def module(self) -> object:
        """Where it is."""
        name = self.constant.rpartition(".")[0]
        return importlib.import_module(f"botorch_structured.{name}")

    def set_to(self, value: float) -> mock._patch[float]:
        """A context with another value."""
        return mock.patch.object(self.module, self.constant.rpartition(".")[2], value)


def _matrices(size: int) -> Call:
    """Sixteen covariances of that size."""
    root = np.random.default_rng(0).standard_normal((16, size, size))
    return partial(inverse_factors, root @ root.swapaxes(1, 2) + size * np.eye(size))


def _evidence(tree: ParameterTree, n: int) -> Call:
    """A fit's objective and gradient, in its closed form."""
    X, Y = make_data(tree, sizes(tree.num_paths, n))
    return evaluation(objective(TreeStructuredGP(X, Y, tree)))


def _posterior(n: int, paths: int, candidates: int = 1) -> Call:
    """Of a model with about four weights for each path, at single points."""
    tree = flat_tree(paths)
    X, Y = make_data(tree, sizes(paths, n))
    return _variance(TreeStructuredGP(X, Y, tree).eval(), X[:candidates, None])


def _candidates(decisions: int) -> Call:
    """At points on other paths than the data: so many decisions are independent."""
    tree = ParameterTree(
        2 * decisions, {k: {0.0: [], 1.0: [decisions + k]} for k in range(decisions)}
    )
    X = torch.rand(164, tree.dim, generator=torch.Generator().manual_seed(0)).double()
    X[:, :decisions] = X[:, :decisions].round()
    model = TreeStructuredGP(X[:100], X[:100].sin().sum(-1, keepdim=True), tree).eval()
    both = itertools.cycle([X[100:, None], X[100:, None].flip(0)])

    def predict() -> Tensor:  # with tables that are not there yet
        return _variance(model, next(both))()

    return predict


def _mixture(n: int) -> Call:
    """A sample of four models, each with its own values, at one point."""
    tree = binary_tree(4)
    X, Y = make_data(tree, sizes(4, n))
    models = [TreeStructuredGP(X, Y, tree).eval() for _ in range(4)]
    return _variance(SampledGP(models), X[:1, None])


def _variance(model: Any, x: Tensor) -> Call:
    def predict() -> Tensor:
        with torch.no_grad():
            return model.posterior(x).variance

    return predict


def _monotone(n: int) -> Call:
    """A model and the first steps of its fit."""
    X, Y = make_data(ParameterTree(2), [n])
    few = {"options": {"maxiter": 2}}
    return lambda: fitted(MonotoneGP(X, Y, {0: 1}), optimizer_kwargs=few)


def _treed(n: int, make: Callable[..., TreedGP] = TreedGP) -> Call:
    g = torch.Generator().manual_seed(0)
    X, noise = torch.rand(n, 2, generator=g).double(), torch.randn(n, 1, generator=g)
    Y = (9.0 * X[:, :1]).sin() * (X[:, :1] > 0.5) + 0.1 * noise
    return lambda: fitted(make(X, Y))


def _threads(n: int) -> Call:
    covariance = np.eye(n) + 1.0 / n

    def factorise() -> object:
        with few_threads(n):
            return np.linalg.cholesky(covariance)

    return factorise


#: One for each constant.
THRESHOLDS = [
    Threshold("linalg.factor._SMALL", _matrices, (4, 8, 24)),
    Threshold(
        "linalg.block_evidence._MEDIUM",
        lambda n: _evidence(binary_tree(2), 2 * n),
        (50, 100, 200),
    ),
    Threshold(
        "models.tree.leaf_model._MANY_WEIGHTS",
        lambda weights: _posterior(100, weights),
        (512, 2048, 8192),
    ),
    Threshold(
        "linalg.block_evidence._ROWS_PER_WEIGHT",
        lambda n: _evidence(binary_tree(16), n),
        (32, 64, 160),
    ),
    Threshold(
        "models.tree.objective._MAX_KEPT",
        lambda n: _evidence(ParameterTree(60), n),
        (10, 47, 250),
    ),
    Threshold(
        "models.tree.form._MAX_DENSE",
        lambda paths: _evidence(flat_tree(paths), 4 * paths),
        (30, 120, 480),
    ),
    Threshold(
        "models.tree.moments._MANY_WEIGHTS",
        lambda weights: _posterior(200, weights // 4, 64),
        (256, 1024, 4096),
    ),
    Threshold("models.tree.moments._MANY_NUMBERS", _candidates, (2, 5, 10)),
    Threshold("models.sampled.sampled_gp._MANY_ROWS", _mixture, (100, 300, 1000)),
    Threshold(
        "models.monotone.monotone_gp._MOST_NUMBERS",
        _monotone,
        (100, 700, 1400),
        time.perf_counter,
    ),
    Threshold(
        "models.treed.maximum._FEW_ROWS",
        partial(_treed, make=TreedGP.as_published),
        (50, 128, 250),
    ),
    Threshold(
        "models.contexts._ROWS_FOR_ONE_THREAD",
        _threads,
        (200, 1000, 2000),
        time.perf_counter,
    ),
]


#: Other constants that are compared with sizes, by what they are for.
WITHOUT_A_ROW = {
    "memory: more is done in several steps, in the same way": [
        "models.ablr.regressions._KEPT_ROWS",
        "models.sampled.folded_prediction._CHUNK",
        "models.sampled.folded_prediction._DEVICE_CHUNK",
        "models.treed.objective._BLOCK",
        "models.tree.moments._MAX_NUMBERS",
    ],
    "memory: of more distances that are no squares there is no closed form": [
        "models.tree.objective._MAX_DISTANCES",
    ],
    "memory: rows of old studies that are looked at together": [
        "models.tree.old_studies._ROWS",
    ],
    "a bar of progress from so many rows on": [
        "models.tree.old_studies._MANY_ROWS",
    ],
    "the model: it decides on values, not only on time": [
        "models.tree.leaf_features._MAX_BLOCK_FEATURES",
        "models.tree.noise._FEW_ROWS",
        "models.tree.noise._MANY_REPEATS",
        "models.tree.old_studies._BEST_ROWS",
        "models.tree.old_studies._FEW_STARTS",
        "models.tree.old_studies._FITTED_ROWS",
        "models.treed.growth._MODE_ROWS",
        "models.treed.growth._SCALE_ROWS",
        "models.treed.objective._INFORMED_ROWS",
        "models.treed.maximum._SMALL_SHARE",
        "models.treed.scoring.SCORED_ROWS",
    ],
}


def measure(row: Threshold, size: int, repeats: int) -> tuple[float, float]:
    """Seconds of a call with the low value of a constant, and with the high one.

    Args:
        row: The constant.
        size: One of its sizes.
        repeats: Calls of each.
    """
    calls: dict[float, Call] = {}
    for value in (row.low, row.high):
        with row.set_to(value):
            calls[value] = row.make(size)
            calls[value]()  # does not count
    spent: dict[float, list[float]] = {value: [] for value in calls}
    for number in range(repeats):
        for value in list(calls)[:: 1 if number % 2 else -1]:
            with row.set_to(value):
                start = row.clock()
                calls[value]()
                spent[value].append(row.clock() - start)
    low, high = (statistics.median(spent[value]) for value in calls)
    return low, high


def _line(row: Threshold, repeats: int) -> list[str]:
    found = [measure(row, size, repeats) for size in row.sizes]
    ratios = [low / high for low, high in found]
    worth = min(ratios[0], 1.0 / ratios[-1])
    value = getattr(row.module, row.constant.rpartition(".")[2])
    cells = [f"{n:,}: {r:.2f}" for n, r in zip(row.sizes, ratios, strict=True)]
    return [row.constant, f"{value:,}", *cells, f"{worth:.2f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", nargs="+", default=[""], help="parts of names")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # of few draws and few steps
    rows = [t for t in THRESHOLDS if any(n in t.constant for n in options.rows)]
    print(
        "| constant | value | below | at | above | worth |\n|---|---|---|---|---|---|"
    )
    for row in rows:
        print(f"| {' | '.join(_line(row, options.repeats))} |", flush=True)


if __name__ == "__main__":
    main()
