"""The conditional kernel against imputation: Levesque et al. (2017), section V.

    python -m benchmarks.quality.levesque --out results/levesque --data DIR

Nine scikit-learn learners (``ScikitLearnCASH``) on breast cancer, digits (500 rows),
moons and pima; one evaluation per learner, then up to 60 evaluations; ten seeds, each
with folds and starts of its own. All Gaussian processes have the same kernel, priors,
outcome transform, acquisition and local search (``benchmarks.conditional_methods``).
Printed: the mean rank over data sets and seeds by the error found, ties shared, and
paired one-sided Wilcoxon tests. Seeds below 410 were used during development.

DIR holds ``pima-indians-diabetes.csv`` (768 rows, the label last; UCI, or OpenML 37);
without it the other three are run.
"""

from __future__ import annotations

__all__ = ["main", "make"]

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.conditional_methods import METHODS
from benchmarks.harness import run
from benchmarks.summary import load, plot_traces, report
from botorch_structured.test_functions import ScikitLearnCASH

_PIMA = "pima-indians-diabetes.csv"
_ROWS = {"digits": 500}
_DATASETS = ("breast_cancer", "digits", "moons", "pima")


def make(seed: int, dataset: str, data: Path | None = None) -> ScikitLearnCASH:
    """A data set; the seed determines the folds."""
    if dataset != "pima":
        return ScikitLearnCASH(dataset, seed=seed, max_rows=_ROWS.get(dataset))
    if data is None:
        raise ValueError("data: expected the folder that holds pima's file, got None.")
    table = np.loadtxt(data / _PIMA, delimiter=",")
    return ScikitLearnCASH((table[:, :-1], table[:, -1]), seed=seed)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, help=f"folder with {_PIMA}")
    parser.add_argument("--datasets", nargs="+", default=list(_DATASETS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first-seed", type=int, default=410)
    parser.add_argument("--budget", type=int, default=60, help="starts included")
    parser.add_argument("--out", type=Path, default=Path("results/levesque"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--plot", type=Path, help="write the traces to this picture")
    options = parser.parse_args(arguments)
    datasets = list(options.datasets)
    has_pima = options.data is not None and (options.data / _PIMA).exists()
    if "pima" in datasets and not has_pima:
        print(f"pima is left out: no {_PIMA} in --data {options.data}", file=sys.stderr)
        datasets.remove("pima")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    run(
        methods={name: METHODS[name] for name in options.methods},
        problems={
            name: partial(make, dataset=name, data=options.data) for name in datasets
        },
        seeds=seeds,
        budget=options.budget,
        out=options.out,
        processes=options.processes,
    )
    runs = [
        one
        for one in load(options.out)
        if one.problem in options.datasets
        and one.method in options.methods
        and one.seed in seeds
    ]
    budgets = sorted({options.budget // 2, options.budget})
    print(report(runs, budgets, reference=options.methods[0]))
    if options.plot:
        plot_traces(runs, options.plot)


if __name__ == "__main__":
    main()
