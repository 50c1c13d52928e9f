"""Make the README's pictures from the results of the benchmarks.

    python docs/make_image.py

``demo.png``: the demonstration's problem, 20 seeds, and where the evaluations of one of
them went (``benchmarks/results/cash.jsonl.xz``). ``ranks.png``: mean ranks of methods
on held-out problems (``benchmarks/results/suite/own_starts.jsonl.xz``). Runs nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.packed import groups
from benchmarks.suite.ranks import plot_ranks
from benchmarks.summary import load
from botorch_structured.plots import plot_traces, plot_tree
from botorch_structured.plots.style import new_figure
from botorch_structured.plots.traces import best_so_far
from botorch_structured.test_functions import ScikitLearnCASH

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MODEL, RANDOM = "botorch-structured", "random search"
_METHODS = {"default": MODEL, "random": RANDOM}
# Both pictures give a method the same colour.
_RANKED = {
    "study": MODEL,
    "random": RANDOM,
    "tpe": "TPE (group)",
    "plain_tpe": "TPESampler()",
}


def picture(seeds: Sequence[int], path: Path) -> None:
    """Traces of both methods, and where the evaluations of the first seed went.

    Args:
        seeds: The seeds of the runs.
        path: Where to save it.
    """
    runs = {
        (_METHODS[records[0]["method"]], records[0]["seed"]): records
        for records in groups(RESULTS / "cash.jsonl.xz")
        if records[0]["method"] in _METHODS
    }
    figure = new_figure(12.5, 4.5)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.2])
    traces = {
        method: np.array([[r["value"] for r in runs[method, s]] for s in seeds])
        for method in (MODEL, RANDOM)
    }
    first = runs[MODEL, seeds[0]]
    starts = sum(bool(record.get("start")) for record in first)
    plot_traces(traces, left, num_starts=starts, ylabel="cross-validation error")
    # The best error among the first few starts depends on their order only.
    best = np.concatenate([best_so_far(values) for values in traces.values()])
    low, high = best.min(), np.median(best[:, starts - 1])
    room = max(0.15 * (high - low), 0.02 * high, 1e-4)
    left.set_ylim(max(low - room, 0.0), high + 3 * room)
    left.set_title("Best error so far", loc="left", fontsize="medium")
    X = torch.tensor([record["x"] for record in first], dtype=torch.double)
    errors = torch.tensor([record["value"] for record in first])
    plot_tree(
        ScikitLearnCASH().space,
        ax=right,
        X=X,
        Y=errors.masked_fill(errors == 1.0, torch.nan),  # 1 is a failure
    )
    right.set_title(f"Where {MODEL} went", loc="left", fontsize="medium")
    figure.savefig(path, dpi=150)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first-seed", type=int, default=320)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    picture(seeds, options.out / "demo.png")
    runs = load(RESULTS / "suite" / "own_starts.jsonl.xz")
    shown = [replace(r, method=_RANKED[r.method]) for r in runs if r.method in _RANKED]
    plot_ranks(shown, options.out / "ranks.png", order=[*_RANKED.values()])


if __name__ == "__main__":
    main()
