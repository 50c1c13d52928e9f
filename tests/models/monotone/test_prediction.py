"""Kept factors predict what GPyTorch predicts from the same kernel, mean and data."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import LinearMean
from hypothesis import given
from hypothesis import strategies as st
from strategies import seeds
from torch import Tensor

from botorch_structured.models import MonotoneGP

KERNELS: dict[str, Callable[[int], Kernel | None]] = {
    "default": lambda d: None,
    "rbf": lambda d: ScaleKernel(RBFKernel()),
    "matern": lambda d: ScaleKernel(MaternKernel(2.5, ard_num_dims=d)),
    "some columns": lambda d: ScaleKernel(MaternKernel(2.5, active_dims=(0, d - 1))),
}


pytestmark = pytest.mark.usefixtures("double")


def make_model(seed: int, kind: str, d: int = 2, **kwargs: Any) -> MonotoneGP:
    g = torch.Generator().manual_seed(seed)
    n = int(torch.randint(1, 15, (), generator=g))
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    Y = torch.randn(n, 1, generator=g, dtype=torch.float64) + 3.0 * X[:, :1]
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


@given(seeds, st.sampled_from(sorted(KERNELS)), st.sampled_from([(3,), (1,), (2, 1)]))
def test_they_are_those_of_gpytorch(seed: int, kind: str, shape: Any) -> None:
    d = 2 + seed % 3
    mean = LinearMean(d) if seed % 5 == 0 else None
    model = make_model(seed, kind, d, mean_module=mean)
    points = torch.rand(*shape, 3, d) if seed % 2 else torch.rand(*shape, 1, d)
    check(model, points)
    check(model, points[0] if points.ndim == 4 else points.squeeze(0))


def test_what_is_kept_follows_the_model() -> None:
    model, points = make_model(7, "rbf"), torch.rand(4, 2)
    before = model.posterior(points).mean
    model.train()  # as GPyTorch asks for
    model.covar_module.base_kernel.base_kernel.lengthscale = 0.2
    assert not torch.allclose(model.posterior(points).mean, before)
    check(model, points)
    X, y = model.train_inputs[0], model.train_targets
    model.set_train_data(X.clone(), y + X[:, 0], strict=False)
    check(model, points)
    model.train().eval()
    check(model, points)
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(same.posterior(points).mean, model.posterior(points).mean)
    other = make_model(7, "rbf")
    other.posterior(points)
    other.load_state_dict(model.state_dict())
    check(other, points)
