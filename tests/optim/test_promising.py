from __future__ import annotations

import pytest
import torch
from botorch.acquisition import (
    ExpectedImprovement,
    GenericMCObjective,
    LogExpectedImprovement,
    qLogExpectedImprovement,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from torch import Tensor

from botorch_structured.models import SampledGP
from botorch_structured.optim.problem import Problem, make_problem
from botorch_structured.optim.search import promising_points
from botorch_structured.spaces import ParameterTree

X = torch.tensor(
    [[0, 1.0, 9.0], [0, 4.0, 9.0], [1, 9.0, 2.0], [1, 9.0, 3.0], [1, 9.0, 5.0]],
    dtype=torch.double,
)
Y = torch.tensor([[3.0], [1.0], [2.0], [5.0], [4.0]], dtype=torch.double)


@pytest.fixture
def problem() -> Problem:
    tree = ParameterTree(3, {0: {0: [1], 1: [2]}})
    bounds = torch.tensor([[0.0, 0, 0], [1, 10, 10]], dtype=torch.double)
    return make_problem(bounds, tree, None, None, None, None, None, None, 0.5, 8)


def model(**kwargs: object) -> SingleTaskGP:
    found = SingleTaskGP(X, Y, **kwargs)
    found.likelihood.noise = 1e-4
    found.covar_module.lengthscale = 0.1
    return found.eval()


def rows(*indices: int) -> Tensor:
    points = X[list(indices)].clone()
    points[points == 9] = 0.5
    return points


def test_best_of_every_path(problem: Problem) -> None:
    found = promising_points(problem, LogExpectedImprovement(model(), 3.0))
    assert torch.equal(found, rows(3, 0))
    down = ExpectedImprovement(model(), 3.0, maximize=False)
    assert torch.equal(promising_points(problem, down), rows(1, 2))


def test_points_are_those_that_were_given(problem: Problem) -> None:
    # In evaluation mode the model itself holds transformed inputs.
    scaled = model(input_transform=Normalize(3))
    assert not torch.equal(scaled.train_inputs[0], X)
    found = promising_points(problem, LogExpectedImprovement(scaled, 3.0))
    assert torch.equal(found, rows(3, 0))


def test_objectives_and_posterior_transforms(problem: Problem) -> None:
    negate = ScalarizedPosteriorTransform(torch.tensor([-1.0], dtype=torch.double))
    acqf = LogExpectedImprovement(model(), 0.0, posterior_transform=negate)
    assert torch.equal(promising_points(problem, acqf), rows(1, 2))
    objective = GenericMCObjective(lambda samples, X=None: -samples[..., 0])
    mc = qLogExpectedImprovement(model(), 0.0, objective=objective)
    assert torch.equal(promising_points(problem, mc), rows(1, 2))


def test_nothing_without_a_table_of_points(problem: Problem, peak) -> None:
    acqf = peak(problem.tree, torch.zeros(3))
    assert promising_points(problem, acqf).shape == (0, 3)


def test_an_ensemble_has_the_points_of_its_members(problem: Problem) -> None:
    for transform in (None, Normalize(3)):
        members = [model(input_transform=transform) for _ in range(3)]
        ensemble = SampledGP(members)
        found = promising_points(problem, LogExpectedImprovement(ensemble, Y.max()))
        assert torch.equal(found, rows(3, 0))
        negate = ScalarizedPosteriorTransform(torch.tensor([-1.0], dtype=torch.double))
        acqf = LogExpectedImprovement(ensemble, 0.0, posterior_transform=negate)
        assert torch.equal(promising_points(problem, acqf), rows(1, 2))
