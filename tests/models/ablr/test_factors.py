"""Triangular factors have the products of what they are of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from botorch_structured.models.ablr.factors import (
    cholesky_qr,
    triangular_factors,
)


def make_data(spread: float, device: torch.device) -> Tensor:
    """Columns of all sizes, and singular values from 1 to ``spread`` besides."""
    g = torch.Generator().manual_seed(0)
    data = torch.randn(300, 8, generator=g, dtype=torch.float64)
    basis = torch.linalg.qr(data).Q
    turned = torch.linalg.qr(data[:8]).Q
    sizes = torch.logspace(0, 1, 8, base=spread, dtype=torch.float64)
    columns = torch.logspace(-6, 6, 8, dtype=torch.float64)
    return ((basis * sizes) @ turned * columns).to(device)


def same_up_to_signs(a: Tensor, b: Tensor, rtol: float) -> None:
    signs = a.diagonal().sign() * b.diagonal().sign()
    a = a * signs.unsqueeze(-1)
    size = torch.linalg.vector_norm(b, dim=0)  # of each column
    assert float(((a - b).abs() / size).max()) < rtol


@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-4])
def test_both_algorithms_agree(spread: float, device: torch.device) -> None:
    """To rounding, times the condition number; products would have its square."""
    data = make_data(spread, device)
    by_products, accurate = cholesky_qr(data)
    assert accurate
    by_reflections = torch.linalg.qr(data, mode="r").R
    same_up_to_signs(by_products, by_reflections, 1e-13)
    assert torch.equal(by_products, by_products.triu())
    smallest = torch.linalg.svdvals(data / torch.linalg.vector_norm(data, dim=0))[-1]
    scaled = by_products / torch.linalg.vector_norm(by_products, dim=0)
    ours = torch.linalg.svdvals(scaled)[-1]
    torch.testing.assert_close(ours, smallest, rtol=1e-14 / spread, atol=0.0)


@pytest.mark.parametrize("case", ["dependent", "nearly dependent", "zero", "nan"])
def test_dependent_columns_are_left_to_reflections(
    case: str, device: torch.device
) -> None:
    data = make_data(0.5, device)
    if case == "nearly dependent":
        data[:, 3] = data[:, 2] + 1e-7 * data[:, 2].norm() * data[:, 0].sign()
    elif case == "dependent":
        data[:, 3] = data[:, 2]
    else:
        data[:, 3] = 0.0 if case == "zero" else torch.nan
    assert not cholesky_qr(data)[1]
    factor = triangular_factors([data])[0]
    if case == "nan":
        assert factor.isnan().any()
    else:
        torch.testing.assert_close(
            factor.mT @ factor, data.mT @ data, rtol=1e-12, atol=1e-12
        )


def test_it_is_what_the_device_is_good_at(device: torch.device) -> None:
    data = make_data(0.5, device)
    factor = triangular_factors([data])[0]
    expected = torch.linalg.qr(data, mode="r").R
    if device.type == "cpu":
        assert torch.equal(factor, expected)
    same_up_to_signs(factor, expected, 1e-13)
