"""Tuning problems that are sums of parts which bend one way each, and tables."""

import gzip
from pathlib import Path

import pytest

from benchmarks.problems.trainings import read_adult


def test_adult(tmp_path: Path) -> None:
    one = (
        "39, State-gov, 77516, Bachelors, 13, Single, Adm, No, White, Male, 2174, 0, 40"
    )
    two = "50, ?, 83311, Bachelors, 13, Married, Exec, No, White, Male, 0, 0, 13"
    rows = f"{one}, United-States, <=50K\n{two}, Cuba, >50K\n\n"
    path = tmp_path / "adult.csv.gz"
    path.write_bytes(gzip.compress(rows.encode()))
    features, labels = read_adult(path)
    assert features.shape == (2, 14) and labels.tolist() == [False, True]
    # "?" comes first
    assert features[:, [0, 1, 13]].tolist() == [[39.0, 1.0, 1.0], [50.0, 0.0, 0.0]]
    (tmp_path / "adult.data").write_text("1, 2, 3\n")
    with pytest.raises(ValueError, match="14 features and a label"):
        read_adult(tmp_path / "adult.data")
