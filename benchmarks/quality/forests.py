"""A new data set's random forest, tuned with 37,000 old runs. Perrone et al. (2017).

    python -m benchmarks.quality.forests --data DIR --out results/forests --figures DIR

Section 3.2 and Figure 2, left: 94 data sets of OpenML with 500 random forests each
(``random_forest_tables``); 20 of them are held out, each is tuned with all runs of the
other 74 as history. Evaluations are looked up, so a method chooses among the 500
forests; two random starts count as evaluations. Networks are fitted again after every
tenth evaluation. The held-out data sets are the first 20 of a random permutation of
those whose forests differ; methods were developed on the next 36, with seeds below 100.
``--table svm``: the same with 50 data sets and 288 support vector machines, whose
parameters are conditional (``support_vector_tables``).

Printed: ranks averaged over data sets, seeds and all budgets from 1; the mean distance
to the data set's best forest (of the range of its forests); and, for the first of
``--methods`` (default: the warm start) against each other one, the smallest p over
budgets of a one-sided Wilcoxon test *against* it (that it has found worse forests), on
means over the seeds of each data set: if that is below 0.05, it is significantly worse
at some budget. Likewise the smallest p that it is better, and the p of the mean over
all budgets, with Holm's correction over the other methods.

``earlier`` and ``without`` are the models of ``suggest`` with and without the other
data sets as old studies; they score the table's rows, from the same two starts.

DIR holds ``openml_flow6969_random_forest.arff.gz`` (``random_forest.arff`` of the
repository janvanrijn/openml-pimp), or ``tst_svm_50datasets_288configs.csv.gz``
(wistuba/TST). ``--figures DIR`` draws ranks and distances there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from benchmarks import methods
from benchmarks.command import parser_of, runs_of
from benchmarks.harness import Method
from benchmarks.papers.pictures import curves, finished, panels, save
from benchmarks.problems.tables import support_vector_tables
from benchmarks.problems.transfer import (
    TransferTable,
    TransferTables,
    random_forest_tables,
)
from benchmarks.summary import (
    Paired,
    holm,
    markdown_table,
    one_sided,
    pair,
    ranks_of,
)

_FILES = {
    "forests": ("openml_flow6969_random_forest.arff.gz", random_forest_tables),
    "svm": ("tst_svm_50datasets_288configs.csv.gz", support_vector_tables),
}
_HELD_OUT = 20
_AT = (5, 10, 20, 30, 50)
METHODS: dict[str, Method] = {
    "warm": methods.warm,
    "gp": methods.gp,
    "ablr": methods.ablr,
    "random": methods.random,
}
"""Those of the figure; the first is the one that knows the other data sets."""
_ALL = METHODS | {
    "earlier": methods.earlier,
    "without": partial(methods.earlier, use_history=False),
}
_LABELS = {
    "warm": "MultiTaskABLR, warm start",
    "gp": "SingleTaskGP",
    "ablr": "MultiTaskABLR without history",
    "random": "random search",
    "earlier": "models of suggest, earlier",
    "without": "models of suggest",
}


@lru_cache(maxsize=2)
def _tables(data: Path, table: str) -> TransferTables:
    name, read = _FILES[table]
    path = next(iter(sorted(data.rglob(name))), None)
    if path is None:
        raise FileNotFoundError(
            f"{data}: expected {name}, see the head of benchmarks/quality/forests.py "
            "for where it is from, got none."
        )
    return read(path)


def held_out(tables: TransferTables) -> list[str]:
    """The data sets that are tuned."""
    spread = tables.spread()
    order = np.random.default_rng(0).permutation(tables.num_tasks)
    return [tables.names[t] for t in order if spread[t] > 0][:_HELD_OUT]


@lru_cache(maxsize=64)
def _problem(data: Path, table: str, task: str) -> TransferTable:
    known = _tables(data, table)
    unseen = set(held_out(known))
    history = [name for name in known.names if name not in unseen]
    return known.subset([*history, task]).leave_out(task)


def make(seed: int, data: Path, table: str, task: str) -> TransferTable:
    """A data set, the same for every seed; the seed determines the starts."""
    return _problem(data, table, task)


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


def draw(paired: Paired, gaps: np.ndarray, path: Path) -> None:
    """Mean ranks and gaps at each budget, with two standard errors over data sets."""
    figure = panels(["", ""], "evaluations, two starts included", "mean rank", 4.5)
    labels = [_LABELS[name] for name in paired.methods]
    for k, values in enumerate((ranks_of(paired.traces), gaps)):
        means = paired.by_problem(values).swapaxes(0, 1)
        curves(figure, k, dict(zip(labels, means, strict=True)))
    right = figure.axes[1]
    right.set_yscale("log")
    right.set_ylim(bottom=1e-3)
    right.set_ylabel("mean distance to the best\n(1 = the range of a data set)")
    save(finished(figure), path)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = parser_of(
        __doc__, _ALL, "results/forests", seeds=2, first_seed=100, budget=50
    )
    parser.set_defaults(methods=list(METHODS))
    parser.add_argument("--data", type=Path, required=True, help="folder of the table")
    parser.add_argument("--table", default="forests", choices=_FILES)
    parser.add_argument("--tasks", type=int, help="only the first so many data sets")
    parser.add_argument("--figures", type=Path, help="a folder to draw in")
    options = parser.parse_args(arguments)
    kind = options.table
    known = _tables(options.data, kind)
    tasks = held_out(known)[: options.tasks]
    problems = {
        f"{kind}-{task}": partial(make, data=options.data, table=kind, task=task)
        for task in tasks
    }
    runs = runs_of(options, _ALL, problems)
    spread = dict(zip(known.names, known.spread().tolist(), strict=True))
    paired = pair(runs, options.methods, options.budget)
    gaps = _gaps(paired, {f"{kind}-{task}": spread[task] for task in tasks})
    print(tables(paired, gaps))
    if options.figures:
        options.figures.mkdir(parents=True, exist_ok=True)
        draw(paired, gaps, options.figures / f"ablr_{kind}.png")


if __name__ == "__main__":
    main()
