"""Pictures of models: `plot_monotone_components`, `plot_partition`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from botorch.models.deterministic import DeterministicModel
from torch import Tensor

from botorch_structured.models.checks import raw_inputs
from botorch_structured.plots import style
from botorch_structured.plots.style import BLUE, INK, RED
from botorch_structured.spaces.arguments import check_column

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_monotone_components(
    model: Any,
    axes: Sequence[Axes] | None = None,
    *,
    without: Any | None = None,
    column: int = 0,
    bounds: Tensor | None = None,
    names: Sequence[str] | None = None,
) -> list[Axes]:
    """Each component along one column, and their sum, with its data and virtual points.

    To see the effect of monotonicity, give the same model without it, fitted, as
    ``without``. A panel for each component and one for the sum show the mean and a band
    of two standard deviations; the mean of ``without`` is dashed. Triangles at the
    lower edge mark the virtual points; they point up where the component rises along
    ``column`` and down where it falls. Other inputs are those of the observation with
    the largest sum (of the first one where not all components were observed at the same
    points); observations elsewhere are pale.

        >>> up, down = MonotoneGP(X, Y1, {0: 1}), MonotoneGP(X, Y2, {0: -1})
        >>> plain = DecomposedGP(SingleTaskGP(X, Y1), SingleTaskGP(X, Y2))
        >>> plot_monotone_components(DecomposedGP(up, down), without=plain)

    Args:
        model: A `DecomposedGP`, or one GP with data, which is one panel.
        axes: Where to draw, as many as there are panels; a new figure by default.
        without: A model with as many components, in the same order.
        column: Which input is on the horizontal axis.
        bounds: ``2 x d`` corners. Default: those of the first component's data and of
            all virtual points.
        names: Names of the components. Default: ``f1``, ``f2``, ..., with a note for
            known ones.

    Returns:
        The axes, one for each component and, if there are several, one for the sum.

    Raises:
        ValueError: Components or arguments do not fit, or there is a batch.
        ImportError: Without matplotlib.
    """
    components = list(getattr(model, "components", [model]))
    others = [None] * len(components)
    if without is not None:
        others = list(getattr(without, "components", [without]))
    if len(others) != len(components):
        raise ValueError(
            f"without: expected a model of {len(components)} components, got "
            f"{len(others)}."
        )
    # in training mode input transforms would learn from the points of the picture
    for part in (*components, *others):
        if isinstance(part, torch.nn.Module):
            part.eval()
    data = [  # None for a known component
        None if isinstance(part, DeterministicModel) else _training_data(part)
        for part in components
    ]
    total = _observed_sum(data, components)
    line = _line(components, data, total, column, bounds)
    if names is None:
        names = [
            f"f{k} (known)" if points is None else f"f{k}"
            for k, points in enumerate(data, 1)
        ]
    if isinstance(names, str) or len(names) != len(components):
        raise ValueError(f"names: expected {len(components)} names, got {names!r}.")
    shown = list(zip(names, components, others, data, strict=True))
    if len(components) > 1:
        shown.append(("sum", model, without, total))
    if axes is None:
        panels = style.new_panels(len(shown), 3.8, 3.4)
    else:
        panels = [*np.ravel(np.array(axes))]
    if len(panels) != len(shown):
        raise ValueError(f"axes: expected {len(shown)} of them, got {len(panels)}.")
    for ax, (title, part, other, points) in zip(panels, shown, strict=True):
        label = "mean"
        if other is not None:
            label = "with monotonicity"
            _draw_prediction(
                ax,
                other,
                line,
                column,
                RED,
                "without monotonicity",
                "--",
            )
        _draw_prediction(ax, part, line, column, BLUE, label)
        if points is not None:
            _draw_data(ax, *points, line, column)
        _draw_signs(ax, part, column)
        ax.set_title(title, fontsize="medium")
        ax.set_xlabel(f"x{column}")
        ax.set_xlim(float(line[0, column]), float(line[-1, column]))
        style.tidy(ax)
    panels[0].set_ylabel("outcome")
    if axes is None:
        panels[0].figure.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=4,
            frameon=False,
        )
    else:
        panels[0].legend(
            edgecolor="none",
            framealpha=0.8,
            fontsize="small",
        )
    return panels


def _observed_sum(
    data: Sequence[tuple[Tensor, Tensor] | None], components: Sequence[Any]
) -> tuple[Tensor, Tensor] | None:
    """``n`` observations of the sum; None unless all are at the same points."""
    inputs = [points[0] for points in data if points is not None]
    if not all(torch.equal(inputs[0], X) for X in inputs):
        return None
    with torch.no_grad():
        values = [
            part.posterior(inputs[0]).mean.squeeze(-1) if points is None else points[1]
            for part, points in zip(components, data, strict=True)
        ]
    return inputs[0], torch.stack(values).sum(0)


def _line(
    components: Sequence[Any],
    data: Sequence[tuple[Tensor, Tensor] | None],
    total: tuple[Tensor, Tensor] | None,
    column: int,
    bounds: Tensor | None,
) -> Tensor:
    """``201 x d`` points along the column."""
    X = next(points for points in data if points is not None)[0]
    check_column("column", column, X.shape[-1])
    virtual = [_virtual_points(part) for part in components]
    shown = torch.cat([X, *(points.to(X) for points in virtual if points is not None)])
    low, high = _limits_of(shown, bounds)
    best = 0 if total is None else total[1].argmax()
    line = X[best].repeat(201, 1)
    line[:, column] = torch.linspace(low[column], high[column], len(line)).to(X)
    return line


def _draw_prediction(
    ax: Axes,
    model: Any,
    points: Tensor,
    column: int,
    colour: str,
    label: str,
    dashes: str = "-",
    noise: bool = False,
) -> None:
    """The mean along a column, and a band of two standard deviations."""
    mean, deviation = _predicted(model, points, noise)
    x = points[:, column].cpu().numpy()
    band = (mean - 2 * deviation, mean + 2 * deviation)
    ax.fill_between(
        x,
        *band,
        color=colour,
        alpha=0.15,
        linewidth=0,
    )
    ax.plot(
        x,
        mean,
        color=colour,
        linewidth=2,
        linestyle=dashes,
        label=label,
    )


def _draw_data(
    ax: Axes,
    X: Tensor,
    Y: Tensor,
    line: Tensor,
    column: int,
) -> None:
    """Pale where the observation is off the line."""
    same = line[0] == X
    same[:, column] = True
    alpha: Any = torch.where(same.all(-1), 1.0, 0.3).cpu()
    ax.scatter(
        X[:, column].cpu(),
        Y.cpu(),
        s=20,
        color=INK,
        alpha=alpha,
        zorder=5,
    )


def _virtual_points(part: Any) -> Tensor | None:
    """``m x d``, on the axes of the data."""
    points = getattr(part, "virtual_points", None)
    transform = getattr(part, "input_transform", None)
    if points is None or transform is None:
        return points
    return transform.untransform(points)


def _draw_signs(ax: Axes, part: Any, column: int) -> None:
    """Triangles at the lower edge, at virtual points, in the known direction."""
    sign = getattr(part, "monotone", {}).get(column)
    points = _virtual_points(part)
    if sign is not None and points is not None:
        x = points[:, column].detach().cpu()
        ax.scatter(
            x,
            torch.full_like(x, 0.03),
            marker="^" if sign > 0 else "v",
            color=BLUE,
            transform=ax.get_xaxis_transform(),
            label="virtual points",
        )


def plot_partition(
    model: Any,
    ax: Axes | None = None,
    *,
    bounds: Tensor | None = None,
    observation_noise: bool = False,
    names: tuple[str, ...] | None = None,
) -> Axes:
    """The regions of a treed model with the surface it predicts, in 1-D or 2-D.

    Use it to see where the model splits, and its predictions on each side. In one
    dimension: the mean, a band of two standard deviations, the observations and a line
    at each border. In two: the mean as colours.

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
        observation_noise: Whether the band includes the noise.
        names: Names of the columns. Default: ``x0`` and ``x1``.

    Returns:
        The axes.

    Raises:
        ValueError: The model has more than two inputs, several outcomes or a batch, or
            arguments do not fit.
        ImportError: Without matplotlib.
    """
    X, Y = _training_data(model)
    model.eval()  # in training mode transforms would learn from points of the picture
    d = X.shape[-1]
    if d > 2:
        raise ValueError(f"model: expected one or two inputs to draw, got {d}.")
    names = tuple(f"x{j}" for j in range(d)) if names is None else tuple(names)
    if len(names) != d:
        raise ValueError(f"names: expected {d} names, got {names}.")
    low, high = _limits_of(X, bounds)
    if d == 1:
        ax = style.new_axes(ax, 6.4, 3.8)
        points = torch.as_tensor(np.linspace(low, high, 801)).to(X)
        _draw_prediction(
            ax,
            model,
            points,
            0,
            BLUE,
            "mean",
            noise=observation_noise,
        )
        grid = np.linspace(low, high, 100_001)
        for border in grid[1:][np.diff(_regions(model, X, grid)) != 0]:
            ax.axvline(
                border[0],
                color=RED,
                linewidth=1.0,
                linestyle="--",
            )
        heights = Y
        style.tidy(ax)
    else:
        ax = style.new_axes(ax, 5.2, 4.2)
        axes, grid = _grid(low, high, 121)
        mean, _ = _predicted(
            model,
            torch.as_tensor(grid).to(X),
            observation_noise,
        )
        image = ax.pcolormesh(
            *axes,
            mean.reshape(121, 121),
            cmap="Blues",
            shading="gouraud",
            rasterized=True,
        )
        axes, grid = _grid(low, high, 601)
        regions = _regions(model, X, grid).reshape(601, 601)
        for region in np.unique(regions)[1:]:
            ax.contour(
                *axes,
                regions == region,
                [0.5],
                colors=RED,
                linewidths=1.2,
            )
        ax.figure.colorbar(image, ax=ax, label="mean")
        heights = X[:, 1]
        ax.set(ylim=(low[1], high[1]), ylabel=names[1])
    ax.scatter(
        X[:, 0].cpu(),
        heights.cpu(),
        s=14,
        color=INK,
        zorder=5,
    )
    ax.set(xlim=(low[0], high[0]), xlabel=names[0])
    return ax


def _grid(
    low: list[float], high: list[float], n: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """``n`` places along each of two axes, and ``n^2 x 2`` points, row after row."""
    axes = [np.linspace(a, b, n) for a, b in zip(low, high, strict=True)]
    return axes, np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)


@torch.no_grad()
def _regions(model: Any, X: Tensor, points: np.ndarray) -> np.ndarray:
    """The number of the region of each of ``n x d`` points, on the axes of ``X``."""
    partition = getattr(model, "partition", None)
    if partition is None:
        return np.zeros(len(points), dtype=int)
    inputs = model.transform_inputs(torch.as_tensor(points).to(X))
    index: np.ndarray = partition.leaf_index(inputs).cpu().numpy()
    return index


@torch.no_grad()
def _predicted(
    model: Any, points: Tensor, noise: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation at each of ``n x d`` points.

    Each point by itself: a joint covariance is not needed, and is large.
    """
    means = []
    variances = []
    for part in points.unsqueeze(-2).split(4096):
        posterior = model.posterior(part, observation_noise=noise)
        means.append(posterior.mean.reshape(-1))
        variances.append(posterior.variance.reshape(-1))
    deviation = torch.cat(variances).clamp_min(0).sqrt()
    return torch.cat(means).cpu().numpy(), deviation.cpu().numpy()


def _training_data(model: Any) -> tuple[Tensor, Tensor]:
    """``n x d`` and ``n`` numbers as they were given, before any transform."""
    targets = getattr(model, "train_targets", None)
    if not isinstance(targets, Tensor):
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


def _limits_of(X: Tensor, bounds: Tensor | None) -> list[list[float]]:
    """The lower and the upper ends of ``bounds``, or of the data without them."""
    d = X.shape[-1]
    if bounds is None:
        bounds = torch.stack([X.amin(0), X.amax(0)])
    if not isinstance(bounds, Tensor) or bounds.shape != (2, d):
        raise ValueError(f"bounds: expected a 2 x {d} tensor, got {bounds!r}.")
    if not (bounds[0] < bounds[1]).all():
        raise ValueError(
            f"bounds: expected lower ones below the upper ones, got {bounds.tolist()}."
        )
    return bounds.tolist()
