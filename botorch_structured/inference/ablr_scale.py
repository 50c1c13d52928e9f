r"""The scale of a new task's outcomes, which a few of them hardly tell.

Two evaluations have a standard deviation that says next to nothing. With what other
tasks show, outcomes are

.. math:: y \sim N(o + s \Phi \mu, s^2 (\Phi \Sigma \Phi' + \sigma^2 I)), \quad
    o \sim N(\bar o, \tau_o^2), \quad \log s \sim N(\bar l, \tau_l^2),

and the most probable scale s follows from where the new outcomes lie on the curve mu
that tasks have in common: it is the usual one, unless they say otherwise.
"""

from __future__ import annotations

__all__ = ["UsualOutcomes", "most_probable_scale", "usual"]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from botorch_structured.inference.triangular_factor import triangular_factor

_GRID = 161
_SPREADS = 4.0
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
    (center, level_spread), (log_scale, spread) = outcomes.level, outcomes.log_scale
    t = torch.linspace(-_SPREADS, _SPREADS, _GRID, dtype=Y.dtype, device=Y.device)
    log_s = log_scale + spread * t
    penalty = -0.5 * t.square()
    ones = torch.ones_like(Y)
    rows = torch.cat([features, torch.stack([curve, ones, Y - center], dim=-1)], dim=-1)
    if noise_variance is None:
        floor = (2.0 * log_s).exp() * math.exp(outcomes.log_noise[0])
    else:
        floor = torch.ones_like(log_s)
        tiny = _MIN_NOISE * math.exp(2.0 * log_scale)
        rows = rows / noise_variance.clamp_min(tiny).sqrt().unsqueeze(-1)
        floor = floor.clamp_min(_MIN_NOISE)
    free = len(rows) - rows.shape[-1]
    if free > 0:  # a rotation of the rows changes nothing
        rows = triangular_factor(rows)
    F, curve, one, y = rows[:, :-3], rows[:, -3], rows[:, -2], rows[:, -1]
    s = log_s.exp().unsqueeze(-1)
    covariance = s.unsqueeze(-1).square() * (F @ F.mT)
    covariance = covariance + level_spread**2 * one.outer(one)
    covariance.diagonal(dim1=-1, dim2=-2).add_(floor.unsqueeze(-1))
    factor = torch.linalg.cholesky(covariance)
    apart = torch.linalg.solve_triangular(
        factor, (y - s * curve).unsqueeze(-1), upper=False
    )
    evidence = (
        penalty
        - 0.5 * apart.square().sum((-1, -2))
        - factor.diagonal(dim1=-1, dim2=-2).log().sum(-1)
        - 0.5 * max(free, 0) * floor.log()
    )
    return math.exp(float(log_s[_peak(evidence)[0]]) + _peak(evidence)[1] * spread)


def _peak(values: Tensor) -> tuple[int, float]:
    """The largest of values on the grid, and how far the parabola's top is from it."""
    i = int(values.argmax())
    if not 0 < i < len(values) - 1:
        return i, 0.0
    left, mid, right = (float(values[j]) for j in (i - 1, i, i + 1))
    curvature = left - 2.0 * mid + right
    offset = 0.0 if curvature >= 0.0 else 0.5 * (left - right) / curvature
    return i, offset * 2.0 * _SPREADS / (_GRID - 1)
