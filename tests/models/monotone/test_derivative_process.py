"""Values and derivatives: covariances, and the joint system, written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, RBFKernelGrad, ScaleKernel
from gpytorch.kernels.matern52_kernel_grad import Matern52KernelGrad
from gpytorch.means import LinearMean
from hypothesis import given
from hypothesis import strategies as st
from strategies import seeds
from torch import Tensor

from botorch_structured.models import MonotoneGP

pytestmark = pytest.mark.usefixtures("double")


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
