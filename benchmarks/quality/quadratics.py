"""Warm starts on quadratic tasks: Perrone et al. (2017), section 3.1 and Figure 1.

    python -m benchmarks.quality.quadratics --out results/quadratics

30 quadratic tasks (``QuadraticTasks``), each left out in turn with 10 observations of
each of the other 29 as its history; ten seeds, each with two random starts, which count
as evaluations. Counted are the evaluations until the best value is within 1e-2 of the
task's range of its optimum. A run stops there (it repeats its best point without an
evaluation); a run that does not get there counts as the budget plus one, a lower bound.
Methods: ``benchmarks.ablr_methods``; without a history, ``ablr`` learns its network
anew after every second evaluation. Printed: means, medians, and one-sided Wilcoxon
tests that each warm start needs fewer evaluations than the methods without history, on
means over the seeds of each of the 30 tasks, with Holm's correction. Contexts and
points are those of ``QuadraticTasks(seed=1)``; ``seed=0``, and seeds below 100, were
used during development.

How time grows with the number of evaluations:
``python -m benchmarks.speed.ablr_against_gp``.
"""

from __future__ import annotations

__all__ = ["METHODS", "main", "make", "until", "warm"]

import argparse
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks import ablr_methods
from benchmarks.harness import Method, run
from benchmarks.summary import Run, holm, load, markdown_table
from benchmarks.transfer_report import evaluations_to, one_sided, pair
from botorch_structured.test_functions import QuadraticTask, QuadraticTasks

_GAP = 1e-2
_NUM_TASKS = 30
_OBSERVATIONS = 10
_WITHOUT_HISTORY = ("gp", "ablr", "random")


@lru_cache(maxsize=64)
def make(seed: int, task: int, tasks_seed: int) -> QuadraticTask:
    """The same task and history for every seed; the seed determines the starts."""
    tasks = QuadraticTasks(_NUM_TASKS, seed=tasks_seed)
    return tasks.leave_out(task, _OBSERVATIONS, seed=tasks_seed)


def _gap(problem: QuadraticTask, value: float) -> float:
    return (value - problem.optimal_value) / value_range(problem)


def value_range(problem: QuadraticTask) -> float:
    """The largest value on the box, in its upper corner, less the smallest."""
    return float(problem(problem.bounds[1], noise=False)) - problem.optimal_value


def until(
    problem: QuadraticTask, X: Tensor, Y: Tensor, seed: int, method: Method
) -> Tensor:
    """``method`` until the gap is reached, then the best point again."""
    if _gap(problem, -float(Y.max())) <= _GAP:
        return X[Y.argmax()]
    return method(problem, X, Y, seed)


def warm(problem: QuadraticTask, X: Tensor, Y: Tensor, seed: int, **how: Any) -> Tensor:
    """``ablr_methods.warm``; picklable by this name."""
    return ablr_methods.warm(problem, X, Y, seed, **how)


_PLAIN: dict[str, Method] = {
    "warm": warm,
    "warm_context": partial(warm, context=True),
    "warm_fourier": partial(warm, fourier=True),
    "warm_fourier_context": partial(warm, fourier=True, context=True),
    "gp_stacked": ablr_methods.gp_stacked,
    "ablr": partial(ablr_methods.ablr, refit_every=2),
    "gp": ablr_methods.gp,
    "random": ablr_methods.random,
}
METHODS: dict[str, Method] = {
    name: partial(until, method=method) for name, method in _PLAIN.items()
}
"""All, by name."""


def figure(runs: Sequence[Run], methods: Sequence[str], budget: int) -> dict[str, Any]:
    """The numbers behind Figure 1, left."""
    paired = pair(runs, methods, budget)
    ranges = np.array([range_of(name) for name in paired.problems])
    gaps = (paired.traces - paired.optima[:, None, None]) / ranges[:, None, None]
    needed = evaluations_to(gaps, _GAP)
    means = paired.by_problem(needed)
    tests: dict[str, dict[str, float]] = {}
    for name in [m for m in methods if m not in _WITHOUT_HISTORY]:
        others = [m for m in methods if m in _WITHOUT_HISTORY]
        p = [
            one_sided(means[:, paired.of(name)], means[:, paired.of(other)])
            for other in others
        ]
        tests[name] = dict(zip(others, holm(p), strict=True))
    steps = np.arange(1, budget + 1)
    return {
        "gap": _GAP,
        "budget": budget,
        "tasks": len(means),
        "runs": len(needed),
        "methods": {
            name: {
                "mean": float(needed[:, k].mean()),
                "median": float(np.median(needed[:, k])),
                "not_reached": int((needed[:, k] > budget).sum()),
                "share_reached": [float(np.mean(needed[:, k] <= n)) for n in steps],
                "task_means": means[:, k].round(3).tolist(),
            }
            for k, name in enumerate(methods)
        },
        "fewer_than_p_holm": tests,
    }


def range_of(problem: str) -> float:
    kind, tasks_seed, task = problem.split("-")
    return value_range(make(0, int(task), int(tasks_seed)))


def tables(numbers: dict[str, Any]) -> str:
    """What ``main`` prints."""
    rows = []
    for name, of in numbers["methods"].items():
        tests = numbers["fewer_than_p_holm"].get(name, {})
        against = ", ".join(f"{other} {p:.2g}" for other, p in tests.items())
        row = [name, f"{of['mean']:.2f}", f"{of['median']:g}", str(of["not_reached"])]
        rows.append([*row, against])
    header = ["method", "mean", "median", "not reached", "fewer than, p (Holm)"]
    title = (
        f"Evaluations to a gap of {numbers['gap']:g} of the range: {numbers['runs']} "
        f"runs on {numbers['tasks']} tasks, budget {numbers['budget']}"
    )
    return f"{title}\n\n" + markdown_table(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tasks", type=int, default=_NUM_TASKS, help="how many")
    parser.add_argument("--tasks-seed", type=int, default=1)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--budget", type=int, default=20, help="starts included")
    parser.add_argument("--out", type=Path, default=Path("results/quadratics"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    problems = {
        f"quadratic-{options.tasks_seed}-{task:02d}": partial(
            make, task=task, tasks_seed=options.tasks_seed
        )
        for task in range(options.tasks)
    }
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if not options.report:
        run(
            methods={name: METHODS[name] for name in options.methods},
            problems=problems,
            seeds=seeds,
            budget=options.budget,
            out=options.out,
            processes=options.processes,
        )
    runs = [
        one
        for one in load(options.out)
        if one.problem in problems and one.seed in seeds
    ]
    numbers = figure(runs, options.methods, options.budget)
    print(tables(numbers))


if __name__ == "__main__":
    main()
