"""The benchmark of old studies, on functions of one space that are shifted."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from benchmarks.packed import pack
from benchmarks.quality import old_studies
from benchmarks.suite.problem import SuiteProblem
from botorch_structured.test_functions import JenattonTree


class Shifted(SuiteProblem):
    """A tree's function with its optima moved by a little, more for larger numbers."""

    optimal_value = 0.1

    def __init__(self, name: str) -> None:
        super().__init__(JenattonTree().space)
        self.name = name

    def truths(self, X: Tensor) -> Tensor:
        moved = (X - 0.3 - 0.01 * int(self.name)).square()
        active = self.space.tree.active_mask(X)
        active[:, self.space.tree.decision_columns] = False
        return 0.1 + (moved * active).sum(-1)


def make(seed: int, task_id: str, data: Any) -> Shifted:
    return Shifted(task_id)


def test_runs_go_on_and_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(old_studies, "_HALVES", {"develop": ("1", "2", "3")})
    monkeypatch.setattr(old_studies, "make", make)
    arguments = ["--random", "20", "--searched", "5", "--budget", "7"]
    arguments += ["--tasks", "2", "--processes", "0", "--out", str(tmp_path)]
    old_studies.main(arguments)
    shown = capsys.readouterr().out
    assert "2 data sets" in shown and "| 3 | 5 |" in shown
    pack(tmp_path / "develop", tmp_path / "all.jsonl.xz")
    old_studies.main(["--tasks", "2", "--report", str(tmp_path / "all.jsonl.xz")])
    assert capsys.readouterr().out == shown
    # the first points of a study with old ones are near their optima
    row = next(line for line in shown.splitlines() if line.startswith("| `mean`"))
    assert float(row.split(";")[1]) < 0.5
