import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.reach import search_cv
from benchmarks.reach.search_cv import main, report


def rows(problem: str, **scores: list[float]) -> list[dict[str, Any]]:
    """Rows of two data sets, "a" with two splits and "b" with one."""
    splits = [{"data": "a", "seed": 0}, {"data": "a", "seed": 1}, {"data": "b"}]
    return [
        {"problem": problem, "method": method, "seed": 0, "cpu_s": 1.0}
        | {"cv": score, "test": score, **split}
        for method, values in scores.items()
        for split, score in zip(splits, values, strict=True)
    ]


def test_pairs_are_means_of_data_sets() -> None:
    # better on one split of "a", by more than it is worse on the other
    ours = [0.9, 0.5, 0.2]
    some = rows("kernels", structured=ours, random=[0.6, 0.6, 0.3], halving=ours)
    table = report(some).splitlines()
    assert "kernels, 3 splits of 2 data sets" in table[2]
    # each data set counts the same
    assert "| 0.4500 |" in table[2] and "| 0.4500 | 1, 0, 1 |" in table[3]
    assert "| 0.4500 | 0, 2, 0 | 1.000 |" in table[4]
    one = [row for row in some if row["data"] == "a"]
    table = report(one).splitlines()
    assert "kernels, 2 splits |" in table[2]
    assert "| 0.7000 |" in table[2] and "| 0.6000 | 1, 0, 1 |" in table[3]
    # a split that one of them has not is left out
    assert "1 splits" in report(one[:-1])


def test_a_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    X, y = np.ones((30, 2)), np.arange(30.0)
    called = []

    def stopped(method: str, *args: Any) -> dict[str, Any]:
        if len(called) == 3:
            raise KeyboardInterrupt
        called.append(method)
        assert args[1] in (5, 6) and args[2] is X
        return {"cv": 0.5, "test": 0.5, "cpu_s": 0.1}

    monkeypatch.setattr(search_cv, "evaluate", stopped)
    monkeypatch.setattr(search_cv, "MANY_NUMBERS", {"b": lambda: (X, y)})
    out = tmp_path / "found.jsonl.gz"
    command = ["--many", "--problems", "regression", "--seeds", "2"]
    command += ["--first-seed", "5", "--out", str(out)]
    with pytest.raises(KeyboardInterrupt):
        main(command)
    assert called == ["structured", "random", "halving"]
    called.clear()
    main(command)
    assert called == ["structured", "random", "halving"]
    with gzip.open(out, "rt") as file:
        found = [json.loads(line) for line in file]
    assert [(r["data"], r["seed"]) for r in found] == 3 * [("b", 5)] + 3 * [("b", 6)]
    assert "regression, 2 splits" in capsys.readouterr().out
