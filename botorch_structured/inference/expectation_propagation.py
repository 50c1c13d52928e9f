r"""Expectation propagation for probit sites on a Gaussian vector.

The posterior of g ~ N(mean, covariance) given that prod_i Phi(g_i / nu) was observed is
approximated by a Gaussian, each probit site by a Gaussian one that matches moments
against what all the others say (the cavity). All sites are updated at once, one
factorisation a sweep, where the classical algorithm updates one after the other by
rank-one changes. Such parallel updates overshoot where sites pull at the same
direction; the step is therefore damped, and the damping adapts: less of a step after
one that reverses the last, more otherwise.

References:

.. [Riihimaki2010monotonicity]
    J. Riihimaki and A. Vehtari. Gaussian processes with monotonicity information.
    AISTATS 2010.
"""

from __future__ import annotations

__all__ = ["EPResult", "expectation_propagation"]

import math
from dataclasses import dataclass

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_structured.inference.ep_sites import (
    GaussianSites,
    probit_log_mass,
    probit_site,
)

_FIRST_STEP = 0.9
_SHRINK, _GROW = 0.8, 1.05
_SHORTEST, _LONGEST = 0.3, 0.95


@dataclass(frozen=True)
class EPResult:
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


@torch.no_grad()
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
            [0.3, 0.95].
        tolerance: Largest ``residual`` of a fixed point.
        max_sweeps: Where to give up; ``converged`` says whether that happened.

    Returns:
        Sites and a report. Elements of a batch do not depend on each other.

    Raises:
        ValueError: For a ``nu`` or ``damping`` out of range, shapes that do not match,
            or values that are not finite.

    Example:
        >>> result = expectation_propagation(mean, covariance, nu=0.1)
        >>> system = site_system(covariance, result.sites)
        >>> log_probability = log_site_evidence(system, mean, result.sites)
    """
    _check(mean, covariance, nu, damping)
    if start is None:
        precision, shift = torch.zeros_like(mean), torch.zeros_like(mean)
    else:
        precision = start.precision.expand_as(mean).clone()
        shift = start.shift.expand_as(mean).clone()
    step = torch.full_like(mean[..., :1], _FIRST_STEP if damping is None else damping)
    last: Tensor | None = None
    sweeps = torch.zeros(mean.shape[:-1], dtype=torch.long, device=mean.device)
    best = torch.full_like(mean[..., 0], math.inf)
    for sweep in range(max_sweeps + 1):
        now = _marginals(mean, covariance, precision, shift)
        target, pull = probit_site(now.cavity_mean, now.cavity_variance, nu)
        dp, ds = target - precision, pull - shift
        scale = now.variance
        change = torch.maximum(dp.abs() * scale, ds.abs() * scale.sqrt())
        best = change.amax(-1)
        active = best > tolerance  # also False for NaN, which is not converged
        if sweep == max_sweeps or not bool(active.any()):
            break
        if damping is None and last is not None:
            reverses = (dp * last).sum(-1, keepdim=True) < 0.0
            step = torch.where(reverses, step * _SHRINK, step * _GROW)
            step = step.clamp(_SHORTEST, _LONGEST)
        last = dp
        taken = torch.where(active.unsqueeze(-1), step, 0.0)
        precision, shift = precision + taken * dp, shift + taken * ds
        sweeps += active
    sites = GaussianSites(
        precision, shift, _log_scale(now, precision, shift, nu).sum(-1)
    )
    return EPResult(sites, best <= tolerance, sweeps, best)


@dataclass(frozen=True)
class _Marginals:
    """Of each latent value: posterior variance, and the cavity without its own site."""

    variance: Tensor
    cavity_mean: Tensor
    cavity_variance: Tensor


def _marginals(
    mean: Tensor, covariance: Tensor, precision: Tensor, shift: Tensor
) -> _Marginals:
    """From the Cholesky factor of B = I + T^1/2 S T^1/2, without cancellation.

    With T the precisions: T_i V_i = 1 - (B^-1)_ii for the posterior variances V, so the
    share that a cavity has of the precision is (B^-1)_ii, no difference of large
    numbers; and the cavity mean differs from the posterior one by its variance times
    the i-th entry of (S + T^-1)^-1 (T^-1 shift - mean).
    """
    root = precision.sqrt()
    prior = covariance.diagonal(dim1=-2, dim2=-1)
    scaled = root.unsqueeze(-1) * covariance
    eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
    factor = psd_safe_cholesky(scaled * root.unsqueeze(-2) + eye)
    inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
    share = inverse.square().sum(-2)  # (B^-1)_ii
    strong = precision * prior > 0.5
    variance = torch.where(
        strong,
        (1.0 - share) / precision,
        prior - (inverse @ scaled).square().sum(-2),
    )
    pull = shift - precision * mean
    said = root > 0.0
    inner = torch.where(said, pull / root, 0.0).unsqueeze(-1)
    weight = root * (inverse.mT @ (inverse @ inner)).squeeze(-1)
    weight = torch.where(said, weight, pull)
    posterior = torch.where(
        strong,
        (shift - weight) / precision,
        mean + (covariance @ weight.unsqueeze(-1)).squeeze(-1),
    )
    cavity_variance = variance / share
    return _Marginals(variance, posterior - cavity_variance * weight, cavity_variance)


def _log_scale(now: _Marginals, precision: Tensor, shift: Tensor, nu: float) -> Tensor:
    """Logarithm of what scales a site, so that its mass under the cavity is right."""
    wider = 1.0 + precision * now.cavity_variance
    away = precision * now.cavity_mean - shift
    off = torch.where(precision > 0.0, away.square() / (precision * wider), 0.0)
    mass = probit_log_mass(now.cavity_mean, now.cavity_variance, nu)
    return mass + 0.5 * (off + wider.log())


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
