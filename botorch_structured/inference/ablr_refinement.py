r"""Weights of a Bayesian linear regression to the last digits, where it is collinear.

A QR factorisation solves a problem that is rounding away from the one given. With
features that are (almost) collinear and little ridge, the weights of that one may agree
with the right ones in eight digits only. Iterative refinement recovers them: the
residual of the normal equations,

.. math:: s = \Phi' (y - \Phi m) - m \beta / \alpha, \quad
    m \leftarrow m + \alpha S s, \quad S = K^{-1} / \beta,

is computed with twice the digits (pairs of numbers; Dekker 1971), the correction with
the factors there are. Each step gains as many digits as these have right.
"""

from __future__ import annotations

__all__ = ["refined_mean"]

from typing import NamedTuple

import torch
from torch import Tensor

_MAX_STEPS = 8
_ROUNDING = 2.0**-52
_SPLIT = 2.0**27 + 1.0  # of 53 bits, halves of 26 multiply exactly


class _Pair(NamedTuple):
    """A number as the sum of what it rounds to and what is left."""

    high: Tensor
    low: Tensor


def _add(a: Tensor, b: Tensor) -> _Pair:
    total = a + b
    part = total - a
    return _Pair(total, (a - (total - part)) + (b - part))


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    scaled = _SPLIT * a
    high = scaled - (scaled - a)
    return high, a - high


def _multiply(a: Tensor, b: Tensor) -> _Pair:
    product = a * b
    (ah, al), (bh, bl) = _halves(a), _halves(b)
    low = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    return _Pair(product, low)


def _sum(terms: _Pair) -> _Pair:
    """Over the last dimension, half onto half."""
    high, low = terms
    while high.shape[-1] > 1:
        if high.shape[-1] % 2:
            high = torch.nn.functional.pad(high, (0, 1))
            low = torch.nn.functional.pad(low, (0, 1))
        half = high.shape[-1] // 2
        total = _add(high[..., :half], high[..., half:])
        rest = total.low + (low[..., :half] + low[..., half:])
        high, low = _add(total.high, rest)
    return _Pair(high[..., 0], low[..., 0])


def _residual(phi: Tensor, y: Tensor, mean: Tensor, ridge: Tensor) -> Tensor:
    """``phi' (y - phi mean) - ridge mean``, rounded once."""
    fit = _multiply(phi, -mean)
    both = _Pair(
        torch.cat([y.unsqueeze(-1), fit.high], dim=-1),
        torch.nn.functional.pad(fit.low, (1, 0)),
    )
    error = _sum(both)
    product = _multiply(phi.T, error.high)
    shrunk = (-ridge * mean).unsqueeze(-1)
    terms = _Pair(
        torch.cat([shrunk, product.high], dim=-1),
        torch.nn.functional.pad(product.low + phi.T * error.low, (1, 0)),
    )
    return _sum(terms).high


def refined_mean(
    phi: Tensor, y: Tensor, mean: Tensor, root: Tensor, alpha: Tensor, beta: Tensor
) -> Tensor:
    """The posterior mean of the weights, in all digits that it has.

    Args:
        phi: Features of a task's observations, ``N x D``.
        y: Outcomes, ``N``.
        mean: The mean as far as it is known, ``D``.
        root: A root of the covariance, ``D x D``.
        alpha: Noise precision.
        beta: Weight precision.
    """
    last = float("inf")
    for _ in range(_MAX_STEPS):
        residual = _residual(phi, y, mean, beta / alpha)
        step = alpha * (root @ (root.T @ residual))
        size = float(step.abs().max())
        if not size < 0.5 * last:  # as good as it gets
            break
        mean, last = mean + step, size
        if size <= _ROUNDING * float(mean.abs().max()):
            break
    return mean
