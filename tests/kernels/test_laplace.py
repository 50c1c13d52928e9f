from __future__ import annotations

import copy

import pytest
import torch
from gpytorch.kernels import MaternKernel
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

    def test_is_a_product_over_dimensions_and_not_matern(self) -> None:
        kernel = LaplaceKernel(ard_num_dims=2).double()
        kernel.lengthscale = torch.tensor([0.5, 2.0], dtype=DTYPE)
        a = points(6, 2)
        product = torch.ones(6, 6, dtype=DTYPE)
        for j, scale in enumerate((0.5, 2.0)):
            one = MaternKernel(nu=0.5).double()
            one.lengthscale = scale
            product = product * one(a[:, j : j + 1]).to_dense()
        torch.testing.assert_close(dense(kernel, a), product)
        matern = MaternKernel(nu=0.5, ard_num_dims=2).double()
        matern.lengthscale = torch.tensor([0.5, 2.0], dtype=DTYPE)
        assert (matern(a).to_dense() - product).abs().max() > 0.01

    def test_batch_shapes(self) -> None:
        kernel = LaplaceKernel(ard_num_dims=2, batch_shape=torch.Size([3])).double()
        kernel.lengthscale = points(3, 1, 2) + 0.1
        a, b = points(4, 2), points(5, 3, 6, 2, seed=1)
        assert kernel(a).shape == (3, 4, 4)
        together = dense(kernel, a, b)
        assert together.shape == (5, 3, 4, 6)
        for i in range(3):
            torch.testing.assert_close(
                together[:, i], by_definition(a, b[:, i], kernel.lengthscale[i])
            )

    @pytest.mark.parametrize("shape", [(6, 3), (2, 6, 3)])
    def test_diagonal(self, shape: tuple[int, ...]) -> None:
        kernel = LaplaceKernel(ard_num_dims=3).double()
        a, b = points(*shape), points(*shape, seed=1)
        assert torch.equal(kernel(a, diag=True), torch.ones(shape[:-1], dtype=DTYPE))
        torch.testing.assert_close(
            kernel(a, b, diag=True), dense(kernel, a, b).diagonal(dim1=-1, dim2=-2)
        )

    def test_columns_as_a_batch(self) -> None:
        kernel = LaplaceKernel(ard_num_dims=3).double()
        kernel.lengthscale = torch.tensor([0.3, 1.0, 4.0], dtype=DTYPE)
        a, b = points(2, 5, 3), points(2, 4, 3, seed=1)
        each = kernel(a, b, last_dim_is_batch=True).to_dense()
        assert each.shape == (2, 3, 5, 4)
        torch.testing.assert_close(each.prod(-3), dense(kernel, a, b))
        assert kernel(a, diag=True, last_dim_is_batch=True).shape == (2, 3, 5)

    def test_float32(self) -> None:
        kernel = LaplaceKernel(ard_num_dims=3)
        a = points(5, 3)
        assert dense(kernel, a.float()).dtype == torch.float32
        torch.testing.assert_close(
            dense(kernel, a.float()).double(),
            dense(copy.deepcopy(kernel).double(), a),
            rtol=1e-5,
            atol=1e-6,
        )

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

    def test_second_derivatives_are_right_or_an_error(self) -> None:
        """Never a wrong number: PyTorch has none of the distances of a matrix."""
        kernel = LaplaceKernel(ard_num_dims=2).double()
        a, b = points(3, 2).requires_grad_(), points(3, 2, seed=1).requires_grad_()
        assert torch.autograd.gradgradcheck(lambda *x: kernel(*x, diag=True), (a, b))
        value = dense(kernel, a, b).sum()
        for x in (a, kernel.raw_lengthscale):
            (slope,) = torch.autograd.grad(value, x, create_graph=True)
            for other in (a, b, kernel.raw_lengthscale):
                with pytest.raises(NotImplementedError, match="derivative for '_cdist"):
                    torch.autograd.grad(slope.sum(), other, retain_graph=True)

    def test_zero_at_zero_distance(self) -> None:
        """Points that coincide do not pull at each other, nor at the lengthscales."""
        kernel = LaplaceKernel(ard_num_dims=2).double()
        x = points(1, 2).repeat(4, 1).requires_grad_()
        dense(kernel, x).sum().backward()
        assert torch.equal(x.grad, torch.zeros_like(x))
        assert torch.equal(
            kernel.raw_lengthscale.grad, torch.zeros_like(kernel.raw_lengthscale)
        )

    def test_equal_columns_only(self) -> None:
        """In a conditional space inactive columns are equal, and the others are not."""
        kernel = LaplaceKernel(ard_num_dims=2).double()
        x = points(5, 2)
        x[:, 1] = 0.5
        x.requires_grad_()
        dense(kernel, x, x[:2].detach()).sum().backward()
        assert torch.equal(x.grad[:, 1], torch.zeros(5, dtype=DTYPE))
        assert x.grad[2:, 0].abs().min() > 0
        assert kernel.raw_lengthscale.grad[0, 1] == 0
