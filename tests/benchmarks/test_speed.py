from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.speed import expectation_propagation, report


def test_a_figure_of_speed_has_its_machine_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "speed.jsonl"
    for ratio in (81.0, 180.0):
        report({"ratio": ratio}, str(out))
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["ratio"] for line in lines] == [81.0, 180.0]
    assert lines[0]["machine"]["cpu"] and lines[0]["machine"]["cores"] >= 1
    assert lines[0]["machine"]["versions"]["torch"] == torch.__version__
    report({"ratio": 1.0}, None)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == '{"ratio": 1.0}' and len(out.read_text().splitlines()) == 2


def test_the_derivatives_that_expectation_propagation_gets() -> None:
    mean, covariance = expectation_propagation.problem(seed=0, rows=5, sites=4)
    assert mean.shape == (4,) and not covariance.requires_grad
    assert torch.linalg.eigvalsh(covariance).min() > -1e-10
