"""`plot_monotone_components`: the parts of a sum, with and without known signs."""

from __future__ import annotations

__all__ = ["plot_monotone_components"]

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from botorch.models.deterministic import DeterministicModel
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
    legend_below,
    new_panels,
    tidy,
)
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
    with evaluating(model, without):
        data = [None if _is_known(part) else training_data(part) for part in parts]
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
            panels = new_panels(len(parts), 3.8, 3.4)
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
            tidy(ax)
    panels[0].set_ylabel("outcome")
    if axes is None:
        legend_below(panels[0].figure, panels)
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
    low, high = limits_of(torch.cat([X, *(points.to(X) for points in virtual)]), bounds)
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
    ax: Axes, part: Any, line: Tensor, column: int, colour: str, label: str, style: str
) -> None:
    mean, deviation = predicted(part, line)
    x, band = line[:, column].cpu().numpy(), 2 * deviation
    if not _is_known(part):
        ax.fill_between(x, mean - band, mean + band, color=colour, alpha=0.13, lw=0)
    ax.plot(x, mean, color=colour, linewidth=2, linestyle=style, label=label)


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
