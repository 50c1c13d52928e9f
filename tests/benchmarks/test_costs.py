"""The comparison of full evaluations with stopped ones, on a stand-in."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.quality import costs
from benchmarks.quality.costs import main
from botorch_structured.spaces import ParameterTree, SearchSpace

TREE = ParameterTree(3, {0: {0.0: [1], 1.0: [2]}})
BOUNDS = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])


class Surrogate:
    """Errors of a tree of two leaves; the second takes ten times as long."""

    optimal_value, middle_value = 0.0, 0.5

    def __init__(self, task: str, data: Path) -> None:
        self.space = SearchSpace(
            ["leaf", "a", "b"], BOUNDS, TREE, categorical_features={0: [0.0, 1.0]}
        )

    def starts(self, seed: int) -> Tensor:
        return self.space.starts(seed=seed)

    def evaluate(self, X: Tensor) -> dict[str, Tensor]:
        own = torch.where(X[:, 0] == 0.0, (X[:, 1] - 0.3) ** 2, 0.2 + X[:, 2])
        return {"acc": 1.0 - own, "timetrain": 1.0 + 9.0 * X[:, 0]}


def test_the_command_goes_on(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "YahpoXGBoost", Surrogate)
    monkeypatch.setattr(costs, "_FULL_EVALUATIONS", 8)
    file = tmp_path / "costs.jsonl"
    arguments = ["--tasks", "3", "--out", str(file), "--evaluations", "9"]
    main(arguments)
    full, limited = costs._read(file)
    assert len(full.errors) == 8 and len(limited.errors) <= 9
    assert sum(limited.seconds[:-1]) < 0.5 * sum(full.seconds)
    before = file.read_text()
    file.write_text(before + '{"problem": "3", "me')  # killed while it wrote
    main([*arguments, "--report"])
    assert file.read_text() == before and "| limited " in capsys.readouterr().out
