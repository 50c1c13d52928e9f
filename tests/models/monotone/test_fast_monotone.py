"""Evidence on arrays, predictions from kept factors and paths of ``MonotoneGP``."""

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
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, RBFKernelGrad, ScaleKernel
from gpytorch.kernels.matern52_kernel_grad import Matern52KernelGrad
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


BASES: dict[str, Callable[[int], Kernel | None]] = {
    "default": lambda d: None,
    "rbf": lambda d: ScaleKernel(RBFKernel()),
    "matern": lambda d: ScaleKernel(MaternKernel(2.5, ard_num_dims=d)),
    "some columns": lambda d: ScaleKernel(MaternKernel(2.5, active_dims=(0, d - 1))),
}


def make_model(
    seed: int, kind: str, d: int = 2, m: int = 1, **kwargs: Any
) -> MonotoneGP:
    g = torch.Generator().manual_seed(seed)
    n = int(torch.randint(1, 15, (), generator=g))
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    Y = torch.randn(n, m, generator=g, dtype=torch.float64) + 3.0 * X[:, :1]
    points = torch.rand(6, d, generator=g, dtype=torch.float64)
    signs = {0: 1, d - 1: -1} if seed % 2 else {0: 1}
    data: dict[str, Any] = {"covar_module": BASES[kind](d), "virtual_X": points}
    return MonotoneGP(X, Y, signs, **(data | kwargs))


PEERS = {"rbf": RBFKernelGrad, "matern": Matern52KernelGrad}


@given(
    seeds,
    st.sampled_from(sorted(PEERS)),
    st.booleans(),
)
def test_predictions_are_those_of_one_normal(
    seed: int, kind: str, linear: bool
) -> None:
    """Of values and derivatives, by GPyTorch's kernels: sites are observations."""
    mean = LinearMean(2) if linear else None
    raw = {"mean_module": mean, "outcome_transform": None}
    model = make_model(seed, kind, **raw).eval()
    scaled = model.covar_module
    length = scaled.base_kernel.lengthscale.expand(1, 2)
    peer = PEERS[kind](ard_num_dims=2)
    peer.lengthscale = length
    X, y, test = model.train_inputs[0], model.train_targets, torch.rand(4, 2)
    n, v, columns = len(X), len(model.virtual_points), model.columns
    points = torch.cat([X, model.virtual_points, test])
    K = scaled.outputscale * peer(points).to_dense()
    slopes = mean.weights.flatten() if mean is not None else torch.zeros(2)
    prior = [model.mean_module(points).unsqueeze(-1), slopes.expand(len(points), 2)]
    prior = torch.cat(prior, dim=-1).flatten()
    # rows of a point: its value, then its derivatives
    value = 3 * torch.arange(len(points))
    sites = torch.cat([value[n : n + v] + 1 + column for column in columns])
    result = model.ep_result
    told = result.precision > 0.0
    rows = torch.cat([value[:n], sites[told]])
    noise = torch.cat([model.likelihood.noise.expand(n), 1.0 / result.precision[told]])
    seen = torch.cat([y, (result.shift / result.precision)[told]])
    gain = torch.linalg.solve(K[rows][:, rows] + noise.diag(), K[rows]).mT
    mean, K = prior + gain @ (seen - prior[rows]), K - gain @ K[rows]
    found = [model.posterior(test), model.derivative_posterior(test, 0)]
    for posterior, at in zip(found, (value[-4:], value[-4:] + 1), strict=True):
        law = posterior.distribution
        expected = mean[at], K[at][:, at]
        for a, b in zip((law.mean, law.covariance_matrix), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def moments(model: Any, points: Tensor) -> list[Tensor]:
    """Mean, covariance, and the gradient of a function of both."""
    x = points.clone().requires_grad_(True)
    posterior = model.posterior(x)
    covariance = posterior.distribution.covariance_matrix
    total = posterior.mean.sum() + covariance.sin().sum()
    (gradient,) = torch.autograd.grad(total, x)
    return [posterior.mean, covariance, gradient]


def check_fast(model: Any, points: Tensor, tolerance: float = 1e-8) -> None:
    fast = moments(model, points)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MonotoneGP, "_fast_posterior", lambda self, X: None)
        for a, b in zip(fast, moments(model, points), strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@given(
    seeds,
    st.sampled_from(sorted(BASES)),
    st.sampled_from([(3,), (1,), (2, 1)]),
    st.sampled_from([1, 2]),
)
def test_they_are_those_of_gpytorch(seed: int, kind: str, shape: Any, m: int) -> None:
    d = 2 + seed % 3
    mean = LinearMean(d) if seed % 5 == 0 else None
    model = make_model(seed, kind, d, m, mean_module=mean)
    points = torch.rand(*shape, 3, d) if seed % 2 else torch.rand(*shape, 1, d)
    check_fast(model, points)
    check_fast(model, points[0] if points.ndim == 4 else points.squeeze(0))


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_paths_are_samples_of_the_posterior(m: int, dtype: torch.dtype) -> None:
    """Moments of 2048 paths."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(6, 2, generator=g, dtype=dtype)
    Y = torch.cat([X[:, :1].square(), X[:, :1] - X[:, 1:]], dim=-1)
    model = MonotoneGP(X, Y[:, -m:], {0: 1, 1: -1}, mean_module=LinearMean(2))
    model.to(dtype)
    points = torch.rand(7, 2, generator=g, dtype=dtype)
    paths = draw_matheron_paths(model, sample_shape=torch.Size([2048]))
    values = paths(points).reshape(2048, m, 7)
    posterior = model.posterior(points)
    assert (model.ep_result.precision > 0.0).any(dim=-1).all()
    sd = posterior.variance.sqrt().mT
    # four standard errors of a mean
    assert ((values.mean(0) - posterior.mean.mT) / sd).abs().max() < 0.09
    # random features widen paths of a SingleTaskGP by 6 %, too; those of the prior
    # without sites would widen these by 200 %
    assert (values.std(0) / sd - 1.0).abs().max() < 0.12
