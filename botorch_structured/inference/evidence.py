"""Log evidence of blocks coupled by weights, with its gradient written out.

Equation (3) of Jenatton et al. (2017), evaluated through the algebra of
``botorch_structured.linalg.block_low_rank``. With alpha = K^-1 r, mu the posterior mean
of the weights and R = A^-1 F, the derivative of the log evidence is, leaf by leaf,

    dA_p:  1/2 (alpha alpha' - A_p^-1 + R M^-1 R')
    dF_p:  alpha mu' - R M^-1          dr:  -alpha          d noise:  diag(dA_p)

and the derivative of a stationary correlation needs one product more (`dS` below).
"""

from __future__ import annotations

__all__ = ["BlockTensors", "log_evidence"]

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

ValueAndSlope = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class BlockTensors:
    """One bucket of leaves, A_p = v_p k(|s - s'|^2) + c_p + noise.

    Attributes:
        bucket: Rows and leaves.
        scaled: Inputs divided by lengthscales, ``B x N x d``, zero where padded.
        variance: v, ``B``.
        constant: c, ``B``: a constant of the leaf's own.
        features: Scaled weight features, ``B x N x D``, zero where padded.
        weights: Index of each feature's weight, ``B x D``; ``num_weights`` if unused.
    """

    bucket: Bucket
    scaled: Tensor
    variance: Tensor
    constant: Tensor
    features: Tensor
    weights: Tensor


def leaf_covariance(
    block: BlockTensors, noise: Tensor, value_and_slope: ValueAndSlope
) -> tuple[Tensor, Tensor, Tensor]:
    """A_p of a bucket, and the correlation and slope it was made from.

    Args:
        block: The bucket.
        noise: Noise variances of all rows, ``n``.
        value_and_slope: Squared distances to correlations and minus their derivatives.
    """
    s = block.scaled
    squares = s.square().sum(-1)
    distance = squares.unsqueeze(-1) + squares.unsqueeze(-2)
    distance = distance.sub_(s @ s.mT, alpha=2.0).clamp_min_(0.0)
    # rounding must not put two copies of a point apart from one another's diagonal
    distance.diagonal(dim1=-1, dim2=-2).zero_()
    value, slope = value_and_slope(distance)
    if block.bucket.real is not None:
        real = block.bucket.real
        pair = (real.unsqueeze(-1) & real.unsqueeze(-2)).to(value)
        value, slope = value * pair, slope * pair
        constant = block.constant[:, None, None] * pair
    else:
        constant = block.constant[:, None, None]
    covariance = block.variance[:, None, None] * value + constant
    padded_noise = pad_rows(noise, block.bucket, fill=1.0)
    covariance.diagonal(dim1=-1, dim2=-2).add_(padded_noise)
    return covariance, value, slope


class _LogEvidence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        static: tuple[list[Bucket], list[Tensor], int, ValueAndSlope],
        noise: Tensor,
        residual: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        buckets, weights, num_weights, value_and_slope = static
        blocks = []
        for i, (bucket, index) in enumerate(zip(buckets, weights, strict=True)):
            scaled, variance, constant, features = tensors[4 * i : 4 * i + 4]
            blocks.append(
                BlockTensors(bucket, scaled, variance, constant, features, index)
            )
        covariances, values, slopes = zip(
            *(leaf_covariance(b, noise, value_and_slope) for b in blocks), strict=True
        )
        inputs = [BlockInputs(b.bucket, b.features, b.weights) for b in blocks]
        factors = factorise(list(covariances), inputs, residual, num_weights)
        ctx.saved = (blocks, values, slopes, factors, residual.shape[0])
        log_two_pi = residual.shape[0] * math.log(2.0 * math.pi)
        return -0.5 * (factors.quad + factors.logdet + log_two_pi)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        blocks, values, slopes, factors, n = ctx.saved
        weight_cov, weight_mean = _padded_weight_posterior(factors)
        # one row more takes what padding scatters
        d_noise, d_residual = grad.new_zeros(n + 1), grad.new_zeros(n + 1)
        d_tensors: list[Tensor | None] = []
        parts = zip(blocks, values, slopes, factors.blocks, strict=True)
        for block, value, slope, factor in parts:
            index, weights = block.bucket.index, block.weights
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
            h = g * slope * block.variance[:, None, None]
            d_scaled = 4.0 * (h @ block.scaled - h.sum(-1, True) * block.scaled)
            d_constant = g
            if block.bucket.real is not None:
                real = block.bucket.real.to(g)
                d_constant = g * real.unsqueeze(-1) * real.unsqueeze(-2)
            d_features = alpha.unsqueeze(-1) * mean.unsqueeze(-2) - solved_cov
            d_tensors += [
                grad * d_scaled,
                grad * (g * value).sum((-1, -2)),
                grad * d_constant.sum((-1, -2)),
                grad * d_features,
            ]
        return (None, grad * d_noise[:n], grad * d_residual[:n], *d_tensors)


def _padded_weight_posterior(factors: Factorisation) -> tuple[Tensor, Tensor]:
    """M^-1 and mu with one zero row for the dummy weight."""
    covariance = torch.cholesky_inverse(factors.precision_chol)
    covariance = torch.nn.functional.pad(covariance, (0, 1, 0, 1))
    return covariance, torch.nn.functional.pad(factors.weight_mean, (0, 1))


def log_evidence(
    blocks: list[BlockTensors],
    noise: Tensor,
    residual: Tensor,
    num_weights: int,
    value_and_slope: ValueAndSlope,
) -> Tensor:
    """Log N(r; 0, K): a scalar, differentiable once in every tensor of the blocks.

    Args:
        blocks: The leaves, in buckets.
        noise: Noise variances, ``n``.
        residual: Observations minus prior means, ``n``.
        num_weights: V, the number of weights.
        value_and_slope: The correlation, see ``leaf_covariance``.

    Raises:
        NotPSDError: If a block is not positive definite even with jitter.
    """
    static = (
        [b.bucket for b in blocks],
        [b.weights for b in blocks],
        num_weights,
        value_and_slope,
    )
    tensors = [
        t for b in blocks for t in (b.scaled, b.variance, b.constant, b.features)
    ]
    return _LogEvidence.apply(static, noise, residual, *tensors)
