"""One study of Optuna, several worker processes, and SIGKILL at random.

    python -m benchmarks.reach.kill_test --repeats 3

Workers share a study through a journal file, then through SQLite. One of them is killed
at random moments and replaced, until the study has its trials. Each worker notes on
disk what it evaluated and what it told, so that afterwards can be said: nothing that
was told is lost, nothing was told twice, and no two trials were at one point. Trials of
killed workers stay "running": their points count as taken.

Workers are forked, which is not possible on Windows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import TrialState

from botorch_structured.integrations.optuna import StructuredSampler

Kind = Literal["journal", "sqlite"]
_NAME = "killed"
# Who is killed while writing holds the lock of the journal; others take it over then.
_GRACE_SECONDS = 5


@dataclass(frozen=True)
class Report:
    """A study after its workers were killed.

    Args:
        complete: Trials with a value.
        killed: Workers that were killed.
        lost: Trials that a worker was done with, and the study does not know as it
            told them.
        double: Trials that two workers evaluated.
        same_point: Pairs of trials with the same parameters.
    """

    complete: int
    killed: int
    lost: list[int]
    double: list[int]
    same_point: list[tuple[int, int]]

    @property
    def is_good(self) -> bool:
        """Whether nothing is lost, double or at one point."""
        return not (self.lost or self.double or self.same_point)


def objective(trial: optuna.Trial) -> float:
    """Eight branches, each with a parameter of its own."""
    node = 1
    while node < 8:
        node = 2 * node + trial.suggest_categorical(f"x{node}", [0, 1])
    x = trial.suggest_float(f"x{node}", -1, 1)
    return 0.1 * (node - 7) + (x - 0.3) ** 2


def open_study(folder: Path, kind: Kind, seed: int) -> optuna.Study:
    """The study, as each worker opens it."""
    storage: Any
    if kind == "journal":
        path = str(folder / "journal.log")
        lock = JournalFileSymlinkLock(path, grace_period=_GRACE_SECONDS)
        storage = JournalStorage(JournalFileBackend(path, lock_obj=lock))
    else:
        url = f"sqlite:///{folder / 'study.db'}"
        storage = RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}})
    return optuna.create_study(
        study_name=_NAME,
        storage=storage,
        sampler=StructuredSampler(seed=seed),
        load_if_exists=True,
    )


def _work(folder: Path, kind: Kind, seed: int, trials: int) -> None:
    """Evaluate until the study has its trials."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = open_study(folder, kind, seed)
    with open(folder / f"worker-{os.getpid()}.jsonl", "a") as notes:

        def note(event: str, trial: optuna.Trial, value: float) -> None:
            record = {"event": event, "trial": trial.number, "value": value}
            notes.write(json.dumps(record) + "\n")
            notes.flush()
            os.fsync(notes.fileno())

        while len(study.get_trials(False, states=(TrialState.COMPLETE,))) < trials:
            trial = study.ask()
            value = objective(trial)
            note("evaluated", trial, value)
            study.tell(trial, value)
            note("told", trial, value)


def run(
    folder: Path,
    kind: Kind,
    workers: int = 4,
    trials: int = 200,
    seed: int = 0,
    pause: float = 2.0,
) -> Report:
    """Kill workers of a study until it has its trials.

    Args:
        folder: Where the files go.
        kind: The storage.
        workers: How many processes.
        trials: How many complete trials.
        seed: Decides when who is killed; workers have this seed, too.
        pause: Mean seconds from one kill to the next.
    """
    rng = random.Random(seed)
    context = multiprocessing.get_context("fork")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    open_study(folder, kind, seed)

    def start() -> Any:
        process = context.Process(target=_work, args=(folder, kind, seed, trials))
        process.start()
        return process

    running = [start() for _ in range(workers)]
    killed = 0
    try:
        while any(process.is_alive() for process in running):
            time.sleep(rng.expovariate(1 / pause))
            place = rng.randrange(workers)
            process = running[place]
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                killed += 1
                running[place] = start()
    finally:
        for process in running:
            process.kill()
    return _report(folder, kind, seed, killed)


def _report(folder: Path, kind: Kind, seed: int, killed: int) -> Report:
    trials = open_study(folder, kind, seed).get_trials(deepcopy=False)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    evaluated: list[int] = []
    lost = []
    for path in folder.glob("worker-*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record["event"] == "evaluated":
                evaluated.append(record["trial"])
                continue
            trial = trials[record["trial"]]
            if trial.state != TrialState.COMPLETE or trial.value != record["value"]:
                lost.append(trial.number)
    points: dict[Any, int] = {}
    same = []
    for trial in trials:
        if len(trial.params) == 4:  # those that were killed early have fewer
            point = tuple(sorted(trial.params.items()))
            if point in points:
                same.append((points[point], trial.number))
            points[point] = trial.number
    return Report(
        complete=sum(trial.state == TrialState.COMPLETE for trial in trials),
        killed=killed,
        lost=lost,
        double=sorted({n for n in evaluated if evaluated.count(n) > 1}),
        same_point=same,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds")
    options = parser.parse_args(arguments)
    for seed in range(options.repeats):
        for kind in ("journal", "sqlite"):
            with tempfile.TemporaryDirectory() as folder:
                limits = options.workers, options.trials, seed, options.pause
                report = run(Path(folder), kind, *limits)
            print(f"{kind}, seed {seed}: {report}", flush=True)
            if not report.is_good or report.complete < options.trials:
                raise SystemExit(1)


if __name__ == "__main__":
    main()
