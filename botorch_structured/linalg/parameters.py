"""Positive hyperparameters with priors: one by one, as noise, and as one vector.

With BoTorch's constraints (``transform=None``) L-BFGS-B optimises natural values. That
is well scaled for a lengthscale, but not for a noise variance between 1e-1 and 1e-9.
The raw parameter of a ``LogInterval`` *is* the logarithm of its value, so a step
changes values of any size by the same factor.

**Noise.** Variances are those of standardised outcomes. For a smooth objective without
noise a floor of 1e-9 is needed: with BoTorch's 1e-4 a search stops improving early. An
error count is a step function, whose values repeat *exactly*. Under a floor of 1e-9 a
model explains repeats by a flat function without noise, and its variance is then too
small where there are no data. So BoTorch's floor and prior are used where more than a
quarter of the outcomes repeat, as they also do after ``ClipTail``.

The papers put priors on standard deviations, of the noise and of amplitudes; GPyTorch's
parameters are variances. ``register_root_prior`` puts a prior on the standard
deviation, in MAP fits and in slice sampling, which samples the standard deviation.

**Vectors.** Fits in closed form evaluate priors as functions of the logarithms u of
parameters, in NumPy (``RawParameters``, ``LogPriors``). A log-normal prior is quadratic
in u.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from botorch.utils.constraints import LogTransformedInterval
from gpytorch import Module
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from gpytorch.means import ConstantMean
from gpytorch.mlls import MarginalLogLikelihood
from gpytorch.priors import (
    GammaPrior,
    HorseshoePrior,
    LogNormalPrior,
    NormalPrior,
    Prior,
)
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.graph import increment_version

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Closure = TypeVar("Closure", bound=Callable[..., Tensor])

#: Mode, standard deviation of the logarithm, floor; in units of the outcomes' variance.
_EXACT = (1e-6, 3.0, 1e-9)
# BoTorch's own: LogNormal(-4, 1), whose mode in log space is exp(-5), and its floor
_STEPS = (math.exp(-5.0), 1.0, 1e-4)
# Where a training loop begins. At 1e-4 the loss of 20 exact outcomes may be 1,000, and
# a step of SGD or Adam leaves all optima. Quasi-Newton fits begin there: of 200 data
# sets 7 % (as published 9 %) ended more than .1 nats below the best optimum, and 11 %
# (20 %) from .03. ``ConditionalGP`` has 14 % and 6 %; from .03 its fit to five exact
# outcomes on a path explains them as noise, which misleads a search.
START = 0.03
FIT_START = 1e-4

# A smooth objective may repeat one or two values; step functions repeat many.
_MANY_REPEATS = 0.25
_FEW_ROWS = 4


# -- one by one ---------------------------------------------------------------------


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
        sum_of_both = torch.addcmul(log_value, standard, standard, value=0.5)
        return -0.5 * math.log(2.0 * math.pi) - sum_of_both - scale.log()


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


# -- noise ------------------------------------------------------------------------


def default_likelihood(batch_shape: torch.Size) -> GaussianLikelihood:
    """Homoskedastic noise with a log-normal prior; see ``set_noise_floor``."""
    mode, scale, floor = _EXACT
    return GaussianLikelihood(
        noise_prior=log_gaussian_prior(mode, scale),
        noise_constraint=LogInterval(floor, 1e1, initial_value=START),
        batch_shape=batch_shape,
    )


def horseshoe_likelihood(batch_shape: torch.Size) -> GaussianLikelihood:
    """Homoskedastic noise with a horseshoe(1) prior on its standard deviation.

    The prior of Levesque et al. (2017), section V. ``set_noise_floor`` sets its
    smallest noise variance.
    """
    likelihood = GaussianLikelihood(
        noise_constraint=LogInterval(_EXACT[2], 1e1, initial_value=START),
        batch_shape=batch_shape,
    )
    register_root_prior(likelihood.noise_covar, HorseshoePrior(1.0))
    return likelihood


def has_steps(targets: Tensor) -> bool:
    """Whether so many outcomes repeat that they are values of a step function.

    Args:
        targets: ``batch_shape x n``; one element of the batch is enough.
    """
    ordered = np.sort(targets.detach().cpu().numpy(), axis=-1)
    equal = ordered[..., 1:] == ordered[..., :-1]
    repeated = np.zeros(ordered.shape, dtype=bool)
    repeated[..., 1:] |= equal
    repeated[..., :-1] |= equal
    many = repeated.mean(-1).max(initial=0.0) > _MANY_REPEATS
    return bool(many) and targets.shape[-1] >= _FEW_ROWS


def set_noise_floor(
    likelihood: GaussianLikelihood,
    targets: Tensor,
) -> None:
    """Set floor, start and log-normal prior of the noise: do outcomes repeat?

    Args:
        likelihood: A new one, from this module.
        targets: Transformed outcomes, ``batch_shape x n``.
    """
    steps = has_steps(targets)
    mode, scale, floor = _STEPS if steps else _EXACT
    noise = likelihood.noise_covar
    noise.raw_noise_constraint.lower_bound.fill_(floor)
    # what ``initialize`` does in three times as long; the raw value is the logarithm
    noise.raw_noise.data.fill_(math.log(mode if steps else START))
    if steps and hasattr(noise, "noise_prior"):
        prior = log_gaussian_prior(mode, scale).to(targets)
        noise.noise_prior.load_state_dict(prior.state_dict())


def register_root_prior(module: ScaleKernel | HomoskedasticNoise, prior: Prior) -> None:
    """Register a prior on a standard deviation, the root of a module's variance.

    Args:
        module: A kernel with an ``outputscale``, or ``likelihood.noise_covar``.
        prior: The prior of the standard deviation.
    """
    if isinstance(module, ScaleKernel):
        put = partial(_set_root, name="outputscale")
        module.register_prior("amplitude_prior", prior, read_amplitude, put)
    else:
        put = partial(_set_root, name="noise")
        module.register_prior("noise_std_prior", prior, read_noise_std, put)


@reads("raw_outputscale", power=0.5)
def read_amplitude(module: ScaleKernel) -> Tensor:
    """The amplitude, see ``register_root_prior``."""
    return module.outputscale.sqrt()


@reads("raw_noise", power=0.5)
def read_noise_std(module: HomoskedasticNoise) -> Tensor:
    """The standard deviation, see ``register_root_prior``."""
    return module.noise.sqrt()


def _set_root(
    module: Module,
    value: Tensor | float,
    name: str,
) -> None:
    # a retried fit samples the prior, which may be wider than the bounds
    lower, upper = module.constraint_for_parameter_name(f"raw_{name}")
    squared = torch.as_tensor(value).to(lower).square()
    setattr(module, name, squared.clamp(lower, upper))


# -- vectors ----------------------------------------------------------------------


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

    Args:
        mll: The objective.
        index: The element of a batch.

    Attributes:
        values: Raw values, ``U``.
        free: Positions of those with a gradient, ``k``.
        bounds: Of these, ``k x 2``.
        batch_dims: Number of batch dimensions of the model.
        priors: Modules with their priors, and what reads the value of each.

    Raises:
        UnknownFormError: For parameters on other devices or in single precision, other
            constraints, and where none has a gradient.
    """

    def __init__(
        self,
        mll: MarginalLogLikelihood,
        index: tuple[int, ...] = (),
    ) -> None:
        self.batch_dims = len(index)
        # Raw values in the memory of the model, valid until it is moved or cast, and
        # the parameters that may change.
        self._parts: list[tuple[Array, slice, Tensor | None]] = []
        self._place: dict[int, Indices] = {}
        self._positive: set[int] = set()
        self._plain: list[Indices] = []
        self._transformed: list[tuple[Indices, Interval]] = []  # by torch
        priors: dict[int, tuple[Module, Prior, Any]] = {}
        free = []
        bounds: list[tuple[float, float]] = []
        start = 0
        for module in mll.modules():
            for prior, closure, _ in getattr(module, "_priors", {}).values():
                if prior is not None:
                    priors.setdefault(id(prior), (module, prior, closure))
            for name, p in module._parameters.items():
                if p is None or id(p) in self._place:
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
        self.priors = [*priors.values()]
        self.free = np.concatenate(free)
        self.bounds = np.array(bounds)
        self.values = np.zeros(start)
        self.read()

    def _read_constraint(
        self,
        p: Tensor,
        constraint: Interval | None,
        place: Indices,
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
        changed = []
        for part, place, p in self._parts:
            if p is not None:
                part[:] = self.values[place]
                changed.append(p)
        # or a graph from before the fit would have wrong gradients
        increment_version(changed)

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
        parameters: Those of an objective, with their priors.
        by_torch: Whether there may be other priors; the caller then adds what
            ``of_others`` returns.

    Attributes:
        others: Priors that torch evaluates: module, prior and what reads its value.
        deviations: Standard deviations of u under log-normal and normal priors, else
            1, ``U``.
    """

    def __init__(
        self,
        parameters: RawParameters,
        by_torch: bool = False,
    ) -> None:
        self._parameters = parameters
        self.others: list[tuple[Any, Any, Any]] = []
        self._horseshoes: list[tuple[Indices, float, Array]] = []
        self._gammas: list[tuple[Indices, float, Array, Array]] = []
        constants = 0.0
        rows: list[Array] = []  # place, power, location, scale, tilt
        for module, prior, closure in parameters.priors:
            # the raw parameter that it reads, and a power of it
            function = getattr(closure, "__func__", closure)
            reader = getattr(function, "reads", None) or _READERS.get(function)
            kind = known_kind(prior)
            mean = reader is not None and reader[0] in (
                "constant",
                "raw_constant",
                "raw_slope",
            )
            if reader is None or kind is None or mean != (kind is NormalPrior):
                if parameters.batch_dims or not by_torch:
                    raise UnknownFormError
                self.others.append((module, prior, closure))
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
                least = math.log(0.5 / math.sqrt(2.0 * math.pi**3))
                constants += least * place.size
                continue
            if kind is GammaPrior:
                a = prior.concentration
                b = prior.rate
                terms = torch.xlogy(a, b) - a.lgamma(), a - 1.0, b
                constant, shape, rate = [
                    np.broadcast_to(t.double().numpy(), place.shape) for t in terms
                ]
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
        self._constant += constants

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
        self._parameters.write(theta)
        with torch.enable_grad():
            parts = [p.log_prob(read(m)).sum() for m, p, read in self.others]
            value = torch.stack(parts).sum()
        return value.item(), self._parameters.gradient(value)


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
