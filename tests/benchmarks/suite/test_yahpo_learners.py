"""What the surrogate of six learners is asked, with a stand-in for it; and itself."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from yahpo_files import write_files

from benchmarks.harness import read_records, run
from benchmarks.methods import random
from benchmarks.suite import yahpo
from benchmarks.suite.yahpo import DATA
from benchmarks.suite.yahpo_learners import DEVELOP, REPORT, YahpoLearners

LEARNERS = ["aknn", "glmnet", "ranger", "rpart", "svm", "xgboost"]
have_data = (DATA / "yahpo_rbv2_super" / "model.onnx").exists()


class StandIn:
    """Takes one point at a time; the error is the code of the learner."""

    def run(self, outputs: None, given: dict[str, Any]) -> list[np.ndarray]:
        assert {len(v) for v in given.values()} == {1}
        self.given = {k: v[0].tolist() for k, v in given.items()}
        return [given["x_cat"][:, 1:2].astype(np.float32)]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Every parameter belongs to the learner that it is named after."""
    choices = {n: ["u", "v"] for n in YahpoLearners.choices}
    choices |= {"task_id": ["3", "15"], "learner": LEARNERS}
    parameters: list[dict[str, Any]] = [
        {
            "name": "learner_id" if n == "learner" else n,
            "type": "categorical",
            "choices": c,
            "default": c[0],
        }
        for n, c in choices.items()
    ]
    parameters += [
        {"name": n, "type": "uniform_float", "log": False, "default": 1.0}
        | {"lower": 0.0, "upper": 2.0}
        for n in YahpoLearners.numbers
    ]
    # that of the degree is joined with that of the kernel, as in the scenario
    conditions: list[dict[str, Any]] = [
        {"child": n, "parent": "learner_id", "type": "EQ", "value": n.split(".")[0]}
        for n in (p["name"] for p in parameters)
        if n.split(".")[0] in LEARNERS
    ]
    of_kernel = {"parent": "svm.kernel", "type": "EQ", "value": "v"}
    for entry in conditions:
        if entry["child"] == "svm.degree":
            both = [{"child": "svm.degree", **of_kernel}, dict(entry)]
            entry |= {"type": "AND", "conditions": both}
    write_files(tmp_path / "yahpo_rbv2_super", parameters, conditions, choices)
    session = StandIn()
    monkeypatch.setattr(yahpo, "_session", lambda path: session)
    return session


def test_what_is_inactive_is_said_to_be(stand_in: StandIn, tmp_path: Path) -> None:
    problem = YahpoLearners("15", tmp_path)
    config = {"learner_id": "svm", "svm.kernel": "v", "num.impute.selected.cpo": "v"}
    config |= {f"svm.{n}": 0.5 for n in ("cost", "gamma", "tolerance", "degree")}
    X = problem.space.encode([config])
    assert problem.truths(X).tolist() == [5.0]
    # task 15 before 3 in alphabetical order, svm, its kernel, no other choice
    assert stand_in.given["x_cat"] == [1, 5, 2, 0, 0, 0, 0, 2]
    assert stand_in.given["x_cont"] == [0.5] * 4 + [0.0] * 27 + [1.0, 10.0]
    linear = {k: v for k, v in config.items() if k != "svm.degree"}
    both = [config, {**linear, "svm.kernel": "u"}]
    assert problem.truths(problem.space.encode(both)).tolist() == [5.0, 5.0]
    assert stand_in.given["x_cont"][3] == 0.0
    assert not DEVELOP.keys() & REPORT.keys() and len(DEVELOP | REPORT) == 55
    with pytest.raises(ValueError, match="expected one of the 56 data sets"):
        YahpoLearners("6", tmp_path)


def test_records_have_the_branch(stand_in: StandIn, tmp_path: Path) -> None:
    make = {"learners-3": lambda seed: YahpoLearners("3", tmp_path)}
    run({"random": random}, make, [0], 12, tmp_path, processes=0, progress=False)
    records = read_records(tmp_path / "learners-3" / "random" / "0.jsonl")
    assert [r["branch"] for r in records] == [int(r["x"][0]) for r in records]


@pytest.mark.skipif(
    not (have_data and importlib.util.find_spec("onnxruntime")),
    reason=f"needs onnxruntime and {DATA / 'yahpo_rbv2_super'}",
)
def test_the_surrogate_itself() -> None:
    problem = DEVELOP["learners-3"](0)
    X = problem.space.sample(200, seed=0)
    values = problem.truths(X)
    assert values.min() >= problem.optimal_value
    assert (values < problem.middle_value).sum() in range(70, 130)
