"""What the plots have in common: matplotlib when it is there, colours, new axes."""

from __future__ import annotations

__all__ = [
    "BLUE",
    "COLOURS",
    "GREY",
    "INK",
    "PALE",
    "RED",
    "check_points",
    "limits_of",
    "new_axes",
    "tidy",
    "training_data",
]

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, RED, INK, GREY, PALE = "#2563a8", "#c2410c", "#1f2937", "#6b7280", "#dbe7f5"
# Distinguishable for the colour-blind; the first two are the ones mostly seen together.
COLOURS = (BLUE, RED, "#0f766e", "#7c3aed", "#b45309", "#be185d", "#4d7c0f", INK)


def new_axes(ax: Axes | None, width: float, height: float) -> Axes:
    """``ax``, or that of a new figure of this size in inches.

    Raises:
        ImportError: matplotlib is not installed; it says what to install.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            'Plots need matplotlib: python -m pip install "botorch-structured[demo]"'
        ) from error
    if ax is not None:
        return ax
    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def tidy(ax: Axes) -> None:
    """Two quiet spines and a light grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(color=GREY, labelcolor=INK)
    ax.grid(axis="y", color="#e5e7eb", linewidth=0.8)
    ax.set_axisbelow(True)


# ----------------------------------------------------------------------
# What plots take: points, and a model's data as they were given and box to show.


def check_points(X: Any, d: int | None) -> None:
    """Raise where these are not ``n x d`` points, ``d`` being anything if None."""
    if not isinstance(X, Tensor) or X.dim() != 2 or d not in (None, X.shape[-1]):
        got = f"shape {tuple(X.shape)}" if isinstance(X, Tensor) else f"{X!r:.60}"
        raise ValueError(f"X: expected n x {d or 'd'} points, got {got}.")


def training_data(model: Any) -> tuple[Tensor, Tensor]:
    """``n x d`` and ``n`` numbers as they were given, before any transform."""
    inputs = getattr(model, "train_inputs", None)
    targets = getattr(model, "train_targets", None)
    if not inputs or not isinstance(targets, Tensor):
        raise ValueError(
            f"model: expected a GP with training data, got {type(model).__name__}."
        )
    X = inputs[0]
    original = getattr(model, "_original_train_inputs", None)
    if isinstance(original, Tensor) and not model.training:
        X = original
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
