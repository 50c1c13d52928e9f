"""The command line of ``benchmarks.suite``."""

import json
from pathlib import Path

import pytest
import torch
from toy_benchmark import complete_runs

from benchmarks.packed import pack
from benchmarks.suite.__main__ import main, problems


def test_two_methods_from_run_to_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line = (
        "run --kinds jenatton synthetic --budget 9 --processes 0 --seeds 1 "
        "--problems jenatton-4-off synthetic-4 synthetic-18 --methods random default "
        f"--first-seed 3 --out {tmp_path / 'out'}"
    )
    assert main(command_line.split()) == 0
    files = sorted((tmp_path / "out").glob("*/*/*.jsonl"))
    assert len(files) == 6 and {file.stem for file in files} == {"3"}
    noisy = tmp_path / "out/synthetic-18/default/3.jsonl"
    problem = problems("develop", ["synthetic"])["synthetic-18"](3)
    for record in map(json.loads, noisy.read_text().splitlines()):
        x = torch.tensor(record["x"], dtype=torch.double)
        assert record["truth"] == pytest.approx(problem.truth(x)) != record["value"]
        assert record["middle"] == problem.middle_value > record["optimum"]
    assert complete_runs(tmp_path / "out", 9) == 6
    pack(tmp_path / "out", tmp_path / "packed.jsonl.xz")
    capsys.readouterr()
    shown = []
    for source in ("out", "packed.jsonl.xz"):
        options = "--reference default --at 8 9".split()
        assert main(["report", str(tmp_path / source), *options]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and "## All problems: 3 problems" in shown[0]
    assert "default against" in shown[0] and "## synthetic: 2 problems" in shown[0]
