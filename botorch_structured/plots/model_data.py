"""What plots read from a model: its data as they were given, and the box to show."""

from __future__ import annotations

__all__ = ["limits_of", "training_data"]

from typing import Any

from torch import Tensor


def training_data(model: Any) -> tuple[Tensor, Tensor]:
    """``n x d`` and ``n`` numbers as they were given, before any transform."""
    inputs = getattr(model, "train_inputs", None)
    targets = getattr(model, "train_targets", None)
    if not inputs or not isinstance(targets, Tensor):
        raise ValueError(
            f"model expects a GP with training data, got {type(model).__name__}."
        )
    X = inputs[0]
    original = getattr(model, "_original_train_inputs", None)
    if isinstance(original, Tensor) and not model.training:
        X = original
    if X.dim() != 2 or targets.shape != X.shape[:1]:
        raise ValueError(
            "model expects n x d inputs and n outcomes, without a batch shape. Got "
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
                f"bounds expects a 2 x {X.shape[-1]} tensor, got {bounds!r}."
            )
        low, high = bounds.to(X)
    if not (low < high).all():
        raise ValueError(
            "bounds expects lower ones below the upper ones, got "
            f"{low.tolist()} and {high.tolist()}."
        )
    return low, high
