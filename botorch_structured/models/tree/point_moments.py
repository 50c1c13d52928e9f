"""Moments of a model's points one by one, on the scale of its outcomes."""

from __future__ import annotations

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
from botorch_structured.kernels.tree_structured_kernel import PathMean
from botorch_structured.models.outcome_scale import ScaledNormal
from botorch_structured.models.tree.moments import (
    Array,
    ColumnScales,
    LeafMoments,
    MomentsOnPaths,
    PointMoments,
    differentiable_moments,
)
from botorch_structured.transforms import ClipTail


def column_scales(transform: InputTransform | None, width: int) -> ColumnScales | None:
    """A transform in evaluation mode as one of single columns; None for other kinds.

    Args:
        transform: ``Normalize``, ``Log10``, a chain of both, or None.
        width: The number of columns.
    """
    parts: list[Any] = [] if transform is None else [transform]
    if isinstance(transform, ChainedInputTransform):
        parts = [*transform.values()]
    # The last place stands for all columns behind, such as codes of categories.
    log = np.zeros(width + 1, dtype=bool)
    factor = np.ones(width + 1)
    shift = np.zeros(width + 1)
    for part in parts:
        if type(part) not in (Normalize, Log10) or part.reverse:
            return None
        if not part.transform_on_eval:
            continue
        indices = getattr(part, "indices", None)
        at = np.arange(width) if indices is None else indices.numpy()
        if isinstance(part, Log10):
            if log[at].any() or (factor[at] != 1.0).any() or shift[at].any():
                return None
            log[at] = True
            continue
        coefficient = part.coefficient
        if coefficient.numel() != coefficient.shape[-1]:
            return None
        rate = 1.0 / coefficient.flatten().numpy()
        factor[at] *= rate
        shift[at] = (shift[at] - part.offset.flatten().numpy()) * rate
    return ColumnScales(log, factor, shift)


_CPU = torch.device("cpu")


def is_mean_of_paths(mean: Any) -> bool:
    """Whether a prior mean is known to be constant on a path."""
    return type(mean) in (ConstantMean, PathMean)


def outcome_scale(model: Any, X: Tensor) -> tuple[float, float] | None:
    """Scale and shift of the outcomes of a model, which is in evaluation mode then.

    None where outcomes have another transform or ``X`` another precision than the
    model, and on a device that the host would wait for.
    """
    transform = getattr(model, "outcome_transform", None)
    targets = model.train_targets
    parts = [] if transform is None else [transform]
    if isinstance(transform, ChainedOutcomeTransform):
        # predictions stay on the scale of a clipped tail
        parts = [part for part in transform.values() if not isinstance(part, ClipTail)]
    linear = len(parts) <= 1 and all(isinstance(part, Standardize) for part in parts)
    if not linear or X.dtype != targets.dtype or {X.device, targets.device} != {_CPU}:
        return None
    if model.training:
        model.eval()
    if not parts:
        return 1.0, 0.0
    return parts[0].stdvs.item(), parts[0].means.item()


class ModelMoments:
    """Moments of a model's points on some paths, on the scale of its outcomes.

    Args:
        model: The model.
        moments: Those of transformed outcomes.
        rows: ``m x d`` points, one on each path.
        path: Whether the part of the weights alone is wanted.
        scales: The input transform.
        scale: The scale of the outcomes.
        shift: Their shift.
    """

    def __init__(
        self,
        model: Any,
        moments: LeafMoments,
        rows: Tensor,
        path: bool,
        scales: ColumnScales,
        scale: float,
        shift: float,
    ) -> None:
        self._moments = MomentsOnPaths(moments, rows, path, scales)
        self._model = model
        self._scale = scale
        self._shift = shift
        self._floor = settings.min_variance.value(rows.dtype)
        self._prior: Array | None = None
        if is_mean_of_paths(model.mean_module):
            with torch.no_grad():
                self._prior = model.mean_module(rows).expand(len(rows)).numpy()

    def __call__(
        self,
        X: Array,
        row: Array,
        gradient: bool,
    ) -> PointMoments:
        """Moments of points.

        Args:
            X: ``n x d``, not transformed.
            row: For each point, the number of the row whose path it is on, ``n``.
            gradient: Whether gradients are wanted, by ``X``.
        """
        mean, variance, back = self._moments(X, row, gradient)
        slope: Any = 0.0
        if self._prior is not None:
            prior = self._prior[row]
        else:
            prior, slope = self._prior_mean(X, gradient)
        scale = self._scale
        floor = self._floor
        at_scale = (mean + prior) * scale + self._shift
        limited = np.maximum(variance, floor) * scale**2
        if back is None:
            return PointMoments(at_scale, limited)

        def pull(of_mean: Array, of_variance: Array) -> Array:
            of_mean = of_mean * scale
            of_variance = of_variance * np.where(variance > floor, scale**2, 0.0)
            out = back(of_mean, of_variance.astype(X.dtype, copy=False))
            return out if self._prior is not None else out + of_mean[:, None] * slope

        return PointMoments(at_scale, limited, pull)

    def _prior_mean(
        self,
        X: Array,
        gradient: bool,
    ) -> tuple[Array, Any]:
        """Prior means that are not constant on a path, and their gradients."""
        points = torch.from_numpy(X).requires_grad_(gradient)
        with torch.set_grad_enabled(gradient):
            prior = self._model.mean_module(self._model.transform_inputs(points))
            if not prior.requires_grad:
                return prior.numpy(), 0.0
            (slope,) = torch.autograd.grad(prior.sum(), points, allow_unused=True)
        return prior.detach().numpy(), 0.0 if slope is None else slope.numpy()


def moments_on(
    model: Any,
    rows: Tensor,
    path: bool,
) -> ModelMoments | None:
    """See ``LeafModel.moments_on``."""
    scales = column_scales(getattr(model, "input_transform", None), rows.shape[-1])
    outcome = outcome_scale(model, rows)
    if scales is None or outcome is None:
        return None
    moments = model._moments()
    if moments is None:
        return None
    return ModelMoments(
        model,
        moments,
        rows.detach(),
        path,
        scales,
        *outcome,
    )


def point_posterior(model: Any, X: Tensor) -> GPyTorchPosterior | None:
    """See ``FastSingleTaskGP._point_posterior``.

    BoTorch's general steps around the moments take as long as the moments of one point.
    """
    alone = X.shape[-2] == 1 and X.numel() and propagate_grads.off()
    if not alone or functorch_is_active():
        return None
    outcome = outcome_scale(model, X)
    moments = None if outcome is None else model._moments()
    if outcome is None or moments is None:
        return None
    scale, shift = outcome
    transformed = model.transform_inputs(X)
    if transformed.shape[-2] != 1:
        return None
    shape = transformed.shape[:-1]
    flat = transformed.reshape(-1, transformed.shape[-1])
    mean, variance = differentiable_moments(flat, moments)
    mean = (mean + model.mean_module(flat)) * scale + shift
    square = scale**2
    covariance = DenseLinearOperator((variance * square).view(*shape, 1))
    normal = ScaledNormal(mean.view(shape), covariance)
    normal.least = settings.min_variance.value(X.dtype) * square
    return GPyTorchPosterior(normal)


def point_means(model: Any, X: Tensor) -> Tensor | None:
    """Posterior means of ``n x d`` points, without variances; None for `posterior`'s.

    Args:
        model: A ``LeafModel`` of one outcome.
        X: The points, not transformed.
    """
    outcome = outcome_scale(model, X)
    solver = None if outcome is None else model.solver
    if outcome is None or solver is None or solver.moments is None:
        return None
    scale, shift = outcome
    x = model.transform_inputs(X)
    (leaves,) = solver.solvers
    mean = leaves.means(leaves.kernel.rows(x)) + model.mean_module(x)
    return mean * scale + shift
