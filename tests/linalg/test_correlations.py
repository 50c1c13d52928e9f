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
from botorch_structured.linalg.parameters import (
    Hyperparameter,
    LogInterval,
    log_gaussian_prior,
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


def test_raw_is_the_logarithm() -> None:
    h = Hyperparameter((1, 3), 0.5, 1.0, (1e-2, 1e2))
    torch.testing.assert_close(h.value, torch.full((1, 3), 0.5, dtype=torch.float64))
    h.value = torch.tensor([[0.1, 1.0, 10.0]])
    torch.testing.assert_close(h.raw_value.exp(), h.value)
    h.value = 1e9  # what a wide prior may sample is brought inside the bounds
    assert (h.value <= 1e2 * (1 + 1e-6)).all()


def test_bounds_reach_the_optimiser() -> None:
    from botorch.optim.utils import get_parameters_and_bounds

    _, bounds = get_parameters_and_bounds(Hyperparameter((1, 1), 1.0, 1.0, (0.1, 10)))
    lower, upper = bounds["raw_value"]
    assert lower.exp().item() == pytest.approx(0.1)
    assert upper.exp().item() == pytest.approx(10)


def test_prior_mode_is_the_optimum_of_the_objective() -> None:
    """In log space, where the optimiser works, the density peaks at the mode."""
    prior = log_gaussian_prior(0.3, 0.8)
    raw = torch.linspace(-4, 3, 7001, dtype=torch.float64)
    best = raw[prior.log_prob(raw.exp()).argmax()].exp()
    assert best.item() == pytest.approx(0.3, rel=1e-3)
    reference = torch.distributions.LogNormal(prior.loc, prior.scale)
    torch.testing.assert_close(
        prior.log_prob(raw.exp()).float(), reference.log_prob(raw.exp()).float()
    )


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)])
def test_bad_bounds(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="lower_bound"):
        LogInterval(*bounds)
