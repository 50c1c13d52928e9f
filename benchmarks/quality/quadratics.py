"""Warm starts on quadratic tasks: Perrone et al. (2017), section 3.1 and Figure 1.

    python -m benchmarks.quality.quadratics --out results/quadratics

30 quadratic tasks (``QuadraticTasks``), each left out in turn with 10 observations of
each of the other 29 as its history; ten seeds, each with two random starts, which count
as evaluations. Counted are the evaluations until the best value is within 1e-2 of the
task's range of its optimum. A run stops there (it repeats its best point without an
evaluation); a run that does not get there counts as the budget plus one, a lower bound.
Without a history, ``ablr`` learns its network anew after every second evaluation.
Printed: means, medians, and one-sided Wilcoxon tests that each warm start needs fewer
evaluations than the methods without history, on means over the seeds of each of the 30
tasks, with Holm's correction. Contexts and points are those of
``QuadraticTasks(seed=1)``; ``seed=0``, and seeds below 100, were used during
development.

How time grows with the number of evaluations:
``python -m benchmarks.speed.ablr_against_gp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
from torch import Tensor

from benchmarks import methods
from benchmarks.command import parser_of, runs_of
from benchmarks.harness import Method
from benchmarks.problems.quadratics import QuadraticTask
from benchmarks.summary import (
    Paired,
    evaluations_to,
    holm,
    markdown_table,
    one_sided,
    pair,
)
from botorch_structured.test_functions import QuadraticTasks

_GAP = 1e-2
_NUM_TASKS = 30
_OBSERVATIONS = 10
_TASKS_SEED = 1
_WITHOUT_HISTORY = ("gp", "ablr", "random")


@lru_cache(maxsize=64)
def make(seed: int, task: int) -> QuadraticTask:
    """The same task and history for every seed; the seed determines the starts."""
    tasks = QuadraticTasks(_NUM_TASKS, seed=_TASKS_SEED)
    return QuadraticTask(tasks, task, _OBSERVATIONS, seed=_TASKS_SEED)


def value_range(problem: QuadraticTask) -> float:
    """The largest value on the box, in its upper corner, less the smallest."""
    return float(problem(problem.bounds[1], noise=False)) - problem.optimal_value


def until(
    problem: QuadraticTask, X: Tensor, Y: Tensor, seed: int, method: Method
) -> Tensor:
    """``method`` until the gap is reached, then the best point again."""
    gap = (-float(Y.max()) - problem.optimal_value) / value_range(problem)
    return X[Y.argmax()] if gap <= _GAP else method(problem, X, Y, seed)


_PLAIN: dict[str, Method] = {
    "warm": methods.warm,
    "warm_context": partial(methods.warm, context=True),
    "warm_fourier": partial(methods.warm, fourier=True),
    "warm_fourier_context": partial(methods.warm, fourier=True, context=True),
    "gp_stacked": methods.gp_stacked,
    "ablr": partial(methods.ablr, refit_every=2),
    "gp": methods.gp,
    "random": methods.random,
}
METHODS: dict[str, Method] = {
    name: partial(until, method=method) for name, method in _PLAIN.items()
}
"""All, by name."""


def gaps_of(paired: Paired) -> np.ndarray:
    """Distances to the optimum, of the range of a task: ``R x M x budget``."""
    tasks = [int(name.split("-")[2]) for name in paired.problems]
    ranges = np.array([value_range(make(0, task)) for task in tasks])
    return (paired.traces - paired.optima[:, None, None]) / ranges[:, None, None]


def needed(paired: Paired) -> np.ndarray:
    """Evaluations to the gap, ``R x M``."""
    return evaluations_to(gaps_of(paired), _GAP)


def tables(paired: Paired) -> str:
    """The tables that ``main`` prints."""
    budget = paired.traces.shape[-1]
    counts = needed(paired)
    means = dict(zip(paired.methods, paired.by_problem(counts).T, strict=True))
    others = [name for name in paired.methods if name in _WITHOUT_HISTORY]
    rows = []
    for k, name in enumerate(paired.methods):
        against = ""
        if name not in _WITHOUT_HISTORY:
            p = holm([one_sided(means[name], means[other]) for other in others])
            tests = zip(others, p, strict=True)
            against = ", ".join(f"{other} {value:.2g}" for other, value in tests)
        count = counts[:, k]
        row = [name, f"{count.mean():.2f}", f"{np.median(count):g}"]
        rows.append([*row, str((count > budget).sum()), against])
    header = ["method", "mean", "median", "not reached", "fewer than, p (Holm)"]
    title = (
        f"Evaluations to a gap of {_GAP:g} of the range: {len(counts)} runs on "
        f"{len(set(paired.problems))} tasks, budget {budget}"
    )
    return f"{title}\n\n" + markdown_table(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = parser_of(
        __doc__, METHODS, "results/quadratics", seeds=10, first_seed=100, budget=20
    )
    parser.add_argument("--tasks", type=int, default=_NUM_TASKS, help="how many")
    options = parser.parse_args(arguments)
    problems = {
        f"quadratic-{_TASKS_SEED}-{task:02d}": partial(make, task=task)
        for task in range(options.tasks)
    }
    runs = runs_of(options, METHODS, problems)
    print(tables(pair(runs, options.methods, options.budget)))


if __name__ == "__main__":
    main()
