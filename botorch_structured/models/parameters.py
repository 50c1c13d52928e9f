"""The parameters of a GP as one vector, with the log density of their priors.

Fits in closed form evaluate priors as functions of the logarithms u of parameters, in
NumPy. A log-normal prior is quadratic in u.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from botorch.utils.constraints import LogTransformedInterval
from gpytorch import Module
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from gpytorch.priors import GammaPrior, HorseshoePrior, LogNormalPrior, NormalPrior
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.graph import increment_version

from botorch_structured.linalg.hyperparameter import LogInterval, QuickLogNormalPrior

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


# Functions that read what a prior is on: the raw parameter, and the power p of
# ``value = parameter ** p``. Closures of this package say it (``reads``).
_READERS: dict[Any, tuple[str, float]] = {
    Kernel._lengthscale_param: ("raw_lengthscale", 1.0),
    ScaleKernel._outputscale_param: ("raw_outputscale", 1.0),
    HomoskedasticNoise._noise_param: ("raw_noise", 1.0),
    ConstantMean._constant_param: ("raw_constant", 1.0),
}


class UnknownFormError(Exception):
    """Something in a model has no closed form here."""


class RawParameters:
    """All parameters of an objective as one vector ``U``, and their logarithms u.

    Attributes:
        values: Raw values, ``U``.
        free: Positions of those with a gradient, ``k``.
        bounds: Of these, ``k x 2``.
        batch_dims: Number of batch dimensions of the model.
    """

    def __init__(
        self, mll: MarginalLogLikelihood, index: tuple[int, ...] | None = ()
    ) -> None:
        index = index or ()
        self.batch_dims = len(index)
        # Raw values in the memory of the model, valid until it is moved or cast, and
        # the parameters that may change.
        self._parts: list[tuple[Array, slice, Tensor | None]] = []
        self._place: dict[int, Indices] = {}
        self._positive: set[int] = set()
        self._plain: list[Indices] = []
        self._transformed: list[tuple[Indices, Interval]] = []  # by torch
        free = []
        bounds: list[tuple[float, float]] = []
        start = 0
        # ``mll.named_parameters_and_constraints`` looks for the module of each again
        named = (
            (module, name, p)
            for module in mll.modules()
            for name, p in module.named_parameters(recurse=False)
        )
        for module, name, p in named:
            if id(p) in self._place:
                continue
            if p.dtype != torch.float64 or p.device.type != "cpu":
                raise UnknownFormError
            part = p.detach()[index] if index else p.detach()
            size = part.numel()
            place = np.arange(start, start + size)
            self._place[id(p)] = place
            where = slice(start, start + size)
            free_p = p if p.requires_grad else None
            self._parts.append((part.view(-1).numpy(), where, free_p))
            start += size
            constraint = Module.constraint_for_parameter_name(module, name)
            limits = self._read_constraint(p, constraint, place)
            if p.requires_grad:
                free.append(place)
                bounds += [limits] * size
        if not free:
            raise UnknownFormError
        self.free = np.concatenate(free)
        self.bounds = np.array(bounds)
        self.values = np.zeros(start)
        self.read()

    def _read_constraint(
        self, p: Tensor, constraint: Interval | None, place: Indices
    ) -> tuple[float, float]:
        """How a parameter depends on its raw value; bounds of the raw value."""
        if constraint is None:
            return -np.inf, np.inf
        if constraint.lower_bound.numel() > 1:
            raise UnknownFormError
        low = constraint.lower_bound.item()
        high = constraint.upper_bound.item()
        if low >= 0.0:
            self._positive.add(id(p))
        if isinstance(constraint, (LogInterval, LogTransformedInterval)):
            return math.log(low), math.log(high)
        if not constraint.enforced:
            if low >= 0.0:
                self._plain.append(place)
            return low, high
        if low < 0.0:
            raise UnknownFormError
        self._transformed.append((place, constraint))
        return -np.inf, np.inf

    def logarithm(self, p: Tensor) -> Indices:
        """Places of the logarithm of a positive parameter, given its raw one."""
        if id(p) not in self._positive:
            raise UnknownFormError
        return self._place[id(p)]

    def unbounded(self, p: Tensor) -> Indices:
        """Places of a parameter that is used as it is."""
        if id(p) in self._positive:
            raise UnknownFormError
        return self._place[id(p)]

    def read(self) -> Array:
        """The raw values with a gradient, ``k``, from the model."""
        for part, place, _ in self._parts:
            self.values[place] = part
        return self.values[self.free]

    def write(self, theta: Array) -> None:
        """Set the raw values with a gradient in the model."""
        self.values[self.free] = theta
        for part, place, p in self._parts:
            if p is not None:
                part[:] = self.values[place]
                # or a graph from before the fit would have wrong gradients
                increment_version(p)

    def gradient(self, value: Tensor) -> Array:
        """The derivative of a tensor by the raw values with a gradient, ``k``."""
        free = [p for _, _, p in self._parts if p is not None]
        slopes: Any = [None] * len(free)
        if value.requires_grad:
            slopes = torch.autograd.grad(value, free, allow_unused=True)
        parts = [
            torch.zeros_like(p) if slope is None else slope
            for p, slope in zip(free, slopes, strict=True)
        ]
        return torch.cat([part.flatten() for part in parts]).numpy()

    def logarithms(self, theta: Array) -> tuple[Array, Array | None]:
        """u, and its derivative by raw values where that is not 1, both ``U``.

        In place of the logarithm of a mean, which may be negative, u has its value.
        """
        u = self.values.copy()
        u[self.free] = theta
        if not (self._plain or self._transformed):
            return u, None
        slope = np.ones_like(u)
        for place in self._plain:
            slope[place] = 1.0 / u[place]
            u[place] = np.log(u[place])
        for place, constraint in self._transformed:
            raw = torch.from_numpy(u[place]).requires_grad_(True)
            with torch.enable_grad():
                logarithm = constraint.transform(raw).log()
                (gradient,) = torch.autograd.grad(logarithm.sum(), raw)
            slope[place] = gradient.numpy()
            u[place] = logarithm.detach().numpy()
        return u, slope


class LogPriors:
    """The log priors as a function of logarithms u.

    A log-normal prior of x^p is -((p u - m) / s)^2 / 2 - p u plus a constant, a normal
    one of a mean the same without p u, and a gamma prior (a - 1) p u - b x^p plus a
    constant. Other priors are evaluated by torch.

    Args:
        model: The model.
        parameters: Of its objective.
        by_torch: Whether there may be other priors; the caller then adds what
            ``of_others`` returns.

    Attributes:
        deviations: Standard deviations of u under log-normal and normal priors, else
            1, ``U``.
    """

    def __init__(
        self, model: Any, parameters: RawParameters, by_torch: bool = False
    ) -> None:
        self._parameters = parameters
        self._others: list[tuple[Any, Any, Any]] = []
        self._horseshoes: list[tuple[Indices, float, Array]] = []
        self._gammas: list[tuple[Indices, float, Array, Array]] = []
        constants = 0.0
        rows: list[Array] = []  # place, power, location, scale, tilt
        for _, module, prior, closure, _ in model.named_priors():
            reader = _reader_of(closure)
            kind = known_kind(prior)
            mean = reader is not None and reader[0] in (
                "constant",
                "raw_constant",
                "raw_slope",
            )
            if reader is None or kind is None or mean != (kind is NormalPrior):
                if parameters.batch_dims or not by_torch:
                    raise UnknownFormError
                self._others.append((module, prior, closure))
                continue
            name, power = reader
            raw = getattr(module, name)
            if mean:
                place = parameters.unbounded(raw)
                tilt = 0.0
            else:
                place = parameters.logarithm(raw)
                tilt = power
            if kind is HorseshoePrior:
                scale = np.broadcast_to(prior.scale.numpy(), place.shape)
                self._horseshoes.append((place, power, scale))
                continue
            if kind is GammaPrior:
                a = prior.concentration
                b = prior.rate
                terms = torch.xlogy(a, b) - a.lgamma(), a - 1.0, b
                constant, shape, rate = (
                    np.broadcast_to(t.double().numpy(), place.shape) for t in terms
                )
                constants += float(constant.sum())
                self._gammas.append((place, power, shape, rate))
                continue
            columns = (place, power, prior.loc.numpy(), prior.scale.numpy(), tilt)
            rows.append(np.empty((5, len(place))))
            for row, values in zip(rows[-1], columns, strict=True):
                row[:] = values
        table = np.concatenate([np.zeros((5, 0)), *rows], axis=-1)
        self._place = table[0].astype(np.int64)
        _, self._power, self._loc, scale, self._tilt = table
        self._inverse = 1.0 / scale
        self._rate = self._power * self._inverse
        self.deviations = np.ones(len(parameters.values))
        self.deviations[self._place] = scale / self._power
        self._constant = (
            -float(np.log(scale).sum()) - 0.5 * math.log(2.0 * math.pi) * scale.size
        )
        self._constant += constants + math.log(0.5 / math.sqrt(2.0 * math.pi**3)) * sum(
            p.size for p, _, _ in self._horseshoes
        )

    def __call__(self, u: Array) -> tuple[float, Array]:
        """The sum of the log priors, and its derivative by u."""
        x = u[self._place]
        standard = (self._power * x - self._loc) * self._inverse
        value = self._constant - 0.5 * float(standard @ standard)
        value -= float(self._tilt @ x)
        slope = self._rate * standard + self._tilt
        by_place = np.bincount(self._place, -slope, len(u))
        gradient: Array = by_place.astype(np.float64, copy=False)
        for place, power, shape, rate in self._gammas:
            scaled = rate * np.exp(power * u[place])
            value += float((shape * power) @ u[place] - scaled.sum())
            gradient[place] += power * (shape - scaled)
        for place, power, scale in self._horseshoes:
            # log(log(1 + 4 a) / 2 + log(1 + 2 a)) plus a constant, a = (scale / x)^2
            a = np.square(scale * np.exp(-power * u[place]))
            both = 0.5 * np.log1p(4.0 * a) + np.log1p(2.0 * a)
            value += float(np.log(both).sum())
            slope = (2.0 / (1.0 + 4.0 * a) + 2.0 / (1.0 + 2.0 * a)) / both
            gradient[place] -= 2.0 * power * a * slope
        return value, gradient

    def of_others(self, theta: Array) -> tuple[float, Any]:
        """The sum of the other log priors, and its derivative by free raw values.

        Args:
            theta: These raw values, ``k``, which the model gets.
        """
        if not self._others:
            return 0.0, 0.0
        self._parameters.write(theta)
        with torch.enable_grad():
            parts = [p.log_prob(read(m)).sum() for m, p, read in self._others]
            value = torch.stack(parts).sum()
        return value.item(), self._parameters.gradient(value)


class ArrayPosterior:
    """Minus the evidence and the log priors per row, an ``ArrayObjective``.

    A subclass has the evidence of one GP as a function of u, in ``evidence``.

    Args:
        mll: The objective.

    Raises:
        UnknownFormError: If it is no evidence of one GP, if a class outside of this
            package has its own way to compute it, or if a prior has no closed form.
    """

    def __init__(self, mll: MarginalLogLikelihood) -> None:
        model: Any = mll.model
        defining = {"forward", "__call__", "compute_custom_loss", "_fast_evidence"}
        if (
            type(mll) is not ExactMarginalLogLikelihood
            or mll.likelihood is not model.likelihood
            or model.redefined & defining
            or model.train_targets.ndim > 1
        ):
            raise UnknownFormError
        self.parameters = parameters = RawParameters(mll, None)
        self.read = parameters.read
        self.write = parameters.write
        self.bounds = parameters.bounds
        self.units = np.ones(len(parameters.free))
        self._priors = LogPriors(model, parameters)
        self._rows = len(model.train_targets)

    def evidence(self, u: Array) -> tuple[float, Array]:
        """The log evidence and its derivative by u."""
        raise NotImplementedError

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient at raw parameters ``k``; NaN where the evidence is."""
        u, slope = self.parameters.logarithms(theta)
        prior, by_prior = self._priors(u)
        evidence, gradient = self.evidence(u)
        gradient = gradient + by_prior
        if slope is not None:
            gradient *= slope
        value = -(evidence + prior) / self._rows
        return value, gradient[self.parameters.free] / -self._rows


def _reader_of(closure: Any) -> tuple[str, float] | None:
    """The raw parameter that a closure reads, and a power of it; see ``reads``."""
    function = getattr(closure, "__func__", closure)
    return getattr(function, "reads", None) or _READERS.get(function)


def known_kind(prior: Any) -> type | None:
    """The class of a prior whose density has a closed form here."""
    if getattr(prior, "_transform", None) is not None:
        return None
    density = type(prior).log_prob
    for kind in (LogNormalPrior, NormalPrior, GammaPrior, HorseshoePrior):
        densities = kind.log_prob, QuickLogNormalPrior.log_prob
        if isinstance(prior, kind) and density in densities:
            return kind
    return None
