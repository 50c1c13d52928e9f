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
    gap = weights.clamp_min(0.0).sum() - weights.abs().min()
    assert value == pytest.approx(gap)
