"""Questions to the surrogates, with a stand-in for them; and they, where they are."""

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


def write_files(folder: Path) -> None:
    """The space, and the codes of its choices in alphabetical order."""
    entries: list[dict[str, Any]] = [
        {"name": name, "type": "categorical", "choices": some, "default": some[0]}
        for name, some in CHOICES.items()
    ]
    conditions: list[dict[str, Any]] = []
    for text in NUMBERS.split(","):
        name, low, high, kind, log, boosters = text.split()
        as_number = int if kind == "int" else float
        limits = {"lower": as_number(low), "upper": as_number(high)}
        entry = {"name": name, "type": f"uniform_{kind}", "log": log == "log"}
        entries.append({**entry, **limits, "default": limits["upper"]})
        test = {"child": name, "parent": "booster"}
        if boosters == "trees":
            conditions.append({**test, "type": "IN", "values": ["dart", "gbtree"]})
        elif boosters == "dart":  # joined with another condition, as in a scenario
            both = [{**test, "type": "EQ", "value": "dart"}]
            conditions.append({**test, "type": "AND", "conditions": both})
    folder.mkdir()
    content = {"hyperparameters": entries, "conditions": conditions}
    (folder / "config_space.json").write_text(json.dumps(content))
    codes = {
        name: {c: i for i, c in enumerate(["#na#", *sorted(some)])}
        for name, some in CHOICES.items()
    }
    (folder / "encoding.json").write_text(json.dumps(codes))


def test_the_surrogate_gets_natural_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = StandIn()
    monkeypatch.setattr(yahpo, "_session", lambda path: stand_in)
    write_files(tmp_path / "yahpo_rbv2_xgboost")
    problem = YahpoXGBoost("1040", tmp_path)
    config = {"booster": "gbtree", "num.impute.selected.cpo": "impute.hist"}
    config |= dict(zip(NAMED.split(), VALUES, strict=True))
    columns = problem.evaluate(problem.space.encode([config]), 0.5)
    # the task, gbtree among dart, gblinear and gbtree; impute.hist is the first
    assert stand_in.given["x_cat"].tolist() == [[1, 3, 1]]
    given = stand_in.given["x_cont"]
    np.testing.assert_allclose(given, [[*VALUES, 0, 0, 0.5, 10]], rtol=1e-6)
    assert columns["acc"].tolist() == [3.0] and columns["timetrain"].tolist() == [0.5]
    # records have the branch
    make = {"yahpo-1040": lambda seed: problem}
    run({"random": random}, make, [0], 12, tmp_path, processes=0, progress=False)
    records = read_records(tmp_path / "yahpo-1040" / "random" / "0.jsonl")
    c = problem.space.names.index("booster")
    assert [r["branch"] for r in records] == [int(r["x"][c]) for r in records]


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
