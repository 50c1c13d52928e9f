"""Mean ranks, scaled regrets and paired tests over many problems.

    python -m benchmarks.suite report results/suite --reference default --plot ranks.png

The *scaled regret* of a run after ``n`` evaluations is that of the point with the best
observed value so far,

    (truth of the point - optimum) / (middle - optimum),

0 at the best value known and 1 at the median of random points. It is averaged over the
seeds of a problem first: problems are the units of ranks, regrets and tests.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import rankdata, wilcoxon

from benchmarks.suite.problem import kind_of
from benchmarks.summary import Run, holm, markdown_table

BUDGETS = (10, 15, 20, 30, 40, 60)

# Problem -> method -> seed -> the scaled regret after each evaluation.
Traces = Mapping[str, Mapping[str, Mapping[int, np.ndarray]]]

_DIGITS = 9  # regrets that are equal to so many decimal places are equal
_LEVEL = 0.05
_TAIL = 0.9


def scaled_regrets(runs: Iterable[Run]) -> Traces:
    """The scaled regret of all runs of problems with an optimum and a middle value.

    Runs of one problem and seed share the least optimum that one of them was told: a
    table of optima may have been improved between them.
    """
    groups: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        if run.optimum is not None and run.middle is not None:
            groups[run.problem, run.seed].append(run)
    traces: dict[str, dict[str, dict[int, np.ndarray]]] = {}
    for (problem, seed), group in sorted(groups.items()):
        optimum = min(run.optimum for run in group if run.optimum is not None)
        for run in group:
            best, chosen = np.inf, np.zeros(len(run.values), dtype=int)
            for k, value in enumerate(run.values):
                chosen[k] = k if value < best else chosen[k - 1]
                best = min(best, value)
            truths = run.values if run.truths is None else run.truths
            assert run.middle is not None
            room = max(run.middle - optimum, 1e-300)
            regret = (truths[chosen] - optimum) / room
            traces.setdefault(problem, {}).setdefault(run.method, {})[seed] = regret
    return traces


def mean_regrets(
    traces: Traces, methods: Sequence[str], at: int
) -> dict[str, np.ndarray]:
    """The mean regret of each method on each problem that all of them have.

    Args:
        traces: See `scaled_regrets`.
        methods: Which ones, in this order.
        at: The number of evaluations; shorter runs do not count.

    Returns:
        For each problem one number a method, over the seeds that all of them have.
    """
    found = {}
    for problem, by_method in traces.items():
        long = [
            {seed for seed, y in by_method.get(m, {}).items() if len(y) >= at}
            for m in methods
        ]
        seeds = sorted(set.intersection(*long)) if long else []
        if seeds:
            means = [
                np.mean([by_method[m][seed][at - 1] for seed in seeds]) for m in methods
            ]
            found[problem] = np.round(means, _DIGITS)
    return found


def mean_ranks(
    traces: Traces, methods: Sequence[str], at: int
) -> tuple[dict[str, float], int]:
    """The mean rank of each method (1 is best, ties share), and of how many problems.

    NaN where there is no problem that all of them have.
    """
    regrets = mean_regrets(traces, methods, at)
    if not regrets:
        return dict.fromkeys(methods, float("nan")), 0
    ranks = np.mean([rankdata(row) for row in regrets.values()], axis=0)
    return dict(zip(methods, ranks.tolist(), strict=True)), len(regrets)


@dataclass(frozen=True)
class Comparison:
    """One method against another on the problems that both have.

    ``p`` is that of the one-sided Wilcoxon signed-rank test in the direction that the
    data show, times two, as the direction is not fixed beforehand.
    """

    p: float
    better: bool  # the direction
    wins: int
    losses: int
    problems: int


def compare(traces: Traces, method: str, other: str, at: int) -> Comparison:
    """Whether ``method`` has lower or higher regrets than ``other``; see the result.

    Problems on which both are equal do not count. Where all are, ``p`` is 1.
    """
    pairs = np.array(list(mean_regrets(traces, [method, other], at).values()))
    difference = pairs.reshape(-1, 2) @ np.array([1.0, -1.0])
    difference = np.round(difference, _DIGITS)
    unequal = difference[difference != 0]
    wins, losses = int((unequal < 0).sum()), int((unequal > 0).sum())
    if not len(unequal):
        return Comparison(1.0, False, 0, 0, len(difference))
    less = float(wilcoxon(unequal, alternative="less").pvalue)
    greater = float(wilcoxon(unequal, alternative="greater").pvalue)
    p = min(1.0, 2.0 * min(less, greater))
    return Comparison(p, less < greater, wins, losses, len(difference))


def widely_run(traces: Traces) -> list[str]:
    """The methods that have runs on at least half of the problems."""
    counts: dict[str, int] = defaultdict(int)
    for by_method in traces.values():
        for method in by_method:
            counts[method] += 1
    return sorted(m for m, count in counts.items() if 2 * count >= len(traces))


def _methods(traces: Traces) -> list[str]:
    return sorted({method for by_method in traces.values() for method in by_method})


def _rank_table(traces: Traces, methods: Sequence[str], budgets: Sequence[int]) -> str:
    columns = [mean_ranks(traces, methods, at) for at in budgets]
    order = sorted(
        methods, key=lambda m: np.nanmean([ranks[m] for ranks, _ in columns])
    )
    rows = [[m, *(f"{ranks[m]:.2f}" for ranks, _ in columns)] for m in order]
    rows.append(["problems", *(str(count) for _, count in columns)])
    return markdown_table(["mean rank after", *map(str, budgets)], rows)


def _regret_table(
    traces: Traces, methods: Sequence[str], budgets: Sequence[int]
) -> str:
    """Means, and the ninetieth percentiles: the tail that ranks hide."""
    columns = []
    for at in budgets:
        regrets = mean_regrets(traces, methods, at)
        empty = np.full((1, len(methods)), np.nan)
        of_method = np.array(list(regrets.values()) or empty).T
        columns.append((of_method.mean(1), np.quantile(of_method, _TAIL, axis=1)))
    rows = [
        [m, *(f"{mean[k]:.3f} / {tail[k]:.3f}" for mean, tail in columns)]
        for k, m in enumerate(methods)
    ]
    header = "scaled regret after, mean / 90th percentile"
    return markdown_table([header, *map(str, budgets)], rows)


def stays(runs: Iterable[Run], share: float = 0.9) -> dict[str, tuple[int, int, int]]:
    """How many runs stay on one branch, and on one that is not the best.

    A run stays where the first decision has one outcome in ``share`` of its points
    after the starts. The best branches of a problem are those of the least truth that
    any of the runs found.

    Args:
        runs: Those without branches do not count.
        share: Of the points.

    Returns:
        For each method the runs that stay on a branch that is not the best, all that
        stay, and all.
    """
    known = [(r, r.branches) for r in runs if r.branches is not None]
    reached: dict[str, dict[int, float]] = {}  # the least truth on each branch
    for run, branches in known:
        truths = run.values if run.truths is None else run.truths
        least = reached.setdefault(run.problem, {})
        for branch, truth in zip(branches.tolist(), truths.tolist(), strict=True):
            least[branch] = min(least.get(branch, truth), truth)
    counts: dict[str, tuple[int, int, int]] = {}
    for run, branches in known:
        outcomes, often = np.unique(branches[run.starts :], return_counts=True)
        stay = len(often) > 0 and often.max() >= share * often.sum()
        least = reached[run.problem]
        best = min(least.values()) + 10.0**-_DIGITS
        wrong = stay and least[int(outcomes[often.argmax()])] > best
        before = counts.get(run.method, (0, 0, 0))
        counts[run.method] = (before[0] + wrong, before[1] + stay, before[2] + 1)
    return counts


def _stay_table(runs: Sequence[Run]) -> str:
    rows = [
        [m, *(f"{100.0 * k / n:.0f} % ({k} of {n})" for k in (wrong, stay))]
        for m, (wrong, stay, n) in sorted(stays(runs).items())
    ]
    header = "runs with nine tenths of their points after the starts"
    return markdown_table(
        [header, "on a branch that is not best", "on one branch"], rows
    )


def _test_table(traces: Traces, reference: str, budgets: Sequence[int]) -> str:
    """Comparisons corrected over all the other methods and all the budgets."""
    others = [m for m in _methods(traces) if m != reference]
    found = {
        (m, at): compare(traces, reference, m, at) for m in others for at in budgets
    }
    tested = [key for key, c in found.items() if c.problems]
    corrected = dict(zip(tested, holm([found[k].p for k in tested]), strict=True))
    rows = []
    for m in others:
        cells = []
        for at in budgets:
            c = found[m, at]
            if not c.problems:
                cells.append("missing")
                continue
            p = corrected[m, at]
            word = ("better " if c.better else "worse ") if p < _LEVEL else ""
            cells.append(f"{word}{p:.2g} ({c.wins}:{c.losses})")
        rows.append([m, *cells])
    return markdown_table([f"{reference} against", *map(str, budgets)], rows)


def _count_table(runs: Sequence[Run], longest: int) -> str:
    """Runs, those that are missing or too short, and suggestions that failed."""
    wanted = {(run.problem, run.seed) for run in runs}
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.method].append(run)
    rows = []
    for method, group in sorted(groups.items()):
        counts = [len(group), len(wanted) - len(group)]
        counts.append(sum(len(run.values) < longest for run in group))
        counts.append(sum(run.errors for run in group))
        counts.append(sum(run.errors > 0 for run in group))
        seconds = np.median([run.suggest_seconds for run in group])
        rows.append([method, *map(str, counts), f"{seconds:.3f}"])
    header = ["method", "runs", "missing", f"below {longest}", "failed suggestions"]
    return markdown_table([*header, "in runs", "s a suggestion (median)"], rows)


def report(
    runs: Sequence[Run],
    reference: str | None = None,
    budgets: Sequence[int] = BUDGETS,
) -> str:
    """Everything as markdown: all problems together, then each kind.

    Ranks and regrets are over the problems that all methods in the table have. A
    method with runs on less than half of the problems has tables of its own.

    Args:
        runs: See `benchmarks.summary.load`.
        reference: The method that is tested against all others.
        budgets: Numbers of evaluations, the starts included.

    Raises:
        ValueError: ``reference`` has no run, or no problem has a scale.
    """
    traces = scaled_regrets(runs)
    if not traces:
        raise ValueError(
            "runs: expected some with an optimum and a middle value, got none."
        )
    if reference is not None and reference not in _methods(traces):
        raise ValueError(
            f"reference: expected one of {_methods(traces)}, got {reference!r}."
        )
    kinds = sorted({kind_of(problem) for problem in traces})
    parts = ["## Runs", _count_table(runs, max(budgets))]
    unscaled = {run.problem for run in runs} - traces.keys()
    if unscaled:
        parts.append(f"Without optimum or middle value, left out: {sorted(unscaled)}.")
    scopes: list[tuple[str, Traces]] = [("All problems", traces)]
    if len(kinds) > 1:
        scopes += [
            (kind, {p: t for p, t in traces.items() if kind_of(p) == kind})
            for kind in kinds
        ]
    for title, scope in scopes:
        parts.append(f"## {title}: {len(scope)} problems")
        common = widely_run(scope)
        few = [m for m in _methods(scope) if m not in common]
        for group in [common, *([*common, m] for m in few)]:
            parts.append(_rank_table(scope, group, budgets))
            parts.append(_regret_table(scope, group, budgets))
        if reference in _methods(scope) and len(_methods(scope)) > 1:
            parts.append(_test_table(scope, str(reference), budgets))
        some = [run for run in runs if run.problem in scope]
        if any(run.branches is not None for run in some):
            parts.append(_stay_table(some))
    if reference is not None:
        parts.append(
            'Tests: Wilcoxon signed-rank on the mean regrets of problems, "better" and '
            f'"worse" where p < {_LEVEL} after doubling (either direction) and Holm\'s '
            "correction over the methods and budgets of a table; in brackets the "
            "problems won and lost."
        )
    return "\n\n".join(parts)


def plot_ranks(
    runs: Sequence[Run], path: str | Path, least: int = 5, order: Sequence[str] = ()
) -> None:
    """Mean rank against evaluations, of the methods with runs on most problems.

    Args:
        runs: See `benchmarks.summary.load`.
        path: The picture to write.
        least: The number of evaluations at which the curves begin.
        order: Methods that get the first colours, as in other pictures of them.

    Raises:
        ImportError: Without matplotlib.
    """
    from botorch_structured.plots.style import COLOURS, new_figure, tidy

    traces = scaled_regrets(runs)
    widely = widely_run(traces)
    methods = [m for m in dict.fromkeys([*order, *widely]) if m in widely]
    longest = max(len(run.values) for run in runs)
    ranks: dict[str, list[float]] = {m: [] for m in methods}
    steps, count = [], 0
    for at in range(least, longest + 1):
        found, number = mean_ranks(traces, methods, at)
        if not number:
            break
        steps.append(at)
        count = number
        for m in methods:
            ranks[m].append(found[m])
    figure = new_figure(7.0, 4.5)
    ax = figure.add_subplot()
    styles = itertools.product(("-", "--", ":"), COLOURS)
    for m, (line, colour) in zip(methods, styles, strict=False):
        ax.plot(steps, ranks[m], color=colour, linestyle=line, linewidth=2, label=m)
    ax.set_xlabel("evaluations")
    ax.set_ylabel(f"mean rank of {len(methods)} ({count} problems)")
    tidy(ax)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=120)
