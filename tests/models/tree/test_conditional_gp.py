"""ConditionalGP: BoTorch's contract, and what isolation of branches means."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.kernels import (
    RBFKernel,
)
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import assume, given
from model_test_case import StructuredModelTestCase
from strategies import random_points, random_tree, seeds
from torch import Tensor

from botorch_structured.kernels import ConditionalKernel
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.spaces import ParameterTree

# Six leaf columns on three paths, two shared ones, the decision last.
DEPENDENCIES = {8: {0.0: [0, 1], 1.0: [2, 3], 2.0: [4, 5]}}
TREE = ParameterTree(9, DEPENDENCIES)


class TestContract(StructuredModelTestCase):
    dim = 9
    free_columns = list(range(8))
    path_fixed_features = [{8: float(p)} for p in range(3)]
    model_kwargs = {"hierarchical_dependencies": DEPENDENCIES}

    def make_data(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        X = TREE.impute(random_points(TREE, n, g))
        active = TREE.active_mask(X)
        own = torch.where(active[:, :6], X[:, :6], 0.0).sum(-1)
        f = torch.sin(4.0 * own) + X[:, 6:8].sum(-1)
        return X, (f + 0.05 * torch.randn(n, generator=g)).unsqueeze(-1)

    def make_model(self, X: Tensor, Y: Tensor, **kwargs: Any) -> ConditionalGP:
        return ConditionalGP(X, Y, DEPENDENCIES, **kwargs)


def problem(seed: int, n: int, **kwargs: Any) -> tuple[ParameterTree, Tensor, Tensor]:
    tree = random_tree(seed, **kwargs)
    g = torch.Generator().manual_seed(seed)
    X = random_points(tree, n, g)
    return tree, X, torch.randn(n, 1, generator=g, dtype=torch.float64)


@given(seeds)
def test_branches_are_isolated(seed: int) -> None:
    """What is observed on other paths changes nothing on this one."""
    tree, X, Y = problem(seed, 12)
    key = tree.path_key(X)
    assume(tree.decision_columns and len(key.unique()) > 1)
    mine = key == key[0]
    model = ConditionalGP(X, Y, tree, outcome_transform=None)
    shifted = torch.where(mine.unsqueeze(-1), Y, Y + 3.0)
    other = ConditionalGP(X, shifted, tree, outcome_transform=None)
    other.load_state_dict(model.state_dict())
    a, b = model.posterior(X[mine]), other.posterior(X[mine])
    assert torch.equal(a.mean, b.mean)
    assert not torch.equal(
        model.posterior(X[~mine]).mean, other.posterior(X[~mine]).mean
    )
    # the posterior of points on different paths is uncorrelated
    covariance = model.posterior(X).distribution.covariance_matrix
    assert (covariance[mine][:, ~mine] == 0.0).all()


def test_an_unseen_path_has_the_prior() -> None:
    X = random_points(TREE, 20, torch.Generator().manual_seed(1))
    X = X[X[:, 8] != 2.0]
    model = ConditionalGP(X, X[:, :1], TREE, outcome_transform=None)
    new = X.clone()
    new[:, 8] = 2.0
    posterior = model.posterior(new)
    assert (posterior.mean == model.mean_module.constant).all()
    torch.testing.assert_close(posterior.variance, torch.ones_like(posterior.variance))


def test_a_retried_fit_samples_priors_wherever_that_leads() -> None:
    X = random_points(TREE, 10, torch.Generator().manual_seed(1))
    model = ConditionalGP(X, X[:, :1], TREE)
    for name, module, _, _, setter in model.named_priors():
        for value in (1e-9, 1e9):
            if not name.endswith("lengthscale_prior"):
                setter(module, torch.as_tensor(value))
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_repeated_outcomes_raise_the_noise_floor() -> None:
    X = random_points(TREE, 20, torch.Generator().manual_seed(1))
    steps = (X[:, :1] * 3).round()
    for Y, floor in ((X[:, :1], 1e-9), (steps, 1e-4)):
        noise = ConditionalGP(X, Y, TREE).likelihood.noise_covar
        assert noise.raw_noise_constraint.lower_bound.item() == pytest.approx(floor)


def test_categorical_columns() -> None:
    """Columns without an order are equal or not, on the paths where they exist."""
    tree = ParameterTree(4, {0: {0.0: [1, 2], 1.0: [3]}})
    g = torch.Generator().manual_seed(0)
    X = torch.rand(30, 4, generator=g, dtype=torch.float64)
    X[:, 0] = (X[:, 0] > 0.4).double()
    X[:, 2] = (3 * X[:, 2]).floor()
    model = ConditionalGP(X, X[:, 1:2] + X[:, 2:3], tree, categorical_features=[0, 2])
    near, far = X[:1].clone(), X[:1].clone()
    near[:, 0] = far[:, 0] = 0.0
    near[:, 2], far[:, 2] = 1.0, 2.0
    zero = near.clone()
    zero[:, 2] = 0.0
    K = model.covar_module(torch.cat([zero, near, far])).to_dense()
    torch.testing.assert_close(K[0, 1], K[0, 2])
    assert K[0, 1] < K[0, 0]
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.posterior(X).mean.isfinite().all()


@pytest.mark.parametrize("model_class", [ConditionalGP, TreeStructuredGP])
def test_categorical_columns_without_decisions(model_class: Any) -> None:
    """Ax's flat spaces come with no dependencies: names are still no numbers."""
    X = torch.rand(12, 2, generator=torch.Generator().manual_seed(0)).double()
    X[:, 1] = (3 * X[:, 1]).floor()
    model = model_class(X, X[:, :1], {}, categorical_features=[1])
    points = torch.tensor([[0.3, 0.0], [0.3, 1.0], [0.3, 2.0]]).double()
    K = model.covar_module(points).to_dense()
    torch.testing.assert_close(K[0, 1], K[0, 2])
    assert K[0, 1] < K[0, 0]
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.posterior(points).mean.isfinite().all()


def test_decisions_alone() -> None:
    tree = ParameterTree(2, {0: {0.0: [1], 1.0: []}, 1: {0.0: [], 1.0: []}})
    X = torch.tensor([[0.0, 0], [0, 1], [1, 0], [0, 0]], dtype=torch.float64)
    Y = torch.tensor([[1.0], [2], [4], [1]], dtype=torch.float64)
    model = ConditionalGP(X, Y, tree)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert (model.posterior(X).mean - Y).abs().max() < 1.0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"categorical_features": [9]}, "columns from 0 to 8"),
        ({"categorical_features": [0], "covar_module": RBFKernel()}, "got both"),
        (
            {"covar_module": ConditionalKernel(RBFKernel(), ParameterTree(9, {}))},
            "same tree",
        ),
    ],
)
def test_errors(arguments: dict[str, Any], message: str) -> None:
    X = random_points(TREE, 10, torch.Generator().manual_seed(1))
    with pytest.raises(ValueError, match=message):
        ConditionalGP(X, X[:, :1], DEPENDENCIES, **arguments)


def test_an_undeclared_value_of_a_strict_decision_is_refused() -> None:
    tree = ParameterTree(2, {0: {0.0: [1]}}, values={0: [0.0, 1.0]})
    X = torch.tensor([[0.0, 0.5], [2.0, 0.5]], dtype=torch.float64)
    with pytest.raises(ValueError, match="declared values"):
        ConditionalGP(X, X[:, :1], tree)
