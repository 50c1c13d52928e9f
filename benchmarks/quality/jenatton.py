"""The synthetic functions of Jenatton et al. (2017): how close, after 40 evaluations?

    python -m benchmarks.quality.jenatton --out results/jenatton

One random start per path, the same for each method and counted as evaluations. The
table has the mean log10 gap to the optimum and how many runs are above 1e-4. Problems
named ``-off`` and ``-quad`` (not run unless asked for) have their optima off the
centre, and shared variables that enter quadratically.
"""

from __future__ import annotations

__all__ = ["PROBLEMS", "main"]

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import run
from benchmarks.methods import BENCHMARKED
from benchmarks.summary import load, plot_traces, report
from botorch_structured.test_functions import JenattonTree

_BALANCED = ["4", "4-shared", "8", "8-shared"]


def make(seed: int, **arguments: Any) -> JenattonTree:
    """The same function for every seed; the seed decides the starts."""
    return JenattonTree(**arguments)


PROBLEMS = {
    f"{leaves}{name}": partial(make, num_leaves=leaves, **arguments)
    for leaves in (4, 8)
    for name, arguments in {
        "": {},
        "-shared": {"shared": True},
        "-off": {"off_centre": True},
        "-shared-off": {"shared": True, "off_centre": True},
        "-quad-off": {"shared": True, "quadratic_shared": True, "off_centre": True},
        "-chain": {"balanced": False},
        "-chain-shared": {"balanced": False, "shared": True},
    }.items()
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--problems", nargs="+", default=_BALANCED, choices=PROBLEMS)
    parser.add_argument(
        "--methods", nargs="+", default=list(BENCHMARKED), choices=BENCHMARKED
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--budget", type=int, default=40, help="starts included")
    parser.add_argument("--out", type=Path, default=Path("results/jenatton"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--plot", type=Path, help="write the traces to this picture")
    options = parser.parse_args(arguments)
    run(
        methods={name: BENCHMARKED[name] for name in options.methods},
        problems={name: PROBLEMS[name] for name in options.problems},
        seeds=range(options.seeds),
        budget=options.budget,
        out=options.out,
        processes=options.processes,
    )
    runs = [
        one
        for one in load(options.out)
        if one.method in options.methods
        and one.problem in options.problems
        and one.seed < options.seeds
    ]
    print(report(runs, [options.budget], reference="default"))
    if options.plot:
        plot_traces(runs, options.plot)


if __name__ == "__main__":
    main()
