"""Worker processes that share a study and are killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, Literal

import optuna
import pytest
from optuna.distributions import distribution_to_json
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import TrialState

from botorch_structured.integrations.optuna import StructuredSampler
from botorch_structured.integrations.optuna.shared_paths import SharedPaths

Kind = Literal["journal", "sqlite"]


def branching(trial: optuna.Trial) -> float:
    """Eight branches, each with a parameter of its own."""
    node = 1
    while node < 8:
        node = 2 * node + trial.suggest_categorical(f"x{node}", [0, 1])
    x = trial.suggest_float(f"x{node}", -1, 1)
    return 0.1 * (node - 7) + (x - 0.3) ** 2


def open_study(folder: Path, kind: Kind, seed: int) -> optuna.Study:
    """The study, as each worker opens it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage: Any
    if kind == "journal":
        path = str(folder / "journal.log")
        # a worker killed while it writes holds the lock
        lock = JournalFileSymlinkLock(path, grace_period=5)
        storage = JournalStorage(JournalFileBackend(path, lock_obj=lock))
    else:
        url = f"sqlite:///{folder / 'study.db'}"
        storage = RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}})
    return optuna.create_study(
        study_name="killed",
        storage=storage,
        sampler=StructuredSampler(seed=seed),
        load_if_exists=True,
    )


def _work(folder: Path, kind: Kind, seed: int, trials: int) -> None:
    study = open_study(folder, kind, seed)
    with open(folder / f"worker-{os.getpid()}.jsonl", "a") as notes:
        while len(study.get_trials(False, states=(TrialState.COMPLETE,))) < trials:
            trial = study.ask()
            value = branching(trial)
            for event in ("evaluated", "told"):
                if event == "told":
                    study.tell(trial, value)
                print(json.dumps([event, trial.number, value]), file=notes, flush=True)


def kill_and_run(folder: Path, kind: Kind, workers: int, trials: int, seed: int) -> int:
    """Kill workers, one a second, until the study has its trials; how many."""
    rng = random.Random(seed)
    context = multiprocessing.get_context("fork")
    open_study(folder, kind, seed)

    def start() -> Any:
        process = context.Process(target=_work, args=(folder, kind, seed, trials))
        process.start()
        return process

    running = [start() for _ in range(workers)]
    killed = 0
    try:
        while any(process.is_alive() for process in running):
            time.sleep(rng.expovariate(1.0))
            place = rng.randrange(workers)
            if running[place].is_alive():
                running[place].kill()
                running[place].join()
                killed += 1
                running[place] = start()
    finally:
        for process in running:
            process.kill()
    return killed


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_nothing_is_lost_nor_double_when_workers_are_killed(
    kind: Kind, tmp_path: Path
) -> None:
    assert kill_and_run(tmp_path, kind, workers=3, trials=20, seed=1) > 0
    trials = open_study(tmp_path, kind, 1).get_trials(deepcopy=False)
    assert sum(t.state == TrialState.COMPLETE for t in trials) >= 20
    notes = [
        json.loads(line)
        for path in tmp_path.glob("worker-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    evaluated = [number for event, number, _ in notes if event == "evaluated"]
    assert len(set(evaluated)) == len(evaluated)
    for event, number, value in notes:
        if event == "told":
            assert trials[number].state == TrialState.COMPLETE
            assert trials[number].value == value
    # those that were killed early have fewer parameters
    points = [tuple(sorted(t.params.items())) for t in trials if len(t.params) == 4]
    assert len(set(points)) == len(points)


@pytest.mark.parametrize("seed", range(4))
def test_a_trial_that_asked_for_nothing_teaches_nothing(seed: int) -> None:
    # it was suggested, before anything was known, what no trial asks for
    study = optuna.create_study(sampler=StructuredSampler(seed=seed))
    study.optimize(branching, 1)
    study.ask()  # killed
    kept: list[str] = []

    def objective(trial: optuna.Trial) -> float:
        if trial.number >= 20:
            kept.append(study.user_attrs[f"structured:{trial.number}"])
        return branching(trial)

    study.optimize(objective, 30)
    assert study.best_value < 0.11
    points = [tuple(sorted(trial.params.items())) for trial in study.trials]
    assert len(set(points)) == len(points) == 32
    # eight paths of four parameters
    assert all(text.count("Distribution(") <= 4 for text in kept) and len(kept) == 12


def test_a_worker_may_learn_of_a_parameter_between_two_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, its = (open_study(tmp_path, "sqlite", 0) for _ in range(2))
    its.sampler = optuna.samplers.RandomSampler(seed=0)
    mine.optimize(branching, 2)
    get_trials = optuna.Study.get_trials
    new = optuna.distributions.CategoricalDistribution(["a", "b"])
    number = its.ask().number
    left = [True]

    def in_between(study: optuna.Study, *args: Any, **kwargs: Any) -> Any:
        found = get_trials(study, *args, **kwargs)
        if study is mine and left:
            left.clear()
            # a trial has a new parameter, which the one before it is suggested
            its.tell(its.ask({"new": new}), 1.0)
            kept: dict[str, Any] = {"trial": number, "whole": False, "final": True}
            kept |= {"values": [["new", distribution_to_json(new), 0]], "knows": {}}
            its.set_user_attr(f"structured:{number}", json.dumps(kept))
        return found

    monkeypatch.setattr(optuna.Study, "get_trials", in_between)
    mine.optimize(branching, 1)
    assert not left
    assert mine.trials[-1].state == TrialState.COMPLETE


@pytest.mark.parametrize("tells", [False, True])
def test_a_worker_may_end_a_trial_before_another_one_looks_again(
    tells: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a trial that ends gives its suggestion up first, and is "running" until then
    mine, its = (open_study(tmp_path, "sqlite", 0) for _ in range(2))
    mine.optimize(branching, 22)
    keep = SharedPaths.keep
    at: list[dict[str, Any]] = []

    def in_between(
        shared: Any, number: int, suggestion: Any, *args: Any, **kwargs: Any
    ) -> None:
        if not at:
            at.append({name: value for name, (_, value) in suggestion.values.items()})
            its.enqueue_trial(at[0])
            trial = its.ask()
            value = branching(trial)
            if tells:
                its.tell(trial, value)
            else:
                (frozen,) = (t for t in its.trials if t.number == trial.number)
                state = TrialState.COMPLETE
                its.sampler.after_trial(its, frozen, state, [value])
        keep(shared, number, suggestion, *args, **kwargs)

    monkeypatch.setattr(SharedPaths, "keep", in_between)
    mine.optimize(branching, 1)
    points = [trial.params for trial in mine.trials if len(trial.params) == 4]
    assert points.count(at[0]) == 1
