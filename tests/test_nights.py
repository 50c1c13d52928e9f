"""A study whose objective fails in every way, in processes that are killed.

Each evaluation is noted on disk before it fails or returns; `good` ones are what the
study has to keep.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from botorch_structured import Study

# Eight failures at 10 % each.
MODES = "exception nan inf none text hang kill interrupt good good".split()
SPACE = {"kind": ["a", "b"], "x": (0.0, 1.0)}
if sys.platform != "win32":
    FRESH = multiprocessing.get_context("forkserver")
    FRESH.set_forkserver_preload(["botorch_structured.study"])  # once for all


def lines_of(notes: Path) -> list[list[Any]]:
    """A line for each evaluation."""
    text = notes.read_text() if notes.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("]")]


def evaluate(config: dict[str, Any], notes: Path) -> Any:
    """An objective that fails."""
    n = len(lines_of(notes))
    mode = random.Random(n).choice(MODES) if n > 2 else "good"
    value = (config["x"] - 0.3) ** 2 + (config["kind"] == "b")
    with notes.open("a") as file:
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


def work(folder: Path, n: int) -> None:
    """One process of a night; it leaves what it found."""
    torch.set_num_threads(1)
    # a shell has those that it starts in the background ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    while True:
        try:
            study = _Quick(SPACE, log=folder / "log.jsonl", seed=0)
            study.optimize(
                lambda config: evaluate(config, folder / "notes"),
                n - len(study.trials),
                catch=Exception,
                progress=False,
            )
            break
        except KeyboardInterrupt:  # run again, in this process
            pass
    assert len(study.trials) == n and not study.pending
    found = [(t.config, t.value) for t in study.trials if t.values]
    (folder / "found").write_text(json.dumps(found))


def run(folder: Path, n: int) -> int:
    """A night: processes until one comes to its end; how many there were."""
    seen, count = 0, 0
    while True:
        process, count = FRESH.Process(target=work, args=(folder, n)), count + 1
        process.start()
        while process.is_alive():
            process.join(0.02)
            lines = lines_of(folder / "notes")
            if lines[seen:] and lines[-1][0] == "hang":
                process.kill()
                process.join()
                seen = len(lines)
        if process.exitcode == 0:
            return count
        if process.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"exit code {process.exitcode}")


@pytest.mark.skipif(sys.platform == "win32", reason="needs forkserver")
def test_a_night_of_failures(tmp_path: Path) -> None:
    """200 trials; all good ones are kept, in order, and none twice."""
    processes = run(tmp_path, 200)
    lines = lines_of(tmp_path / "notes")
    good = [[config, value] for mode, config, value in lines if mode == "good"]
    assert json.loads((tmp_path / "found").read_text()) == good
    met = Counter(mode for mode, *_ in lines)
    assert met.keys() == set(MODES) and processes > 20
    told = len(lines) - met["hang"] - met["kill"]
    assert told - met["interrupt"] <= 200 <= told
