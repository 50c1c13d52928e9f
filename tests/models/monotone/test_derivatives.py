"""Derivative covariances: GPyTorch's derivative kernels, and autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, RBFKernelGrad
from gpytorch.kernels.matern52_kernel_grad import Matern52KernelGrad
from torch import Tensor

from botorch_structured.models.monotone.site_kernel import StationaryDerivatives

DOUBLE = {"dtype": torch.float64}


def kernels(matern: bool, **kwargs: Any) -> tuple[Kernel, Kernel]:
    """Ours takes the first, the second has the derivatives."""
    if matern:
        return MaternKernel(nu=2.5, **kwargs), Matern52KernelGrad(**kwargs)
    return RBFKernel(**kwargs), RBFKernelGrad(**kwargs)


def points(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), **DOUBLE)


@pytest.mark.parametrize("matern", [False, True])
@pytest.mark.parametrize("ard", [None, 3])
def test_gpytorch(matern: bool, ard: int | None) -> None:
    kernel, peer = kernels(matern, ard_num_dims=ard)
    length = 0.3 + points(0, 1, ard or 1)
    for k in (kernel.double(), peer.double()):
        k.lengthscale = length
    x, v = points(1, 5, 3), points(2, 4, 3)
    ours = StationaryDerivatives.of(kernel)
    for a, b in ((x, v), (x, x)):
        # values, then derivatives along each column, of each point
        full = peer(a, b).to_dense().reshape(len(a), 4, len(b), 4)
        torch.testing.assert_close(ours.value(a, b), full[:, 0, :, 0])
        columns = [2, 0]
        cross = full[:, 0][..., [3, 1]].movedim(-1, 1).flatten(1)
        torch.testing.assert_close(ours.cross(a, b, columns), cross)
        gram = full[:, [3, 1]][..., [3, 1]].permute(1, 0, 3, 2).reshape(2 * len(a), -1)
        torch.testing.assert_close(ours.gram(a, columns, b), gram)


@pytest.mark.parametrize("matern", [False, True])
def test_gradients_are_finite_where_points_meet(matern: bool) -> None:
    kernel, _ = kernels(matern, ard_num_dims=2)
    kernel = kernel.double()
    v = points(2, 4, 2)
    x = v.clone().requires_grad_(True)
    ours = StationaryDerivatives.of(kernel)
    total = (ours.cross(x, v, [0]).square().sum() + ours.gram(x, [0, 1], v).sum()).sum()
    for gradient in torch.autograd.grad(total, (x, kernel.raw_lengthscale)):
        assert gradient.isfinite().all()
