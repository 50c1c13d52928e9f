"""The benchmark of old studies, on functions of one space that are shifted."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from toy_benchmark import complete_runs

from benchmarks.packed import pack
from benchmarks.quality import earlier
from benchmarks.suite.problem import SuiteProblem
from botorch_structured.test_functions import JenattonTree


class Shifted(SuiteProblem):
    """A tree's function with its optima moved by a little, more for larger numbers."""

    optimal_value = 0.1
    kind = "yahpo"

    def __init__(self, name: str) -> None:
        super().__init__(JenattonTree().space)
        self.name = name

    def truths(self, X: Tensor) -> Tensor:
        moved = (X - 0.3 - 0.01 * int(self.name)).square()
        active = self.space.tree.active_mask(X)
        active[:, self.space.tree.decision_columns] = False
        return 0.1 + (moved * active).sum(-1)


def make(seed: int, name: str) -> Shifted:
    return Shifted(name)


class Module:
    DEVELOP = {f"yahpo-{k}": partial(make, name=str(k)) for k in range(4)}


def test_runs_go_on_and_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier, "_KINDS", {"yahpo": Module})
    studies: dict[str, Any] = {}
    for name in Module.DEVELOP:
        problem = Shifted(name[-1])
        X = problem.space.sample(25, seed=int(name[-1]))
        studies[name] = (X.tolist(), (-problem.truths(X)[:, None]).tolist())
    (tmp_path / "old.json").write_text(json.dumps(studies))
    methods = ["without", "earlier-3", "rgpe-2", "warm-2"]
    methods += ["shuffled-2", "reversed-2", "unrelated-2"]
    arguments = ["--methods", *methods, "--tasks", "1", "--budget", "5", "--kinds"]
    arguments += ["yahpo", "--processes", "0", "--out", str(tmp_path), "--old"]
    arguments.append(str(tmp_path / "old.json"))
    with pytest.raises(SystemExit):  # before any run
        earlier.main([*arguments, "--reference", "earlier-7"])
    assert "--reference: expected one of" in capsys.readouterr().err
    earlier.main([*arguments, "--reference", "earlier-3"])
    shown = capsys.readouterr().out
    assert "yahpo: 1 runs" in shown and "| 1 | 3 | 5 |" in shown
    runs = tmp_path / "develop" / "runs"
    assert complete_runs(runs, 5) == len(methods)
    pack(runs, tmp_path / "all.jsonl.xz")
    report = ["--report", str(tmp_path / "all.jsonl.xz"), "--reference", "earlier-3"]
    earlier.main(report)
    assert capsys.readouterr().out == shown
    # the first point with old studies is near their optima
    row = next(line for line in shown.splitlines() if line.startswith("| `earlier-3`"))
    assert float(row.split("|")[2].split(";")[0]) < 0.5
