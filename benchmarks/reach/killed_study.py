"""A long study of Optuna on a journal file, whose workers are killed and start again.

    python -m benchmarks.reach.killed_study --out FOLDER [--trials 3000] [--kills 20]
    python -m benchmarks.reach.killed_study --out FOLDER --report

Each of ``--processes`` has ``--threads`` workers, and each worker notes what it has
evaluated and told. At moments that are spread over the study one process is killed
(SIGKILL) while it works, every fourth time all are. An evaluation waits for
``--seconds`` on average, and has the value of a formula on nine paths. The command
itself may be stopped: the same one goes on.

The report counts what was lost (told, but not in the study), what is double (a trial
that was evaluated twice, two trials at one point), and has CPU seconds of a suggestion
and memory of a process.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import resource
import statistics
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import optuna
import torch
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import TrialState

from benchmarks.summary import markdown_table
from botorch_structured.integrations.optuna import StructuredSampler

Kind = Literal["journal", "sqlite"]

_LIMITS = (100, 300, 600, 1000, 1500, 2000, 2500, 3000)  # of the report's rows


def network_error(trial: optuna.Trial) -> float:
    """Three optimisers, one to three layers with a width and a dropout rate each."""
    layers = trial.suggest_int("n_layers", 1, 3)
    best = {"Adam": -3.0, "RMSprop": -3.5, "SGD": -1.5}
    optimizer = trial.suggest_categorical("optimizer", [*best])
    total = 0.3 / layers
    for i in range(layers):
        units = trial.suggest_int(f"units_{i}", 4, 128, log=True)
        total += (math.log2(units) - 5 - i) ** 2 / 20
        total += (trial.suggest_float(f"dropout_{i}", 0.2, 0.5) - 0.3) ** 2
    lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
    return total + (math.log10(lr) - best[optimizer]) ** 2 / 5


def open_study(folder: Path, kind: Kind = "journal", seed: int = 0) -> optuna.Study:
    """The study of a folder, as each worker opens it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage: Any
    if kind == "journal":
        path = str(folder / "journal.log")
        # a worker that is killed while it writes holds the lock
        lock = JournalFileSymlinkLock(path, grace_period=10)
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


def num_complete(study: optuna.Study) -> int:
    """How many trials are complete."""
    return len(study.get_trials(False, states=(TrialState.COMPLETE,)))


def _work(folder: Path, options: argparse.Namespace) -> None:
    """A process: workers that ask, evaluate and tell until there are enough trials."""
    torch.set_num_threads(1)
    parent = os.getppid()
    study = open_study(folder)
    path = folder / f"worker-{os.getpid()}-{time.time_ns()}.jsonl"

    def work() -> None:
        with path.open("a") as notes:

            def note(event: str, *what: Any) -> None:
                print(json.dumps([event, *what]), file=notes, flush=True)

            while os.getppid() == parent and num_complete(study) < options.trials:
                begun = time.thread_time()
                trial = study.ask()
                value = network_error(trial)
                seconds = time.thread_time() - begun
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                time.sleep(random.expovariate(1 / options.seconds))
                note("evaluated", trial.number, value, seconds, memory)
                study.tell(trial, value)
                note("told", trial.number, value)

    threads = [threading.Thread(target=work) for _ in range(options.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run(folder: Path, options: argparse.Namespace) -> None:
    """Run the workers until the study has its trials, and kill some on the way."""
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")
    study = open_study(folder)
    kills = folder / "kills.jsonl"

    def start() -> Any:
        process = context.Process(target=_work, args=(folder, options), daemon=True)
        process.start()
        return process

    running = [start() for _ in range(options.processes)]
    while any(process.is_alive() for process in running):
        time.sleep(random.expovariate(1.0))
        lines = kills.read_text().splitlines() if kills.exists() else []
        n = num_complete(study)
        if n < (len(lines) + 1) * options.trials / (options.kills + 1):
            continue
        if len(lines) < options.kills:
            count = len(running) if len(lines) % 4 == 3 else 1
            places = random.sample(range(len(running)), count)
            for place in places:
                running[place].kill()
            for place in places:
                running[place].join()
                running[place] = start()
            with kills.open("a") as file:
                print(json.dumps([n, len(places)]), file=file)


def read_notes(folder: Path) -> list[list[Any]]:
    """What the workers of a folder have noted; a line that was cut off is none."""
    lines = [
        line
        for path in sorted(folder.glob("worker-*.jsonl"))
        for line in path.read_text().splitlines(keepends=True)
    ]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def check(trials: list[Any], notes: list[list[Any]]) -> dict[str, int]:
    """How many evaluations were lost, and how many are double."""
    told = [note for note in notes if note[0] == "told"]
    lost = sum(
        trials[number].state != TrialState.COMPLETE or trials[number].value != value
        for _, number, value in told
    )
    evaluated = Counter(note[1] for note in notes if note[0] == "evaluated")
    points = Counter(tuple(sorted(trials[k].params.items())) for k in evaluated)
    return {
        "complete": sum(t.state == TrialState.COMPLETE for t in trials),
        "told": len(told),
        "lost": lost,
        "evaluated twice": evaluated.total() - len(evaluated),
        "at the point of another": points.total() - len(points),
        "killed while they ran": sum(t.state == TrialState.RUNNING for t in trials),
    }


def report(folder: Path) -> None:
    """Print what became of a study, and what it took."""
    trials = open_study(folder).get_trials(deepcopy=False)
    notes = read_notes(folder)
    kills = [json.loads(line) for line in (folder / "kills.jsonl").open()]
    print(len(kills), "kills of", sum(count for _, count in kills), "processes")
    print(check(trials, notes))
    size = (folder / "journal.log").stat().st_size / 2**20
    print(f"journal: {size:.1f} MB, {size * 1024 / len(trials):.1f} kB a trial")
    best = min(t.value for t in trials if t.state == TrialState.COMPLETE)
    print(f"best value: {best:.5f}")
    rows = []
    for low, high in pairwise((0, *_LIMITS)):
        some = [n for n in notes if n[0] == "evaluated" and low <= n[1] < high]
        seconds = [note[3] for note in some] or [math.nan]
        rows.append(
            [
                f"{low:,} to {high:,}",
                f"{statistics.median(seconds):.2f}",
                f"{statistics.mean(seconds):.2f}",
                f"{max((note[4] for note in some), default=0):.0f}",
            ]
        )
    print(markdown_table(["trials", "CPU s, median", "mean", "MB"], rows))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--threads", type=int, default=4, help="of each process")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0, help="of an evaluation")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    if not options.report:
        run(options.out, options)
    report(options.out)


if __name__ == "__main__":
    main()
