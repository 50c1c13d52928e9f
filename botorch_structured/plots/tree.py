"""`plot_tree`: the decisions of a search space, and where evaluations went."""

from __future__ import annotations

__all__ = ["plot_tree"]

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from botorch_structured.plots.tree_drawing import Drawing, PathData
from botorch_structured.plots.tree_layout import layout
from botorch_structured.spaces import ParameterTree, SearchSpace

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_tree(
    tree: ParameterTree | SearchSpace,
    names: Sequence[str] | None = None,
    ax: Axes | None = None,
    *,
    labels: Mapping[int, Sequence[str]] | None = None,
    X: Tensor | None = None,
    Y: Tensor | None = None,
    minimize: bool = True,
    value_format: str = ".4g",
    max_paths: int = 64,
) -> Axes:
    """The decisions of a search space from left to right, a row for each path.

    Names in bold are decisions, boxes are what they can decide, and beside a box stand
    the columns that become active there: those of a leaf are its own, those further
    left are shared by all that follows. With ``X`` each path shows how often it was
    evaluated, with ``Y`` also its best value; the best path is marked.

    Args:
        tree: What to draw. A ``SearchSpace`` brings the names and the labels.
        names: The names of the ``d`` columns. Default: those of the space, or ``x0``,
            ``x1`` and so on.
        ax: Where to draw; by default a new figure that is just large enough.
        labels: Decision column -> the names of its outcomes, in the order of
            ``tree.decision_values``. Default: those of the space, or the numbers.
        X: ``n x d`` evaluated points.
        Y: ``n`` or ``n x 1`` outcomes of them; NaN where an evaluation failed.
        minimize: Whether the smallest outcome is the best.
        value_format: How to write the best value.
        max_paths: More rows than this would not be readable.

    Returns:
        The axes.

    Raises:
        ValueError: Too many paths, or arguments whose lengths do not fit.
        ImportError: Without matplotlib.
    """
    space = tree if isinstance(tree, SearchSpace) else None
    tree = tree.tree if isinstance(tree, SearchSpace) else tree
    names = _names(tree, space, names)
    if tree.num_paths > max_paths:
        raise ValueError(
            f"tree expects at most max_paths={max_paths} paths to draw, got "
            f"{tree.num_paths}."
        )
    written = _labels(tree, space, labels)
    data = None if X is None else PathData(tree, X, Y, minimize)
    if X is None and Y is not None:
        raise ValueError("Y expects X, the points that it belongs to; got Y alone.")
    return Drawing(layout(tree), names, written, data, value_format).draw(ax)


def _names(
    tree: ParameterTree, space: SearchSpace | None, names: Sequence[str] | None
) -> list[str]:
    if names is None:
        names = space.names if space else [f"x{c}" for c in range(tree.dim)]
    if len(names) != tree.dim:
        raise ValueError(
            f"names expects {tree.dim} names, one for each column, got {len(names)}."
        )
    return list(names)


def _labels(
    tree: ParameterTree,
    space: SearchSpace | None,
    labels: Mapping[int, Sequence[str]] | None,
) -> dict[tuple[int, Any], str]:
    """``(decision, outcome)`` -> its name."""
    written: dict[tuple[int, Any], str] = {}
    for col, outcomes in tree.decision_values.items():
        given = (labels or {}).get(col)
        if given is not None and len(given) != len(outcomes):
            raise ValueError(
                f"labels[{col}] expects {len(outcomes)} names, one for each of "
                f"{outcomes}, got {list(given)}."
            )
        for i, outcome in enumerate(outcomes):
            if given is not None:
                text = str(given[i])
            elif isinstance(outcome, tuple):
                text = _interval(*outcome)
            elif space is not None:
                text = str(space.columns[col].decode(outcome))
            else:
                text = f"{outcome:g}"
            written[col, outcome] = text
    unknown = sorted(set(labels or {}) - set(tree.decision_values))
    if unknown:
        raise ValueError(
            f"labels expects decision columns, {tree.decision_columns}, got {unknown}."
        )
    return written


def _interval(low: float, high: float) -> str:
    """Ends that are the floats next to a short number do not belong: ``< 0.5``."""

    def short(x: float) -> tuple[str, bool]:
        text = f"{x:.6g}"
        return text, float(text) == x

    (lower, closed_low), (upper, closed_high) = short(low), short(high)
    if low == high or (lower == upper and closed_low and closed_high):
        return f"= {lower}"
    if math.isinf(low) and math.isinf(high):
        return "any"
    if math.isinf(low):
        return f"{'≤' if closed_high else '<'} {upper}"
    if math.isinf(high):
        return f"{'≥' if closed_low else '>'} {lower}"
    return f"{'[' if closed_low else '('}{lower}, {upper}{']' if closed_high else ')'}"
