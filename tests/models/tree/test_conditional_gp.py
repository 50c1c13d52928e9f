"""ConditionalGP: BoTorch's contract, and what isolation of branches means."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.kernels import (
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    ScaleKernel,
)
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import assume, given
from model_test_case import StructuredModelTestCase
from strategies import random_points, random_tree, seeds
from torch import Tensor

from botorch_structured.kernels import ConditionalKernel
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.spaces import Between, ParameterTree

# Six leaf columns on three paths, two shared ones, the decision last.
DEPENDENCIES = {8: {0.0: [0, 1], 1.0: [2, 3], 2.0: [4, 5]}}
TREE = ParameterTree(9, DEPENDENCIES)


def base_kernels(dim: int) -> list[Any]:
    """Recognised by the structured algebra, and not."""
    return [
        None,
        MaternKernel(nu=2.5, ard_num_dims=dim),
        ScaleKernel(RBFKernel()),
        ScaleKernel(MaternKernel(nu=1.5, active_dims=[0, dim - 1])),
        RBFKernel() + LinearKernel(),
        ScaleKernel(PeriodicKernel() * RBFKernel(ard_num_dims=dim)),
    ]


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


class TestContractBaseKernel(TestContract):
    """The same with a base kernel that the structured algebra does not know."""

    def make_model(self, X: Tensor, Y: Tensor, **kwargs: Any) -> ConditionalGP:
        batch_shape = X.shape[:-2]
        kernel = MaternKernel(nu=1.5, batch_shape=batch_shape)
        kwargs["covar_module"] = ScaleKernel(kernel, batch_shape=batch_shape)
        return ConditionalGP(X, Y, DEPENDENCIES, **kwargs)

    @pytest.mark.skip("BoTorch subsets the covariances that it, or we, made")
    def test_several_outputs(self) -> None: ...

    @pytest.mark.skip("the kernel has no batch of folds; the other classes test it")
    def test_cross_validation(self) -> None: ...


def problem(seed: int, n: int, **kwargs: Any) -> tuple[ParameterTree, Tensor, Tensor]:
    tree = random_tree(seed, **kwargs)
    g = torch.Generator().manual_seed(seed)
    X = random_points(tree, n, g)
    return tree, X, torch.randn(n, 1, generator=g, dtype=torch.float64)


def randomised(model: ConditionalGP, seed: int) -> ConditionalGP:
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    return model


@given(seeds)
def test_structured_is_dense(seed: int) -> None:
    """Evidence, its gradient, mean and covariance, to 1e-8."""
    tree, X, Y = problem(seed, 5 + seed % 30)
    assume(tree.decision_columns)
    kernels = base_kernels(tree.dim)
    kernel = kernels[seed % len(kernels)]
    model = randomised(ConditionalGP(X, Y, tree, covar_module=kernel).double(), seed)
    # a tenth of the outcomes' scale: at 1e-4 both lose digits to conditioning
    model.likelihood.noise = 1e-2
    assert model._is_structured()
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()
    fast = model.compute_custom_loss(mll)
    model._is_structured = lambda: False
    slow = model.compute_custom_loss(mll)
    del model._is_structured
    torch.testing.assert_close(fast, slow, rtol=1e-8, atol=1e-8)
    parameters = [p for p in model.parameters() if p.requires_grad]
    for a, b in zip(
        torch.autograd.grad(fast, parameters),
        torch.autograd.grad(slow, parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
    model.eval()
    test = random_points(tree, 12, torch.Generator().manual_seed(seed + 1))
    test = test.reshape(4, 3, tree.dim)
    fast = model.posterior(test).distribution
    model._use_predictor = lambda: False
    slow = model.posterior(test).distribution
    for name in ("mean", "covariance_matrix"):
        a, b = getattr(fast, name), getattr(slow, name)
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@given(seeds)
def test_inactive_columns_have_no_influence(seed: int) -> None:
    """To the last bit, in training data and in what is predicted."""
    tree, X, Y = problem(seed, 10)
    assume(tree.decision_columns)
    test = random_points(tree, 6, torch.Generator().manual_seed(seed + 1))
    posterior = ConditionalGP(X, Y, tree).posterior(test)
    other = ConditionalGP(tree.impute(X, 0.123), Y, tree)
    again = other.posterior(tree.impute(test, 0.987))
    assert torch.equal(posterior.mean, again.mean)
    assert torch.equal(posterior.variance, again.variance)


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


def test_the_priors_of_the_paper() -> None:
    """Log-normal(0, 1) on lengthscales and sigma_f, horseshoe(1) on sigma_n."""
    X = random_points(TREE, 10, torch.Generator().manual_seed(1))
    model = ConditionalGP(X, X[:, :1], TREE)
    scaled, noise = model.covar_module.base_kernel, model.likelihood.noise_covar
    scaled.outputscale, noise.noise = 4.0, 0.25
    priors = {name: (p, c(m)) for name, m, p, c, _ in model.named_priors()}
    by_kind = {name.rpartition(".")[2]: value for name, value in priors.items()}
    assert by_kind["amplitude_prior"][1].item() == pytest.approx(2.0)
    assert by_kind["noise_std_prior"][1].item() == pytest.approx(0.5)
    for kind in ("amplitude_prior", "lengthscale_prior"):
        prior = by_kind[kind][0]
        assert (prior.loc.item(), prior.scale.item()) == (0.0, 1.0)
    assert by_kind["noise_std_prior"][0].scale.item() == 1.0
    # a retried fit samples priors, wherever that leads
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


def test_a_range_condition_has_a_kernel_within_the_range() -> None:
    tree = ParameterTree(2, conditions={1: Between(0, 0.5, 1.0)})
    X = torch.tensor([[0.1, 0.5], [0.4, 0.5], [0.6, 0.2], [0.9, 0.2]]).double()
    K = ConditionalGP(X, X[:, :1], tree).covar_module(X).to_dense()
    assert (K[:2, 2:] == 0.0).all()
    assert 0.0 < K[0, 1] < K[0, 0] and 0.0 < K[2, 3] < K[2, 2]


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
