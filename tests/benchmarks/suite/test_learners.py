import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.suite.learners import DATA, DEVELOP, FILES, read_dataset

pytest.importorskip("sklearn")


def test_columns_of_text(tmp_path: Path) -> None:
    (tmp_path / "uci").mkdir()
    adult = "39, State, 7.5, x, <=50K\n50, ?, 8.5, x, >50K\n\n28, State, 1, x, <=50K\n"
    (tmp_path / "uci/adult-train.csv.gz").write_bytes(gzip.compress(adult.encode()))
    X, y = read_dataset("adult", tmp_path)
    # numbers; "?", "State"; a column that does not vary is left out
    assert X.tolist() == [[39, 0, 1, 7.5], [50, 1, 0, 8.5], [28, 0, 1, 1]]
    assert y.tolist() == [0, 1, 0]
    titanic = "Class\tAge\tclass\n1\t2\t-1\n3\t4\t1"
    (tmp_path / "uci/titanic-pmlb.csv").write_text(titanic)
    X, y = read_dataset("titanic", tmp_path)
    assert X.tolist() == [[1, 2], [3, 4]] and y.tolist() == [0, 1]


def test_a_configuration_has_one_value() -> None:
    problem = DEVELOP["cash-wine"](0)
    knn = [{"learner": "knn", "knn:n_neighbors": k} for k in (5, 25)]
    X = problem.space.encode([{"learner": "gnb"}, *knn])
    values = problem.truths(X)
    assert ((values > 0) & (values < 0.2)).all()
    assert [problem(x) for x in X] == [problem.truth(x) for x in X] == values.tolist()
    assert len(problem.cash.evaluations) == 3  # each was run once
    assert torch.equal(DEVELOP["cash-wine"](1).truths(X), values)


@pytest.mark.skipif(not (DATA / "uci").exists(), reason=f"needs {DATA / 'uci'}")
def test_the_data_sets_themselves() -> None:
    for name in FILES:
        X, y = read_dataset(name)
        assert 200 < len(y) <= 300 and len(np.unique(y)) >= 2
        assert np.isfinite(X).all() and (X.std(0) > 0).all()
