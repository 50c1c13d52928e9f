r"""Expected improvement and its gradient without autograd.

With posterior mean m and standard deviation s, u = (m - f) / s and
h(u) = phi(u) + u Phi(u),

    log EI = log h + log s,     d log EI = (Phi / h) dm / s + (phi / h) ds / s,
    EI = s h,                   d EI = Phi dm + phi ds.

The graph of a posterior takes several times as long to build and to run as these
formulas. They are used for the acquisition functions named below, exactly as BoTorch
defines them, where the model knows the gradients of its moments.
"""

from __future__ import annotations

__all__ = ["closed_form", "near"]

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    ExpectedImprovement,
    LogExpectedImprovement,
    PriorGuidedAcquisitionFunction,
)
from scipy import special
from torch import Tensor

from botorch_structured.acquisition.averaged_expected_improvement import (
    AnyScaleLogExpectedImprovement,
    AveragedLogExpectedImprovement,
)
from botorch_structured.acquisition.averaged_hypervolume_improvement import (
    AveragedLogExpectedHypervolumeImprovement,
)
from botorch_structured.acquisition.cost_prior import CostPrior
from botorch_structured.acquisition.feasibility import (
    AveragedLogProbabilityOfFeasibility,
    FeasibilityPrior,
)
from botorch_structured.acquisition.interior_prior import InteriorPrior
from botorch_structured.acquisition.mixtures import Array, Near
from botorch_structured.acquisition.path_expected_improvement import (
    PathExpectedImprovement,
    PathLogExpectedImprovement,
    least_sigma,
)

# Type to whether it is a logarithm, and whether it is that of a path.
_KINDS: dict[type, tuple[bool, bool]] = {
    ExpectedImprovement: (False, False),
    LogExpectedImprovement: (True, False),
    AnyScaleLogExpectedImprovement: (True, False),
    PathExpectedImprovement: (False, True),
    PathLogExpectedImprovement: (True, True),
}
# The smallest variance of BoTorch's analytic acquisition functions.
_MIN_VARIANCE = 1e-12
# Below it h / phi = 1 - |u| Phi / phi loses digits, and its expansion in 1 / u^2 has
# all of them.
_FAR = {torch.float64: -1e2, torch.float32: -1e1}
_DTYPES = {np.dtype(np.float64): torch.float64, np.dtype(np.float32): torch.float32}


def closed_form(
    acq_function: AcquisitionFunction, X: Tensor, gradient: bool
) -> tuple[Tensor, Tensor | None] | None:
    """Values and gradients of an acquisition function; None where they need autograd.

    Args:
        acq_function: Any one; a subclass of those above is another one.
        X: ``n x d``, each a candidate of its own.
        gradient: Whether gradients are wanted.

    Returns:
        ``n`` values and ``n x d`` gradients, or None in their place.
    """
    combined = _COMBINED.get(type(acq_function))
    if combined is not None:
        return combined(acq_function, X, gradient)
    kind = _KINDS.get(type(acq_function))
    moments_of = getattr(getattr(acq_function, "model", None), "point_moments", None)
    if kind is None or moments_of is None:
        return None
    acqf: Any = acq_function
    if not _is_plain(acqf):
        return None
    log, path = kind
    moments = moments_of(X, gradient, path)
    if moments is None or X.device.type != "cpu":
        return None
    # a call of NumPy costs less than one of torch, which counts for arrays of this size
    mean, variance = moments.mean.numpy(), moments.variance.numpy()
    kind_of = _read(acqf, log, path, mean.dtype)
    value, of_mean, of_variance = _improvement(kind_of, mean, variance)
    if not gradient:
        return torch.from_numpy(value), None
    slope = of_mean[:, None] * moments.mean_gradient.numpy()
    slope += of_variance[:, None] * moments.variance_gradient.numpy()
    return torch.from_numpy(value), torch.from_numpy(slope)


def _is_plain(acqf: Any) -> bool:
    return acqf.posterior_transform is None and acqf.best_f.numel() == 1


class _Improvement(NamedTuple):
    """What an acquisition function says of any point.

    Attributes:
        log: Whether it is a logarithm.
        best: f.
        sign: -1 where smaller is better.
        least: The smallest variance.
        far: See ``_FAR``.
    """

    log: bool
    best: float
    sign: float
    least: float
    far: float


def _read(acqf: Any, log: bool, path: bool, precision: np.dtype[Any]) -> _Improvement:
    dtype = _DTYPES[precision]
    least = least_sigma(dtype) ** 2 if path else _MIN_VARIANCE
    if type(acqf) is AnyScaleLogExpectedImprovement:
        least = torch.finfo(dtype).tiny
    sign = 1.0 if acqf.maximize else -1.0
    return _Improvement(log, acqf.best_f.item(), sign, least, _FAR[dtype])


def _improvement(
    of: _Improvement, mean: Array, variance: Array
) -> tuple[Array, Array, Array]:
    """Values, and their derivatives by means and by variances."""
    log, best, sign, least, expansion = of
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
                mills, share = _tail(v, expansion)
                value[far] = np.log(share) - 0.5 * (v * v + math.log(2.0 * math.pi))
                of_mean[far] = mills / share
                of_sigma[far] = 1.0 / share
            value += np.log(sigma)
            of_mean /= sigma
            of_sigma /= sigma
        of_sigma = of_sigma * (variance > least) / (2.0 * sigma)
    return value, of_mean if sign == 1.0 else sign * of_mean, of_sigma


def near(acq_function: AcquisitionFunction, X: Tensor, columns: Array) -> Near | None:
    """The same at rows of which only some columns change; None where it has no form.

    For climbs, in which no row leaves its path: what does not depend on the columns is
    looked up once.

    Args:
        acq_function: Any one.
        X: ``S x d``.
        columns: ``S x k`` columns of each row; no decisions.

    Returns:
        A function of values of these columns, ``n x w x k``, and of the numbers of the
        ``n`` rows whose columns they are. It has values, ``n x w``, and gradients,
        ``n x w x k``.
    """
    if X.device.type != "cpu":
        return None
    if type(acq_function) is AveragedLogExpectedImprovement:
        return _average_near(acq_function, X, columns)
    if type(acq_function) is PriorGuidedAcquisitionFunction:
        return _guided_near(acq_function, X, columns)
    acqf: Any = acq_function
    if _COMBINED.get(type(acqf)) is _own:
        own: Near | None = acqf.near(X, columns)
        return own
    kind = _KINDS.get(type(acqf))
    moments_near = getattr(getattr(acqf, "model", None), "moments_near", None)
    if kind is None or moments_near is None or not _is_plain(acqf):
        return None
    log, path = kind
    local = moments_near(X, columns, path)
    if local is None:
        return None
    kind_of: _Improvement | None = None

    def evaluate(x: Array, rows: Array) -> tuple[Array, Array]:
        nonlocal kind_of
        mean, variance, mean_slope, variance_slope = local(x, rows)
        kind_of = kind_of or _read(acqf, log, path, mean.dtype)
        value, of_mean, of_variance = _improvement(kind_of, mean, variance)
        slope = of_mean[..., None] * mean_slope
        slope += of_variance[..., None] * variance_slope
        return value, slope

    return evaluate


def _average_near(acq_function: Any, X: Tensor, columns: Array) -> Near | None:
    parts = [near(part, X, columns) for part in acq_function.parts]
    log_weights = acq_function.log_weights.numpy().astype(X.numpy().dtype)
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None

    def evaluate(x: Array, rows: Array) -> tuple[Array, Array]:
        found = [part(x, rows) for part in known]
        weighted = [v + w for (v, _), w in zip(found, log_weights, strict=True)]
        value = np.logaddexp.reduce(weighted)
        with np.errstate(invalid="ignore"):  # all may be -inf
            shares = np.exp(weighted - value)
        slopes = [s[..., None] * g for s, (_, g) in zip(shares, found, strict=True)]
        return value, np.sum(slopes, axis=0)

    return evaluate


def _guided_near(acq_function: Any, X: Tensor, columns: Array) -> Near | None:
    prior, exponent = acq_function.prior_module, acq_function._prior_exponent
    known = type(prior) in _PRIORS and acq_function._log
    if not known or acq_function.X_pending is not None:
        return None
    inner = near(acq_function.acq_func, X, columns)
    of_prior = None if inner is None else prior.near(X, columns)
    if inner is None or of_prior is None:
        return None

    def evaluate(x: Array, rows: Array) -> tuple[Array, Array]:
        value, slope = inner(x, rows)
        log_density, its_slope = of_prior(x, rows)
        return value + exponent * log_density, slope + exponent * its_slope

    return evaluate


def _averaged(
    acq_function: Any, X: Tensor, gradient: bool
) -> tuple[Tensor, Tensor | None] | None:
    """A mixture: gradients are averaged by each part's share of the value."""
    known = [closed_form(part, X, gradient) for part in acq_function.parts]
    if all(found is None for found in known):
        return None
    values, slopes = [], []
    for part, found in zip(acq_function.parts, known, strict=True):
        value, slope = found or _by_autograd(part, X, gradient)
        values.append(value)
        if slope is not None:
            slopes.append(slope)
    weighted = torch.stack(values, -1) + acq_function.log_weights.to(X)
    value = weighted.logsumexp(-1)
    if not gradient:
        return value, None
    shares = weighted.softmax(-1).unsqueeze(-2)
    return value, (shares @ torch.stack(slopes, -2)).squeeze(-2)


def _by_autograd(
    acq_function: AcquisitionFunction, X: Tensor, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    point = X.detach().unsqueeze(-2).requires_grad_(gradient)
    with torch.set_grad_enabled(gradient):
        value = acq_function(point)
    if not gradient:
        return value, None
    (slope,) = torch.autograd.grad(value.sum(), point)
    return value.detach(), slope.squeeze(-2)


def _guided(
    acq_function: Any, X: Tensor, gradient: bool
) -> tuple[Tensor, Tensor | None] | None:
    """The log of an acquisition function plus a multiple of a log density."""
    prior, exponent = acq_function.prior_module, acq_function._prior_exponent
    known = type(prior) in _PRIORS and acq_function._log
    if not known or acq_function.X_pending is not None:
        return None
    found = closed_form(acq_function.acq_func, X, gradient)
    if found is None:
        return None
    of_prior = prior.value_and_gradient(X, gradient)
    if of_prior is None:
        return None
    value = found[0] + exponent * of_prior[0]
    if found[1] is None or of_prior[1] is None:
        return value, None
    return value, found[1] + exponent * of_prior[1]


def _own(
    acq_function: Any, X: Tensor, gradient: bool
) -> tuple[Tensor, Tensor | None] | None:
    found: tuple[Tensor, Tensor | None] | None
    found = acq_function.value_and_gradient(X, gradient)
    return found


_PRIORS = (CostPrior, FeasibilityPrior, InteriorPrior)
_COMBINED = {
    AveragedLogExpectedHypervolumeImprovement: _own,
    AveragedLogExpectedImprovement: _averaged,
    AveragedLogProbabilityOfFeasibility: _own,
    PriorGuidedAcquisitionFunction: _guided,
}


def _tail(u: Array, far: float) -> tuple[Array, Array]:
    """Phi / phi and h / phi, for ``u`` of -1 or less."""
    mills = special.erfcx(u * -math.sqrt(0.5)) * math.sqrt(0.5 * math.pi)
    share = 1.0 + u * mills
    beyond = u <= far
    if np.count_nonzero(beyond):
        r = 1.0 / np.square(u[beyond])
        share[beyond] = r * (1.0 - r * (3.0 - r * (15.0 - 105.0 * r)))
    return mills, share
