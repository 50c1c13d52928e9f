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

__all__ = ["closed_form"]

import math
from typing import Any

import torch
from botorch.acquisition import (
    AcquisitionFunction,
    ExpectedImprovement,
    LogExpectedImprovement,
)
from torch import Tensor

from botorch_structured._botorch_names import log_ei_helper
from botorch_structured.acquisition.path_expected_improvement import (
    PathExpectedImprovement,
    PathLogExpectedImprovement,
    least_sigma,
)

# Type to whether it is a logarithm, and whether it is that of a path.
_KINDS: dict[type, tuple[bool, bool]] = {
    ExpectedImprovement: (False, False),
    LogExpectedImprovement: (True, False),
    PathExpectedImprovement: (False, True),
    PathLogExpectedImprovement: (True, True),
}
# The smallest variance of BoTorch's analytic acquisition functions.
_MIN_VARIANCE = 1e-12
# Below it 1 - |u| Phi / phi loses digits, and its expansion in 1 / u^2 has all of them.
_FAR = {torch.float64: -1e2, torch.float32: -1e1}


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
    kind = _KINDS.get(type(acq_function))
    moments_of = getattr(getattr(acq_function, "model", None), "point_moments", None)
    if kind is None or moments_of is None:
        return None
    acqf: Any = acq_function
    if acqf.posterior_transform is not None or acqf.best_f.numel() != 1:
        return None
    log, path = kind
    moments = moments_of(X, gradient, path)
    if moments is None:
        return None
    with torch.no_grad():
        least = least_sigma(X.dtype) ** 2 if path else _MIN_VARIANCE
        sigma = moments.variance.clamp_min(least).sqrt()
        sign = 1.0 if acqf.maximize else -1.0
        u = sign * (moments.mean - acqf.best_f.to(X)) / sigma
        phi, Phi, h = _improvement(u)
        value = log_ei_helper(u) + sigma.log() if log else sigma * h
        if not gradient:
            return value, None
        of_mean, of_sigma = sign * Phi, phi
        if log:
            far = u < -1.0
            if far.any():
                of_mean, of_sigma = _ratios(u, phi, Phi, h, far)
                of_mean = sign * of_mean
            else:
                of_mean, of_sigma = of_mean / h, phi / h
            of_mean, of_sigma = of_mean / sigma, of_sigma / sigma
        of_variance = 0.5 * of_sigma / sigma * (moments.variance > least)
        slopes = of_mean.unsqueeze(-1) * moments.mean_gradient
        return value, slopes.addcmul_(
            of_variance.unsqueeze(-1), moments.variance_gradient
        )


def _improvement(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """phi, Phi and h."""
    phi = torch.exp(-0.5 * u.square()) * (1.0 / math.sqrt(2.0 * math.pi))
    Phi = torch.special.ndtr(u)
    return phi, Phi, phi + u * Phi


def _ratios(
    u: Tensor, phi: Tensor, Phi: Tensor, h: Tensor, far: Tensor
) -> tuple[Tensor, Tensor]:
    """Phi / h and phi / h, where u is far below zero without h itself."""
    low = torch.where(far, u, -1.0)
    # Phi / phi
    mills = math.sqrt(0.5 * math.pi) * torch.special.erfcx(low * -math.sqrt(0.5))
    r = low.square().reciprocal()
    tail = r * (1.0 - r * (3.0 - r * (15.0 - 105.0 * r)))
    share = torch.where(low > _FAR[u.dtype], 1.0 + low * mills, tail)
    return (
        torch.where(far, mills / share, Phi / h),
        torch.where(far, 1.0 / share, phi / h),
    )
