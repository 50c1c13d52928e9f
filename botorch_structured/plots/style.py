"""What the plots have in common: matplotlib when it is there, colours, new axes."""

from __future__ import annotations

__all__ = ["BLUE", "COLOURS", "GREY", "INK", "PALE", "RED", "new_axes", "tidy"]

from typing import TYPE_CHECKING

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
