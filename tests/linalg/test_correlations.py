import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel

from botorch_structured.kernels import LaplaceKernel
from botorch_structured.linalg.correlations import (
    ARRAY_VALUES,
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

    def test_curvature_is_the_derivative_of_the_slope(
        self, correlation: Correlation
    ) -> None:
        d = torch.tensor([1e-12, 1e-4, 0.3, 2.0, 40.0], dtype=torch.float64)
        d.requires_grad_(True)
        (first,) = torch.autograd.grad(correlation.value(d).sum(), d)
        slope, curvature = correlation.slope_and_curvature(d)
        torch.testing.assert_close(slope, -first, rtol=1e-6, atol=1e-12)
        (gradient,) = torch.autograd.grad(slope.sum(), d)
        torch.testing.assert_close(curvature, -gradient, rtol=1e-6, atol=1e-12)

    def test_arrays(self, correlation: Correlation) -> None:
        """What is for NumPy says the same, and leaves its argument alone."""
        d = torch.tensor([0.0, 1e-12, 1e-4, 0.3, 2.0, 40.0], dtype=torch.float64)
        array = d.numpy().copy()
        value, (slope, _) = correlation.value(d), correlation.slope_and_curvature(d)
        found = correlation.array_value_and_slope(array)
        np.testing.assert_allclose(found[0], value, rtol=1e-12)
        np.testing.assert_allclose(found[1], slope, rtol=1e-12)
        np.testing.assert_array_equal(array, d)

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


@pytest.mark.parametrize(
    ("name", "peer", "exponent"),
    [
        ("matern12", MaternKernel(0.5), 2),
        ("matern32", MaternKernel(1.5), 2),
        ("matern52", MaternKernel(2.5), 2),
        ("rbf", RBFKernel(), 2),
        ("laplace", LaplaceKernel(), 1),
    ],
)
def test_array_values(name: str, peer: Kernel, exponent: int) -> None:
    x = torch.randn(8, 3, dtype=torch.float64)
    peer = peer.double()
    peer.lengthscale = 1.0
    distance = (x.unsqueeze(1) - x).abs().pow(exponent).sum(-1).numpy()
    actual = ARRAY_VALUES[name](distance, np.empty_like(distance))
    np.testing.assert_allclose(actual, peer(x).to_dense().detach(), atol=1e-7)
