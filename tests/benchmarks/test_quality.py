from pathlib import Path

import pytest
import torch
from toy_benchmark import complete_runs

from benchmarks.harness import read_records
from benchmarks.methods import BENCHMARKED, MONOTONE, TREED
from benchmarks.papers import runs
from benchmarks.quality import treed, wang
from botorch_structured.test_functions import JenattonTree, MonotoneMixture1D


@pytest.mark.parametrize("name", BENCHMARKED)
@pytest.mark.parametrize("chain", [False, True])
def test_methods_suggest_new_points_of_the_space(name: str, chain: bool) -> None:
    problem = JenattonTree(4, shared=True, balanced=not chain)
    X = problem.starts(0)
    torch.manual_seed(0)
    x = BENCHMARKED[name](problem, X, -problem(X).unsqueeze(-1), 0).reshape(1, -1)
    assert problem.space.feasible(x).all()
    assert not (problem.tree.impute(x) == problem.tree.impute(X)).all(-1).any()


@pytest.mark.parametrize("name", [name for name in MONOTONE if name != "random"])
def test_monotone_methods_suggest_new_points(name: str) -> None:
    problem = MonotoneMixture1D()
    X = problem.starts(0)
    points = []
    for _ in range(2):
        torch.manual_seed(5)
        x = MONOTONE[name](problem, X, -problem(X)[:, None], 5)
        points.append(x.reshape(1, -1))
    assert torch.equal(*points)  # nothing but the seeds decides
    assert problem.space.feasible(points[0]).all()
    assert (points[0] - X).abs().min() > 1e-3


def test_conditional_kernels(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    arguments = ["kernels", "--problems", "moons", "--seeds", "1", "--budget", "11"]
    runs.main([*arguments, "--processes", "0", "--out", str(tmp_path)])
    assert complete_runs(tmp_path, 11) == 5
    records = map(read_records, (tmp_path / "moons").glob("*/410.jsonl"))
    assert len({str([r["x"] for r in run]) for run in records}) == 5


def test_treed_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "data" / "walker_lake_470.csv"
    table.parent.mkdir()
    rows = [f"{x},{y},{(x - 3) ** 2 + y}" for x in range(8) for y in range(8)]
    table.write_text("\n".join(["X,Y,V", *rows]))
    out = tmp_path / "out"
    arguments = ["--problems", "walker", "lda", "--data", str(table.parent)]
    arguments += ["--seeds", "1", "--processes", "0", "--out", str(out)]
    treed.main([*arguments, "--budget", "7"])
    shown, errors = capsys.readouterr()
    assert "## walker" in shown and "lda is left out" in errors
    assert complete_runs(out, 7, "walker") == len(TREED)
    # what is there is reported, nothing is run
    (out / "walker" / "htbo" / "100.jsonl").unlink()
    treed.main([*arguments, "--budget", "7", "--report"])
    assert not (out / "walker" / "htbo" / "100.jsonl").exists()
    assert "## walker" in capsys.readouterr().out


def test_wang_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--problems", "mixture", "elastic_net", "forest", "--seeds", "1"]
    arguments += ["--methods", "standard", "random", "--budget", "5"]
    arguments += ["--processes", "0", "--out", str(tmp_path)]
    wang.main([*arguments, "--reference", "monotone"])
    shown = capsys.readouterr()
    assert "forest is left out" in shown.err
    assert "## mixture" in shown.out and "## elastic_net" in shown.out
    assert complete_runs(tmp_path, 5) == 4
