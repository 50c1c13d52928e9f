from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from botorch_structured.demo.log import EvaluationLog, Record
from botorch_structured.demo.report import (
    best_record,
    code,
    learner_table,
    picture,
    summary,
)
from botorch_structured.demo.study import MODEL, RANDOM, START, Study
from botorch_structured.test_functions import ScikitLearnCASH
from botorch_structured.test_functions.cash import Evaluation


def make(path: Path, budget: int = 3, resume: bool = False) -> Study:
    log = (
        EvaluationLog.resume(path)
        if resume
        else EvaluationLog.create(path, {"dataset": "iris", "seed": 1, "budget": 3})
    )
    return Study(ScikitLearnCASH("iris", seed=1), log, budget, seed=1)


def finish(study: Study) -> Study:
    for method in (MODEL, RANDOM):
        for _ in study.run(method):
            pass
    return study


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return finish(make(tmp_path_factory.mktemp("study") / "log.jsonl"))


def untimed(records: list[Record]) -> list[tuple[object, ...]]:
    return [(r.method, r.config, r.x, r.value, r.error) for r in records]


def test_one_start_a_learner_then_the_budget_of_each_method(finished: Study) -> None:
    methods = [r.method for r in finished.log.records]
    assert methods == [START] * 9 + [MODEL] * 3 + [RANDOM] * 3
    learners = [r.config["learner"] for r in finished.log.records[:9]]
    assert len(set(learners)) == 9
    for method in (MODEL, RANDOM):
        X, errors = finished.data(method)
        assert X.shape == (12, finished.space.dim) and errors.shape == (12, 1)
        assert len(torch.unique(X, dim=0)) == 12  # nothing twice


@pytest.mark.parametrize("stop", [4, 10, 13])
def test_an_interrupted_study_goes_on_as_it_would_have(
    finished: Study, tmp_path: Path, stop: int
) -> None:
    lines = finished.log.path.read_bytes().splitlines(keepends=True)
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(lines[: stop + 1]) + lines[stop + 1][:20])
    resumed = finish(make(path, resume=True))
    assert untimed(resumed.log.records) == untimed(finished.log.records)
    assert resumed.log.records[:stop] == finished.log.records[:stop]


def test_a_larger_budget_extends_a_study(finished: Study, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(finished.log.path.read_bytes())
    longer = finish(make(path, budget=4, resume=True))
    assert len(longer.log.records) == 9 + 2 * 4
    assert longer.log.records[:15] == finished.log.records
    with pytest.raises(ValueError, match="budget: expected a positive number, got 0"):
        make(tmp_path / "other.jsonl", budget=0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"method": "start"', '"method": "grid"', "method: expected one of start, b"),
        ('"x": [', '"x": [0.5, ', "x: expected 14 numbers, got 15"),
        (
            '"x": [0.0',
            '"x": [0.5',
            "x: expected start \\d of seed 1, got another point",
        ),
    ],
)
def test_evaluations_of_another_study_are_refused(
    finished: Study, tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "log.jsonl"
    lines = finished.log.path.read_text().splitlines(keepends=True)
    start = [i for i, line in enumerate(lines) if old in line][0]
    lines[start] = lines[start].replace(old, new, 1)
    path.write_text("".join(lines))
    with pytest.raises(ValueError, match=f"log.jsonl line {start + 1}: {message}"):
        make(path, resume=True)


def test_lines_that_were_edited_are_refused(finished: Study, tmp_path: Path) -> None:
    """What the picture and the printed code are made of is what was evaluated."""
    path = tmp_path / "log.jsonl"
    lines = finished.log.path.read_text().splitlines(keepends=True)
    tuned = next(
        i
        for i, line in enumerate(lines)
        if '"method": "botorch-structured"' in line
        and len(json.loads(line)["config"]) > 1
    )
    entry = json.loads(lines[tuned])
    *_, (name, value) = entry["config"].items()
    other = next(
        json.loads(line)["config"]
        for line in lines[1:]
        if json.loads(line)["config"]["learner"] != entry["config"]["learner"]
    )
    for change, message in (
        ({"config": other}, "config: expected .*as x says"),
        ({"config": {"learner": "xgb"}}, "config: expected .*xgb"),
        ({"config": {**entry["config"], name: str(value)}}, "config: expected"),
        ({"config": {"learner": entry["config"]["learner"]}}, "config: expected"),
        ({"x": [99.0] * 14}, "x: expected a point of the space"),
        ({"x": [0.0] * 14}, "(x|config): expected"),
    ):
        changed = list(lines)
        changed[tuned] = json.dumps({**entry, **change}) + "\n"
        path.write_text("".join(changed))
        with pytest.raises(ValueError, match=f"log.jsonl line {tuned + 1}: {message}"):
            make(path, resume=True)
    path.write_text("".join([*lines[: tuned + 1], *lines[tuned:]]))
    with pytest.raises(ValueError, match=f"line {tuned + 2}: x: expected a point that"):
        make(path, resume=True)


def test_the_same_error_in_another_order_of_summation_is_no_improvement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed as the first best is where the picture drops last."""
    study = make(tmp_path / "log.jsonl", budget=1)
    values = iter([0.4, 0.1 + 0.2, 0.3, *[0.5] * 8])
    assert 0.1 + 0.2 > 0.3
    monkeypatch.setattr(
        study.problem, "evaluate", lambda c: Evaluation(next(values), None, 0.1, "ok")
    )
    list(itertools.islice(study.run(MODEL), 9))
    assert "found at evaluation 2 of 9" in summary(study)


def test_a_failure_is_recorded_and_does_not_end_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make(tmp_path / "log.jsonl", budget=1)
    evaluate = study.problem.evaluate

    def sometimes(config: dict[str, object]) -> Evaluation:
        if config["learner"] == "qda":
            return Evaluation(1.0, "LinAlgError: singular", 0.1, "failed")
        return evaluate(config)

    monkeypatch.setattr(study.problem, "evaluate", sometimes)
    finish(study)
    assert sum(r.error is not None for r in study.records(MODEL)) >= 1
    assert "the last with: LinAlgError: singular" in summary(study)
    row = next(t for t in learner_table(study).splitlines() if t.startswith("qda"))
    assert "failed" in row


def test_report_says_what_was_found(finished: Study) -> None:
    best = best_record(finished.records(MODEL))
    table = learner_table(finished)
    assert table.count("<- best") == 1
    row = next(line for line in table.splitlines() if "<- best" in line)
    learner, tried, error, improvement, *_ = row.split()
    assert learner == best.config["learner"]
    own = [r for r in finished.records(MODEL) if r.config["learner"] == learner]
    assert int(tried) == len(own)
    assert float(error) == pytest.approx(best.value, abs=5e-5)
    assert float(improvement) >= 0
    assert f"error {best.value:.4f}" in summary(finished)


@pytest.mark.parametrize("dataset", ["iris", "moons"])
def test_the_code_to_paste_gives_the_same_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dataset: str
) -> None:
    problem = ScikitLearnCASH(dataset, seed=2)
    log = EvaluationLog.create(tmp_path / "log.jsonl", {})
    study = Study(problem, log, 1, seed=2)
    list(itertools.islice(study.run(MODEL), 9))
    best = best_record(log.records)
    exec(code(study, dataset), {})
    assert capsys.readouterr().out == f"error {best.value:.4f}\n"
    assert best.method == START


def test_picture(finished: Study, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = picture([finished, finished], tmp_path / "result.png")
    assert (tmp_path / "result.png").read_bytes()[:4] == b"\x89PNG"
    traces, tree = figure.axes
    low, high = traces.get_ylim()
    final = min(r.value for r in finished.log.records)
    assert 0 <= low <= final < high and math.isfinite(high)
    assert "median of 2" in traces.get_legend().get_texts()[0].get_text()
    assert {"svm", "knn"} <= {t.get_text() for t in tree.texts}
    # the curve drops at the evaluation that the summary names
    records = finished.records(MODEL)
    steps, values = traces.get_lines()[0].get_data()
    assert steps[np.argmin(values)] == records.index(best_record(records)) + 1
