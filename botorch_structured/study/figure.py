"""The picture of a study."""

from __future__ import annotations

__all__ = ["draw_front", "draw_study"]

import math
from collections import Counter
from collections.abc import Sequence
from io import BytesIO
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from botorch_structured.plots import plot_traces, plot_tree
from botorch_structured.plots.style import COLOURS, GREY, new_figure, tidy
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.columns import Column
from botorch_structured.study.trial import Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Paths above which there are bars for the most frequent ones instead of a tree.
_MANY_PATHS = 24
_BARS = 15


def draw_study(
    space: SearchSpace,
    X: Tensor,
    trials: Sequence[Trial],
    good: Sequence[Trial],
    name: str,
    minimize: bool,
) -> Figure:
    """Best so far on the left; evaluations and the best of each path on the right.

    Args:
        space: What was searched.
        X: ``n x d`` points of the trials.
        trials: What was told.
        good: Those of them that count: feasible and with values.
        name: The objective.
        minimize: Its direction.
    """
    counted = {t.number for t in good}
    values = torch.tensor(
        [t.values[name] if t.number in counted else math.nan for t in trials],
        dtype=torch.double,
    )
    rows = min(space.tree.num_paths, _BARS if _many(space) else _MANY_PATHS)
    figure = _shown_by_notebooks(new_figure(12.5, max(4.0, 1.0 + 0.3 * rows)))
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.2])
    if good:
        label = f"best {name}"
        plot_traces({"this study": values}, left, minimize=minimize, ylabel=label)
        left.get_legend().remove()  # one line
    else:
        left.set_axis_off()
    if _many(space):
        _draw_bars(right, space, X, values, minimize)
    else:
        plot_tree(space, ax=right, X=X, Y=values, minimize=minimize)
    title = "Best so far" if good else "Best so far: none yet"
    left.set_title(title, loc="left", fontsize="medium")
    title = "Evaluations, and the best value, of each path"
    paths = len(set(space.tree.path_key(X).tolist()))
    if _many(space) and paths > _BARS:
        title = f"Evaluations, and the best value: {_BARS} of the {paths} paths tried"
    right.set_title(title, loc="left", fontsize="medium")
    return figure


def _shown_by_notebooks(figure: Figure) -> Figure:
    """Give a figure what notebooks ask for, also before they have seen pyplot."""

    def png() -> bytes:
        file = BytesIO()
        figure.savefig(file, format="png")
        return file.getvalue()

    figure._repr_png_ = png  # type: ignore[attr-defined]
    return figure


def _many(space: SearchSpace) -> bool:
    return space.tree.num_paths > _MANY_PATHS


def _draw_bars(
    ax: Axes, space: SearchSpace, X: Tensor, values: Tensor, minimize: bool
) -> None:
    """A bar for each of the paths with most evaluations, that of the best included."""
    keys = space.tree.path_key(X).tolist()
    sign = 1.0 if minimize else -1.0
    labels, lengths = [], []
    counts = Counter(keys)
    drawn = [key for key, _ in counts.most_common(_BARS)]
    if not values.isnan().all():
        first = keys[int((sign * values).nan_to_num(math.inf).argmin())]
        if first not in drawn:
            drawn[-1] = first
    for key in drawn:
        here = [i for i, k in enumerate(keys) if k == key]
        own = [float(values[i]) for i in here if not values[i].isnan()]
        best = f"best {min(own, key=lambda v: sign * v):.4g}" if own else "no best"
        decisions = space.tree.path_of(X[here[0]]).decisions
        path = ", ".join(
            f"{space.names[c]}={_shown(space.columns[c], v)}"
            for c, v in decisions.items()
        )
        labels.append(f"{path:.60}  ({best})")
        lengths.append(counts[key])
    ax.barh(range(len(labels)), lengths, color=COLOURS[0])
    ax.set_yticks(range(len(labels)), labels, fontsize="small")
    ax.invert_yaxis()
    ax.set_xlabel("evaluations")
    ax.locator_params("x", integer=True)
    tidy(ax)


def _shown(column: Column, outcome: Any) -> str:
    """A value, or an interval, of a decision."""
    if isinstance(outcome, tuple):
        return f"{outcome[0]:.4g} to {outcome[1]:.4g}"
    return str(column.decode(outcome))


def draw_front(
    names: Sequence[str],
    trials: Sequence[Trial],
    good: Sequence[Trial],
    front: Sequence[Trial],
) -> Figure:
    """All outcomes and the Pareto front, a panel for each pair of objectives.

    Args:
        names: The objectives.
        trials: What was told.
        good: Those of them that are feasible and have values.
        front: Those of them that no other one dominates.
    """
    pairs = list(combinations(names, 2))
    figure = _shown_by_notebooks(new_figure(1.0 + 4.4 * len(pairs), 4.0))
    counted = {t.number for t in good}
    others = [t for t in trials if t.values and t.number not in counted]
    for ax, (a, b) in zip(
        figure.subplots(1, len(pairs), squeeze=False)[0], pairs, strict=True
    ):
        for drawn, colour, marker, label in (
            (others, GREY, "x", "infeasible"),
            (good, GREY, "o", "evaluations"),
            (front, COLOURS[0], "o", "Pareto front"),
        ):
            if drawn:
                x, y = ([t.values[k] for t in drawn] for k in (a, b))
                ax.scatter(x, y, s=22, color=colour, marker=marker, label=label)
        ax.set_xlabel(a)
        ax.set_ylabel(b)
        tidy(ax)
        if others or good:
            ax.legend(edgecolor="none", framealpha=0.8)
        else:
            ax.set_title("No values yet", loc="left", fontsize="medium")
    return figure
