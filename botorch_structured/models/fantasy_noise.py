"""Noise variances that fantasies were given, where a model has inferred noise.

A Gaussian likelihood with one noise variance cannot hold another one for each row, and
GPyTorch's forgets what it is given. BoTorch gives some: ``fantasize`` with
``observation_noise``, and ``qJointEntropySearch``, which conditions on almost noiseless
optima. A model keeps them for its last rows, with NaN for the likelihood's own noise.
"""

from __future__ import annotations

__all__ = ["joined_noise", "likelihood_of_rows", "noise_of_rows"]

import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor
from torch.nn.functional import pad


def joined_noise(
    before: Tensor | None, noise: Tensor | None, new_rows: Tensor
) -> Tensor | None:
    """What is given for the last rows of a model that gets more of them.

    Args:
        before: ``batch_shape x f``, for the last rows so far; None for nothing.
        noise: ``batch_shape x n'``, for the new rows; None for the likelihood's own.
            Batch shapes broadcast, from the right, as those of outcomes do.
        new_rows: Outcomes of the new rows, ``batch_shape x n'``.

    Returns:
        ``batch_shape x (f + n')``, or None for nothing.
    """
    n = new_rows.shape[-1]
    if noise is None:
        if before is None:
            return None
        noise = new_rows.new_full((n,), torch.nan)
    noise = noise.expand(*noise.shape[:-1], n)
    if before is None:
        return noise
    shape = torch.broadcast_shapes(before.shape[:-1], noise.shape[:-1])
    both = [part.expand(*shape, part.shape[-1]) for part in (before, noise)]
    return torch.cat(both, dim=-1)


def noise_of_rows(own: Tensor, given: Tensor | None) -> Tensor:
    """The noise variances of rows, the last of which may have been given some.

    Args:
        own: Those of the likelihood, ``batch_shape x n``.
        given: From ``joined_noise``, for at most ``n`` rows.
    """
    if given is None:
        return own
    missing = own.shape[-1] - given.shape[-1]
    given = pad(given, (missing, 0), value=torch.nan)
    return torch.where(given.isnan(), own, given)


def likelihood_of_rows(noise: Tensor) -> FixedNoiseGaussianLikelihood:
    """A likelihood that adds these variances, ``batch_shape x n``, as they are."""
    likelihood = FixedNoiseGaussianLikelihood(torch.ones_like(noise))
    # GPyTorch's constructor would round small ones up
    likelihood.noise_covar.noise = noise
    return likelihood
