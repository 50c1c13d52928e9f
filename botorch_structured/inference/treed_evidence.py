r"""The objective of treed GPs: evidences of the nodes on each leaf's path, weighted.

Assael et al. (2014), equation (2): the hyperparameters of leaf j maximise

.. math:: \sum_{i \in path_j} w_i \log p(y_i | x_i, \theta) + \log p(\theta), \quad
    w_i = \frac{|M_j|}{|M_i|} \frac{1}{1 + depth_j - depth_i}

over the nodes i from the root to j, with their data M_i. The nodes of a path are
nested, so with the rows of the leaf first, then what its parent has besides, and so on,
the Cholesky factor L of the root's covariance has those of all others as leading
blocks: one factorisation gives every term. So does one inverse: with D the diagonal
matrix of the sums of the weights of all nodes that a row is in,

    G = 1/2 (sum_i w_i alpha_i alpha_i' - (L D^-1 L')^-1)

is the derivative of the sum by the covariance.
"""

from __future__ import annotations

__all__ = ["log_path_evidence", "noisy_covariance", "path_derivatives", "path_values"]

import math
from typing import Any

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_structured.inference.treed_groups import PathGroup


def noisy_covariance(group: PathGroup, covariance: Tensor, noise: Tensor) -> Tensor:
    """Add noise to covariances, in place; padding becomes the identity.

    Args:
        group: Whose rows these are.
        covariance: ``B x m x m``.
        noise: Noise variances, ``B x m``.
    """
    if group.pairs is not None:
        covariance.mul_(group.pairs)
        noise = torch.where(group.members[:, 0] > 0.0, noise, 1.0)
    covariance.diagonal(dim1=-1, dim2=-2).add_(noise)
    return covariance


def path_values(
    group: PathGroup, noisy: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted log evidences, and what their derivatives need.

    Args:
        group: What is summed.
        noisy: Covariances with noise, see ``noisy_covariance``, ``B x m x m``.
        residual: Observations minus prior means, ``B x m``.

    Returns:
        The sums of the log evidences, ``B``; the Cholesky factors L; L^-1 times the
        residuals, ``B x m``.

    Raises:
        NotPSDError: If a covariance is not positive definite even with jitter.
    """
    chol = psd_safe_cholesky(noisy)
    half = torch.linalg.solve_triangular(chol, residual.unsqueeze(-1), upper=False)
    half = half.squeeze(-1)
    logs = 2.0 * chol.diagonal(dim1=-1, dim2=-2).log() + math.log(2.0 * math.pi)
    values = -0.5 * (group.row_weights * (half.square() + logs)).sum(-1)
    return values, chol, half


def path_derivatives(
    group: PathGroup, chol: Tensor, half: Tensor
) -> tuple[Tensor, Tensor]:
    """Derivatives of the sums of ``path_values``.

    Args:
        group: What is summed.
        chol: L, ``B x m x m``.
        half: L^-1 times the residuals, ``B x m``.

    Returns:
        G, the derivative by the covariance, ``B x m x m``; that by the residual,
        ``B x m``.
    """
    parts = (group.members * half.unsqueeze(-2)).mT
    alpha = torch.linalg.solve_triangular(chol.mT, parts, upper=True)
    weighted = alpha * group.weights.unsqueeze(-2)
    # LAPACK's matrices have their columns together: the transpose of a symmetric one is
    # the same with its rows together, as all that it is multiplied with
    weights = group.row_weights
    if group.padded:
        weights = torch.where(weights > 0.0, weights, 1.0)
    g = torch.cholesky_inverse(chol / weights.sqrt().unsqueeze(-2)).mT
    g.baddbmm_(weighted, alpha.mT, beta=-0.5, alpha=0.5)
    if group.pairs is not None:
        g.mul_(group.pairs)
    return g, -weighted.sum(-1)


class _PathEvidence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: PathGroup,
        covariance: Tensor,
        noise: Tensor,
        residual: Tensor,
    ) -> Tensor:
        noisy = noisy_covariance(group, covariance.clone(), noise)
        values, chol, half = path_values(group, noisy, residual)
        ctx.saved = (group, chol, half)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        g, d_residual = path_derivatives(*ctx.saved)
        g.mul_(grad[:, None, None])
        d_noise = g.diagonal(dim1=-1, dim2=-2)
        return None, g, d_noise, d_residual * grad.unsqueeze(-1)


def log_path_evidence(
    group: PathGroup, covariance: Tensor, noise: Tensor, residual: Tensor
) -> Tensor:
    """Sum of weighted log evidences of the nodes on each path, ``B``.

    For any covariance; differentiable once in everything but the group.

    Args:
        group: What is summed.
        covariance: Prior covariances of the rows without noise, ``B x m x m``.
        noise: Noise variances, ``B x m``.
        residual: Observations minus prior means, ``B x m``.

    Raises:
        NotPSDError: If a covariance is not positive definite even with jitter.
    """
    return _PathEvidence.apply(group, covariance, noise, residual)
