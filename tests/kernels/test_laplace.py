from __future__ import annotations

import pytest
import torch
from torch import Tensor

from botorch_structured.kernels.mondrian import LaplaceKernel

DTYPE = torch.float64


def points(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, dtype=DTYPE, generator=generator)


def dense(kernel: LaplaceKernel, a: Tensor, b: Tensor | None = None) -> Tensor:
    return kernel(a, a if b is None else b).to_dense()


def by_definition(a: Tensor, b: Tensor, lengthscale: Tensor) -> Tensor:
    difference = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    return torch.exp(-(difference / lengthscale.unsqueeze(-2)).sum(-1))


class TestValues:
    @pytest.mark.parametrize("ard", [None, 3])
    def test_definition(self, ard: int | None) -> None:
        kernel = LaplaceKernel(ard_num_dims=ard).double()
        kernel.lengthscale = torch.tensor([0.3, 1.0, 4.0][: ard or 1], dtype=DTYPE)
        a, b = points(7, 3), points(4, 3, seed=1)
        expected = by_definition(a, b, kernel.lengthscale)
        torch.testing.assert_close(dense(kernel, a, b), expected, rtol=1e-14, atol=0)
        torch.testing.assert_close(
            dense(kernel, a), by_definition(a, a, kernel.lengthscale)
        )

    def test_columns_as_a_batch(self) -> None:
        kernel = LaplaceKernel(ard_num_dims=3).double()
        kernel.lengthscale = torch.tensor([0.3, 1.0, 4.0], dtype=DTYPE)
        a, b = points(2, 5, 3), points(2, 4, 3, seed=1)
        each = kernel(a, b, last_dim_is_batch=True).to_dense()
        assert each.shape == (2, 3, 5, 4)
        torch.testing.assert_close(each.prod(-3), dense(kernel, a, b))
        assert kernel(a, diag=True, last_dim_is_batch=True).shape == (2, 3, 5)

    def test_device(self, device: torch.device) -> None:
        kernel = LaplaceKernel(ard_num_dims=3).double()
        a = points(5, 3)
        expected = dense(kernel, a)
        on_device = dense(kernel.to(device), a.to(device))
        torch.testing.assert_close(on_device.cpu(), expected)


class TestGradients:
    def test_derivatives(self) -> None:
        kernel = LaplaceKernel(ard_num_dims=2).double()
        a, b = points(3, 2).requires_grad_(), points(2, 4, 2, seed=1).requires_grad_()
        assert torch.autograd.gradcheck(lambda a, b: kernel(a, b).to_dense(), (a, b))

    def test_zero_at_zero_distance(self) -> None:
        """Points that coincide do not pull at each other, nor at the lengthscales."""
        kernel = LaplaceKernel(ard_num_dims=2).double()
        x = points(1, 2).repeat(4, 1).requires_grad_()
        dense(kernel, x).sum().backward()
        assert torch.equal(x.grad, torch.zeros_like(x))
        assert torch.equal(
            kernel.raw_lengthscale.grad, torch.zeros_like(kernel.raw_lengthscale)
        )
