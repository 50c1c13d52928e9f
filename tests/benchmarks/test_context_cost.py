"""The comparison of full evaluations with a part of the data, on a stand-in."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.quality import context_cost
from benchmarks.quality.context_cost import Trace, main, report
from botorch_structured.spaces import ParameterTree, SearchSpace

TREE = ParameterTree(3, {0: {0.0: [1], 1.0: [2]}})
BOUNDS = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])


class Surrogate:
    """Errors of a tree of two leaves; the second takes ten times as long."""

    optimal_value, middle_value = 0.0, 0.5

    def __init__(self, task: str, data: Path) -> None:
        self.name = task
        self.space = SearchSpace(
            ["leaf", "a", "b"], BOUNDS, TREE, categorical_features={0: [0.0, 1.0]}
        )

    def starts(self, seed: int) -> Tensor:
        return self.space.starts(seed=seed)

    def evaluate(self, X: Tensor, share: float | Tensor = 1.0) -> dict[str, Tensor]:
        own = torch.where(X[:, 0] == 0.0, (X[:, 1] - 0.3) ** 2, 0.2 + X[:, 2])
        share = torch.as_tensor(share).expand(len(X))
        assert ((share > 0.03) & (share <= 1.0)).all()
        seconds = share * (1.0 + 9.0 * X[:, 0])
        return {"acc": 1.0 - own - 0.1 * (1.0 - share), "timetrain": seconds}


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_cost, "YahpoXGBoost", Surrogate)


def test_the_command_goes_on(tmp_path: Path, capsys: Any) -> None:
    arguments = ["--tasks", "3", "--out", str(tmp_path), "--full-evaluations", "8"]
    arguments += ["--methods", "context", "halving", "cost", "--evaluations", "15"]
    main(arguments)
    shown = capsys.readouterr().out
    assert "| full " in shown and "| halving " in shown
    traces = context_cost._read(tmp_path / "develop.jsonl")
    full, *others = traces
    assert [t.method for t in traces] == ["full", "context", "halving", "cost"]
    assert len(full.errors) == 8 and set(full.shares) == {1.0}
    for trace in others:
        assert len(trace.errors) <= 15
        assert sum(trace.seconds[:-1]) < 0.5 * full.spent or len(trace.errors) <= 13
        allowed = {1.0} if trace.method == "cost" else {1.0, 1 / 3, 1 / 9, 1 / 27}
        assert all(any(abs(s - a) < 1e-9 for a in allowed) for s in trace.shares)
    assert min(others[1].shares[:9]) == max(others[1].shares[:9]) < 0.2  # the bracket
    file = tmp_path / "develop.jsonl"
    before = file.read_text()
    file.write_text(before + '{"problem": "3", "me')  # killed while it wrote
    main([*arguments, "--report"])
    assert file.read_text() == before
    assert capsys.readouterr().out.startswith("|")


def test_long_evaluations_are_stopped(tmp_path: Path) -> None:
    """Those of the second leaf, which take 10 seconds of 40; and all of them."""
    problem = context_cost.ContextProblem("3", tmp_path)
    errors, seconds, shares = context_cost.run_limited(problem, 0, 40.0, 12)
    assert len(errors) == len(seconds) == len(shares) and set(shares.tolist()) == {1.0}
    stopped = errors.isinf()
    assert 0 < stopped.sum() < 5
    assert set(seconds[stopped].tolist()) == {8.0}
    assert set(seconds[~stopped].tolist()) == {1.0}
    best = float(errors[:6].min())
    assert len(context_cost.run_limited(problem, 0, 40.0, 12, best)[0]) <= 6
    errors, seconds, _ = context_cost.run_limited(problem, 0, 4.0, 12)
    assert errors.isinf().all() and seconds.sum() == pytest.approx(4.0, abs=0.8)


def test_only_full_evaluations_count() -> None:
    full = Trace("3", "full", 0, [0.4, 0.3, 0.2], [10.0, 20.0, 30.0], [1.0] * 3)
    run = Trace("3", "context", 0, [0.1, 0.3, 0.2], [1.0, 2.0, 3.0], [0.3, 1.0, 1.0])
    assert run.best(1.0) == float("inf")
    assert run.best(3.0) == 0.3
    assert run.best(6.0) == 0.2
    assert run.seconds_to(0.25) == 6.0
    assert run.seconds_to(0.15) == float("inf")
    table = report([full, run], {"3": (0.1, 0.6)}).splitlines()
    cells = [cell.strip() for cell in table[-1].split("|")[1:-1]]
    # at half the seconds of "full" (30 of 60) and later: 0.2, scaled (0.2 - 0.1) / 0.5
    assert cells[:2] == ["context", "1"]
    assert cells[4:7] == ["0.2000"] * 3
    assert cells[7:12] == ["0.100", "1 of 1", "0.100", "1 of 1", "0 / 0"]
    assert cells[-2] == "1 / 0"  # "full" has 0.3 after 30 seconds
