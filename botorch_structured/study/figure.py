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

from botorch_structured.plots import plot_traces, plot_tree
from botorch_structured.plots.style import COLOURS, GREY, new_figure, shortened, tidy
from botorch_structured.plots.traces import best_so_far
from botorch_structured.plots.tree import path_text, text_width, tree_size, with_names
from botorch_structured.spaces import SearchSpace
from botorch_structured.study.trials import Trial
from botorch_structured.suggest import Mixture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Paths above which there are bars for the most frequent ones instead of a tree.
_MANY_PATHS = 24
_BARS = 15
# The width of the curve, and the least of a tree or bars, in inches.
_CURVE = 5.7
_LEAST = 6.4


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
    many = space.tree.num_paths > _MANY_PATHS
    bars = _bars(space, X, values, minimize) if many else None
    if bars is None:
        wide, high = tree_size(space, X, values, minimize)
        wide = min(max(wide, _LEAST), 20.0)
    else:
        lines = sum(label.count("\n") + 1 for label, _ in bars)
        high = 0.12 * len(bars) + 0.18 * lines
        wide = _LEAST + max(text_width(label) for label, _ in bars)
    figure = new_figure(_CURVE + wide + 0.4, max(4.0, 1.0 + high))
    ratios = [_CURVE, wide if bars is None else _LEAST]
    left, right = figure.subplots(1, 2, width_ratios=ratios)
    if good:
        label = f"best {shortened(name, 40)}"
        plot_traces({"this study": values}, left, minimize=minimize, ylabel=label)
        left.get_legend().remove()  # one line
        best = torch.from_numpy(best_so_far(values if minimize else -values))
        best = best[~best.isnan()].unsqueeze(-1) * (1.0 if minimize else -1.0)
        _scale_axes(left, best, best[-1:], ["ylim"])
    else:
        left.set_axis_off()
    if bars is None:
        plot_tree(space, ax=right, X=X, Y=values, minimize=minimize)
    else:
        labels, lengths = zip(*bars, strict=True)
        right.barh(range(len(labels)), lengths, color=COLOURS[0])
        right.set_yticks(range(len(labels)), labels, fontsize="small")
        right.invert_yaxis()
        right.set_xlabel("evaluations")
        right.locator_params("x", integer=True)
        tidy(right)
    title = "Best so far" if good else "Best so far: none yet"
    left.set_title(title, loc="left", fontsize="medium")
    title = "Evaluations, and the best value, of each path"
    paths = len(set(space.tree.path_key(X).tolist()))
    if many and paths > _BARS:
        title = (
            f"{_BARS} of the {paths} paths that were tried: evaluations, and the best"
        )
    right.set_title(title, loc="left", fontsize="medium")
    return _shown_by_notebooks(figure)


def _shown_by_notebooks(figure: Figure) -> Figure:
    """Give a figure what notebooks ask for, also before they have seen pyplot."""

    def png() -> bytes:
        file = BytesIO()
        figure.savefig(file, format="png")
        return file.getvalue()

    figure._repr_png_ = png  # type: ignore[attr-defined]
    return figure


def _scale_axes(
    ax: Axes, drawn: Tensor, always: Tensor, names: Sequence[str] = ("xlim", "ylim")
) -> None:
    """Logarithmic axes where positive values span decades; limits to what is usual,
    where outliers hide the rest.

    Args:
        ax: The axes; they say how many points are outside.
        drawn: ``n x k`` points in them.
        always: ``m x k``, those of them that are always shown.
        names: The ``k`` axes.
    """
    outside = torch.zeros(len(drawn), dtype=torch.bool)
    for x, shown, name in zip(drawn.mT, always.mT, names, strict=True):
        low, high = x.quantile(torch.tensor([0.25, 0.75]).to(x))
        if x.min() > 0.0 and high >= 10.0 * low:
            ax.set(**{f"{name[0]}scale": "log"})
            continue
        # three times the range of the quartiles beyond them
        room = 3.0 * (high - low)
        inside = torch.cat([x[(x >= low - room) & (x <= high + room)], shown])
        least = float(inside.min())
        most = float(inside.max())
        width = most - least
        if 0.0 < width < 0.1 * float(x.max() - x.min()):
            ax.set(**{name: (least - 0.05 * width, most + 0.05 * width)})
            outside |= (x < least) | (x > most)
    if outside.any():
        text = f"{int(outside.sum())} outside"
        ax.set_title(text, loc="right", fontsize="small", color=GREY)


def _points(trials: Sequence[Trial], a: str, b: str) -> Tensor:
    pairs = [[t.values[a], t.values[b]] for t in trials]
    return torch.tensor(pairs, dtype=torch.double).reshape(-1, 2)


def _bars(
    space: SearchSpace, X: Tensor, values: Tensor, minimize: bool
) -> list[tuple[str, int]]:
    """The paths with most evaluations, that of the best included, and how many."""
    tree, names, labels = with_names(space, None, None)
    keys = tree.path_key(X).tolist()
    sign = 1.0 if minimize else -1.0
    bars = []
    counts = Counter(keys)
    drawn = [key for key, _ in counts.most_common(_BARS)]
    if not values.isnan().all():
        first = keys[int((sign * values).nan_to_num(math.inf).argmin())]
        if first not in drawn:
            drawn[-1] = first
    for key in drawn:
        rows = [i for i, k in enumerate(keys) if k == key]
        told = [float(values[i]) for i in rows if not values[i].isnan()]
        best = f"best {min(told, key=lambda v: sign * v):.4g}" if told else "no best"
        text = path_text(tree.path_of(X[rows[0]]), names, labels, 60)
        wrapper = textwrap.TextWrapper(
            60, break_long_words=False, break_on_hyphens=False
        )
        lines = wrapper.wrap(f"{text} ({best})")
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
    figure = _shown_by_notebooks(new_figure(1.0 + 4.4 * len(pairs), 4.0))
    counted = {t.number for t in good}
    others = [t for t in trials if t.values and t.number not in counted]
    for ax, (a, b) in zip(
        figure.subplots(1, len(pairs), squeeze=False)[0], pairs, strict=True
    ):
        for some, colour, marker, label in (
            (others, GREY, "x", "infeasible"),
            (good, GREY, "o", "evaluations"),
            (front, COLOURS[0], "o", "Pareto front"),
        ):
            if some:
                x, y = ([t.values[k] for t in some] for k in (a, b))
                ax.scatter(x, y, s=22, color=colour, marker=marker, label=label)
        ax.set_xlabel(shortened(a, 40))
        ax.set_ylabel(shortened(b, 40))
        tidy(ax)
        if others or good:
            ax.legend(edgecolor="none", framealpha=0.8)
            drawn = _points([*others, *good], a, b)
            _scale_axes(ax, drawn, _points(front, a, b))
        else:
            ax.set_title("No values yet", loc="left", fontsize="medium")
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
    drawn = [x, X, space.sample(1_000, seed=0)]
    if tree.num_paths <= 1_000:
        drawn.append(space.starts(2 * tree.num_paths, seed=0))
    points = torch.cat(drawn)
    signs = [1.0 if d == "maximize" else -1.0 for d in objectives.values()]
    predicted = []
    with torch.no_grad():
        value = criterion(points.unsqueeze(-2))
        for (models, weights), sign in zip(mixtures, signs, strict=True):
            several = [model.posterior(points.unsqueeze(-2)) for model in models]
            mean = torch.stack([p.mean.flatten() for p in several], -1)
            square = torch.stack([p.variance.flatten() for p in several], -1) + mean**2
            mean = mean @ weights
            square = square @ weights
            deviation = (square - mean**2).clamp_min(0.0).sqrt()
            # back from the compressed scale of bad outcomes, to first order
            clip = models[0].outcome_transform["clip"]
            depth = ((clip.cut - mean) / clip.scale).clamp_min(0.0).flatten()
            mean = mean - clip.scale.flatten() * (depth.expm1() - depth)
            predicted.append((sign * mean, deviation * depth.exp()))
    keys, path = tree.path_key(points).unique(return_inverse=True)
    share = torch.stack([value[path == k].max() for k in range(len(keys))]).softmax(0)
    rows = []
    mean, deviation = predicted[0]
    sign = signs[0]
    for k in share.argsort(descending=True).tolist():
        on_path = (path == k).nonzero().flatten()
        best = on_path[(sign * mean[on_path]).argmax()]
        told = [t for t, j in zip(trials, path[1:].tolist(), strict=False) if j == k]
        values = [sign * t.value for t in told if t.value is not None]
        if share[k] >= 1e-3 or told or k == path[0]:
            row: dict[str, Any] = {
                "path": path_text(tree.path_of(points[on_path[0]]), names, labels),
                "trials": len(told),
                "best": sign * max(values) if values else None,
                "mean": float(mean[best]),
                "deviation": float(deviation[best]),
                "share": float(share[k]),
            }
            rows.append(row)
    return {
        "mean": {
            k: float(m[0]) for k, (m, _) in zip(objectives, predicted, strict=True)
        },
        "deviation": {
            k: float(d[0]) for k, (_, d) in zip(objectives, predicted, strict=True)
        },
        "paths": rows,
    }
