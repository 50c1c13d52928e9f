from __future__ import annotations

import math

import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
)
from torch import Tensor

from botorch_structured.optim import (
    optimize_acqf_random,
)
from botorch_structured.spaces import Between, ParameterTree, SearchSpace


class Recorder(AcquisitionFunction):
    """Keeps what it is asked about; the value is a rugged function of all columns."""

    def __init__(self) -> None:
        super().__init__(model=torch.nn.Module())
        self.seen: list[Tensor] = []

    def forward(self, X: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        self.seen.append(X.squeeze(-2))
        return torch.sin(1e3 * X.squeeze(-2).sum(-1))


def test_the_best_of_a_thousand_in_one_call(learners) -> None:
    tree, bounds = learners
    acqf = Recorder()
    X, value = optimize_acqf_random(acqf, bounds, tree, integer_features=[3], seed=0)
    (seen,) = acqf.seen
    # Path 3 has no columns: its points are one, and scored once.
    assert 600 < len(seen) <= 1000
    assert len(seen.unique(dim=0)) == len(seen)
    values = torch.sin(1e3 * seen.sum(-1))
    assert value == values.max()
    assert torch.equal(X[0], seen[values.argmax()])
    optimize_acqf_random(acqf, bounds, tree, raw_samples=7)
    assert len(acqf.seen[1]) <= 7


def test_points_are_distributed_as_those_of_the_search_space() -> None:
    """Paths, integers and reals: same shares, same moments, within five sigma."""
    tree = ParameterTree(
        5,
        {0: {0: [1], 1: [2], 2: []}},
        conditions={4: Between(3, 0.9, math.inf)},
        values={0: [0, 1, 2]},
    )
    bounds = torch.tensor([[0.0, -1, 1, 0, 0], [2, 3, 4, 1, 1]], dtype=torch.double)
    space = SearchSpace(["a", "b", "c", "d", "e"], bounds, tree, integer_features=[2])
    n = 20_000
    acqf = Recorder()
    optimize_acqf_random(
        acqf, bounds, tree, raw_samples=n, integer_features=[2], fill=space.fill
    )
    mine, theirs = acqf.seen[0], space.sample(n, seed=1)
    keys = tree.path_key(torch.cat([mine, theirs]))
    for key in keys.unique():
        p, q = (keys[:n] == key).double().mean(), (keys[n:] == key).double().mean()
        assert abs(p - q) < 5 * math.sqrt(2 * p * (1 - p) / n)
    for c in range(5):
        a = mine[tree.active_mask(mine)[:, c], c]
        b = theirs[tree.active_mask(theirs)[:, c], c]
        sigma = float(b.std() * (1 / len(a) + 1 / len(b)) ** 0.5)
        assert abs(float(a.mean() - b.mean())) < 5 * sigma
        assert float(a.std()) == pytest.approx(float(b.std()), rel=0.05)
    # A tenth of the range of the numeric decision, not half of its two intervals.
    assert abs(float((mine[:, 3] >= 0.9).double().mean()) - 0.1) < 0.011
