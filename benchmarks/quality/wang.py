"""Say which way it bends: Wang and Welch (2017), sections 3.2 and 4.

    python -m benchmarks.quality.wang --out results/wang --data DIR --figures DIR

Four random starts and eight more evaluations on the illustrative mixture, an elastic
net, a random forest (on ``adult-train.csv.gz`` or ``adult.data`` of UCI, in DIR; left
out without it) and a network on digits. Seeds decide the starts and, of the last three,
the data. The score of an elastic net is its rank among 100 random points; of the
mixture, the distance to the optimum; of the others, the error itself. Printed: the mean
area under the curve of the best score so far, and for the elastic net and the forest
the paired one-sided Wilcoxon tests that the area of ``--reference`` is the smaller,
with Holm's correction over all of them. ``--reference monotone_paper`` is tested
against the other two with the paper's GPs, every other against those with BoTorch's.
``--figures`` writes the paper's Figures 2, 4, 5 and 6 as JSON and PNG. Seeds below 100
were used during development.
"""

from __future__ import annotations

__all__ = ["FIGURES", "PROBLEMS", "main", "make", "scores", "tables", "write_figure"]

import argparse
import json
import sys
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from benchmarks.harness import run
from benchmarks.monotone_methods import METHODS
from benchmarks.summary import Run, holm, load, markdown_table
from botorch_structured.test_functions import (
    ElasticNetTuning,
    ForestTuning,
    MonotoneMixture1D,
    NetworkTuning,
    read_adult,
)

FIGURES = {"mixture": 2, "elastic_net": 4, "forest": 5, "network": 6}
PROBLEMS = list(FIGURES)
_CLAIMED = ("elastic_net", "forest")  # where signs have to have the smaller area
_RIVALS = ("standard", "decomposed")
_ADULT = ("adult-train.csv.gz", "adult.data")
_SCORES = {
    "mixture": "f(x)",
    "elastic_net": "rank among 100 random points",
    "forest": "misclassification rate",
    "network": "cross-entropy",
}
_TITLES = ("standard", "decomposition and monotonicity", "decomposition alone")


def make(seed: int, name: str, data: Path | None = None) -> Any:
    """The problem of a seed; it decides the data, too."""
    if name == "mixture":
        return MonotoneMixture1D()
    if name == "elastic_net":
        return _elastic_net(seed)
    if name == "network":
        return _network(seed)
    file = None if data is None else _find(data)
    if file is None:
        raise ValueError(f"data: expected a folder with one of {_ADULT}, got {data}.")
    return _forest(seed, file)


@cache  # the 100 points of its rank are evaluated once
def _elastic_net(seed: int) -> ElasticNetTuning:
    return ElasticNetTuning(seed)


@lru_cache(maxsize=1)  # the starts are trained once for all methods
def _network(seed: int) -> NetworkTuning:
    return NetworkTuning(seed)


@lru_cache(maxsize=1)
def _forest(seed: int, file: Path) -> ForestTuning:
    return ForestTuning(*_adult(file), seed=seed)


_adult = cache(read_adult)


def _find(data: Path) -> Path | None:
    return next((p for name in _ADULT for p in sorted(data.rglob(name))), None)


def scores(one: Run, budget: int) -> np.ndarray:
    """The best so far as the paper measures it, ``budget``; smaller is better."""
    best = one.trace()[:budget]
    if one.problem == "mixture":
        return best - MonotoneMixture1D().optimal_value
    if one.problem == "elastic_net":
        problem = _elastic_net(one.seed)
        return problem.rank(problem.bounds.new_tensor(best)).numpy().astype(float)
    return best


def _rivals(reference: str) -> list[str]:
    """The methods without signs that have the same kind of GP."""
    suffix = "_paper" if reference.endswith("_paper") else ""
    return [rival + suffix for rival in _RIVALS]


def tables(runs: Sequence[Run], budget: int, reference: str = "monotone") -> str:
    """What ``main`` prints."""
    curves: dict[str, dict[str, dict[int, np.ndarray]]] = {}
    for one in runs:
        if len(one.values) >= budget:
            by_method = curves.setdefault(one.problem, {})
            by_method.setdefault(one.method, {})[one.seed] = scores(one, budget)
    tests = [
        (problem, rival)
        for problem in _CLAIMED
        for rival in _rivals(reference)
        if {reference, rival} <= set(curves.get(problem, {}))
    ]
    raw = [_smaller_area(curves[p][reference], curves[p][rival]) for p, rival in tests]
    corrected = dict(zip(tests, zip(raw, holm(raw), strict=True), strict=True))
    parts = []
    for problem in [p for p in PROBLEMS if p in curves]:
        rows = []
        for method in [m for m in METHODS if m in curves[problem]]:
            all_runs = np.stack(list(curves[problem][method].values()))
            row = [method, str(len(all_runs)), f"{all_runs.mean():.4g}"]
            row += [f"{all_runs[:, -1].mean():.4g}"]
            row += [f"{np.median(all_runs[:, -1]):.4g}"]
            p = corrected.get((problem, method))
            rows.append(row + ([""] * 2 if p is None else [f"{x:.2g}" for x in p]))
        header = ["method", "runs", "area", f"mean at {budget}", f"median at {budget}"]
        header += [f"{reference} smaller: p", "p (Holm)"]
        parts.append(f"## {problem}\n\n" + markdown_table(header, rows))
    return "\n\n".join(parts)


def _smaller_area(mine: dict[int, np.ndarray], other: dict[int, np.ndarray]) -> float:
    seeds = sorted(set(mine) & set(other))
    change = np.array([mine[s].mean() - other[s].mean() for s in seeds])
    if not (change != 0).any():
        return 1.0
    return float(wilcoxon(change, alternative="less").pvalue)


def write_figure(
    runs: Sequence[Run],
    problem: str,
    budget: int,
    folder: Path,
    reference: str = "monotone",
) -> list[Path]:
    """One of the paper's figures, ``figure_N.json`` and ``figure_N.png``.

    A panel for each method with every run and their mean, and one with the mean of the
    squared scores (not for the mixture, which is maximised).
    """
    standard, decomposed = _rivals(reference)
    shown = dict(zip((standard, reference, decomposed), _TITLES, strict=True))
    traces = {
        method: np.stack([scores(one, budget) for one in chosen])
        for method in shown
        if (
            chosen := [
                one
                for one in runs
                if (one.problem, one.method) == (problem, method)
                and len(one.values) >= budget
            ]
        )
    }
    if not traces:
        return []
    if problem == "mixture":  # as the authors have it: maximised
        best = -MonotoneMixture1D().optimal_value
        traces = {method: best - trace for method, trace in traces.items()}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"figure_{FIGURES[problem]}"
    content = {
        "problem": problem,
        "score": _SCORES[problem],
        "best_so_far": {m: trace.tolist() for m, trace in traces.items()},
        "mean": {m: trace.mean(0).tolist() for m, trace in traces.items()},
        "mean_square": {m: (t**2).mean(0).tolist() for m, t in traces.items()},
    }
    written = [path.with_suffix(".json"), path.with_suffix(".png")]
    written[0].write_text(json.dumps(content) + "\n")
    _draw({shown[m]: t for m, t in traces.items()}, problem, budget, written[1])
    return written


def _draw(traces: dict[str, np.ndarray], problem: str, budget: int, path: Path) -> None:
    from matplotlib.figure import Figure

    from botorch_structured.plots.style import COLOURS, GREY, tidy

    squares = problem != "mixture"
    figure = Figure(figsize=(3.6 * (len(traces) + squares), 3.2), layout="constrained")
    panels = figure.subplots(1, len(traces) + squares, squeeze=False)[0]
    steps = np.arange(1, budget + 1)
    for k, (title, trace) in enumerate(traces.items()):
        ax, colour = panels[k], COLOURS[k]
        ax.plot(steps, trace.T, color=GREY, linestyle="--", linewidth=0.7, alpha=0.6)
        ax.plot(steps, trace.mean(0), color=colour, linewidth=2.5)
        ax.set_title(title, fontsize="medium")
        ax.sharey(panels[0])
        if squares:
            panels[-1].plot(steps, (trace**2).mean(0), color=colour, label=title)
    panels[0].set_ylabel(f"best {_SCORES[problem]}")
    if squares:
        panels[-1].set_title("mean squares", fontsize="medium")
        panels[-1].legend(frameon=False, fontsize="small")
    for ax in panels:
        ax.set_xlabel("evaluations")
        ax.xaxis.get_major_locator().set_params(integer=True)
        tidy(ax)
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with the Adult data")
    parser.add_argument("--problems", nargs="+", default=PROBLEMS, choices=PROBLEMS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, default=25, help="how many")
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--budget", type=int, default=12, help="starts included")
    parser.add_argument("--out", type=Path, default=Path("results/wang"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--reference", default="monotone", choices=METHODS)
    parser.add_argument("--figures", type=Path, help="write the figures to this folder")
    options = parser.parse_args(arguments)
    names = []
    for name in options.problems:
        if name == "forest" and (options.data is None or not _find(options.data)):
            print(f"{name} is left out: none of {_ADULT} in --data", file=sys.stderr)
        else:
            names.append(name)
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
        if one.problem in names and one.method in options.methods and one.seed in seeds
    ]
    print(tables(runs, options.budget, options.reference))
    for name in names if options.figures else ():
        paths = write_figure(
            runs, name, options.budget, options.figures, options.reference
        )
        print(*paths, sep="\n")


if __name__ == "__main__":
    main()
