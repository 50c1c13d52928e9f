from __future__ import annotations

import json
from pathlib import Path

import pytest

from botorch_structured.demo.log import EvaluationLog, Record

RECORD = Record("start", {"learner": "knn"}, [0.1, 0.2], 0.3, None, 0.01)
SETTINGS = {"dataset": "iris", "seed": 3, "budget": 5}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    log = EvaluationLog.create(tmp_path / "new" / "log.jsonl", SETTINGS)
    log.append(RECORD)
    again = EvaluationLog.resume(log.path)
    assert again.settings == SETTINGS
    assert again.records == log.records == [RECORD]


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    log = EvaluationLog.create(tmp_path / "log.jsonl", SETTINGS)
    log.append(RECORD)
    with pytest.raises(FileExistsError):
        EvaluationLog.create(log.path, SETTINGS)
    assert EvaluationLog.resume(log.path).records == [RECORD]


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_cut_by_a_kill_is_dropped(tmp_path: Path, cut: int) -> None:
    log = EvaluationLog.create(tmp_path / "log.jsonl", SETTINGS)
    log.append(RECORD)
    log.append(RECORD)
    log.path.write_bytes(log.path.read_bytes()[:-cut])
    again = EvaluationLog.resume(log.path)
    assert again.records == [RECORD]
    again.append(RECORD)
    assert EvaluationLog.resume(log.path).records == [RECORD, RECORD]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", 'line 1: expected a JSON object, got ""'),
        ("no json\n", 'line 1: expected a JSON object, got "no json'),
        ('[["a", 1]]\n', r"line 1: expected a JSON object, got \[\["),
        ('{"a": 1}\n', 'line 1: expected dataset, seed, budget, got "a"'),
        (f'{json.dumps(SETTINGS)}\n{{"b": 2}}\n', 'line 2: .* seconds, got "b"'),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"log.jsonl {message}"):
        EvaluationLog.resume(path)
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"value": 0.3',
            '"value": null',
            "value: expected a number from 0 to 1, got n",
        ),
        ('"value": 0.3', '"value": NaN', "value: expected a number from 0 to 1, got N"),
        ('"x": [0.1, 0.2]', '"x": [0.1, "a"]', "x: expected a list of finite numbers"),
        (
            '{"learner": "knn"}',
            "{}",
            "config: expected an object with the name of a learner, got {}",
        ),
        ('"seed": 3', '"seed": 4', "seed: expected 3 as in line 1, got 4"),
        ('"iris"', '"wine"', 'dataset: expected "iris" as in line 1, got "wine"'),
        ('{"dataset"', '{"dataset', "expected a JSON object, got "),
    ],
)
def test_a_damaged_line_is_named(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    log = EvaluationLog.create(tmp_path / "log.jsonl", SETTINGS)
    for _ in range(5):
        log.append(RECORD)
    lines = log.path.read_text().splitlines(keepends=True)
    assert old in lines[4]
    lines[4] = lines[4].replace(old, new)
    log.path.write_text("".join(lines))
    with pytest.raises(ValueError, match=f"log.jsonl line 5: {message}"):
        EvaluationLog.resume(log.path)
    assert log.path.read_text() == "".join(lines)


def test_another_budget_is_the_same_study_and_another_data_set_is_not(
    tmp_path: Path,
) -> None:
    log = EvaluationLog.create(tmp_path / "log.jsonl", SETTINGS)
    log.append(RECORD)
    text = log.path.read_text()
    log.path.write_text(text.replace('"budget": 5', '"budget": 6'))
    assert EvaluationLog.resume(log.path).records == [RECORD]
    log.path.write_text(text.replace("iris", "wine", 1))
    with pytest.raises(
        ValueError, match='line 2: dataset: expected "wine" as in line 1, got "iris"'
    ):
        EvaluationLog.resume(log.path)
