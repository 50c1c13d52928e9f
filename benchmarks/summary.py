"""Summaries of runs: tables, ranks and paired tests.

    python -m benchmarks.summary OUT --at 20 40 --reference default

Values are minimised. Where a problem's optimum is known, tables show the base-10
logarithm of the gap to it, otherwise the best value itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import rankdata, wilcoxon

from benchmarks.packed import groups

_SMALLEST_GAP = 1e-16


@dataclasses.dataclass(frozen=True)
class Run:
    """One method on one problem with one seed."""

    problem: str
    method: str
    seed: int
    values: np.ndarray  # ``n``, in the order of evaluation
    optimum: float | None
    errors: int  # steps at which the method failed and a random point was evaluated
    suggest_seconds: float  # mean of the steps after the starts
    truths: np.ndarray | None = None  # ``n`` values without noise, where known
    middle: float | None = None  # the truth at a middling point, where known
    branches: np.ndarray | None = None  # ``n`` outcomes of the first decision
    starts: int = 0  # how many of the first evaluations are

    def best(self, at: int | None = None) -> float:
        """The best of the first ``at`` values; NaN where there are fewer."""
        if at is not None and at > len(self.values):
            return math.nan
        return float(self.values[:at].min())

    def trace(self) -> np.ndarray:
        """The best value so far, ``n``."""
        return np.minimum.accumulate(self.values)

    def log_gap(self, at: int | None = None) -> float:
        """log10 of the best value's distance to the optimum, not below -16."""
        if self.optimum is None:
            raise ValueError(f"optimum: expected a known one, got None in {self}.")
        return math.log10(max(self.best(at) - self.optimum, _SMALLEST_GAP))


def load(out: str | Path) -> list[Run]:
    """All the runs in a folder of the harness, by problem, method and seed.

    Args:
        out: The folder, or a file that `benchmarks.packed` wrote.
    """
    runs = []
    for records in groups(out):
        first = records[0]
        chosen = [r["suggest_s"] for r in records if not r.get("start")]
        runs.append(
            Run(
                problem=first["problem"],
                method=first["method"],
                seed=first["seed"],
                values=np.array([r["value"] for r in records], dtype=float),
                optimum=first["optimum"],
                errors=sum("error" in r for r in records),
                suggest_seconds=float(np.mean(chosen)) if chosen else 0.0,
                truths=np.array([r["truth"] for r in records], dtype=float)
                if all("truth" in r for r in records)
                else None,
                middle=first.get("middle"),
                branches=np.array([r["branch"] for r in records])
                if all("branch" in r for r in records)
                else None,
                starts=len(records) - len(chosen),
            )
        )
    return sorted(runs, key=lambda r: (r.problem, r.method, r.seed))


def _methods(runs: Iterable[Run]) -> list[str]:
    return sorted({r.method for r in runs})


def gap_table(
    runs: Sequence[Run], at: int | None = None, above: float = 1e-4
) -> tuple[list[str], list[list[str]]]:
    """Mean log10 gap, and how many runs ended above a gap, of each method and problem.

    Args:
        runs: Runs shorter than ``at`` do not count.
        at: The number of evaluations; default: all.
        above: Runs with a larger gap are counted in a column.

    Returns:
        Header and rows for `markdown_table`: problem, method, runs, mean log10 gap (or
        the mean of the best values), runs above the gap, errors, seconds a suggestion.
    """
    header = ["problem", "method", "runs", "mean log10 gap", f"runs above {above:g}"]
    header += ["errors", "s a suggestion"]
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        if not math.isnan(run.best(at)):
            groups[run.problem, run.method].append(run)
    rows = []
    for (problem, method), group in groups.items():
        if all(run.optimum is not None for run in group):
            gaps = [run.log_gap(at) for run in group]
            result = f"{np.mean(gaps):.2f}"
            failed = str(sum(gap > math.log10(above) for gap in gaps))
        else:
            result = f"best value {np.mean([run.best(at) for run in group]):.5g}"
            failed = ""
        errors = str(sum(run.errors for run in group))
        seconds = f"{np.mean([run.suggest_seconds for run in group]):.3f}"
        rows.append([problem, method, str(len(group)), result, failed, errors, seconds])
    return header, rows


def mean_ranks(runs: Sequence[Run], at: int | None = None) -> dict[str, float]:
    """Mean rank of each method (1 is best, ties share), where all methods ran."""
    methods = _methods(runs)
    rows = _best(runs, methods, at)
    if not len(rows):
        return {}
    ranks = rankdata(rows, axis=1).mean(0)
    return dict(sorted(zip(methods, ranks.tolist(), strict=True), key=lambda m: m[1]))


def _best(runs: Sequence[Run], methods: Sequence[str], at: int | None) -> np.ndarray:
    """Best values where all methods have a run, ``pairs x methods``."""
    found: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for run in runs:
        if not math.isnan(best := run.best(at)):
            found[run.problem, run.seed][run.method] = best
    rows = [[by[m] for m in methods] for by in found.values() if {*methods} <= {*by}]
    return np.array(rows).reshape(-1, len(methods))


def paired_test(
    runs: Sequence[Run], method: str, other: str, at: int | None = None
) -> tuple[float, int]:
    """One-sided Wilcoxon signed-rank test that ``method`` finds lower values.

    Runs are paired by problem and seed. Pairs that found the same value, but for
    rounding, do not count; where all did, p is 1.

    Returns:
        The p value, and how many pairs there were.
    """
    ours, theirs = _best(runs, [method, other], at).T
    same = np.isclose(ours, theirs, rtol=1e-12, atol=0.0)
    difference = np.where(same, 0.0, ours - theirs)
    if not difference.any():
        return 1.0, len(ours)
    return float(wilcoxon(difference, alternative="less").pvalue), len(ours)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: p values of several tests, to compare with one level.

    The k-th smallest of m is multiplied by m - k + 1, and none may be smaller than
    the one before it.
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    factors = np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return adjusted.tolist()


def paired_tests(
    runs: Sequence[Run], reference: str, at: int | None = None
) -> tuple[list[str], list[list[str]]]:
    """The reference against every other method; header and rows for a table."""
    others = [m for m in _methods(runs) if m != reference]
    tests = [paired_test(runs, reference, other, at) for other in others]
    corrected = holm([p for p, _ in tests])
    header = [f"{reference} better than", "pairs", "p (one-sided Wilcoxon)", "p (Holm)"]
    rows = [
        [other, str(pairs), f"{p:.2g}", f"{q:.2g}"]
        for other, (p, pairs), q in zip(others, tests, corrected, strict=True)
    ]
    return header, rows


# Runs paired by problem and seed, as all methods have the same starts there. Tests are
# about new problems, not new seeds: seeds are averaged, a problem is one pair.


@dataclasses.dataclass(frozen=True)
class Paired:
    """Best values so far where all the methods have a run.

    Attributes:
        methods: The ``M`` names.
        problems: ``R``, the problem of each pair.
        traces: ``R x M x budget``, to be minimised.
        optima: ``R``.
    """

    methods: list[str]
    problems: list[str]
    traces: np.ndarray
    optima: np.ndarray

    def by_problem(self, values: np.ndarray) -> np.ndarray:
        """Means over the seeds of each problem: ``R x ...`` -> ``P x ...``."""
        problems = np.array(self.problems)
        return np.stack(
            [values[problems == name].mean(0) for name in dict.fromkeys(self.problems)]
        )


def pair(runs: Sequence[Run], methods: Sequence[str], budget: int) -> Paired:
    """The runs that are complete for all methods.

    Raises:
        ValueError: There are none.
    """
    found: dict[tuple[str, int], dict[str, Run]] = {}
    for run in runs:
        if run.method in methods and len(run.values) >= budget:
            found.setdefault((run.problem, run.seed), {})[run.method] = run
    whole = {k: v for k, v in sorted(found.items()) if len(v) == len(methods)}
    if not whole:
        raise ValueError(
            f"runs: expected some of {list(methods)} with {budget} values, got none."
        )
    traces = [[by[m].trace()[:budget] for m in methods] for by in whole.values()]
    optima = [next(iter(by.values())).optimum for by in whole.values()]
    return Paired(
        methods=list(methods),
        problems=[problem for problem, _ in whole],
        traces=np.array(traces),
        optima=np.array([np.nan if v is None else v for v in optima], dtype=float),
    )


def evaluations_to(gaps: np.ndarray, gap: float) -> np.ndarray:
    """How many evaluations until a gap: ``... x budget`` -> ``...``.

    If the gap was not reached, one more than the budget, a lower bound.
    """
    reached = gaps <= gap
    return np.where(reached.any(-1), reached.argmax(-1) + 1, gaps.shape[-1] + 1)


def ranks_of(traces: np.ndarray) -> np.ndarray:
    """Ranks in each run at each budget, ties shared: ``R x M x budget``."""
    # rounding must not decide which of two equal accuracies is better
    return rankdata(np.round(traces, 12), axis=1)


def one_sided(ours: np.ndarray, theirs: np.ndarray) -> float:
    """P of a paired Wilcoxon signed-rank test that ``ours`` is smaller; 1 if equal."""
    difference = np.round(ours - theirs, 12)
    if not (difference != 0).any():
        return 1.0
    return float(wilcoxon(difference, alternative="less").pvalue)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table with padded columns."""
    table = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[j]) for row in table) for j in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))
        for row in table
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths))
    return "\n".join(line + (" |" if "--" not in line else "|") for line in lines)


def report(
    runs: Sequence[Run],
    at: Sequence[int | None] = (None,),
    reference: str | None = None,
    above: float = 1e-4,
) -> str:
    """Everything as markdown."""
    parts = []
    for n in at:
        parts.append(f"## After {n} evaluations" if n else "## At the end")
        parts.append(markdown_table(*gap_table(runs, n, above)))
        ranks = mean_ranks(runs, n)
        if len(ranks) > 1:
            rows = [[method, f"{rank:.2f}"] for method, rank in ranks.items()]
            parts.append(markdown_table(["method", "mean rank"], rows))
        if reference in _methods(runs) and len(_methods(runs)) > 1:
            parts.append(markdown_table(*paired_tests(runs, str(reference), n)))
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "out", type=Path, help="a folder of the harness, or a packed file"
    )
    parser.add_argument("--at", type=int, nargs="+", help="evaluations (default: all)")
    parser.add_argument("--above", type=float, default=1e-4, help="gap of failed runs")
    parser.add_argument("--reference", help="method to test against the others")
    options = parser.parse_args(arguments)
    runs = load(options.out)
    if not runs:
        parser.error(f"expected runs in {options.out}; there are none")
    print(report(runs, options.at or (None,), options.reference, options.above))


if __name__ == "__main__":
    main()
