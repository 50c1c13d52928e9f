"""Anderson acceleration of a damped fixed-point iteration.

Near its fixed point a damped iteration x + step f(x), with f(x) = g(x) - x, converges
linearly. The last few pairs of changes (dx, df) say what f does along the directions
that were taken; subtracting the combination of them that explains most of the current f
is a secant step, which about halves the sweeps of expectation propagation.
"""

from __future__ import annotations

__all__ = ["AndersonAcceleration"]

import numpy as np

_WINDOW = 6
# Further away the iteration is not nearly linear, and damping alone is safer.
_NEAR = 0.05
_RIDGE = 1e-12


class AndersonAcceleration:
    """A memory of the last steps of an iteration in ``k`` variables."""

    def __init__(self) -> None:
        self._last: tuple[np.ndarray, np.ndarray, float] | None = None
        self._dx: list[np.ndarray] = []
        self._df: list[np.ndarray] = []

    def next_point(
        self,
        x: np.ndarray,
        f: np.ndarray,
        weight: np.ndarray,
        step: float,
        residual: float,
    ) -> np.ndarray:
        """Where to go from x: x + step f, corrected.

        Args:
            x: Where the iteration is, ``k``.
            f: The undamped step there, ``k``.
            weight: Positive, ``k``: f times it is comparable across variables.
            step: Damping.
            residual: Size of f. Where it has doubled, what was remembered is wrong.

        Returns:
            ``k``.
        """
        if self._last is not None:
            old_x, old_f, old_residual = self._last
            if residual > 2.0 * old_residual:
                self._dx, self._df = [], []
            else:
                self._dx = [*self._dx, x - old_x][-_WINDOW:]
                self._df = [*self._df, f - old_f][-_WINDOW:]
        self._last = (x, f, residual)
        damped = x + step * f
        if residual > _NEAR or not self._dx:
            return damped
        dx, df = np.stack(self._dx), np.stack(self._df)
        A = df * weight
        size = np.sqrt((A * A).sum(1, keepdims=True))
        if not (size > 0.0).all():
            return damped
        A /= size
        gram = A @ A.T
        gram.flat[:: len(gram) + 1] += _RIDGE
        gamma = np.linalg.solve(gram, A @ (weight * f))
        return damped - (gamma / size[:, 0]) @ (dx + step * df)
