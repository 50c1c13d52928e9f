"""Probit moments: fifty digits of mpmath, from one tail to the other."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from botorch_structured.models.monotone.expectation_propagation import (
    probit_log_mass,
    probit_site,
    truncated_moments,
)

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
@pytest.mark.parametrize("z", [-300.0, -9.0, -3.0, 0.0, 2.0, 10.0])
def test_a_site_matches_moments(nu: float, z: float) -> None:
    """Mass, mean and variance of Phi(g / nu) N(g; m, v), by their textbook formulas."""
    v = 0.3
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
