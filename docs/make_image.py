"""Make the README's pictures from the results of the benchmarks.

    python docs/make_image.py

``demo.png``: the demonstration's problem, 20 seeds, and where the evaluations of one of
them went (``benchmarks/results/cash.jsonl.xz``). ``ranks.png``: mean ranks of methods
on held-out problems (``benchmarks/results/suite/own_starts.jsonl.xz``). Runs nothing.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.packed import groups
from benchmarks.suite.ranks import plot_ranks
from benchmarks.summary import load
from botorch_structured.demo import MODEL, RANDOM, DemoComparison, picture
from botorch_structured.test_functions import ScikitLearnCASH

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
_METHODS = {"default": MODEL, "random": RANDOM}
# Both pictures give a method the same colour.
_RANKED = {
    "study": MODEL,
    "random": RANDOM,
    "tpe": "TPE (group)",
    "plain_tpe": "TPESampler()",
}


def stored_comparison(seed: int) -> DemoComparison:
    """The comparison of a seed, as the harness has stored it.

    Args:
        seed: The seed of a run.
    """
    problem = ScikitLearnCASH(seed=seed)
    runs = {
        _METHODS[records[0]["method"]]: records
        for records in groups(RESULTS / "cash.jsonl.xz")
        if records[0]["seed"] == seed
    }
    starts = sum(bool(record.get("start")) for record in runs[MODEL])
    comparison = DemoComparison(problem, len(runs[MODEL]) - starts, seed)
    for name, records in runs.items():
        X = problem.space.fill.new_tensor([record["x"] for record in records])
        values = [None if r["value"] == 1.0 else r["value"] for r in records]
        comparison.studies[name].tell_many(problem.space.decode(X), values)
    return comparison


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first-seed", type=int, default=320)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    picture([stored_comparison(s) for s in seeds], options.out / "demo.png")
    runs = load(RESULTS / "suite" / "own_starts.jsonl.xz")
    shown = [replace(r, method=_RANKED[r.method]) for r in runs if r.method in _RANKED]
    plot_ranks(shown, options.out / "ranks.png", order=[*_RANKED.values()])


if __name__ == "__main__":
    main()
