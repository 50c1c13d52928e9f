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
from torch.nn import Parameter

from botorch_structured.linalg.parameters import known_kind

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


@torch.no_grad()
def scalar_log_densities(prior: Prior, value: Tensor) -> list[Density] | None:
    """The log density of each element of a value, in order; None if they depend.

    Args:
        prior: The prior.
        value: A value that the prior is on.
    """
    kind = known_kind(prior)
    if kind is not None:
        density, names = _KNOWN[kind]
        columns = [_flat(getattr(prior, name), value.shape).tolist() for name in names]
        return [partial(density, *column) for column in zip(*columns, strict=True)]
    if prior.log_prob(value).shape != value.shape:
        return None

    def by_torch(place: int, v: float) -> float:
        return prior.log_prob(torch.full_like(value, v)).flatten()[place].item()

    return [partial(by_torch, place) for place in range(value.numel())]


# -- all priors -------------------------------------------------------------------


@dataclass(frozen=True)
class PriorBlock:
    """A parameter of which a value with a prior is a power.

    Attributes:
        name: A name such as ``covar_module.lengthscale``.
        prior: The prior.
        raw: The raw parameter.
        constraint: Its constraint, or None.
        power: The p of ``parameter = value ** p`` (the constrained parameter): 1 if the
            value is the parameter, 2 if it is the standard deviation and the parameter
            the variance.
        shape: Shape of the value.
        places: Of the values among the coordinates.
    """

    name: str
    prior: Prior
    raw: Parameter
    constraint: Any
    power: float
    shape: torch.Size
    places: slice

    def read(self) -> Tensor:
        """The values."""
        parameter = self.raw
        if self.constraint is not None:
            parameter = self.constraint.transform(self.raw)
        return (parameter ** (1.0 / self.power)).reshape(self.shape)

    @torch.no_grad()
    def to_raw(self, values: Vector) -> Tensor:
        """Raw parameters ``lead x size`` of values within their bounds, the same."""
        parameter = torch.as_tensor(values**self.power).to(self.raw)
        parameter = parameter.reshape(values.shape[:-1] + self.raw.shape)
        if self.constraint is not None:
            parameter = self.constraint.inverse_transform(parameter)
        return parameter.reshape(values.shape)

    @torch.no_grad()
    def write(self, values: Vector) -> None:
        """Set the values, ``size``, within their bounds."""
        self.raw.copy_(self.to_raw(values).view_as(self.raw))

    def bounds(self) -> tuple[Vector, Vector]:
        """Those of the parameter, and of the support of the prior, each ``size``."""
        limits = (-math.inf, math.inf) if self.constraint is None else self.constraint
        lower, upper = (_flat(limit, self.raw.shape) for limit in limits)
        if self.power == 2.0:
            lower = lower.clip(0.0) ** 0.5
            upper = upper**0.5
        try:
            support: Any = self.prior.support
        except NotImplementedError:
            support = None
        if getattr(self.prior, "_transform", None) is not None:
            support = None  # that of the transformed value
        lowest = _flat(getattr(support, "lower_bound", -math.inf), self.shape)
        highest = _flat(getattr(support, "upper_bound", math.inf), self.shape)
        return np.maximum(lower, lowest), np.minimum(upper, highest)


def _block(
    parameters: Mapping[str, tuple[Parameter, Any]],
    first: int,
    name: str,
    module: Any,
    prior: Prior,
    closure: Callable[[Any], Tensor],
    _: Any,
) -> PriorBlock | None:
    """The block of one prior; None if its value is no power of one parameter.

    Args:
        parameters: The parameters with a gradient and their constraints, by name.
        first: Place of the first value among the coordinates.
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
    pairs = zip(parameters.values(), slopes, strict=True)
    read = [(*pair, slope) for pair, slope in pairs if slope is not None]
    if len(read) != 1 or read[0][0].numel() != value.numel():
        return None
    ((raw, constraint, slope),) = read
    head, _, tail = name.rpartition(".")
    title = f"{head}.{tail.removesuffix('_prior')}".lstrip(".")
    places = slice(first, first + raw.numel())
    close = partial(torch.allclose, rtol=1e-4, atol=0.0)
    for power in (1.0, 2.0):
        block = PriorBlock(
            title,
            prior,
            raw,
            constraint,
            power,
            value.shape,
            places,
        )
        with torch.enable_grad():
            expected = block.read()
            (expected_slope,) = torch.autograd.grad(expected.sum(), raw)
        if close(value, expected) and close(slope, expected_slope):
            return block
    return None


def _flat(values: Any, shape: torch.Size) -> Vector:
    """A number or tensor as the elements of an array of some shape."""
    tensor = torch.as_tensor(values, dtype=torch.float64).detach().cpu()
    return tensor.expand(shape).reshape(-1).numpy()


class PriorCoordinates:
    """All values with priors that can be sampled, positive ones as logarithms.

    Args:
        model: A GP without a batch dimension.

    Attributes:
        blocks: One for each prior that can be sampled.
        derived: Names of priors that enter the density but are not sampled: on a value
            that is no parameter, or one that another prior is on already.
        not_sampled: Names of parameters that no block sets.
        names: Names of the coordinates, ``k``.
        positive: Which of them are logarithms, ``k``.
        lower: Bounds of the values, ``k``.
        upper: Bounds of the values, ``k``.
        densities: The log prior density of each value, ``k``; None if some depend on
            others.

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
        sampled: set[Parameter] = set()
        names: list[str] = []
        for name, module, *rest in model.named_priors():
            block = _block(
                parameters,
                len(names),
                name,
                module,
                *rest,
            )
            if block is not None and block.raw not in sampled:
                sampled.add(block.raw)
                self.blocks.append(block)
                size = block.shape.numel()
                several = [f"{block.name}[{i}]" for i in range(size)]
                names += [block.name] if size == 1 else several
            elif rest[1](module).requires_grad:
                self.derived.append(name)
            # else no parameter has a gradient: the prior is a constant
        if not self.blocks:
            raise ValueError(
                "model: expected at least one prior on a parameter that requires a "
                "gradient, or on its square root, to sample from; found none."
            )
        self.not_sampled = [
            name for name, (raw, _) in parameters.items() if raw not in sampled
        ]
        self.names = tuple(names)
        bounds = [block.bounds() for block in self.blocks]
        lower, upper = (np.concatenate(ends) for ends in zip(*bounds, strict=True))
        self.positive = (lower >= 0) & (self.read_values() > 0)
        # powers of these do not overflow
        self.lower = np.where(self.positive, lower.clip(1e-30), lower)
        self.upper = np.where(
            self.positive,
            upper.clip(None, 1e30),
            upper,
        )
        self._first = self.to_position(self.lower)
        self._last = self.to_position(self.upper)
        parts = [scalar_log_densities(b.prior, b.read()) for b in self.blocks]
        self.densities: list[Density] | None = None
        if None not in parts:
            self.densities = [density for part in parts for density in part or ()]

    def __len__(self) -> int:
        """Number of coordinates, k."""
        return len(self.names)

    # -- values and coordinates ---------------------------------------------------

    def inside(self, position: Vector) -> Any:
        """Whether positions ``lead x k`` are within the bounds; NaN is not."""
        return ((position >= self._first) & (position <= self._last)).all(-1)

    def to_values(self, position: Vector) -> Vector:
        """Values of coordinates inside the bounds, both ``batch_shape x k``."""
        exponent = np.where(self.positive, position, 0.0)
        # exp(log(bound)) may be a rounding error outside
        return self.clip(np.where(self.positive, np.exp(exponent), position))

    def scalar_value(self, axis: int) -> Callable[[float], float | None]:
        """The value of one coordinate; None out of bounds."""
        first = float(self._first[axis])
        last = float(self._last[axis])
        low = float(self.lower[axis])
        high = float(self.upper[axis])
        value = math.exp if self.positive[axis] else float
        return lambda z: min(max(value(z), low), high) if first <= z <= last else None

    def to_position(self, values: Vector) -> Vector:
        """Coordinates of values, both ``batch_shape x k``."""
        logarithms = np.log(np.where(self.positive, values, 1.0))
        return np.where(self.positive, logarithms, values)

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
            part = values[block.places]
            if current is None or (part != current[block.places]).any():
                block.write(part)

    def clip(self, values: Vector) -> Vector:
        """Values ``k``, moved into their bounds."""
        return np.clip(values, self.lower, self.upper)

    def log_jacobian(self, position: Vector) -> Vector:
        """Sum over coordinates ``lead x k`` of log(d value / d coordinate)."""
        return position[..., self.positive].sum(-1)
