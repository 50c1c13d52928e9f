"""Moments of a model's points one by one, on the scale of its outcomes."""

from __future__ import annotations

__all__ = [
    "ColumnScales",
    "is_mean_of_paths",
    "outcome_scale_at_hand",
    "point_moments",
    "point_posterior",
]

from typing import Any

import numpy as np
import torch
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputTransform,
    Log10,
    Normalize,
)
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Standardize
from botorch.posteriors import GPyTorchPosterior
from botorch.settings import propagate_grads
from gpytorch import settings
from gpytorch.means import ConstantMean
from linear_operator.operators import DenseLinearOperator
from torch import Tensor

from botorch_structured._botorch_names import functorch_is_active
from botorch_structured.models.outcome_scale import ScaledNormal
from botorch_structured.models.tree.moments import (
    Array,
    LeafMoments,
    PointMoments,
    differentiable_moments,
)
from botorch_structured.models.tree.tree_structured_kernel import PathMean
from botorch_structured.transforms import ClipTail


class ColumnScales:
    """An input transform of single columns: x or log10 x, times a factor, plus another.

    Args:
        width: The number of columns.
    """

    def __init__(self, width: int) -> None:
        # the last place is of all columns behind them, such as codes of categories
        self.log = np.zeros(width + 1, dtype=bool)
        self.factor, self.shift = np.ones(width + 1), np.zeros(width + 1)

    @classmethod
    def of(cls, transform: InputTransform | None, width: int) -> ColumnScales | None:
        """What a transform does in evaluation mode; None where it is of another kind.

        Args:
            transform: ``Normalize``, ``Log10``, both of them, or None.
            width: The number of columns.
        """
        part: Any = transform
        parts = [] if part is None else [part]
        if isinstance(part, ChainedInputTransform):
            parts = [*part.values()]
        scales = cls(width)
        return scales if all(map(scales._add, parts)) else None

    def _add(self, part: Any) -> bool:
        """Apply a part after the others, if its kind is known."""
        if part.reverse or type(part) not in (Normalize, Log10):
            return False
        if not part.transform_on_eval:
            return True
        indices = getattr(part, "indices", None)
        at = np.arange(len(self.log) - 1) if indices is None else indices.numpy()
        if isinstance(part, Log10):
            fresh = ~self.log[at] & (self.factor[at] == 1.0) & (self.shift[at] == 0.0)
            self.log[at] = True
            return bool(fresh.all())
        factor, offset = 1.0 / part.coefficient, part.offset
        if factor.numel() != factor.shape[-1]:
            return False
        factor, offset = factor.flatten().numpy(), offset.flatten().numpy()
        self.factor[at] *= factor
        self.shift[at] = (self.shift[at] - offset) * factor
        return True

    def at(self, x: Array, columns: Array) -> tuple[Array, Array]:
        """Transformed values and their derivatives.

        Args:
            x: ``n x w x k`` values.
            columns: ``n x k``, which columns they are of.
        """
        at = np.minimum(columns, len(self.log) - 1)[:, None]
        log, rate, shift = self.log[at], self.factor[at], self.shift[at]
        if not log.any():
            return x * rate + shift, rate
        safe = np.where(log, x, 1.0)
        x = np.where(log, np.log10(safe), x)
        slope = rate / np.where(log, safe * np.log(10.0), 1.0)
        return x * rate + shift, slope


def is_mean_of_paths(mean: Any) -> bool:
    """Whether a prior mean is known to be constant on a path."""
    return type(mean) in (ConstantMean, PathMean)


def outcome_scale_at_hand(model: Any, X: Tensor) -> tuple[float, float] | None:
    """The scale and shift of outcomes of a model, which is in evaluation mode then.

    None where outcomes have another scale.
    """
    parts = _linear_parts(model, X)
    return None if parts is None else _scale_and_shift(parts)


def _linear_parts(model: Any, X: Tensor) -> list[Any] | None:
    """What untransforms outcomes, one ``Standardize`` at most; None for others."""
    outcome, targets = getattr(model, "outcome_transform", None), model.train_targets
    parts = [] if outcome is None else [outcome]
    if isinstance(outcome, ChainedOutcomeTransform):
        # predictions stay on the scale of a clipped tail
        parts = [part for part in outcome.values() if not isinstance(part, ClipTail)]
    linear = len(parts) <= 1 and all(isinstance(part, Standardize) for part in parts)
    same = X.dtype == targets.dtype and X.device == targets.device
    if not (same and len(X) > 0 and linear):
        return None
    if model.training:
        model.eval()
    return parts


def _scale_and_shift(parts: list[Any]) -> tuple[float, float]:
    return (parts[0].stdvs.item(), parts[0].means.item()) if parts else (1.0, 0.0)


def _at_hand(
    model: Any, X: Tensor, check: bool = True
) -> tuple[LeafMoments, float, float] | None:
    """Moments of transformed inputs and outcomes, and the scale and shift of these.

    None where moments have no closed form, or the outcomes another scale.
    """
    parts = _linear_parts(model, X)
    moments = None if parts is None else model._moments()
    if parts is None or moments is None:
        return None
    if check:
        model._check_points(X)
    return moments, *_scale_and_shift(parts)


def point_moments(
    model: Any, X: Tensor, gradient: bool, path: bool
) -> PointMoments | None:
    """See ``LeafModel.point_moments``."""
    scales = ColumnScales.of(getattr(model, "input_transform", None), X.shape[-1])
    found_at = None if scales is None else _at_hand(model, X)
    if scales is None or found_at is None:
        return None
    moments, scale, shift = found_at
    at = X = X.detach()
    with torch.enable_grad():
        if not is_mean_of_paths(model.mean_module):
            at = model.transform_inputs(X.requires_grad_(gradient))
        prior = model.mean_module(at)
    found = moments(X, gradient, path, scales.at)
    floor = settings.min_variance.value(X.dtype)
    mean = (found.mean + prior.detach()).mul_(scale).add_(shift)
    variance = found.variance.clamp_min(floor) * scale**2
    if found.mean_gradient is None or found.variance_gradient is None:
        return PointMoments(mean, variance)
    slopes = [found.mean_gradient * scale, found.variance_gradient * scale**2]
    if X.requires_grad:
        (rise,) = torch.autograd.grad(prior.sum(), X, allow_unused=True)
        slopes[0] = slopes[0] if rise is None else slopes[0] + scale * rise
    slopes[1] *= (found.variance > floor).unsqueeze(-1)
    return PointMoments(mean, variance, *slopes)


def point_posterior(model: Any, X: Tensor) -> GPyTorchPosterior | None:
    """See ``FastSingleTaskGP._point_posterior``.

    BoTorch's general steps around the moments take as long as the moments of one point.
    """
    alone = X.shape[-2] == 1 and X.numel() and propagate_grads.off()
    if not alone or functorch_is_active():
        return None
    if (found := _at_hand(model, X.flatten(0, -2), check=False)) is None:
        return None
    moments, scale, shift = found
    at = model.transform_inputs(X)
    if at.shape[-2] != 1:
        return None
    shape, flat = at.shape[:-1], at.reshape(-1, at.shape[-1])
    mean, variance = differentiable_moments(flat, moments)
    mean = (mean + model.mean_module(flat)) * scale + shift
    floor, square = settings.min_variance.value(X.dtype), scale**2
    covariance = DenseLinearOperator((variance * square).view(*shape, 1))
    normal = ScaledNormal(mean.view(shape), covariance)
    normal.least = floor * square
    return GPyTorchPosterior(normal)
