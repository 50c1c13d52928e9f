import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from toy_benchmark import Toy, arguments, faulty, walk

from benchmarks.harness import RunKey, read_records, run

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("toy_benchmark.py")
ONE = {"seeds": [0], "budget": 6, "processes": 0, "progress": False}


def points(out: Path) -> dict[str, list[tuple[list[float], float]]]:
    """Evaluations of each run, in order."""
    return {
        str(file.relative_to(out)): [(r["x"], r["value"]) for r in read_records(file)]
        for file in sorted(out.glob("*/*/*.jsonl"))
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """An experiment that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole")
    assert run(**arguments(out), processes=0) == {}
    result = points(out)
    assert len(result) == 8 and all(len(run) == 12 for run in result.values())
    return result


@pytest.mark.parametrize(("processes", "stop"), [(0, "SIGKILL"), (2, "SIGINT")])
def test_killed_and_resumed(
    processes: int, stop: str, whole: dict, tmp_path: Path
) -> None:
    """Stopped in mid-run: what is on disk is kept, and the rest comes out the same."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, str(SCRIPT), str(tmp_path), str(processes), "0.03"]
    child = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while sum(map(len, points(tmp_path).values())) < 17:
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.Signals[stop])
    child.wait(timeout=120)
    before = points(tmp_path)
    if stop == "SIGINT":  # its processes have ended with it
        time.sleep(0.2)
        assert points(tmp_path) == before
    assert 17 <= sum(map(len, before.values())) < 96
    assert run(**arguments(tmp_path), processes=0) == {}
    assert points(tmp_path) == whole
    for name, known in before.items():
        assert whole[name][: len(known)] == known


def test_a_torn_last_line_is_repaired_and_other_damage_reported(
    whole: dict, tmp_path: Path
) -> None:
    run(**{**arguments(tmp_path), "budget": 6}, processes=0)
    file = tmp_path / "toy/walk/0.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    garbage = tmp_path / "toy/guess/1.jsonl"
    with garbage.open("ab") as stream:
        stream.write(b'{"step": 6, "x": [0.\0\0\0')
    run(**arguments(tmp_path), processes=0)
    assert points(tmp_path) == whole
    lines = garbage.read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:3], b"damage\n", *lines[4:]])
    garbage.write_bytes(damaged)
    (failure,) = run(**arguments(tmp_path), processes=0).values()
    assert "got line 4 torn and others after it" in failure
    assert garbage.read_bytes() == damaged


def test_errors_of_a_method_are_recorded_and_the_run_goes_on(tmp_path: Path) -> None:
    assert run({"faulty": faulty}, {"toy": Toy}, out=tmp_path, **ONE) == {}
    records = read_records(tmp_path / "toy/faulty/0.jsonl")
    errors = [record.get("error") for record in records]
    assert errors[:3] == [None] * 3 and errors[5]
    assert "the method failed" in errors[3]
    assert "expected 2 finite numbers" in errors[4]


@pytest.mark.parametrize("processes", [0, 2])
def test_a_broken_problem_ends_its_runs_only(processes: int, tmp_path: Path) -> None:
    problems = {"broken": partial(Toy, broken=True), "toy": Toy}
    if processes:
        problems["dies"] = partial(Toy, dies=True)
    changes = ONE | {"processes": processes, "out": tmp_path}
    failures = run({"walk": walk}, problems, **changes)
    assert "the problem is broken" in failures[RunKey("broken", "walk", 0)]
    assert "code 3" in failures.get(RunKey("dies", "walk", 0), "code 3")
    assert len(failures) == len(problems) - 1
    assert len(points(tmp_path)["toy/walk/0.jsonl"]) == 6
