"""Gaussian sites on a vector with a Gaussian prior, and their evidence.

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

__all__ = [
    "GaussianSites",
    "SiteSystem",
    "log_site_evidence",
    "site_system",
]

from typing import NamedTuple

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor


class GaussianSites(NamedTuple):
    """Gaussian sites, one for each of ``m`` latent values.

    Attributes:
        precision: ``batch_shape x m``, never negative.
        shift: ``batch_shape x m``, precision times the mode.
        log_scale: ``batch_shape``, logarithm of the factor of their product.
    """

    precision: Tensor
    shift: Tensor
    log_scale: Tensor


class SiteSystem(NamedTuple):
    """S + P^-1, factorised, for a prior covariance S and sites of precisions P.

    S + P^-1 is the block of K_joint + Sigma~_joint for derivatives ((6) and (10) of
    [Riihimaki2010monotonicity]_). With B = I + P^1/2 S P^1/2 = L L', all of whose
    eigenvalues are at least one:

    Attributes:
        root: L^-1 P^1/2, ``batch_shape x m x m``: root' root = (S + P^-1)^-1.
        whitened: L^-1 P^-1/2 shift, ``batch_shape x m``.
        half_log_det: log det L, ``batch_shape``.
    """

    root: Tensor
    whitened: Tensor
    half_log_det: Tensor

    def residual(self, mean: Tensor) -> Tensor:
        """L^-1 P^1/2 (t - mean) for the modes t = shift / P of the sites.

        Args:
            mean: ``batch_shape x m``.

        Returns:
            ``batch_shape x m``; ``root.mT`` times it are the weights of the latent
            values in a conditional mean.
        """
        return self.whitened - (self.root @ mean.unsqueeze(-1)).squeeze(-1)


def site_system(covariance: Tensor, sites: GaussianSites) -> SiteSystem:
    """Factorise S + P^-1; differentiable in S, with the sites held.

    Args:
        covariance: S, ``batch_shape x m x m``; may be singular.
        sites: Of the same latent values.
    """
    half = sites.precision.detach().sqrt()
    inner = half.unsqueeze(-1) * covariance * half.unsqueeze(-2)
    factor = psd_safe_cholesky(
        inner + torch.eye(half.shape[-1], dtype=inner.dtype, device=inner.device)
    )
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

    With the ``log_scale`` of EP this is log Z_EP ([Riihimaki2010monotonicity]_, after
    (10)) without the part of the data.

    Args:
        system: Of the covariance and the sites.
        mean: ``batch_shape x m``.
        sites: The same.
    """
    residual = system.residual(mean)
    return sites.log_scale - 0.5 * residual.square().sum(-1) - system.half_log_det
