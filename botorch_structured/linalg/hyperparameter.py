"""Positive hyperparameters, held as logarithms between hard bounds.

With BoTorch's constraints (``transform=None``) L-BFGS-B optimises natural values. That
is well scaled for a lengthscale, but not for a noise variance between 1e-1 and 1e-9.
Here a raw parameter *is* the logarithm of its value, so a step changes values of any
size by the same factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from gpytorch import Module
from gpytorch.constraints import Interval
from gpytorch.priors import LogNormalPrior
from torch import Tensor

Closure = TypeVar("Closure", bound=Callable[..., Tensor])


class LogInterval(Interval):
    """Hard bounds on a positive value whose raw parameter is its logarithm.

    Args:
        lower_bound: Smallest value, positive.
        upper_bound: Largest value.
        initial_value: The starting value of a parameter (default: the value of its raw
            parameter).
    """

    def __init__(
        self,
        lower_bound: float,
        upper_bound: float,
        initial_value: float | Tensor | None = None,
    ) -> None:
        if not 0 < lower_bound < upper_bound:
            raise ValueError(
                "lower_bound: expected 0 < lower_bound < upper_bound, got "
                f"lower_bound={lower_bound}, upper_bound={upper_bound}."
            )
        super().__init__(
            lower_bound=lower_bound,
            upper_bound=upper_bound,
            transform=torch.exp,
            inv_transform=torch.log,
            initial_value=initial_value,
        )

    def transform(self, tensor: Tensor) -> Tensor:
        """The value ``exp(raw)``, of the shape of ``tensor``."""
        return tensor.exp()

    def inverse_transform(self, transformed_tensor: Tensor) -> Tensor:
        """The raw value ``log(value)``, of the shape of ``transformed_tensor``."""
        return transformed_tensor.log()

    def check_raw(self, tensor: Tensor) -> bool:
        """Whether raw values are within the bounds, up to rounding of ``exp``."""
        slack = 1e-5
        inside = (tensor >= self.lower_bound.log() - slack) & (
            tensor <= self.upper_bound.log() + slack
        )
        return bool(inside.all())


class QuickLogNormalPrior(LogNormalPrior):
    """A scalar log-normal prior whose density takes four operations instead of forty.

    A fit evaluates a dozen priors a hundred times; most of that time is overhead of
    torch's distributions.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        log_value = value.log()
        # a prior keeps the default dtype of the time when it was made
        scale = self.scale.to(log_value.dtype)
        standard = (log_value - self.loc) / scale
        constant = scale.log() + 0.5 * math.log(2.0 * math.pi)
        return -0.5 * standard.square() - log_value - constant


def log_gaussian_prior(mode: float, scale: float) -> LogNormalPrior:
    """A log-normal prior under which MAP estimates are drawn towards ``mode``.

    A density over the *value* x carries the factor 1/x, so the mode of LN(m, s^2) is
    exp(m - s^2). This prior has the same objective in log x as the Gaussian
    N(log mode, scale^2).

    Args:
        mode: The most probable value.
        scale: Standard deviation of the logarithm.
    """
    loc = math.log(mode) + scale**2
    return QuickLogNormalPrior(
        loc=loc,
        scale=scale,
        validate_args=False,
    )


class Hyperparameter(Module):
    """One positive tensor with a prior and bounds, in a module of its own.

    It is a module of its own because BoTorch's ``subset_output`` removes one batch
    dimension of a module for *each* of its parameters.

    Args:
        shape: Shape of the parameter without batch dimensions; at least one dimension.
        mode: Prior mode and starting value.
        scale: Standard deviation of the logarithm under the prior.
        bounds: Hard bounds of the value.
        batch_shape: Batch shape of the model.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        mode: float,
        scale: float,
        bounds: tuple[float, float],
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
    ) -> None:
        super().__init__()
        self.batch_shape = batch_shape
        start = torch.full(
            (*batch_shape, *shape),
            math.log(mode),
            dtype=torch.float64,
        )
        self.register_parameter("raw_value", torch.nn.Parameter(start))
        self.register_constraint("raw_value", LogInterval(*bounds))
        self.register_prior(
            "value_prior",
            log_gaussian_prior(mode, scale),
            read_value,
            _set_value,
        )

    @property
    def value(self) -> Tensor:
        """The positive value, ``batch_shape x shape``."""
        return self.raw_value_constraint.transform(self.raw_value)

    @value.setter
    def value(self, value: float | Tensor) -> None:
        value = torch.as_tensor(value).to(self.raw_value)
        lower, upper = self.raw_value_constraint
        # a retried fit samples the prior, which may be wider than the bounds
        clamped = value.clamp(lower.to(value), upper.to(value))
        self.initialize(raw_value=clamped.log().expand_as(self.raw_value))


def reads(name: str, power: float = 1.0) -> Callable[[Closure], Closure]:
    """Mark the closure of a prior with the raw parameter that it reads.

    Fits evaluate priors in closed form where they know it.

    Args:
        name: The name of the raw parameter.
        power: The p of ``value = parameter ** p``.
    """

    def mark(closure: Closure) -> Closure:
        closure.reads = (name, power)  # type: ignore[attr-defined]
        return closure

    return mark


@reads("raw_value")
def read_value(module: Hyperparameter) -> Tensor:
    """The value, which has the prior of a ``Hyperparameter``."""
    return module.value


def _set_value(module: Hyperparameter, value: Tensor) -> None:
    module.value = value
