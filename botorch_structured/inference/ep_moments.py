r"""Moments of a probit site Phi(g / nu) against a Gaussian cavity.

Phi(g / nu) is the probability that g, seen with noise of standard deviation nu, is
positive. What it leaves of a Gaussian is a Gaussian cut off, softly (Riihimaki and
Vehtari 2010, section 2). Deep in the tails its moments are differences of nearly equal
numbers; they are written here as sums of positive ones, so that a derivative that
contradicts the data by a thousand standard deviations, or agrees by thirty, keeps its
digits.
"""

from __future__ import annotations

__all__ = ["probit_log_mass", "probit_site", "truncated_moments"]

import math

import numpy as np
from scipy.special import erfcx, log_ndtr

_SQRT2 = math.sqrt(2.0)
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
# Further left a continued fraction: there differences of 1 / erfcx lose digits. It has
# all of them after twenty terms.
_TAIL = -8.0
_TERMS = 24


def truncated_moments(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""What the moments of a probit site are made of.

    With r = phi(z) / Phi(z), a standard normal variable cut off below -z has mean r,
    which is r + z above the cut, and variance 1 - r (r + z).

    Args:
        z: ``m``.

    Returns:
        r, r + z, and 1 - r (r + z), each ``m``: none negative, and with small relative
        errors until they underflow.
    """
    # Phi(z) = phi(z) erfcx(-z / sqrt 2) sqrt(pi / 2); erfcx is infinite far right
    r = _SQRT_2_OVER_PI / erfcx(z / -_SQRT2)
    excess = r + z
    spread = 1.0 - r * excess
    left = z < _TAIL
    if left.any():
        t = -z[left]
        # r is the reciprocal of Mills' ratio, 1 / (t + 1 / (t + 2 / (t + 3 / ...)))
        fraction = np.zeros_like(t)
        for k in range(_TERMS, 2, -1):
            fraction = k / (t + fraction)
        inner = 1.0 / (t + fraction)
        tail = 1.0 / (t + 2.0 * inner)
        r[left] = t + tail
        excess[left] = tail
        spread[left] = tail * (2.0 * inner - tail)
    return r, excess, spread


def probit_site(
    cavity_mean: np.ndarray, cavity_variance: np.ndarray, nu: float
) -> tuple[np.ndarray, np.ndarray]:
    """The Gaussian site that, times the cavity, has the moments of the probit site.

    Args:
        cavity_mean: ``m``.
        cavity_variance: ``m``, positive.
        nu: Width of the probit, positive.

    Returns:
        Precision and shift, each ``m``. The precision is never negative, since Phi is
        log-concave.
    """
    total = nu * nu + cavity_variance
    root = np.sqrt(total)
    z = cavity_mean / root
    r, excess, spread = truncated_moments(z)
    # the variance after it, times total / variance before
    kept = nu * nu + spread * cavity_variance
    # 1 + z (r + z), on the left as a sum of two small positive numbers
    slack = np.where(z < 0.0, spread + excess * excess, 1.0 + z * excess)
    return r * excess / kept, r * slack * root / kept


def probit_log_mass(
    cavity_mean: np.ndarray, cavity_variance: np.ndarray, nu: float
) -> np.ndarray:
    """Log-probability of the probit site under the cavity, ``m``."""
    return log_ndtr(cavity_mean / np.sqrt(nu * nu + cavity_variance))
