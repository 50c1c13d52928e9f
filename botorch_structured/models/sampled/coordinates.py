"""The parameters of a GP that have priors, as one vector of real coordinates.

GPyTorch's ``named_priors`` gives for each prior a closure, which reads the value that
the prior is on. A prior can be sampled if this value is a parameter or the square root
of one: with a prior on ``noise.sqrt()`` the noise standard deviation is a coordinate.
Positive values are sampled as logarithms, with the Jacobian; outside the bounds the
density is zero. A prior on another quantity, such as that of SAAS on ``tau / l^2``, is
part of the density, and its parameters are held.

A sampler that changes one value at a time evaluates the prior of one value many
thousand times. With a torch distribution one evaluation takes longer than the Cholesky
factorisation of a matrix with 50 rows, so the usual densities are written out for one
number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from botorch.models.gpytorch import GPyTorchModel
from gpytorch.priors import (
    GammaPrior,
    HorseshoePrior,
    LogNormalPrior,
    NormalPrior,
    Prior,
)
from numpy.typing import NDArray
from torch import Tensor

from botorch_structured.models.parameters import known_kind

Vector = NDArray[np.float64]
Density = Callable[[float], float]


# -- log densities as functions of one number --------------------------------------


def _normal(loc: float, scale: float, v: float) -> float:
    return -0.5 * (((v - loc) / scale) ** 2 + math.log(2.0 * math.pi * scale**2))


def _log_normal(loc: float, scale: float, v: float) -> float:
    return _normal(loc, scale, math.log(v)) - math.log(v) if v > 0 else -math.inf


def _gamma(concentration: float, rate: float, v: float) -> float:
    if v <= 0:
        return -math.inf
    constant = concentration * math.log(rate) - math.lgamma(concentration)
    return constant + (concentration - 1.0) * math.log(v) - rate * v


def _horseshoe(scale: float, v: float) -> float:
    if v == 0:
        return math.inf
    # GPyTorch's own approximation: the mean of a lower and an upper bound
    a = (scale / v) ** 2
    bounds = 0.5 * math.log1p(4.0 * a) + math.log1p(2.0 * a)
    return math.log(0.5 / math.sqrt(2.0 * math.pi**3)) + math.log(bounds)


_KNOWN: dict[type[Prior], tuple[Callable[..., float], tuple[str, ...]]] = {
    LogNormalPrior: (_log_normal, ("loc", "scale")),
    NormalPrior: (_normal, ("loc", "scale")),
    GammaPrior: (_gamma, ("concentration", "rate")),
    HorseshoePrior: (_horseshoe, ("scale",)),
}


def scalar_log_densities(prior: Prior, shape: torch.Size) -> list[Density] | None:
    """The log density of each element of a value, in order; None if by torch only.

    Args:
        prior: The prior.
        shape: Of the value that the prior is on.
    """
    kind = known_kind(prior)
    if kind is None:
        return None
    density, names = _KNOWN[kind]
    columns = [_flat(getattr(prior, name), shape).tolist() for name in names]
    return [partial(density, *column) for column in zip(*columns, strict=True)]


# -- the value of a prior ----------------------------------------------------------


@dataclass
class PriorBlock:
    """The values of one prior.

    Attributes:
        name: A name such as ``covar_module.lengthscale``.
        prior: The prior.
        read: Reads the values, of any shape.
        raw: The raw parameter.
        parameter: Its name.
        constraint: Its constraint, or None.
        power: The p of ``parameter = value ** p`` (the constrained parameter): 1 if the
            value is the parameter, 2 if it is the standard deviation and the parameter
            the variance.
        shape: Shape of the value.
        lower: Bounds of each element, ``size``.
        upper: Bounds of each element, ``size``.
        densities: Log density of each element, if it can be a function of numbers.
        first: Position of the first element among the coordinates.
    """

    name: str
    prior: Prior
    read: Callable[[], Tensor]
    raw: torch.nn.Parameter
    parameter: str
    constraint: Any
    power: float
    shape: torch.Size
    lower: Vector
    upper: Vector
    densities: list[Density] | None
    first: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.shape.numel()

    def part(self, values: Vector) -> Vector:
        """The values of this block out of all values ``k``, a copy."""
        return values[self.first : self.first + self.size].copy()

    @torch.no_grad()
    def write(self, values: Vector) -> None:
        """Set the values, ``size``, within their bounds."""
        parameter = torch.as_tensor(values**self.power).to(self.raw)
        if self.constraint is not None:
            parameter = self.constraint.inverse_transform(parameter.view_as(self.raw))
        self.raw.copy_(parameter.view_as(self.raw))

    @torch.no_grad()
    def log_prior(self, values: Vector) -> float:
        """Log prior density of all values of the block."""
        if self.densities is not None:
            return sum(f(v) for f, v in zip(self.densities, values, strict=True))
        tensor = torch.as_tensor(values).to(self.raw).reshape(self.shape)
        return float(self.prior.log_prob(tensor).sum())


def _block(
    parameters: Mapping[str, tuple[torch.nn.Parameter, Any]],
    name: str,
    module: Any,
    prior: Prior,
    closure: Callable[[Any], Tensor],
    _: Any,
) -> PriorBlock | None:
    """The block of one prior; None if its value is no power of one parameter.

    Args:
        parameters: The parameters with a gradient and their constraints, by name.
        name: Name of the prior; this and the next four as in ``named_priors``.
        module: The module to which the closures are applied.
        prior: The prior.
        closure: Reads the value.
    """
    with torch.enable_grad():
        value = closure(module)
    if not value.requires_grad:
        return None
    raws = [raw for raw, _ in parameters.values()]
    slopes = torch.autograd.grad(value.sum(), raws, allow_unused=True)
    read = [
        key for key, slope in zip(parameters, slopes, strict=True) if slope is not None
    ]
    if len(read) != 1 or parameters[read[0]][0].numel() != value.numel():
        return None
    raw, constraint = parameters[read[0]]
    parameter = raw if constraint is None else constraint.transform(raw)
    (slope,) = torch.autograd.grad(parameter.sum(), raw)
    slope_of_value = slopes[list(parameters).index(read[0])]
    close = partial(torch.allclose, rtol=1e-4, atol=0.0)
    for power in (1.0, 2.0):
        expected = parameter.detach().reshape(value.shape) ** (1.0 / power)
        slope_expected = slope * expected.reshape(slope.shape) ** (1.0 - power) / power
        if close(value, expected) and close(slope_of_value, slope_expected):
            break
    else:
        return None
    lower, upper = _bounds(prior, constraint, raw.shape, value.shape, power)
    head, _, tail = name.rpartition(".")
    return PriorBlock(
        name=f"{head}.{tail.removesuffix('_prior')}".lstrip("."),
        prior=prior,
        read=partial(closure, module),
        raw=raw,
        parameter=read[0],
        constraint=constraint,
        power=power,
        shape=value.shape,
        lower=lower,
        upper=upper,
        densities=scalar_log_densities(prior, value.shape),
    )


def _bounds(
    prior: Prior,
    constraint: Any,
    raw_shape: torch.Size,
    shape: torch.Size,
    power: float,
) -> tuple[Vector, Vector]:
    """Bounds of values: those of the parameter, and the support of the prior."""
    lower = np.full(shape.numel(), -np.inf)
    upper = np.full(shape.numel(), np.inf)
    if constraint is not None:
        lower = _flat(constraint.lower_bound, raw_shape)
        upper = _flat(constraint.upper_bound, raw_shape)
    if power == 2.0:
        lower = np.maximum(lower, 0.0) ** 0.5
        upper = upper**0.5
    if getattr(prior, "_transform", None) is not None:
        return lower, upper  # the support is that of the transformed value
    try:
        support = prior.support
    except NotImplementedError:
        return lower, upper
    lowest = getattr(support, "lower_bound", -math.inf)
    highest = getattr(support, "upper_bound", math.inf)
    return (
        np.maximum(lower, _flat(lowest, shape)),
        np.minimum(upper, _flat(highest, shape)),
    )


def _flat(values: Any, shape: torch.Size) -> Vector:
    """A number or tensor as the elements of an array of some shape."""
    tensor = torch.as_tensor(values, dtype=torch.float64).detach().cpu()
    return tensor.expand(shape).reshape(-1).numpy()


# -- all priors -------------------------------------------------------------------


class PriorCoordinates:
    """All values with priors that can be sampled, positive ones as logarithms.

    Args:
        model: A GP without a batch dimension.

    Attributes:
        blocks: One for each prior that can be sampled.
        derived: Names of priors that enter the density but are not sampled: on a value
            that is no parameter, or one that another prior is on already.
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
        parameters = {
            name: (raw, constraint)
            for name, raw, constraint in model.named_parameters_and_constraints()
            if raw.requires_grad
        }
        taken: set[str] = set()
        size = 0
        for name, module, *rest in model.named_priors():
            block = _block(parameters, name, module, *rest)
            if block is not None and block.parameter not in taken:
                block.first = size
                size += block.size
                taken.add(block.parameter)
                self.blocks.append(block)
            elif block is not None or rest[1](module).requires_grad:
                self.derived.append(name)
            # else no parameter has a gradient: the prior is a constant
        if not self.blocks:
            raise ValueError(
                "model: expected at least one prior on a parameter that requires a "
                "gradient, or on its square root, to sample from; found none."
            )
        self.held = [name for name in parameters if name not in taken]
        self.names = tuple(
            b.name if b.size == 1 else f"{b.name}[{i}]"
            for b in self.blocks
            for i in range(b.size)
        )
        lower = np.concatenate([b.lower for b in self.blocks])
        upper = np.concatenate([b.upper for b in self.blocks])
        self.positive = (lower >= 0) & (self.read_values() > 0)
        # powers of these do not overflow
        self.lower = np.where(self.positive, np.maximum(lower, 1e-30), lower)
        self.upper = np.where(self.positive, np.minimum(upper, 1e30), upper)
        self.block_of = [b for b in self.blocks for _ in range(b.size)]

    def __len__(self) -> int:
        """Number of coordinates, k."""
        return len(self.names)

    # -- values and coordinates ---------------------------------------------------

    def to_values(self, position: Vector) -> Vector:
        """Values of coordinates, both ``batch_shape x k``."""
        exponent = np.where(self.positive, position, 0.0).clip(-700.0, 700.0)
        values = np.where(self.positive, np.exp(exponent), position)
        # a bound stays one: exp(log(bound)) may be a rounding error outside
        inside = self.clip(values)
        rounded = np.abs(values - inside) <= 1e-12 * np.abs(inside)
        return np.where(rounded, inside, values)

    def scalar_value(self, axis: int) -> Callable[[float], float | None]:
        """The value of one coordinate; None out of bounds."""
        low = float(self.lower[axis])
        high = float(self.upper[axis])
        if not self.positive[axis]:
            return lambda z: z if low <= z <= high else None
        first = math.log(low)
        last = math.log(high)
        # rounding of ``exp`` must not leave the bounds
        return lambda z: (
            min(max(math.exp(z), low), high) if first <= z <= last else None
        )

    def to_position(self, values: Vector) -> Vector:
        """Coordinates of values, both ``batch_shape x k``."""
        return np.where(
            self.positive, np.log(np.where(self.positive, values, 1.0)), values
        )

    @torch.no_grad()
    def read_values(self) -> Vector:
        """Current values of the model, ``k``."""
        return np.concatenate([_flat(b.read(), b.shape) for b in self.blocks])

    def write_values(self, values: Vector, current: Vector | None = None) -> None:
        """Set the values of the model, ``k``.

        Args:
            values: ``k``, within the bounds.
            current: Values that the model has: equal ones are not set again.
        """
        for block in self.blocks:
            part = block.part(values)
            if current is None or (part != block.part(current)).any():
                block.write(part)

    def inside(self, values: Vector) -> bool:
        """Whether values ``k`` are finite and within their bounds."""
        ok = (values >= self.lower) & (values <= self.upper) & np.isfinite(values)
        return bool(ok.all())

    def clip(self, values: Vector) -> Vector:
        """Values ``k``, moved into their bounds."""
        return np.clip(values, self.lower, self.upper)

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
        """Sum over coordinates of log(d value / d coordinate)."""
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
        place = axis - block.first
        by_coordinate = float(self.positive[axis])
        if block.densities is not None:
            density = block.densities[place]
            return lambda coordinate, value: density(value) + by_coordinate * coordinate
        values = block.part(self.to_values(position))

        def joint(coordinate: float, value: float) -> float:
            values[place] = value
            return block.log_prior(values) + by_coordinate * coordinate

        return joint
