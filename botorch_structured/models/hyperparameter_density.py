"""The log posterior density of hyperparameters, as the objective of a fit has it.

``ModelDensity`` is the definition and works for any GP: it sets the parameters and asks
BoTorch for the objective. ``StationaryDensity`` has the same numbers several times
faster for plain GPs.
"""

from __future__ import annotations

__all__ = ["ModelDensity"]

import math
from collections.abc import Callable

import numpy as np
import torch
from botorch.optim.closures import get_loss_closure
from gpytorch.mlls import MarginalLogLikelihood
from linear_operator.utils.errors import NanError, NotPSDError
from numpy.typing import NDArray

from botorch_structured.models.prior_coordinates import PriorCoordinates

Vector = NDArray[np.float64]


class ModelDensity:
    """n times the objective of a fit, plus the log Jacobian of the coordinates.

    The objective is BoTorch's for this model, its own ``compute_custom_loss`` where it
    has one; all priors are part of it. A ``Target`` of the slice sampler.

    Args:
        mll: Its model is changed by evaluations.
        coordinates: Of ``mll.model``.
    """

    def __init__(
        self, mll: MarginalLogLikelihood, coordinates: PriorCoordinates
    ) -> None:
        self.mll = mll.train()
        self.coordinates = coordinates
        self.num_data = mll.model.train_targets.numel()
        self._loss = get_loss_closure(mll)
        self._position = np.zeros(len(coordinates))
        self._trial = (0, 0.0)
        # sets what the model has of a position that was not accepted
        self._restore: Callable[[Vector], bool] | None = None

    @property
    def dim(self) -> int:
        """Number of coordinates, k."""
        return len(self.coordinates)

    def log_density(self, position: Vector) -> float:
        """Log density at a position, from scratch.

        Args:
            position: ``k``.
        """
        values = self.coordinates.to_values(position)
        if not self.coordinates.inside(values):
            return -math.inf
        if not self.coordinates.write_values(values):
            return -math.inf
        return self._objective() + self.coordinates.log_jacobian(position)

    def _objective(self) -> float:
        try:
            with torch.no_grad():
                value = -self.num_data * float(self._loss())
        except (NotPSDError, NanError, torch.linalg.LinAlgError):
            return -math.inf
        return value if math.isfinite(value) else -math.inf

    def move_to(self, position: Vector) -> float:
        """See ``Target.move_to``."""
        value = self.log_density(position)
        if math.isfinite(value):
            self._position, self._restore = position.copy(), None
        else:
            self._restore = self.coordinates.write_values
        return value

    def along(self, axis: int) -> Callable[[float], float]:
        """See ``Target.along``."""
        c, block = self.coordinates, self.coordinates.block_of[axis]
        values = c.to_values(self._position)
        if self._restore is not None:
            self._restore(values)
        self._restore = block.write_with_followers
        rest = c.log_jacobian(self._position)
        to_value = c.scalar_value(axis)
        if c.positive[axis]:
            rest -= self._position[axis]

        def log_density(coordinate: float) -> float:
            self._trial = (axis, coordinate)
            value = to_value(coordinate)
            if value is None:
                return -math.inf
            values[axis] = value
            if not block.write_with_followers(values):
                return -math.inf
            jacobian = coordinate if c.positive[axis] else 0.0
            return self._objective() + rest + jacobian

        return log_density

    def accept(self) -> None:
        """See ``Target.accept``."""
        axis, coordinate = self._trial
        self._position[axis] = coordinate
        self._restore = None
