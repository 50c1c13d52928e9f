"""Worker processes that share a study and are killed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.reach import kill_test


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_nothing_is_lost_nor_double_when_workers_are_killed(
    kind: kill_test.Kind, tmp_path: Path
) -> None:
    report = kill_test.run(tmp_path, kind, workers=3, trials=20, seed=1, pause=1.0)
    assert report.complete >= 20
    assert report.killed > 0
    assert report.is_good, report
