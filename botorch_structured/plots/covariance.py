"""`plot_covariance`: a picture of the covariances of points."""

from __future__ import annotations

__all__ = ["plot_covariance"]

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from botorch_structured.plots.style import (
    GREY,
    INK,
    check_points,
    colour_bar,
    colour_map,
    new_axes,
)
from botorch_structured.plots.tree import with_names
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import brief

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Blocks of less than this share of the rows have no label: they would overlap.
_SMALL = 0.03


def plot_covariance(
    kernel: Kernel | Tensor,
    X: Tensor,
    tree: ParameterTree | SearchSpace | None = None,
    ax: Axes | None = None,
    *,
    names: Sequence[str] | None = None,
    labels: Mapping[int, Sequence[str]] | None = None,
    limits: tuple[float, float] | None = None,
    colorbar: bool = True,
) -> Axes:
    """The covariance of points as a picture, the points of a path side by side.

    Use it to check a kernel on a conditional space: an observation of one point says
    much about another one where the picture is dark (Figures 2 to 4 of Levesque et al.,
    2017). With a tree, rows are sorted by path, in the order given within one, and
    lines separate the paths. Zero is white; where covariances are negative, they are
    red.

    Args:
        kernel: Any GPyTorch kernel without a batch shape; or ``n x n`` covariances of
            the points, such as those of a posterior.
        X: ``n x d`` points.
        tree: Which columns are active when. Default: ``kernel.tree``, if any; else
            rows stay as they are. A ``SearchSpace`` brings the names and the labels.
        ax: Where to draw; a new figure by default.
        names: The names of the ``d`` columns. Default: those of the space, or ``x0``,
            ``x1`` and so on.
        labels: Decision column -> the names of its outcomes, in the order of
            ``tree.decision_values``. Default: those of the space, or the numbers.
        limits: The covariances of the lightest and the darkest colour, to compare
            pictures. Default: from zero to the largest; symmetric where some are
            negative.
        colorbar: Whether to explain the colours.

    Returns:
        The axes.

    Raises:
        ValueError: Points, covariances, names or labels whose shapes do not fit, limits
            that are not in order, or names or labels without a tree.
        ImportError: Without matplotlib.
    """
    if not isinstance(kernel, Kernel | Tensor):
        raise ValueError(f"kernel: expected a kernel or a tensor, got {brief(kernel)}.")
    known = getattr(kernel, "tree", None) if tree is None else tree
    if known is None and not (names is None and labels is None):
        raise ValueError("names, labels: expected a tree with them, got none.")
    if limits is not None and not limits[0] < limits[1]:
        raise ValueError(f"limits: expected two numbers in order, got {limits}.")
    blocks: list[tuple[str, int]] = []
    if known is None:
        check_points(X, None)
        covariance = _covariance(kernel, X)
    else:
        paths, columns, outcomes = with_names(known, names, labels)
        check_points(X, paths.dim)
        order, blocks = _sorted_by_path(paths, X, columns, outcomes)
        covariance = _covariance(kernel, X)[order][:, order]
    ax = new_axes(ax, 4.8 if colorbar else 4.0, 4.0)
    low, high = _limits(covariance) if limits is None else limits
    image = ax.imshow(
        covariance.numpy(),
        cmap=colour_map(signed=low < 0),
        vmin=low,
        vmax=high,
        interpolation="none",
    )
    _mark_blocks(ax, blocks, len(X))
    if colorbar:
        colour_bar(ax, image)
    return ax


def _covariance(kernel: Kernel | Tensor, X: Tensor) -> Tensor:
    """``n x n`` on the CPU."""
    if isinstance(kernel, Kernel):
        with torch.no_grad():
            covariance = to_dense(kernel(X))
    else:
        covariance = kernel
    if covariance.shape != (len(X), len(X)):
        raise ValueError(
            f"kernel: expected {len(X)} x {len(X)} covariances of the points, and no "
            f"batch shape, got {tuple(covariance.shape)}."
        )
    if not len(X) or not covariance.isfinite().all():
        raise ValueError(
            "kernel: expected at least one point, and finite covariances, got "
            f"{len(X)} points and {int((~covariance.isfinite()).sum())} entries that "
            "are not finite."
        )
    return covariance.detach().double().cpu()


def _sorted_by_path(
    tree: ParameterTree,
    X: Tensor,
    names: Sequence[str],
    outcomes: Mapping[tuple[int, Any], str],
) -> tuple[Tensor, list[tuple[str, int]]]:
    """The order of the rows; the label and the number of points of each path."""
    index, order = tree.path_index(X).sort(stable=True)
    _, counts = index.unique_consecutive(return_counts=True)
    blocks = []
    first = 0
    for count in counts.tolist():
        decisions = tree.path_of(X[order[first]]).decisions
        parts = []
        for column, outcome in decisions.items():
            text = outcomes.get((column, outcome), f"{outcome}")
            if len(tree.decision_columns) > 1:
                joint = " " if isinstance(outcome, tuple) else "="
                text = f"{names[column]}{joint}{text}"
            parts.append(text)
        blocks.append((", ".join(parts), count))
        first += count
    return order.cpu(), blocks


def _mark_blocks(ax: Axes, blocks: list[tuple[str, int]], n: int) -> None:
    """Lines between blocks and their labels, below and on the left."""
    ends = [0, *accumulate(count for _, count in blocks)]
    for end in ends[1:-1]:
        ax.axhline(end - 0.5, color=INK, linewidth=0.8)
        ax.axvline(end - 0.5, color=INK, linewidth=0.8)
    shown = {
        (start + end - 1) / 2: text
        for (text, count), (start, end) in zip(blocks, pairwise(ends), strict=True)
        if count >= _SMALL * n and len(blocks) > 1  # a single block needs no label
    }
    ticks, texts = list(shown), list(shown.values())
    # long names would run into each other along the bottom
    crowded = max(map(len, texts), default=0) * len(texts) > 40
    ax.set_xticks(ticks, texts, rotation=90 if crowded else 0)
    ax.set_yticks(ticks, texts)
    ax.tick_params(length=0, labelcolor=INK)
    ax.spines[:].set_color(GREY)


def _limits(covariance: Tensor) -> tuple[float, float]:
    largest = covariance.abs().max().item() or 1.0
    # small negative values are rounding errors
    negative = covariance.min().item() < -1e-9 * largest
    return (-largest if negative else 0.0), largest
