"""Side signals: Perrone et al. (2017), section 3.3 and Figure 2, right.

    python -m benchmarks.quality.signals --out results/signals
    --tables benchmarks/results/ablr/networks

Small neural networks are tuned on five data sets for their validation accuracy; their
training accuracy and the CPU time that training took are observed as well.
``ablr_side`` learns its features from all three signals, ``ablr`` from the first only;
on these features both predict the first signal from its own observations. Ten seeds,
each with three random starts, which count as evaluations. Seeds below 100 were used
during development.

The 500 networks of each data set are in a table, so all methods see the same values:
scikit-learn's multi-layer perceptron, configurations drawn from the paper's grid, each
trained on 70 % of the rows of a LIBSVM file; accuracies of "australian" and "sonar" are
means over ten splits. w1a is replaced by as many rows of w8a.

Printed: the mean distance to the best network of the table (of its interquartile range
of errors, as some networks learn nothing) after some budgets and on average over all;
and paired Wilcoxon tests of that average, with and without side signals, one pair for
each data set and seed; and the mean difference with its 95 % bootstrap interval.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import bootstrap
from torch import Tensor

from benchmarks import methods
from benchmarks.command import parser_of, runs_of
from benchmarks.harness import Method
from benchmarks.summary import Paired, markdown_table, one_sided, pair, ranks_of
from botorch_structured.spaces import SearchSpace
from botorch_structured.test_functions import TableProblem

DATASETS = ("australian", "sonar", "phishing", "w1a", "w8a")
METHODS: dict[str, Method] = {
    "ablr_side": partial(methods.ablr, signals=True, refit_every=5),
    "ablr": partial(methods.ablr, refit_every=5),
    "gp": methods.gp,
    "random": methods.random,
}
"""All, by name."""
_COLUMNS = {  # the paper's grid; regularisation and learning rate as powers of two
    "layers": (1, 4),
    "units": (1, 50),
    "log2_l2": (-6, 3),
    "log2_rate": (-6, -1),
    "epochs": (3, 10),
}
_AT = (5, 10, 20, 30)


class NetworkTable(TableProblem):
    """Validation error of the networks on one data set; the rest are ``signals``.

    Args:
        path: A file with a line for each network.
    """

    def __init__(self, path: Path) -> None:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        X = [[row[name] for name in _COLUMNS] for row in rows]
        limits = torch.tensor(list(_COLUMNS.values()), dtype=torch.double).T
        whole = range(len(_COLUMNS))
        space = SearchSpace(list(_COLUMNS), limits, integer_features=whole)
        super().__init__(X, [1.0 - row["validation"] for row in rows], space=space)
        side = [[r["validation"], r["training"], np.log(r["cpu_s"])] for r in rows]
        index, _ = self._nearest(torch.tensor(X, dtype=torch.double))
        signals = self.candidates.new_empty(len(self.candidates), 3)
        signals[index] = torch.tensor(side, dtype=torch.double)
        self.register_buffer("_signals", signals)

    def signals(self, X: Tensor) -> Tensor:
        """``n x 3``: validation and training accuracy, logarithm of the CPU time."""
        return self._signals[self._nearest(X)[0]].to(X)

    def starts(self, seed: int, n: int | None = None) -> Tensor:
        """Three different rows at random, or ``n``."""
        return super().starts(seed, 3 if n is None else n)

    def scale(self) -> float:
        """Interquartile range of the errors, or their range if that is zero."""
        values = self.values.numpy()
        low, high = np.quantile(values, [0.25, 0.75])
        return float(high - low or values.max() - values.min() or 1.0)


@cache
def make(seed: int, path: Path) -> NetworkTable:
    """The same table for every seed; the seed determines the starts."""
    return NetworkTable(path)


def gaps_of(paired: Paired, folder: Path) -> np.ndarray:
    """Distances to the best network in units of the table, ``R x M x budget``."""
    files = [folder / f"{name}.jsonl" for name in paired.problems]
    scale = np.array([make(0, file).scale() for file in files])[:, None, None]
    return (paired.traces - paired.optima[:, None, None]) / scale


class Difference(NamedTuple):
    """Mean distances with side signals less those without."""

    mean: float
    low: float
    high: float
    p_worse: float
    p_better: float
    wins: int
    ties: int
    losses: int


def difference(paired: Paired, gaps: np.ndarray) -> Difference:
    """With and without side signals, on average over all budgets."""
    means = dict(zip(paired.methods, gaps.mean(-1).T, strict=True))
    side = means["ablr_side"]
    plain = means["ablr"]
    rng = np.random.default_rng(0)
    drawn = bootstrap((side - plain,), np.mean, method="percentile", rng=rng)
    low, high = drawn.confidence_interval
    tests = one_sided(plain, side), one_sided(side, plain)
    counts = (side < plain).sum(), (side == plain).sum(), (side > plain).sum()
    return Difference(float((side - plain).mean()), low, high, *tests, *counts)


def tables(paired: Paired, gaps: np.ndarray) -> str:
    """The tables that ``main`` prints."""
    at = [n for n in _AT if n <= gaps.shape[-1]]
    ranks = ranks_of(paired.traces).mean((0, 2))
    rows = []
    for k, name in enumerate(paired.methods):
        mean = gaps[:, k].mean(0)
        row = [name, f"{ranks[k]:.2f}", *(f"{mean[n - 1]:.3f}" for n in at)]
        rows.append([*row, f"{mean.mean():.3f}"])
    header = ["method", "mean rank", *(f"gap at {n}" for n in at), "gap, all budgets"]
    d = difference(paired, gaps)
    return markdown_table(header, rows) + (
        f"\n\nWith side signals less without: {d.mean:+.4f} [{d.low:+.4f}, "
        f"{d.high:+.4f}] on average over all budgets; p that side signals are worse "
        f"{d.p_worse:.2g}, better {d.p_better:.2g}; wins, ties, losses "
        f"{d.wins}, {d.ties}, {d.losses} in {len(gaps)} pairs"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = parser_of(
        __doc__, METHODS, "results/signals", seeds=10, first_seed=100, budget=30
    )
    parser.add_argument("--tables", type=Path, required=True, help="their folder")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    options = parser.parse_args(arguments)
    paths = {name: options.tables / f"{name}.jsonl" for name in options.datasets}
    problems = {name: partial(make, path=path) for name, path in paths.items()}
    runs = runs_of(options, METHODS, problems)
    paired = pair(runs, options.methods, options.budget)
    print(tables(paired, gaps_of(paired, options.tables)))


if __name__ == "__main__":
    main()
