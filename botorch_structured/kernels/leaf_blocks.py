"""Leaves with a stationary kernel: their covariances, with the gradient written out.

A_p = v_p k(|s - s'|^2) + c_p for scaled inputs s. With G the derivative of some scalar
with respect to A_p and H = v_p G * slope, the derivative with respect to the scaled
inputs is a matrix product, 4 (H S - rowsum(H) S), and autograd need not differentiate
distances.
"""

from __future__ import annotations

__all__ = ["stationary_covariance", "stationary_cross"]

from typing import Any

import torch
from torch import Tensor

from botorch_structured.inference.evidence import CrossCovariance
from botorch_structured.kernels.stationary import Correlation


class _StationaryCovariance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        static: tuple[Tensor | None, Correlation],
        scaled: Tensor,
        variance: Tensor,
        constant: Tensor,
    ) -> Tensor:
        real, correlation = static
        squares = scaled.square().sum(-1)
        distance = squares.unsqueeze(-1) + squares.unsqueeze(-2)
        distance = distance.sub_(scaled @ scaled.mT, alpha=2.0).clamp_min_(0.0)
        # rounding must not put two copies of a point apart from one another's diagonal
        distance.diagonal(dim1=-1, dim2=-2).zero_()
        pair = None
        if real is not None:
            pair = (real.unsqueeze(-1) & real.unsqueeze(-2)).to(distance)
        if not any(ctx.needs_input_grad):
            value, slope = correlation.value(distance), None
        else:
            value, slope = correlation.value_and_slope(distance)
        if pair is not None:
            value = value * pair
        ctx.saved = (scaled, variance, value, slope, pair)
        shift = constant[:, None, None]
        covariance = variance[:, None, None] * value
        return covariance + (shift if pair is None else shift * pair)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grad_outputs
        scaled, variance, value, slope, pair = ctx.saved
        if pair is not None:
            g = g * pair
        h = g * slope * variance[:, None, None]
        h = 0.5 * (h + h.mT)
        d_scaled = 4.0 * (h @ scaled - h.sum(-1, True) * scaled)
        return None, d_scaled, (g * value).sum((-1, -2)), g.sum((-1, -2))


def stationary_covariance(
    scaled: Tensor,
    variance: Tensor,
    constant: Tensor,
    real: Tensor | None,
    correlation: Correlation,
) -> Tensor:
    """Prior covariances of a bucket of leaves, ``B x N x N``, zero where padded.

    Args:
        scaled: Inputs over lengthscales, ``B x N x e``.
        variance: v, ``B``.
        constant: c, ``B``: a constant of the leaf's own.
        real: ``B x N``, False where padded; None if nothing is.
        correlation: k.
    """
    return _StationaryCovariance.apply((real, correlation), scaled, variance, constant)


def stationary_cross(
    scaled: Tensor,
    variance: Tensor,
    constant: Tensor,
    inputs: Tensor,
    correlation: Correlation,
) -> CrossCovariance:
    """Covariances of points with the data of such a bucket.

    Args:
        scaled: Inputs over lengthscales, ``B x N x e``.
        variance: v, ``B``.
        constant: c, ``B``.
        inputs: Which columns of a point these are, ``B x e``.
        correlation: k.
    """

    def cross(places: Tensor, points: Tensor, index: Tensor) -> Tensor:
        x = points[index.unsqueeze(-1), inputs[places].unsqueeze(-2)]
        data = scaled[places]
        squares = x.square().sum(-1, keepdim=True) + data.square().sum(-1)[:, None, :]
        distance = (squares - 2.0 * x @ data.mT).clamp_min(0.0)
        k = correlation.value(distance) * variance[places, None, None]
        return k + constant[places, None, None]

    return cross
