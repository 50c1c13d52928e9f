"""Objectives flat in one region and rough in another: Assael et al. (2014), section 4.

    python -m benchmarks.quality.treed --out results/treed --data DIR

RKHS-1D and the 2-D exponential, and tables in DIR: ``lda_on_grid.csv``,
``svm_on_grid.csv``, ``clark_copper_3d.csv`` and ``walker_lake_470.csv`` (those that are
not there are left out). Printed, for each problem and method: the share of runs with a
regret below 1e-2 at 30 evaluations and at the budget, and the mean area under the
regret curve over the first 40 evaluations. Then the table of docs/results.md: these
areas in units of that of standard BO (``bo``; of a method with warping: ``bo_warp``),
with p values of Wilcoxon's two-sided signed-rank test, paired by seed, after Holm's
correction over the table. Seeds below 100
were used during development.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binomtest, wilcoxon

from benchmarks.command import parser_of, runs_of
from benchmarks.methods import TREED
from benchmarks.summary import Run, holm, markdown_table
from botorch_structured.test_functions import RKHS1D, GramacyExponential2D, TableProblem


class _Table(NamedTuple):
    """A comma-separated file with a header."""

    file: str
    inputs: list[str]
    value: str
    log: tuple[int, ...] = ()
    maximize: bool = False


_TABLES = {
    # HPOlib's grids by Snoek, Larochelle and Adams (2012)
    "lda": _Table("lda_on_grid.csv", ["kappa", "tau", "s"], "perplexity", (1, 2)),
    "svm": _Table("svm_on_grid.csv", ["c", "alpha", "epsilon"], "error", (0, 1, 2)),
    # in place of the paper's mines: KRIG's data by Clark, Isaaks and Srivastava (1989)
    "copper": _Table("clark_copper_3d.csv", ["x1", "x2", "x3"], "Z", maximize=True),
    "walker": _Table("walker_lake_470.csv", ["X", "Y"], "V", maximize=True),
}
_NO_GRADE = (-995.0, -99.0)
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
    table = _TABLES[name]
    paths = [] if data is None else sorted(data.rglob(table.file))
    if not paths:
        raise FileNotFoundError(f"no {table.file} in --data {data}")
    rows = np.genfromtxt(paths[0], delimiter=",", names=True, encoding="utf-8")
    rows = rows[~np.isin(rows[table.value], _NO_GRADE)]
    X = np.stack([rows[name] for name in table.inputs], -1).tolist()
    y = rows[table.value].tolist()
    return TableProblem(X, y, table.inputs, table.log, maximize=table.maximize)


def regrets(runs: Sequence[Run], at_least: int) -> Regrets:
    """Best value so far less the optimum, of the runs that are long enough."""
    curves: Regrets = {}
    for one in runs:
        if one.optimum is not None and len(one.values) >= at_least:
            by_seed = curves.setdefault((one.problem, one.method), {})
            by_seed[one.seed] = one.trace() - one.optimum
    return curves


def area_test(
    ours: dict[int, np.ndarray], theirs: dict[int, np.ndarray], length: int
) -> tuple[float, float] | None:
    """Mean difference of the areas and Wilcoxon's p; None without common seeds."""
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return None
    a, b = (np.array([r[s][:length].mean() for s in seeds]) for r in (ours, theirs))
    change = a - b
    # rounding does not decide
    change[np.abs(change) < 1e-12 * max(float(b.mean()), 1e-300)] = 0.0
    if not change.any():
        return 0.0, 1.0
    return float(change.mean()), float(wilcoxon(change).pvalue)


def share_test(
    ours: dict[int, np.ndarray], theirs: dict[int, np.ndarray], at: int
) -> tuple[float, float]:
    """Difference of the shares of small regrets, and McNemar's exact p."""
    seeds = [s for s in ours if s in theirs and min(len(ours[s]), len(theirs[s])) >= at]
    a, b = (np.array([r[s][at - 1] < _SMALL for s in seeds]) for r in (ours, theirs))
    more = int((a & ~b).sum())
    fewer = int((~a & b).sum())
    p = binomtest(more, more + fewer).pvalue if more + fewer else 1.0
    return float(a.mean() - b.mean()), float(p)


def problem_table(curves: Regrets, problem: str, budget: int) -> str:
    """Shares and areas on one problem."""
    moments = sorted({min(30, budget), budget})
    rows = []
    for method in TREED:
        ours = list(curves.get((problem, method), {}).values())
        if not ours:
            continue
        row = [method, str(len(ours))]
        for at in moments:
            good = [curve[at - 1] < _SMALL for curve in ours if len(curve) >= at]
            row.append(f"{np.mean(good):.0%}" if good else "")
        area = np.mean([curve[:_AREA].mean() for curve in ours])
        rows.append([*row, f"{area:.4g}"])
    header = ["method", "runs", *(f"regret < {_SMALL:g} at {at}" for at in moments)]
    header.append(f"area to {min(_AREA, budget)}")
    return f"## {problem}\n\n" + markdown_table(header, rows)


def relative_table(curves: Regrets, budget: int) -> str:
    """Mean areas in units of the baseline's, tested together.

    In bold what differs from it with p < 0.05 after Holm's correction over the whole
    table.
    """
    length = min(_AREA, budget)
    cells: dict[tuple[str, str], float] = {}
    tests: dict[tuple[str, str], float] = {}
    for problem, method in curves:
        reference = "bo_warp" if method.endswith("warp") else "bo"
        same = problem in _TABLES and method in _SAME_ON_TABLES
        theirs = curves.get((problem, reference))
        if method in ("bo", "bo_warp", "random") or same or theirs is None:
            continue
        test = area_test(curves[problem, method], theirs, length)
        if test is not None:
            area = np.mean([v[:length].mean() for v in theirs.values()])
            cells[problem, method] = 1.0 + test[0] / float(area)
            tests[problem, method] = test[1]
    corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
    problems = [p for p in PROBLEMS if any(key[0] == p for key in curves)]
    rows = []
    for method in TREED:
        row = [method]
        for problem in problems:
            text = ""
            if (problem, method) in cells:
                p = corrected[problem, method]
                text = f"{cells[problem, method]:.2f}"
                text = f"**{text}** ({p:.2g})" if p < _LEVEL else f"{text} ({p:.2g})"
            row.append(text)
        if any(row[1:]):
            rows.append(row)
    title = f"## Area to {length} evaluations over that of bo, or of bo_warp\n\n"
    return (
        f"{title}In brackets p after Holm's correction over these {len(tests)} tests."
        f"\n\n{markdown_table(['method', *problems], rows)}"
    )


def report(runs: Sequence[Run], budget: int) -> str:
    """The tables that ``main`` prints."""
    curves = regrets(runs, min(_AREA, budget))
    present = [p for p in PROBLEMS if any(key[0] == p for key in curves)]
    parts = [problem_table(curves, problem, budget) for problem in present]
    return "\n\n".join([*parts, relative_table(curves, budget)])


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = parser_of(
        __doc__, TREED, "results/treed", seeds=25, first_seed=100, budget=50
    )
    parser.add_argument("--data", type=Path, help="folder with the tables")
    parser.add_argument("--problems", nargs="+", default=PROBLEMS, choices=PROBLEMS)
    options = parser.parse_args(arguments)
    problems = {
        name: partial(make, name=name, data=options.data) for name in options.problems
    }
    runs = runs_of(options, TREED, problems)
    print(report(runs, options.budget))


if __name__ == "__main__":
    main()
