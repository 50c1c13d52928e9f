"""`plot_partition`: the regions of a treed model, and its predictions."""

from __future__ import annotations

__all__ = ["plot_partition"]

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from botorch_structured.plots.predictions import (
    evaluating,
    limits_of,
    predicted,
    training_data,
)
from botorch_structured.plots.style import (
    BLUE,
    GREY,
    INK,
    RED,
    colour_bar,
    colour_map,
    new_axes,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RESOLUTION = {1: 801, 2: 121}
_BISECTIONS = 30
_NARROW = 0.08  # regions of less than this share of the width are not labelled


def plot_partition(
    model: Any,
    ax: Axes | None = None,
    *,
    bounds: Tensor | None = None,
    show: Literal["mean", "std"] = "mean",
    observation_noise: bool = False,
    data: bool = True,
    names: tuple[str, ...] | None = None,
    resolution: int | None = None,
    colorbar: bool = True,
) -> Axes:
    """The regions of a treed model with the surface it predicts, in 1-D or 2-D.

    Use it to see where the model splits, and its predictions on each side. In one
    dimension: the mean, a band of two standard deviations, the observations, a line at
    each border and the number of observations of each region. In two: the mean, or the
    standard deviation, as colours.

    Borders are on the axes of ``train_X``, also under an input transform. (Between a
    border and the nearest points, the prediction of a `TreedGP` may be a mixture of two
    leaves.) A model without a partition is one region, so that a plain GP can be drawn
    beside a treed one.

        >>> axes = plt.subplots(1, 2, sharey=True)[1]
        >>> plot_partition(SingleTaskGP(X, Y), axes[0])
        >>> plot_partition(TreedGP(X, Y), axes[1])

    Args:
        model: A model of one outcome, such as a `TreedGP`, fitted.
        ax: Where to draw; a new figure by default.
        bounds: ``2 x d`` corners of the picture. Default: those of the data.
        show: The mean or the standard deviation; in one dimension both are shown.
        observation_noise: Whether standard deviations include the noise.
        data: Whether to draw the training data.
        names: Names of the columns. Default: ``x0`` and ``x1``.
        resolution: Points along each axis at which the model predicts. Default: 801
            in one dimension, 121 in two.
        colorbar: Whether to explain the colours.

    Returns:
        The axes.

    Raises:
        ValueError: The model has more than two inputs, several outcomes or a batch, or
            arguments do not fit.
        ImportError: Without matplotlib.
    """
    with evaluating(model):
        X, Y = training_data(model)
        d = X.shape[-1]
        if d not in _RESOLUTION:
            raise ValueError(f"model: expected one or two inputs to draw, got {d}.")
        if show not in ("mean", "std"):
            raise ValueError(f"show: expected 'mean' or 'std', got {show!r}.")
        names = tuple(f"x{j}" for j in range(d)) if names is None else tuple(names)
        if len(names) != d:
            raise ValueError(f"names: expected {d} names, got {names}.")
        low, high = limits_of(X, bounds)
        regions = _Regions(model, X)
        n = _RESOLUTION[d] if resolution is None else resolution
        grid = [np.linspace(float(low[j]), float(high[j]), n) for j in range(d)]
        if d == 1:
            ax = new_axes(ax, 6.4, 3.8)
            _draw_line(ax, regions, X, grid[0], observation_noise)
        else:
            ax = new_axes(ax, 5.2 if colorbar else 4.6, 4.2)
            image = _draw_surface(ax, regions, grid, show, observation_noise)
            if colorbar:
                label = "mean" if show == "mean" else "standard deviation"
                colour_bar(ax, image, label)
    points, heights = X.cpu().numpy(), Y.cpu().numpy()
    if data:
        ax.scatter(
            points[:, 0],
            heights if d == 1 else points[:, 1],
            s=20 if d == 1 else 14,
            color=INK,
            edgecolors="white",
            linewidths=0.6,
            zorder=5,
        )
    ax.set_xlim(float(low[0]), float(high[0]))
    ax.set_xlabel(names[0])
    if d == 2:
        ax.set_ylim(float(low[1]), float(high[1]))
        ax.set_ylabel(names[1])
    return ax


class _Regions:
    """Regions and predictions at untransformed points."""

    def __init__(self, model: Any, like: Tensor) -> None:
        self.model, self.like = model, like
        self.partition = getattr(model, "partition", None)

    @torch.no_grad()
    def of(self, X: np.ndarray) -> np.ndarray:
        """The region of each of ``... x d`` points."""
        if self.partition is None:
            return np.zeros(X.shape[:-1], dtype=int)
        points = torch.as_tensor(X).to(self.like).reshape(-1, X.shape[-1])
        index = self.partition.leaf_index(self.model.transform_inputs(points))
        return index.reshape(X.shape[:-1]).cpu().numpy()

    def predict(self, X: np.ndarray, noise: bool) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each of ``n x d`` points."""
        return predicted(self.model, torch.as_tensor(X).to(self.like), noise)

    def borders(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Borders between pairs of ``... x d`` points in different regions."""
        first = self.of(a)
        for _ in range(_BISECTIONS):
            middle = (a + b) / 2
            same = (self.of(middle) == first)[..., None]
            a, b = np.where(same, middle, a), np.where(same, b, middle)
        return (a + b) / 2


def _draw_line(
    ax: Axes, regions: _Regions, X: Tensor, line: np.ndarray, noise: bool
) -> None:
    grid = line[:, None]
    index = regions.of(grid)
    (at,) = np.nonzero(index[1:] != index[:-1])
    cuts = regions.borders(grid[at], grid[at + 1])
    # points on both sides of a border, so that no line connects two regions
    step = 1e-9 * (line[-1] - line[0])
    grid = np.sort(np.concatenate([grid, cuts - step, cuts + step]), axis=0)
    grid = grid[(grid >= line[0]).all(-1) & (grid <= line[-1]).all(-1)]
    mean, deviation = regions.predict(grid, noise)
    index = regions.of(grid)
    changes = np.nonzero(index[1:] != index[:-1])[0] + 1
    labels = ["2 standard deviations", "mean"]
    for piece in np.split(np.arange(len(grid)), changes):
        m, s = mean[piece], 2 * deviation[piece]
        x = grid[piece, 0]
        ax.fill_between(x, m - s, m + s, color=BLUE, alpha=0.15, lw=0, label=labels[0])
        ax.plot(x, m, color=BLUE, linewidth=2, label=labels[1])
        labels = ["", ""]  # once in a legend
    tidy(ax)
    for cut in cuts[:, 0]:
        ax.axvline(cut, color=RED, linewidth=1.0, linestyle="--", zorder=1)
    if len(cuts):
        _label_regions(ax, regions, X, np.array([line[0], *cuts[:, 0], line[-1]]))


def _label_regions(ax: Axes, regions: _Regions, X: Tensor, ends: np.ndarray) -> None:
    """The number of observations, at the top of each region that has room for it."""
    middles = (ends[1:] + ends[:-1]) / 2
    leaves = regions.of(middles[:, None])
    counts = np.bincount(regions.of(X.cpu().numpy()), minlength=leaves.max() + 1)
    roomy = np.diff(ends) >= _NARROW * (ends[-1] - ends[0])
    for middle, leaf in zip(middles[roomy], leaves[roomy], strict=True):
        ax.annotate(
            f"n = {counts[leaf]}",
            (middle, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize="small",
            color=GREY,
        )


def _draw_surface(
    ax: Axes, regions: _Regions, axes: list[np.ndarray], show: str, noise: bool
) -> Any:
    """The image."""
    from matplotlib.collections import LineCollection

    grid = np.stack(np.meshgrid(*axes), axis=-1)  # rows are the second column
    mean, deviation = regions.predict(grid.reshape(-1, 2), noise)
    values = (mean if show == "mean" else deviation).reshape(grid.shape[:2])
    image = ax.pcolormesh(
        *axes, values, cmap=colour_map(), shading="gouraud", rasterized=True
    )
    segments = list(_border_segments(regions, grid))
    lines = LineCollection(segments, colors=RED, linewidths=1.2, zorder=4)
    lines.set_capstyle("projecting")
    ax.add_collection(lines, autolim=False)
    ax.spines[:].set_color(GREY)
    ax.tick_params(color=GREY, labelcolor=INK)
    return image


def _border_segments(regions: _Regions, grid: np.ndarray) -> np.ndarray:
    """``k x 2 x 2`` ends of lines between neighbouring points of different regions.

    Each line has the length of the distance between the points, and is on the border.
    """
    index = regions.of(grid)
    segments = []
    for axis in (0, 1):  # borders across rows, then across columns
        moved = np.moveaxis(index, axis, 0)
        points = np.moveaxis(grid, axis, 0)
        at = np.nonzero(moved[1:] != moved[:-1])
        border = regions.borders(points[:-1][at], points[1:][at])
        along = np.zeros(2)
        along[axis] = (grid[-1, -1, axis] - grid[0, 0, axis]) / (len(grid) - 1) / 2
        segments.append(np.stack([border - along, border + along], axis=1))
    return np.concatenate(segments)
