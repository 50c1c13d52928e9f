"""Flat here and violent there: Assael et al. (2014), section 4.

    python -m benchmarks.quality.treed --out results/treed --data DIR

RKHS-1D and the 2-D exponential, and tables in DIR: ``lda_on_grid.csv``,
``svm_on_grid.csv``, ``clark_copper_3d.csv`` and ``walker_lake_470.csv`` (those that are
not there are left out). Printed, for each problem and method: the share of runs with a
regret below 1e-2 at 30 evaluations and at the budget, the mean area under the regret
curve, and against ``bo`` (a method with warping: against ``bo_warp``) the paired
two-sided Wilcoxon test of that area and McNemar's exact test of the shares.
Seeds below 100 were used during development.
"""

from __future__ import annotations

__all__ = ["PROBLEMS", "main"]

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest, wilcoxon

from benchmarks.harness import run
from benchmarks.summary import Run, load, markdown_table, plot_traces
from benchmarks.treed_methods import METHODS
from botorch_structured.test_functions import RKHS1D, GramacyExponential2D
from botorch_structured.test_functions.published_tables import (
    clark_copper,
    online_lda,
    structured_svm,
    walker_lake,
)

_TABLES: dict[str, tuple[str, Callable[..., Any]]] = {
    "lda": ("lda_on_grid.csv", online_lda),
    "svm": ("svm_on_grid.csv", structured_svm),
    "copper": ("clark_copper_3d.csv", clark_copper),
    "walker": ("walker_lake_470.csv", walker_lake),
}
_FUNCTIONS: dict[str, Callable[[], Any]] = {
    "rkhs": RKHS1D,
    "exp2d": GramacyExponential2D,
}
PROBLEMS = [*_FUNCTIONS, *_TABLES]
_SMALL = 1e-2


def make(seed: int, name: str, data: Path | None = None) -> Any:
    """The same problem for every seed; the seed decides the starts."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]()
    if data is None:
        raise ValueError(f"data: expected the folder with the table of {name}.")
    file, build = _TABLES[name]
    return build(_find(data, file))


def _find(data: Path, file: str) -> Path | None:
    return next(iter(sorted(data.rglob(file))), None)


def regret(one: Run, budget: int) -> np.ndarray:
    """Best value so far less the optimum, ``budget``."""
    return one.trace()[:budget] - one.optimum


def tables(runs: Sequence[Run], budget: int) -> str:
    """What ``main`` prints."""
    parts = []
    for problem in sorted({r.problem for r in runs}):
        by = {
            (r.method, r.seed): regret(r, budget)
            for r in runs
            if r.problem == problem and len(r.values) >= budget
        }
        rows = []
        for method in [m for m in METHODS if any(k[0] == m for k in by)]:
            mine = {s: v for (m, s), v in by.items() if m == method}
            reference = "bo_warp" if method.endswith("warp") else "bo"
            other = {s: v for (m, s), v in by.items() if m == reference}
            seeds = sorted(set(mine) & set(other))
            row = [method, str(len(mine))]
            for at in (min(30, budget), budget):
                good = np.mean([v[at - 1] < _SMALL for v in mine.values()])
                row.append(f"{good:.0%}")
            row.append(f"{np.mean([v.mean() for v in mine.values()]):.4g}")
            row += _tests(method, reference, mine, other, seeds)
            rows.append(row)
        header = ["method", "runs", "regret < 0.01 at 30", f"at {budget}", "area"]
        header += ["area, p against", "shares, p against"]
        parts.append(f"## {problem}\n\n" + markdown_table(header, rows))
    return "\n\n".join(parts)


def _tests(
    method: str,
    reference: str,
    mine: dict[int, np.ndarray],
    other: dict[int, np.ndarray],
    seeds: list[int],
) -> list[str]:
    if method == reference or not seeds:
        return ["", ""]
    a = np.array([mine[s].mean() for s in seeds])
    b = np.array([other[s].mean() for s in seeds])
    area = 1.0 if np.allclose(a, b) else wilcoxon(a, b).pvalue
    good = np.array([[mine[s][-1] < _SMALL, other[s][-1] < _SMALL] for s in seeds])
    more, fewer = (good[:, 0] & ~good[:, 1]).sum(), (~good[:, 0] & good[:, 1]).sum()
    share = binomtest(int(more), int(more + fewer)).pvalue if more + fewer else 1.0
    return [f"{area:.2g} {reference}", f"{share:.2g} {reference}"]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with the tables")
    parser.add_argument("--problems", nargs="+", default=PROBLEMS, choices=PROBLEMS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, default=25, help="how many")
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--budget", type=int, default=50, help="starts included")
    parser.add_argument("--out", type=Path, default=Path("results/treed"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--plot", type=Path, help="write the traces to this picture")
    options = parser.parse_args(arguments)
    names = []
    for name in options.problems:
        there = options.data is not None and name in _TABLES
        if name in _FUNCTIONS or (there and _find(options.data, _TABLES[name][0])):
            names.append(name)
        else:
            print(f"{name} is left out: no {_TABLES[name][0]}", file=sys.stderr)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    run(
        methods={name: METHODS[name] for name in options.methods},
        problems={name: partial(make, name=name, data=options.data) for name in names},
        seeds=seeds,
        budget=options.budget,
        out=options.out,
        processes=options.processes,
    )
    runs = [
        one
        for one in load(options.out)
        if one.problem in names
        and one.method in options.methods
        and one.seed in seeds
        and one.optimum is not None
    ]
    print(tables(runs, options.budget))
    if options.plot:
        plot_traces(runs, options.plot)


if __name__ == "__main__":
    main()
