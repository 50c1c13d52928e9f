"""Define-by-run studies in Optuna: `StructuredSampler` against Optuna's samplers.

    python -m benchmarks.reach.optuna_studies --hub ../optunahub-registry --out results

Two problems, 60 trials, each sampler as it comes, with its own first trials:

- ``jenatton``: the 8-leaf tree of `JenattonTree`, optima off the centre;
- ``learners``: `ScikitLearnCASH`, nine learners on 1,000 rows of LIBSVM's "phishing"
  (``--data``), a data set that no default was chosen by; the seed decides rows and
  folds. Development was on "wine", and on seeds below 100.

Peers are `TPESampler` (multivariate, group), `GPSampler`, and of OptunaHub the
hierarchical and the union TPE; ``--hub`` is a clone of the registry
(https://github.com/optuna/optunahub-registry). ``hierarchical_told`` is told which
parameter follows which, where the others learn it; the two rows need Optuna 4.8, as
that package calls what is private to it. ``gp_flat`` always asks for the parameters of
all branches, so that `GPSampler` sees every one of them; it takes a minute of CPU time
a run.

A run that was interrupted is made again from its start. Times are of the sampler, on
one thread (``OMP_NUM_THREADS=1``), in seconds of CPU time.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import torch
from tqdm import tqdm

from benchmarks.data import DATA, read
from benchmarks.harness import RunKey, read_records
from benchmarks.summary import load, report
from botorch_structured._learners import LEARNERS
from botorch_structured.test_functions import JenattonTree, ScikitLearnCASH

_LEAVES = 8
_ROWS = 1_000


class Problem(NamedTuple):
    """A study as its user writes it, and what samplers may be told of it."""

    ask: Callable[[optuna.Trial], dict[str, Any]]
    ask_all: Callable[[optuna.Trial], dict[str, Any]]  # parameters of all branches
    following: Callable[[dict[str, Any]], Iterable[str]]  # names asked for next
    evaluate: Callable[[dict[str, Any]], float]
    optimum: float | None


def _make_jenatton(seed: int, data: Path) -> Problem:
    problem = JenattonTree(num_leaves=_LEAVES, off_centre=True)

    def suggest(trial: optuna.Trial, node: int) -> Any:
        if node < _LEAVES:
            return trial.suggest_categorical(f"x{node}", [0, 1])
        return trial.suggest_float(f"x{node}", -1.0, 1.0)

    def ask(trial: optuna.Trial) -> dict[str, Any]:
        config, node = {}, 1
        while node < 2 * _LEAVES:
            config[f"x{node}"] = value = suggest(trial, node)
            node = 2 * node + value if node < _LEAVES else 2 * _LEAVES
        return config

    def following(config: dict[str, Any]) -> list[str]:
        node = 1
        while (name := f"x{node}") in config and node < _LEAVES:
            node = 2 * node + config[name]
        return [] if name in config else [name]

    def ask_all(trial: optuna.Trial) -> dict[str, Any]:
        values = {f"x{node}": suggest(trial, node) for node in range(1, 2 * _LEAVES)}
        config: dict[str, Any] = {}
        while names := following(config):
            config |= {name: values[name] for name in names}
        return config

    def evaluate(config: dict[str, Any]) -> float:
        return float(problem(problem.space.encode([config])))

    return Problem(ask, ask_all, following, evaluate, problem.optimal_value)


def make_learners(seed: int, dataset: Any) -> Problem:
    """Nine learners on a data set, whose rows and folds the seed decides."""
    problem = ScikitLearnCASH(dataset, seed=seed, max_rows=_ROWS)

    def suggest(trial: optuna.Trial, learner: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, (lower, upper, *log) in LEARNERS[learner].tuned.items():
            full = f"{learner}:{name}"
            if log:
                values[full] = trial.suggest_float(full, lower, upper, log=True)
            else:
                values[full] = trial.suggest_int(full, lower, upper)
        return values

    def ask(trial: optuna.Trial) -> dict[str, Any]:
        learner = trial.suggest_categorical("learner", list(LEARNERS))
        return {"learner": learner} | suggest(trial, learner)

    def ask_all(trial: optuna.Trial) -> dict[str, Any]:
        learner = trial.suggest_categorical("learner", list(LEARNERS))
        values = {name: suggest(trial, name) for name in LEARNERS}
        return {"learner": learner} | values[learner]

    def following(config: dict[str, Any]) -> list[str]:
        if "learner" not in config:
            return ["learner"]
        learner = config["learner"]
        names = [f"{learner}:{name}" for name in LEARNERS[learner].tuned]
        return [name for name in names if name not in config]

    def evaluate(config: dict[str, Any]) -> float:
        return problem.evaluate(config).value

    return Problem(ask, ask_all, following, evaluate, None)


def _make_phishing(seed: int, data: Path) -> Problem:
    return make_learners(seed, _phishing("phishing", data))


_phishing = cache(read)
PROBLEMS: dict[str, Callable[[int, Path], Problem]] = {
    "jenatton": _make_jenatton,
    "learners": _make_phishing,
}


SAMPLERS = ("structured", "tpe", "gp", "gp_flat")
SAMPLERS += ("hierarchical", "hierarchical_told", "union")


def make_sampler(name: str, problem: Problem, seed: int, hub: Path) -> Any:
    """A sampler as it comes.

    Args:
        name: One of ``SAMPLERS``.
        problem: The study.
        seed: Of the sampler.
        hub: A clone of OptunaHub's registry.
    """
    if name == "structured":
        from botorch_structured.integrations.optuna import StructuredSampler

        return StructuredSampler(seed=seed)
    if name == "tpe":
        return optuna.samplers.TPESampler(multivariate=True, group=True, seed=seed)
    if name.startswith("gp"):
        return optuna.samplers.GPSampler(seed=seed)
    import optunahub

    union = name == "union"
    module = optunahub.load_local_module(
        "samplers/" + ("tpe_union_multivariate" if union else "hierarchical_tpe"),
        registry_root=str(hub / "package"),
    )
    if union:
        return module.TPEUnionMultivariateSampler(seed=seed)
    told = {"conditional_fn": problem.following} if name.endswith("told") else {}
    return module.HierarchicalTPESampler(seed=seed, **told)


def run_study(
    key: RunKey, problem: Problem, sampler: Any, budget: int
) -> list[dict[str, Any]]:
    """One study; a record for each trial, as `benchmarks.harness` has them."""
    study = optuna.create_study(sampler=sampler)
    ask = problem.ask_all if key.method == "gp_flat" else problem.ask
    records = []
    for step in range(budget):
        began = time.process_time()
        trial = study.ask()
        config = ask(trial)
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
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=SAMPLERS)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--budget", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("results/optuna"))
    parser.add_argument("--hub", type=Path, default=Path("../optunahub-registry"))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--report", type=Path, help="only the tables, of these runs")
    parser.add_argument("--at", type=int, nargs="+", default=[30, 60])
    options = parser.parse_args(arguments)
    if options.report is None:
        torch.set_num_threads(1)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
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
            sampler = make_sampler(key.method, problem, key.seed, options.hub)
            records = run_study(key, problem, sampler, options.budget)
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(record) + "\n" for record in records]
            path.write_text("".join(lines))
    runs = load(options.report or options.out)
    runs = [run for run in runs if run.method in options.samplers]
    for problem_name in sorted({run.problem for run in runs}):
        here = [run for run in runs if run.problem == problem_name]
        print(f"# {problem_name}\n\n{report(here, options.at, 'structured')}\n")


if __name__ == "__main__":
    main()
