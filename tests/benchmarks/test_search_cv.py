import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import loguniform
from sklearn.linear_model import Ridge

from benchmarks.reach import many_tables, search_cv
from benchmarks.reach.search_cv import main


def test_a_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    X = random.standard_normal((60, 3))
    tables = {"b": lambda: (X, X[:, 0] + random.standard_normal(60))}
    ridge = [{"model": [Ridge()], "model__alpha": loguniform(1e-3, 1e3)}]
    small = replace(search_cv.PROBLEMS["regression"], space=ridge, folds=2)
    monkeypatch.setitem(search_cv.PROBLEMS, "regression", small)
    monkeypatch.setattr(many_tables, "NUMBERS", tables)
    out = tmp_path / "found.jsonl.gz"
    command = ["--problems", "regression", "--budget", "3", "--out", str(out)]
    main([*command, "--seeds", "1"])
    with gzip.open(out, "rt") as file:
        first = file.readlines()
    main([*command, "--seeds", "2"])
    with gzip.open(out, "rt") as file:
        lines = file.readlines()
    assert len(first) == 3 and lines[:3] == first and len(lines) == 6
    assert [json.loads(line)["seed"] for line in lines] == 3 * [200] + 3 * [201]
    assert "regression, 2 splits" in capsys.readouterr().out
