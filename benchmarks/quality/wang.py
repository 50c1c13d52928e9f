"""Known signs of derivatives: Wang and Welch (2018), sections 3.2 and 4.

    python -m benchmarks.quality.wang --out results/wang --data DIR

Four random starts and eight more evaluations on the illustrative mixture, an elastic
net, a random forest (on ``adult-train.csv.gz`` or ``adult.data`` of UCI, in DIR; left
out without this file) and a network on digits. Seeds decide the starts and, of the last
three, the data. The score of an elastic net is its rank among 100 random points; of the
mixture, the distance to the optimum; of the others, the error itself. Printed: the mean
area under the curve of the best score so far, and paired one-sided Wilcoxon tests that
the area of ``--reference`` is the smaller, with Holm's correction over all of them, and
that it is the larger, uncorrected. ``--reference monotone_paper`` is tested against the
other two with the paper's GPs, on the elastic net and the forest; any other against
those with BoTorch's, on the elastic net and the mixture. With ``--report`` nothing is
run.

With the paper's GP, seeds 100 to 124 (``benchmarks/results/wang.jsonl.xz``), signs have
the smaller area in all four tests (p < 0.012 with Holm's correction): on the elastic
net 16.9 against 19.3 and 19.3, on the forest 0.1468 against 0.1474 (standard) and
0.1478. Of the network and the mixture ``benchmarks.papers.wang`` has the tests. On the
elastic net and the forest BoTorch's standard is at least as good.

``--reference monotone`` is what the package documents, ``fit_gpytorch_mll`` of a
``DecomposedGP`` of ``MonotoneGP`` s, chosen on seeds 0 to 19. On seeds 200 to 224
(``--first-seed 200``, ``benchmarks/results/wang_defaults.jsonl.xz``) the area on the
mixture is 0.221 against 0.286 of the parts without signs (p = 0.015 with Holm's
correction) and 0.223 of one GP for the sum; on the elastic net 15.2 against 14.6, which
is 0.07 standard deviations over seeds (p = 0.23 for larger), and 14.4 (p = 0.02 for
larger, uncorrected).
"""

from __future__ import annotations

__all__ = ["PROBLEMS", "main", "make", "scores", "tables"]

import argparse
import sys
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from benchmarks.harness import run
from benchmarks.monotone_methods import METHODS
from benchmarks.problems.trainings import ForestTuning, NetworkTuning, read_adult
from benchmarks.summary import Run, holm, load, markdown_table
from botorch_structured.test_functions import ElasticNetTuning, MonotoneMixture1D

PROBLEMS = ["mixture", "elastic_net", "forest", "network"]
# problems on which signs are tested to have a smaller, or no larger, area
_CLAIMED = {"_paper": ("elastic_net", "forest"), "": ("elastic_net", "mixture")}
_RIVALS = ("standard", "decomposed")
_ADULT = ("adult-train.csv.gz", "adult.data")


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


def _suffix(reference: str) -> str:
    """The suffix of methods with the same kind of GP."""
    return "_paper" if reference.endswith("_paper") else ""


def _rivals(reference: str) -> list[str]:
    """The methods without signs that have the same kind of GP."""
    return [rival + _suffix(reference) for rival in _RIVALS]


def tables(runs: Sequence[Run], budget: int, reference: str = "monotone_paper") -> str:
    """What ``main`` prints."""
    curves: dict[str, dict[str, dict[int, np.ndarray]]] = {}
    for one in runs:
        if len(one.values) >= budget:
            by_method = curves.setdefault(one.problem, {})
            by_method.setdefault(one.method, {})[one.seed] = scores(one, budget)
    tests = [
        (problem, rival)
        for problem in _CLAIMED[_suffix(reference)]
        for rival in _rivals(reference)
        if {reference, rival} <= set(curves.get(problem, {}))
    ]
    raw, larger = (
        [_area_test(curves[p][reference], curves[p][rival], side) for p, rival in tests]
        for side in ("less", "greater")
    )
    columns = zip(raw, holm(raw), larger, strict=True)
    corrected = dict(zip(tests, columns, strict=True))
    parts = []
    for problem in [p for p in PROBLEMS if p in curves]:
        rows = []
        for method in [m for m in METHODS if m in curves[problem]]:
            all_runs = np.stack(list(curves[problem][method].values()))
            row = [method, str(len(all_runs)), f"{all_runs.mean():.5g}"]
            row += [f"{all_runs[:, -1].mean():.4g}"]
            row += [f"{np.median(all_runs[:, -1]):.4g}"]
            p = corrected.get((problem, method))
            rows.append(row + ([""] * 3 if p is None else [f"{x:.2g}" for x in p]))
        header = ["method", "runs", "area", f"mean at {budget}", f"median at {budget}"]
        header += [f"{reference} smaller: p", "p (Holm)", "larger: p"]
        parts.append(f"## {problem}\n\n" + markdown_table(header, rows))
    return "\n\n".join(parts)


def _area_test(
    mine: dict[int, np.ndarray], other: dict[int, np.ndarray], alternative: str
) -> float:
    seeds = sorted(set(mine) & set(other))
    change = np.array([mine[s].mean() - other[s].mean() for s in seeds])
    if not (change != 0).any():
        return 1.0
    return float(wilcoxon(change, alternative=alternative).pvalue)


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
    parser.add_argument("--reference", default="monotone_paper", choices=METHODS)
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    names = []
    for name in options.problems:
        missing = options.data is None or not _find(options.data)
        if name == "forest" and missing and not options.report:
            print(f"{name} is left out: none of {_ADULT} in --data", file=sys.stderr)
        else:
            names.append(name)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if not options.report:
        run(
            methods={name: METHODS[name] for name in options.methods},
            problems={n: partial(make, name=n, data=options.data) for n in names},
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
    if not runs:
        parser.error(f"expected runs in {options.out}; there are none")
    print(tables(runs, options.budget, options.reference))


if __name__ == "__main__":
    main()
