from __future__ import annotations

import pickle

import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    PriorGuidedAcquisitionFunction,
)
from botorch.acquisition.analytic import (
    LogConstrainedExpectedImprovement,
    LogProbabilityOfFeasibility,
)
from botorch.models import ModelListGP, SingleTaskGP
from torch import Tensor

from botorch_structured.acquisition import (
    AveragedLogProbabilityOfFeasibility,
    FeasibilityPrior,
)
from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim.closed_form import closed_form
from botorch_structured.test_functions import JenattonTree

SPACE = JenattonTree(shared=True).space


def models() -> list[SingleTaskGP]:
    """Of three outcomes on different scales."""
    X = SPACE.sample(15, seed=0)
    made = []
    for k in range(3):
        Y = 10.0**k * (X + k).sin().sum(-1, keepdim=True)
        made.append(TreeStructuredGP(X, Y, SPACE))
        made[-1].likelihood.noise = 1e-2
    return made


def points(n: int = 12) -> Tensor:
    return SPACE.sample(n, seed=1)


def test_is_botorchs_with_one_model_of_each() -> None:
    """`LogProbabilityOfFeasibility`, and with LogEI the constrained one."""
    objective, one, other = models()
    prior = FeasibilityPrior([[one], [other]], limits=[3.0, 50.0])
    X = points().unsqueeze(-2)
    limits: dict[int, tuple[float | None, float | None]]
    limits = {0: (None, 3.0), 1: (None, 50.0)}
    expected = LogProbabilityOfFeasibility(ModelListGP(one, other), limits)(X)
    torch.testing.assert_close(prior(X).squeeze(-1), expected, rtol=1e-8, atol=1e-10)
    alone = AveragedLogProbabilityOfFeasibility(prior)(X)
    torch.testing.assert_close(alone, expected, rtol=1e-8, atol=1e-10)
    acqf = PriorGuidedAcquisitionFunction(
        LogExpectedImprovement(objective, best_f=0.5), prior, log=True
    )
    expected = LogConstrainedExpectedImprovement(
        ModelListGP(objective, one, other),
        best_f=0.5,
        objective_index=0,
        constraints={k + 1: limit for k, limit in limits.items()},
    )(X)
    torch.testing.assert_close(acqf(X), expected, rtol=1e-8, atol=1e-10)


def test_a_mixture_has_the_mean_of_its_probabilities() -> None:
    _, one, other = models()
    X = points()
    each = [FeasibilityPrior([[m]], limits=[2.0])(X).exp() for m in (one, other)]
    mixed = FeasibilityPrior([[one, other]], [[3.0, 1.0]], [2.0])(X).exp()
    torch.testing.assert_close(mixed, 0.75 * each[0] + 0.25 * each[1])


def test_other_models_go_through_autograd() -> None:
    X = points()
    prior = FeasibilityPrior([[SingleTaskGP(X, X.sum(-1, keepdim=True))]])
    assert closed_form(AveragedLogProbabilityOfFeasibility(prior)).at(X, True) is None
    again = pickle.loads(pickle.dumps(prior))
    torch.testing.assert_close(again(X), prior(X))


def test_refuses() -> None:
    one, other, _ = models()
    with pytest.raises(ValueError, match="models: expected for each outcome a list"):
        FeasibilityPrior([[one], []])
    with pytest.raises(ValueError, match="models: expected for each outcome a list"):
        FeasibilityPrior([])
    two = SingleTaskGP(points(), points()[:, :2])
    with pytest.raises(ValueError, match="models: expected for each outcome a list"):
        FeasibilityPrior([[two]])
    with pytest.raises(ValueError, match="weights: expected those of 1 outcomes"):
        FeasibilityPrior([[one, other]], [[1.0], [1.0]])
    with pytest.raises(ValueError, match="weights: expected 2 finite numbers"):
        FeasibilityPrior([[one, other]], [[1.0]])
    with pytest.raises(ValueError, match="limits: expected 1 numbers"):
        FeasibilityPrior([[one, other]], limits=[1.0, 2.0])
    with pytest.raises(ValueError, match="limits: expected"):
        FeasibilityPrior([[one]], limits=[torch.nan])
