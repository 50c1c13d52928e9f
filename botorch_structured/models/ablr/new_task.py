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

__all__ = [
    "Population",
    "UsualOutcomes",
    "most_probable_scale",
    "population",
    "usual",
]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from botorch_structured.models.ablr.factors import triangular_factor

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


# ----------------------------------------------------------------------
# The scale of a new task's outcomes, which a few of them hardly tell.
#
# Two evaluations have a standard deviation that says next to nothing. With what other
# tasks show, outcomes are
#
# .. math:: y \sim N(o + s \Phi \mu, s^2 (\Phi \Sigma \Phi' + \sigma^2 I)), \quad
#     o \sim N(\bar o, \tau_o^2), \quad \log s \sim N(\bar l, \tau_l^2),
#
# and the most probable scale s follows from where the new outcomes lie on the curve mu
# that tasks have in common: it is the usual one, unless they say otherwise.

_GRID = 161
_SPREADS = 4.0
_MAX_SPREADS = 1e3
_TOLERANCE_ABLR_SCALE = 1e-3
# How many tasks the guess of a spread counts for.
_GUESS_WEIGHT = 3.0
_MIN_NOISE = 1e-9


class UsualOutcomes(NamedTuple):
    """Levels, scales and noise of tasks: usual values and how far tasks are from them.

    Attributes:
        level: Mean and standard deviation of o.
        log_scale: Mean and standard deviation of log s.
        log_noise: Mean and standard deviation of log sigma^2, noise variances in units
            of s^2.
    """

    level: tuple[float, float]
    log_scale: tuple[float, float]
    log_noise: tuple[float, float]


def usual(values: Tensor, guess: float) -> tuple[float, float]:
    """Mean and standard deviation that predict one more value.

    Args:
        values: Of some tasks, ``T``.
        guess: What the standard deviation is without them.
    """
    values, count = values.detach(), len(values)
    squares = float((values - values.mean()).square().sum())
    variance = (squares + _GUESS_WEIGHT * guess**2) / (count - 1 + _GUESS_WEIGHT)
    return float(values.mean()), math.sqrt(variance * (1.0 + 1.0 / count))


@torch.no_grad()
def most_probable_scale(
    features: Tensor,
    curve: Tensor,
    Y: Tensor,
    outcomes: UsualOutcomes,
    noise_variance: Tensor | None = None,
) -> float:
    """The mode of log s given outcomes, as a scale.

    O(n D^2) for n outcomes.

    Args:
        features: ``Phi L`` with ``Sigma = L L'``, ``n x D``.
        curve: ``Phi mu``, ``n``.
        Y: Outcomes, ``n``.
        outcomes: What is usual.
        noise_variance: Known noise variances, ``n``. Default: the usual noise.
    """
    log_scale, spread = outcomes.log_scale
    density = _Density(features, curve, Y, outcomes, noise_variance)
    grid = torch.linspace(-1.0, 1.0, _GRID, dtype=Y.dtype, device=Y.device)
    # in units of the spread: wider while the mode is farther than expected, then finer
    middle, width = 0.0, _SPREADS
    while _TOLERANCE_ABLR_SCALE < width < _MAX_SPREADS:
        t = middle + width * grid
        place = int((density(log_scale + spread * t) - 0.5 * t.square()).argmax())
        middle = float(t[place])
        width *= 4.0 / (_GRID - 1) if 0 < place < _GRID - 1 else 2.0
    return math.exp(log_scale + spread * middle)


class _Density:
    """Log density of outcomes given their scale, up to a constant.

    The rows are rotated until the covariance of all but the level is diagonal whatever
    the scale. Nothing is factorised on the way: levels may be a million scales apart,
    and the noise far below.
    """

    def __init__(
        self,
        features: Tensor,
        curve: Tensor,
        Y: Tensor,
        outcomes: UsualOutcomes,
        noise_variance: Tensor | None,
    ) -> None:
        center, level_spread = outcomes.level
        level = torch.full_like(Y, level_spread)
        rest = torch.stack([curve, level, Y - center], dim=-1)
        rows = torch.cat([features, rest], dim=-1)
        # what is added to the diagonal, in units of s^2 and as it is
        self.noise = math.exp(outcomes.log_noise[0]), 0.0
        if noise_variance is not None:
            tiny = _MIN_NOISE * math.exp(2.0 * outcomes.log_scale[0])
            rows = rows / noise_variance.clamp_min(tiny).sqrt().unsqueeze(-1)
            self.noise = 0.0, 1.0
        self.free = max(len(rows) - rows.shape[-1], 0)
        if self.free:  # a rotation of the rows changes nothing
            rows = triangular_factor(rows)
        basis, values, _ = torch.linalg.svd(rows[:, :-3], full_matrices=True)
        self.variances = Y.new_zeros(len(rows))
        self.variances[: len(values)] = values.square()
        self.curve, self.level, self.y = (basis.mT @ rows[:, -3:]).unbind(-1)

    def __call__(self, log_s: Tensor) -> Tensor:
        """Of some scales, ``G``."""
        s = log_s.exp().unsqueeze(-1)
        floor = s.square() * self.noise[0] + self.noise[1]
        variances = s.square() * self.variances + floor
        level = self.level / variances.sqrt()
        apart = (self.y - s * self.curve) / variances.sqrt()
        # along the level, which is uncertain, and across
        squares = level.square().sum(-1)
        along = (apart * level).sum(-1) / squares.clamp_min(1e-300)
        across = (apart - along.unsqueeze(-1) * level).square().sum(-1)
        quadratic = across + along.square() * squares / (1.0 + squares)
        log_det = variances.log().sum(-1) + squares.log1p()
        return -0.5 * (quadratic + log_det + self.free * floor.squeeze(-1).log())
