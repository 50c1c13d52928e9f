"""EP: fixed points, from wherever; moments and tails; sites; what is reported."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from botorch_structured.linalg.factor import Array
from botorch_structured.models.monotone.expectation_propagation import (
    expectation_propagation,
    marginals,
    probit_log_mass,
    probit_site,
    truncated_moments,
)

DOUBLE = {"dtype": torch.float64}
NUS = (0.5, 0.1, 1e-2, 1e-4, 1e-6)


def problem(
    seed: int, d: int, bends: int, n: int | None = None, m: int | None = None
) -> tuple[Array, Array]:
    """Derivatives along the first column, given data with, without, against a trend."""
    g = torch.Generator().manual_seed(seed)
    unit = torch.rand(4, generator=g, **DOUBLE)
    n = n or 5 + int(25 * unit[0])
    m = m or 5 + int(60 * unit[1])
    length = 10.0 ** (1.1 * unit[2] - 0.8) * d**0.5
    noise = 10.0 ** (2.7 * unit[3] - 3.0)
    X = torch.rand(n, d, generator=g, **DOUBLE)
    V = torch.rand(m, d, generator=g, **DOUBLE)
    f = 2.0 * bends * X[:, 0] + 0.5 * torch.sin(5.0 * X[:, -1]) * (d > 1)
    f = f + 0.5 * torch.sin(8.0 * X[:, 0]) * (bends == 0)
    y = f + noise * torch.randn(n, generator=g, **DOUBLE)
    y = (y - y.mean()) / y.std()

    def k(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * torch.cdist(a / length, b / length).square())

    def slope(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, None, 0] - b[None, :, 0]) / length**2

    factor = torch.linalg.cholesky(k(X, X) + noise**2 * torch.eye(n, **DOUBLE))
    half = torch.linalg.solve_triangular(factor, k(X, V) * slope(X, V), upper=False)
    white = torch.linalg.solve_triangular(factor, y[:, None], upper=False)
    gram = k(V, V) * (length**-2 - slope(V, V).square())
    return (half.mT @ white).squeeze(-1).numpy(), (gram - half.mT @ half).numpy()


def posterior(mean: Array, S: Array, sites: Array) -> tuple[Array, Array]:
    """Mean and covariance of the latent values given the sites."""
    now = marginals(mean, S, sites)
    explained = S @ (now.inverse * np.sqrt(sites[: len(mean)])).T
    return mean + S @ now.weight, S - explained @ explained.T


def small_steps(mean: Array, S: Array, nu: float, x: Array) -> Array:
    """A fifth of each step, without adaptation."""
    for _ in range(1000):
        now = marginals(mean, S, x)
        f = np.concatenate(probit_site(now.cavity_mean, now.cavity_variance, nu)) - x
        size = np.abs(f * np.concatenate([now.variance, np.sqrt(now.variance)])).max()
        if size <= 1e-10:
            return x
        x = x + 0.2 * f
    raise AssertionError(f"{size} after 1000 sweeps")


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5])
def test_random_problems(d: int) -> None:
    """200 in all: converged, and to the fixed point that small steps find."""
    for i in range(40):
        bends, nu = (1, 0, -1)[i % 3], NUS[i % 5]
        mean, S = problem(1000 * d + i, d, bends)
        fast = expectation_propagation(mean, S, nu)
        assert fast.residual <= 1e-10, (d, i)
        start = fast.sites if i % 4 else np.zeros_like(fast.sites)
        a = posterior(mean, S, fast.sites)
        b = posterior(mean, S, small_steps(mean, S, nu, start))
        sd = np.sqrt(S.diagonal())
        assert (np.abs(a[0] - b[0]) / sd).max() < 1e-6, (d, i)
        gap = (a[1] - b[1]).diagonal() / np.square(sd)
        assert np.abs(gap).max() < 1e-6, (d, i)


def test_evidence_of_many_signs_is_that_of_integration() -> None:
    """Genz's, in SciPy: log P(g + nu e > 0) for correlated derivatives."""
    for seed in range(3):
        mean, S = problem(seed, 2, 1, n=4, m=6)
        exact = multivariate_normal(np.zeros(6), S + 0.01 * np.eye(6), abseps=1e-9)
        log_probability = float(exact.logcdf(mean))
        found = expectation_propagation(mean, S, 0.1).log_evidence
        assert found == pytest.approx(log_probability, abs=0.1)


def test_evidence_and_its_gradient() -> None:
    """Of Gaussian sites, times their factor, at a mean; in which it is stationary."""
    mean, S = problem(2, 2, -1, n=4, m=7)
    S = S + 0.1 * np.eye(7)
    found = expectation_propagation(mean, S, 0.1)
    precision, shift = found.sites.reshape(2, -1)
    mode = shift / precision
    of_sites = multivariate_normal(mean, S + np.diag(1.0 / precision))
    factor = 0.5 * np.log(2.0 * np.pi / precision).sum()
    expected = found.log_scale + factor + of_sites.logpdf(mode)
    assert found.log_evidence == pytest.approx(expected, rel=1e-9)
    inverse = np.linalg.inv(S + np.diag(1.0 / precision))
    np.testing.assert_allclose(found.root.T @ found.root, inverse, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.weight, inverse @ (mode - mean), rtol=1e-6)
    step = np.zeros(7)
    step[3] = 1e-5
    ends = [expectation_propagation(mean + s * step, S, 0.1) for s in (1.0, -1.0)]
    slope = (ends[0].log_evidence - ends[1].log_evidence) / 2e-5
    assert found.weight[3] == pytest.approx(slope, rel=1e-6)


def test_a_bad_start_is_not_the_end() -> None:
    """A run that does not converge from the old sites starts anew."""
    mean, S = problem(1, 2, -1, n=9, m=14)
    expected = expectation_propagation(mean, S, 0.1)
    bad = np.full_like(expected.sites, 1e12)
    sweeps = expected.sweeps
    lost = expectation_propagation(mean, S, 0.1, max_sweeps=sweeps)
    assert lost.residual <= 1e-10
    result = expectation_propagation(mean, S, 0.1, bad, max_sweeps=sweeps)
    assert result.sweeps == sweeps and np.array_equal(result.sites, expected.sites)
    close = expectation_propagation(mean, S, 0.1, expected.sites)
    assert close.sweeps == 0


def test_what_is_reported_without_convergence() -> None:
    mean, S = problem(4, 2, -1)
    result = expectation_propagation(mean, S, 0.1, max_sweeps=3)
    assert result.sweeps == 3 and result.residual > 1e-10
    assert np.isfinite(result.sites).all() and np.isfinite(result.log_evidence)


@pytest.mark.parametrize("away", [-1e3, -30.0, 30.0, 1e3])
def test_tails(away: float) -> None:
    """Signs that are contradicted, or confirmed, by many standard deviations."""
    _, S = problem(3, 1, 1, n=6, m=12)
    S = 0.1 * S / S.diagonal().mean() + np.eye(12)
    mean = away * np.sqrt(S.diagonal())
    for nu in (0.1, 1e-6):
        result = expectation_propagation(mean, S, nu)
        assert result.residual <= 1e-10
        value, covariance = posterior(mean, S, result.sites)
        assert np.isfinite(value).all() and np.isfinite(covariance).all()
        if away < 0.0:
            # pulled to zero as far as a nu against a variance of one allows
            assert (value > 12.0 * nu * nu * mean - 1e-6).all()
        else:
            np.testing.assert_allclose(value, mean)
            np.testing.assert_allclose(covariance, S)
            assert result.log_evidence == pytest.approx(0.0, abs=1e-9)


TAILS = [-1e6, -1e3, -100.0, -20.0, -8.01, -8.0, -7.99, -7.0, -5.0, -1.0, -0.1]
TAILS += [0.0, 0.1, 1.0, 3.0, 8.0, 20.0, 30.0]


def exact(z: float) -> tuple[float, float, float]:
    with mpmath.workdps(60):
        x = mpmath.mpf(z)
        r = mpmath.npdf(x) / (mpmath.erfc(-x / mpmath.sqrt(2)) / 2)
        return float(r), float(r + x), float(1 - r * (r + x))


def test_truncated_moments() -> None:
    actual = truncated_moments(np.array(TAILS))
    expected = np.array([exact(z) for z in TAILS]).T
    # eps z^4 is lost in differences, left of -8 none
    np.testing.assert_allclose(np.stack(actual), expected, rtol=3e-12)


@pytest.mark.parametrize("nu", [0.5, 1e-2, 1e-6])
@pytest.mark.parametrize("z", [-1e5, -300.0, -9.0, -3.0, 0.0, 2.0, 10.0])
def test_a_site_matches_moments(nu: float, z: float) -> None:
    """Mass, mean and variance of Phi(g / nu) N(g; m, v), by their textbook formulas."""
    v = 0.25  # whose square is exact
    with mpmath.workdps(60):
        total = mpmath.mpf(nu) ** 2 + v
        mean = mpmath.mpf(z) * mpmath.sqrt(total)
        mass = mpmath.erfc(-z / mpmath.sqrt(2)) / 2
        r = mpmath.npdf(z) / mass
        tilted_mean = mean + v * r / mpmath.sqrt(total)
        tilted_variance = v - v * v * r * (z + r) / total
        precision = 1 / tilted_variance - 1 / mpmath.mpf(v)
        shift = tilted_mean / tilted_variance - mean / v
        log_mass = mpmath.log(mass)
    m = np.array([float(mean)])
    actual = probit_site(m, np.array([v]), nu)
    # z comes back from mean / sqrt(total) with rounding, which r in the tails magnifies
    np.testing.assert_allclose(actual[0], float(precision), rtol=1e-10)
    np.testing.assert_allclose(actual[1], float(shift), rtol=1e-10)
    np.testing.assert_allclose(
        probit_log_mass(m, np.array([v]), nu), float(log_mass), rtol=1e-12
    )


def test_far_right_a_site_says_nothing() -> None:
    precision, shift = probit_site(np.array([1e4]), np.array([1.0]), 1e-6)
    assert precision[0] == shift[0] == 0.0
