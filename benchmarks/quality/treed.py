"""Objectives flat in one region and rough in another: Assael et al. (2014), section 4.

    python -m benchmarks.quality.treed --out results/treed --data DIR

RKHS-1D and the 2-D exponential, and tables in DIR: ``lda_on_grid.csv``,
``svm_on_grid.csv``, ``clark_copper_3d.csv`` and ``walker_lake_470.csv`` (those that are
not there are left out). Printed, for each problem and method: the share of runs with a
regret below 1e-2 at 30 evaluations and at the budget, and the mean area under the
regret curve over the first 40 evaluations. Both are paired by seed and tested against
each way to maximise standard BO's acquisition, ``bo``, ``bo_acqf`` and ``bo_refine`` (a
method with warping: against ``bo_warp``): McNemar's exact test of the shares,
Wilcoxon's two-sided signed-rank test of the areas. Then a table of the problems on
which the mean area is smaller, and where that is significant; and the table of
docs/results.md: all areas in units of the baseline's, with p values after Holm's
correction over the table. With ``--report`` nothing is run. Seeds below 100 were used
during development.
"""

from __future__ import annotations

__all__ = ["PROBLEMS", "main", "make"]

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest, wilcoxon

from benchmarks.harness import run
from benchmarks.problems.tables import (
    clark_copper,
    online_lda,
    structured_svm,
    walker_lake,
)
from benchmarks.quality.treed_figures import write_figure
from benchmarks.summary import Run, holm, load, markdown_table
from benchmarks.treed_methods import METHODS
from botorch_structured.test_functions import RKHS1D, GramacyExponential2D

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
_AREA = 40  # evaluations
_LEVEL = 0.05
# on tables, where all rows are scored, these are the same as ``bo``
_SAME_ON_TABLES = ("bo_acqf", "bo_refine")

# (problem, method) -> seed -> regret after each evaluation
Regrets = dict[tuple[str, str], dict[int, np.ndarray]]


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


def regrets(runs: Sequence[Run], at_least: int) -> Regrets:
    """Best value so far less the optimum, of the runs that are long enough."""
    found: Regrets = {}
    for one in runs:
        if one.optimum is not None and len(one.values) >= at_least:
            curves = found.setdefault((one.problem, one.method), {})
            curves[one.seed] = one.trace() - one.optimum
    for problem in _TABLES:
        for method in _SAME_ON_TABLES:
            if (problem, "bo") in found:
                found.setdefault((problem, method), found[problem, "bo"])
    return found


def baselines(method: str) -> list[str]:
    """What a method is compared with: standard BO, or BO with input warping."""
    names = ["bo_warp"] if method.endswith("warp") else ["bo", *_SAME_ON_TABLES]
    return [name for name in names if name != method]


def area_test(
    mine: dict[int, np.ndarray], other: dict[int, np.ndarray], length: int
) -> tuple[float, float] | None:
    """Mean difference of the areas and Wilcoxon's p; None without common seeds."""
    seeds = sorted(set(mine) & set(other))
    if not seeds:
        return None
    a, b = (np.array([r[s][:length].mean() for s in seeds]) for r in (mine, other))
    difference, scale = a - b, max(float(b.mean()), 1e-300)
    difference[np.abs(difference) < 1e-12 * scale] = 0.0  # rounding does not decide
    if not difference.any():
        return 0.0, 1.0
    return float(difference.mean()), float(wilcoxon(difference).pvalue)


def share_test(
    mine: dict[int, np.ndarray], other: dict[int, np.ndarray], at: int
) -> tuple[float, float] | None:
    """Difference of the shares of small regrets, and McNemar's exact p."""
    seeds = [s for s in mine if s in other and min(len(mine[s]), len(other[s])) >= at]
    if not seeds:
        return None
    a, b = (np.array([r[s][at - 1] < _SMALL for s in seeds]) for r in (mine, other))
    more, fewer = int((a & ~b).sum()), int((~a & b).sum())
    p = binomtest(more, more + fewer).pvalue if more + fewer else 1.0
    return float(a.mean() - b.mean()), float(p)


def problem_table(found: Regrets, problem: str, budget: int) -> str:
    """Shares, areas and their tests on one problem."""
    length, moments = min(_AREA, budget), sorted({min(30, budget), budget})
    rows = []
    for method in METHODS:
        mine = found.get((problem, method))
        if mine is None:
            continue
        row = [method, str(len(mine))]
        for at in moments:
            good = [v[at - 1] < _SMALL for v in mine.values() if len(v) >= at]
            row.append(f"{np.mean(good):.0%}" if good else "")
        row.append(f"{np.mean([v[:length].mean() for v in mine.values()]):.4g}")
        areas, shares = [], []
        for reference in baselines(method):
            other = found.get((problem, reference), {})
            area = area_test(mine, other, length)
            if area is not None:
                areas.append(f"{area[0]:+.2g} (p {area[1]:.2g}) {reference}")
            for at in moments:
                share = share_test(mine, other, at)
                if share is not None:
                    shares.append(
                        f"{100 * share[0]:+.0f} (p {share[1]:.2g}) {reference} at {at}"
                    )
        rows.append([*row, "; ".join(areas), "; ".join(shares)])
    header = ["method", "runs"]
    header += [f"regret < {_SMALL:g} at {at}" for at in moments]
    header += [f"area to {length}", "area less that of", "points of share more than"]
    return f"## {problem}\n\n" + markdown_table(header, rows)


def overall_table(found: Regrets, budget: int) -> str:
    """On which problems the mean area of a method is smaller than a baseline's."""
    length = min(_AREA, budget)
    problems = sorted({problem for problem, _ in found})
    rows = []
    for method in METHODS:
        if not method.startswith("htbo"):
            continue
        for reference in baselines(method):
            groups: dict[tuple[bool, bool], list[str]] = {
                (True, True): [],
                (True, False): [],
                (False, False): [],
                (False, True): [],
            }
            for problem in problems:
                mine = found.get((problem, method), {})
                test = area_test(mine, found.get((problem, reference), {}), length)
                if test is not None:
                    groups[test[0] < 0, test[1] < _LEVEL].append(problem)
            if any(groups.values()):
                cells = [", ".join(names) for names in groups.values()]
                rows.append([method, reference, *cells])
    header = ["method", "against", f"smaller, p < {_LEVEL:g}", "smaller"]
    header += ["not smaller", f"larger, p < {_LEVEL:g}"]
    return f"## Area to {length} evaluations\n\n" + markdown_table(header, rows)


def relative_table(found: Regrets, budget: int) -> str:
    """Mean areas in units of the first baseline's, tested together.

    In bold what differs from it with p < 0.05 after Holm's correction over the whole
    table.
    """
    length = min(_AREA, budget)
    problems = [p for p in PROBLEMS if any(key[0] == p for key in found)]
    cells: dict[tuple[str, str], float] = {}
    tests: dict[tuple[str, str], float] = {}
    for problem, method in found:
        reference = "bo_warp" if method.endswith("warp") else "bo"
        same = problem in _TABLES and method in _SAME_ON_TABLES
        other = found.get((problem, reference))
        if method in ("bo", "bo_warp", "random") or same or other is None:
            continue
        mine = found[problem, method]
        test = area_test(mine, other, length)
        if test is not None:
            area = np.mean([v[:length].mean() for v in other.values()])
            cells[problem, method] = 1.0 + test[0] / float(area)
            tests[problem, method] = test[1]
    corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
    rows = []
    for method in METHODS:
        row = [method]
        for problem in problems:
            value = cells.get((problem, method))
            if value is None:
                row.append("")
                continue
            p = corrected[problem, method]
            text = f"**{value:.2f}**" if p < _LEVEL else f"{value:.2f}"
            row.append(f"{text} ({p:.2g})")
        if any(row[1:]):
            rows.append(row)
    title = f"## Area to {length} evaluations over that of bo, or of bo_warp\n\n"
    return (
        f"{title}In brackets p after Holm's correction over these {len(tests)} tests."
        f"\n\n{markdown_table(['method', *problems], rows)}"
    )


def report(runs: Sequence[Run], budget: int) -> str:
    """What ``main`` prints."""
    found = regrets(runs, min(_AREA, budget))
    parts = [
        problem_table(found, problem, budget)
        for problem in PROBLEMS
        if any(key[0] == problem for key in found)
    ]
    tables = [overall_table(found, budget), relative_table(found, budget)]
    return "\n\n".join([*parts, *tables])


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
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument(
        "--figures", type=Path, help="write Figure 4 there, as JSON and PNG"
    )
    options = parser.parse_args(arguments)
    names = []
    for name in options.problems:
        there = options.data is not None and name in _TABLES
        if (
            options.report
            or name in _FUNCTIONS
            or (there and _find(options.data, _TABLES[name][0]))
        ):
            names.append(name)
        else:
            print(f"{name} is left out: no {_TABLES[name][0]}", file=sys.stderr)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if not options.report:
        run(
            methods={name: METHODS[name] for name in options.methods},
            problems={
                name: partial(make, name=name, data=options.data) for name in names
            },
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
    print(report(runs, options.budget))
    if options.figures:
        write_figure(options.figures, runs)


if __name__ == "__main__":
    main()
