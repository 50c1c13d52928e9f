"""The one style of all pictures: colours, axes, curves with bands, legends."""

from __future__ import annotations

__all__ = [
    "BLUE",
    "COLOURS",
    "GREY",
    "INK",
    "PALE",
    "RED",
    "check_points",
    "colour_bar",
    "colour_map",
    "import_matplotlib",
    "legend_below",
    "new_axes",
    "new_figure",
    "new_panels",
    "shortened",
    "step_curve",
    "tidy",
]

import importlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from botorch_structured.spaces.arguments import brief

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

BLUE, RED, INK, GREY, PALE = "#2563a8", "#c2410c", "#1f2937", "#6b7280", "#dbe7f5"
# Distinguishable for the colour-blind; most plots use the first two only.
COLOURS = (BLUE, RED, "#0f766e", "#7c3aed", "#b45309", "#be185d", "#4d7c0f", INK)


def import_matplotlib(module: str) -> Any:
    """A module of matplotlib; an ImportError says how to install it."""
    try:
        return importlib.import_module(f"matplotlib.{module}")
    except ImportError as error:
        raise ImportError(
            'Plots need matplotlib: python -m pip install "botorch-structured[demo]"'
        ) from error


def new_figure(width: float, height: float) -> Figure:
    """A figure of this size in inches, to be saved; it is not registered in pyplot.

    Raises:
        ImportError: matplotlib is not installed; it says how to install it.
    """
    made: Figure = import_matplotlib("figure").Figure(
        (width, height), layout="constrained"
    )
    return made


def new_panels(count: int, width: float, height: float) -> list[Axes]:
    """Axes side by side in a new figure of pyplot, each of this size in inches.

    Raises:
        ImportError: matplotlib is not installed; it says how to install it.
    """
    figure = import_matplotlib("pyplot").figure(
        figsize=(count * width, height), layout="constrained"
    )
    return list(figure.subplots(1, count, squeeze=False)[0])


def shortened(text: str, most: int = 24) -> str:
    """A name or a value on one line, without its middle where it is longer.

    Beginnings say what a thing is, ends often which one of several. Words stay whole
    where the first and the last one have room. A dollar sign is one, and not the
    beginning of a formula.

    Args:
        text: The text.
        most: The most characters.
    """
    line = " ".join(text.split())
    if len(line) > most:
        first = most // 2
        front, back = line[:first], line[first + 1 - most :]
        start, (*words, last) = "", re.split(r"(?<=[\W_])", line)
        while words and len(start + words[0] + last) < most:
            start += words.pop(0)
        if start:
            front, back = start, last
        line = f"{front}…{back}"
    return line.replace("$", r"\$")


def new_axes(ax: Axes | None, width: float, height: float) -> Axes:
    """``ax``, or that of a new figure of this size in inches, see `new_panels`."""
    return new_panels(1, width, height)[0] if ax is None else ax


def tidy(ax: Axes) -> None:
    """Two grey spines and a light grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(color=GREY, labelcolor=INK)
    ax.grid(axis="y", color="#e5e7eb", linewidth=0.8)
    ax.set_axisbelow(True)


def colour_map(signed: bool = False) -> Colormap:
    """From white to dark blue; with ``signed`` from dark red through white."""
    up = ["#ffffff", PALE, "#7ba6d6", BLUE, "#12305a"]
    down = ["#5f1d05", RED, "#f0a37f", "#fbe3d7"] if signed else []
    kind: Any = import_matplotlib("colors").LinearSegmentedColormap
    made: Colormap = kind.from_list("botorch_structured", down + up)
    return made


def colour_bar(ax: Axes, image: Any, label: str = "") -> None:
    """A colour bar to the right of the axes of an image."""
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03)
    bar.outline.set_visible(False)
    bar.ax.tick_params(color=GREY, labelcolor=INK, labelsize="small")
    bar.set_label(label, color=INK)


def step_curve(
    ax: Axes,
    steps: np.ndarray,
    values: np.ndarray,
    band: tuple[np.ndarray, np.ndarray] | None = None,
    **style: Any,
) -> None:
    """A value after each evaluation: a change is drawn at the evaluation that made it.

    Args:
        ax: Where to draw.
        steps: ``n`` numbers of evaluations.
        values: ``n`` values after them.
        band: Lower and upper ends of a band, ``n`` of each.
        style: ``color``, ``label`` and so on, of the curve.
    """
    ax.step(steps, values, where="post", **({"linewidth": 2} | style))
    if band is not None:
        colour, order = style.get("color"), style.get("zorder", 2) - 1
        ax.fill_between(
            steps, *band, step="post", color=colour, alpha=0.15, lw=0, zorder=order
        )


def legend_below(figure: Any, axes: Sequence[Axes], columns: int = 4) -> None:
    """One legend for all panels, below them, with each label once."""
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
    )


def check_points(X: Any, d: int | None) -> None:
    """Raise unless these are ``n x d`` points, with any ``d`` if None."""
    if not isinstance(X, Tensor) or X.dim() != 2 or d not in (None, X.shape[-1]):
        got = f"shape {tuple(X.shape)}" if isinstance(X, Tensor) else brief(X)
        raise ValueError(f"X: expected n x {d or 'd'} points, got {got}.")
