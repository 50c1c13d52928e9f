"""Univariate slice sampling with step-out and shrinkage (Neal 2003).

Choose it for a handful to a few dozen parameters whose density is cheap and has no
gradient worth computing: it has no step size that must be right, only widths that cost
evaluations when they are wrong, and it cannot reject. It is what Murray and Adams
(2010) and Levesque et al. (2017, section III) use for hyperparameters of a GP.

References:

.. [Neal2003slice]
    R. M. Neal. Slice Sampling. Annals of Statistics 31(3), 2003.
.. [Murray2010slice]
    I. Murray and R. P. Adams. Slice Sampling Covariance Hyperparameters of Latent
    Gaussian Models. NeurIPS 2010.
"""

from __future__ import annotations

__all__ = ["SliceSampler", "Target", "slice_update"]

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

# Widths are tuned to what a slice turned out to be, between these limits in one go.
_MAX_CHANGE = 4.0
# Wider than the typical slice: a step-out that has nothing to do costs two evaluations,
# one that has to expand costs more of them than the shrinkage of a wide interval.
_WIDTH_FACTOR = 1.5
_SMALLEST_WIDTH, _LARGEST_WIDTH = 1e-6, 1e6


class Target(Protocol):
    """A log density on R^k, evaluated along one coordinate at a time.

    What is known of the current position may be kept between evaluations: that is where
    incremental evaluations come from.
    """

    @property
    def dim(self) -> int:
        """Number of coordinates, k."""

    def move_to(self, position: Vector) -> float:
        """Make ``position`` current; its log density, ``-inf`` outside the support."""

    def along(self, axis: int) -> Callable[[float], float]:
        """The log density as a function of one coordinate of the current position."""

    def accept(self) -> None:
        """Make the last point evaluated by what ``along`` returned current."""


class Update(NamedTuple):
    """Result of one update of one coordinate.

    Attributes:
        value: The new value.
        log_density: There.
        length: Length of the interval that the value was finally drawn from.
        evaluations: How often the density was evaluated.
        moved: Whether ``value`` is a new point (it is not where rounding has made the
            slice empty; the last evaluation then was another point).
    """

    value: float
    log_density: float
    length: float
    evaluations: int
    moved: bool


def slice_update(
    log_density: Callable[[float], float],
    value: float,
    current: float,
    width: float,
    rng: np.random.Generator,
    max_steps: int = 32,
) -> Update:
    """One step-out and shrinkage, [Neal2003slice]_ figures 3 and 5.

    Args:
        log_density: Along the coordinate; ``-inf`` outside the support.
        value: Where the chain is.
        current: Log density there, finite.
        width: Length of the first interval.
        rng: Source of randomness.
        max_steps: The interval grows to at most this many widths.
    """
    height = current - rng.exponential()
    left = value - width * rng.random()
    right = left + width
    steps_left = int(max_steps * rng.random())
    steps_right = max_steps - 1 - steps_left
    evaluations = 0
    while steps_left > 0:
        evaluations += 1
        if not log_density(left) > height:
            break
        left -= width
        steps_left -= 1
    while steps_right > 0:
        evaluations += 1
        if not log_density(right) > height:
            break
        right += width
        steps_right -= 1
    tiny = 1e-13 * max(1.0, abs(value))
    while right - left > tiny:
        proposal = left + (right - left) * rng.random()
        evaluations += 1
        log_p = log_density(proposal)
        if log_p > height:
            return Update(proposal, log_p, right - left, evaluations, True)
        if proposal < value:
            left = proposal
        else:
            right = proposal
    return Update(value, current, right - left, evaluations, False)
