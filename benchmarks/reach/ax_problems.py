"""Hierarchical search through Ax: `structured_generation_strategy` or Ax's default?

    python -m benchmarks.reach.ax_problems --out results/ax

Both work through the same ``ax.api.Client``, 30 trials a run. Ax's default is what the
client chooses for these spaces: the centre, four Sobol points, then Bayesian
optimisation of the flattened space. The table counts the runs that come within 1e-4 of
the optimum.

* ``jenatton``: Ax's own benchmark problem, four paths, optimum 0.1 in a corner.
* ``drawn``: a decision with three strings, numbers on logarithmic scales, integers, an
  ordered choice that only one learner has; each seed draws which learner is best and
  where its optimum is. Of ``learners``, one function on this space, the runs are kept.

A run that was stopped is begun again: Ax's strategy keeps no state to go on from.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.benchmark.problems.synthetic.hss.jenatton import (
    JENATTON_OPTIMAL_VALUE,
    jenatton_test_function,
)

from benchmarks.harness import read_records
from benchmarks.summary import Run, load, markdown_table, paired_test

BUDGET = 30


class Problem(NamedTuple):
    """A space, a function of its configurations to be minimised, and its minimum."""

    parameters: Sequence[Any]
    evaluate: Callable[..., float]
    optimum: float


def _unit(name: str) -> RangeParameterConfig:
    return RangeParameterConfig(name, (0.0, 1.0), "float")


def _binary(name: str, below: Sequence[Sequence[str]]) -> ChoiceParameterConfig:
    return ChoiceParameterConfig(
        name,
        [0, 1],
        "int",
        is_ordered=True,
        dependent_parameters=dict(enumerate(map(list, below))),
    )


JENATTON = Problem(
    [
        _binary("x1", [["x2", "r8"], ["x3", "r9"]]),
        _binary("x2", [["x4"], ["x5"]]),
        _binary("x3", [["x6"], ["x7"]]),
        *(_unit(name) for name in ("x4", "x5", "x6", "x7", "r8", "r9")),
    ],
    jenatton_test_function,
    JENATTON_OPTIMAL_VALUE,
)


_LEARNERS: list[Any] = [
    ChoiceParameterConfig(
        "learner",
        ["linear", "boost", "network"],
        "str",
        is_ordered=False,
        dependent_parameters={
            "linear": ["penalty"],
            "boost": ["rate", "trees", "depth"],
            "network": ["width", "dropout"],
        },
    ),
    RangeParameterConfig("penalty", (1e-4, 1e2), "float", scaling="log"),
    RangeParameterConfig("rate", (1e-3, 1.0), "float", scaling="log"),
    RangeParameterConfig("trees", (10, 1000), "int", scaling="log"),
    ChoiceParameterConfig("depth", [2, 4, 6, 8, 12], "int", is_ordered=True),
    RangeParameterConfig("width", (8, 512), "int"),
    RangeParameterConfig("dropout", (0.0, 0.9), "float"),
    RangeParameterConfig("subsample", (0.2, 1.0), "float"),
]


def drawn(seed: int) -> Problem:
    """A choice of learners, logarithmic and whole numbers, an ordered choice.

    The error is an offset (0.1, 0.15, 0.25 in random order) plus the squared distance
    to the learner's optimum, with every parameter on its own scale from 0 to 1. The
    optimum is uniform in [0.1, 0.9] (of a choice: any value), and a value that the
    parameter can take.
    """
    rng = random.Random(seed)
    choice, *numbers = _LEARNERS
    offsets = dict(zip(choice.values, rng.sample([0.1, 0.15, 0.25], 3), strict=True))
    by_name = {p.name: p for p in numbers}
    best: dict[str, Any] = {}
    for name, p in by_name.items():
        is_choice = isinstance(p, ChoiceParameterConfig)
        drawn = rng.choice(p.values) if is_choice else _value(p, rng.uniform(0.1, 0.9))
        best[name] = drawn

    def evaluate(learner: str, **config: Any) -> float:
        gaps = [
            _place(by_name[k], value) - _place(by_name[k], best[k])
            for k, value in config.items()
        ]
        return float(offsets[learner] + sum(gap**2 for gap in gaps))

    return Problem(_LEARNERS, evaluate, 0.1)


def _place(p: Any, value: Any) -> float:
    """Where a value is between the first and the last one, on the parameter's scale."""
    if isinstance(p, ChoiceParameterConfig):
        return p.values.index(value) / (len(p.values) - 1)
    scale = math.log if p.scaling == "log" else float
    lower, upper = map(scale, p.bounds)
    return (scale(value) - lower) / (upper - lower)


def _value(p: Any, place: float) -> Any:
    """The value at a place, whole where the parameter is."""
    lower, upper = p.bounds
    value = lower + place * (upper - lower)
    if p.scaling == "log":
        value = lower * (upper / lower) ** place
    return round(value) if p.parameter_type == "int" else value


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "jenatton": lambda seed: JENATTON,
    "drawn": drawn,
}


METHODS = ("ax_default", "structured")


def run(problem: str, method: str, seed: int, out: Path, budget: int = BUDGET) -> None:
    """One run, unless its file is complete."""
    path = out / problem / method / f"{seed}.jsonl"
    if len(read_records(path)) >= budget:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    task = PROBLEMS[problem](seed)
    torch.manual_seed(seed)
    client = Client(random_seed=seed)
    client.configure_experiment(task.parameters)
    client.configure_optimization(objective="-error")
    if method == "structured":
        from botorch_structured.integrations.ax import structured_generation_strategy

        client.set_generation_strategy(structured_generation_strategy(seed=seed))
    with open(path, "w") as file:
        for step in range(budget):
            began = time.process_time()
            ((trial, config),) = client.get_next_trials(max_trials=1).items()
            seconds = time.process_time() - began
            value = task.evaluate(**config)
            client.complete_trial(trial, raw_data={"error": value})
            record = {
                "problem": problem,
                "method": method,
                "seed": seed,
                "step": step,
                "config": config,
                "value": value,
                "optimum": task.optimum,
                "suggest_s": round(seconds, 6),
            }
            file.write(json.dumps(record) + "\n")
            file.flush()


def table(runs: Sequence[Run], within: float = 1e-4) -> str:
    """How close the runs of each problem and method come to the optimum.

    Args:
        runs: Those with fewer than `BUDGET` evaluations are left out.
        within: Runs that come at least this close are counted.
    """
    whole = [run for run in runs if len(run.values) >= BUDGET]
    counts = (10, 20, BUDGET)
    header = ["problem", "method", "runs", f"within {within:g}"]
    header += [f"median gap after {n}" for n in counts] + ["CPU s a suggestion"]
    header.append("better than Ax's default: p")
    rows = []
    for problem in sorted({run.problem for run in whole}):
        for method in METHODS:
            here = [run for run in whole if run.problem == problem]
            some = [run for run in here if run.method == method]
            if not some:
                continue
            gaps = {n: [run.best(n) - run.optimum for run in some] for n in counts}
            close = sum(gap <= within for gap in gaps[BUDGET])
            seconds = statistics.median(run.suggest_seconds for run in some)
            p, pairs = paired_test(here, "structured", "ax_default", BUDGET)
            row = [problem, method, str(len(some)), str(close)]
            row += [f"{max(statistics.median(gaps[n]), 0.0):.1g}" for n in counts]
            is_tested = pairs and method == "structured"
            rows.append([*row, f"{seconds:.2g}", f"{p:.2g}" if is_tested else ""])
    return markdown_table(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/ax"))
    parser.add_argument(
        "--report", action="store_true", help="run nothing; --out may be a packed file"
    )
    options = parser.parse_args(arguments)
    if not options.report:
        torch.set_num_threads(1)
        logging.disable(logging.WARNING)  # what Ax says about each trial
        warnings.simplefilter("ignore")
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for problem in options.problems:
                for method in options.methods:
                    run(problem, method, seed, options.out)
                    print(problem, method, seed, flush=True)
    print(table(load(options.out)))


if __name__ == "__main__":
    main()
