"""Log densities of GPyTorch's priors as functions of one number.

A sampler that changes one value at a time evaluates the prior of one value many
thousand times. With a torch distribution one evaluation takes longer than the
Cholesky factorisation of a matrix with 50 rows.
"""

from __future__ import annotations

__all__ = ["scalar_log_densities"]

import math
from collections.abc import Callable

import torch
from gpytorch.priors import (
    GammaPrior,
    HorseshoePrior,
    LogNormalPrior,
    NormalPrior,
    Prior,
)
from torch import Tensor

Density = Callable[[float], float]

_LOG_2PI = math.log(2.0 * math.pi)


def _normal(loc: float, scale: float) -> Density:
    constant = -math.log(scale) - 0.5 * _LOG_2PI
    return lambda v: constant - 0.5 * ((v - loc) / scale) ** 2


def _log_normal(loc: float, scale: float) -> Density:
    constant = -math.log(scale) - 0.5 * _LOG_2PI

    def density(v: float) -> float:
        if v <= 0:
            return -math.inf
        log_v = math.log(v)
        return constant - log_v - 0.5 * ((log_v - loc) / scale) ** 2

    return density


def _gamma(concentration: float, rate: float) -> Density:
    constant = concentration * math.log(rate) - math.lgamma(concentration)

    def density(v: float) -> float:
        if v <= 0:
            return -math.inf
        return constant + (concentration - 1.0) * math.log(v) - rate * v

    return density


def _horseshoe(scale: float) -> Density:
    # GPyTorch's own approximation: the mean of a lower and an upper bound
    constant = math.log(0.5 / math.sqrt(2.0 * math.pi**3))

    def density(v: float) -> float:
        if v == 0:
            return math.inf
        a = (scale / v) ** 2
        return constant + math.log(0.5 * math.log1p(4.0 * a) + math.log1p(2.0 * a))

    return density


_KNOWN: tuple[tuple[type[Prior], tuple[str, ...], Callable[..., Density]], ...] = (
    (LogNormalPrior, ("loc", "scale"), _log_normal),
    (NormalPrior, ("loc", "scale"), _normal),
    (GammaPrior, ("concentration", "rate"), _gamma),
    (HorseshoePrior, ("scale",), _horseshoe),
)


def scalar_log_densities(prior: Prior, value: Tensor) -> list[Density] | None:
    """The log density of each element of a value.

    Args:
        prior: The prior.
        value: The value that the prior is on.

    Returns:
        A function for each element, in order; None where elements are not independent
        under the prior, where there is no closed form, or where the closed form could
        not be checked because the value is outside the support.
    """
    if getattr(prior, "_transform", None) is not None or prior.event_shape:
        return None
    known = [(names, make) for kind, names, make in _KNOWN if isinstance(prior, kind)]
    if not known:
        return None
    attributes, make = known[0]
    with torch.no_grad():
        arguments = [torch.as_tensor(getattr(prior, name)) for name in attributes]
        columns = [
            a.double().expand(value.shape).reshape(-1).tolist() for a in arguments
        ]
        densities = [make(*column) for column in zip(*columns, strict=True)]
        # A subclass may have a density of its own: compare values with the prior's.
        # Priors stay in single precision when a model is moved to double.
        dtypes = [a.dtype for a in arguments if a.is_floating_point()]
        eps = max(torch.finfo(dtype).eps for dtype in (value.dtype, *dtypes))
        tolerance = 1e3 * eps
        for factor in (1.0, 1.1, 0.9):
            elements = factor * value
            try:
                given = float(prior.log_prob(elements).sum())
            except ValueError:  # raised by torch outside the support
                return None
            ours = sum(
                f(v)
                for f, v in zip(densities, elements.reshape(-1).tolist(), strict=True)
            )
            size = max(1.0, min(abs(given), abs(ours))) * max(1, value.numel())
            if not abs(given - ours) <= tolerance * size and given != ours:
                return None
    return densities
