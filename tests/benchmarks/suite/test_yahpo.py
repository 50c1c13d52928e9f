"""What the surrogate is asked, with a stand-in for it; and itself, where it is."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from yahpo_files import write_files

from benchmarks.suite import yahpo
from benchmarks.suite.yahpo import DATA, DEVELOP, YahpoXGBoost

TREES = ["dart", "gbtree"]
# Name: lower and upper bound, whether whole, whether logarithmic, boosters.
NUMBERS: dict[str, tuple[float, float, bool, bool, list[str] | None]] = {
    "alpha": (0.01, 100.0, False, True, None),
    "colsample_bylevel": (0.01, 1.0, False, False, TREES),
    "colsample_bytree": (0.01, 1.0, False, False, TREES),
    "eta": (0.001, 1.0, False, True, TREES),
    "gamma": (0.0001, 10.0, False, True, TREES),
    "lambda": (0.01, 100.0, False, True, None),
    "max_depth": (1, 15, True, False, TREES),
    "min_child_weight": (2.0, 200.0, False, True, TREES),
    "nrounds": (7, 2981, True, True, None),
    "rate_drop": (0.0, 1.0, False, False, ["dart"]),
    "repl": (1, 10, True, False, None),
    "skip_drop": (0.0, 1.0, False, False, ["dart"]),
    "subsample": (0.1, 1.0, False, False, None),
    "trainsize": (0.03, 1.0, False, False, None),
}
CHOICES = {
    "booster": ["gblinear", "gbtree", "dart"],
    "num.impute.selected.cpo": ["impute.mean", "impute.median", "impute.hist"],
    "task_id": ["1040", "3"],
}
NAMED = ["nrounds", "eta", "gamma", "lambda", "alpha", "subsample", "max_depth"]
NAMED += ["min_child_weight", "colsample_bytree", "colsample_bylevel"]
VALUES = [100, 0.1, 0.01, 2.0, 0.5, 0.75, 6, 5.0, 0.25, 0.5]
CONFIG = {"booster": "gbtree", "num.impute.selected.cpo": "impute.hist"}
CONFIG |= dict(zip(NAMED, VALUES, strict=True))
have_data = (DATA / "yahpo_rbv2_xgboost" / "model.onnx").exists()
needs_surrogate = pytest.mark.skipif(
    not (have_data and importlib.util.find_spec("onnxruntime")),
    reason=f"needs onnxruntime and {DATA / 'yahpo_rbv2_xgboost'}",
)


class StandIn:
    """Answers with numbers that say which input they came from; notes the inputs."""

    def run(self, outputs: None, given: dict[str, Any]) -> list[np.ndarray]:
        self.given = given
        answer = np.zeros((len(given["x_cat"]), 9), dtype=np.float32)
        answer[:, 0] = 0.5 + 0.01 * given["x_cat"][:, 1]  # acc, by the booster
        answer[:, 5] = given["x_cont"][:, 0]  # logloss: nrounds
        answer[:, 6] = given["x_cont"][:, 12]  # timetrain: trainsize
        return [answer]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The files of a surrogate in ``tmp_path``, and what answers in its place."""
    parameters: list[dict[str, Any]] = [
        {"name": n, "type": "categorical", "choices": c, "default": c[0]}
        for n, c in CHOICES.items()
    ]
    conditions: list[dict[str, Any]] = []
    for name, (low, high, whole, log, boosters) in NUMBERS.items():
        kind = "uniform_int" if whole else "uniform_float"
        entry = {"name": name, "type": kind, "log": log, "default": high}
        parameters.append({**entry, "lower": low, "upper": high})
        if boosters:
            test = {"type": "IN", "values": boosters}
            if boosters == ["dart"]:
                test = {"type": "EQ", "value": "dart"}
            conditions.append({"child": name, "parent": "booster", **test})
    write_files(tmp_path / "yahpo_rbv2_xgboost", parameters, conditions, CHOICES)
    session = StandIn()
    monkeypatch.setattr(yahpo, "_session", lambda path: session)
    return session


def test_the_surrogate_gets_natural_values(stand_in: StandIn, tmp_path: Path) -> None:
    problem = YahpoXGBoost("1040", tmp_path)
    columns = problem.evaluate(problem.space.encode([CONFIG]))
    # the task, gbtree among dart, gblinear and gbtree; impute.hist is the first
    assert stand_in.given["x_cat"].tolist() == [[1, 3, 1]]
    assert stand_in.given["x_cat"].dtype == np.int32
    numbers = stand_in.given["x_cont"]
    assert numbers.dtype == np.float32
    np.testing.assert_allclose(numbers, [[*VALUES, 0, 0, 1, 10]], rtol=1e-6)
    assert columns["acc"].tolist() == pytest.approx([0.53])
    assert columns["logloss"].tolist() == [100.0]
    assert columns["timetrain"].tolist() == [1.0]


@needs_surrogate
def test_the_surrogate_itself() -> None:
    problem = DEVELOP["yahpo-3"](0)
    X = problem.space.sample(1000, seed=0)
    values = problem.truths(X)
    assert float(values.median()) == pytest.approx(problem.middle_value, abs=1e-6)
    assert problem.optimal_value <= values.min()
    assert problem.truth(X[7]) == pytest.approx(float(values[7]), abs=1e-6)
    whole, part = (problem.evaluate(X, size)["timetrain"] for size in (1.0, 0.1))
    assert part.median() < whole.median()
