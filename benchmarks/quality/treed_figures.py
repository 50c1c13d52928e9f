"""Figures 3 and 4 of Assael et al. (2014), from the records of the runs.

Figure 3: a few steps of one run of standard BO and of one of HTBO on RKHS-1D: the
prediction of each model, and the point of largest expected improvement. Figure 4: the
mean regret of each method on each problem. The JSON has the numbers that are drawn.
"""

from __future__ import annotations

__all__ = ["write_figures"]

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.acquisition import LogExpectedImprovement
from torch import Tensor

from benchmarks.harness import RunKey, read_records
from benchmarks.summary import Run
from benchmarks.transfer_report import standard_error
from benchmarks.treed_methods import METHODS, fitted_model
from botorch_structured.plots import plot_partition
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
from botorch_structured.test_functions import RKHS1D

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
_STEPS = (9, 16, 25)  # numbers of evaluations in the panels of Figure 3
_COMPARED = ("bo", "htbo")
_POINTS = 301
_STARTS = 5
_DIGITS = 4
_SHOWN = 25.0  # of the logarithm of the expected improvement, down from its maximum


def write_figures(folder: Path, out: Path, runs: Sequence[Run]) -> None:
    """Write ``figure3`` and ``figure4``, each as ``.json`` and ``.png``.

    Args:
        folder: The folder to write to; it is created if necessary.
        out: The folder of the harness.
        runs: What Figure 4 shows; Figure 3 is of the first seed with both methods.

    Raises:
        ImportError: Without matplotlib.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seed = _seed_of_figure_3(runs)
    if seed is not None:
        _figure_3(folder, out, seed)
    _figure_4(folder, runs)


def _seed_of_figure_3(runs: Sequence[Run]) -> int | None:
    known = [
        {r.seed for r in runs if r.problem == "rkhs" and r.method == method}
        for method in _COMPARED
    ]
    return min(set.intersection(*known), default=None)


def _figure_3(folder: Path, out: Path, seed: int) -> None:
    problem = RKHS1D()
    grid = torch.linspace(0.0, 1.0, _POINTS, dtype=torch.float64).unsqueeze(-1)
    truth = -problem(grid)
    figure = new_figure(4 * len(_STEPS), 7)
    heights = [2, 1] * len(_COMPARED)
    axes = figure.subplots(
        len(heights), len(_STEPS), sharex=True, height_ratios=heights
    )
    panels = []
    for row, method in enumerate(_COMPARED):
        records = read_records(RunKey("rkhs", method, seed).path(out))
        X = torch.tensor([r["x"] for r in records], dtype=torch.float64)
        Y = -torch.tensor([[r["value"]] for r in records], dtype=torch.float64)
        for column, step in enumerate(_STEPS):
            if step >= len(X):
                axes[2 * row, column].set_axis_off()
                axes[2 * row + 1, column].set_axis_off()
                continue
            model = fitted_model(method, problem, X[:step], Y[:step])
            above, below = axes[2 * row, column], axes[2 * row + 1, column]
            plot_partition(model, above, bounds=problem.bounds)
            above.plot(grid.squeeze(-1), truth, color=RED, linewidth=0.8)
            label = _DRAWN[method]["label"]
            above.set_title(f"{label}, {step} evaluations", pad=14, fontsize="medium")
            above.set_xlabel("")
            panel = _panel(model, grid, X, Y, step)
            below.plot(grid.squeeze(-1), panel["log_ei"], color=COLOURS[2])
            below.axvline(float(X[step]), color=COLOURS[3], linestyle=":")
            top = max(panel["log_ei"])
            below.set_ylim(top - _SHOWN, top + 0.1 * _SHOWN)
            tidy(below)
            panels.append({"method": method, **panel})
    for row in range(len(_COMPARED)):
        axes[2 * row, 0].set_ylabel("outcome")
        axes[2 * row + 1, 0].set_ylabel("log EI")
    figure.savefig(folder / "figure3.png", dpi=80)
    whole = {
        "problem": "rkhs",
        "seed": seed,
        "x": _rounded(grid.squeeze(-1)),
        "f": _rounded(truth),
        "panels": panels,
    }
    (folder / "figure3.json").write_text(json.dumps(whole) + "\n")


def _panel(model: Any, grid: Tensor, X: Tensor, Y: Tensor, step: int) -> dict[str, Any]:
    acqf = LogExpectedImprovement(model, best_f=Y[:step].max())
    with torch.no_grad():
        posterior = model.posterior(grid)
        log_ei = acqf(grid.unsqueeze(-2))
    partition = getattr(model, "partition", None)
    borders = [] if partition is None else partition.threshold[partition.column >= 0]
    return {
        "evaluations": step,
        "data_x": _rounded(X[:step].squeeze(-1)),
        "data_y": _rounded(Y[:step].squeeze(-1)),
        "mean": _rounded(posterior.mean.squeeze(-1)),
        "sd": _rounded(posterior.variance.sqrt().squeeze(-1)),
        "log_ei": _rounded(log_ei),
        "borders": sorted(_rounded(torch.as_tensor(borders))),
        "next_x": _rounded(X[step])[0],
        "best": _rounded(Y[:step].max(0).values)[0],
    }


def _figure_4(folder: Path, runs: Sequence[Run]) -> None:
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
