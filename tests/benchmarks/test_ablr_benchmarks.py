import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_benchmark import complete_runs

from benchmarks import methods
from benchmarks.problems.quadratics import QuadraticTask
from benchmarks.quality import quadratics, signals
from botorch_structured.test_functions import QuadraticTasks

METHODS = {
    "ablr": methods.ablr,
    "warm_context": partial(methods.warm, context=True),
    "gp_stacked": methods.gp_stacked,
}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_quadratics_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tasks", "1", "--seeds", "1", "--budget", "5", "--processes", "0"]
    arguments += ["--methods", "warm", "gp", "random", "--out", str(tmp_path)]
    quadratics.main(arguments)
    (row,) = [r for r in capsys.readouterr().out.splitlines() if "| warm " in r]
    # with 29 tasks known, three values say which quadratic it is
    assert float(row.split("|")[2]) <= 4.5
    assert complete_runs(tmp_path, 5, "quadratic-*") == 3


def test_signals_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
