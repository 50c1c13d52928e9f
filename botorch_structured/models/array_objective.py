r"""Objectives of fits whose value and gradient are written out, on NumPy arrays.

For twenty rows the covariance and its Cholesky factor take some 50 microseconds, and
torch, autograd and GPyTorch's modules around them two milliseconds. An
``ArrayObjective`` computes value and gradient of the same objective from a vector.
BoTorch's ``fit_gpytorch_mll_scipy`` takes it in the place of a closure, so that bounds,
options, time limits and retries remain BoTorch's.

``ArrayHyperparameters`` are the free parameters of a model as such a vector: their
constraints and their priors. With GPyTorch's normal, log-normal and gamma priors, the
log prior density of a value v is

    a log v + b (log v)^2 + c v + e v^2 + constant.
"""

from __future__ import annotations

__all__ = [
    "ArrayHyperparameters",
    "ArrayObjective",
    "array_optimizer",
    "is_on_cpu_in_double",
]

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from botorch.optim.closures.core import NdarrayOptimizationClosure
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.constraints import GreaterThan, Interval, Positive
from gpytorch.mlls import MarginalLogLikelihood
from gpytorch.models import ExactGP
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior, Prior
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

Vector = NDArray[np.float64]

_LOG_2PI = math.log(2.0 * math.pi)
# torch's softplus is the identity from here on
_SOFTPLUS_ENDS = 20.0
# where a constraint is compared with the transform that it is taken for
_PROBES = (-30.0, -1.5, 0.5, 30.0)
# What may be asked of an optimisation that does not use parameters in between.
_OPTIONS = {"options", "bounds", "method", "timeout_sec"}


class ArrayObjective(NdarrayOptimizationClosure):
    """A function of a vector with its gradient, where BoTorch expects a closure.

    The parameters are read at the start of an optimisation and written at its end, not
    at each evaluation.

    Args:
        function: A vector to the value that is minimised and its gradient.
        parameters: What the vector is made of, in this order.
    """

    def __init__(
        self,
        function: Callable[[Vector], tuple[float, Vector]],
        parameters: dict[str, Parameter],
    ) -> None:
        super().__init__(closure=function, parameters=parameters)
        self.function = function

    def __call__(
        self, state: Vector | None = None, **kwargs: Any
    ) -> tuple[float, Vector]:
        """Value and gradient at a vector; default: at the present parameters."""
        return self.function(self.state if state is None else state)


def array_optimizer(
    make: Callable[[MarginalLogLikelihood], ArrayObjective | None],
) -> Callable[..., Any]:
    """BoTorch's SciPy optimiser with the objective that ``make`` returns.

    Args:
        make: From the objective in training mode; None: its own closure is used, as it
            is where the caller gave a closure, or asks for something for which
            parameters have to follow each evaluation.

    Returns:
        An ``optimizer`` for ``fit_gpytorch_mll``.
    """

    def optimizer(
        mll: MarginalLogLikelihood, closure: Any = None, **kwargs: Any
    ) -> Any:
        own = make(mll) if closure is None and _OPTIONS.issuperset(kwargs) else None
        return fit_gpytorch_mll_scipy(mll, closure=own or closure, **kwargs)

    return optimizer


def is_on_cpu_in_double(*tensors: Tensor) -> bool:
    """Whether arrays can share the memory of these tensors."""
    return all(t.device.type == "cpu" and t.dtype == torch.float64 for t in tensors)


# -- constraints and priors -------------------------------------------------------


@dataclass(frozen=True)
class ArrayHyperparameters:
    """The free parameters of a model as a vector, with constraints and priors.

    Attributes:
        parameters: Those that require a gradient, by name.
        slices: The elements of each of them.
        soft: Elements whose value is softplus(x) + lower, others are values; ``k``.
        lower: As in ``soft``, ``k``.
        prior: a, b, c and e of the prior density, ``4 x k``.
        constant: Sum of what is the same for all values.
    """

    parameters: dict[str, Parameter]
    slices: dict[Parameter, slice]
    soft: NDArray[np.bool_] | None
    lower: Vector
    prior: Vector
    constant: float

    @classmethod
    def of(cls, model: ExactGP) -> ArrayHyperparameters | None:
        """Of a model without a batch; None for constraints or priors not known here.

        Known are: no transform, softplus with a lower bound; normal, log-normal and
        gamma priors, each of which is on one free parameter.
        """
        parameters, slices, transforms, size = {}, {}, {}, 0
        softs, lowers = [], []
        for name, parameter, constraint in model.named_parameters_and_constraints():
            if not parameter.requires_grad:
                continue
            lower = _softplus_from(constraint)
            if lower is None or not is_on_cpu_in_double(parameter):
                return None
            count = parameter.numel()
            parameters[name] = parameter
            slices[parameter] = slice(size, size + count)
            transforms[parameter] = constraint
            softs += [not math.isnan(lower)] * count
            lowers += [lower] * count
            size += count
        prior, constant = np.zeros((4, size)), 0.0
        for _, module, density, closure, _ in model.named_priors():
            with torch.enable_grad():
                value = closure(module)
            if not value.requires_grad:
                with torch.no_grad():
                    constant += float(density.log_prob(value).sum())
                continue
            parameter = _source(value, transforms)
            terms = _coefficients(density, value)
            if parameter is None or terms is None:
                return None
            prior[:, slices[parameter]] += terms[:4]
            constant += float(terms[4].sum())
        soft = np.array(softs, dtype=bool)
        return cls(
            parameters,
            slices,
            soft if soft.any() else None,
            np.where(soft, np.array(lowers), 0.0),
            prior,
            constant,
        )

    def values(self, x: Vector) -> tuple[Vector, Vector | None]:
        """Constrained values of raw ones, and their derivatives (None: all one)."""
        if self.soft is None:
            return x, None
        soft = self.soft & (x <= _SOFTPLUS_ENDS)
        e = np.exp(np.where(soft, x, 0.0))
        value = np.where(soft, np.log1p(e), x) + self.lower
        return value, np.where(soft, e / (1.0 + e), 1.0)

    def log_prior(self, values: Vector) -> tuple[float, Vector]:
        """Log prior density of constrained values, and its gradient in them."""
        a, b, c, e = self.prior
        powers = (a != 0.0) | (b != 0.0)
        v = np.where(powers, values, 1.0)
        if not (v > 0.0).all():
            return -math.inf, np.zeros_like(v)
        log_v = np.log(v)
        value = (a + b * log_v) @ log_v + (c + e * values) @ values + self.constant
        return float(value), (a + 2.0 * b * log_v) / v + c + 2.0 * e * values


def _softplus_from(constraint: Interval | None) -> float | None:
    """The lower bound of a softplus; NaN without transform; None for another one."""
    if constraint is None or not constraint.enforced:
        return math.nan
    if type(constraint) not in (GreaterThan, Positive):
        return None
    if constraint.lower_bound.numel() != 1:
        return None
    lower = float(constraint.lower_bound)
    x = torch.tensor(_PROBES, dtype=torch.float64)
    expected = torch.nn.functional.softplus(x) + lower
    return lower if torch.equal(constraint.transform(x), expected) else None


def _source(
    value: Tensor, transforms: dict[Parameter, Interval | None]
) -> Parameter | None:
    """The parameter that a value is, as constrained; None if there is none."""
    leaves = list(transforms)
    slopes = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
    used = [(p, g) for p, g in zip(leaves, slopes, strict=True) if g is not None]
    if len(used) != 1 or used[0][0].shape.numel() != value.shape.numel():
        return None
    (parameter, slope) = used[0]
    constraint = transforms[parameter]
    natural = parameter
    if constraint is not None:
        with torch.enable_grad():
            natural = constraint.transform(parameter)
    if not torch.equal(natural.reshape(-1), value.reshape(-1)):
        return None
    (expected,) = torch.autograd.grad(natural.sum(), parameter)
    return parameter if torch.equal(slope, expected) else None


def _normal(prior: NormalPrior | LogNormalPrior) -> list[Tensor]:
    loc, half = prior.loc, 0.5 / prior.scale.square().double()
    constant = -half * loc * loc - prior.scale.log() - 0.5 * _LOG_2PI
    return [2.0 * half * loc, -half, constant]


def _coefficients(prior: Prior, value: Tensor) -> Vector | None:
    """a, b, c, e and the constant, ``5 x k``; None for another prior.

    GPyTorch keeps priors in single precision, in which torch computes the logarithm and
    the square of a scale: so does this.
    """
    if getattr(prior, "_transform", None) is not None or prior.event_shape:
        return None
    zero = torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        if type(prior) is NormalPrior:
            linear, square, constant = _normal(prior)
            terms = [zero, zero, linear, square, constant]
        elif type(prior) is LogNormalPrior:
            linear, square, constant = _normal(prior)
            terms = [linear - 1.0, square, zero, zero, constant]
        elif type(prior) is GammaPrior:
            shape, rate = prior.concentration, prior.rate
            constant = torch.xlogy(shape, rate) - shape.lgamma()
            terms = [shape - 1.0, zero, -rate, zero, constant]
        else:
            return None
        columns = [t.double().expand(value.shape).reshape(-1) for t in terms]
    return torch.stack(columns).numpy()
