"""Normal distributions of function values, from roots of their covariances."""

from __future__ import annotations

__all__ = [
    "covariance_of_points",
    "covariance_of_rows",
    "in_columns",
    "joint",
    "normal",
]

from collections.abc import Callable
from typing import Any

import torch
from botorch.posteriors import GPyTorchPosterior, Posterior, TransformedPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.operators import (
    BlockDiagLinearOperator,
    LinearOperator,
    RootLinearOperator,
)
from torch import Tensor

from botorch_structured.models.fast_inference import with_variance_floor
from botorch_structured.models.outcome_scale import (
    ScaledMultitaskNormal,
    ScaledNormal,
    at_unit_scale,
)


def normal(mean: Tensor, covariance: LinearOperator) -> MultivariateNormal:
    """A distribution whose covariance may lack dimensions of the mean.

    Fantasies at the same points differ in their means only.

    Args:
        mean: ``... x n``.
        covariance: ``... x n x n``.
    """
    if covariance.shape[:-1] != mean.shape:
        covariance = covariance.expand(*mean.shape, mean.shape[-1])
    return ScaledNormal(mean, at_unit_scale(covariance))


def covariance_of_points(
    root: Tensor, noise: Tensor | None = None, unit: Tensor | float = 1.0
) -> LinearOperator:
    """The covariance of ``root root'`` and noise, ``... x q x q``.

    With more points than features it is singular, and is sampled through the weights;
    a Cholesky factorisation would need jitter.

    Args:
        root: ``... x q x D``.
        noise: Variances that broadcast to ``... x q``.
        unit: Of variances, see ``with_variance_floor``.
    """
    if noise is None and root.shape[-2] >= root.shape[-1]:
        return RootLinearOperator(root)
    return _with_noise(with_variance_floor(root @ root.mT, unit), noise)


def covariance_of_rows(
    root: Tensor,
    task: Tensor,
    noise: Tensor | None = None,
    unit: Tensor | float = 1.0,
) -> LinearOperator:
    """The same for rows of tasks, which are independent of each other.

    Args:
        root: ``... x q x D``.
        task: The task of each row, ``... x q``.
        noise: Variances that broadcast to ``... x q``.
        unit: Of variances, see ``with_variance_floor``.
    """
    if not task.numel() or bool((task == task.reshape(-1)[0]).all()):
        return covariance_of_points(root, noise, unit)
    same = task.unsqueeze(-1) == task.unsqueeze(-2)
    return _with_noise(
        with_variance_floor(torch.where(same, root @ root.mT, 0.0), unit), noise
    )


def _with_noise(covariance: Tensor, noise: Tensor | None) -> LinearOperator:
    if noise is not None:
        shape = torch.broadcast_shapes(noise.shape, covariance.shape[:-1])
        covariance = covariance + torch.diag_embed(noise.expand(shape))
    # a bare tensor would get no jitter when it is factorised for sampling
    return to_linear_operator(covariance)


def joint(mean: Tensor, covariance: LinearOperator) -> GPyTorchPosterior:
    """One posterior of independent outputs.

    Args:
        mean: ``... x m x q``.
        covariance: ``... x m x q x q``.
    """
    if mean.shape[-2] == 1:
        return GPyTorchPosterior(normal(mean.squeeze(-2), covariance.squeeze(-3)))
    covariance = covariance.expand(*mean.shape, mean.shape[-1])
    blocks = BlockDiagLinearOperator(at_unit_scale(covariance), block_dim=-3)
    return GPyTorchPosterior(ScaledMultitaskNormal(mean.mT, blocks, interleaved=False))


def in_columns(posterior: Posterior, m: int) -> Posterior:
    """One column for each of ``m`` outputs, which came one below the other."""

    def columns(values: Tensor) -> Tensor:
        return values.squeeze(-1).unflatten(-1, (m, -1)).mT

    def rows(values: Tensor) -> Tensor:
        return values.mT.flatten(-2).unsqueeze(-1)

    def moment(of: Callable[[Tensor, Tensor], Tensor] | None) -> Any:
        return None if of is None else lambda M, V: columns(of(rows(M), rows(V)))

    if isinstance(posterior, TransformedPosterior):  # each value by its own row
        transform = posterior._sample_transform
        return TransformedPosterior(
            in_columns(posterior._posterior, m),
            sample_transform=lambda values: columns(transform(rows(values))),
            mean_transform=moment(posterior._mean_transform),
            variance_transform=moment(posterior._variance_transform),
        )
    assert isinstance(posterior, GPyTorchPosterior)
    mvn = posterior.distribution
    return GPyTorchPosterior(
        ScaledMultitaskNormal(
            columns(mvn.mean.unsqueeze(-1)),
            mvn.lazy_covariance_matrix,
            interleaved=False,
        )
    )
