"""A new data set's random forest, tuned with 37,000 old runs. Perrone et al. (2017).

    python -m benchmarks.quality.forests --data DIR --out results/forests

Section 3.2 and Figure 2, left: 94 data sets of OpenML100 with 500 random forests each
(flow 6969 of [vanRijn2018importance]_, in place of flow 6794, which was never published
as a table); 20 of them are held out, each is tuned with all runs of the other 74 as
history. Evaluations are looked up, so a method chooses among the 500
forests; two random starts count as evaluations. Networks are fitted again after every
tenth evaluation. The held-out data sets are the first 20 of a random permutation of
those whose forests differ; methods were developed on the next 36, with seeds below 100.

Printed: ranks averaged over data sets, seeds and all budgets from 1; the mean distance
to the data set's best forest (of the range of its forests); and, for the first of
``--methods`` (default: the warm start) against each other one, the smallest p over
budgets of a one-sided Wilcoxon test *against* it (that it has found worse forests), on
means over the seeds of each data set: if that is below 0.05, it is significantly worse
at some budget. Likewise the smallest p that it is better, and the p of the mean over
all budgets, with Holm's correction over the other methods.

``earlier`` and ``without`` are the models of ``suggest`` with and without the other
data sets as old studies; their runs are kept, their code is not.

DIR holds ``openml_flow6969_random_forest.arff.gz`` (``random_forest.arff`` of the
repository janvanrijn/openml-pimp).

.. [vanRijn2018importance]
    J. N. van Rijn, F. Hutter. Hyperparameter Importance Across Datasets. International
    Conference on Knowledge Discovery and Data Mining (KDD), 2018.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.io import arff
from torch import Tensor

from benchmarks import methods
from benchmarks.command import parser_of, runs_of
from benchmarks.harness import Method
from benchmarks.problems.quadratics import TaskHistory
from benchmarks.summary import (
    Paired,
    holm,
    markdown_table,
    one_sided,
    pair,
    ranks_of,
)
from botorch_structured.spaces import SearchSpace
from botorch_structured.test_functions import TableProblem

_FILE = "openml_flow6969_random_forest.arff.gz"
_HELD_OUT = 20
_AT = (5, 10, 20, 30, 50)
METHODS: dict[str, Method] = {
    "warm": methods.warm,
    "gp": methods.gp,
    "ablr": methods.ablr,
    "random": methods.random,
}
"""Those of the figure; the first is the one that knows the other data sets."""
_NAMES = [*METHODS, "earlier", "without"]

_FOREST = "randomforestclassifier__"
_COLUMNS: dict[str, Any] = {
    f"{_FOREST}bootstrap": [False, True],
    f"{_FOREST}criterion": ["entropy", "gini"],
    f"{_FOREST}max_features": (0.1, 0.9),
    f"{_FOREST}min_samples_leaf": (1, 20),
    f"{_FOREST}min_samples_split": (2, 20),
    "columntransformer__numeric__imputer__strategy": [
        "mean",
        "median",
        "most_frequent",
    ],
}


@cache
def read(data: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """By the number of the task: ``n x d`` forests, ``n`` negative accuracies."""
    path = next(iter(sorted(data.rglob(_FILE))), None)
    if path is None:
        raise FileNotFoundError(f"{data}: expected {_FILE}, got no file.")
    with gzip.open(path, "rt") as file:
        rows, _ = arff.loadarff(file)
    columns = SearchSpace.from_dictionaries(_COLUMNS).columns
    X = torch.tensor(
        [
            [c.encode(v.decode() if isinstance(v, bytes) else v) for v in rows[c.name]]
            for c in columns
        ],
        dtype=torch.double,
    ).T
    y = -torch.from_numpy(rows["predictive_accuracy"].copy())
    task = rows["task_id"].astype(int)
    return {str(t): (X[task == t], y[task == t]) for t in dict.fromkeys(task.tolist())}


def _range(y: Tensor) -> float:
    return float(y.max() - y.min())


def held_out(tables: Mapping[str, tuple[Tensor, Tensor]]) -> list[str]:
    """The data sets that are tuned; one without a spread is solved by its first row."""
    names = list(tables)
    order = np.random.default_rng(0).permutation(len(names))
    return [names[t] for t in order if _range(tables[names[t]][1]) > 0][:_HELD_OUT]


class Forests(TableProblem):
    """The forests of one data set, and those of all known ones as ``history``."""

    def __init__(self, data: Path, task: str) -> None:
        tables = read(data)
        super().__init__(*tables[task], space=SearchSpace.from_dictionaries(_COLUMNS))
        known = [tables[name] for name in tables if name not in held_out(tables)]
        rows = [
            torch.cat([X, X.new_full((len(X), 1), t)], 1)
            for t, (X, _) in enumerate(known)
        ]
        y = torch.cat([y for _, y in known]).unsqueeze(-1)
        self.history = TaskHistory(torch.cat(rows), y, len(known), len(known) + 1)

    def starts(self, seed: int, n: int | None = None) -> Tensor:
        """Two different rows at random, or ``n``."""
        return super().starts(seed, 2 if n is None else n)


@lru_cache(maxsize=64)
def make(seed: int, data: Path, task: str) -> Forests:
    """A data set, the same for every seed; the seed determines the starts."""
    return Forests(data, task)


def _gaps(paired: Paired, ranges: dict[str, float]) -> np.ndarray:
    """Distances to the best, of the range of a data set: ``R x M x budget``."""
    scale = np.array([ranges[name] for name in paired.problems])[:, None, None]
    return (paired.traces - paired.optima[:, None, None]) / scale


def tables(paired: Paired, gaps: np.ndarray) -> str:
    """The tables that ``main`` prints."""
    means = paired.by_problem(gaps)  # ``P x M x budget``
    ranks = ranks_of(paired.traces).mean((0, 2))
    budget = gaps.shape[-1]
    at = [n for n in _AT if n <= budget]
    first = paired.methods[0]
    ours = means[:, 0]
    others = means[:, 1:].swapaxes(0, 1)
    average = [one_sided(ours.mean(-1), theirs.mean(-1)) for theirs in others]
    corrected = holm(average)
    rows = []
    for k, name in enumerate(paired.methods):
        row = [name, f"{ranks[k]:.2f}"]
        row += [f"{gaps[:, k, n - 1].mean():.4f}" for n in at]
        if k == 0:
            rows.append([*row, "", "", ""])
            continue
        theirs = means[:, k]
        worse = [one_sided(theirs[:, n], ours[:, n]) for n in range(budget)]
        better = [one_sided(ours[:, n], theirs[:, n]) for n in range(budget)]
        row += [f"{min(p):.2g} (at {1 + int(np.argmin(p))})" for p in (worse, better)]
        rows.append([*row, f"{corrected[k - 1]:.2g}"])
    header = ["method", "mean rank", *(f"gap at {n}" for n in at)]
    header += [f"p: {first} worse", f"p: {first} better", "p (Holm): better, all"]
    title = f"{len(gaps)} runs on {len(means)} data sets, budget {budget}"
    return f"{title}\n\n" + markdown_table(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    names = dict.fromkeys(_NAMES)
    parser = parser_of(
        __doc__, names, "results/forests", seeds=2, first_seed=100, budget=50
    )
    parser.set_defaults(methods=list(METHODS))
    parser.add_argument("--data", type=Path, required=True, help="folder of the table")
    parser.add_argument("--tasks", type=int, help="only the first so many data sets")
    options = parser.parse_args(arguments)
    known = read(options.data)
    tasks = {f"forests-{t}": t for t in held_out(known)[: options.tasks]}
    problems = {
        name: partial(make, data=options.data, task=t) for name, t in tasks.items()
    }
    runs = runs_of(options, METHODS, problems)
    paired = pair(runs, options.methods, options.budget)
    gaps = _gaps(paired, {name: _range(known[t][1]) for name, t in tasks.items()})
    print(tables(paired, gaps))


if __name__ == "__main__":
    main()
