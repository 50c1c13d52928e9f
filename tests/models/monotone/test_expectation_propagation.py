"""EP: fixed points, from wherever; moments and tails; sites; what is reported."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from botorch_structured.models.monotone import (
    expectation_propagation as expectation_propagation_module,
)
from botorch_structured.models.monotone.expectation_propagation import (
    TOLERANCE,
    EPResult,
    GaussianSites,
    ep_result,
    expectation_propagation,
    log_site_evidence,
    probit_log_mass,
    probit_site,
    site_system,
    truncated_moments,
)

DOUBLE = {"dtype": torch.float64}
NUS = (0.5, 0.1, 1e-2, 1e-4, 1e-6)


def problem(
    seed: int, d: int, bends: int, n: int | None = None, m: int | None = None
) -> tuple[Tensor, Tensor]:
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
    return (half.mT @ white).squeeze(-1), gram - half.mT @ half


def run(mean: Tensor, S: Tensor, nu: float, **kwargs: Any) -> EPResult:
    """EP on tensors of one problem; ``start`` is an earlier result."""
    if (start := kwargs.pop("start", None)) is not None:
        kwargs["start"] = torch.cat([start.sites.precision, start.sites.shift]).numpy()
    found = expectation_propagation(mean.numpy(), S.numpy(), nu, **kwargs)
    tolerance = kwargs.get("tolerance", TOLERANCE)
    return ep_result([found], torch.Size(), tolerance)


def posterior(mean: Tensor, S: Tensor, result: EPResult) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the latent values given the sites."""
    system = site_system(S, result.sites)
    explained = S @ system.root.mT
    shift = (explained @ system.residual(mean).unsqueeze(-1)).squeeze(-1)
    return mean + shift, S - explained @ explained.mT


def small_steps(mean: Tensor, S: Tensor, nu: float, start: EPResult | None) -> EPResult:
    """A fifth of each step, without adaptation."""
    m = len(mean)
    ep = expectation_propagation_module._Problem(mean.numpy(), S.numpy(), nu)
    x = np.zeros(2 * m)
    if start is not None:
        x = torch.cat([start.sites.precision, start.sites.shift]).numpy()
    for _ in range(1000):
        now = ep.marginals(x[:m], x[m:])
        f = np.concatenate(probit_site(now.cavity_mean, now.cavity_variance, nu)) - x
        size = np.abs(f * np.concatenate([now.variance, np.sqrt(now.variance)])).max()
        if size <= 1e-10:
            break
        x = x + 0.2 * f
    else:
        raise AssertionError(f"{size} after 1000 sweeps")
    precision, shift = torch.from_numpy(x).split(m)
    zero = torch.zeros((), **DOUBLE)
    return EPResult(GaussianSites(precision, shift, zero), zero, zero, zero)


def evidence(mean: Tensor, S: Tensor, nu: float) -> Tensor:
    result = run(mean, S, nu)
    assert result.converged.all()
    return log_site_evidence(site_system(S, result.sites), mean, result.sites)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5])
def test_random_problems(d: int) -> None:
    """200 in all: converged, and to the fixed point that small steps find."""
    for i in range(40):
        bends, nu = (1, 0, -1)[i % 3], NUS[i % 5]
        mean, S = problem(1000 * d + i, d, bends)
        fast = run(mean, S, nu)
        assert fast.converged, (d, i)
        slow = small_steps(mean, S, nu, fast if i % 4 else None)
        a, b = posterior(mean, S, fast), posterior(mean, S, slow)
        sd = S.diagonal().sqrt()
        assert ((a[0] - b[0]) / sd).abs().max() < 1e-6, (d, i)
        gap = (a[1] - b[1]).diagonal() / sd.square()
        assert gap.abs().max() < 1e-6, (d, i)


def test_a_batch_is_its_elements() -> None:
    problems = [problem(i, 2, (1, 0, -1)[i % 3], n=9, m=14) for i in range(6)]
    runs = [expectation_propagation(m.numpy(), S.numpy(), 0.1) for m, S in problems]
    batch = ep_result(runs, torch.Size([2, 3]))
    assert batch.sites.log_scale.shape == batch.sweeps.shape == (2, 3)
    for i, one in enumerate(runs):
        precision = batch.sites.precision[divmod(i, 3)].cpu().numpy()
        assert np.array_equal(precision, one.sites[:14])
        assert batch.sweeps[divmod(i, 3)] == one.sweeps


def test_evidence_of_many_signs_is_that_of_integration() -> None:
    """Genz's, in SciPy: log P(g + nu e > 0) for correlated derivatives."""
    for seed in range(3):
        mean, S = problem(seed, 2, 1, n=4, m=6)
        seen = S + 0.01 * torch.eye(6, **DOUBLE)
        exact = multivariate_normal(torch.zeros(6).numpy(), seen.numpy(), abseps=1e-9)
        log_probability = float(exact.logcdf(mean.numpy()))
        assert float(evidence(mean, S, 0.1)) == pytest.approx(log_probability, abs=0.1)


def test_a_bad_start_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that does not converge from the old sites starts anew."""
    mean, S = problem(1, 2, -1, n=9, m=14)
    expected = run(mean, S, 0.1)
    starts: list[bool] = []
    original = expectation_propagation_module._run

    def first_fails(given: Any, x: Any, *args: Any) -> Any:
        starts.append(bool(x.any()))
        end = original(given, x, *args)
        return end._replace(residual=1.0) if len(starts) == 1 else end

    monkeypatch.setattr(expectation_propagation_module, "_run", first_fails)
    result = run(mean, S, 0.1, start=expected)
    assert starts == [True, False] and result.converged
    assert result.sweeps == expected.sweeps
    assert torch.equal(result.sites.shift, expected.sites.shift)


def test_what_is_reported_without_convergence() -> None:
    mean, S = problem(4, 2, -1)
    result = run(mean, S, 0.1, max_sweeps=3)
    assert not result.converged and result.sweeps == 3
    assert result.residual > 1e-10
    assert all(t.isfinite().all() for t in result.sites)


@pytest.mark.parametrize("away", [-1e3, -30.0, 30.0, 1e3])
def test_tails(away: float) -> None:
    """Signs that are contradicted, or confirmed, by many standard deviations."""
    _, S = problem(3, 1, 1, n=6, m=12)
    S = 0.1 * S / S.diagonal().mean() + torch.eye(12, **DOUBLE)
    mean = away * S.diagonal().sqrt()
    for nu in (0.1, 1e-6):
        result = run(mean, S, nu)
        assert result.converged
        value, covariance = posterior(mean, S, result)
        assert value.isfinite().all() and covariance.isfinite().all()
        if away < 0.0:
            # pulled to zero as far as a nu against a variance of one allows
            assert (value > 12.0 * nu * nu * mean - 1e-6).all()
        else:
            torch.testing.assert_close(value, mean)
            torch.testing.assert_close(covariance, S)
            assert float(evidence(mean, S, nu)) == pytest.approx(0.0, abs=1e-9)


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
