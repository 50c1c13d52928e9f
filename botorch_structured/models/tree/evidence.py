"""Log evidence of blocks coupled by weights, with its gradient written out.

Equation (3) of Jenatton et al. (2017), evaluated through the algebra of
``botorch_structured.linalg.block_low_rank``. With alpha = K^-1 r, mu the posterior mean
of the weights and R = A^-1 F, the derivative of the log evidence is, leaf by leaf,

    dA_p:  1/2 (alpha alpha' - A_p^-1 + R M^-1 R')
    dF_p:  alpha mu' - R M^-1          dr:  -alpha          d noise:  diag(dA_p)

The covariance of a leaf comes from the kernel, which differentiates it as it likes.
"""

from __future__ import annotations

__all__ = [
    "BlockTensors",
    "CrossCovariance",
    "log_evidence",
    "noisy_covariance",
]

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_structured.linalg.block_low_rank import (
    BlockInputs,
    Factorisation,
    factorise,
    pad_rows,
)
from botorch_structured.linalg.leaf_layout import Bucket

#: ``(places U, points, index U x t)`` to the prior covariances ``U x t x N`` of points
#: with the data of the leaves at those places of a bucket: the points are
#: ``points[index]``, and what is computed for padded data is not looked at.
CrossCovariance = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class BlockTensors:
    """One bucket of leaves.

    Attributes:
        bucket: Rows and leaves.
        covariance: Prior covariances without noise, ``B x N x N``, zero where padded.
        features: Scaled weight features, ``B x N x D``, zero where padded.
        weights: Index of each feature's weight, ``B x D``; ``num_weights`` if unused.
        cross: Prior covariances of other points with the data.
    """

    bucket: Bucket
    covariance: Tensor
    features: Tensor
    weights: Tensor
    cross: CrossCovariance


def noisy_covariance(covariance: Tensor, bucket: Bucket, noise: Tensor) -> Tensor:
    """A_p of a bucket: the identity where padded, ``B x N x N``.

    Args:
        covariance: Prior covariances, ``B x N x N``.
        bucket: Rows and leaves.
        noise: Noise variances of all rows, ``n``.
    """
    noisy = covariance.clone()
    noisy.diagonal(dim1=-1, dim2=-2).add_(pad_rows(noise, bucket, fill=1.0))
    return noisy


class _LogEvidence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        static: tuple[list[Bucket], list[Tensor], int],
        noise: Tensor,
        residual: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        buckets, weights, num_weights = static
        covariances, inputs = [], []
        for i, (bucket, index) in enumerate(zip(buckets, weights, strict=True)):
            covariance, features = tensors[2 * i : 2 * i + 2]
            covariances.append(noisy_covariance(covariance, bucket, noise))
            inputs.append(BlockInputs(bucket, features, index))
        factors = factorise(covariances, inputs, residual, num_weights)
        ctx.saved = (buckets, weights, factors, residual.shape[0])
        log_two_pi = residual.shape[0] * math.log(2.0 * math.pi)
        return -0.5 * (factors.quad + factors.logdet + log_two_pi)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        buckets, all_weights, factors, n = ctx.saved
        weight_cov, weight_mean = _padded_weight_posterior(factors)
        # one row more takes what padding scatters
        d_noise, d_residual = grad.new_zeros(n + 1), grad.new_zeros(n + 1)
        d_tensors: list[Tensor | None] = []
        for bucket, weights, factor in zip(
            buckets, all_weights, factors.blocks, strict=True
        ):
            index = bucket.index
            cov = weight_cov[weights.unsqueeze(-1), weights.unsqueeze(-2)]
            mean = weight_mean[weights]
            half = torch.cat(
                [factor.half_residual.unsqueeze(-1), factor.half_features], dim=-1
            )
            both = torch.linalg.solve_triangular(factor.chol.mT, half, upper=True)
            alpha, solved = both[..., 0], both[..., 1:]
            solved_cov = solved @ cov
            left = torch.cat([alpha.unsqueeze(-1), solved_cov], dim=-1)
            right = torch.cat([alpha.unsqueeze(-1), solved], dim=-1)
            inverse = torch.cholesky_inverse(factor.chol)
            g = torch.baddbmm(inverse, left, right.mT, beta=-0.5, alpha=0.5)
            d_noise.index_add_(
                0, index.reshape(-1), g.diagonal(dim1=-1, dim2=-2).reshape(-1)
            )
            d_residual.index_add_(0, index.reshape(-1), -alpha.reshape(-1))
            if bucket.real is not None:  # padding is the identity whatever came
                real = bucket.real.to(g)
                g = g * real.unsqueeze(-1) * real.unsqueeze(-2)
            d_features = alpha.unsqueeze(-1) * mean.unsqueeze(-2) - solved_cov
            d_tensors += [grad * g, grad * d_features]
        return (None, grad * d_noise[:n], grad * d_residual[:n], *d_tensors)


def _padded_weight_posterior(factors: Factorisation) -> tuple[Tensor, Tensor]:
    """M^-1 and mu with one zero row for the dummy weight."""
    covariance = torch.cholesky_inverse(factors.precision_chol)
    covariance = torch.nn.functional.pad(covariance, (0, 1, 0, 1))
    return covariance, torch.nn.functional.pad(factors.weight_mean, (0, 1))


def log_evidence(
    blocks: list[BlockTensors], noise: Tensor, residual: Tensor, num_weights: int
) -> Tensor:
    """Log N(r; 0, K): a scalar, differentiable once in every tensor of the blocks.

    Args:
        blocks: The leaves, in buckets.
        noise: Noise variances, ``n``.
        residual: Observations minus prior means, ``n``.
        num_weights: V, the number of weights.

    Raises:
        NotPSDError: If a block is not positive definite even with jitter.
    """
    static = ([b.bucket for b in blocks], [b.weights for b in blocks], num_weights)
    tensors = [t for b in blocks for t in (b.covariance, b.features)]
    return _LogEvidence.apply(static, noise, residual, *tensors)
