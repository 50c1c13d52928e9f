"""Searches on a rehearsed GPU, model and bounds there, find what they do on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement
from rehearsed_device import RehearsedDevice
from torch import Tensor

from botorch_structured.acquisition import PathLogExpectedImprovement
from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import (
    optimize_acqf_local_search,
    optimize_acqf_paths,
    optimize_acqf_sobol,
    optimize_acqf_two_step,
)
from botorch_structured.spaces import ParameterTree

TREE = ParameterTree(4, {0: {0.0: [1], 1.0: [2]}})
FEW = {"num_restarts": 2, "raw_samples": 16}


pytestmark = pytest.mark.usefixtures("double")


def two_step(acqf: Any, bounds: Tensor) -> Any:
    first = PathLogExpectedImprovement(acqf.model, acqf.best_f)
    return optimize_acqf_two_step(first, acqf, bounds, TREE, top_k=1, **FEW)


SEARCHES: dict[str, Callable[[Any, Tensor], Any]] = {
    "paths": lambda acqf, bounds: optimize_acqf_paths(acqf, bounds, TREE, **FEW),
    "two_step": two_step,
    "local": lambda acqf, bounds: optimize_acqf_local_search(acqf, bounds, TREE),
    "sobol": lambda acqf, bounds: optimize_acqf_sobol(
        acqf, bounds, num_points=64, num_rounds=1, seed=0
    ),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_the_same_candidate(name: str) -> None:
    X = torch.rand(16, 4, generator=torch.Generator().manual_seed(0))
    X[:, 0] = X[:, 0].round()
    Y = (5.0 * X.sum(-1, keepdim=True)).sin()

    def candidate(device: str) -> list[Tensor]:
        model = TreeStructuredGP(X.to(device), Y.to(device), TREE)
        bounds = torch.tensor([[0.0] * 4, [1.0] * 4]).to(device)
        torch.manual_seed(0)
        x, value = SEARCHES[name](LogExpectedImprovement(model, 0.9), bounds)
        assert x.device.type == value.device.type == device
        return [x.cpu(), value.cpu()]

    expected = candidate("cpu")
    with RehearsedDevice():
        # climbs end at a gain of 1e-7, after other roundings
        torch.testing.assert_close(candidate("meta"), expected, rtol=1e-5, atol=1e-5)
