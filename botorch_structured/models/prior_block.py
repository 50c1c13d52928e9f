"""The value that one prior is on: how to read and set it, and within which bounds."""

from __future__ import annotations

__all__ = ["PriorBlock", "probe"]

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gpytorch.priors import Prior
from numpy.typing import NDArray
from torch import Tensor

from botorch_structured.models.scalar_priors import scalar_log_densities

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
