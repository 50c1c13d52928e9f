"""Comparisons of ``benchmarks.quality`` and ``reach`` run, go on and report."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_benchmark import complete_runs

from benchmarks import methods
from benchmarks.packed import pack
from benchmarks.problems.quadratics import QuadraticTask
from benchmarks.quality import (
    earlier,
    quadratics,
    signals,
    treed,
    wang,
    wide,
)
from benchmarks.suite.problem import SuiteProblem
from botorch_structured.test_functions import JenattonTree, QuadraticTasks

METHODS = {
    "ablr": methods.ablr,
    "warm_context": partial(methods.warm, context=True),
    "gp_stacked": methods.gp_stacked,
}
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: Patch) -> None:
    monkeypatch.setattr(methods, "_FIRST_STEPS", 10)


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_functions_of_the_rows(name: str) -> None:
    """Whatever is remembered, and whatever their order was."""
    problem = QuadraticTask(QuadraticTasks(4), 1, 5)
    X = problem.starts(0)
    points = []
    for remembered in (False, False, True):
        if not remembered:
            methods._memory.clear()
        torch.manual_seed(5)
        points.append(METHODS[name](problem, X, -problem(X)[:, None], 5))
    assert torch.equal(points[0], points[1]) and torch.equal(points[0], points[2])
    assert problem.space.feasible(points[0].reshape(1, -1)).all()
    assert not (points[0] == X).all(-1).any()


def test_wide_studies(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr(wide, "PROBLEMS", {"few": lambda: wide.binaries(20)})
    out = str(tmp_path / "runs.jsonl")
    some = ["--methods", "Study", "random", "--evaluations", "30", "--out", out]
    wide.main(["--seeds", "1", *some])
    wide.main(["--seeds", "2", *some])  # goes on
    assert len(Path(out).read_text().splitlines()) == 4
    wide.main(["--report", out])
    assert "| few     | Study  | 2    | " in capsys.readouterr().out


def test_treed_quadratics_and_wang(tmp_path: Path, capsys: Capture) -> None:
    common = ["--seeds", "1", "--processes", "0", "--out", str(tmp_path)]
    known = ["--methods", "warm", "gp", "random", "--tasks", "1", "--budget", "5"]
    quadratics.main([*common, *known])
    (row,) = [r for r in capsys.readouterr().out.splitlines() if "| warm " in r]
    # with 29 tasks known, three values say which quadratic it is
    assert float(row.split("|")[2]) <= 4.5
    assert complete_runs(tmp_path, 5, "quadratic-*") == 3
    rows = [f"{x},{y},{(x - 3) ** 2 + y}" for x in range(8) for y in range(8)]
    (tmp_path / "walker_lake_470.csv").write_text("\n".join(["X,Y,V", *rows]))
    arguments = [*common, "--problems", "walker", "lda", "--budget", "7", "--data"]
    treed.main([*arguments, str(tmp_path)])
    shown, errors = capsys.readouterr()
    assert "## walker" in shown and "lda is left out" in errors
    assert complete_runs(tmp_path, 7, "walker") == len(treed.TREED)
    # what is there is reported, nothing is run
    (tmp_path / "walker" / "htbo" / "100.jsonl").unlink()
    treed.main([*arguments, str(tmp_path), "--report"])
    assert not (tmp_path / "walker" / "htbo" / "100.jsonl").exists()
    assert "## walker" in capsys.readouterr().out
    pytest.importorskip("sklearn")
    few = ["--methods", "standard", "random", "--budget", "5"]
    wang.main([*common[:-1], str(tmp_path / "wang"), *few, "--reference", "monotone"])
    shown = capsys.readouterr().out
    assert "## mixture" in shown and "## elastic_net" in shown
    assert complete_runs(tmp_path / "wang", 5) == 4


def test_signals(tmp_path: Path, capsys: Capture) -> None:
    names = list(signals._COLUMNS)
    rows = [
        dict(zip(names, (1 + k % 4, 5 + k, -2, -3, 3 + k % 8), strict=True))
        | {"validation": 0.5 + 0.03 * k, "training": 0.6, "cpu_s": 0.1 + k}
        for k in range(12)
    ]
    table = tmp_path / "sonar.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    problem = signals.NetworkTable(table)
    assert len(problem.candidates) == 12
    for row in rows:
        X = torch.tensor([[row[name] for name in names]], dtype=torch.double)
        expected = [row["validation"], row["training"], np.log(row["cpu_s"])]
        assert problem.signals(X)[0].tolist() == expected
        assert float(problem(X)) == 1 - row["validation"]
    arguments = ["--tables", str(tmp_path), "--datasets", "sonar", "w8a", "--seeds"]
    arguments += ["2", "--budget", "4", "--processes", "0", "--out"]
    signals.main([*arguments, str(tmp_path / "out")])
    shown, errors = capsys.readouterr()
    assert "w8a is left out" in errors and "in 2 pairs" in shown
    assert complete_runs(tmp_path / "out", 4, "sonar") == 2 * len(signals.METHODS)


class Shifted(SuiteProblem):
    """A tree's function with its optima moved by a little, more for larger numbers."""

    optimal_value = 0.1
    kind = "yahpo"

    def __init__(self, seed: int, name: str) -> None:
        super().__init__(JenattonTree().space)
        self.name = name

    def truths(self, X: Tensor) -> Tensor:
        moved = (X - 0.3 - 0.01 * int(self.name)).square()
        active = self.space.tree.active_mask(X)
        active[:, self.space.tree.decision_columns] = False
        return 0.1 + (moved * active).sum(-1)


def test_old_studies(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    pytest.importorskip("optuna")
    develop = {f"yahpo-{k}": partial(Shifted, name=str(k)) for k in range(4)}
    kinds = {"yahpo": SimpleNamespace(DEVELOP=develop)}
    monkeypatch.setattr(earlier, "_KINDS", kinds)
    studies: dict[str, Any] = {}
    for name, make in develop.items():
        problem = make(0)
        X = problem.space.sample(25, seed=int(name[-1]))
        studies[name] = (X.tolist(), (-problem.truths(X)[:, None]).tolist())
    (tmp_path / "old.json").write_text(json.dumps(studies))
    names = ["without", "earlier-3", "rgpe-2", "warm-2"]
    names += ["shuffled-2", "reversed-2", "unrelated-2"]
    arguments = ["--methods", *names, "--tasks", "1", "--budget", "5", "--kinds"]
    arguments += ["yahpo", "--processes", "0", "--out", str(tmp_path), "--old"]
    arguments.append(str(tmp_path / "old.json"))
    with pytest.raises(SystemExit):  # before any run
        earlier.main([*arguments, "--reference", "earlier-7"])
    assert "--reference: expected one of" in capsys.readouterr().err
    earlier.main([*arguments, "--reference", "earlier-3"])
    shown = capsys.readouterr().out
    assert "yahpo: 1 runs" in shown and "| 1 | 3 | 5 |" in shown
    runs = tmp_path / "develop" / "runs"
    assert complete_runs(runs, 5) == len(names)
    pack(runs, tmp_path / "all.jsonl.xz")
    report = ["--report", str(tmp_path / "all.jsonl.xz"), "--reference", "earlier-3"]
    earlier.main(report)
    assert capsys.readouterr().out == shown
    # the first point with old studies is near their optima
    row = next(line for line in shown.splitlines() if line.startswith("| `earlier-3`"))
    assert float(row.split("|")[2].split(";")[0]) < 0.5
