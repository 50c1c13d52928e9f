from pathlib import Path

import pytest
import torch
from toy_benchmark import complete_runs

from benchmarks.harness import read_records
from benchmarks.monotone_methods import METHODS
from benchmarks.quality import wang
from botorch_structured.test_functions import MonotoneMixture1D

_MODELS = [name for name in METHODS if name != "random"]


@pytest.mark.parametrize("name", _MODELS)
def test_methods_suggest_new_points_of_the_space(name: str) -> None:
    problem = MonotoneMixture1D()
    X = problem.starts(0)
    points = []
    for _ in range(2):
        torch.manual_seed(5)
        points.append(METHODS[name](problem, X, -problem(X)[:, None], 5).reshape(1, -1))
    assert torch.equal(*points)  # nothing but the seeds decides
    assert problem.space.feasible(points[0]).all()
    assert (points[0] - X).abs().min() > 1e-3


def test_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--problems", "mixture", "elastic_net", "forest", "--seeds", "2"]
    arguments += ["--methods", "decomposed", "standard", "random", "--budget", "5"]
    arguments += ["--processes", "0", "--out", str(tmp_path / "out")]
    arguments += ["--reference", "monotone"]
    wang.main(arguments)
    shown = capsys.readouterr()
    assert "forest is left out" in shown.err
    assert "## mixture" in shown.out and "## elastic_net" in shown.out
    assert complete_runs(tmp_path / "out", 5) == 12
    for records in map(read_records, (tmp_path / "out").glob("*/*/*.jsonl")):
        assert sum("start" in r for r in records) == 4
    before = sorted((tmp_path / "out").rglob("*"))
    wang.main([*arguments, "--seeds", "3", "--report"])  # of what is there
    assert capsys.readouterr().out.strip() == shown.out.split(str(tmp_path))[0].strip()
    assert sorted((tmp_path / "out").rglob("*")) == before
