"""Searches whose objective fails in every way, in processes that are killed.

Here rather than in a test: the processes import it. Each evaluation is noted on disk
before it fails or returns; `good` ones are what a door has to keep.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from botorch_structured import Study

# Eight failures at 10 % each.
MODES = "exception nan inf none text hang kill interrupt good good".split()
OTHERS = ("integrations.sklearn", "integrations.optuna")
SPACE = {"kind": ["a", "b"], "x": (0.0, 1.0)}
FRESH = multiprocessing.get_context("forkserver")
# Each is imported once for all; one that is not installed is left out.
FRESH.set_forkserver_preload(
    [f"botorch_structured.{name}" for name in ("study", *OTHERS)]
)


class Night:
    """An objective that fails.

    Args:
        notes: A file with a line for each evaluation.
    """

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def lines(self) -> list[list[Any]]:
        text = self.notes.read_text() if self.notes.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("]")]

    def __call__(self, config: dict[str, Any]) -> Any:
        n = len(self.lines())
        mode = random.Random(n).choice(MODES) if n > 2 else "good"
        value = (config["x"] - 0.3) ** 2 + (config["kind"] == "b")
        with self.notes.open("a") as file:
            file.write(json.dumps([mode, config, value]) + "\n")
        if mode == "exception":
            raise ArithmeticError("diverged")
        if mode == "hang":
            time.sleep(600)
        if mode in ("kill", "interrupt"):
            kind = signal.SIGKILL if mode == "kill" else signal.SIGINT
            os.kill(os.getpid(), kind)
            time.sleep(1)  # until it comes
        others = {"nan": math.nan, "inf": math.inf, "none": None, "text": "text"}
        return others.get(mode, value)


class _Quick(Study):
    """Nine suggestions of ten are random: models are not what is tested."""

    def _choose(self, q: int, busy: Any, held: Any) -> list[Any]:
        if len(self._trials) % 10:
            return self._draw(q, busy, held)
        return super()._choose(q, busy, held)


def by_study(folder: Path, n: int, evaluate: Night) -> list[Any]:
    study = _Quick(SPACE, log=folder / "log.jsonl", seed=0)
    missing = n - len(study.trials)
    study.optimize(evaluate, missing, catch=Exception, progress=False)
    assert len(study.trials) == n and not study.pending
    return [(t.config, t.value) for t in study.trials if t.values]


def by_optuna(folder: Path, n: int, evaluate: Night) -> list[Any]:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    from botorch_structured.integrations.optuna import StructuredSampler, sampler

    def objective(trial: optuna.Trial) -> Any:
        kind = trial.suggest_categorical("kind", ["a", "b"])
        x = trial.suggest_float("x", 0.0, 1.0)
        return evaluate({"kind": kind, "x": x})

    sampler.Study = _Quick  # type: ignore[misc]
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    backend = JournalFileBackend(str(folder / "journal.log"))
    study = optuna.create_study(
        study_name="night",
        storage=optuna.storages.JournalStorage(backend),
        sampler=StructuredSampler(SPACE, seed=0),
        load_if_exists=True,
    )
    ended = len([t for t in study.trials if t.state.is_finished()])
    study.optimize(objective, n - ended, catch=Exception)
    done = [t for t in study.trials if t.value is not None and math.isfinite(t.value)]
    return [(t.params, t.value) for t in done]


def by_sklearn(folder: Path, n: int, evaluate: Night) -> list[Any]:
    from sklearn.base import BaseEstimator

    from botorch_structured.integrations import sklearn

    sklearn.Study = _Quick  # type: ignore[misc]

    class Fragile(BaseEstimator):
        def __init__(self, kind: str = "a", x: float = 0.0) -> None:
            self.kind, self.x = kind, x

        def fit(self, X: Any, y: Any) -> Any:
            return self

        def score(self, X: Any, y: Any) -> Any:
            return evaluate({"kind": self.kind, "x": self.x})

    X, y = np.arange(8.0)[:, None], np.arange(8)
    search = sklearn.StructuredSearchCV(
        Fragile(),
        SPACE,
        n,
        cv=[(np.arange(4), np.arange(4, 8))],
        random_state=0,
        refit=False,
        log=folder / "log.jsonl",
    ).fit(X, y)
    scores = search.cv_results_["mean_test_score"].tolist()
    assert len(scores) == len(search.study_.trials) == n
    pairs = zip(search.cv_results_["params"], scores, strict=True)
    return [(config, score) for config, score in pairs if math.isfinite(score)]


DOORS: dict[str, Callable[[Path, int, Night], list[Any]]] = {
    "study": by_study,
    "optuna": by_optuna,
    "sklearn": by_sklearn,
}


def work(door: str, folder: Path, n: int) -> None:
    """One process of a night; it leaves what it found."""
    torch.set_num_threads(1)
    # a shell has those that it starts in the background ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    evaluate = Night(folder / "notes")
    while True:
        try:
            found = DOORS[door](folder, n, evaluate)
            break
        except KeyboardInterrupt:  # run again, in this process
            pass
    (folder / "found").write_text(json.dumps(found))


def run(door: str, folder: Path, n: int) -> int:
    """A night: processes until one comes to its end; how many there were."""
    evaluate, seen, count = Night(folder / "notes"), 0, 0
    while True:
        process, count = FRESH.Process(target=work, args=(door, folder, n)), count + 1
        process.start()
        while process.is_alive():
            process.join(0.02)
            lines = evaluate.lines()
            if lines[seen:] and lines[-1][0] == "hang":
                process.kill()
                process.join()
                seen = len(lines)
        if process.exitcode == 0:
            return count
        if process.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"exit code {process.exitcode}")
