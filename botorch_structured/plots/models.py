"""Pictures of models: `plot_monotone_components`, `plot_partition`."""

from __future__ import annotations

__all__ = ["plot_monotone_components", "plot_partition"]

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from botorch.models.deterministic import DeterministicModel
from torch import Tensor

from botorch_structured.models.checks import raw_inputs
from botorch_structured.plots import style
from botorch_structured.plots.style import BLUE, GREY, INK, RED
from botorch_structured.spaces import ParameterTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WITHOUT = "without monotonicity"
_OFF_SLICE = 1e-6  # widths: data further from the line are drawn hollow


def plot_monotone_components(
    model: Any,
    axes: Sequence[Axes] | None = None,
    *,
    without: Any | None = None,
    column: int = 0,
    at: Tensor | None = None,
    bounds: Tensor | None = None,
    names: Sequence[str] | None = None,
    resolution: int = 201,
) -> list[Axes]:
    """Each component along one column, and their sum, with its data and virtual points.

    To see the effect of monotonicity, give the same model without it, fitted, as
    ``without``. A panel for each component and one for the sum show the mean and a band
    of two standard deviations; the mean of ``without`` is dashed. Triangles at the
    lower edge mark the virtual points; they point up where the component rises along
    ``column`` and down where it falls. Observations off the line shown are hollow.

        >>> up, down = MonotoneGP(X, Y1, {0: 1}), MonotoneGP(X, Y2, {0: -1})
        >>> plain = DecomposedGP(SingleTaskGP(X, Y1), SingleTaskGP(X, Y2))
        >>> plot_monotone_components(DecomposedGP(up, down), without=plain)

    Args:
        model: A `DecomposedGP`, or one GP with data, which is one panel.
        axes: Where to draw, as many as there are panels; a new figure by default.
        without: A model with as many components, in the same order.
        column: Which input is on the horizontal axis.
        at: ``d`` values of the other inputs. Default: the observation with the largest
            sum where all components were observed at the same points, else the first.
        bounds: ``2 x d`` corners. Default: those of the first component's data and of
            all virtual points.
        names: Names of the components. Default: ``f1``, ``f2``, ..., with a note for
            known ones.
        resolution: The number of points at which the models predict.

    Returns:
        The axes, one for each component and, if there are several, one for the sum.

    Raises:
        ValueError: Components or arguments do not fit, there is a batch, or ``column``
            is a decision of a tree, which has no values in between.
        ImportError: Without matplotlib.
    """
    parts = _parts(model)
    others: list[Any] = [None] * len(parts) if without is None else _parts(without)
    if len(others) != len(parts):
        raise ValueError(
            f"without: expected a model of {len(parts)} components, got {len(others)}."
        )
    with _evaluating(model, without):
        data = [None if _is_known(part) else _training_data(part) for part in parts]
        observed = [points for points in data if points is not None]
        virtual = [v for part in parts if (v := _virtual_points(part)) is not None]
        _check_no_decision([*parts, *others], column)
        total = _observed_sum(observed, parts)
        line = _line(observed, total, virtual, column, at, bounds, resolution)
        if names is None:
            known = [" (known)" if _is_known(part) else "" for part in parts]
            names = [f"f{k}{note}" for k, note in enumerate(known, 1)]
        if isinstance(names, str) or len(names) != len(parts):
            raise ValueError(f"names: expected {len(parts)} names, got {names!r}.")
        titles = list(names)
        if len(parts) > 1:
            parts, others = [*parts, model], [*others, without]
            titles, data = [*titles, "sum"], [*data, total]
        if axes is None:
            panels = style.new_panels(len(parts), 3.8, 3.4)
        else:
            panels = list(np.ravel(np.asarray(axes, dtype=object)))
        if len(panels) != len(parts):
            raise ValueError(f"axes: expected {len(parts)} of them, got {len(panels)}.")
        for ax, part, other, title, points in zip(
            panels, parts, others, titles, data, strict=True
        ):
            if other is not None:
                _draw_model(ax, other, line, column, RED, _WITHOUT, "--")
            label = "mean" if without is None else "with monotonicity"
            _draw_model(ax, part, line, column, BLUE, label, "-")
            if points is not None:
                _draw_data(ax, *points, line, column)
            _draw_signs(ax, part, line, column)
            ax.set_title(title, fontsize="medium")
            ax.set_xlabel(f"x{column}")
            ax.set_xlim(float(line[0, column]), float(line[-1, column]))
            style.tidy(ax)
    panels[0].set_ylabel("outcome")
    if axes is None:
        style.legend_below(panels[0].figure, panels)
    else:
        panels[0].legend(edgecolor="none", framealpha=0.8, fontsize="small")
    return panels


def _parts(model: Any) -> list[Any]:
    return list(getattr(model, "components", [model]))


def _is_known(part: Any) -> bool:
    return isinstance(part, DeterministicModel)


def _check_no_decision(parts: Sequence[Any], column: int) -> None:
    """Raise for a decision: there are no points between its values."""
    for part in parts:
        tree = getattr(part, "tree", None)
        if not isinstance(tree, ParameterTree) or column in tree.numeric_decisions:
            continue
        if column in tree.decision_columns:
            raise ValueError(
                "column: expected one that moves continuously, got the decision "
                f"{column}, which has the values {tree.decision_values[column]}."
            )


def _observed_sum(
    observed: Sequence[tuple[Tensor, Tensor]], parts: Sequence[Any]
) -> tuple[Tensor, Tensor] | None:
    """``n`` observations of the sum; None unless all are at the same points."""
    X = observed[0][0]
    if not all(torch.equal(X, points) for points, _ in observed):
        return None
    total = torch.stack([values for _, values in observed]).sum(0)
    with torch.no_grad():
        for part in filter(_is_known, parts):
            total = total + part.posterior(X).mean.squeeze(-1)
    return X, total


def _line(
    observed: Sequence[tuple[Tensor, Tensor]],
    total: tuple[Tensor, Tensor] | None,
    virtual: Sequence[Tensor],
    column: int,
    at: Tensor | None,
    bounds: Tensor | None,
    resolution: int,
) -> Tensor:
    """``resolution x d`` points along the column."""
    X = observed[0][0]
    d = X.shape[-1]
    if not 0 <= column < d:
        raise ValueError(f"column: expected one of 0 to {d - 1}, got {column}.")
    low, high = _limits_of(
        torch.cat([X, *(points.to(X) for points in virtual)]), bounds
    )
    if at is None:
        known = torch.stack([Y for _, Y in observed]).sum(0) if total else X[:1, 0]
        at = X[int(known.argmax())]
    elif not isinstance(at, Tensor) or at.shape != (d,):
        got = f"shape {tuple(at.shape)}" if isinstance(at, Tensor) else repr(at)
        raise ValueError(f"at: expected a tensor of {d} values, got {got}.")
    line = at.to(X).repeat(resolution, 1)
    steps = torch.linspace(0.0, 1.0, resolution).to(X)
    line[:, column] = low[column] + (high[column] - low[column]) * steps
    return line


def _draw_model(
    ax: Axes, part: Any, line: Tensor, column: int, colour: str, label: str, dashes: str
) -> None:
    mean, deviation = _predicted(part, line)
    x, band = line[:, column].cpu().numpy(), 2 * deviation
    if not _is_known(part):
        ax.fill_between(x, mean - band, mean + band, color=colour, alpha=0.13, lw=0)
    ax.plot(x, mean, color=colour, linewidth=2, linestyle=dashes, label=label)


def _draw_data(ax: Axes, X: Tensor, Y: Tensor, line: Tensor, column: int) -> None:
    """Filled where the observation is on the line, hollow elsewhere."""
    elsewhere = (X - line[0]).abs()
    elsewhere[:, column] = 0.0
    width = (X.amax(0) - X.amin(0)).clamp_min(torch.finfo(X.dtype).tiny)
    off = (elsewhere / width).amax(-1) > _OFF_SLICE
    for chosen, face in ((off, "none"), (~off, INK)):
        ax.scatter(
            X[chosen, column].cpu().numpy(),
            Y[chosen].cpu().numpy(),
            s=22,
            facecolors=face,
            edgecolors=GREY if face == "none" else "white",
            linewidths=0.8,
            zorder=5,
        )


def _virtual_points(part: Any) -> Tensor | None:
    """``m x d``, on the axes of the data."""
    points = getattr(part, "virtual_points", None)
    transform = getattr(part, "input_transform", None)
    if points is None or transform is None:
        return points
    return transform.untransform(points)


def _draw_signs(ax: Axes, part: Any, line: Tensor, column: int) -> None:
    """Triangles at the lower edge, at virtual points, in the known direction."""
    sign, points = getattr(part, "monotone", {}).get(column), _virtual_points(part)
    if sign is None or points is None:
        return
    x = np.unique(points[:, column].detach().cpu().numpy().round(12))
    x = x[(x >= float(line[0, column])) & (x <= float(line[-1, column]))]
    if not len(x):
        return  # and no entry of the legend
    ax.scatter(
        x,
        np.full(len(x), 0.03),
        marker="^" if sign > 0 else "v",
        s=26,
        color=BLUE,
        transform=ax.get_xaxis_transform(),
        clip_on=False,  # at the ends half of a triangle is outside
        zorder=4,
        label="virtual points",
    )


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
    with _evaluating(model):
        X, Y = _training_data(model)
        d = X.shape[-1]
        if d not in _RESOLUTION:
            raise ValueError(f"model: expected one or two inputs to draw, got {d}.")
        if show not in ("mean", "std"):
            raise ValueError(f"show: expected 'mean' or 'std', got {show!r}.")
        names = tuple(f"x{j}" for j in range(d)) if names is None else tuple(names)
        if len(names) != d:
            raise ValueError(f"names: expected {d} names, got {names}.")
        low, high = _limits_of(X, bounds)
        regions = _Regions(model, X)
        n = _RESOLUTION[d] if resolution is None else resolution
        grid = [np.linspace(float(low[j]), float(high[j]), n) for j in range(d)]
        if d == 1:
            ax = style.new_axes(ax, 6.4, 3.8)
            _draw_line(ax, regions, X, grid[0], observation_noise)
        else:
            ax = style.new_axes(ax, 5.2 if colorbar else 4.6, 4.2)
            image = _draw_surface(ax, regions, grid, show, observation_noise)
            if colorbar:
                label = "mean" if show == "mean" else "standard deviation"
                style.colour_bar(ax, image, label)
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
    """Regions of untransformed points."""

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
    points = torch.as_tensor(grid).to(X)
    mean, deviation = _predicted(regions.model, points, noise)
    index = regions.of(grid)
    changes = np.nonzero(index[1:] != index[:-1])[0] + 1
    labels = ["2 standard deviations", "mean"]
    for piece in np.split(np.arange(len(grid)), changes):
        m, s = mean[piece], 2 * deviation[piece]
        x = grid[piece, 0]
        ax.fill_between(x, m - s, m + s, color=BLUE, alpha=0.15, lw=0, label=labels[0])
        ax.plot(x, m, color=BLUE, linewidth=2, label=labels[1])
        labels = ["", ""]  # once in a legend
    style.tidy(ax)
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
    points = torch.as_tensor(grid.reshape(-1, 2)).to(regions.like)
    mean, deviation = _predicted(regions.model, points, noise)
    values = (mean if show == "mean" else deviation).reshape(grid.shape[:2])
    image = ax.pcolormesh(
        *axes, values, cmap=style.colour_map(), shading="gouraud", rasterized=True
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


_CHUNK = 4096  # points predicted at once


@contextmanager
def _evaluating(*models: Any) -> Iterator[None]:
    """Models in evaluation mode, afterwards as they were.

    In training mode input transforms would learn from the points of the plot.
    """
    training = [model for model in models if getattr(model, "training", False)]
    for model in training:
        model.eval()
    try:
        yield
    finally:
        for model in training:
            model.train()


@torch.no_grad()
def _predicted(
    model: Any, X: Tensor, noise: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation at each of ``n x d`` points.

    Each point on its own: a joint covariance is not needed, and is large.
    """
    means, deviations = [], []
    for part in X.unsqueeze(-2).split(_CHUNK):
        posterior = model.posterior(part, observation_noise=noise)
        means.append(posterior.mean.reshape(-1))
        deviations.append(posterior.variance.clamp_min(0).sqrt().reshape(-1))
    return torch.cat(means).cpu().numpy(), torch.cat(deviations).cpu().numpy()


def _training_data(model: Any) -> tuple[Tensor, Tensor]:
    """``n x d`` and ``n`` numbers as they were given, before any transform."""
    inputs = getattr(model, "train_inputs", None)
    targets = getattr(model, "train_targets", None)
    if not inputs or not isinstance(targets, Tensor):
        raise ValueError(
            f"model: expected a GP with training data, got {type(model).__name__}."
        )
    X = raw_inputs(model)
    if X.dim() != 2 or targets.shape != X.shape[:1]:
        raise ValueError(
            "model: expected n x d inputs and n outcomes, without a batch shape, got "
            f"shapes {tuple(X.shape)} and {tuple(targets.shape)}."
        )
    Y = targets.unsqueeze(-1)
    transform = getattr(model, "outcome_transform", None)
    if transform is not None:
        Y = transform.untransform(Y)[0]
    return X.detach(), Y.detach().squeeze(-1)


def _limits_of(X: Tensor, bounds: Tensor | None) -> tuple[Tensor, Tensor]:
    """The lower and the upper ends of ``bounds``, or of the data without them."""
    low, high = X.amin(0), X.amax(0)
    if bounds is not None:
        if not isinstance(bounds, Tensor) or bounds.shape != (2, X.shape[-1]):
            raise ValueError(
                f"bounds: expected a 2 x {X.shape[-1]} tensor, got {bounds!r}."
            )
        low, high = bounds.to(X)
    if not (low < high).all():
        raise ValueError(
            "bounds: expected lower ones below the upper ones, got "
            f"{low.tolist()} and {high.tolist()}."
        )
    return low, high
