from __future__ import annotations

from pathlib import Path

import pytest

from botorch_structured.demo.log import EvaluationLog, Record

RECORD = Record("start", {"learner": "knn"}, [0.1, 0.2], 0.3, None, 0.01)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    log = EvaluationLog.create(tmp_path / "new" / "log.jsonl", {"seed": 3})
    log.append(RECORD)
    again = EvaluationLog.resume(log.path)
    assert again.settings == {"seed": 3}
    assert again.records == log.records == [RECORD]


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    log = EvaluationLog.create(tmp_path / "log.jsonl", {})
    log.append(RECORD)
    with pytest.raises(FileExistsError):
        EvaluationLog.create(log.path, {})
    assert EvaluationLog.resume(log.path).records == [RECORD]


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_cut_by_a_kill_is_dropped(tmp_path: Path, cut: int) -> None:
    log = EvaluationLog.create(tmp_path / "log.jsonl", {"seed": 3})
    log.append(RECORD)
    log.append(RECORD)
    log.path.write_bytes(log.path.read_bytes()[:-cut])
    again = EvaluationLog.resume(log.path)
    assert again.records == [RECORD]
    again.append(RECORD)
    assert EvaluationLog.resume(log.path).records == [RECORD, RECORD]


@pytest.mark.parametrize("content", ["", "no json\n", '{"a": 1}\n{"b": 2}\n', "[1]\n"])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"Expected .* log\.jsonl|Expected .*log"):
        EvaluationLog.resume(path)
    assert path.read_text() == content
