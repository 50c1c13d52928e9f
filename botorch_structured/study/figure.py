"""The picture of a study, and what its models believe in numbers."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from botorch.acquisition import AcquisitionFunction
from torch import Tensor

from botorch_structured.acquisition.mixtures import Mixtures
from botorch_structured.plots import plot_traces
from botorch_structured.plots.style import COLOURS, GREY, new_figure, shortened, tidy
from botorch_structured.plots.tree import path_text, with_names
from botorch_structured.spaces import SearchSpace
from botorch_structured.study.trials import Trial
from botorch_structured.suggest import Mixture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Bars at most, and the longest line of their labels.
_BARS = 24
_LABEL = 60


def draw_study(
    space: SearchSpace, X: Tensor, values: Tensor, name: str, minimize: bool
) -> Figure:
    """Best so far on the left; evaluations and the best of each path on the right.

    Args:
        space: What was searched.
        X: ``n x d`` points of the trials.
        values: ``n`` values, NaN where a trial failed or breaks a constraint.
        name: The objective.
        minimize: Its direction.
    """
    bars = _bars(space, X, values, minimize)
    figure = _new_figure(13.0, max(4.0, 1.0 + 0.4 * len(bars)))
    left, right = figure.subplots(1, 2)
    title = "Best so far"
    if values.isnan().all():
        left.set_axis_off()
        title += ": none yet"
    else:
        label = f"best {shortened(name, 40)}"
        plot_traces(
            {"this study": values},
            left,
            minimize=minimize,
            ylabel=label,
        )
        left.get_legend().remove()  # one line
        numbers = values[~values.isnan()]
        if 0.0 < 100.0 * numbers.min() <= numbers.max():
            left.set_yscale("log")
    left.set_title(title, loc="left", fontsize="medium")
    labels, lengths = zip(*bars, strict=True)
    right.barh(range(len(bars)), lengths, color=COLOURS[0])
    right.set_yticks(range(len(bars)), labels, fontsize="small")
    right.invert_yaxis()
    right.set_xlabel("evaluations")
    right.locator_params("x", integer=True)
    tidy(right)
    paths = len(space.tree.path_key(X).unique())
    title = (
        f"Evaluations, and the best, of {len(bars)} of {paths} paths that were tried"
    )
    right.set_title(title, loc="left", fontsize="medium")
    return figure


def _new_figure(width: float, height: float) -> Figure:
    """A figure that notebooks show, also before they have seen pyplot."""
    figure = new_figure(width, height)

    def png() -> bytes:
        file = BytesIO()
        figure.savefig(file, format="png")
        return file.getvalue()

    figure._repr_png_ = png  # type: ignore[attr-defined]
    return figure


def _bars(
    space: SearchSpace, X: Tensor, values: Tensor, minimize: bool
) -> list[tuple[str, int]]:
    """Labels of the paths with most evaluations, the best one too, and how many."""
    tree, names, labels = with_names(space, None, None)
    keys = tree.path_key(X).tolist()
    sign = 1.0 if minimize else -1.0
    loss = (sign * values).nan_to_num(math.inf)
    counts = Counter(keys)
    drawn = [key for key, _ in counts.most_common(_BARS)]
    first = keys[int(loss.argmin())]
    if first not in drawn:
        drawn[-1] = first
    bars = []
    for key in drawn:
        rows = [i for i, k in enumerate(keys) if k == key]
        least = float(loss[rows].min())
        best = f"best {sign * least:.4g}" if math.isfinite(least) else "no best"
        text = path_text(
            tree.path_of(X[rows[0]]),
            names,
            labels,
            _LABEL,
        )
        lines = textwrap.wrap(
            f"{text} ({best})",
            _LABEL,
            break_long_words=False,
            break_on_hyphens=False,
        )
        bars.append(("\n".join(lines), counts[key]))
    return bars


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
    figure = _new_figure(1.0 + 4.4 * len(pairs), 4.0)
    all_axes = figure.subplots(1, len(pairs), squeeze=False)[0]
    groups = [
        ("infeasible", [t for t in trials if t.values and t not in good], GREY, "x"),
        ("evaluations", good, GREY, "o"),
        ("Pareto front", front, COLOURS[0], "o"),
    ]
    drawn = [row for row in groups if row[1]]
    for ax, (a, b) in zip(all_axes, pairs, strict=True):
        for label, group, colour, marker in drawn:
            ax.scatter(
                [t.values[a] for t in group],
                [t.values[b] for t in group],
                s=22,
                color=colour,
                marker=marker,
                label=label,
            )
        ax.set_xlabel(shortened(a, 40))
        ax.set_ylabel(shortened(b, 40))
        tidy(ax)
        if drawn:
            ax.legend(edgecolor="none", framealpha=0.8)
    return figure


def believed(
    space: SearchSpace,
    objectives: Mapping[str, str],
    mixtures: Sequence[Mixture],
    criterion: AcquisitionFunction,
    x: Tensor,
    X: Tensor,
    trials: Sequence[Trial],
) -> dict[str, Any]:
    """The means of a point and the shares of paths, see `Study.explain`.

    Args:
        space: The space.
        objectives: ``{name: direction}``.
        mixtures: Their models.
        criterion: A logarithm.
        x: ``1 x d``, the point.
        X: ``n x d`` points of the trials.
        trials: What was told.
    """
    tree, names, labels = with_names(space, None, None)
    starts = space.starts(min(2 * tree.num_paths, 2_000), seed=0)
    points = torch.cat([x, X, space.sample(1_000, seed=0), starts])
    signs = [1.0 if d == "maximize" else -1.0 for d in objectives.values()]
    means = []
    deviations = []
    with torch.no_grad():
        value = criterion(points.unsqueeze(-2))
        for (models, weights), sign in zip(mixtures, signs, strict=True):
            by_model, variances = Mixtures([models]).moments(points.unsqueeze(-2))
            mean = by_model @ weights
            variance = (variances + by_model.square()) @ weights - mean.square()
            # back from the compressed scale of bad outcomes, to first order
            clip = models[0].outcome_transform["clip"]
            scale = clip.scale.flatten()
            depth = ((clip.cut.flatten() - mean) / scale).clamp_min(0.0)
            mean = mean - scale * (depth.expm1() - depth)
            means.append(sign * mean)
            deviations.append(variance.clamp_min(0.0).sqrt() * depth.exp())
    keys, path = tree.path_key(points).unique(return_inverse=True)
    share = torch.stack([value[path == k].max() for k in range(len(keys))]).softmax(0)
    rows = []
    for k in share.argsort(descending=True).tolist():
        on_path = (path == k).nonzero().flatten()
        best = on_path[(signs[0] * means[0][on_path]).argmax()]
        told = [t for t, j in zip(trials, path[1:].tolist(), strict=False) if j == k]
        values = [signs[0] * t.value for t in told if t.value is not None]
        if share[k] >= 1e-3 or told or k == path[0]:
            row: dict[str, Any] = {
                "path": path_text(
                    tree.path_of(points[on_path[0]]),
                    names,
                    labels,
                ),
                "trials": len(told),
                "best": signs[0] * max(values) if values else None,
                "mean": float(means[0][best]),
                "deviation": float(deviations[0][best]),
                "share": float(share[k]),
            }
            rows.append(row)
    return {
        "mean": {k: float(m[0]) for k, m in zip(objectives, means, strict=True)},
        "deviation": {
            k: float(d[0]) for k, d in zip(objectives, deviations, strict=True)
        },
        "paths": rows,
    }
