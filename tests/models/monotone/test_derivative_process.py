"""Values and derivatives: covariances, and the joint system, written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, RBFKernelGrad, ScaleKernel
from gpytorch.kernels.matern52_kernel_grad import Matern52KernelGrad
from gpytorch.means import ConstantMean, LinearMean, Mean
from hypothesis import given
from hypothesis import strategies as st
from strategies import seeds
from torch import Tensor

from botorch_structured.models import MonotoneGP
from botorch_structured.models.monotone.derivative_process import (
    VALUE,
    DerivativeCovariance,
    DerivativeProcess,
    Sites,
)

pytestmark = pytest.mark.usefixtures("double")

DOUBLE = {"dtype": torch.float64}


def rand(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), **DOUBLE)


# -- covariances: GPyTorch's derivative kernels, and autograd ------------------------


@pytest.mark.parametrize("matern", [False, True])
@pytest.mark.parametrize("ard", [None, 3])
def test_gpytorch(matern: bool, ard: int | None) -> None:
    length = 0.3 + rand(0, 1, ard or 1)
    kernel: Kernel = RBFKernel(ard_num_dims=ard)
    peer: Kernel = RBFKernelGrad(ard_num_dims=ard)
    if matern:
        kernel = MaternKernel(nu=2.5, ard_num_dims=ard)
        peer = Matern52KernelGrad(ard_num_dims=ard)
    for k in (kernel, peer):
        k.lengthscale = length
    x, v = rand(1, 5, 3), rand(2, 4, 3)
    ours = DerivativeCovariance.of(kernel)
    columns = [2, 0]
    for a, b in ((x, v), (x, x)):
        # values, then derivatives along each column, of each point
        full = peer(a, b).to_dense().reshape(len(a), 4, len(b), 4)
        torch.testing.assert_close(ours(a, VALUE, b, VALUE), full[:, 0, :, 0])
        cross = full[:, 0][..., [3, 1]].movedim(-1, 1).flatten(1)
        torch.testing.assert_close(ours(a, VALUE, b, columns), cross)
        back = full[:, [3, 1], :, 0].movedim(1, 0).flatten(0, 1)
        torch.testing.assert_close(ours(a, columns, b, VALUE), back)
        gram = full[:, [3, 1]][..., [3, 1]].permute(1, 0, 3, 2).reshape(2 * len(a), -1)
        torch.testing.assert_close(ours(a, columns, b, columns), gram)
        torch.testing.assert_close(ours(a, [0], b, columns), gram[len(a) :])


@pytest.mark.parametrize("matern", [False, True])
def test_gradients_are_finite_where_points_meet(matern: bool) -> None:
    kernel = MaternKernel(ard_num_dims=2) if matern else RBFKernel(ard_num_dims=2)
    v = rand(2, 4, 2)
    x = v.clone().requires_grad_(True)
    ours = DerivativeCovariance.of(kernel)
    slopes = ours(x, [0, 1], v, [0, 1])
    total = ours(x, VALUE, v, [0]).square().sum() + slopes.sum()
    for gradient in torch.autograd.grad(total, (x, kernel.raw_lengthscale)):
        assert gradient.isfinite().all()


# -- the process ----------------------------------------------------------------------


@given(seeds, st.booleans(), st.booleans(), st.sampled_from([0, 1, 5]))
def test_dense(seed: int, matern: bool, linear: bool, n: int) -> None:
    """Values, derivatives and the density of sites, from the joint normal."""
    columns = [1, 0]
    inner = MaternKernel(nu=2.5, ard_num_dims=2) if matern else RBFKernel()
    base = ScaleKernel(inner).double()
    base.outputscale, inner.lengthscale = 1.7, 0.5
    mean: Mean = LinearMean(2) if linear else ConstantMean()
    mean.double()
    slopes = torch.zeros(12, **DOUBLE)
    if linear:
        with torch.no_grad():
            mean.weights.copy_(torch.tensor([[0.5], [-2.0]]))
        slopes = torch.tensor([-2.0, 0.5], **DOUBLE).repeat_interleave(6)
    X, y, noise = rand(seed, n, 2), rand(seed + 1, n), 0.1 + rand(seed + 2, n)
    points = rand(seed + 3, 6, 2)
    scale, target = 10.0 * rand(seed + 4, 12) - 5.0, rand(seed + 5, 12) - 0.3
    scale[3] = target[3] = 0.0  # says nothing
    sites = Sites(points, columns, scale, target)
    process = DerivativeProcess(mean, base, X, y, noise, sites)
    k = DerivativeCovariance.of(base)
    told = torch.arange(n + 12) != n + 3
    joint = torch.cat(
        [
            torch.cat([k(X, VALUE, X, VALUE), k(X, VALUE, points, columns)], -1),
            torch.cat(
                [k(points, columns, X, VALUE), k(points, columns, points, columns)], -1
            ),
        ]
    ) + torch.diag(torch.cat([noise, scale**-2]).clamp_max(1e9))
    error = torch.cat([y - mean(X), target / scale - slopes])[told]
    x = rand(seed + 6, 4, 2)
    tolerance = {"rtol": 1e-8, "atol": 1e-8}
    inverse = torch.linalg.inv(joint[told][:, told])
    for at in (VALUE, [0]):
        cross = torch.cat([k(x, at, X, VALUE), k(x, at, points, columns)], -1)[:, told]
        prior = mean(x) if at is VALUE else slopes[-1].expand(4)
        found, features = process.moments(x, at)
        torch.testing.assert_close(found, prior + cross @ inverse @ error, **tolerance)
        explained = cross @ inverse @ cross.mT
        torch.testing.assert_close(features @ features.mT, explained, **tolerance)
    covariance = k(x, VALUE, x, VALUE)
    posterior = process.posterior(x)
    cross = torch.cat([k(x, VALUE, X, VALUE), k(x, VALUE, points, columns)], -1)
    explained = cross[:, told] @ inverse @ cross[:, told].mT
    torch.testing.assert_close(
        posterior.covariance_matrix, covariance - explained, **tolerance
    )
    # of scaled derivatives given the values, without the constant
    normal = torch.distributions.MultivariateNormal
    zero = torch.zeros_like(error)
    value = normal(zero, joint[told][:, told]).log_prob(error)
    if n:
        value = value - normal(zero[:n], joint[:n, :n]).log_prob(error[:n])
    value = value - scale.abs()[scale != 0.0].log().sum()
    constant = 0.5 * 11 * torch.log(torch.tensor(2.0 * torch.pi, **DOUBLE))
    torch.testing.assert_close(process.log_probability(), value + constant, **tolerance)


# -- kept factors predict what GPyTorch predicts from the same prior -----------------

KERNELS: dict[str, Callable[[int], Kernel | None]] = {
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
    data: dict[str, Any] = {"covar_module": KERNELS[kind](d), "virtual_X": points}
    return MonotoneGP(X, Y, signs, **(data | kwargs))


def moments(model: Any, points: Tensor) -> list[Tensor]:
    """Mean, covariance, and the gradient of a function of both."""
    x = points.clone().requires_grad_(True)
    posterior = model.posterior(x)
    covariance = posterior.distribution.covariance_matrix
    total = posterior.mean.sum() + covariance.sin().sum()
    (gradient,) = torch.autograd.grad(total, x)
    return [posterior.mean, covariance, gradient]


def check(model: Any, points: Tensor, tolerance: float = 1e-8) -> None:
    fast = moments(model, points)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MonotoneGP, "_fast_posterior", lambda self, X: None)
        for a, b in zip(fast, moments(model, points), strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@given(
    seeds,
    st.sampled_from(sorted(KERNELS)),
    st.sampled_from([(3,), (1,), (2, 1)]),
    st.sampled_from([1, 2]),
)
def test_they_are_those_of_gpytorch(seed: int, kind: str, shape: Any, m: int) -> None:
    d = 2 + seed % 3
    mean = LinearMean(d) if seed % 5 == 0 else None
    model = make_model(seed, kind, d, m, mean_module=mean)
    points = torch.rand(*shape, 3, d) if seed % 2 else torch.rand(*shape, 1, d)
    check(model, points)
    check(model, points[0] if points.ndim == 4 else points.squeeze(0))


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
