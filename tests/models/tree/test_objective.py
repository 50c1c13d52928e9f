"""The closed form of a fit's objective is the objective, for every option."""

import math
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.exceptions.errors import ModelFittingError
from botorch.models.kernels import CategoricalKernel
from gpytorch.constraints import GreaterThan, Interval, Positive
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    ScaleKernel,
)
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean, LinearMean
from gpytorch.mlls import ExactMarginalLogLikelihood, LeaveOneOutPseudoLikelihood
from gpytorch.priors import HalfCauchyPrior, LogNormalPrior, NormalPrior
from hypothesis import HealthCheck, given, settings
from leaf_models import check_objective, objective_of, random_model
from strategies import random_points, seeds
from torch import Tensor

from botorch_structured.kernels import LaplaceKernel
from botorch_structured.linalg import blocks
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.models.tree import objective as module
from botorch_structured.spaces import ParameterTree

# a ``SingleTaskGP`` has priors of the default dtype
pytestmark = pytest.mark.usefixtures("double")

TREE = ParameterTree(6, {0: {0.0: [1, 2], 1.0: [3], 2.0: []}})


def data(tree: ParameterTree, seed: int, n: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    X = random_points(tree, n, g)
    return X, torch.randn(n, 1, generator=g, dtype=torch.float64)


@pytest.fixture(params=[None, 0], ids=["kept", "by product"])
def distances(request: Any, monkeypatch: Any) -> None:
    if request.param is not None:
        monkeypatch.setattr(module, "_MAX_KEPT", request.param)


@pytest.mark.usefixtures("distances")
@pytest.mark.parametrize("rows_per_weight", [0.0, math.inf], ids=["blocks", "as one"])
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seeds)
def test_tree_kernel(rows_per_weight: float, seed: int) -> None:
    """Of random trees and options; by factors of each leaf, or one of all rows."""
    with mock.patch.object(blocks, "ROWS_PER_WEIGHT", rows_per_weight):
        check_objective(random_model(seed, n=(1, 2, 7, 25, 150)[seed % 5]), seed)


KERNELS: dict[str, Callable[[], Kernel | None]] = {
    "default": lambda: None,
    "matern12": lambda: ScaleKernel(MaternKernel(0.5, ard_num_dims=6)),
    "matern32": lambda: MaternKernel(1.5),
    "matern52": lambda: MaternKernel(2.5, active_dims=[1, 2, 5]),
    "rbf": lambda: ScaleKernel(
        RBFKernel(
            ard_num_dims=3,
            active_dims=[1, 3, 4],
            lengthscale_prior=LogNormalPrior(0.0, 1.0),
            lengthscale_constraint=GreaterThan(0.25, transform=None, initial_value=0.5),
        ),
        outputscale_prior=LogNormalPrior(0.0, 1.0),
    ),
    "laplace": lambda: ScaleKernel(LaplaceKernel(ard_num_dims=6)),
    "product": lambda: ScaleKernel(
        MaternKernel(2.5, ard_num_dims=4, active_dims=[1, 2, 3, 4])
        * CategoricalKernel(ard_num_dims=2, active_dims=[0, 5])
        * RBFKernel(active_dims=[1, 2])
    ),
}


@pytest.mark.usefixtures("distances")
@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seeds)
def test_conditional_kernel(kernel: str, seed: int) -> None:
    rng = random.Random(seed)
    X, Y = data(TREE, seed, rng.choice([3, 14, 40]))
    if kernel == "product":
        X[:, 5] = X[:, 5].mul(3).round()
    noise = 0.05 + torch.rand_like(Y) if rng.random() < 0.3 else None
    covar_module = KERNELS[kernel]()
    given = None if covar_module is None else covar_module.double()
    model = ConditionalGP(X, Y, TREE, noise, covar_module=given)
    if kernel == "matern12":
        model.likelihood = GaussianLikelihood(
            noise_prior=LogNormalPrior(-4.0, 1.0), noise_constraint=Positive()
        ).double()
    if kernel == "laplace":
        model.mean_module = ConstantMean().double()
    if noise is None:
        model.likelihood.noise = 1e-2
    # GPyTorch's squared distances are inner products, with an error of 1e-16 times the
    # largest (1e2 at short lengthscales), and this
    # kernel takes their roots
    check_objective(model, seed, tolerance=1e-6 if kernel == "matern12" else 1e-10)


@pytest.mark.parametrize("model_class", [TreeStructuredGP, ConditionalGP])
@pytest.mark.parametrize("n", [20, 170])
@pytest.mark.parametrize("kernel", KERNELS)
def test_without_decisions(kernel: str, n: int, model_class: Any) -> None:
    """A process with any of the kernels is that of the only leaf.

    Of 170 rows distances are products, and one triangle of the inverse is known.
    """
    X, Y = data(ParameterTree(6), 3, n)
    noise = 0.05 + torch.rand_like(Y) if kernel == "rbf" else None
    covar_module = KERNELS[kernel]()
    given = None if covar_module is None else covar_module.double()
    model = model_class(X, Y, {}, noise, covar_module=given)
    if noise is None:
        model.likelihood.noise = 1e-2
    check_objective(model, 0, tolerance=1e-6 if kernel == "matern12" else 1e-10)


def test_parameters_that_are_held() -> None:
    for model_class in (TreeStructuredGP, ConditionalGP):
        model = model_class(*data(TREE, 1, 20), TREE)
        model.likelihood.raw_noise.requires_grad_(False)
        model.mean_module.requires_grad_(False)
        check_objective(model, 0)
        assert model.likelihood.noise.item() == pytest.approx(0.03)


def test_more_weights_than_rows() -> None:
    """One factor of all rows in place of one of the weights."""
    tree = ParameterTree(9, {0: {0.0: [1], 1.0: [2]}})
    model = TreeStructuredGP(*data(tree, 2, 30), tree)
    _, objective = objective_of(model)
    assert objective is not None and model.covar_module.num_weights > 60
    model.likelihood.noise = 1e-2
    check_objective(model, 0)
    large = TreeStructuredGP(*data(tree, 2, 200), tree)
    large.likelihood.noise = 1e-2
    check_objective(large, 0)


@pytest.mark.parametrize("features", ["additive", "fourier"])
def test_weights_of_one_leaf(features: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted to its covariance; so are those without data to none."""
    monkeypatch.setattr(module, "_MANY_UNSHARED", 0)
    leaves = {float(v): [1 + v] for v in range(9)}
    tree = ParameterTree(11, {0: leaves, 1: {0.0: [], 1.0: [10]}})
    for n in (7, 90):
        model = TreeStructuredGP(*data(tree, n, n), tree, shared_features=features)
        _, objective = objective_of(model)
        assert objective is not None
        assert objective._num_weights < model.covar_module.num_weights
        model.likelihood.noise = 1e-2
        check_objective(model, 0)


class _Mine(TreeStructuredGP):
    def compute_custom_loss(self, mll: Any, **kwargs: Any) -> Tensor:
        return 2.0 * super().compute_custom_loss(mll, **kwargs)


class _Called(TreeStructuredGP):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        prior = super().__call__(*args, **kwargs)
        return MultivariateNormal(prior.mean + 3.0, prior.lazy_covariance_matrix)


class _Louder(MaternKernel):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return 4.0 * super().forward(*args, **kwargs)


class _Plain(MaternKernel): ...


class _Raised(ConstantMean):
    def forward(self, input: Tensor) -> Tensor:
        return 1.0 + super().forward(input)


class _Sharper(LogNormalPrior):
    def log_prob(self, value: Tensor) -> Tensor:
        return 2.0 * super().log_prob(value)


def _with_priors(model: Any) -> Any:
    mean = model.mean_module
    mean.register_prior("more", NormalPrior(0.0, 1.0), lambda m: m.constant**2)
    model.likelihood.register_prior("noise_prior", _Sharper(-4.0, 1.0), "noise")
    return model


OF_A_USER: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "prior": lambda X, Y: ConditionalGP(
        X,
        Y,
        TREE,
        covar_module=MaternKernel(lengthscale_prior=HalfCauchyPrior(1.0)),
    ),
    "priors": lambda X, Y: _with_priors(TreeStructuredGP(X, Y, TREE)),
    "constraint": lambda X, Y: ConditionalGP(
        X, Y, TREE, covar_module=RBFKernel(lengthscale_constraint=Interval(0.1, 4.0))
    ),
    "subclass": lambda X, Y: ConditionalGP(X, Y, TREE, covar_module=_Plain()),
    "mean": lambda X, Y: TreeStructuredGP(  # with a value that was not declared
        X.where(X != 2.0, 7.0), Y, TREE, leaf_offset="fixed", mean_module=ConstantMean()
    ),
}


@pytest.mark.parametrize("name", OF_A_USER)
def test_parts_of_a_user(name: str) -> None:
    """Torch evaluates them in the closed form of everything else."""
    check_objective(OF_A_USER[name](*data(TREE, 0, 12)), 0)


UNKNOWN: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "dtype": lambda X, Y: TreeStructuredGP(X.float(), Y.float(), TREE),
    "loss": lambda X, Y: _Mine(X, Y, TREE),
    "call": lambda X, Y: _Called(X, Y, TREE),
    "mean": lambda X, Y: TreeStructuredGP(X, Y, TREE, mean_module=LinearMean(6)),
    "shift": lambda X, Y: TreeStructuredGP(X, Y, TREE, mean_module=_Raised()),
    "kernel": lambda X, Y: ConditionalGP(X, Y, TREE, covar_module=PeriodicKernel()),
    "sum": lambda X, Y: ConditionalGP(
        X, Y, TREE, covar_module=AdditiveKernel(RBFKernel(), MaternKernel())
    ),
    "subclass": lambda X, Y: ConditionalGP(X, Y, TREE, covar_module=_Louder()),
    "likelihood": lambda X, Y: ConditionalGP(
        X,
        Y,
        TREE,
        likelihood=FixedNoiseGaussianLikelihood(
            torch.full((len(X),), 0.1, dtype=X.dtype), learn_additional_noise=True
        ),
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_has_no_closed_form(name: str) -> None:
    """It is fitted all the same, by the general objective."""
    X, Y = data(TREE, 0, 12)
    model = UNKNOWN[name](X, Y)
    mll, objective = objective_of(model)
    assert objective is None
    options = {"optimizer_kwargs": {"options": {"maxiter": 2}}}
    assert not fit_gpytorch_mll(mll, **options).training


@pytest.mark.parametrize("option", ["leaf_offset", "leaf_hyperparameters"])
def test_values_that_were_not_declared(option: str) -> None:
    X, Y = data(TREE, 0, 12)
    options = {option: {"leaf_offset": "fixed"}.get(option, "independent")}
    model = TreeStructuredGP(X.where(X != 2.0, 7.0), Y, TREE, **options)
    with pytest.raises(ValueError, match="declared decision values only"):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))


def _no_evidence(self: Any, *_: Any) -> Tensor:
    return torch.zeros(())


def test_another_objective_has_no_closed_form() -> None:
    model = TreeStructuredGP(*data(TREE, 0, 12), TREE)
    for kind in (
        LeaveOneOutPseudoLikelihood,
        type("Mine", (ExactMarginalLogLikelihood,), {"forward": _no_evidence}),
    ):
        assert model.fit_objective(kind(model.likelihood, model)) is None


def test_the_evidence_is_that_of_a_call() -> None:
    """Of a subclass with its own prior; of enough rows for the evidence by leaf."""
    X, Y = data(TREE, 0, 40)
    model = _Called(X, Y, TREE)
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    expected = -mll(model(*model.train_inputs), model.train_targets)
    torch.testing.assert_close(model.compute_custom_loss(mll), expected)


def test_a_fit_is_given_up_behind_another_one() -> None:
    _, objective = objective_of(TreeStructuredGP(*data(TREE, 0, 12), TREE))
    theta = objective.read()
    value, _ = objective(theta)
    objective.compete(value)
    for _ in range(5):
        objective(theta)
    objective.compete(value - 0.1)  # per row
    for _ in range(3):
        objective(theta)
    with pytest.raises(ModelFittingError, match="ahead"):
        objective(theta)
