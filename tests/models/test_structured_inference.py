from __future__ import annotations

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qKnowledgeGradient
from botorch.optim import optimize_acqf

from botorch_structured.models import ConditionalGP, TreeStructuredGP


@pytest.mark.parametrize("acquisition", ["LogEI", "KG"])
@pytest.mark.parametrize("model_class", [ConditionalGP, TreeStructuredGP])
def test_a_path_without_data_is_searched(model_class: type, acquisition: str) -> None:
    """There all is constant, and BoTorch's optimisers want a gradient all the same."""
    X = torch.rand(6, 3, dtype=torch.float64)
    X[:, 0] = 0.0
    model = model_class(X, X.sum(-1, keepdim=True), {0: {0: [1], 1: [2]}})
    bounds = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
    function = (
        LogExpectedImprovement(model, 1.0)
        if acquisition == "LogEI"
        else qKnowledgeGradient(model, num_fantasies=2)
    )
    candidate, value = optimize_acqf(
        function,
        bounds,
        q=1,
        num_restarts=2,
        raw_samples=4,
        fixed_features={0: 1.0},
    )
    assert candidate.shape == (1, 3) and candidate[0, 0] == 1.0
    assert value.isfinite()
    x = torch.tensor([[1.0, torch.inf, 0.3]], dtype=torch.float64, requires_grad=True)
    model.posterior(x).mean.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))
