"""Tuning problems that are sums of parts which bend one way each, and tables."""

import gzip
import math
from pathlib import Path

import pytest
import torch

from benchmarks.problems.trainings import NetworkTuning, read_adult


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


def test_a_network_learns_and_penalties_keep_it_from_it() -> None:
    X = torch.tensor([[0.0, 0.0, 8.0], [1.0, 0.0, 8.0], [0.0, 1.0, 8.0]]).double()
    parts = NetworkTuning().components(X)
    assert parts[0, 0] < 0.2 and parts[0].sum() < 1.0
    assert (parts[1:, 0] > 0.6 * math.log(10.0)).all()
    assert parts[0, 1] > parts[1:, 1].max()  # the gap is largest without them
