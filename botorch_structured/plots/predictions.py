"""What pictures of models need: their data, limits, and predictions on a grid."""

from __future__ import annotations

__all__ = ["evaluating", "limits_of", "predicted", "training_data"]

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_structured.models.checks import raw_inputs

_CHUNK = 4096  # points predicted at once


@contextmanager
def evaluating(*models: Any) -> Iterator[None]:
    """Models in evaluation mode, afterwards as they were.

    In training mode input transforms would learn from the points of the plot.
    """
    training = [model for model in models if getattr(model, "training", False)]
    for model in training:
        model.eval()
    try:
        yield
    finally:
        for model in training:
            model.train()


@torch.no_grad()
def predicted(
    model: Any, X: Tensor, noise: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation at each of ``n x d`` points.

    Each point on its own: a joint covariance is not needed, and is large.
    """
    means, deviations = [], []
    for part in X.unsqueeze(-2).split(_CHUNK):
        posterior = model.posterior(part, observation_noise=noise)
        means.append(posterior.mean.reshape(-1))
        deviations.append(posterior.variance.clamp_min(0).sqrt().reshape(-1))
    return torch.cat(means).cpu().numpy(), torch.cat(deviations).cpu().numpy()


def training_data(model: Any) -> tuple[Tensor, Tensor]:
    """``n x d`` and ``n`` numbers as they were given, before any transform."""
    inputs = getattr(model, "train_inputs", None)
    targets = getattr(model, "train_targets", None)
    if not inputs or not isinstance(targets, Tensor):
        raise ValueError(
            f"model: expected a GP with training data, got {type(model).__name__}."
        )
    X = raw_inputs(model)
    if X.dim() != 2 or targets.shape != X.shape[:1]:
        raise ValueError(
            "model: expected n x d inputs and n outcomes, without a batch shape, got "
            f"shapes {tuple(X.shape)} and {tuple(targets.shape)}."
        )
    Y = targets.unsqueeze(-1)
    transform = getattr(model, "outcome_transform", None)
    if transform is not None:
        Y = transform.untransform(Y)[0]
    return X.detach(), Y.detach().squeeze(-1)


def limits_of(X: Tensor, bounds: Tensor | None) -> tuple[Tensor, Tensor]:
    """The lower and the upper ends of ``bounds``, or of the data without them."""
    low, high = X.amin(0), X.amax(0)
    if bounds is not None:
        if not isinstance(bounds, Tensor) or bounds.shape != (2, X.shape[-1]):
            raise ValueError(
                f"bounds: expected a 2 x {X.shape[-1]} tensor, got {bounds!r}."
            )
        low, high = bounds.to(X)
    if not (low < high).all():
        raise ValueError(
            "bounds: expected lower ones below the upper ones, got "
            f"{low.tolist()} and {high.tolist()}."
        )
    return low, high
