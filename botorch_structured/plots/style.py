"""The one style of all pictures: colours, axes, legends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from botorch_structured.spaces.arguments import brief, import_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE = "#2563a8"
RED = "#c2410c"
INK = "#1f2937"
GREY = "#6b7280"
PALE = "#dbe7f5"
# Distinguishable for the colour-blind; most plots use the first two only.
COLOURS = (BLUE, RED, "#0f766e", "#7c3aed", "#b45309", "#be185d", "#4d7c0f", INK)


def new_figure(width: float, height: float) -> Figure:
    """A figure of this size in inches, to be saved; it is not registered in pyplot.

    Raises:
        ImportError: matplotlib is not installed; it says how to install it.
    """
    figure: Figure = import_extra("matplotlib.figure").Figure(
        (width, height), layout="constrained"
    )
    return figure


def new_panels(count: int, width: float, height: float) -> list[Axes]:
    """Axes side by side in a new figure of pyplot, each of this size in inches.

    Raises:
        ImportError: matplotlib is not installed; it says how to install it.
    """
    axes = import_extra("matplotlib.pyplot").subplots(
        1,
        count,
        squeeze=False,
        figsize=(count * width, height),
        layout="constrained",
    )[1]
    return list(axes[0])


def shortened(text: str, most: int = 24) -> str:
    """A name or a value on one line, without its middle where it is longer.

    Beginnings say what a thing is, ends often which one of several. A dollar sign is
    one, and not the beginning of a formula.

    Args:
        text: The text.
        most: The most characters.
    """
    line = " ".join(text.split())
    if len(line) > most:
        half = most // 2
        line = f"{line[:half]}…{line[half + 1 - most :]}"
    return line.replace("$", r"\$")


def new_axes(ax: Axes | None, width: float, height: float) -> Axes:
    """``ax``, or that of a new figure of this size in inches, see `new_panels`."""
    return new_panels(1, width, height)[0] if ax is None else ax


def tidy(ax: Axes) -> None:
    """Two spines and a light grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color=PALE)
    ax.set_axisbelow(True)


def check_points(X: Any, d: int | None) -> None:
    """Raise unless these are ``n x d`` points, with any ``d`` if None."""
    if not isinstance(X, Tensor) or X.dim() != 2 or d not in (None, X.shape[-1]):
        got = f"shape {tuple(X.shape)}" if isinstance(X, Tensor) else brief(X)
        raise ValueError(f"X: expected n x {d or 'd'} points, got {got}.")
