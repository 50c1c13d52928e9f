"""Evidence and moments on arrays: those of the model's tensors, and the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize
from botorch.models.transforms.input import Warp
from botorch.optim.closures import get_loss_closure_with_grads
from botorch.optim.closures.core import NdarrayOptimizationClosure
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, LinearMean, ZeroMean
from gpytorch.mlls import (
    ExactMarginalLogLikelihood,
    LeaveOneOutPseudoLikelihood,
    MarginalLogLikelihood,
)
from gpytorch.priors import GammaPrior, HalfCauchyPrior, LogNormalPrior, NormalPrior
from hypothesis import given
from hypothesis import strategies as st
from strategies import seeds
from torch import Tensor

from botorch_structured.models import MonotoneGP
from botorch_structured.models.monotone import array_evidence, monotone_gp

pytestmark = pytest.mark.usefixtures("double")


def make_data(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    noise = torch.randn(n, 1, generator=g, dtype=torch.float64)
    return X, torch.tanh(2.0 * X[:, :1]) + torch.sin(5.0 * X[:, -1:]) + 0.1 * noise


def peer_of(mll: ExactMarginalLogLikelihood) -> NdarrayOptimizationClosure:
    """What BoTorch minimises otherwise."""
    free = {n: p for n, p in mll.named_parameters() if p.requires_grad}
    return NdarrayOptimizationClosure(get_loss_closure_with_grads(mll, free), free)


def the_objective(mll: MarginalLogLikelihood) -> Any:
    """What ``custom_fit`` hands to SciPy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monotone_gp, "fit_map", lambda *_, objective: objective)
        return mll.model.custom_fit(mll)


def objective_of(model: Any) -> tuple[ExactMarginalLogLikelihood, Any]:
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    return mll, the_objective(mll)


def check(model: Any, tolerance: float = 1e-10, seed: int = 0) -> None:
    """Value and gradient at the start and at points around it."""
    mll, objective = objective_of(model)
    assert objective is not None
    peer = peer_of(mll)
    start = peer.state
    rng = np.random.default_rng(seed)
    for width in (0.0, 0.3, 0.3):
        step = width * rng.standard_normal(start.shape)
        x = np.where(start == 0.0, step, start * np.exp(step))
        value, gradient = peer(x)
        actual = objective(x)
        assert actual[0] == pytest.approx(float(value), rel=tolerance, abs=tolerance)
        scale = max(1.0, float(np.abs(gradient).max()))
        np.testing.assert_allclose(
            actual[1], gradient, rtol=tolerance, atol=tolerance * scale
        )


def scaled(inner: Kernel) -> Kernel:
    return ScaleKernel(inner, outputscale_prior=GammaPrior(2.0, 0.15))


KERNELS: dict[str, Callable[[int], Kernel | None]] = {
    "default": lambda d: None,
    "rbf": lambda d: scaled(RBFKernel()),
    "matern": lambda d: scaled(MaternKernel(2.5, ard_num_dims=d)),
    "unscaled": lambda d: MaternKernel(
        2.5, lengthscale_prior=GammaPrior(3.0, 6.0), ard_num_dims=d
    ),
    "bounded": lambda d: RBFKernel(lengthscale_constraint=Interval(0.1, 9.0)),
    "some columns": lambda d: ScaleKernel(
        RBFKernel(ard_num_dims=1 + (d > 1), active_dims=(0, d - 1)[: 1 + (d > 1)])
    ),
}


@given(
    seeds,
    st.integers(1, 12),
    st.integers(1, 4),
    st.sampled_from(sorted(KERNELS)),
    st.sampled_from(["data", "signs"]),
)
def test_it_is_the_objective_of_autograd(
    seed: int, n: int, d: int, kind: str, told: str
) -> None:
    X, Y = make_data(n + 1, d, seed)
    rng = np.random.default_rng(seed)
    monotone = {0: 1} if d == 1 or rng.random() < 0.5 else {0: -1, d - 1: 1}
    points = make_data(1 + int(rng.integers(12)), d, seed + 1)[0]
    Yvar = torch.full_like(Y, 0.01) if rng.random() < 0.3 else None
    model = MonotoneGP(
        X,
        Y,
        monotone,
        train_Yvar=Yvar,
        covar_module=KERNELS[kind](d),
        mean_module=ZeroMean() if rng.random() < 0.3 else None,
        virtual_X=points,
        signs_in_fit=told == "signs",
        nu=float(10.0 ** rng.uniform(-3.0, 0.0)),
    )
    # a fit ends EP at 1e-8, and its gradient has an error of that size; tensors, and
    # this test, end it at 1e-10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_evidence.ArraySignEvidence, "tolerance", 1e-10)
        check(model, 1e-8 if told == "signs" else 1e-10, seed)


def test_as_published() -> None:
    """Softplus constraints and no priors."""
    check(MonotoneGP.as_published(*make_data(9, 2), {0: 1, 1: -1}), 1e-7)


def test_priors_constraints_and_held_parameters() -> None:
    X, Y = make_data(8, 2)
    kernel = ScaleKernel(
        RBFKernel(
            ard_num_dims=2,
            lengthscale_prior=LogNormalPrior(
                torch.tensor([0.1, 0.2]), torch.tensor([1.0, 0.5])
            ),
            lengthscale_constraint=GreaterThan(0.01),
        ),
        outputscale_prior=LogNormalPrior(1.0, 2.0),
    )
    likelihood = GaussianLikelihood(
        noise_prior=GammaPrior(1.1, 0.5),
        noise_constraint=GreaterThan(1e-3, transform=None, initial_value=0.2),
    )
    mean = ConstantMean(constant_prior=NormalPrior(0.3, 0.7))
    data: dict[str, Any] = {
        "covar_module": kernel,
        "mean_module": mean,
        "likelihood": likelihood,
        "input_transform": Normalize(2),
        "virtual_X": X[:4],
    }
    model = MonotoneGP(X, Y, {0: 1}, **data)
    check(model)
    likelihood.noise_covar.raw_noise.requires_grad_(False)
    check(model)
    kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    mean.raw_constant.requires_grad_(False)
    check(model)


def with_a_prior_of_a_root(X: Tensor, Y: Tensor) -> MonotoneGP:
    model = MonotoneGP(X, Y, {0: 1})
    prior = GammaPrior(2.0, 2.0)  # on a function of a parameter
    root = model.covar_module
    root.register_prior("root_prior", prior, lambda m: m.lengthscale.sqrt())
    return model


WARP = Warp(2, [0], bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
CAUCHY = RBFKernel(lengthscale_prior=HalfCauchyPrior(1.0))
OTHERS: dict[str, Callable[[Tensor, Tensor], MonotoneGP]] = {
    "mean": lambda X, Y: MonotoneGP(X, Y, {0: 1}, mean_module=LinearMean(2)),
    "prior": lambda X, Y: MonotoneGP(X, Y, {0: 1}, covar_module=CAUCHY),
    "transform": lambda X, Y: MonotoneGP(X, Y, {0: 1}, input_transform=WARP),
    "outputs": lambda X, Y: MonotoneGP(X, Y.repeat(1, 2), {0: 1}),
    "dtype": lambda X, Y: MonotoneGP(X.float(), Y.float(), {0: 1}),
    "root": with_a_prior_of_a_root,
}


@pytest.mark.parametrize("name", OTHERS)
def test_anything_else_is_left_to_tensors(name: str) -> None:
    X, Y = make_data(8, 2)
    model = OTHERS[name](X, Y)
    mll, objective = objective_of(model)
    assert objective is None
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 3}})
    assert model.posterior(X.to(model.train_targets)).mean.isfinite().all()


def test_another_objective_is_left_to_tensors() -> None:
    model = MonotoneGP(*make_data(8, 2), {0: 1})
    other = LeaveOneOutPseudoLikelihood(model.likelihood, model).train()
    assert the_objective(other) is None
