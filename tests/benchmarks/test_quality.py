from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.harness import read_records
from benchmarks.methods import BENCHMARKED, default_clipped
from benchmarks.quality import cash, jenatton
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
