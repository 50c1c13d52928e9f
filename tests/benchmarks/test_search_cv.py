import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import loguniform
from sklearn.linear_model import Ridge

from benchmarks.reach import search_cv
from benchmarks.reach.search_cv import main, report

NOISES = {"a": 0.1, "b": 0.5, "c": 1.0}


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


def test_old_searches_are_those_of_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    X = random.standard_normal((60, 3))
    noise = {name: scale * random.standard_normal(60) for name, scale in NOISES.items()}
    tables = {name: lambda e=e: (X, X[:, 0] + e) for name, e in noise.items()}
    ridge = [{"model": [Ridge()], "model__alpha": loguniform(1e-3, 1e3)}]
    small = replace(search_cv.PROBLEMS["regression"], space=ridge, folds=2)
    monkeypatch.setitem(search_cv.PROBLEMS, "regression", small)
    monkeypatch.setattr(search_cv, "MANY_NUMBERS", tables)
    monkeypatch.setattr(search_cv, "_OLD_CANDIDATES", 4)
    known = []
    searched = search_cv.StructuredSearchCV

    def recorded(*args: Any, earlier: Any = None, **kwargs: Any) -> Any:
        known.append(None if earlier is None else len(earlier))
        return searched(*args, earlier=earlier, **kwargs)

    monkeypatch.setattr(search_cv, "StructuredSearchCV", recorded)
    out = tmp_path / "found.jsonl"
    command = ["--many", "--problems", "regression", "--seeds", "1", "--budget", "3"]
    command += ["--methods", "earlier", "structured", "--out", str(out)]
    main(command)
    assert known == [2, None] * 3
    capsys.readouterr()
    main([*command, "--report", "--at", "1"])
    first = capsys.readouterr().out.splitlines()[-2:]
    assert "| earlier |" in first[0]
    found = [json.loads(line) for line in out.read_text().splitlines()]
    means = {
        name: np.mean([row["scores"][0] for row in found if row["method"] == name])
        for name in ("earlier", "structured")
    }
    assert f"| {means['earlier']:.4f} |" in first[0]
    assert f"| {means['structured']:.4f} |" in first[1]
