"""Densities of many leaves at once, against one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_structured.models.treed import leaf_batch
from botorch_structured.models.treed.leaf_batch import LeafBatch
from botorch_structured.models.treed.leaf_density import NodePoints
from botorch_structured.models.treed.treed_gp import TreedGP
from tests.treed_models import step_data

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("elements", [400, 30_000])
@pytest.mark.parametrize("noise", [-3.0, -60.0])
def test_leaves_at_once_are_leaves_one_by_one(
    known: bool, elements: int, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of a batch too, and where a covariance has no factor."""
    monkeypatch.setattr(leaf_batch, "_ELEMENTS", elements)
    X, Y = step_data(60, seed=1)
    Yvar = torch.full_like(Y, 0.02) if known else None
    model = TreedGP.as_published(X, Y, Yvar)
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    problem = model._leaf_problem(mll)
    assert problem is not None
    large = NodePoints(problem.densities).above(20, 3)
    small = [density.without(large) for density in problem.densities]
    theta = problem.theta()
    theta += 0.3 * np.random.default_rng(0).standard_normal(theta.shape)
    theta[:, -1] = noise
    if noise < -10.0:
        theta[:, :-3] += 12.0
    leaves = np.arange(len(theta))[::-2]
    values, gradients = LeafBatch(small)(leaves, theta[leaves])
    for k, leaf in enumerate(leaves):
        value, slope = small[leaf](theta[leaf])
        assert values[k] == pytest.approx(value, rel=1e-9, abs=1e-9)
        np.testing.assert_allclose(gradients[k], slope, rtol=1e-7, atol=1e-7)
