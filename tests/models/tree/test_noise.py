from __future__ import annotations

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_structured.models import TreeStructuredGP
from botorch_structured.models.tree.noise import has_steps


def test_has_steps() -> None:
    y = torch.tensor([1.0, 2.0, 1.0, 3.0])
    assert has_steps(y) and has_steps(torch.stack([y, torch.arange(4.0)]))
    assert not has_steps(torch.arange(4.0))
    assert not has_steps(torch.tensor([0.0, *range(7)]))  # a quarter
    assert not has_steps(torch.ones(3)) and not has_steps(torch.ones(1))


@pytest.mark.parametrize("steps", [False, True])
def test_exact_for_smooth_outcomes_wary_of_steps(steps: bool) -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(30, 2, generator=g, dtype=torch.float64)
    X[:, 0] = (X[:, 0] > 0.5).double()
    Y = (X[:, 1:] - 0.4).square()
    if steps:
        Y = (8.0 * Y).floor()
    model = TreeStructuredGP(X, Y, {0: {0.0: [], 1.0: []}})
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    if steps:
        assert model.likelihood.noise >= 1e-4 * (1 - 1e-6)
    else:
        assert model.likelihood.noise < 1e-6
    # the prior is part of the state: what was fitted under it can be loaded anywhere
    other = TreeStructuredGP(X[:3], X[:3, 1:], {0: {0.0: [], 1.0: []}})
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.likelihood.noise, model.likelihood.noise)
