"""Side signals: Perrone et al. (2017), section 3.3 and Figure 2, right.

    python -m benchmarks.network_tables --data DIR --out results/networks
    python -m benchmarks.quality.signals --tables results/networks --out results/signals

Small neural networks are tuned on five data sets for their validation accuracy; their
training accuracy and the CPU time that training took are observed as well.
``ablr_side`` learns its features from all three signals, ``ablr`` from the first only;
on these features both predict the first signal from its own observations. Ten seeds,
each with three random starts, which count as evaluations; the 500 networks of each data
set are in a table (``benchmarks.network_tables``), so all methods see the same values.
Seeds below 100 were used during development.

Printed: the mean distance to the best network of the table (of its interquartile range
of errors, as some networks learn nothing) after some budgets and on average over all;
and paired Wilcoxon tests of that average, with and without side signals, one pair for
each data set and seed; and the mean difference with its 95 % bootstrap interval.
"""

from __future__ import annotations

__all__ = ["METHODS", "main", "make", "spread"]

import argparse
import sys
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from benchmarks import ablr_methods
from benchmarks.harness import Method, run
from benchmarks.network_tables import DATASETS, NetworkTable
from benchmarks.summary import Run, load, markdown_table
from benchmarks.transfer_report import mean_rank_curve, one_sided, pair

METHODS: dict[str, Method] = {
    "ablr_side": partial(ablr_methods.ablr, signals=True, refit_every=5),
    "ablr": partial(ablr_methods.ablr, refit_every=5),
    "gp": ablr_methods.gp,
    "random": ablr_methods.random,
}
"""All, by name."""


@lru_cache(maxsize=16)
def make(seed: int, path: Path) -> NetworkTable:
    """The same table for every seed; the seed determines the starts."""
    return NetworkTable(path)


def figure(
    runs: Sequence[Run], methods: Sequence[str], budget: int, scales: dict[str, float]
) -> dict[str, Any]:
    """The numbers behind Figure 2, right."""
    paired = pair(runs, methods, budget)
    scale = np.array([scales[name] for name in paired.problems])[:, None, None]
    gaps = (paired.traces - paired.optima[:, None, None]) / scale
    ranks = mean_rank_curve(paired.traces)
    numbers: dict[str, Any] = {
        "budget": budget,
        "data_sets": sorted(set(paired.problems)),
        "runs": len(gaps),
        "methods": {
            name: {
                "mean_rank": float(ranks[k].mean()),
                "mean_gap": float(gaps[:, k].mean()),
                "gaps": gaps[:, k].mean(0).round(6).tolist(),
                "mean_gap_of_data_sets": dict(
                    zip(
                        dict.fromkeys(paired.problems),
                        paired.by_problem(gaps.mean(-1))[:, k].round(6).tolist(),
                        strict=True,
                    )
                ),
            }
            for k, name in enumerate(methods)
        },
    }
    if "ablr_side" in methods and "ablr" in methods:
        side, plain = (
            gaps[:, paired.of(name)].mean(-1) for name in ("ablr_side", "ablr")
        )
        interval = bootstrap(
            (side - plain,), np.mean, method="percentile", rng=np.random.default_rng(0)
        ).confidence_interval
        numbers["side_less_plain"] = {
            "mean": float(np.mean(side - plain)),
            "interval_95": [float(interval.low), float(interval.high)],
            "p_side_worse": one_sided(plain, side),
            "p_side_better": one_sided(side, plain),
            "wins_ties_losses": [
                int((side < plain).sum()),
                int((side == plain).sum()),
                int((side > plain).sum()),
            ],
        }
    return numbers


def tables(numbers: dict[str, Any], at: Sequence[int]) -> str:
    """What ``main`` prints."""
    at = [n for n in at if n <= numbers["budget"]]
    rows = [
        [name, f"{of['mean_rank']:.2f}", *(f"{of['gaps'][n - 1]:.3f}" for n in at)]
        + [f"{of['mean_gap']:.3f}"]
        for name, of in numbers["methods"].items()
    ]
    header = ["method", "mean rank", *(f"gap at {n}" for n in at), "gap, all budgets"]
    text = markdown_table(header, rows)
    if "side_less_plain" in numbers:
        of = numbers["side_less_plain"]
        low, high = of["interval_95"]
        text += (
            f"\n\nWith side signals less without: {of['mean']:+.4f} [{low:+.4f}, "
            f"{high:+.4f}] on average over all budgets; p that side signals are worse "
            f"{of['p_side_worse']:.2g}, better {of['p_side_better']:.2g}; wins, ties, "
            f"losses {of['wins_ties_losses']} in {numbers['runs']} pairs"
        )
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tables", type=Path, required=True, help="their folder")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--budget", type=int, default=30, help="starts included")
    parser.add_argument("--out", type=Path, default=Path("results/signals"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    paths = {name: options.tables / f"{name}.jsonl" for name in options.datasets}
    for name, path in list(paths.items()):
        if not path.exists():
            print(f"{name} is left out: no {path}", file=sys.stderr)
            del paths[name]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if not options.report:
        run(
            methods={name: METHODS[name] for name in options.methods},
            problems={name: partial(make, path=path) for name, path in paths.items()},
            seeds=seeds,
            budget=options.budget,
            out=options.out,
            processes=options.processes,
        )
    runs = [
        one for one in load(options.out) if one.problem in paths and one.seed in seeds
    ]
    scales = {name: spread(make(0, path)) for name, path in paths.items()}
    numbers = figure(runs, options.methods, options.budget, scales)
    print(tables(numbers, at=(5, 10, 20, 30)))


def spread(problem: NetworkTable) -> float:
    """Interquartile range of the errors, or their range if that is zero."""
    values = problem.values.numpy()
    low, high = np.quantile(values, [0.25, 0.75])
    return float(high - low or values.max() - values.min() or 1.0)


if __name__ == "__main__":
    main()
