"""Figure 4 of Assael et al. (2014): the mean regret of each method on each problem."""

from __future__ import annotations

__all__ = ["write_figure"]

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.summary import Run
from benchmarks.transfer_report import standard_error
from benchmarks.treed_methods import METHODS
from botorch_structured.plots.style import (
    BLUE,
    COLOURS,
    GREY,
    INK,
    RED,
    legend_below,
    new_figure,
    step_curve,
    tidy,
)

# What Figure 4 draws, with names and styles; the JSON has all methods.
_DRAWN: dict[str, dict[str, Any]] = {
    "htbo": {"label": "TreedGP.as_published", "color": BLUE},
    "htbo_warp": {"label": "TreedGP.as_published(warp=True)", "color": COLOURS[2]},
    "htbo_default": {"label": "TreedGP", "color": COLOURS[3]},
    "bo": {"label": "standard BO", "color": RED, "linestyle": "--"},
    "bo_warp": {
        "label": "standard BO with warping",
        "color": COLOURS[6],
        "linestyle": "--",
    },
    "bo_exact": {
        "label": "standard BO, noise-free",
        "color": INK,
        "linestyle": "--",
    },
    "random": {"label": "random search", "color": GREY, "linestyle": ":"},
}
_BANDS = ("htbo", "bo")  # the two methods of the paper: more bands would hide curves
_TITLES = {
    "rkhs": "RKHS-1D",
    "exp2d": "2-D exponential",
    "lda": "LDA",
    "svm": "SVM",
    "copper": "copper",
    "walker": "Walker",
}
_STARTS = 5
_DIGITS = 4


def write_figure(folder: Path, runs: Sequence[Run]) -> None:
    """Write ``figure4.png`` and its numbers, ``figure4.json``.

    Args:
        folder: The folder to write to; it is created if necessary.
        runs: The runs that it shows.

    Raises:
        ImportError: Without matplotlib.
    """
    folder.mkdir(parents=True, exist_ok=True)
    problems = [name for name in _TITLES if name in {r.problem for r in runs}]
    curves = {name: _curves(runs, name) for name in problems}
    columns = min(3, len(problems))
    rows = -(-len(problems) // columns)
    figure = new_figure(3.4 * columns, 2.8 * rows + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for ax in axes[len(problems) :]:
        ax.set_axis_off()
    for ax, problem in zip(axes, problems, strict=False):  # the last row has gaps
        top = 0.0
        for method, style in _DRAWN.items():
            if (of := curves[problem].get(method)) is None:
                continue
            mean, error = np.array(of["mean_regret"]), np.array(of["standard_error"])
            band = (mean - error, mean + error) if method in _BANDS else None
            order = 4 if method in _BANDS else 3
            steps = np.arange(1, len(mean) + 1)
            step_curve(ax, steps, mean, band, zorder=order, **style)
            top = max(top, mean[min(_STARTS, len(mean)) - 1])
            ax.set_xlim(1, len(mean))
        ax.set_title(_TITLES[problem], fontsize="medium")
        ax.set_ylim(0.0, 1.1 * top)  # all methods have the same starts
        tidy(ax)
    for ax in axes[max(0, len(problems) - columns) : len(problems)]:
        ax.set_xlabel("evaluations")
    for ax in axes[::columns]:
        ax.set_ylabel("mean regret")
    legend_below(figure, list(axes))
    figure.savefig(folder / "figure4.png", dpi=120)
    (folder / "figure4.json").write_text(json.dumps(curves) + "\n")


def _curves(runs: Sequence[Run], problem: str) -> dict[str, dict[str, Any]]:
    """The regret of each method along its runs."""
    found: dict[str, dict[str, Any]] = {}
    for method in METHODS:
        traces = [
            run.trace() - run.optimum
            for run in runs
            if (run.problem, run.method) == (problem, method)
            and run.optimum is not None
        ]
        if not traces:
            continue
        length = min(map(len, traces))
        values = np.stack([trace[:length] for trace in traces])
        found[method] = {
            "runs": len(traces),
            "mean_regret": _rounded(torch.as_tensor(values.mean(0))),
            "standard_error": _rounded(torch.as_tensor(standard_error(values))),
            "median_regret": _rounded(torch.as_tensor(np.median(values, 0))),
        }
    return found


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{v:.{_DIGITS}g}") for v in values.tolist()]
