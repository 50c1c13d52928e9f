"""The parameters of a GP that have priors, as one vector of real coordinates.

GPyTorch's ``named_priors`` says of each prior what it is on (a closure) and how to set
that (a setting closure). The value itself is the unknown that is sampled, whatever
parameters lie behind it: a prior on ``noise.sqrt()`` makes the noise standard deviation
a coordinate. Positive values are sampled as logarithms, with the Jacobian; bounds are
kept, the density being zero outside.
"""

from __future__ import annotations

__all__ = ["PriorCoordinates"]

import math
from collections.abc import Callable

import numpy as np
from botorch.models.gpytorch import GPyTorchModel
from numpy.typing import NDArray

from botorch_structured.models.prior_block import PriorBlock, probe
from botorch_structured.models.prior_coupling import (
    followers,
    in_order,
    moved_inside,
)

Vector = NDArray[np.float64]


class PriorCoordinates:
    """All values with priors, positive ones as logarithms.

    Args:
        model: A GP without a batch dimension.

    Attributes:
        blocks: One for each prior that can be sampled.
        derived: Names of priors that count in the density but are not sampled: they
            have no setting closure, or are on what another prior sets already, or on
            what depends on another value that depends on it.
        held: Names of parameters that no block sets.
        names: Names of the coordinates, ``k``.
        positive: Which of them are logarithms, ``k``.
        lower: Bounds of the values, ``k``.
        upper: Bounds of the values, ``k``.

    Raises:
        ValueError: If no prior can be sampled.
    """

    def __init__(self, model: GPyTorchModel) -> None:
        self.blocks: list[PriorBlock] = []
        self.derived: list[str] = []
        parameters = dict(model.named_parameters())
        constraints = {
            name: constraint
            for name, _, constraint in model.named_parameters_and_constraints()
        }
        taken: set[str] = set()
        for name, module, prior, closure, setting_closure in model.named_priors():
            block = None
            if setting_closure is not None:
                with moved_inside(parameters, constraints):
                    block = probe(
                        name,
                        module,
                        prior,
                        closure,
                        setting_closure,
                        parameters,
                        constraints,
                    )
            if (
                block is None
                or block.parameters & taken
                # it depends on itself by way of others: no order of setting them
                or any(b is block for b in followers(block, [*self.blocks, block]))
            ):
                self.derived.append(name)
                continue
            if not all(parameters[p].requires_grad for p in block.parameters):
                continue  # the user holds it: its prior is a constant
            block.first = sum(b.size for b in self.blocks)
            taken |= block.parameters
            self.blocks.append(block)
        if not self.blocks:
            raise ValueError(
                "model: expected at least one prior with a setting closure, on a "
                "parameter that requires a gradient, to sample from; found none."
            )
        for block in self.blocks:
            block.followers = in_order(followers(block, self.blocks))
        self._in_order = in_order(self.blocks)
        self.held = [
            n for n, p in parameters.items() if p.requires_grad and n not in taken
        ]
        self.names = tuple(
            b.name if b.size == 1 else f"{b.name}[{i}]"
            for b in self.blocks
            for i in range(b.size)
        )
        self.lower = np.concatenate([b.lower for b in self.blocks])
        self.upper = np.concatenate([b.upper for b in self.blocks])
        self.positive = (self.lower >= 0) & (self.read_values() > 0)
        self.block_of = [b for b in self.blocks for _ in range(b.size)]

    def __len__(self) -> int:
        """Number of coordinates, k."""
        return len(self.names)

    # -- values and coordinates ---------------------------------------------------

    def to_values(self, position: Vector) -> Vector:
        """Values of coordinates, both ``batch_shape x k``."""
        exponent = np.where(self.positive, position, 0.0)
        with np.errstate(over="ignore"):  # an infinite value is out of bounds
            values = np.where(self.positive, np.exp(exponent), position)
        # a bound stays one: exp(log(bound)) may be a rounding error outside
        finite = np.where(np.isfinite(values), values, 0.0)
        slack = 1e-12 * np.abs(finite)
        low = (values < self.lower) & (finite + slack >= self.lower)
        high = (values > self.upper) & (finite - slack <= self.upper)
        return np.where(low, self.lower, np.where(high, self.upper, values))

    def scalar_value(self, axis: int) -> Callable[[float], float | None]:
        """The value of one coordinate; None out of bounds."""
        low, high = float(self.lower[axis]), float(self.upper[axis])
        if self.positive[axis]:
            # beyond any value that means something, and safe to take powers of
            lowest, highest = max(low, 1e-30), min(high, 1e30)
            first, last = math.log(lowest), math.log(highest)

            def value(z: float) -> float | None:
                if not first <= z <= last:
                    return None
                # rounding of ``exp`` must not leave the bounds
                return min(max(math.exp(z), lowest), highest)

            return value
        return lambda z: z if low <= z <= high else None

    def to_position(self, values: Vector) -> Vector:
        """Coordinates of values, both ``batch_shape x k``."""
        return np.where(
            self.positive, np.log(np.where(self.positive, values, 1.0)), values
        )

    def read_values(self) -> Vector:
        """Current values of the model, ``k``."""
        return np.concatenate([b.read() for b in self.blocks])

    def write_values(self, values: Vector) -> bool:
        """Set the values of the model, ``k``; False where that is not possible."""
        return all([b.write(b.part(values)) for b in self._in_order])

    def inside(self, values: Vector) -> bool:
        """Whether values ``k`` are finite and within their bounds."""
        ok = (values >= self.lower) & (values <= self.upper) & np.isfinite(values)
        return bool(ok.all())

    # -- density ------------------------------------------------------------------

    def log_prior(self, position: Vector) -> float:
        """Log prior density of a position, Jacobian included, derived priors not.

        Args:
            position: ``k``, inside the bounds.
        """
        values = self.to_values(position)
        total = sum(b.log_prior(b.part(values)) for b in self.blocks)
        return total + self.log_jacobian(position)

    def log_jacobian(self, position: Vector) -> float:
        """Log of d value / d coordinate, summed."""
        return float(position[self.positive].sum())

    def log_prior_along(
        self, position: Vector, axis: int
    ) -> Callable[[float, float], float]:
        """The terms of ``log_prior`` that one coordinate changes.

        Args:
            position: ``k``.
            axis: The coordinate.

        Returns:
            A function of the coordinate and of its value.
        """
        block = self.block_of[axis]
        logarithm = bool(self.positive[axis])
        if block.densities is not None:
            density = block.densities[axis - block.first]
            if logarithm:
                return lambda coordinate, value: density(value) + coordinate
            return lambda coordinate, value: density(value)
        values = block.part(self.to_values(position))

        def joint(coordinate: float, value: float) -> float:
            values[axis - block.first] = value
            return block.log_prior(values) + (coordinate if logarithm else 0.0)

        return joint
