from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qKnowledgeGradient
from botorch.optim import optimize_acqf
from torch import Tensor

from botorch_structured.acquisition import PathLogExpectedImprovement
from botorch_structured.models import ConditionalGP, TreeStructuredGP

BOUNDS = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
FEW = {"q": 1, "num_restarts": 2, "raw_samples": 4}


def make_model(model_class: type, path: Tensor) -> Any:
    """Column 0 chooses between the other two."""
    X = torch.rand(len(path), 3, dtype=torch.float64)
    X[:, 0] = path
    return model_class(X, X.sum(-1, keepdim=True), {0: {0: [1], 1: [2]}})


@pytest.mark.parametrize(
    "acquisition",
    [
        lambda model: LogExpectedImprovement(model, 1.0),
        lambda model: qKnowledgeGradient(model, num_fantasies=2),
    ],
)
@pytest.mark.parametrize("model_class", [ConditionalGP, TreeStructuredGP])
def test_a_path_without_data_is_searched(
    model_class: type, acquisition: Callable[[Any], Any]
) -> None:
    """There all is constant, and BoTorch's optimisers want a gradient all the same."""
    model = make_model(model_class, torch.zeros(6))
    candidate, value = optimize_acqf(
        acquisition(model), BOUNDS, fixed_features={0: 1.0}, **FEW
    )
    assert candidate.shape == (1, 3) and candidate[0, 0] == 1.0
    assert value.isfinite()
    x = torch.tensor([[1.0, 1e100, 0.3]], dtype=torch.float64, requires_grad=True)
    model.posterior(x).mean.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_paths_without_shared_columns_are_searched() -> None:
    model = make_model(TreeStructuredGP, torch.arange(8) % 2)
    candidate, value = optimize_acqf(
        PathLogExpectedImprovement(model, 1.0), BOUNDS, **FEW
    )
    assert candidate.shape == (1, 3) and value.isfinite()
