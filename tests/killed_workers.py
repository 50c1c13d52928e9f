"""A study of Optuna whose workers note what they do, and are killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import TrialState

from botorch_structured.integrations.optuna import StructuredSampler

Kind = Literal["journal", "sqlite"]


def objective(trial: optuna.Trial) -> float:
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
            value = objective(trial)
            for event in ("evaluated", "told"):
                if event == "told":
                    study.tell(trial, value)
                print(json.dumps([event, trial.number, value]), file=notes, flush=True)


def run(folder: Path, kind: Kind, workers: int, trials: int, seed: int) -> int:
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
