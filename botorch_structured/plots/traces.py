"""`plot_traces`: the best value so far against the number of evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from botorch_structured.plots.style import COLOURS, GREY, new_axes, tidy
from botorch_structured.spaces.arguments import brief

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def best_so_far(values: Any, minimize: bool = True) -> np.ndarray:
    """The incumbent after each evaluation.

    Args:
        values: ``... x n`` outcomes in the order of evaluation; NaN where one failed.
        minimize: Whether the smallest is the best.

    Returns:
        ``... x n`` numbers, NaN before the first success.
    """
    better = np.fmin if minimize else np.fmax
    best: np.ndarray = better.accumulate(np.asarray(values, dtype=float), axis=-1)
    return best


def plot_traces(
    traces: Mapping[str, Any],
    ax: Axes | None = None,
    *,
    minimize: bool = True,
    optimum: float | None = None,
    num_starts: int | None = None,
    ylabel: str | None = None,
) -> Axes:
    """The best value so far after each evaluation, a line for each method.

    Of several runs the line is the median, and the band has the quartiles.

    Args:
        traces: Method -> its outcomes in the order of evaluation: ``n`` of one run, or
            ``runs x n`` (runs of different lengths are cut to the shortest). NaN where
            an evaluation failed. These are outcomes, not best values so far.
        ax: Where to draw; a new figure by default.
        minimize: Whether small outcomes are good.
        optimum: The best possible value. The gap to it is then shown, on a log scale.
        num_starts: The number of first evaluations that all methods have in common; a
            dotted line marks it.
        ylabel: The label of the vertical axis.

    Returns:
        The axes.

    Raises:
        ValueError: No traces, an empty one, or a run whose evaluations all failed.
        ImportError: Without matplotlib.
    """
    if not isinstance(traces, Mapping) or not traces:
        raise ValueError(
            f"traces: expected a mapping of methods to outcomes, got {brief(traces)}."
        )
    curves = {name: _runs(name, values) for name, values in traces.items()}
    if ax is None:
        ax = new_axes(None, 6.4, 3.8)
        ax.locator_params("x", integer=True)
    for i, (name, runs) in enumerate(curves.items()):
        best = best_so_far(runs, minimize)
        if optimum is not None:
            gap = best - optimum if minimize else optimum - best
            best = np.maximum(gap, 1e-12)
        steps = np.arange(1, best.shape[-1] + 1)
        started = ~np.isnan(best).all(axis=0)
        steps = steps[started]
        best = best[:, started]
        colour = COLOURS[i % len(COLOURS)]
        ax.step(
            steps,
            np.nanmedian(best, axis=0),
            where="post",
            label=name if len(best) == 1 else f"{name} (median of {len(best)})",
            color=colour,
            linewidth=2.0,
        )
        if len(best) > 1:
            low, high = np.nanquantile(best, (0.25, 0.75), axis=0)
            ax.fill_between(
                steps,
                low,
                high,
                step="post",
                color=colour,
                alpha=0.15,
            )
    if num_starts:
        ax.axvline(
            num_starts,
            color=GREY,
            linestyle=":",
            label="common starts",
        )
    ax.set_xlabel("evaluations")
    if optimum is not None:
        ax.set_yscale("log")
    ax.set_ylabel(ylabel or ("best value" if optimum is None else "gap to the optimum"))
    ax.set_xlim(left=0.5)
    ax.legend(edgecolor="none", framealpha=0.8)
    tidy(ax)
    return ax


def _runs(method: str, values: Any) -> np.ndarray:
    """``runs x n``, at least one of each."""
    name = f"traces[{method!r}]"
    try:
        runs = [np.asarray(run, dtype=float).reshape(-1) for run in values]
    except (TypeError, ValueError):
        runs = []
    shortest = min(map(len, runs), default=0)
    array = np.array([run[:shortest] for run in runs])
    if max(map(len, runs), default=0) == 1:  # n or n x 1 outcomes of one run
        array = array.T
    if not shortest or np.isnan(array).all(axis=-1).any():
        raise ValueError(
            f"{name}: expected n or runs x n outcomes, in each run one at least that "
            f"is a number, got {brief(values)}."
        )
    return array
