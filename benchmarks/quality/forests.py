"""A new data set's random forest, tuned with 37,000 old runs. Perrone et al. (2017).

    python -m benchmarks.quality.forests --data DIR --out results/forests --figures DIR

Section 3.2 and Figure 2, left: 94 data sets of OpenML with 500 random forests each
(``random_forest_tables``); 20 of them are held out, each is tuned with all runs of the
other 74 as history. Evaluations are looked up, so a method chooses among the 500
forests; two random starts count as evaluations. Networks are fitted again after every
tenth evaluation. The held-out data sets are the first 20 of a random permutation of
those whose forests differ. Methods were developed on the next 36; ``--development``
runs the first ten of these, with neither them nor the 20 in the history. Seeds below
100 were used during development. ``--table svm``: the same with 50 data sets and 288
support vector machines, whose parameters are conditional (``support_vector_tables``).

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
(wistuba/TST). ``--figures DIR`` writes ``ablr_forests.json`` and ``.png``.
"""

from __future__ import annotations

__all__ = ["METHODS", "held_out", "main", "make"]

import argparse
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ablr_methods
from benchmarks.harness import Method, run
from benchmarks.problems.tables import support_vector_tables
from benchmarks.problems.transfer import (
    TransferTable,
    TransferTables,
    random_forest_tables,
)
from benchmarks.summary import Run, holm, load, markdown_table
from benchmarks.transfer_report import (
    one_sided,
    pair,
    ranks_of,
    standard_error,
    write_figure,
)
from botorch_structured.plots.style import (
    BLUE,
    COLOURS,
    GREY,
    RED,
    legend_below,
    step_curve,
    tidy,
)

_FILES = {
    "forests": ("openml_flow6969_random_forest.arff.gz", random_forest_tables),
    "svm": ("tst_svm_50datasets_288configs.csv.gz", support_vector_tables),
}
_HELD_OUT, _DEVELOPMENT = 20, 10
_FLOOR = 1e-3  # of a logarithmic axis
METHODS: dict[str, Method] = {
    "warm": ablr_methods.warm,
    "gp": ablr_methods.gp,
    "ablr": ablr_methods.ablr,
    "random": ablr_methods.random,
}
"""Those of the figure; the first is the one that knows the other data sets."""
_MORE: dict[str, Method] = {
    "earlier": ablr_methods.earlier,
    "without": ablr_methods.without,
}
_LABELS = {
    "warm": "MultiTaskABLR, warm start",
    "gp": "SingleTaskGP",
    "ablr": "MultiTaskABLR without history",
    "random": "random search",
    "earlier": "models of suggest, earlier",
    "without": "models of suggest",
}
_COLOURS = dict(zip(_LABELS, (BLUE, RED, COLOURS[2], GREY, *COLOURS[3:]), strict=False))


@lru_cache(maxsize=2)
def _tables(path: Path, table: str) -> TransferTables:
    return _FILES[table][1](path)


def find(data: Path, table: str) -> Path:
    """The file of a table in a folder.

    Raises:
        FileNotFoundError: It is not there.
    """
    name = _FILES[table][0]
    path = next(iter(sorted(data.rglob(name))), None)
    if path is None:
        raise FileNotFoundError(
            f"{data}: expected {name}, see the head of benchmarks/quality/forests.py "
            "for where it is from, got none."
        )
    return path


@lru_cache(maxsize=64)
def _problem(path: Path, table: str, task: str, hidden: int) -> TransferTable:
    known = _tables(path, table)
    unseen = set(_order(known)[:hidden])
    history = [name for name in known.names if name not in unseen]
    return known.subset([*history, task]).leave_out(task)


def make(seed: int, path: Path, table: str, task: str, hidden: int) -> TransferTable:
    """A data set, the same for every seed; the seed determines the starts.

    Args:
        seed: Not used.
        path: The file.
        table: The kind of table.
        task: The data set.
        hidden: The number of data sets that are in no history.
    """
    return _problem(path, table, task, hidden)


def _order(tables: TransferTables) -> list[str]:
    spread = tables.spread()
    order = np.random.default_rng(0).permutation(tables.num_tasks)
    return [tables.names[t] for t in order if spread[t] > 0]


def held_out(tables: TransferTables, development: bool = False) -> list[str]:
    """The data sets that are tuned."""
    first = _HELD_OUT if development else 0
    count = _DEVELOPMENT if development else _HELD_OUT
    return _order(tables)[first : first + count]


def figure(
    runs: Sequence[Run], methods: Sequence[str], budget: int, ranges: dict[str, float]
) -> dict[str, Any]:
    """The numbers behind Figure 2, left."""
    paired = pair(runs, methods, budget)
    each = ranks_of(paired.traces)
    ranks, rank_errors = each.mean(0), standard_error(paired.by_problem(each))
    scale = np.array([ranges[name] for name in paired.problems])[:, None, None]
    gaps = (paired.traces - paired.optima[:, None, None]) / scale
    means = paired.by_problem(gaps)  # ``P x M x budget``
    gap_errors = standard_error(means)
    mine = means[:, 0]
    tests = {}
    for k, other in enumerate(methods[1:], 1):
        worse = [one_sided(means[:, k, n], mine[:, n]) for n in range(budget)]
        better = [one_sided(mine[:, n], means[:, k, n]) for n in range(budget)]
        tests[other] = {
            "worse_smallest_p": min(worse),
            "worse_at": 1 + int(np.argmin(worse)),
            "better_smallest_p": min(better),
            "better_at": 1 + int(np.argmin(better)),
            "better_on_average_p": one_sided(mine.mean(-1), means[:, k].mean(-1)),
            "better_p_at": [round(p, 6) for p in better],
            "worse_p_at": [round(p, 6) for p in worse],
        }
    corrected = holm([test["better_on_average_p"] for test in tests.values()])
    for test, p in zip(tests.values(), corrected, strict=True):
        test["better_on_average_p_holm"] = p
    return {
        "budget": budget,
        "data_sets": len(means),
        "runs": len(gaps),
        "methods": {
            name: {
                "mean_rank": float(ranks[k].mean()),
                "ranks": ranks[k].round(4).tolist(),
                "rank_errors": rank_errors[k].round(4).tolist(),
                "gaps": gaps[:, k].mean(0).round(6).tolist(),
                "gap_errors": gap_errors[k].round(6).tolist(),
            }
            for k, name in enumerate(methods)
        },
        "budgets_with_the_best_rank": int((ranks.argmin(0)[2:] == 0).sum()),
        f"{methods[0]}_against": tests,
    }


def tables(numbers: dict[str, Any], at: Sequence[int]) -> str:
    """What ``main`` prints."""
    (first,) = [k.removesuffix("_against") for k in numbers if k.endswith("_against")]
    against = numbers[f"{first}_against"]
    at = [n for n in at if n <= numbers["budget"]]
    rows = []
    for name, of in numbers["methods"].items():
        row = [name, f"{of['mean_rank']:.2f}"]
        row += [f"{of['gaps'][n - 1]:.4f}" for n in at]
        test = against.get(name)
        if test is None:
            rows.append([*row, "", "", ""])
            continue
        row.append(f"{test['worse_smallest_p']:.2g} (at {test['worse_at']})")
        row.append(f"{test['better_smallest_p']:.2g} (at {test['better_at']})")
        rows.append([*row, f"{test['better_on_average_p_holm']:.2g}"])
    header = ["method", "mean rank", *(f"gap at {n}" for n in at)]
    header += [f"p: {first} worse", f"p: {first} better", "p (Holm): better, all"]
    title = (
        f"{numbers['runs']} runs on {numbers['data_sets']} data sets, budget "
        f"{numbers['budget']}"
    )
    return f"{title}\n\n" + markdown_table(header, rows)


def draw(numbers: dict[str, Any], canvas: Any) -> None:
    """Mean ranks and gaps at each budget, with standard errors over data sets."""
    left, right = axes = canvas.subplots(1, 2)
    steps = np.arange(1, numbers["budget"] + 1)
    for name, of in numbers["methods"].items():
        style = {"color": _COLOURS[name], "label": _LABELS[name]}
        if name == "random":
            style["linestyle"] = ":"
        for ax, what in ((left, "rank"), (right, "gap")):
            mean, error = np.array(of[f"{what}s"]), np.array(of[f"{what}_errors"])
            curves = np.array([mean, mean - error, mean + error])
            if ax is right:  # zero is not on a logarithmic axis
                curves = np.maximum(curves, _FLOOR)
            step_curve(ax, steps, curves[0], (curves[1], curves[2]), **style)
    for ax in axes:
        ax.set_xlabel("evaluations, two starts included")
        ax.set_xlim(1, numbers["budget"])
        tidy(ax)
    left.set_ylabel("mean rank")
    right.set_yscale("log")
    right.set_ylabel("mean distance to the best\n(1 = the range of a data set)")
    legend_below(canvas, axes)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the table")
    parser.add_argument("--table", default="forests", choices=_FILES)
    parser.add_argument("--development", action="store_true")
    parser.add_argument("--tasks", type=int, help="only the first so many data sets")
    every = METHODS | _MORE
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=every)
    parser.add_argument("--seeds", type=int, default=2, help="how many")
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--budget", type=int, default=50, help="starts included")
    parser.add_argument("--out", type=Path, default=Path("results/forests"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--figures", type=Path, help="write JSON and PNG here")
    options = parser.parse_args(arguments)
    path = find(options.data, options.table)
    known = _tables(path, options.table)
    tasks = held_out(known, options.development)[: options.tasks]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    kind = options.table
    hidden = _HELD_OUT + _DEVELOPMENT if options.development else _HELD_OUT
    if not options.report:
        run(
            methods={name: every[name] for name in options.methods},
            problems={
                f"{kind}-{task}": partial(
                    make, path=path, table=kind, task=task, hidden=hidden
                )
                for task in tasks
            },
            seeds=seeds,
            budget=options.budget,
            out=options.out,
            processes=options.processes,
        )
    spread = dict(zip(known.names, known.spread().tolist(), strict=True))
    ranges = {f"{kind}-{task}": spread[task] for task in tasks}
    runs = [
        one for one in load(options.out) if one.problem in ranges and one.seed in seeds
    ]
    numbers = figure(runs, options.methods, options.budget, ranges)
    print(tables(numbers, at=(5, 10, 20, 30, 50)))
    if options.figures:
        write_figure(options.figures, f"ablr_{kind}", numbers, partial(draw, numbers))


if __name__ == "__main__":
    main()
