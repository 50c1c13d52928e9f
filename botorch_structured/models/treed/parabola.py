r"""Parabolas in place of a log density that takes long, and how they learn.

In place of f near c stands :math:`f(c) + g^\top \delta - \tfrac12 \delta^\top B \delta`
with :math:`\delta = \theta - c` and g the gradient of f at c. Where f is evaluated
next, B is updated, as everywhere in ``maximum``, by Powell's damped BFGS [Powell1978]_.

References:

.. [Powell1978]
    M. J. D. Powell. A fast algorithm for nonlinearly constrained optimization
    calculations. Numerical Analysis, Lecture Notes in Mathematics 630, 1978.
"""

from __future__ import annotations

__all__ = ["NearbyDensity", "Parabolas", "damped_update"]

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from botorch_structured.models.treed.leaf_density import LeafDensity
from botorch_structured.models.treed.tree import Array

# Added to a curvature, times one and its trace: each damped update along a direction
# leaves as little as a fifth of what there was.
_RIDGE = 1e-11
_LEAST_CURVATURE = 0.2  # of what was expected, below which an update is damped


def damped_update(
    curvature: Array, moved: Array, fall: Array, seen: NDArray[np.bool_]
) -> Array:
    """BFGS, damped (Powell) where the density is not concave along the step.

    Args:
        curvature: Positive definite, ``L x p x p``.
        moved: Steps, ``L x p``.
        fall: By how much the gradient fell, ``L x p``.
        seen: Which have made a step, ``L``.
    """
    bent = np.einsum("lij,lj->li", curvature, moved)
    expected = (bent * moved).sum(-1)
    found = (fall * moved).sum(-1)
    seen = seen & (expected > 1e-14)
    expected = np.where(seen, expected, 1.0)
    least = _LEAST_CURVATURE * expected
    lacking = found < least
    lack = np.where(lacking, expected - found, 1.0)
    share = np.where(lacking, (expected - least) / lack, 1.0)
    r = share[:, None] * fall + (1.0 - share)[:, None] * bent
    rs = np.where(seen, (r * moved).sum(-1), 1.0)
    update = r[:, :, None] * r[:, None, :] / rs[:, None, None]
    update -= bent[:, :, None] * bent[:, None, :] / expected[:, None, None]
    ridge = _RIDGE * (1.0 + np.trace(curvature, axis1=1, axis2=2))
    update += ridge[:, None, None] * np.eye(curvature.shape[-1])
    return np.where(seen[:, None, None], curvature + update, curvature)


class Parabolas:
    """Those of the large nodes on the path of each leaf, see the module.

    Leaves below the same large nodes ask nearly the same function of them, up to a
    factor. So a parabola also learns from the gradients that others of its kin have
    seen nearby, the nearest last.

    Args:
        centre: c, ``L x p``.
        value: f there, ``L``.
        gradient: ``L x p``.
        curvature: B, positive semidefinite, ``L x p x p``.
        kin: Equal for leaves below the same large nodes, ``L``.
        scale: The factor, ``L``.
    """

    def __init__(
        self,
        centre: Array,
        value: Array,
        gradient: Array,
        curvature: Array,
        kin: NDArray[np.int64],
        scale: Array,
    ) -> None:
        self.centre, self.value = centre.copy(), value.copy()
        self.gradient, self.curvature = gradient.copy(), curvature
        self.kin, self.scale = kin, scale

    def at(self, leaf: int, theta: Array) -> tuple[float, Array]:
        """Value and gradient of one of them."""
        moved = theta - self.centre[leaf]
        bent = self.curvature[leaf] @ moved
        value = self.value[leaf] + float(moved @ (self.gradient[leaf] - 0.5 * bent))
        return value, self.gradient[leaf] - bent

    def bent(self, theta: Array) -> Array:
        """By how much gradients fall from c on, ``L x p``."""
        return np.einsum("lij,lj->li", self.curvature, theta - self.centre)

    def move(
        self, leaves: NDArray[np.int64], theta: Array, value: Array, gradient: Array
    ) -> None:
        """Take other points as centres, and learn from them.

        Args:
            leaves: Whose, ``k``.
            theta: The points, ``k x p``.
            value: f there, ``k``.
            gradient: And its gradients, ``k x p``.
        """
        before = self.centre[leaves], self.gradient[leaves]
        self.centre[leaves], self.value[leaves] = theta, value
        self.gradient[leaves] = gradient
        away = np.square(theta[:, None] - self.centre).sum(-1)
        away[self.kin[leaves][:, None] != self.kin] = np.inf
        away[np.arange(len(leaves)), leaves] = np.inf
        nearest = np.argsort(away, axis=-1)[:, : theta.shape[1]]
        curvature = self.curvature[leaves]
        for other in nearest.T[::-1]:
            factor = (self.scale[leaves] / self.scale[other])[:, None]
            curvature = damped_update(
                curvature,
                theta - self.centre[other],
                factor * self.gradient[other] - gradient,
                np.isfinite(away[np.arange(len(leaves)), other]),
            )
        self.curvature[leaves] = damped_update(
            curvature,
            theta - before[0],
            before[1] - gradient,
            np.ones(len(leaves), dtype=bool),
        )


@dataclass(frozen=True)
class NearbyDensity:
    """The log density of a leaf with a parabola in place of large nodes.

    Attributes:
        small: That of the others.
        large: The parabolas.
        leaf: The number of the leaf.
    """

    small: LeafDensity
    large: Parabolas
    leaf: int

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient."""
        value, gradient = self.small(theta)
        more, by_more = self.large.at(self.leaf, theta)
        return value + more, gradient + by_more
