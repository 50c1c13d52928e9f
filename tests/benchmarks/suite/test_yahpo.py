"""What the surrogates are asked, with a stand-in for them; and they, where they are."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.data import DATA
from benchmarks.harness import read_records, run
from benchmarks.methods import random
from benchmarks.suite import yahpo, yahpo_learners
from benchmarks.suite.yahpo import YahpoXGBoost
from benchmarks.suite.yahpo_learners import YahpoLearners

# a name, bounds, whether whole, whether logarithmic, which boosters
NUMBERS = """alpha .01 100 float log -, colsample_bylevel .01 1 float - trees,
colsample_bytree .01 1 float - trees, eta .001 1 float log trees,
gamma .0001 10 float log trees, lambda .01 100 float log -,
max_depth 1 15 int - trees, min_child_weight 2 200 float log trees,
nrounds 7 2981 int log -, rate_drop 0 1 float - dart, repl 1 10 int - -,
skip_drop 0 1 float - dart, subsample .1 1 float - -, trainsize .03 1 float - -"""
CHOICES = {
    "booster": ["gblinear", "gbtree", "dart"],
    "num.impute.selected.cpo": ["impute.mean", "impute.median", "impute.hist"],
    "task_id": ["1040", "3"],
}
LEARNERS = ["aknn", "glmnet", "ranger", "rpart", "svm", "xgboost"]
NAMED = "nrounds eta gamma lambda alpha subsample max_depth min_child_weight "
NAMED += "colsample_bytree colsample_bylevel"
VALUES = [100, 0.1, 0.01, 2.0, 0.5, 0.75, 6, 5.0, 0.25, 0.5]


class StandIn:
    """Notes its inputs; the first answer is the code of the second choice."""

    def run(self, outputs: None, given: dict[str, Any]) -> list[np.ndarray]:
        self.given = given
        answer = np.zeros((len(given["x_cat"]), 9), dtype=np.float32)
        answer[:, 0] = given["x_cat"][:, 1]
        answer[:, 6] = given["x_cont"][:, 12]  # of xgboost: the share of the data
        return [answer]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    session = StandIn()
    monkeypatch.setattr(yahpo, "_session", lambda path: session)
    return session


def write_files(
    folder: Path, numbers: list[Any], conditions: Any, choices: Any
) -> None:
    """The space, and the codes of its choices in alphabetical order."""
    folder.mkdir()
    parameters = [
        {"name": "learner_id" if name == "learner" else name, "type": "categorical"}
        | {"choices": some, "default": some[0]}
        for name, some in choices.items()
    ]
    content = {"hyperparameters": parameters + numbers, "conditions": conditions}
    (folder / "config_space.json").write_text(json.dumps(content))
    codes = {
        name: {c: i for i, c in enumerate(["#na#", *sorted(some)])}
        for name, some in choices.items()
    }
    (folder / "encoding.json").write_text(json.dumps(codes))


def number(name: str, low: float, high: float, kind: str, log: bool) -> dict[str, Any]:
    entry = {"name": name, "type": f"uniform_{kind}", "log": log, "default": high}
    return {**entry, "lower": low, "upper": high}


def test_the_surrogate_gets_natural_values(stand_in: StandIn, tmp_path: Path) -> None:
    numbers, conditions = [], []
    for text in NUMBERS.split(","):
        name, low, high, kind, log, boosters = text.split()
        as_number = int if kind == "int" else float
        numbers.append(
            number(name, as_number(low), as_number(high), kind, log == "log")
        )
        test: dict[str, Any] = {"child": name, "parent": "booster"}
        if boosters == "dart":
            conditions.append({**test, "type": "EQ", "value": "dart"})
        elif boosters == "trees":
            conditions.append({**test, "type": "IN", "values": ["dart", "gbtree"]})
    write_files(tmp_path / "yahpo_rbv2_xgboost", numbers, conditions, CHOICES)
    problem = YahpoXGBoost("1040", tmp_path)
    config = {"booster": "gbtree", "num.impute.selected.cpo": "impute.hist"}
    config |= dict(zip(NAMED.split(), VALUES, strict=True))
    columns = problem.evaluate(problem.space.encode([config]), 0.5)
    # the task, gbtree among dart, gblinear and gbtree; impute.hist is the first
    assert stand_in.given["x_cat"].tolist() == [[1, 3, 1]]
    given = stand_in.given["x_cont"]
    np.testing.assert_allclose(given, [[*VALUES, 0, 0, 0.5, 10]], rtol=1e-6)
    assert columns["acc"].tolist() == [3.0] and columns["timetrain"].tolist() == [0.5]
    with pytest.raises(ValueError, match="expected one of the 80 data sets"):
        YahpoXGBoost("6000", tmp_path)


def test_what_is_inactive_is_said_to_be(stand_in: StandIn, tmp_path: Path) -> None:
    """Every parameter belongs to the learner that it is named after."""
    choices = {n: ["u", "v"] for n in YahpoLearners.choices}
    choices |= {"task_id": ["3", "15"], "learner": LEARNERS}
    numbers = [number(n, 0.0, 2.0, "float", False) for n in YahpoLearners.numbers]
    names = [
        n for n in (*choices, *YahpoLearners.numbers) if n.split(".")[0] in LEARNERS
    ]
    conditions: list[dict[str, Any]] = [
        {"child": n, "parent": "learner_id", "type": "EQ", "value": n.split(".")[0]}
        for n in names
    ]
    # that of the degree is joined with that of the kernel, as in the scenario
    of_kernel = {"parent": "svm.kernel", "type": "EQ", "value": "v"}
    for entry in conditions:
        if entry["child"] == "svm.degree":
            both = [{"child": "svm.degree", **of_kernel}, dict(entry)]
            entry |= {"type": "AND", "conditions": both}
    write_files(tmp_path / "yahpo_rbv2_super", numbers, conditions, choices)
    problem = YahpoLearners("15", tmp_path)
    config = {"learner_id": "svm", "svm.kernel": "v", "num.impute.selected.cpo": "v"}
    config |= {f"svm.{n}": 0.5 for n in ("cost", "gamma", "tolerance", "degree")}
    assert problem.truths(problem.space.encode([config])).tolist() == [5.0]
    # task 15 before 3 in alphabetical order, svm, its kernel, no other choice
    assert stand_in.given["x_cat"].tolist() == [[1, 5, 2, 0, 0, 0, 0, 2]]
    expected = [[0.5] * 4 + [0.0] * 27 + [1.0, 10.0]]
    assert stand_in.given["x_cont"].tolist() == expected
    linear = {k: v for k, v in config.items() if k != "svm.degree"} | {
        "svm.kernel": "u"
    }
    problem.truths(problem.space.encode([linear]))
    assert stand_in.given["x_cont"][0, 3] == 0.0
    # records have the branch
    make = {"learners-3": lambda seed: YahpoLearners("3", tmp_path)}
    run({"random": random}, make, [0], 12, tmp_path, processes=0, progress=False)
    records = read_records(tmp_path / "learners-3" / "random" / "0.jsonl")
    assert [r["branch"] for r in records] == [int(r["x"][0]) for r in records]


@pytest.mark.parametrize("name", ["yahpo-3", "learners-3"])
def test_the_surrogate_itself(name: str) -> None:
    folder = "yahpo_rbv2_xgboost" if name == "yahpo-3" else "yahpo_rbv2_super"
    pytest.importorskip("onnxruntime")
    if not (DATA / folder / "model.onnx").exists():
        pytest.skip(f"needs {DATA / folder}")
    problem = (yahpo.DEVELOP | yahpo_learners.DEVELOP)[name](0)
    values = problem.truths(problem.space.sample(200, seed=0))
    assert values.min() >= problem.optimal_value
    assert (values < problem.middle_value).sum() in range(70, 130)
