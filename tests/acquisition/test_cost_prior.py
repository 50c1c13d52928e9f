from __future__ import annotations

import math

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, PriorGuidedAcquisitionFunction
from botorch.models import SingleTaskGP
from scipy.stats import norm
from torch import Tensor

from botorch_structured.acquisition import CostPrior
from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.optim.closed_form import closed_form
from botorch_structured.spaces import ParameterTree, SearchSpace

TREE = ParameterTree(3, {0: {0.0: [1], 1.0: [2]}})
BOUNDS = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]).double()
SPACE = SearchSpace(
    ["leaf", "a", "b"], BOUNDS, TREE, categorical_features={0: [0.0, 1.0]}
)


def seconds(X: Tensor) -> Tensor:
    """From 1 to 100 along the column of the first leaf; 10 in the second one."""
    return torch.where(X[:, :1] == 0.0, 100.0 ** X[:, 1:2], 10.0)


def models() -> tuple[TreeStructuredGP, TreeStructuredGP]:
    """Of an outcome that grows along each column, and of the logarithm of the cost."""
    X = SPACE.sample(30, seed=0)
    Y = torch.where(X[:, :1] == 0.0, X[:, 1:2], 0.3 * X[:, 2:])
    of_outcome = TreeStructuredGP(X, Y, SPACE)
    of_cost = TreeStructuredGP(X, seconds(X).log(), SPACE)
    for model in (of_outcome, of_cost):
        model.likelihood.noise = 1e-4
    return of_outcome, of_cost


@pytest.mark.parametrize("left", [None, 0.5, 20.0, 1e6])
def test_value(left: float | None) -> None:
    """The formula by SciPy."""
    _, cost_model = models()
    prior = CostPrior(cost_model, left)
    X = SPACE.sample(8, seed=1).unsqueeze(-2)
    value = prior(X).detach()
    assert value.shape == (8, 1)
    posterior = cost_model.posterior(X)
    mean, variance = posterior.mean.flatten(), posterior.variance.flatten()
    expected = -(mean + 0.5 * variance).detach()
    if left is not None:
        z = (math.log(left) - mean) / variance.sqrt()
        expected = expected + torch.from_numpy(norm.logcdf(z.detach().numpy()))
    torch.testing.assert_close(value.flatten(), expected, rtol=1e-6, atol=1e-6)


def test_what_is_left_limits_the_candidate() -> None:
    model, cost_model = models()
    improvement = LogExpectedImprovement(model, best_f=0.2)
    found = {}
    for left in (1e4, 4.0):
        prior = CostPrior(cost_model, left)
        acqf = PriorGuidedAcquisitionFunction(improvement, prior, log=True)
        assert closed_form(acqf).at(SPACE.sample(2, seed=2), gradient=True) is not None
        x, _ = optimize_acqf_paths(acqf, space=SPACE, X_avoid=model.train_inputs[0])
        found[left] = float(seconds(x))
    assert found[4.0] < 4.0
    assert found[4.0] < found[1e4]


def test_of_any_model() -> None:
    """A model without closed moments goes through autograd."""
    X = SPACE.sample(10, seed=0)
    cost_model = SingleTaskGP(X, seconds(X).log())
    prior = CostPrior(cost_model, left=5.0)
    model, _ = models()
    acqf = PriorGuidedAcquisitionFunction(
        LogExpectedImprovement(model, best_f=0.2), prior, log=True
    )
    assert closed_form(acqf).at(X, gradient=True) is None
    assert acqf(X.unsqueeze(-2)).isfinite().all()


def test_refuses() -> None:
    _, cost_model = models()
    for left in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="left: expected"):
            CostPrior(cost_model, left)
    X = SPACE.sample(5, seed=0)
    two = SingleTaskGP(X, torch.cat([seconds(X), seconds(X)], dim=-1))
    for model in (two, "none"):
        with pytest.raises(ValueError, match="cost_model: expected a BoTorch model"):
            CostPrior(model)
