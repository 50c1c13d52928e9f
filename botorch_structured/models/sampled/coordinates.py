"""The values of a GP that have priors, as one vector of real coordinates.

GPyTorch's ``named_priors`` gives for each prior a closure, which reads the value that
the prior is on, and a setting closure, which sets it. This value is sampled: with a
prior on ``noise.sqrt()`` the noise standard deviation is a coordinate. Positive values
are sampled as logarithms, with the Jacobian; outside the bounds the density is zero.

A prior can be sampled if its setting closure sets exactly one parameter. The value may
depend on other parameters too: the SAAS prior is on ``tau / l^2`` and sets the
lengthscale ``l``; another prior is on ``tau``. Setting ``tau`` changes ``tau / l^2``,
which is therefore set again afterwards.

A sampler that changes one value at a time evaluates the prior of one value many
thousand times. With a torch distribution one evaluation takes longer than the Cholesky
factorisation of a matrix with 50 rows, so the usual densities are written out for one
number.
"""

from __future__ import annotations

__all__ = ["PriorCoordinates", "scalar_log_densities"]

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
Parameters = Mapping[str, torch.nn.Parameter]

# Relative steps by which setting a value is tested: small, and in both directions,
# since a value may be at an end of the support of its prior.
_PROBES = (1.01, 0.99)
# The least distance of a tested parameter from its bounds, relative to these: ten times
# a step.
_MARGIN = 0.1
# Bounds of positive values: powers of these do not overflow.
_RANGE = 1e-30, 1e30


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
    """The values of one prior with a setting closure.

    Attributes:
        name: A name such as ``covar_module.lengthscale``.
        module: The module to which the closures are applied.
        prior: The prior.
        closure: Reads the value.
        setting_closure: Sets the value.
        shape: Shape of the value.
        lower: Bounds of each element, ``size``.
        upper: Bounds of each element, ``size``.
        parameter: Name of the parameter that the setting closure sets.
        reads: Names of the other parameters with a gradient that the value depends on.
        power: The p of ``parameter = value ** p`` (the constrained parameter): 1 if the
            value is the parameter, 2 if it is the standard deviation and the parameter
            the variance. None for any other value.
        densities: Log density of each element, if it is known as a function of numbers.
        first: Position of the first element among the coordinates.
    """

    name: str
    module: Any
    prior: Prior
    closure: Callable[[Any], Tensor]
    setting_closure: Callable[[Any, Tensor], None]
    shape: torch.Size
    lower: Vector
    upper: Vector
    parameter: str = ""
    reads: frozenset[str] = frozenset()
    power: float | None = None
    densities: list[Density] | None = None
    first: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.shape.numel()

    def part(self, values: Vector) -> Vector:
        """The values of this block out of all values ``k``, a copy."""
        return values[self.first : self.first + self.size].copy()

    def read(self) -> Vector:
        """The current values, ``size``."""
        with torch.no_grad():
            value = self.closure(self.module)
        return value.detach().reshape(-1).cpu().double().numpy().copy()

    def write(self, values: Vector) -> bool:
        """Set the values.

        Args:
            values: ``size``.

        Returns:
            Whether that was possible: setting them raised no error, and they can be
            read back.
        """
        with torch.no_grad():
            tensor = self._tensor(values)
            try:
                self.setting_closure(self.module, tensor)
            except (RuntimeError, ValueError):
                # GPyTorch raises these for a value out of bounds or support
                return False
            if self.power is not None:
                return True  # any value inside the bounds
            back = self.closure(self.module).reshape(self.shape)
            tolerance = 64 * torch.finfo(back.dtype).eps
            return bool(((back - tensor).abs() <= tolerance * tensor.abs()).all())

    def log_prior(self, values: Vector) -> float:
        """Log prior density of all values of the block."""
        if self.densities is not None:
            return sum(f(v) for f, v in zip(self.densities, values, strict=True))
        with torch.no_grad():
            return float(self.prior.log_prob(self._tensor(values)).sum())

    def _tensor(self, values: Vector) -> Tensor:
        like = self.closure(self.module)
        tensor = torch.as_tensor(values, dtype=like.dtype, device=like.device)
        return tensor.reshape(self.shape)


def _find_block(
    parameters: Parameters,
    constraints: Mapping[str, Any],
    name: str,
    module: Any,
    prior: Prior,
    closure: Callable[[Any], Tensor],
    setting_closure: Callable[[Any, Tensor], None] | None,
) -> PriorBlock | None:
    """The block of one prior; None if its closure does not set one parameter.

    Args:
        parameters: Parameters of the model by name; restored afterwards.
        constraints: Constraints of these parameters, or None.
        name: Name of the prior; this and the next four as in ``named_priors``.
        module: The module to which the closures are applied.
        prior: The prior.
        closure: Reads the value.
        setting_closure: Sets the value.
    """
    if setting_closure is None:
        return None
    with _restored(parameters):
        _move_inside(parameters, constraints)
        with torch.enable_grad():
            value = closure(module)
        sources = _sources(value, parameters)
        value = value.detach().clone()
        head, _, tail = name.rpartition(".")
        block = PriorBlock(
            name=f"{head}.{tail.removesuffix('_prior')}".lstrip("."),
            module=module,
            prior=prior,
            closure=closure,
            setting_closure=setting_closure,
            shape=value.shape,
            lower=np.full(value.numel(), -np.inf),
            upper=np.full(value.numel(), np.inf),
        )
        changed = _changed_by(block, parameters)
        if len(changed) != 1:
            return None
        (block.parameter,) = changed
        block.reads = frozenset(sources - changed)
        parameter = parameters[block.parameter]
        constraint = constraints[block.parameter]
        if not block.reads and parameter.numel() == block.size:
            with _restored(parameters):
                block.power = _power(block, parameter, constraint)
        if block.power is not None and constraint is not None:
            ends = constraint.lower_bound, constraint.upper_bound
            for bounds, end in zip((block.lower, block.upper), ends, strict=True):
                bounds[:] = _flat(end, parameter.shape)
                if block.power == 2.0:
                    bounds[:] = np.maximum(bounds, 0.0) ** 0.5
        _use_support(block)
    block.densities = scalar_log_densities(prior, value.shape)
    return block


@contextmanager
def _restored(parameters: Parameters) -> Iterator[dict[str, Tensor]]:
    """Yield copies of parameters, and restore the parameters afterwards."""
    before = {n: p.detach().clone() for n, p in parameters.items()}
    try:
        yield before
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(before[name])


@torch.no_grad()
def _move_inside(parameters: Parameters, constraints: Mapping[str, Any]) -> None:
    """Move parameters away from their bounds, where a MAP estimate often is.

    At a bound values can be set in one direction only. A setting closure that keeps a
    distance from the bounds cannot set the current value again.
    """
    for name, raw in parameters.items():
        constraint = constraints.get(name)
        if constraint is None or not raw.requires_grad:
            continue
        natural = constraint.transform(raw)
        low = constraint.lower_bound.to(natural)
        high = constraint.upper_bound.to(natural)
        width = high - low
        first = low + _MARGIN * torch.minimum(low.abs(), width)
        last = high - _MARGIN * torch.minimum(high.abs(), width)
        # an infinite bound gives NaN, which fmax and fmin ignore
        moved = torch.fmin(torch.fmax(natural, first), last)
        # other values stay exactly the same
        inverse = constraint.inverse_transform(moved)
        raw.copy_(torch.where(moved == natural, raw, inverse))


def _sources(value: Tensor, parameters: Parameters) -> set[str]:
    """Names of the parameters with a gradient that a value was computed from."""
    if not value.requires_grad:
        return set()
    free = {n: p for n, p in parameters.items() if p.requires_grad}
    gradients = torch.autograd.grad(value.sum(), [*free.values()], allow_unused=True)
    return {n for n, g in zip(free, gradients, strict=True) if g is not None}


def _stepped(values: Vector, factor: float) -> Vector:
    return np.where(values == 0.0, factor - 1.0, values * factor)


def _changed_by(block: PriorBlock, parameters: Parameters) -> set[str]:
    """Parameters that a block sets; none if an element cannot be set by itself."""
    changed: set[str] = set()
    start = block.read()
    # only the first and the last are tested; in a correlation matrix neither can be set
    for element in {0, block.size - 1}:
        for factor in _PROBES:
            values = start.copy()
            values[element] = _stepped(start, factor)[element]
            with _restored(parameters) as before:
                worked = block.write(values)
                moved = {
                    n for n, p in parameters.items() if not torch.equal(p, before[n])
                }
            if worked and moved:
                changed |= moved
                break
        else:
            return set()
    return changed


def _power(block: PriorBlock, parameter: Tensor, constraint: Any) -> float | None:
    """See ``PriorBlock.power``; changes the value."""

    def both() -> tuple[Vector, Vector]:
        natural = parameter if constraint is None else constraint.transform(parameter)
        return block.read(), _flat(natural, parameter.shape).copy()

    pairs = [both()]
    # test a second value, since 1 is its own square
    any(block.write(_stepped(pairs[0][0], factor)) for factor in _PROBES)
    pairs.append(both())
    tolerance = 64 * torch.finfo(parameter.dtype).eps
    for power in (1.0, 2.0):
        if all(
            np.allclose(value**power, natural, rtol=power * tolerance, atol=0.0)
            for value, natural in pairs
        ):
            return power
    return None


def _use_support(block: PriorBlock) -> None:
    """Tighten bounds to the support of the prior."""
    if getattr(block.prior, "_transform", None) is not None:
        return  # the support is that of the transformed value
    try:
        support = block.prior.support
    except NotImplementedError:
        return
    low = getattr(support, "lower_bound", -math.inf)
    high = getattr(support, "upper_bound", math.inf)
    block.lower = np.maximum(block.lower, _flat(low, block.shape))
    block.upper = np.minimum(block.upper, _flat(high, block.shape))


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
        derived: Names of priors that enter the density but cannot be sampled: no
            setting closure that sets exactly one parameter, a parameter that another
            prior already sets, or a value that depends on one that depends on others.
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
        for named_prior in model.named_priors():
            block = _find_block(parameters, constraints, *named_prior)
            if (
                block is None
                or block.parameter in taken
                or any(_chained(block, b) or _chained(b, block) for b in self.blocks)
            ):
                self.derived.append(named_prior[0])
            elif parameters[block.parameter].requires_grad:
                block.first = sum(b.size for b in self.blocks)
                taken.add(block.parameter)
                self.blocks.append(block)
            # else the parameter has no gradient: its prior is a constant
        if not self.blocks:
            raise ValueError(
                "model: expected at least one prior with a setting closure, on a "
                "parameter that requires a gradient, to sample from; found none."
            )
        # so that setting a block does not change the blocks before it
        self._in_order = sorted(self.blocks, key=lambda b: bool(b.reads))
        self.held = [
            n for n, p in parameters.items() if p.requires_grad and n not in taken
        ]
        self.names = tuple(
            b.name if b.size == 1 else f"{b.name}[{i}]"
            for b in self.blocks
            for i in range(b.size)
        )
        lower = np.concatenate([b.lower for b in self.blocks])
        upper = np.concatenate([b.upper for b in self.blocks])
        self.positive = (lower >= 0) & (self.read_values() > 0)
        self.lower = np.where(self.positive, np.maximum(lower, _RANGE[0]), lower)
        self.upper = np.where(self.positive, np.minimum(upper, _RANGE[1]), upper)
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
        low, high = float(self.lower[axis]), float(self.upper[axis])
        if not self.positive[axis]:
            return lambda z: z if low <= z <= high else None
        first, last = math.log(low), math.log(high)
        # rounding of ``exp`` must not leave the bounds
        return lambda z: (
            min(max(math.exp(z), low), high) if first <= z <= last else None
        )

    def to_position(self, values: Vector) -> Vector:
        """Coordinates of values, both ``batch_shape x k``."""
        return np.where(
            self.positive, np.log(np.where(self.positive, values, 1.0)), values
        )

    def read_values(self) -> Vector:
        """Current values of the model, ``k``."""
        return np.concatenate([b.read() for b in self.blocks])

    def write_values(self, values: Vector, known: Vector | None = None) -> bool:
        """Set the values of the model, ``k``; False where that is not possible.

        Args:
            values: ``k``.
            known: Values that the model has: equal ones are not set again, unless they
                depend on one that is.
        """
        done = True
        changed: set[str] = set()
        for block in self._in_order:
            part = block.part(values)
            if (
                known is None
                or block.reads & changed
                or (part != block.part(known)).any()
            ):
                changed.add(block.parameter)
                done = block.write(part) and done
        return done

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
        place, by_coordinate = axis - block.first, float(self.positive[axis])
        if block.densities is not None:
            density = block.densities[place]
            return lambda coordinate, value: density(value) + by_coordinate * coordinate
        values = block.part(self.to_values(position))

        def joint(coordinate: float, value: float) -> float:
            values[place] = value
            return block.log_prior(values) + by_coordinate * coordinate

        return joint


def _chained(first: PriorBlock, second: PriorBlock) -> bool:
    """Whether a value depends on the parameter of one that depends on others."""
    return bool(first.reads) and first.parameter in second.reads
