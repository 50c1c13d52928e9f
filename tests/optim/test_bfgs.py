from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from botorch_structured.optim.refine import maximize_in_unit_box


def objective(function):  # noqa: ANN001, ANN201
    """Value and gradient as `maximize_in_unit_box` wants them, calls counted."""
    calls = []

    def value_and_gradient(U: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(len(U))
        leaf = U.detach().requires_grad_()
        value = function(leaf, start)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        return value.detach(), gradient

    return value_and_gradient, calls


def test_quadratics_with_interior_and_bounded_optima(device) -> None:
    generator = torch.Generator().manual_seed(0)
    n, k = 12, 4
    root = torch.randn(n, k, k, generator=generator, dtype=torch.double)
    H = (root @ root.mT + 0.05 * torch.eye(k)).to(device)
    centre = 2 * torch.rand(n, k, generator=generator, dtype=torch.double) - 0.5
    centre = centre.to(device)

    def f(U: Tensor, start: Tensor) -> Tensor:
        gap = U - centre[start]
        return -torch.einsum("ni,nij,nj->n", gap, H[start], gap)

    vg, calls = objective(f)
    U0 = torch.rand(n, k, generator=generator, dtype=torch.double).to(device)
    valid = torch.ones(n, k, dtype=torch.bool, device=device)
    U, value = maximize_in_unit_box(vg, U0, valid, tolerance=1e-14)
    every = torch.arange(n, device=device)
    assert torch.allclose(value, f(U, every))
    assert (value >= f(U0, every)).all()
    # The best one is exact: first-order conditions with bounds.
    best = value.argmax()
    _, gradient = vg(U, every)
    g, u = gradient[best], U[best]
    stuck = ((u == 0) & (g <= 0)) | ((u == 1) & (g >= 0))
    assert (g.abs()[~stuck] < 1e-5).all()
    assert len(calls) < 42


def test_a_curved_valley() -> None:
    def f(U: Tensor, start: Tensor) -> Tensor:
        x, y = 4 * U.unbind(-1)[0] - 2, 4 * U.unbind(-1)[1] - 1
        return -((1 - x) ** 2 + 100 * (y - x**2) ** 2)

    vg, _ = objective(f)
    U0 = torch.tensor([[0.2, 0.5]], dtype=torch.double)
    valid = torch.ones(1, 2, dtype=torch.bool)
    U, value = maximize_in_unit_box(vg, U0, valid, max_iter=200)
    assert float(value) > -1e-12
    assert torch.allclose(U, torch.tensor([[0.75, 0.5]]).double(), atol=1e-6)


@pytest.mark.parametrize("width", [1e-1, 1e-3, 1e-5])
def test_widths(width: float) -> None:
    vg, calls = objective(
        lambda U, start: -torch.log1p(((U[:, 0] - 0.4321) / width) ** 2)
    )
    U0 = torch.tensor([[0.4321 + 3 * width]], dtype=torch.double)
    U, _ = maximize_in_unit_box(vg, U0, torch.ones(1, 1, dtype=torch.bool))
    assert abs(float(U) - 0.4321) < 1e-4 * width
    assert len(calls) < 25


def test_invalid_coordinates_and_points_stay() -> None:
    def f(U: Tensor, start: Tensor) -> Tensor:
        value = -((U - 0.9) ** 2).sum(-1)
        return torch.where(U[:, 0] > 0.6, value - math.inf, value)

    vg, _ = objective(f)
    U0 = torch.tensor([[0.2, 0.3], [0.5, 0.5]], dtype=torch.double)
    valid = torch.tensor([[True, False], [True, True]])
    U, value = maximize_in_unit_box(vg, U0, valid)
    assert float(U[0, 1]) == 0.3
    assert (U[:, 0] <= 0.6).all()
    assert value.isfinite().all()
    assert (value >= vg(U0, torch.arange(2))[0]).all()
    # Up to the border of what is admissible, and then along it.
    assert float(U[1, 0]) > 0.59
    assert float(U[1, 1]) == pytest.approx(0.9, abs=1e-6)


def test_a_flat_function_takes_one_call() -> None:
    vg, calls = objective(lambda U, start: 0 * U.sum(-1))
    U0 = torch.rand(5, 3, dtype=torch.double)
    U, _ = maximize_in_unit_box(vg, U0, torch.ones(5, 3, dtype=torch.bool))
    assert torch.equal(U, U0)
    assert len(calls) == 1
