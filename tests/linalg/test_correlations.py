from __future__ import annotations

import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from botorch_structured.linalg.correlations import (
    CORRELATIONS,
    Correlation,
    squared_distance,
)

PEERS = {"matern": MaternKernel(2.5), "rbf": RBFKernel()}


@pytest.mark.parametrize("correlation", CORRELATIONS, ids=lambda c: c.name)
class TestCorrelations:
    def test_equals_gpytorch(self, correlation: Correlation) -> None:
        x = torch.randn(20, 3, dtype=torch.float64)
        peer = PEERS[correlation.name].double()
        peer.lengthscale = 1.0
        expected = peer(x, x[:5]).to_dense()
        actual = correlation.value(squared_distance(x, x[:5]))
        torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-7)

    def test_slope_is_minus_the_derivative(self, correlation: Correlation) -> None:
        d = torch.tensor([1e-12, 1e-4, 0.3, 2.0, 40.0], dtype=torch.float64)
        d.requires_grad_(True)
        (gradient,) = torch.autograd.grad(correlation.value(d).sum(), d)
        value, slope = correlation.value_and_slope(d.detach())
        torch.testing.assert_close(value, correlation.value(d).detach())
        torch.testing.assert_close(slope, -gradient, rtol=1e-6, atol=1e-12)

    def test_finite_at_zero_distance(self, correlation: Correlation) -> None:
        x = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
        correlation.value(squared_distance(x, x)).sum().backward()
        assert torch.isfinite(x.grad).all()

    def test_spectrum(self, correlation: Correlation) -> None:
        """Stratified frequencies approach the correlation: E cos(w r) = k(r)."""
        m = 4000
        w = torch.tensor(
            [correlation.spectral_quantile((i + 0.5) / m) for i in range(m)],
            dtype=torch.float64,
        )
        for r in (0.1, 0.7, 2.0):
            k = correlation.value(torch.tensor(r * r, dtype=torch.float64))
            assert math.isclose((w * r).cos().mean(), k, abs_tol=2e-3)
