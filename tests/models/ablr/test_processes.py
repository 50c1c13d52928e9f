"""Two processes and one say the same; and where one is gone, the other says so."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ablr_worker import conditioned, evaluate, problems

WORKER = Path(__file__).parents[2] / "ablr_worker.py"
NAMES = list(problems())

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without distributed"
)


class Pair:
    """Two processes of one group."""

    def __init__(self, directory: Path, *then: str | None) -> None:
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        if sys.platform == "linux":  # no name of this machine to look up
            environment["GLOO_SOCKET_IFNAME"] = "lo"
        self.outputs = [directory / f"{rank}.pt" for rank in range(2)]
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, str(WORKER), str(rank), "2"),
                    *(str(directory / "store"), str(self.outputs[rank])),
                    *([] if what is None else ["--then", what]),
                ],
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, what in enumerate(then)
        ]

    def results(self) -> list[dict[str, Any]]:
        return [torch.load(path, weights_only=True) for path in self.outputs]

    def wait_for_outputs(self, seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while not all(path.exists() for path in self.outputs):
            assert time.monotonic() < end, "no results"
            for process in self.processes:
                assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """What each of two processes found."""
    pair = Pair(tmp_path_factory.mktemp("two"), None, None)
    try:
        for process in pair.processes:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
        yield pair.results()
    finally:
        pair.close()


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * float(b.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_and_one_agree(two: list[dict[str, Any]], name: str) -> None:
    problem, _ = problems()[name]
    alone = evaluate(problem)
    for key in ("value", "mean", "covariance"):
        close(two[0][name][key], alone[key])
    assert len(alone["gradient"]) > 4
    for ours, theirs in zip(two[0][name]["gradient"], alone["gradient"], strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_in_each(two: list[dict[str, Any]], name: str) -> None:
    first, second = (result[name] for result in two)
    for key in ("value", "mean", "covariance"):
        assert torch.equal(first[key], second[key])
    for ours, theirs in zip(first["gradient"], second["gradient"], strict=True):
        assert torch.equal(ours, theirs)


def test_new_rows_that_all_were_given_count_once(two: list[dict[str, Any]]) -> None:
    alone = conditioned(0, 1, None)
    for result in two:
        close(result["conditioned"], alone)
    assert torch.equal(two[0]["conditioned"], two[1]["conditioned"])


def test_other_hyperparameters_are_refused(two: list[dict[str, Any]]) -> None:
    for result in two:
        assert "expected the same in all 2 processes" in result["other hyperparameters"]


@pytest.mark.parametrize("then", ["wait", "stop"])
def test_no_hang_where_one_is_gone(tmp_path: Path, then: str) -> None:
    """Killed, the other process ends at once; stuck, after the group's timeout."""
    pair = Pair(tmp_path, "wait", then)
    try:
        pair.wait_for_outputs()
        start = time.monotonic()
        if then == "wait":
            pair.processes[1].send_signal(signal.SIGKILL)
        _, errors = pair.processes[0].communicate(timeout=120)
        assert pair.processes[0].returncode not in (0, None)
        assert "RuntimeError: Process 0 of 2 got no answer" in errors
        # the timeout of the group is 5 seconds; busy machines take their time
        assert time.monotonic() - start < 60
    finally:
        pair.close()


ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "ablr_torchrun.py"
_LIMIT = 240.0  # seconds, on busy cores


def torchrun(*arguments: str) -> tuple[int, str]:
    """Exit status and output of the example on two processes of this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(EXAMPLE), "--rows", "400", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
    return done.returncode, done.stdout


def test_two_processes_fit_what_one_does() -> None:
    status, output = torchrun("--steps", "4")
    assert status == 0, output
    for what in ("log evidence", "prediction"):
        # two processes may write to one line
        values = re.findall(rf"{what} ([-+.\de]+)", output)
        assert len(values) == 3, output
        first, second, alone = (float(v) for v in values)
        assert first == second
        assert first == pytest.approx(alone, rel=1e-9)
