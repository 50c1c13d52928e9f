"""Stationary correlations as functions of a squared scaled distance.

With r^2 = sum_j (x_j - x'_j)^2 / l_j^2,

    Matern-5/2   k(r^2) = (1 + sqrt5 r + 5 r^2 / 3) exp(-sqrt5 r)
    RBF          k(r^2) = exp(-r^2 / 2)

and ``slope`` is -dk/d(r^2) of the same, which is all that a gradient needs: with H = G
* slope the derivative of sum_ij G_ij k(r_ij^2) with respect to the scaled inputs is a
matrix product.
"""

from __future__ import annotations

__all__ = [
    "CORRELATIONS",
    "Correlation",
    "squared_distance",
]

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

_SQRT5 = math.sqrt(5.0)
# below this squared distance a square root would have an unbounded derivative, while
# the correlation differs from 1 by less than rounding
_TINY = 1e-30


def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    """Squared Euclidean distances, never negative.

    Args:
        a: ``batch_shape x n x d``.
        b: ``batch_shape x m x d``.

    Returns:
        ``batch_shape x n x m``.
    """
    squared = a.square().sum(-1, keepdim=True) + b.square().sum(-1, keepdim=True).mT
    return (squared - 2.0 * a @ b.mT).clamp_min(0.0)


def _matern52(squared: Tensor) -> Tensor:
    r = squared.clamp_min(_TINY).sqrt() * _SQRT5
    return (1.0 + r + r.square() / 3.0) * torch.exp(-r)


def _matern52_slope(squared: Tensor) -> tuple[Tensor, Tensor]:
    r = squared.clamp_min(_TINY).sqrt().mul_(_SQRT5)
    e = torch.exp(-r)
    slope = e.addcmul(e, r)  # (1 + r) e
    k = torch.addcmul(slope, e * r, r, value=1.0 / 3.0)
    return k, slope.mul_(5.0 / 6.0)


def _rbf(squared: Tensor) -> Tensor:
    return torch.exp(-0.5 * squared)


def _rbf_slope(squared: Tensor) -> tuple[Tensor, Tensor]:
    k = torch.exp(-0.5 * squared)
    return k, 0.5 * k


@dataclass(frozen=True)
class Correlation:
    """A stationary correlation function.

    Attributes:
        name: "matern" (5/2) or "rbf".
        value: Squared distances to correlations, differentiable.
        value_and_slope: Squared distances to correlations and -dk/d(r^2).
        spectral_quantile: Quantile function of the spectral density in one dimension,
            for a unit lengthscale (frequencies of Fourier features).
    """

    name: str
    value: Callable[[Tensor], Tensor]
    value_and_slope: Callable[[Tensor], tuple[Tensor, Tensor]]
    spectral_quantile: Callable[[float], float]


def _student_quantile(p: float) -> float:
    # the Matern-nu spectral density in 1-D is a Student t with 2 nu degrees of freedom
    return float(stats.t.ppf(p, df=5))


def _normal_quantile(p: float) -> float:
    return float(stats.norm.ppf(p))


CORRELATIONS: tuple[Correlation, ...] = (
    Correlation("matern", _matern52, _matern52_slope, _student_quantile),
    Correlation("rbf", _rbf, _rbf_slope, _normal_quantile),
)
