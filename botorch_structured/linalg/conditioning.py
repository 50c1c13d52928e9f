"""A joint Gaussian given noisy observations of its last points."""

from __future__ import annotations

__all__ = ["given_last"]

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor


def given_last(
    mean: Tensor, covariance: Tensor, noise: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """The mean and the covariance of the first points, given outcomes of the last ones.

    With (m, C) those of all points, f the last ones and s the noise variances,

        S = C_ff + diag(s),   m_x + C_xf S^-1 (y - m_f),   C_xx - C_xf S^-1 C_fx.

    Batch shapes broadcast: outcomes of many fantasies share S.

    Args:
        mean: ``batch_shape x (q + f)``.
        covariance: ``batch_shape x (q + f) x (q + f)``.
        noise: Noise variances of the observations, broadcastable to ``targets``.
        targets: The observations, ``batch_shape x f``.

    Raises:
        NotPSDError: If the covariance of the outcomes is not positive definite even
            with jitter.
    """
    q = mean.shape[-1] - targets.shape[-1]
    noise = noise.expand(*noise.shape[:-1], targets.shape[-1])
    root = psd_safe_cholesky(covariance[..., q:, q:] + torch.diag_embed(noise))
    gain = torch.linalg.solve_triangular(root, covariance[..., q:, :q], upper=False)
    residual = (targets - mean[..., q:]).unsqueeze(-1)
    residual = torch.linalg.solve_triangular(root, residual, upper=False)
    mean = mean[..., :q] + (gain.mT @ residual).squeeze(-1)
    return mean, covariance[..., :q, :q] - gain.mT @ gain
