"""Accuracy and training time of xgboost: the share of the front that is found.

    python -m benchmarks.quality.several_objectives --half report --data DIR --out FILE
    python -m benchmarks.quality.several_objectives --report FILE

The objectives are the accuracy and minus the logarithm of the training time, of
surrogates of YAHPO Gym (`benchmarks.suite.yahpo`). The hypervolume is that above the 10
% quantiles of both objectives among 20,000 random points, as a share of the one of the
front of these points; a search that finds better points has more than 1. The file has
one line for each finished run; a run that was interrupted is made again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from botorch.utils.multi_objective import box_decompositions
from torch import Tensor
from tqdm import tqdm

from benchmarks.suite.yahpo import DATA, DEVELOP_TASKS, REPORT_TASKS, YahpoXGBoost
from benchmarks.summary import markdown_table
from botorch_structured.suggest import suggest

AT = (10, 15, 20, 30, 40)
METHODS = ("random", "suggest")
_POOL = 20_000
_LEAST = 1e-3  # seconds, that the surrogate's training time is raised to


def share_of_front(Y: Tensor, pool: Tensor) -> float:
    """The hypervolume of outcomes, as a share of that of many random points.

    Args:
        Y: ``n x m`` outcomes, larger ones are better.
        pool: ``N x m`` outcomes of random points.
    """
    low = pool.quantile(0.1, dim=0)
    width = pool.amax(0) - low
    measure = box_decompositions.FastNondominatedPartitioning
    dominated, whole = (
        measure(torch.zeros_like(low), (some - low) / width).compute_hypervolume()
        for some in (Y, pool)
    )
    return float(dominated / whole)


def _search(problem: YahpoXGBoost, method: str, evaluate: Callable) -> Tensor:
    """``n x 2`` outcomes of a run."""
    space = problem.space
    X = space.starts(seed=0)
    Y = evaluate(X)
    while len(X) < AT[-1]:
        if method == "random":
            x = space.sample(1, seed=1_000 + len(X))
        else:
            x = suggest(space, X, Y, seed=len(X)).X
        X, Y = torch.cat([X, x]), torch.cat([Y, evaluate(x)])
    return Y


def _run(tasks: Sequence[str], data: Path, out: Path) -> None:
    lines = out.read_text().splitlines() if out.exists() else []
    done = {(row["task"], row["method"]) for row in map(json.loads, lines)}
    runs = [(t, m) for t in tasks for m in METHODS if (t, m) not in done]
    for task, method in tqdm(runs, unit="run"):
        problem = YahpoXGBoost(task, data)

        def evaluate(X: Tensor, problem: YahpoXGBoost = problem) -> Tensor:
            found = problem.evaluate(X)
            seconds = found["timetrain"].clamp_min(_LEAST)
            return torch.stack([found["acc"], -seconds.log()], dim=-1).double()

        pool = evaluate(problem.space.sample(_POOL, seed=9))
        Y = _search(problem, method, evaluate)
        row = {"task": task, "method": method}
        row |= {str(n): share_of_front(Y[:n], pool) for n in AT}
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _report(path: Path) -> str:
    by: dict[str, dict[str, list[float]]] = {m: {} for m in METHODS}
    for row in map(json.loads, path.read_text().splitlines()):
        by[row["method"]][row["task"]] = [row[str(n)] for n in AT]
    tasks = sorted(by["random"].keys() & by["suggest"].keys())
    shares = {m: torch.tensor([runs[t] for t in tasks]) for m, runs in by.items()}
    rows = [
        [f"{m}, median of {len(tasks)} data sets"]
        + [f"{v:.2f}" for v in share.median(0).values.tolist()]
        for m, share in shares.items()
    ]
    ahead = (shares["suggest"] > shares["random"]).sum(0).tolist()
    rows.append(["data sets with `suggest` ahead", *map(str, ahead)])
    return markdown_table(["", *map(str, AT)], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("develop", "report"), default="develop")
    parser.add_argument("--number", type=int, default=10, help="of data sets")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--report", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.report is not None:
        print(_report(options.report))
        return
    if options.out is None:
        parser.error("--out: expected a file")
    tasks = DEVELOP_TASKS if options.half == "develop" else REPORT_TASKS
    torch.set_num_threads(1)
    _run(tasks[: options.number], options.data, options.out)


if __name__ == "__main__":
    main()
