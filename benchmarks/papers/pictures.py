"""Pictures of the papers' figures, from the runs that the verdicts are from."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from botorch_structured.plots.style import COLOURS, new_figure, tidy


def panels(
    titles: Sequence[str], x: str, y: str, width: float = 3.2, columns: int = 3
) -> Any:
    """A figure with one panel for each title, in rows of ``columns``."""
    columns = min(len(titles), columns)
    rows = -(-len(titles) // columns)
    figure = new_figure(width * columns, min(width, 2.7) * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, title in zip(axes, titles, strict=False):
        ax.set_title(title, fontsize="medium")
        ax.set_xlabel(x)
        tidy(ax)
    for ax in axes[::columns]:
        ax.set_ylabel(y)
    for ax in axes[len(titles) :]:
        ax.set_axis_off()
    return figure


def lines(
    figure: Any,
    k: int,
    of: Mapping[str, tuple[Any, Any]],
    order: Sequence[str] = (),
    **style: Any,
) -> None:
    """Curves in panel ``k``: label -> (x, y), with colours by ``order``."""
    names = list(order or of)
    for label, (x, y) in of.items():
        i = names.index(label)
        look = {"color": COLOURS[i], "linestyle": "-" if i < 4 else "--", **style}
        figure.axes[k].plot(x, y, label=label, **look)


def curves(
    figure: Any, k: int, of: Mapping[str, np.ndarray], order: Sequence[str] = ()
) -> None:
    """Means and two standard errors: label -> ``runs x evaluations``."""
    colours = dict(zip(order or of, COLOURS, strict=False))
    for label, values in of.items():
        steps = np.arange(1, values.shape[1] + 1)
        mean, error = values.mean(0), 2.0 * values.std(0, ddof=1) / len(values) ** 0.5
        lines(figure, k, {label: (steps, mean)}, order or list(of))
        figure.axes[k].fill_between(
            steps, mean - error, mean + error, color=colours[label], alpha=0.15, lw=0
        )


def save(figure: Any, path: Path) -> None:
    """A small file: at most 128 colours."""
    from PIL import Image

    whole = io.BytesIO()
    figure.savefig(whole, dpi=90)
    Image.open(whole).convert("RGB").quantize(128).save(path, optimize=True)


def finished(figure: Any) -> Any:
    """The same with one legend for all panels, each label once."""
    shown = {}
    for ax in figure.axes:
        handles, labels = ax.get_legend_handles_labels()
        shown.update(zip(labels, handles, strict=True))
    figure.legend(
        shown.values(),
        shown.keys(),
        loc="outside lower center",
        ncols=4,
        frameon=False,
    )
    return figure
