"""Tuning problems that are sums of parts which bend one way each."""

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.problems.trainings import ForestTuning, NetworkTuning, read_adult


def small_forest(**arguments: Any) -> ForestTuning:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((300, 6))
    noise = 0.5 * rng.standard_normal(300)
    labels = (features[:, 0] + features[:, 1] * features[:, 2] + noise) > 0
    return ForestTuning(features, labels, **arguments)


def test_the_capacity_of_a_forest() -> None:
    problem = small_forest()
    X = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]).double()
    grown, stump = problem.components(X[:2])
    assert grown[0] < 0.05 < stump[0]  # all splits fit the training rows
    assert grown[1] > stump[1]
    rate = problem._data[1][1].mean()  # a leaf as large as the data: one class for all
    assert min(abs(problem(X[2:]).item() - r) for r in (rate, 1 - rate)) < 1e-12


def test_adult(tmp_path: Path) -> None:
    rows = (
        "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, "
        "Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K\n"
        "50, ?, 83311, Bachelors, 13, Married, Exec, Husband, White, Male, "
        "0, 0, 13, Cuba, >50K\n\n"
    )
    plain, packed = tmp_path / "adult.data", tmp_path / "adult.csv.gz"
    plain.write_text(rows)
    packed.write_bytes(gzip.compress(rows.encode()))
    for path in (plain, packed):
        features, labels = read_adult(path)
        assert features.shape == (2, 14) and labels.tolist() == [False, True]
        # "?" comes first
        assert features[:, [0, 1, 13]].tolist() == [[39.0, 1.0, 1.0], [50.0, 0.0, 0.0]]
    plain.write_text("1, 2, 3\n")
    with pytest.raises(ValueError, match="14 features and a label"):
        read_adult(plain)


def test_a_network_learns_and_penalties_keep_it_from_it() -> None:
    problem = NetworkTuning()
    X = torch.tensor([[0.0, 0.0, 8.0], [1.0, 0.0, 8.0], [0.0, 1.0, 8.0]]).double()
    parts = problem.components(X)
    assert parts[0, 0] < 0.2 and parts[0].sum() < 1.0
    assert (parts[1:, 0] > 0.6 * math.log(10.0)).all()
    assert parts[0, 1] > parts[1:, 1].max()  # the gap is largest without them
