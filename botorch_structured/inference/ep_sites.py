r"""Gaussian and probit sites on a vector of latent values.

A Gaussian site on a latent value g is exp(-(sqrt(p) g - s / sqrt(p))^2 / 2) with
precision p and shift s, so that it adds p to the precision of g and s to precision
times mean; where p = 0 it says nothing. A probit site is Phi(g / nu), the probability
that g, seen with noise of standard deviation nu, is positive; against a Gaussian cavity
its moments are known in closed form (Riihimaki and Vehtari 2010, section 2).

Deep in the tails these moments are differences of nearly equal numbers. They are
written here as sums of positive ones, so that a derivative that contradicts the data by
a thousand standard deviations, or agrees by thirty, keeps its digits.
"""

from __future__ import annotations

__all__ = [
    "GaussianSites",
    "SiteSystem",
    "log_site_evidence",
    "probit_log_mass",
    "probit_site",
    "site_system",
    "truncated_moments",
]

import math
from typing import NamedTuple

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
# Further left a continued fraction: there differences of 1 / erfcx lose digits.
_TAIL = -7.0
_TERMS = 60


class GaussianSites(NamedTuple):
    """Gaussian sites, one for each of ``m`` latent values.

    Attributes:
        precision: ``batch_shape x m``, never negative.
        shift: ``batch_shape x m``, precision times the mode.
        log_scale: ``batch_shape``, of what their product is multiplied by.
    """

    precision: Tensor
    shift: Tensor
    log_scale: Tensor


class SiteSystem(NamedTuple):
    """S + P^-1 for a prior covariance S and sites of precisions P, solved.

    With B = I + P^1/2 S P^1/2 = L L', whose eigenvalues are at least one whatever the
    sites say:

    Attributes:
        root: L^-1 P^1/2, ``batch_shape x m x m``: root' root = (S + P^-1)^-1.
        whitened: L^-1 P^-1/2 shift, ``batch_shape x m``.
        half_log_det: log det L, ``batch_shape``.
    """

    root: Tensor
    whitened: Tensor
    half_log_det: Tensor

    def residual(self, mean: Tensor) -> Tensor:
        """What sites say beyond a prior mean, white under the prior.

        Args:
            mean: ``batch_shape x m``.

        Returns:
            ``batch_shape x m``; ``root.mT`` times it are the weights of the latent
            values in a conditional mean.
        """
        return self.whitened - (self.root @ mean.unsqueeze(-1)).squeeze(-1)


def truncated_moments(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""What the moments of a probit site are made of.

    With r = phi(z) / Phi(z), a standard normal variable cut off below -z has mean r,
    which is r + z above the cut, and variance 1 - r (r + z).

    Args:
        z: Any shape.

    Returns:
        r, r + z, and 1 - r (r + z): none negative, with small relative errors.
    """
    # Phi(z) = phi(z) erfcx(-z / sqrt 2) sqrt(pi / 2), which does not underflow
    r = _SQRT_2_OVER_PI / torch.special.erfcx(z.clamp_min(_TAIL) / -math.sqrt(2.0))
    excess = r + z
    spread = 1.0 - r * excess
    left = z < _TAIL
    if bool(left.any()):
        t = -z.clamp_max(_TAIL)
        # r is the reciprocal of Mills' ratio, 1 / (t + 1 / (t + 2 / (t + 3 / ...)))
        fraction = torch.zeros_like(t)
        for k in range(_TERMS, 2, -1):
            fraction = k / (t + fraction)
        inner = 1.0 / (t + fraction)
        tail = 1.0 / (t + 2.0 * inner)
        r = torch.where(left, t + tail, r)
        excess = torch.where(left, tail, excess)
        spread = torch.where(left, tail * (2.0 * inner - tail), spread)
    return r, excess, spread


def probit_site(
    cavity_mean: Tensor, cavity_variance: Tensor, nu: float
) -> tuple[Tensor, Tensor]:
    """The Gaussian site that, times the cavity, has the moments of the probit site.

    Args:
        cavity_mean: ``batch_shape x m``.
        cavity_variance: ``batch_shape x m``, positive.
        nu: Width of the probit, positive.

    Returns:
        Precision and shift, ``batch_shape x m``; the precision is never negative, since
        Phi is log-concave.
    """
    total = nu * nu + cavity_variance
    root = total.sqrt()
    z = cavity_mean / root
    r, excess, spread = truncated_moments(z)
    # the variance after it, as a share of the one before
    kept = (nu * nu + spread * cavity_variance) / total
    precision = r * excess / (total * kept)
    # 1 + z (r + z), on the left as a sum of two small positive numbers
    slack = torch.where(z < 0.0, spread + excess.square(), 1.0 + z * excess)
    return precision, r * slack / (root * kept)


def probit_log_mass(cavity_mean: Tensor, cavity_variance: Tensor, nu: float) -> Tensor:
    """Log-probability of the probit site under the cavity, ``batch_shape x m``."""
    return torch.special.log_ndtr(cavity_mean / (nu * nu + cavity_variance).sqrt())


def site_system(covariance: Tensor, sites: GaussianSites) -> SiteSystem:
    """Factorise S + P^-1; differentiable in S, with the sites held.

    Args:
        covariance: S, ``batch_shape x m x m``; may be singular.
        sites: Of the same latent values.
    """
    half = sites.precision.detach().sqrt()
    inner = half.unsqueeze(-1) * covariance * half.unsqueeze(-2)
    factor = psd_safe_cholesky(inner + torch.eye(half.shape[-1]).to(inner))
    target = torch.where(half > 0.0, sites.shift / half, 0.0)
    right = torch.cat([torch.diag_embed(half), target.unsqueeze(-1)], dim=-1)
    solved = torch.linalg.solve_triangular(factor, right, upper=False)
    return SiteSystem(
        solved[..., :-1],
        solved[..., -1],
        factor.diagonal(dim1=-2, dim2=-1).log().sum(-1),
    )


def log_site_evidence(system: SiteSystem, mean: Tensor, sites: GaussianSites) -> Tensor:
    """Log-probability of the sites under N(mean, covariance), ``batch_shape``.

    Args:
        system: Of the covariance and the sites.
        mean: ``batch_shape x m``.
        sites: The same.
    """
    residual = system.residual(mean)
    return sites.log_scale - 0.5 * residual.square().sum(-1) - system.half_log_det
