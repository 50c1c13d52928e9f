"""Searches of spaces with hundreds of columns."""

import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from torch import Tensor

from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.spaces import SearchSpace

pytestmark = pytest.mark.usefixtures("double")


class Linear(AcquisitionFunction):
    """A weighted sum of columns."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__(model=torch.nn.Module())
        self.weights = weights

    def forward(self, X: Tensor) -> Tensor:
        return (X.squeeze(-2) * self.weights).sum(-1)


def test_the_best_of_many_binaries_and_the_next_best() -> None:
    space = SearchSpace.from_dictionaries({f"b{i}": [False, True] for i in range(200)})
    weights = torch.randn(200, generator=torch.Generator().manual_seed(0))
    acqf = Linear(weights)
    best, value = optimize_acqf_paths(acqf, space=space, seed=0)
    assert torch.equal(best, (weights > 0).double().unsqueeze(0))
    assert value == pytest.approx(weights.clamp_min(0.0).sum())
    second, value = optimize_acqf_paths(acqf, space=space, seed=0, X_avoid=best)
    assert (second != best).sum() == 1
    # Neighbours of the known best are all local maxima: one of the next best.
    assert weights.clamp_min(0.0).sum() - value < 0.03


def test_integers_of_wide_ranges_where_slots_are_too_many_to_try_all() -> None:
    space = SearchSpace.from_dictionaries({f"i{k}": (0, 10**6) for k in range(60)})
    at = (10**6 * torch.rand(60, generator=torch.Generator().manual_seed(0))).round()
    calls = []

    class Peak(Linear):
        def forward(self, X: Tensor) -> Tensor:
            calls.append(len(X))
            # a ripple, in whose hollows a climb by gradient ends
            away = (X.squeeze(-2) - at) / 10**6
            return -(away.abs() + 0.02 * torch.sin(60 * away).abs()).sum(-1)

    _, value = optimize_acqf_paths(Peak(at), space=space, seed=0)
    assert value > -0.3
    # 60 columns x 20 sizes x 2 directions x 16 starts would be 38,400 in a sweep
    assert max(calls[-20:]) <= 1024
