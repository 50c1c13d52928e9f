r"""Expected improvement and its gradient without autograd.

With posterior mean m and standard deviation s, u = (m - f) / s and
h(u) = phi(u) + u Phi(u),

    log EI = log h + log s,     d log EI = (Phi / h) dm / s + (phi / h) ds / s,
    EI = s h,                   d EI = Phi dm + phi ds.

The graph of a posterior takes several times as long to build and to run as these
formulas. They are used for the acquisition functions named below, exactly as BoTorch
defines them, where the models know the gradients of their moments. What such a function
is made of are *sources*, models and priors; how these are combined is written once.
"""

from __future__ import annotations

__all__ = ["ClosedForm", "closed_form"]

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.acquisition import (
    ExpectedImprovement,
    LogExpectedImprovement,
    PriorGuidedAcquisitionFunction,
)
from scipy import special
from torch import Tensor

from botorch_structured.acquisition import (
    AveragedLogExpectedHypervolumeImprovement,
    AveragedLogExpectedImprovement,
    AveragedLogProbabilityOfFeasibility,
    CostPrior,
    FeasibilityPrior,
    InteriorPrior,
    PathExpectedImprovement,
    PathLogExpectedImprovement,
)
from botorch_structured.acquisition.improvement import least_sigma
from botorch_structured.acquisition.mixtures import (
    AnyScaleLogExpectedImprovement,
    Array,
    differentiated,
)

# Values, and their slopes if these are wanted.
ValueAndSlope = tuple[Array, Array | None]

# Below it h / phi = 1 - |u| Phi / phi loses digits, and its expansion in 1 / u^2 has
# all of them.
_FAR = {8: -1e2, 4: -1e1}  # by the bytes of a number


class Source(NamedTuple):
    """A model with moments, or a prior.

    Attributes:
        of: The model, or an `InteriorPrior`.
        path: Whether the path part of the model is meant.
    """

    of: Any
    path: bool = False

    def at(self, X: Tensor, gradient: bool) -> Sequence[Array | None] | None:
        """Moments (or log densities) and their gradients at points; None without."""
        if isinstance(self.of, InteriorPrior):
            return self.of.at(X, gradient)
        moments_of = getattr(self.of, "point_moments", None)
        found = None if moments_of is None else moments_of(X, gradient, self.path)
        if found is None:
            return None
        return [part if part is None else part.numpy() for part in found]


class ClosedForm(NamedTuple):
    """An acquisition function as a function of what its sources say of a point.

    Attributes:
        sources: Models and priors.
        combine: Maps their answers, one for each source, to values and slopes.
    """

    sources: list[Source]
    combine: Callable[[list[Any]], ValueAndSlope]

    def at(self, X: Tensor, gradient: bool) -> tuple[Tensor, Tensor | None] | None:
        """``n`` values and ``n x d`` gradients (or None) at ``n x d`` points.

        None where a source has no moments there, and on a GPU.
        """
        if X.device.type != "cpu":
            return None
        X = X.detach()
        answers = []
        for source in self.sources:
            if (answer := source.at(X, gradient)) is None:
                return None
            answers.append(answer)
        value, slope = self.combine(answers)
        return torch.from_numpy(value), None if slope is None else torch.from_numpy(
            slope
        )


def closed_form(function: Any) -> ClosedForm | None:
    """The form of an acquisition function or a prior; None where it needs autograd.

    A subclass of those below is another function.
    """
    make = _FORMS.get(type(function))
    return None if make is None else make(function)


def _joined(
    functions: Sequence[Any], combine: Callable[[list[ValueAndSlope]], ValueAndSlope]
) -> ClosedForm | None:
    """Of values of functions; None if one of them has no form."""
    found = [closed_form(function) for function in functions]
    forms = [form for form in found if form is not None]
    if len(forms) < len(found):
        return None

    def combined(answers: list[Any]) -> ValueAndSlope:
        each = iter(answers)
        return combine([f.combine([next(each) for _ in f.sources]) for f in forms])

    return ClosedForm([s for form in forms for s in form.sources], combined)


def _averaged(acqf: AveragedLogExpectedImprovement) -> ClosedForm | None:
    """A mixture: slopes are averaged by each part's share of the value."""

    def combine(parts: list[ValueAndSlope]) -> ValueAndSlope:
        log_weights = acqf.log_weights.numpy().astype(parts[0][0].dtype)
        weighted = [v + w for (v, _), w in zip(parts, log_weights, strict=True)]
        value = np.logaddexp.reduce(weighted)
        if parts[0][1] is None:
            return value, None
        with np.errstate(invalid="ignore"):  # all may be -inf
            shares = np.exp(weighted - value)
        slopes = [s[..., None] * g for s, (_, g) in zip(shares, parts, strict=True)]
        return value, np.sum(slopes, axis=0)

    return _joined(list(acqf.parts), combine)


def _guided(acqf: Any) -> ClosedForm | None:
    """The log of an acquisition function plus a multiple of a log density."""
    if not acqf._log or acqf.X_pending is not None:
        return None
    exponent = acqf._prior_exponent

    def combine(parts: list[ValueAndSlope]) -> ValueAndSlope:
        (value, slope), (log_density, its_slope) = parts
        total = value + exponent * log_density
        if slope is None or its_slope is None:
            return total, None
        return total, slope + exponent * its_slope

    return _joined([acqf.acq_func, acqf.prior_module], combine)


def _of_moments(function: Any) -> ClosedForm:
    """Any function of the moments of mixtures, see ``acquisition.mixtures``."""
    sources = [Source(model) for model in function.outcomes.models]
    return ClosedForm(sources, partial(differentiated, function.of_moments))


def _improvement(
    acqf: Any,
    log: bool = True,
    path: bool = False,
    least: Callable[[torch.dtype], float] = lambda dtype: 1e-12,  # as BoTorch's
) -> ClosedForm | None:
    """Expected improvement; ``least`` is the smallest variance."""
    if acqf.posterior_transform is not None or acqf.best_f.numel() != 1:
        return None
    best, sign = acqf.best_f.item(), 1.0 if acqf.maximize else -1.0

    def combine(answers: list[Any]) -> ValueAndSlope:
        ((mean, variance, mean_slope, variance_slope),) = answers
        dtype = torch.float64 if mean.itemsize == 8 else torch.float32
        value, of_mean, of_variance = _value_and_slopes(
            mean, variance, best, sign, log, least(dtype)
        )
        if mean_slope is None:
            return value, None
        slope = of_mean[..., None] * mean_slope
        slope += of_variance[..., None] * variance_slope
        return value, slope

    return ClosedForm([Source(acqf.model, path)], combine)


def _value_and_slopes(
    mean: Array, variance: Array, best: float, sign: float, log: bool, least: float
) -> tuple[Array, Array, Array]:
    """Values, and their derivatives by means and by variances."""
    sigma = np.sqrt(np.maximum(variance, least))
    u = (mean - best) * (sign / sigma)
    with np.errstate(all="ignore"):  # far below, where it is replaced
        phi = np.exp(-0.5 * np.square(u)) * (1.0 / math.sqrt(2.0 * math.pi))
        Phi = special.ndtr(u)
        h = phi + u * Phi
        if not log:
            value, of_mean, of_sigma = sigma * h, Phi, phi
        else:
            value, of_mean, of_sigma = np.log(h), Phi / h, phi / h
            far = u < -1.0
            if np.count_nonzero(far):  # h loses digits
                v = u[far]
                mills, share = _tail(v)
                value[far] = np.log(share) - 0.5 * (v * v + math.log(2.0 * math.pi))
                of_mean[far] = mills / share
                of_sigma[far] = 1.0 / share
            value += np.log(sigma)
            of_mean /= sigma
            of_sigma /= sigma
        of_sigma = of_sigma * (variance > least) / (2.0 * sigma)
    return value, sign * of_mean, of_sigma


def _tail(u: Array) -> tuple[Array, Array]:
    """Phi / phi and h / phi, for ``u`` of -1 or less."""
    mills = special.erfcx(u * -math.sqrt(0.5)) * math.sqrt(0.5 * math.pi)
    share = 1.0 + u * mills
    beyond = u <= _FAR[u.itemsize]
    if np.count_nonzero(beyond):
        r = 1.0 / np.square(u[beyond])
        share[beyond] = r * (1.0 - r * (3.0 - r * (15.0 - 105.0 * r)))
    return mills, share


_OF_PATHS: dict[str, Any] = {
    "path": True,
    "least": lambda dtype: least_sigma(dtype) ** 2,
}
_FORMS: dict[type, Callable[[Any], ClosedForm | None]] = {
    ExpectedImprovement: partial(_improvement, log=False),
    LogExpectedImprovement: _improvement,
    AnyScaleLogExpectedImprovement: partial(
        _improvement, least=lambda dtype: torch.finfo(dtype).tiny
    ),
    PathExpectedImprovement: partial(_improvement, log=False, **_OF_PATHS),
    PathLogExpectedImprovement: partial(_improvement, **_OF_PATHS),
    AveragedLogExpectedImprovement: _averaged,
    AveragedLogExpectedHypervolumeImprovement: _of_moments,
    AveragedLogProbabilityOfFeasibility: _of_moments,
    PriorGuidedAcquisitionFunction: _guided,
    CostPrior: _of_moments,
    FeasibilityPrior: _of_moments,
    InteriorPrior: lambda prior: ClosedForm([Source(prior)], lambda found: found[0]),
}
