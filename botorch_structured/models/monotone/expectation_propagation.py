r"""Expectation propagation (EP) for probit sites on a Gaussian vector.

The posterior of derivatives g ~ N(mean, covariance) under the likelihood prod_i
Phi(g_i / nu) ((5) and (8) of [Riihimaki2010monotonicity]_) is approximated by a
Gaussian (9). Each factor, a *probit site*, is replaced by a Gaussian site such that the
product with the *cavity*, the approximate posterior without this site, has the same
mass, mean and variance. Here g is conditioned on the data beforehand, so the joint
vector of values and derivatives (6) is not needed.

All sites are updated at once, with one factorisation a sweep; the classical algorithm
updates one after the other by rank-one changes. Parallel updates overshoot if sites
push in the same direction, so only a share of each step is taken: a smaller share after
a step that reverses the last, a larger one otherwise.

A sweep of a hundred sites is some forty operations on small arrays. NumPy and LAPACK
start them three times as fast as torch, and a GPU does not help; so EP runs on the CPU,
wherever the tensors are. It has no gradient and needs none: its evidence is stationary
in the sites at the fixed point.

A Gaussian site on a latent value g is exp(-(sqrt(p) g - s / sqrt(p))^2 / 2) with
precision p and shift s. It adds p to the precision of g, and s to precision times mean;
with p = 0 it is a constant. In [Riihimaki2010monotonicity]_ (before (9)) a site is
t = Z~ N(g | mu~, sigma~^2): p = 1 / sigma~^2, s = mu~ / sigma~^2.

References:

.. [Riihimaki2010monotonicity]
    J. Riihimaki and A. Vehtari. Gaussian processes with monotonicity information.
    AISTATS 2010.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
from botorch.exceptions.warnings import BotorchWarning
from scipy.linalg.lapack import dtrtri
from scipy.special import erfcx, log_ndtr
from torch import Tensor

from botorch_structured.linalg.blocks import Array, cholesky, few_threads

#: The largest residual of a fixed point.
TOLERANCE = 1e-10


class EPResult(NamedTuple):
    """Where expectation propagation ended.

    Attributes:
        precision: Of the Gaussian sites, ``batch_shape x s``.
        shift: Precision times mode, ``batch_shape x s``.
        log_scale: ``batch_shape``, logarithm of the factor of their product, with which
            it approximates that of the probit sites.
        converged: ``batch_shape``, bool.
        sweeps: ``batch_shape``; updates of all sites that each element took.
        residual: ``batch_shape``; largest change that one more undamped update would
            make, in units of the posterior standard deviation of its latent value.
    """

    precision: Tensor
    shift: Tensor
    log_scale: Tensor
    converged: Tensor
    sweeps: Tensor
    residual: Tensor


class EPRun(NamedTuple):
    """The same for one vector of ``m`` latent values, on arrays.

    With B = I + P^1/2 S P^1/2 = L L' for their prior covariance S and precisions P:

    Attributes:
        sites: Precisions, then shifts, ``2 m``.
        log_scale: See ``EPResult``.
        sweeps: See ``EPResult``.
        residual: See ``EPResult``.
        log_evidence: log Z_EP without the part of the data.
        weight: Its gradient in the mean, (S + P^-1)^-1 (P^-1 shift - mean), ``m``.
        root: L^-1 P^1/2, ``m x m``: root' root = (S + P^-1)^-1.
    """

    sites: Array
    log_scale: float
    sweeps: int
    residual: float
    log_evidence: float
    weight: Array
    root: Array


class EPConvergenceWarning(BotorchWarning):
    """Expectation propagation did not reach its fixed point."""


def warn_unless_converged(result: EPResult) -> None:
    """Say of how many elements of a batch, and what may help."""
    if not bool(result.converged.all()):
        warnings.warn(
            "Expectation propagation did not converge for "
            f"{int((~result.converged).sum())} of {result.converged.numel()} "
            f"models: residual {float(result.residual.max()):.1e} after "
            f"{int(result.sweeps.max())} sweeps. If the data contradict a sign "
            "strongly, choose a larger nu.",
            EPConvergenceWarning,
            stacklevel=3,
        )


def expectation_propagation(
    mean: Array,
    covariance: Array,
    nu: float,
    start: Array | None = None,
    tolerance: float = TOLERANCE,
    max_sweeps: int = 1000,
) -> EPRun:
    r"""Run EP to its fixed point.

    The share of each step that is taken starts at 0.9; a step that reverses the one
    before multiplies it by 0.8, any other by 1.05, within [0.3, 0.95]. Fixed points do
    not depend on it or on the start. The approximate evidence
    log Z_EP ([Riihimaki2010monotonicity]_, the display after (10)) is stationary in the
    sites there, so that its gradient is that with the sites held.

    Args:
        mean: ``m``.
        covariance: ``m x m``; may be singular.
        nu: Width of the probit sites, positive.
        start: Precisions and shifts, ``2 m``, of the sites of a similar problem;
            default: zero, from which a run that does not converge starts again.
        tolerance: Largest ``residual`` of a fixed point.
        max_sweeps: The largest number of sweeps.

    Raises:
        NotPSDError: If the covariance is not positive semi-definite.
    """
    m = len(mean)
    x = np.zeros(2 * m) if start is None else start
    if m == 0:
        return EPRun(x, 0.0, 0, 0.0, 0.0, x, np.zeros((0, 0)))
    covariance = 0.5 * (covariance + covariance.T)
    # damping: the share of each step that is taken
    step = 0.9
    last = np.zeros(m)
    with few_threads(m):
        for sweep in range(max_sweeps + 1):
            now = marginals(mean, covariance, x)
            matched = probit_site(now.cavity_mean, now.cavity_variance, nu)
            change = np.concatenate(matched) - x
            weight = np.concatenate([now.variance, np.sqrt(now.variance)])
            residual = float(np.abs(change * weight).max())
            # a residual of NaN ends the run, too, and is not converged
            if not residual > tolerance or sweep == max_sweeps:
                break
            if sweep > 0:
                step *= 0.8 if change[:m] @ last < 0.0 else 1.05
                step = min(max(step, 0.3), 0.95)
            last = change[:m]
            x = x + step * change
    if start is not None and not residual <= tolerance:  # perhaps because of the start
        return expectation_propagation(
            mean, covariance, nu, None, tolerance, max_sweeps
        )
    log_scale = _log_scale(now, x, nu)
    half_log_det = -np.log(now.inverse.diagonal()).sum()
    evidence = log_scale - 0.5 * float(now.white @ now.white) - half_log_det
    root = now.inverse * np.sqrt(x[:m])
    return EPRun(x, log_scale, sweep, residual, evidence, now.weight, root)


class Marginals(NamedTuple):
    """Posterior variances, and the cavity of each latent value without its own site.

    With L^-1, white = L^-1 (P^-1/2 shift - P^1/2 mean), and (S + P^-1)^-1 (P^-1 shift -
    mean).
    """

    variance: Array
    cavity_mean: Array
    cavity_variance: Array
    inverse: Array
    white: Array
    weight: Array


def marginals(
    mean: Array,
    covariance: Array,
    sites: Array,
) -> Marginals:
    """From the Cholesky factor of B = I + P^1/2 S P^1/2, without cancellation.

    With P the precisions, P_i V_i = 1 - (B^-1)_ii for the posterior variances V, so the
    share that a cavity has of the precision is (B^-1)_ii, no difference of large
    numbers; and the cavity mean differs from the posterior one by its variance times
    the i-th entry of (S + P^-1)^-1 (P^-1 shift - mean).
    """
    m = len(mean)
    precision = sites[:m]
    shift = sites[m:]
    prior = covariance.diagonal()
    root = np.sqrt(precision)
    scaled = root[:, None] * covariance
    inverse = _inverse_factor(scaled * root)
    share = np.einsum("ij,ij->j", inverse, inverse)  # (B^-1)_ii
    pull = shift - precision * mean
    said = root > 0.0
    white = inverse @ np.divide(pull, root, out=np.zeros(m), where=said)
    weight = np.where(said, root * (inverse.T @ white), pull)
    strong = precision * prior > 0.5
    safe = np.where(strong, precision, 1.0)
    moved = mean + covariance @ weight
    posterior = np.where(strong, (shift - weight) / safe, moved)
    variance = (1.0 - share) / safe
    if not strong.all():
        explained = inverse @ scaled[:, ~strong]
        gone = np.einsum("ij,ij->j", explained, explained)
        variance[~strong] = prior[~strong] - gone
    cavity_variance = variance / share
    cavity_mean = posterior - cavity_variance * weight
    return Marginals(variance, cavity_mean, cavity_variance, inverse, white, weight)


def _log_scale(
    now: Marginals,
    sites: Array,
    nu: float,
) -> float:
    """Log-scale of the sites that gives each the mass of its probit site.

    The three sums in log Z_EP ([Riihimaki2010monotonicity]_, after (10)), written for
    sites exp(-(sqrt(p) g - s / sqrt(p))^2 / 2), which may have p = 0, in place of
    normal densities.
    """
    precision, shift = sites.reshape(2, -1)
    m = now.cavity_mean
    wider = 1.0 + precision * now.cavity_variance
    away = (precision * m - shift) ** 2
    bent = precision * wider
    off = np.divide(away, bent, out=np.zeros_like(away), where=bent > 0.0)
    mass = probit_log_mass(m, now.cavity_variance, nu)
    return float((mass + 0.5 * (off + np.log(wider))).sum())


def truncated_moments(z: Array) -> tuple[Array, Array, Array]:
    r"""Moments of a standard normal variable that is cut off below -z.

    With r = phi(z) / Phi(z) its mean is r, which is r + z above the cut, and its
    variance is 1 - r (r + z). Deep in the tails these are differences of nearly equal
    numbers; here they are sums of positive ones, so that a derivative that contradicts
    the data by a thousand standard deviations, or agrees by thirty, keeps its digits.

    Args:
        z: ``m``.

    Returns:
        r, r + z, and 1 - r (r + z), each ``m``: none negative, and with small relative
        errors until they underflow.
    """
    # Phi(z) = phi(z) erfcx(-z / sqrt 2) sqrt(pi / 2); erfcx is infinite far right
    r = math.sqrt(2.0 / math.pi) / erfcx(z / -math.sqrt(2.0))
    excess = r + z
    spread = 1.0 - r * excess
    # left of -8 by a continued fraction, since differences of 1 / erfcx lose digits
    # there; 24 terms of it give all digits
    left = z < -8.0
    if left.any():
        t = -z[left]
        # r is the reciprocal of Mills' ratio, 1 / (t + 1 / (t + 2 / (t + 3 / ...)))
        fraction = np.zeros_like(t)
        for k in range(24, 2, -1):
            fraction = k / (t + fraction)
        inner = 1.0 / (t + fraction)
        tail = 1.0 / (t + 2.0 * inner)
        r[left] = t + tail
        excess[left] = tail
        spread[left] = tail * (2.0 * inner - tail)
    return r, excess, spread


def probit_site(
    cavity_mean: Array,
    cavity_variance: Array,
    nu: float,
) -> tuple[Array, Array]:
    """The Gaussian site that, times the cavity, has the moments of the probit site.

    These are mu^ and sigma^2 of [Riihimaki2010monotonicity]_ (after (10), with
    z = cavity_mean / sqrt(nu^2 + cavity_variance)), solved for the site.

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
    # the variance with the site, times total / cavity_variance
    kept = nu * nu + spread * cavity_variance
    # 1 + z (r + z); for z < 0 as a sum of two small positive numbers
    slack = np.where(z < 0.0, spread + excess * excess, 1.0 + z * excess)
    return r * excess / kept, r * slack * root / kept


def probit_log_mass(
    cavity_mean: Array,
    cavity_variance: Array,
    nu: float,
) -> Array:
    """Log-probability log Z^ of the probit site under the cavity, ``m``."""
    return log_ndtr(cavity_mean / np.sqrt(nu * nu + cavity_variance))


def _inverse_factor(inner: Array) -> Array:
    """L^-1 for I + inner = L L'; the jitter is a share of the mean of its diagonal."""
    m = len(inner)
    size = max(1.0, float(inner.trace()) / m)
    jitters = [size * share for share in (1e-12, 1e-10, 1e-8)]
    factor = cholesky(inner + np.eye(m), jitters)
    return dtrtri(factor, lower=1, overwrite_c=1)[0]
