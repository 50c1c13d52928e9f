"""Tuning problems that are sums of parts which bend one way each, and tables."""

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.problems import tables
from benchmarks.problems.trainings import ForestTuning, NetworkTuning, read_adult


def test_the_capacity_of_a_forest() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((300, 6))
    noise = 0.5 * rng.standard_normal(300)
    labels = (features[:, 0] + features[:, 1] * features[:, 2] + noise) > 0
    problem = ForestTuning(features, labels)
    X = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]).double()
    grown, stump = problem.components(X)
    assert grown[0] < 0.05 < stump[0]  # all splits fit the training rows
    assert grown[1] > stump[1]


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


@pytest.mark.parametrize(
    ("name", "text", "optimizer", "value"),
    [
        ("online_lda", "kappa,tau,s,perplexity\n1,4,16,2014\n.5,1,4,1300", "", 1300.0),
        ("structured_svm", "c,alpha,epsilon,error\n600,.1,.01,.3\n10,1,.1,.2", "", 0.2),
        ("clark_copper", "x1,x2,x3,Z\n1,2,3,.5\n1,2,8,-99\n1,2,9,-995", "1 2 3", -0.5),
        ("walker_lake", "Id,X,Y,V\n1,11,8,0\n2,8,30,7.5", "8 30", -7.5),
    ],
)
def test_published_tables(
    name: str, text: str, optimizer: str, value: float, tmp_path: Path
) -> None:
    """Which values are none, and what is wanted."""
    (tmp_path / "table.csv").write_text(text)
    problem = getattr(tables, name)(tmp_path / "table.csv")
    assert problem.optimal_value == value
    if optimizer:
        assert problem.optimizers.tolist() == [[float(x) for x in optimizer.split()]]
