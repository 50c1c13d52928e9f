r"""Expectation propagation for probit sites on a Gaussian vector.

The posterior of g ~ N(mean, covariance) given that prod_i Phi(g_i / nu) was observed is
approximated by a Gaussian, each probit site by a Gaussian one that matches moments
against what all the others say (the cavity). All sites are updated at once, one
factorisation a sweep, where the classical algorithm updates one after the other by
rank-one changes. Such parallel updates overshoot where sites pull in the same
direction; the step is therefore damped, and the damping adapts: less of a step after
one that reverses the last, more otherwise. Near the fixed point secants speed it up.

A sweep of a hundred sites is some forty operations on small arrays, which NumPy and
LAPACK start three times as fast as torch, and a GPU not at all faster; so it runs on
the CPU wherever the tensors are. No gradient goes through it: none is needed.

References:

.. [Riihimaki2010monotonicity]
    J. Riihimaki and A. Vehtari. Gaussian processes with monotonicity information.
    AISTATS 2010.
"""

from __future__ import annotations

__all__ = [
    "AndersonAcceleration",
    "EPResult",
    "expectation_propagation",
    "one_blas_thread",
    "probit_log_mass",
    "probit_site",
    "truncated_moments",
]

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from linear_operator.utils.errors import NotPSDError
from scipy.linalg.lapack import dpotrf, dtrtri
from scipy.special import erfcx, log_ndtr
from threadpoolctl import ThreadpoolController
from torch import Tensor

from botorch_structured.models.monotone.sites import GaussianSites

# ----------------------------------------------------------------------
# Anderson acceleration of a damped fixed-point iteration.
#
# Near its fixed point a damped iteration x + step f(x), with f(x) = g(x) - x, converges
# linearly. The last few pairs of changes (dx, df) say what f does along the directions
# that were taken; subtracting the combination of them that explains most of the current f
# is a secant step, which about halves the sweeps of expectation propagation.

_WINDOW = 6
# Further away the iteration is not nearly linear, and damping alone is safer.
_NEAR = 0.05
_RIDGE = 1e-12


class AndersonAcceleration:
    """A memory of the last steps of an iteration in ``k`` variables."""

    def __init__(self) -> None:
        self._last: tuple[np.ndarray, np.ndarray, float] | None = None
        self._dx: list[np.ndarray] = []
        self._df: list[np.ndarray] = []

    def next_point(
        self,
        x: np.ndarray,
        f: np.ndarray,
        weight: np.ndarray,
        step: float,
        residual: float,
    ) -> np.ndarray:
        """Where to go from x: x + step f, corrected.

        Args:
            x: Where the iteration is, ``k``.
            f: The undamped step there, ``k``.
            weight: Positive, ``k``: f times it is comparable across variables.
            step: Damping.
            residual: Size of f. Where it has doubled, what was remembered is wrong.

        Returns:
            ``k``.
        """
        if self._last is not None:
            old_x, old_f, old_residual = self._last
            if residual > 2.0 * old_residual:
                self._dx, self._df = [], []
            else:
                self._dx = [*self._dx, x - old_x][-_WINDOW:]
                self._df = [*self._df, f - old_f][-_WINDOW:]
        self._last = (x, f, residual)
        damped = x + step * f
        if residual > _NEAR or not self._dx:
            return damped
        dx, df = np.stack(self._dx), np.stack(self._df)
        A = df * weight
        size = np.sqrt((A * A).sum(1, keepdims=True))
        if not (size > 0.0).all():
            return damped
        A /= size
        gram = A @ A.T
        gram.flat[:: len(gram) + 1] += _RIDGE
        gamma = np.linalg.solve(gram, A @ (weight * f))
        return damped - (gamma / size[:, 0]) @ (dx + step * df)


# ----------------------------------------------------------------------
# Moments of a probit site Phi(g / nu) against a Gaussian cavity.
#
# Phi(g / nu) is the probability that g, seen with noise of standard deviation nu, is
# positive. What it leaves of a Gaussian is a Gaussian cut off, softly (Riihimaki and
# Vehtari 2010, section 2). Deep in the tails its moments are differences of nearly equal
# numbers; they are written here as sums of positive ones, so that a derivative that
# contradicts the data by a thousand standard deviations, or agrees by thirty, keeps its
# digits.

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


# ----------------------------------------------------------------------
# One thread for factorisations so small that sharing them out costs more.

_ROWS_FOR_ONE_THREAD = 1000


@cache
def _controller() -> ThreadpoolController:
    # finding the libraries takes milliseconds, as long as what is to be sped up
    return ThreadpoolController()


@contextmanager
def one_blas_thread(rows: int) -> Iterator[None]:
    """Like ``surroundings.few_threads``, for calls of a few milliseconds each.

    Args:
        rows: Of the matrices.
    """
    if rows > _ROWS_FOR_ONE_THREAD:
        yield
        return
    with _controller().limit(limits=1, user_api="blas"):
        yield


# ----------------------------------------------------------------------
_FIRST_STEP = 0.9
_SHRINK, _GROW = 0.8, 1.05
_SHORTEST, _LONGEST = 0.3, 0.95
# Sweeps after which damping, which has no memory, is left to itself.
_ACCELERATED = 100
_CUT = 0.3
_JITTERS = (0.0, 1e-12, 1e-10, 1e-8)


class EPResult(NamedTuple):
    """Where expectation propagation ended.

    Attributes:
        sites: The Gaussian sites, with the scale that makes ``log_site_evidence`` of
            them the approximate log-probability of the probit sites.
        converged: ``batch_shape``, bool.
        sweeps: ``batch_shape``; updates of all sites that each element took.
        residual: ``batch_shape``; largest change that one more undamped update would
            make, in units of the posterior standard deviation of its latent value.
    """

    sites: GaussianSites
    converged: Tensor
    sweeps: Tensor
    residual: Tensor


def expectation_propagation(
    mean: Tensor,
    covariance: Tensor,
    nu: float,
    start: GaussianSites | None = None,
    damping: float | None = None,
    tolerance: float = 1e-10,
    max_sweeps: int = 1000,
) -> EPResult:
    r"""Run EP to its fixed point.

    Fixed points do not depend on the damping or on the start. The approximate evidence
    is stationary in the sites there, so that its gradient is that of
    ``log_site_evidence`` with the sites held.

    Args:
        mean: ``batch_shape x m``.
        covariance: ``batch_shape x m x m``; may be singular.
        nu: Width of the probit sites, positive.
        start: Sites to start from, of a similar problem; default: none.
        damping: Share of each step that is taken, in (0, 1]. Default: adaptive, from
            0.9, times 0.8 when a step reverses the one before, else times 1.05, within
            [0.3, 0.95], and accelerated near the fixed point.
        tolerance: Largest ``residual`` of a fixed point.
        max_sweeps: Where to give up; ``converged`` says whether that happened.

    Returns:
        Sites and a report, in double precision.

    Raises:
        ValueError: For a ``nu`` or ``damping`` out of range, shapes that do not match,
            or values that are not finite.

    Example:
        >>> result = expectation_propagation(mean, covariance, nu=0.1)
        >>> system = site_system(covariance, result.sites)
        >>> log_probability = log_site_evidence(system, mean, result.sites)
    """
    _check(mean, covariance, nu, damping)
    batch_shape, m = mean.shape[:-1], mean.shape[-1]
    count = batch_shape.numel()
    means = _array(mean).reshape(count, m)
    covariances = _array(covariance).reshape(count, m, m)
    x = np.zeros((count, 2, m))
    if start is not None:
        for i, values in enumerate((start.precision, start.shift)):
            x[:, i] = _array(values.expand(mean.shape)).reshape(count, m)
    runs = []
    with one_blas_thread(m):
        for mean_i, covariance_i, x_i in zip(means, covariances, x, strict=True):
            problem = _Problem(mean_i, covariance_i, nu)
            runs.append(_run(problem, x_i.ravel(), damping, tolerance, max_sweeps))
    ends, log_scales, sweeps, residuals = zip(*runs, strict=True)

    def tensor(values: object, *shape: int) -> Tensor:
        array = np.asarray(values).reshape((*batch_shape, *shape))
        return torch.from_numpy(array).to(mean.device)

    end = tensor(ends, 2, m)
    sites = GaussianSites(end[..., 0, :], end[..., 1, :], tensor(log_scales))
    residual = tensor(residuals)
    return EPResult(sites, residual <= tolerance, tensor(sweeps), residual)


def _run(
    problem: _Problem,
    x: np.ndarray,
    damping: float | None,
    tolerance: float,
    max_sweeps: int,
) -> tuple[np.ndarray, float, int, float]:
    """One element of a batch: sites (precisions, then shifts) and a report."""
    m = len(x) // 2
    if m == 0:
        return x, 0.0, 0, 0.0
    step = _FIRST_STEP if damping is None else damping
    memory = AndersonAcceleration()
    last: np.ndarray | None = None
    for sweep in range(max_sweeps + 1):
        now = problem.marginals(x[:m], x[m:])
        f = np.concatenate(problem.update(now)) - x
        weight = np.concatenate([now.variance, np.sqrt(now.variance)])
        residual = float(np.abs(f * weight).max())
        # also where it is NaN, which is not converged
        if not residual > tolerance or sweep == max_sweeps:
            break
        if damping is None:
            if last is not None:
                step *= _SHRINK if f[:m] @ last < 0.0 else _GROW
                step = min(max(step, _SHORTEST), _LONGEST)
            last = f[:m]
        if damping is None and sweep < _ACCELERATED:
            new = memory.next_point(x, f, weight, step, residual)
            # a secant may point below zero, where no site of a log-concave factor is
            new[:m] = np.where(new[:m] < 0.0, _CUT * x[:m], new[:m])
        else:
            new = x + step * f
        x = new
    return x, problem.log_scale(now, x[:m], x[m:]), sweep, residual


class _Marginals(NamedTuple):
    """Of each latent value: posterior variance, and the cavity without its own site."""

    variance: np.ndarray
    cavity_mean: np.ndarray
    cavity_variance: np.ndarray


class _Problem:
    """Probit sites on N(mean, covariance)."""

    def __init__(self, mean: np.ndarray, covariance: np.ndarray, nu: float) -> None:
        self.mean, self.nu = mean, nu
        self.covariance = 0.5 * (covariance + covariance.T)
        self.prior = self.covariance.diagonal()

    def marginals(self, precision: np.ndarray, shift: np.ndarray) -> _Marginals:
        """From the Cholesky factor of B = I + P^1/2 S P^1/2, without cancellation.

        With P the precisions, P_i V_i = 1 - (B^-1)_ii for the posterior variances V, so
        the share that a cavity has of the precision is (B^-1)_ii, no difference of
        large numbers; and the cavity mean differs from the posterior one by its
        variance times the i-th entry of (S + P^-1)^-1 (P^-1 shift - mean).
        """
        root = np.sqrt(precision)
        scaled = root[:, None] * self.covariance
        inverse = _inverse_factor(scaled * root)
        share = np.einsum("ij,ij->j", inverse, inverse)  # (B^-1)_ii
        pull = shift - precision * self.mean
        said = root > 0.0
        inner = np.divide(pull, root, out=np.zeros_like(pull), where=said)
        weight = np.where(said, root * (inverse.T @ (inverse @ inner)), pull)
        strong = precision * self.prior > 0.5
        safe = np.where(strong, precision, 1.0)
        moved = self.mean + self.covariance @ weight
        posterior = np.where(strong, (shift - weight) / safe, moved)
        variance = (1.0 - share) / safe
        if not strong.all():
            explained = inverse @ scaled[:, ~strong]
            gone = np.einsum("ij,ij->j", explained, explained)
            variance[~strong] = self.prior[~strong] - gone
        cavity_variance = variance / share
        cavity_mean = posterior - cavity_variance * weight
        return _Marginals(variance, cavity_mean, cavity_variance)

    def update(self, now: _Marginals) -> tuple[np.ndarray, np.ndarray]:
        """Precisions and shifts that match moments."""
        return probit_site(now.cavity_mean, now.cavity_variance, self.nu)

    def log_scale(
        self, now: _Marginals, precision: np.ndarray, shift: np.ndarray
    ) -> float:
        """Logarithm of what scales the sites, so that their cavity masses are right."""
        m, v = now.cavity_mean, now.cavity_variance
        wider = 1.0 + precision * v
        away = (precision * m - shift) ** 2
        bent = precision * wider
        off = np.divide(away, bent, out=np.zeros_like(away), where=bent > 0.0)
        mass = probit_log_mass(m, v, self.nu)
        return float((mass + 0.5 * (off + np.log(wider))).sum())


def _inverse_factor(inner: np.ndarray) -> np.ndarray:
    """L^-1 for I + inner = L L'."""
    m = len(inner)
    size = max(1.0, float(inner.trace()) / m)
    for jitter in _JITTERS:
        B = inner.copy()
        B.flat[:: m + 1] += 1.0 + jitter * size
        # LAPACK counts by columns: the transpose is what it can overwrite
        factor, info = dpotrf(B.T, lower=1, clean=1, overwrite_a=1)
        if info == 0:
            return dtrtri(factor, lower=1, overwrite_c=1)[0]
    raise NotPSDError(
        "Expected a positive semi-definite covariance of derivatives, got one that is "
        f"not even with {_JITTERS[-1]:.0e} of its trace added to the diagonal."
    )


def _array(values: Tensor) -> np.ndarray:
    return values.detach().to(device="cpu", dtype=torch.float64).numpy()


def _check(mean: Tensor, covariance: Tensor, nu: float, damping: float | None) -> None:
    if not (math.isfinite(nu) and nu > 0.0):
        raise ValueError(f"nu: expected a positive number, got {nu}.")
    if damping is not None and not 0.0 < damping <= 1.0:
        raise ValueError(f"damping: expected a number in (0, 1], got {damping}.")
    if covariance.shape != (*mean.shape, mean.shape[-1]):
        raise ValueError(
            f"covariance: expected {tuple(mean.shape)} x {mean.shape[-1]} like mean, "
            f"got {tuple(covariance.shape)}."
        )
    if not bool(mean.isfinite().all()) or not bool(covariance.isfinite().all()):
        raise ValueError("mean, covariance: expected finite values, got others.")
