"""Gaussians of several models as one batch of Gaussians."""

from __future__ import annotations

__all__ = ["stack_distributions"]

from collections.abc import Sequence

import torch
from botorch.posteriors.fully_bayesian import MCMC_DIM
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.operators import BlockDiagLinearOperator, LinearOperator


def stack_distributions(
    distributions: Sequence[MultivariateNormal],
) -> MultivariateNormal:
    """The distributions of ``S`` models, in BoTorch's order of dimensions for them.

    Args:
        distributions: Over ``batch_shape x q`` or (multitask) ``batch_shape x q x m``.

    Returns:
        One distribution over ``batch_shape x S x q`` or ``batch_shape x S x q x m``.
        Independent outputs stay a block diagonal.
    """
    covariance = _stack_covariances([d.lazy_covariance_matrix for d in distributions])
    means = [d.mean for d in distributions]
    first = distributions[0]
    if isinstance(first, MultitaskMultivariateNormal):
        return MultitaskMultivariateNormal(
            torch.stack(means, dim=MCMC_DIM),
            covariance,
            interleaved=first._interleaved,
        )
    return MultivariateNormal(torch.stack(means, dim=MCMC_DIM + 1), covariance)


def _stack_covariances(parts: list[LinearOperator]) -> LinearOperator:
    if all(isinstance(part, BlockDiagLinearOperator) for part in parts):
        # cached roots and hypervolumes look for the blocks
        blocks = [part.base_linear_op.to_dense() for part in parts]
        stacked = torch.stack(blocks, dim=MCMC_DIM - 1)
        return BlockDiagLinearOperator(to_linear_operator(stacked))
    # a bare tensor would get no jitter when it is factorised for sampling
    return to_linear_operator(
        torch.stack([part.to_dense() for part in parts], dim=MCMC_DIM)
    )
