"""The parameters of a GP that have priors, as one vector of real coordinates.

GPyTorch's ``named_priors`` says of each prior what it is on (a closure) and how to set
that (a setting closure). The value itself is the unknown that is sampled, whatever
parameters lie behind it: a prior on ``noise.sqrt()`` makes the noise standard deviation
a coordinate. Positive values are sampled as logarithms, with the Jacobian; bounds are
kept, the density being zero outside.
"""

from __future__ import annotations

__all__ = [
    "PriorBlock",
    "PriorCoordinates",
    "followers",
    "in_order",
    "moved_inside",
    "probe",
]

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from botorch.models.gpytorch import GPyTorchModel
from gpytorch.priors import Prior
from numpy.typing import NDArray
from torch import Tensor

from botorch_structured.models.sampled.priors import scalar_log_densities

# ----------------------------------------------------------------------
# The value that one prior is on: how to read and set it, and within which bounds.

Vector = NDArray[np.float64]

# Relative steps that tell whether a value can be set: small, in both directions, since
# a value may lie on one of its bounds.
_PROBES = (1.01, 0.99)


@dataclass
class PriorBlock:
    """The values that one prior with a setting closure is on.

    Attributes:
        name: Such as ``covar_module.lengthscale``.
        module: What the closures take.
        prior: The prior.
        closure: Reads the value.
        setting_closure: Sets the value.
        shape: Shape of the value.
        first: Position of its first element among the coordinates.
        lower: Bounds of each element, ``size``.
        upper: Bounds of each element, ``size``.
        parameters: Names of the parameters it sets.
        power: The p of ``parameter = value ** p``, for each element, where that is how
            the value determines a parameter (as constrained): 1 for the parameter
            itself, 2 for a standard deviation of which it is the variance. None for
            anything else, such as a value that depends on other parameters too.
        densities: Log density of each element, where elements are independent and the
            prior is one of those known in closed form.
        reads: Names of other parameters that the value depends on.
        followers: Blocks that setting this one changes, to be set after it, in order.
    """

    name: str
    module: Any
    prior: Prior
    closure: Callable[[Any], Tensor]
    setting_closure: Callable[[Any, Tensor], None]
    shape: torch.Size
    first: int
    lower: Vector
    upper: Vector
    parameters: frozenset[str]
    power: float | None
    densities: list[Callable[[float], float]] | None
    reads: frozenset[str] = frozenset()
    followers: list[PriorBlock] = field(default_factory=list, repr=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.shape.numel()

    def part(self, values: Vector) -> Vector:
        """Those of all values ``k`` that are of this block, a copy."""
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
            like = self.closure(self.module)
            tensor = torch.as_tensor(values, dtype=like.dtype, device=like.device)
            try:
                self.setting_closure(self.module, tensor.reshape(self.shape))
            except (RuntimeError, ValueError):
                # GPyTorch's answers to a value out of bounds or out of support
                return False
            if self.power is not None:
                return True  # any value inside the bounds
            back = self.closure(self.module).reshape(-1)
            tolerance = 64 * torch.finfo(like.dtype).eps
            target = tensor.reshape(-1)
            return bool(((back - target).abs() <= tolerance * target.abs()).all())

    def write_with_followers(self, values: Vector) -> bool:
        """Set the values, and again those that this changes.

        Args:
            values: Of all blocks, ``k``.

        Returns:
            Whether that was possible.
        """
        blocks = (self, *self.followers)
        return all([b.write(b.part(values)) for b in blocks])

    def log_prior(self, values: Vector) -> float:
        """Log prior density of all values of the block."""
        if self.densities is not None:
            return sum(
                f(v) for f, v in zip(self.densities, values.tolist(), strict=True)
            )
        with torch.no_grad():
            like = self.closure(self.module)
            tensor = torch.as_tensor(values, dtype=like.dtype, device=like.device)
            return float(self.prior.log_prob(tensor.reshape(self.shape)).sum())


def probe(
    name: str,
    module: Any,
    prior: Prior,
    closure: Callable[[Any], Tensor],
    setting_closure: Callable[[Any, Tensor], None],
    parameters: dict[str, torch.nn.Parameter],
    constraints: dict[str, Any],
) -> PriorBlock | None:
    """Find out by trying what a setting closure sets; None if it does not work.

    Args:
        name: Of the prior, as in ``named_priors``; the next four are from there too.
        module: What the closures take.
        prior: The prior.
        closure: Reads the value.
        setting_closure: Sets the value.
        parameters: Of the model, by name; they are as before afterwards.
        constraints: Of these parameters, or None.
    """
    before = {n: p.detach().clone() for n, p in parameters.items()}

    def restore() -> None:
        with torch.no_grad():
            for n, p in parameters.items():
                p.copy_(before[n])

    with torch.no_grad():
        value = closure(module).detach().clone()
    free = np.full(value.numel(), np.inf)
    head, _, tail = name.rpartition(".")
    block = PriorBlock(
        name=f"{head}.{tail.removesuffix('_prior')}".lstrip("."),
        module=module,
        prior=prior,
        closure=closure,
        setting_closure=setting_closure,
        shape=value.shape,
        first=0,
        lower=-free,
        upper=free.copy(),
        parameters=frozenset(),
        power=None,
        densities=None,
    )
    start = block.read()
    try:
        changed = _changed_by(block, start, parameters, before, restore)
        if not changed:
            return None
        block.parameters = frozenset(changed)
        block.reads = _reads(block, parameters)
        if len(changed) == 1 and not block.reads:
            parameter, constraint = parameters[changed[0]], constraints[changed[0]]
            block.power = power = _power(block, parameter, constraint)
            restore()
            if power is not None and constraint is not None:
                _use_constraint(block, power, parameter, constraint)
        _use_support(block)
        unbounded = block.power is None and (block.lower < 0).any()
        if unbounded and not _negative(block, start):
            block.lower = np.zeros_like(start)
    finally:
        restore()
    block.densities = scalar_log_densities(prior, value)
    return block


def _stepped(values: Vector, factor: float) -> Vector:
    return np.where(values == 0.0, factor - 1.0, values * factor)


def _changed_by(
    block: PriorBlock,
    start: Vector,
    parameters: dict[str, torch.nn.Parameter],
    before: dict[str, Tensor],
    restore: Callable[[], None],
) -> list[str]:
    """Parameters that a block sets; none if an element cannot be set by itself."""
    changed: set[str] = set()
    # the ends stand for all: what depends on the rest (a matrix) shows there
    for element in {0, block.size - 1}:
        for factor in _PROBES:
            values = start.copy()
            values[element] = _stepped(start, factor)[element]
            worked = block.write(values)
            moved = [n for n, p in parameters.items() if not torch.equal(p, before[n])]
            restore()
            if worked and moved:
                changed.update(moved)
                break
        else:
            return []
    return sorted(changed)


def _reads(
    block: PriorBlock, parameters: dict[str, torch.nn.Parameter]
) -> frozenset[str]:
    """See ``PriorBlock.reads``; of what does not require a gradient nothing changes."""
    start, found = block.read(), set()
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name in block.parameters or not parameter.requires_grad:
                continue
            before = parameter.detach().clone()
            parameter.add_(0.01 * (1.0 + before.abs()))
            if (block.read() != start).any():
                found.add(name)
            parameter.copy_(before)
    return frozenset(found)


def _natural(parameter: Tensor, constraint: Any) -> Vector:
    """A parameter as its constraint makes it."""
    with torch.no_grad():
        natural = parameter if constraint is None else constraint.transform(parameter)
    return natural.detach().reshape(-1).cpu().double().numpy().copy()


def _power(block: PriorBlock, parameter: Tensor, constraint: Any) -> float | None:
    """See ``PriorBlock.power``; leaves another value behind."""
    tolerance = 64 * torch.finfo(parameter.dtype).eps
    start = block.read()
    if parameter.numel() != block.size:
        return None
    # two values, since 1 is its own square, neither far from where the model is
    for factor in _PROBES:
        if block.write(_stepped(start, factor)):
            break
    value, natural = block.read(), _natural(parameter, constraint)
    if (value == natural).all():
        return 1.0
    if not ((value > 0) & (natural > 0) & (value != 1)).all():
        return None
    power = round(float(np.log(natural[0]) / np.log(value[0])), 1)
    fits = np.abs(value**power - natural) <= tolerance * natural
    return power if power and fits.all() else None


def _use_constraint(
    block: PriorBlock, power: float, parameter: Tensor, constraint: Any
) -> None:
    """Bounds from the constraint of the parameter that a power of the value is."""
    low, high = (
        b.expand(parameter.shape).reshape(-1).cpu().double().numpy()
        for b in (constraint.lower_bound, constraint.upper_bound)
    )
    if power != 1.0:
        with np.errstate(divide="ignore"):  # one over a bound of zero is no bound
            low, high = (np.maximum(b, 0.0) ** (1.0 / power) for b in (low, high))
    if power < 0:
        low, high = high, low
    block.lower[:], block.upper[:] = low, high


def _use_support(block: PriorBlock) -> None:
    """Tighten bounds to the support of the prior."""
    if getattr(block.prior, "_transform", None) is not None:
        return  # the support is that of the transformed value
    try:
        support = block.prior.support
    except NotImplementedError:
        return
    for bounds, attribute, tighten in (
        (block.lower, "lower_bound", np.maximum),
        (block.upper, "upper_bound", np.minimum),
    ):
        limit = getattr(support, attribute, None)
        if limit is not None:
            limit = torch.as_tensor(limit, dtype=torch.float64).cpu()
            limit = limit.expand(block.shape).reshape(-1).numpy()
            bounds[:] = tighten(bounds, limit)


def _negative(block: PriorBlock, start: Vector) -> bool:
    """Whether any negative value can be set: a standard deviation cannot."""
    size = np.abs(start)
    return any(
        block.write(-values)
        for values in (size + 0.01, 0.1 * size + 1e-4, 0.0 * size + 1e-6)
    )


# ----------------------------------------------------------------------
# Which values with priors depend on one another, and where that can be found out.
#
# A prior may be on what several parameters give: the SAAS prior is on ``tau / l^2``,
# beside one on ``tau``. Setting ``tau`` then changes the other value too, unless that is
# set again afterwards.

# How far from a bound values can be stepped in both directions: ten times a step.
_MARGIN = 0.1


@contextmanager
def moved_inside(
    parameters: Mapping[str, torch.nn.Parameter], constraints: Mapping[str, Any]
) -> Iterator[None]:
    """Meanwhile no parameter is at a bound, where a MAP estimate often is.

    At a bound values can be set in one direction only, and a setting closure that stays
    clear of bounds does not even set the value that there is.

    Args:
        parameters: By name; as before afterwards.
        constraints: Of these parameters, or None.
    """
    before = {n: p.detach().clone() for n, p in parameters.items()}
    try:
        with torch.no_grad():
            for name, parameter in parameters.items():
                constraint = constraints.get(name)
                if constraint is not None and parameter.requires_grad:
                    parameter.copy_(_inside(parameter, constraint))
        yield
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(before[name])


def _inside(raw: Tensor, constraint: Any) -> Tensor:
    natural = constraint.transform(raw)
    low, high = (
        b.to(natural).expand(natural.shape)
        for b in (constraint.lower_bound, constraint.upper_bound)
    )
    width = high - low  # perhaps infinite, which bounds nothing
    first = low + _MARGIN * torch.minimum(low.abs(), width)
    last = high - _MARGIN * torch.minimum(high.abs(), width)
    moved = torch.where(low.isfinite() & (natural < first), first, natural)
    moved = torch.where(high.isfinite() & (moved > last), last, moved)
    # those that stay do so to the last bit
    return torch.where(moved == natural, raw, constraint.inverse_transform(moved))


def _depends(block: PriorBlock, others: Sequence[PriorBlock]) -> bool:
    """Whether setting one of the others changes the value of a block."""
    return any(block.reads & other.parameters for other in others)


def followers(block: PriorBlock, blocks: Sequence[PriorBlock]) -> list[PriorBlock]:
    """The blocks that are to be set again after one was, in no order.

    Args:
        block: The one.
        blocks: All that there are. If the one is among the result, it depends on
            itself by way of others, and no order of setting them gives given values.
    """
    found: list[PriorBlock] = []
    new = [block]
    while new:
        new = [
            b
            for b in blocks
            if _depends(b, new) and not any(b is other for other in found)
        ]
        found += new
    return found


def in_order(blocks: Sequence[PriorBlock]) -> list[PriorBlock]:
    """Blocks in an order in which setting one leaves those before it as they are.

    Args:
        blocks: None that depends on itself by way of others.
    """
    left, ordered = list(blocks), []
    while left:
        i = next(i for i, block in enumerate(left) if not _depends(block, left))
        ordered.append(left.pop(i))
    return ordered


# ----------------------------------------------------------------------
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
