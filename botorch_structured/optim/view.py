r"""Acquisition functions on the paths that a search is on, without autograd.

With posterior mean m and standard deviation s, u = (m - f) / s and
h(u) = phi(u) + u Phi(u),

    log EI = log h + log s,     d log EI = (Phi / h) dm / s + (phi / h) ds / s,
    EI = s h,                   d EI = Phi dm + phi ds.

A search asks `view_on` once for the paths that it is on. What it gets evaluates arrays:
models have put the tables of these paths side by side, with the scales of columns and
outcomes, and nothing is checked or looked up again. The functions named below have a
view, exactly as BoTorch defines them, where the models know the gradients of their
moments; others are climbed by autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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
from botorch_structured.acquisition.improvement import LEAST_VARIANCE
from botorch_structured.acquisition.mixtures import (
    AnyScaleLogExpectedImprovement,
    Array,
    positive,
)

#: Points ``n x d``, the number of the row whose path each is on, ``n``, and whether
#: gradients are wanted, to ``n`` values and ``n x d`` gradients (or None).
View = Callable[[Array, Array, bool], tuple[Array, Array | None]]


def view_on(function: Any, rows: Tensor) -> View | None:
    """How an acquisition function or a prior is evaluated on some paths.

    Args:
        function: The function. A subclass of those below is another function.
        rows: ``m x d`` points, one on each path.

    Returns:
        None where autograd is needed: for other functions, for models without moments
        of points one by one, and on a GPU.
    """
    make = _VIEWS.get(type(function))
    if make is None or rows.device.type != "cpu":
        return None
    return make(function, rows.detach())


def _averaged(acqf: AveragedLogExpectedImprovement, rows: Tensor) -> View | None:
    """A mixture: slopes are averaged by each part's share of the value."""
    parts = []
    for part in acqf.parts:
        view = view_on(part, rows)
        if view is None:
            return None
        parts.append(view)
    log_weights = acqf.log_weights.numpy()

    def evaluate(X: Array, row: Array, gradient: bool) -> tuple[Array, Array | None]:
        weights = log_weights.astype(X.dtype)
        weighted = np.empty((len(parts), len(X)), X.dtype)
        slopes = []
        for k, part in enumerate(parts):
            value, slope = part(X, row, gradient)
            weighted[k] = value + weights[k]
            slopes.append(slope)
        value = np.logaddexp.reduce(weighted)
        if not gradient:
            return value, None
        with np.errstate(invalid="ignore"):  # all may be -inf
            shares = np.exp(weighted - value)
        slope = np.zeros_like(X)
        for k, part_slope in enumerate(slopes):
            slope += shares[k, :, None] * part_slope
        return value, slope

    return evaluate


def _guided(acqf: Any, rows: Tensor) -> View | None:
    """The log of an acquisition function plus a multiple of a log density."""
    if not acqf._log or acqf.X_pending is not None:
        return None
    value_on = view_on(acqf.acq_func, rows)
    density_on = view_on(acqf.prior_module, rows)
    if value_on is None or density_on is None:
        return None
    exponent = acqf._prior_exponent

    def evaluate(X: Array, row: Array, gradient: bool) -> tuple[Array, Array | None]:
        value, slope = value_on(X, row, gradient)
        log_density, density_slope = density_on(X, row, gradient)
        value = value + exponent * log_density
        if slope is None or density_slope is None:
            return value, None
        return value, slope + exponent * density_slope

    return evaluate


def _interior(prior: InteriorPrior, rows: Tensor) -> View:
    """The numeric columns that are active on each path."""
    counts = (prior.tree.active_mask(rows) & prior.numeric).numpy()
    lower = prior.lower.numpy()
    width = prior.width.numpy()

    def evaluate(X: Array, row: Array, gradient: bool) -> tuple[Array, Array | None]:
        # In one dimension: several times as fast where few columns are active.
        point, column = counts[row].nonzero()
        span = width[column]
        u = np.clip((X[point, column] - lower[column]) / span, 0.0, 1.0)
        density = 4.0 * u * (1.0 - u) + prior.floor
        value = np.bincount(point, np.log(density), len(X)).astype(X.dtype)
        if not gradient:
            return value, None
        slope = np.zeros_like(X)
        slope[point, column] = (4.0 - 8.0 * u) / (density * span)
        return value, slope

    return evaluate


def _of_moments(function: Any, rows: Tensor) -> View | None:
    """A function of the moments of mixtures (``acquisition.mixtures``), by chain rule.

    Its own derivatives are found by autograd, those of the moments are known.
    """
    models = []
    for model in function.outcomes.models:
        moments_on = getattr(model, "moments_on", None)
        moments_at = moments_on and moments_on(rows)
        if moments_at is None:
            return None
        models.append(moments_at)

    def evaluate(X: Array, row: Array, gradient: bool) -> tuple[Array, Array | None]:
        moments = [model(X, row, gradient) for model in models]
        mean = torch.from_numpy(np.stack([m.mean for m in moments], axis=-1))
        variance = torch.from_numpy(np.stack([m.variance for m in moments], axis=-1))
        variance = positive(variance)
        with torch.set_grad_enabled(gradient):
            mean.requires_grad_(gradient)
            variance.requires_grad_(gradient)
            value = function.of_moments(mean, variance)
        if not gradient:
            return value.numpy(), None
        by_mean, by_variance = torch.autograd.grad(value.sum(), (mean, variance))
        slope = np.zeros_like(X)
        for k, m in enumerate(moments):
            slope += m.pull(by_mean[:, k].numpy(), by_variance[:, k].numpy())
        return value.detach().numpy(), slope

    return evaluate


def _improvement(acqf: Any, rows: Tensor) -> View | None:
    """Expected improvement."""
    if acqf.posterior_transform is not None or acqf.best_f.numel() != 1:
        return None
    path = isinstance(acqf, PathExpectedImprovement | PathLogExpectedImprovement)
    moments_on = getattr(acqf.model, "moments_on", None)
    moments_at = moments_on and moments_on(rows, path)
    if moments_at is None:
        return None
    best = acqf.best_f.item()
    sign = 1.0 if acqf.maximize else -1.0
    log = acqf._log
    least = 1e-12  # BoTorch's
    if path:
        least = LEAST_VARIANCE
    elif isinstance(acqf, AnyScaleLogExpectedImprovement):
        least = torch.finfo(rows.dtype).tiny

    def evaluate(X: Array, row: Array, gradient: bool) -> tuple[Array, Array | None]:
        mean, variance, pull = moments_at(X, row, gradient)
        value, of_mean, of_variance = _value_and_slopes(
            mean, variance, best, sign, log, least
        )
        return value, pull(of_mean, of_variance) if gradient else None

    return evaluate


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
        if log:
            value = np.log(h)
            of_mean = Phi / h
            of_sigma = phi / h
            far = u < -1.0
            if far.any():  # h loses digits
                v = u[far]
                mills, share = _tail(v)
                value[far] = np.log(share) - 0.5 * (v * v + math.log(2.0 * math.pi))
                of_mean[far] = mills / share
                of_sigma[far] = 1.0 / share
            value += np.log(sigma)
            of_mean /= sigma
            of_sigma /= sigma
        else:
            value = sigma * h
            of_mean = Phi
            of_sigma = phi
        of_sigma = of_sigma * (variance > least) / (2.0 * sigma)
    return value, sign * of_mean, of_sigma


def _tail(u: Array) -> tuple[Array, Array]:
    """Phi / phi and h / phi, for ``u`` of -1 or less."""
    mills = special.erfcx(u * -math.sqrt(0.5)) * math.sqrt(0.5 * math.pi)
    share = 1.0 + u * mills
    # Below it this difference loses digits, and its expansion in 1 / u^2 has them all.
    beyond = u <= (-1e2 if u.itemsize == 8 else -1e1)
    if beyond.any():
        r = 1.0 / np.square(u[beyond])
        share[beyond] = r * (1.0 - r * (3.0 - r * (15.0 - 105.0 * r)))
    return mills, share


_VIEWS: dict[type, Callable[[Any, Tensor], View | None]] = {
    ExpectedImprovement: _improvement,
    LogExpectedImprovement: _improvement,
    AnyScaleLogExpectedImprovement: _improvement,
    PathExpectedImprovement: _improvement,
    PathLogExpectedImprovement: _improvement,
    AveragedLogExpectedImprovement: _averaged,
    AveragedLogExpectedHypervolumeImprovement: _of_moments,
    AveragedLogProbabilityOfFeasibility: _of_moments,
    PriorGuidedAcquisitionFunction: _guided,
    CostPrior: _of_moments,
    FeasibilityPrior: _of_moments,
    InteriorPrior: _interior,
}
