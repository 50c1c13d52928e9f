from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.harness import read_records
from benchmarks.methods import BENCHMARKED, default_clipped
from benchmarks.quality import cash, jenatton, levesque, treed, treed_density
from botorch_structured.test_functions import JenattonTree


@pytest.mark.parametrize("name", BENCHMARKED)
@pytest.mark.parametrize("chain", [False, True])
def test_methods_suggest_new_points_of_the_space(name: str, chain: bool) -> None:
    problem = JenattonTree(4, shared=True, balanced=not chain)
    X = problem.starts(0)
    for step in range(2):
        torch.manual_seed(step)
        x = BENCHMARKED[name](problem, X, -problem(X).unsqueeze(-1), step)
        x = x.reshape(1, -1)
        assert problem.space.feasible(x).all()
        known = problem.tree.impute(X)
        assert not (problem.tree.impute(x) == known).all(-1).any()
        X = torch.cat([X, x])


def test_methods_depend_on_the_seeds_only() -> None:
    problem = JenattonTree(4, shared=True)
    X = problem.starts(0)
    points = []
    for _ in range(2):
        torch.manual_seed(5)
        points.append(BENCHMARKED["default"](problem, X, -problem(X)[:, None], 5))
    assert torch.equal(*points)


def test_random_never_repeats_a_learner_without_hyperparameters() -> None:
    pytest.importorskip("sklearn")
    problem = cash.make(0, "wine")
    X = problem.starts(0)
    Y = torch.zeros(len(X), 1, dtype=torch.float64)
    for seed in range(40):
        x = BENCHMARKED["random"](problem, X, Y, seed)
        (config,) = problem.space.decode(x)
        assert config["learner"] not in ("gnb", "lda")


def test_jenatton_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--problems", "4-shared", "8-chain", "--methods", "default", "random"]
    arguments += ["--seeds", "1", "--budget", "9", "--processes", "0"]
    jenatton.main([*arguments, "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "mean log10 gap" in shown and "runs above 0.0001" in shown
    for problem in ("4-shared", "8-chain"):
        for method in ("default", "random"):
            records = read_records(tmp_path / problem / method / "0.jsonl")
            assert len(records) == 9 and not any("error" in r for r in records)
            assert sum("start" in r for r in records) == int(problem[0])


def test_cash_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    arguments = ["--datasets", "wine", "--seeds", "2", "--budget", "10"]
    arguments += ["--methods", "default", "random"]
    cash.main([*arguments, "--processes", "0", "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "default better than" in shown and "one-sided Wilcoxon" in shown
    records = read_records(tmp_path / "wine" / "default" / "201.jsonl")
    assert len(records) == 10 and not any("error" in r for r in records)


def test_a_failed_evaluation_does_not_stop_the_default() -> None:
    problem = JenattonTree(4)
    X = problem.starts(0)
    Y = -problem(X).unsqueeze(-1)
    Y[2] = -torch.inf
    x = default_clipped(problem, X, Y, 0)
    assert problem.space.feasible(x.reshape(1, -1)).all()


def test_levesque_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All methods, and what a run remembers does not depend on being interrupted."""
    pytest.importorskip("sklearn")
    arguments = ["--datasets", "wine", "pima", "--seeds", "1", "--first-seed", "0"]
    arguments += ["--processes", "0", "--out", str(tmp_path / "a"), "--budget"]
    levesque.main([*arguments, "11"])
    shown, errors = capsys.readouterr()
    assert "mean rank" in shown and "pima is left out" in errors
    runs = {}
    for method in levesque.METHODS:
        records = read_records(tmp_path / "a" / "wine" / method / "0.jsonl")
        assert len(records) == 11 and not any("error" in r for r in records)
        runs[method] = [r["x"] for r in records]
    assert len({str(run) for run in runs.values()}) == len(runs)
    arguments[arguments.index(str(tmp_path / "a"))] = str(tmp_path / "b")
    for budget in ("10", "11"):
        levesque.main(
            [*arguments, budget, "--methods", "conditional_sampled", "random"]
        )
    path = tmp_path / "b" / "wine" / "conditional_sampled" / "0.jsonl"
    assert [r["x"] for r in read_records(path)] == runs["conditional_sampled"]


def test_treed_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "data" / "walker_lake_470.csv"
    table.parent.mkdir()
    rows = [f"{x},{y},{(x - 3) ** 2 + y}" for x in range(8) for y in range(8)]
    table.write_text("\n".join(["X,Y,V", *rows]))
    arguments = ["--problems", "rkhs", "walker", "lda", "--seeds", "1"]
    arguments += ["--data", str(table.parent), "--budget", "8", "--processes", "0"]
    treed.main([*arguments, "--out", str(tmp_path / "out")])
    shown, errors = capsys.readouterr()
    assert "## rkhs" in shown and "## walker" in shown and "lda is left out" in errors
    for problem in ("rkhs", "walker"):
        for method in treed.METHODS:
            path = tmp_path / "out" / problem / method / "100.jsonl"
            records = read_records(path)
            assert len(records) == 8 and not any("error" in r for r in records)


def test_treed_density_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--draws", "1", "--methods", "default"]
    treed_density.main([*arguments, "--out", str(tmp_path / "out.jsonl")])
    shown = capsys.readouterr().out
    assert shown.count('"stored_meets": true') == 2
