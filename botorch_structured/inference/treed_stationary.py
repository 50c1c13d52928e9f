r"""Equation (2) of treed GPs with stationary kernels: all leaves, with the gradient.

A fit evaluates a hundred times the objective of [Assael2014treed]_ (equation (2)), and
autograd would keep, and read again, a dozen matrices for each pair of a leaf and a
node. The gradient is known, so here each batch of matrices is built, factorised and
reduced to what remains of it *before the next one is touched*, and none leaves the
cache. With s the inputs over the lengthscales of a leaf, K = v k(|s - s'|^2), slope =
-dk/d(r^2) and G the derivative of the leaf's sum by K,

    H = v G * slope,    ds = 4 (H s - rowsum(H) s),    dv = sum(G * k),

of which the values of nodes above the leaf (``path_sharing="lengthscale"``), which are
known, need the first only.
"""

from __future__ import annotations

__all__ = ["StationaryTree", "stationary_evidence"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_structured.inference.treed_evidence import (
    noisy_covariance,
    path_derivatives,
    path_values,
)
from botorch_structured.inference.treed_groups import PathGroup


@dataclass(frozen=True)
class StationaryTree:
    """What does not change when hyperparameters do.

    Attributes:
        groups: The terms of equation (2).
        y: Observations, ``n``.
        value_and_slope: Squared scaled distances to k and -dk/d(r^2).
    """

    groups: Sequence[PathGroup]
    y: Tensor
    value_and_slope: Callable[[Tensor], tuple[Tensor, Tensor]]


def _squared_distances(s: Tensor) -> Tensor:
    """Of points ``B x m x d`` among themselves, ``B x m x m``."""
    squares = s.square().sum(-1, keepdim=True)
    distance = squares + squares.mT
    distance.baddbmm_(s, s.mT, alpha=-2.0).clamp_min_(0.0)
    # rounding must not put two copies of a point apart from one another's diagonal
    distance.diagonal(dim1=-1, dim2=-2).zero_()
    return distance


@dataclass(frozen=True)
class _Arguments:
    """What the evidence depends on, or its derivatives.

    Attributes:
        scaled: Inputs over lengthscales: all rows of leaf 0, then of leaf 1; ``L n x
            d``.
        variance: ``V``.
        mean: All rows of values 0, then of values 1, ``V n``.
        noise: ``V n``.
    """

    scaled: Tensor
    variance: Tensor
    mean: Tensor
    noise: Tensor

    @staticmethod
    def zeros_like(other: _Arguments) -> _Arguments:
        """Zeros of the same shapes."""
        parts = (other.scaled, other.variance, other.mean, other.noise)
        return _Arguments(*(torch.zeros_like(part) for part in parts))


def _group_evidence(
    tree: StationaryTree, group: PathGroup, at: _Arguments, slopes: _Arguments | None
) -> Tensor:
    """Weighted evidences of a group, ``B``; its part of the gradient goes to slopes."""
    n, rows = len(tree.y), group.rows
    inputs = (group.leaves.unsqueeze(-1) * n + rows).view(-1)
    places = (group.values.unsqueeze(-1) * n + rows).view(-1)
    s = at.scaled.index_select(0, inputs).view(*rows.shape, -1)
    variance = at.variance[group.values, None, None]
    noise = at.noise.index_select(0, places).view(rows.shape)
    residual = tree.y[rows] - at.mean.index_select(0, places).view(rows.shape)
    k, slope = tree.value_and_slope(_squared_distances(s))
    noisy = noisy_covariance(group, k * variance, noise)
    values, chol, half = path_values(group, noisy, residual)
    if slopes is None:
        return values
    g, d_residual = path_derivatives(group, chol, half)
    slopes.noise.index_add_(0, places, g.diagonal(dim1=-1, dim2=-2).reshape(-1))
    if group.own:  # what nodes above leaves have is known
        slopes.variance.index_add_(0, group.values, (g * k).sum((-1, -2)))
        slopes.mean.index_add_(0, places, -d_residual.view(-1))
    h = g.mul_(slope)
    d_scaled = torch.baddbmm(h.sum(-1, True) * s, h, s, beta=-4.0, alpha=4.0)
    d_scaled.mul_(variance)
    slopes.scaled.index_add_(0, inputs, d_scaled.view(len(inputs), -1))
    return values


class _StationaryEvidence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tree: StationaryTree,
        scaled: Tensor,
        variance: Tensor,
        mean: Tensor,
        noise: Tensor,
    ) -> Tensor:
        flat = scaled.reshape(-1, scaled.shape[-1])
        at = _Arguments(flat, variance, mean.reshape(-1), noise.reshape(-1))
        slopes = _Arguments.zeros_like(at) if any(ctx.needs_input_grad) else None
        total = variance.new_zeros(())
        for group in tree.groups:
            total += _group_evidence(tree, group, at, slopes).sum()
        ctx.saved = (slopes, scaled.shape, mean.shape)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        slopes, shape, rows = ctx.saved
        return (
            None,
            grad * slopes.scaled.view(shape),
            grad * slopes.variance,
            grad * slopes.mean.view(rows),
            grad * slopes.noise.view(rows),
        )


def stationary_evidence(
    tree: StationaryTree,
    scaled: Tensor,
    variance: Tensor,
    mean: Tensor,
    noise: Tensor,
) -> Tensor:
    """The sum of equation (2) without the prior, over all leaves: a scalar.

    Differentiable once in everything but the tree, and in amplitudes and means of nodes
    above leaves, which are known. The gradient is computed along with the value if it
    can be asked for.

    Args:
        tree: Terms and data.
        scaled: The data as each leaf has them: inputs over lengthscales, ``L x n x d``.
        variance: Amplitudes of the leaves, then of other nodes, ``V``, see
            ``PathGroup.values``.
        mean: Prior means of the data, in the same order, ``V x n``.
        noise: Noise variances of the data, ``V x n``.

    Raises:
        NotPSDError: If a covariance is not positive definite even with jitter.
    """
    return _StationaryEvidence.apply(tree, scaled, variance, mean, noise)
