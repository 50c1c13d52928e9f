"""Imputation as the paper has it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.models.transforms.input import ChainedInputTransform
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import given
from strategies import random_points, random_tree, seeds

from botorch_structured.spaces import ParameterTree
from botorch_structured.transforms import Impute

TREE = ParameterTree(3, {0: {0.0: [1], 1.0: [2]}})
BOUNDS = torch.tensor([[0.0, 0.0, -4.0], [1.0, 10.0, 2.0]], dtype=torch.float64)
X = torch.tensor([[0.0, 3.0, 99.0], [1.0, 99.0, 1.0]], dtype=torch.float64)


def test_the_middle_of_the_range_by_default() -> None:
    expected = torch.tensor([[0.0, 3.0, -1.0], [1.0, 5.0, 1.0]], dtype=torch.float64)
    assert torch.equal(Impute(TREE, BOUNDS)(X), expected)
    assert Impute(TREE)(X)[0, 2] == 0.5  # of [0, 1]


@pytest.mark.parametrize(
    "defaults", [{2: 1.5}, torch.tensor([0.0, 5.0, 1.5], dtype=torch.float64)]
)
def test_given_defaults(defaults: Any) -> None:
    imputed = Impute(TREE, BOUNDS, defaults)(X)
    assert imputed[0, 2] == 1.5 and imputed[1, 1] == 5.0


@given(seeds)
def test_active_columns_keep_their_bits(seed: int) -> None:
    tree = random_tree(seed)
    g = torch.Generator().manual_seed(seed)
    points = random_points(tree, 6, g)
    fill = torch.rand(tree.dim, generator=g, dtype=torch.float64)
    imputed = Impute(tree, defaults=fill)(points)
    active = tree.active_mask(points)
    assert torch.equal(imputed[active], points[active])
    assert torch.equal(imputed[~active], fill.expand_as(points)[~active])
    assert torch.equal(Impute(tree, defaults=fill)(imputed), imputed)


def test_a_baseline_that_does_not_see_inactive_columns() -> None:
    g = torch.Generator().manual_seed(0)
    train_X = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(
        20, 3, generator=g, dtype=torch.float64
    )
    train_X[:, 0] = train_X[:, 0].round()
    train_Y = train_X[:, :1] + train_X[:, 1:2].cos()
    transform = ChainedInputTransform(
        impute=Impute(TREE, BOUNDS), normalize=Normalize(3, bounds=BOUNDS)
    )
    model = SingleTaskGP(train_X, train_Y, input_transform=transform)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    other = X.clone()
    other[0, 2], other[1, 1] = -3.0, 0.1
    assert torch.equal(model.posterior(X).mean, model.posterior(other).mean)
    model.train()
    assert torch.equal(model.train_inputs[0], train_X)


def test_when_it_applies_and_copies() -> None:
    transform = Impute(TREE, BOUNDS, transform_on_train=False)
    assert torch.equal(transform(X), X)
    assert not torch.equal(transform.eval()(X), X)
    assert torch.equal(transform.untransform(X), X)
    for other in (copy.deepcopy(transform), pickle.loads(pickle.dumps(transform))):
        assert transform.equals(other)
        assert torch.equal(other.transform(X), transform.transform(X))
    assert not transform.equals(Impute(TREE, BOUNDS))
    assert not transform.equals(Impute(TREE, transform_on_train=False))
    assert Impute(TREE, BOUNDS).float()(X.float()).dtype == torch.float32


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"tree": {0: {0: [1]}}}, "ParameterTree"),
        ({"bounds": BOUNDS[:, :2]}, "2 x 3"),
        ({"defaults": {3: 0.0}}, "columns from 0 to 2"),
        ({"defaults": torch.zeros(2)}, "3 numbers"),
        ({"defaults": [0.0, 1.0, 2.0]}, "a tensor"),
        ({"defaults": {1: float("nan")}}, "finite"),
        ({"defaults": {1: "a"}}, r"defaults\[1\]: expected a number, got 'a'"),
        ({"defaults": {0.5: 0.0}}, "columns from 0 to 2, got 0.5"),
    ],
)
def test_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Impute(**{"tree": TREE, **arguments})
