"""Moments of a model's points one by one, on the scale of its outcomes."""

from __future__ import annotations

__all__ = [
    "MEANS_OF_PATHS",
    "ColumnScales",
    "MomentsNear",
    "moments_near",
    "point_moments",
]

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputTransform,
    Log10,
    Normalize,
)
from botorch.models.transforms.outcome import (
    ChainedOutcomeTransform,
    OutcomeTransform,
    Standardize,
)
from gpytorch import settings
from gpytorch.means import ConstantMean
from torch import Tensor

from botorch_structured.models.outcome_scale import AnyScaleStandardize
from botorch_structured.models.tree.moments import (
    Array,
    LeafMoments,
    PointMoments,
)
from botorch_structured.models.tree.old_studies import OldStudiesMean
from botorch_structured.models.tree.path_mean import PathMean
from botorch_structured.transforms import ClipTail

#: Means and variances, ``n x w``, and their gradients, ``n x w x k``, as a function of
#: values of columns, ``n x w x k``, and of the numbers of the ``n`` rows.
MomentsNear = Callable[[Array, Array], tuple[Array, Array, Array, Array]]

# Outcome transforms by which moments of one outcome are scaled and shifted.
_LINEAR_IN_ONE_OUTCOME = (type(None), Standardize, AnyScaleStandardize)
#: Prior means that are constant on a path.
MEANS_OF_PATHS = (ConstantMean, PathMean)


class ColumnScales:
    """An input transform of single columns: x or log10 x, times a factor, plus another.

    Args:
        width: The number of columns.
    """

    def __init__(self, width: int) -> None:
        self.log = np.zeros(width, dtype=bool)
        self.factor, self.shift = np.ones(width), np.zeros(width)

    @classmethod
    def of(cls, transform: InputTransform | None, width: int) -> ColumnScales | None:
        """What a transform does in evaluation mode; None where it is of another kind.

        Args:
            transform: ``Normalize``, ``Log10``, both of them, or None.
            width: The number of columns.
        """
        part: Any = transform
        parts = [] if part is None else [part]
        if type(part) is ChainedInputTransform:
            parts = [*part.values()]
        scales = cls(width)
        return scales if all(map(scales._add, parts)) else None

    def _add(self, part: Any) -> bool:
        """Apply a part after the others, if its kind is known."""
        if type(part) not in (Normalize, Log10) or part.reverse:
            return False
        if not part.transform_on_eval:
            return True
        indices = getattr(part, "indices", None)
        at = slice(None) if indices is None else indices.numpy()
        if type(part) is Log10:
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

    def at(self, columns: Array) -> Callable[[Array, Array], tuple[Array, Array]]:
        """The transform and its derivative as a function of values and rows.

        Args:
            columns: ``S x k``. The function takes ``n x w x k`` values of the columns
                of ``n`` of these rows.
        """
        log, factor, shift = (
            part[columns][:, None] for part in (self.log, self.factor, self.shift)
        )
        logs = bool(log.any())

        def transformed(x: Array, rows: Array) -> tuple[Array, Array]:
            rate = factor[rows]
            if not logs:
                return x * rate + shift[rows], rate
            mine = log[rows]
            safe = np.where(mine, x, 1.0)
            x = np.where(mine, np.log10(safe), x)
            slope = rate / np.where(mine, safe * np.log(10.0), 1.0)
            return x * rate + shift[rows], slope

        return transformed


def outcome_scaling(
    outcome: OutcomeTransform | None,
) -> tuple[bool, OutcomeTransform | None]:
    """Whether moments are only scaled and shifted back, and what does it (or None)."""
    if outcome is None or type(outcome) is not ChainedOutcomeTransform:
        return type(outcome) in _LINEAR_IN_ONE_OUTCOME, outcome
    # predictions stay on the scale of a clipped tail
    parts = [part for part in outcome.values() if type(part) is not ClipTail]
    known = len(parts) <= 1 and all(type(p) in _LINEAR_IN_ONE_OUTCOME for p in parts)
    return known, parts[0] if known and parts else None


def _at_hand(
    model: Any, X: Tensor, means: tuple[type, ...]
) -> tuple[LeafMoments, float, float] | None:
    """Moments of transformed inputs and outcomes, and the scale and shift of these.

    The shift includes a constant prior mean. None where moments have no closed form.
    """
    targets = model.train_targets
    linear, outcome = outcome_scaling(getattr(model, "outcome_transform", None))
    known = (
        X.dtype == targets.dtype
        and X.device == targets.device
        and len(X) > 0
        and type(model.mean_module) in means
        and linear
    )
    if not known:
        return None
    model.eval()
    moments = model._moments() if model._use_predictor() else None
    if moments is None:
        return None
    model._check_points(X)
    scale, shift = 1.0, 0.0
    if outcome is not None:
        scale, shift = outcome.stdvs.item(), outcome.means.item()
    if type(model.mean_module) is ConstantMean:
        shift += scale * model.mean_module.constant.item()
    return moments, scale, shift


def point_moments(
    model: Any, X: Tensor, gradient: bool, path: bool
) -> PointMoments | None:
    """See ``LeafModel.point_moments``."""
    found_at = _at_hand(model, X, (*MEANS_OF_PATHS, OldStudiesMean))
    if found_at is None:
        return None
    moments, scale, shift = found_at
    point = X.detach().requires_grad_(gradient and hasattr(model, "input_transform"))
    with torch.enable_grad():
        transformed = model.transform_inputs(point)
    chained = point.requires_grad
    if len(transformed) != len(X) or transformed.requires_grad != chained:
        return None
    rises = gradient and type(model.mean_module) is OldStudiesMean
    at = transformed.detach().requires_grad_(rises)
    with torch.no_grad():
        found = moments(transformed.detach(), gradient, path)
        mean, variance = found.mean, found.variance
        if type(model.mean_module) is not ConstantMean:
            with torch.set_grad_enabled(rises):
                prior = model.mean_module(at)
            mean = mean + prior.detach()
        floor = settings.min_variance.value(X.dtype)
        above = variance > floor
        mean = mean.mul(scale).add_(shift)
        variance = variance.clamp_min(floor).mul_(scale**2)
    if found.mean_gradient is None or found.variance_gradient is None:
        return PointMoments(mean, variance)
    slopes = [found.mean_gradient * scale, found.variance_gradient * scale**2]
    if rises:
        slopes[0] = slopes[0] + scale * torch.autograd.grad(prior.sum(), at)[0]
    if not above.all():
        slopes[1] *= above.unsqueeze(-1)
    if chained:
        slopes = [
            torch.autograd.grad(transformed, point, slope, retain_graph=True)[0]
            for slope in slopes
        ]
    return PointMoments(mean, variance, *slopes)


def moments_near(
    model: Any, X: Tensor, columns: Array, path: bool
) -> MomentsNear | None:
    """See ``LeafModel.moments_near``."""
    scales = ColumnScales.of(getattr(model, "input_transform", None), X.shape[-1])
    found = None if scales is None else _at_hand(model, X, MEANS_OF_PATHS)
    if scales is None or found is None:
        return None
    moments, scale, shift = found
    with torch.no_grad():
        at = model.transform_inputs(X.detach())
        local = moments.near(at, columns, path)
        prior: Any = 0.0
        if type(model.mean_module) is not ConstantMean:  # constant on each path
            prior = model.mean_module(at).numpy()[:, None]
    if local is None:
        return None
    transformed = scales.at(columns)
    floor, square = settings.min_variance.value(X.dtype), scale**2
    shifts = np.broadcast_to(scale * prior + shift, (len(X), 1))

    def near(x: Array, rows: Array) -> tuple[Array, Array, Array, Array]:
        x, rate = transformed(x, rows)
        mean, variance, of_mean, of_variance = local(x, rows)
        mean = mean * scale
        mean += shifts[rows]
        above = variance > floor
        if np.count_nonzero(above) < above.size:
            variance = np.maximum(variance, floor)
            of_variance = of_variance * above[..., None]
        return (
            mean,
            variance * square,
            of_mean * (rate * scale),
            of_variance * (rate * square),
        )

    return near
