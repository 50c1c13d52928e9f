"""Define-by-run studies in Optuna: `StructuredSampler` against Optuna's samplers.

    python -m benchmarks.reach.optuna_studies --out results/optuna

Two problems, 60 trials, each sampler as it comes, with its own first trials:

- ``jenatton``: the 8-leaf tree of `JenattonTree`, optima off the centre;
- ``learners``: `ScikitLearnCASH`, nine learners on 1,000 rows of LIBSVM's "phishing"
  (``--data``), a data set that no default was chosen by; the seed decides rows and
  folds. Development was on "wine", and on seeds below 100.

Peers are `TPESampler` (multivariate, group) and `GPSampler`. Of ``gp_flat``
(`GPSampler`, asked for the parameters of all branches) and of OptunaHub's
``hierarchical``, ``hierarchical_told`` (told which parameter follows which) and
``union`` TPE the runs are kept, the code is not.

A run that was interrupted is made again from its start. Times are of the sampler, on
one thread (``OMP_NUM_THREADS=1``), in seconds of CPU time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
import torch
from tqdm import tqdm

from benchmarks.data import DATA, read
from benchmarks.harness import RunKey, read_records
from benchmarks.summary import load, report
from botorch_structured._learners import LEARNERS
from botorch_structured.integrations.optuna import StructuredSampler
from botorch_structured.test_functions import JenattonTree, ScikitLearnCASH

_LEAVES = 8
_ROWS = 1_000


class Problem(NamedTuple):
    """A study as its user writes it."""

    ask: Callable[[optuna.Trial], dict[str, Any]]
    evaluate: Callable[[dict[str, Any]], float]
    optimum: float | None


def _make_jenatton(seed: int, data: Path) -> Problem:
    problem = JenattonTree(num_leaves=_LEAVES, off_centre=True)

    def ask(trial: optuna.Trial) -> dict[str, Any]:
        config: dict[str, Any] = {}
        node = 1
        while node < _LEAVES:
            config[f"x{node}"] = bit = trial.suggest_categorical(f"x{node}", [0, 1])
            node = 2 * node + bit
        return config | {f"x{node}": trial.suggest_float(f"x{node}", -1.0, 1.0)}

    def evaluate(config: dict[str, Any]) -> float:
        return float(problem(problem.space.encode([config])))

    return Problem(ask, evaluate, problem.optimal_value)


def make_learners(seed: int, dataset: Any) -> Problem:
    """Nine learners on a data set, whose rows and folds the seed decides."""
    X, y = dataset
    rows = np.random.default_rng(seed).permutation(len(y))[:_ROWS]
    problem = ScikitLearnCASH((X[rows], y[rows]), seed=seed)

    def ask(trial: optuna.Trial) -> dict[str, Any]:
        learner = trial.suggest_categorical("learner", list(LEARNERS))
        config: dict[str, Any] = {"learner": learner}
        for name, (lower, upper, *log) in LEARNERS[learner].tuned.items():
            full = f"{learner}:{name}"
            if log:
                config[full] = trial.suggest_float(full, lower, upper, log=True)
            else:
                config[full] = trial.suggest_int(full, lower, upper)
        return config

    return Problem(ask, lambda config: problem.evaluate(config).value, None)


def _make_phishing(seed: int, data: Path) -> Problem:
    return make_learners(seed, _phishing("phishing", data))


_phishing = cache(read)
PROBLEMS: dict[str, Callable[[int, Path], Problem]] = {
    "jenatton": _make_jenatton,
    "learners": _make_phishing,
}
SAMPLERS: dict[str, Callable[..., Any]] = {
    "structured": StructuredSampler,
    "tpe": lambda seed: optuna.samplers.TPESampler(
        multivariate=True, group=True, seed=seed
    ),
    "gp": optuna.samplers.GPSampler,
}


def run_study(
    key: RunKey, problem: Problem, sampler: Any, budget: int
) -> list[dict[str, Any]]:
    """One study; a record for each trial, as `benchmarks.harness` has them."""
    study = optuna.create_study(sampler=sampler)
    records = []
    for step in range(budget):
        began = time.process_time()
        trial = study.ask()
        config = problem.ask(trial)
        seconds = time.process_time() - began
        value = problem.evaluate(config)
        began = time.process_time()
        study.tell(trial, value)
        seconds += time.process_time() - began
        records.append(
            {
                "problem": key.problem,
                "method": key.method,
                "seed": key.seed,
                "step": step,
                "config": config,
                "value": value,
                "optimum": problem.optimum,
                "suggest_s": round(seconds, 6),
            }
        )
    return records


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--problems", nargs="+", default=PROBLEMS, choices=PROBLEMS)
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=[*SAMPLERS])
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--budget", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("results/optuna"))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--report", type=Path, help="only the tables, of these runs")
    parser.add_argument("--at", type=int, nargs="+", default=[30, 60])
    options = parser.parse_args(arguments)
    if options.report is None:
        torch.set_num_threads(1)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        keys = [
            RunKey(problem, sampler, seed)
            for seed in seeds
            for problem in options.problems
            for sampler in options.samplers
        ]
        for key in tqdm(keys, mininterval=30.0):
            path = key.path(options.out)
            if len(read_records(path)) >= options.budget:
                continue
            problem = PROBLEMS[key.problem](key.seed, options.data)
            sampler = SAMPLERS[key.method](seed=key.seed)
            records = run_study(key, problem, sampler, options.budget)
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(record) + "\n" for record in records]
            path.write_text("".join(lines))
    runs = load(options.report or options.out)
    for problem_name in sorted({run.problem for run in runs}):
        here = [run for run in runs if run.problem == problem_name]
        print(f"# {problem_name}\n\n{report(here, options.at, 'structured')}\n")


if __name__ == "__main__":
    main()
