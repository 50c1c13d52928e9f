r"""What many Bayesian linear regressions have in common: the prior of one more.

Perrone et al. (2017) give the weights of each task the prior ``N(0, I / beta_t)``. Once
many tasks are solved it is known better: their weights have a mean and a covariance,

.. math:: w_t \sim N(\mu, \Sigma), \quad \mu \sim N(0, \Lambda), \quad
    \log p(\Sigma) = -\frac{D}{2} (\log |\Sigma| + \mathrm{tr}(\Sigma^{-1} \Lambda)),
    \quad \Lambda = I / \bar\beta

up to a constant (an inverse Wishart with its mode at Lambda). Their most probable
values are found from the posteriors of the tasks, each a Gaussian likelihood of its
weights times a prior that is known: Sigma by expectation maximisation, mu exactly for
each Sigma on the way. The paper's prior is Lambda, where this starts and what it is
without tasks.
"""

from __future__ import annotations

__all__ = ["Population", "population"]

from typing import NamedTuple

import torch
from torch import Tensor

_MAX_STEPS = 200
_TOLERANCE = 1e-4


class Population(NamedTuple):
    """The normal distribution of the weights of a task that has not been seen.

    Attributes:
        mean: mu, ``D``.
        root: A triangular root of Sigma, ``D x D``.
    """

    mean: Tensor
    root: Tensor


@torch.no_grad()
def population(mean: Tensor, root: Tensor, weight_precision: Tensor) -> Population:
    """The distribution that the weights of some tasks come from.

    As many tasks as there are features count as much as the paper's prior does: with
    few tasks Sigma is close to isotropic.

    Args:
        mean: Posterior means of the tasks' weights, ``T x D``, under their own prior
            ``N(0, I / beta_t)``.
        root: Roots of the posterior covariances, ``T x D x D``.
        weight_precision: The ``beta_t``, ``T``.

    Raises:
        ValueError: Without tasks.
    """
    T, D = mean.shape
    if not T:
        raise ValueError("mean: expected the weights of at least one task, got none.")
    precision, shift = _likelihoods(mean, root, weight_precision)
    eye = torch.eye(D, dtype=mean.dtype, device=mean.device)
    spread = weight_precision.log().mean().exp().reciprocal()
    mu, sigma = torch.zeros_like(mean[0]), spread * eye
    for _ in range(_MAX_STEPS):
        before = sigma
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(sigma))
        factor = torch.linalg.cholesky(precision + inverse)
        covariance = torch.cholesky_inverse(factor)
        each = torch.cholesky_solve(shift.unsqueeze(-1), factor).squeeze(-1)
        # mu for this Sigma, weights integrated out: from their means, as in a plain EM
        # step, it would take hundreds of steps where tasks have few rows
        told = T * inverse - inverse @ covariance.sum(0) @ inverse
        mu = torch.linalg.solve(told + eye / spread, inverse @ each.sum(0))
        apart = each + covariance @ (inverse @ mu) - mu
        sigma = apart.mT @ apart + covariance.sum(0) + D * spread * eye
        sigma = sigma / (T + D)
        if (sigma - before).abs().max() < _TOLERANCE * sigma.diagonal().max():
            break
    return Population(mu, torch.linalg.cholesky(sigma))


def _likelihoods(mean: Tensor, root: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The precision ``alpha Phi' Phi`` and ``alpha Phi' y`` of each task."""
    inverse = torch.linalg.inv(root)
    total = inverse.mT @ inverse
    shift = (total @ mean.unsqueeze(-1)).squeeze(-1)
    values, vectors = torch.linalg.eigh(total)
    # what rounding leaves of directions without data must not be negative
    values = (values - beta.unsqueeze(-1)).clamp_min(0.0)
    return vectors * values.unsqueeze(-2) @ vectors.mT, shift
