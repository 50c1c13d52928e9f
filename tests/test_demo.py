from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from botorch_structured.demo import (
    METHODS,
    MODEL,
    RANDOM,
    DemoComparison,
    best_trial,
    code,
    learner_table,
    picture,
    summary,
)
from botorch_structured.suggest import suggest
from botorch_structured.test_functions import ScikitLearnCASH
from botorch_structured.test_functions.cash import Evaluation


def make(folder: Path | None = None, budget: int = 3) -> DemoComparison:
    return DemoComparison(ScikitLearnCASH("iris", seed=1), budget, 1, folder)


def finish(comparison: DemoComparison) -> DemoComparison:
    for method in METHODS:
        comparison.run(method)
    return comparison


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("comparison")


@pytest.fixture(scope="module")
def finished(folder: Path) -> DemoComparison:
    return finish(make(folder))


def test_one_start_a_learner_then_the_budget_of_each_method(
    finished: DemoComparison,
) -> None:
    starts = [t.config for t in finished.trials(MODEL)[:9]]
    assert len({config["learner"] for config in starts}) == 9
    assert starts == [t.config for t in finished.trials(RANDOM)[:9]]
    for method in METHODS:
        X, errors = finished.data(method)
        assert X.shape == (12, finished.space.dim) and errors.shape == (12, 1)
        assert len(torch.unique(X, dim=0)) == 12  # nothing twice


def test_the_model_is_the_default_loop(finished: DemoComparison) -> None:
    X, errors = finished.data(MODEL)
    for n in range(9, 12):
        x = suggest(finished.space, X[:n], -errors[:n], seed=10_000 + n).X
        assert torch.equal(x, X[n : n + 1])


def test_the_same_error_in_another_order_of_summation_is_no_improvement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is printed as the first best is where the picture drops last."""
    comparison = make(budget=1)
    values = iter([0.4, 0.1 + 0.2, 0.3, *[0.5] * 8])
    assert 0.1 + 0.2 > 0.3
    monkeypatch.setattr(
        comparison.problem,
        "evaluate",
        lambda c: Evaluation(next(values), None, 0.1, "ok"),
    )
    comparison.run(MODEL)
    assert "found at evaluation 2 of 10" in summary(comparison)


def test_report_says_what_was_found(finished: DemoComparison) -> None:
    best = best_trial(finished.trials(MODEL))
    assert best is not None
    table = learner_table(finished)
    assert table.count("<- best") == 1
    row = next(line for line in table.splitlines() if "<- best" in line)
    learner, tried, error, improvement, *_ = row.split()
    assert learner == best.config["learner"]
    own = [t for t in finished.trials(MODEL) if t.config["learner"] == learner]
    assert int(tried) == len(own)
    assert float(error) == pytest.approx(best.value, abs=5e-5)
    assert float(improvement) >= 0
    assert f"error {best.value:.4f}" in summary(finished)


@pytest.mark.parametrize("dataset", ["iris", "moons"])
def test_the_code_to_paste_gives_the_same_error(
    capsys: pytest.CaptureFixture[str], dataset: str
) -> None:
    problem = ScikitLearnCASH(dataset, seed=2)
    comparison = DemoComparison(problem, 1, seed=2)
    comparison.run(MODEL)
    exec(code(comparison, dataset), {})
    _, best = comparison.studies[MODEL].best
    assert capsys.readouterr().out == f"error {best:.4f}\n"


def test_picture(finished: DemoComparison, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = picture([finished, finished], tmp_path / "result.png")
    assert (tmp_path / "result.png").read_bytes()[:4] == b"\x89PNG"
    traces, tree = figure.axes
    low, high = traces.get_ylim()
    final = min(float(finished.data(method)[1].min()) for method in METHODS)
    assert 0 <= low <= final < high and math.isfinite(high)
    assert "median of 2" in traces.get_legend().get_texts()[0].get_text()
    assert {"svm", "knn"} <= {t.get_text() for t in tree.texts}
    # the curve drops at the evaluation that the summary names
    best = best_trial(finished.trials(MODEL))
    steps, values = traces.get_lines()[0].get_data()
    assert best is not None and steps[np.argmin(values)] == best.number + 1
