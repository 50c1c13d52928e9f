"""Pictures by path: `plot_tree`, `plot_covariance`.

The decisions of a tree may be a forest, and be switched on by combinations of others.
But along one path they have an order, so the paths make a trie: each inner `TrieNode`
is the next decision on all its paths, each leaf is one path. `layout` makes that trie,
`Drawing` computes positions and draws it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from botorch_structured.plots import style
from botorch_structured.plots.style import BLUE, GREY, INK, PALE, RED, shortened
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import brief
from botorch_structured.spaces.parameter_tree import Path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FONT = 9.0  # points; smaller axes shrink all of it, but no text below 6
_ROW = 0.36  # inches from path to path
_GAP = 0.15  # inches between texts


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

    Names in bold are decisions, boxes are their values, and after them stand the
    columns that a value activates: those at a leaf are its own, those further left are
    shared by all leaves to their right. With ``X`` each path shows how often it was
    evaluated, with ``Y`` also its best value; the best path is marked. Names and values
    of more than 24 characters are written without their middle, and columns in two
    lines at most.

    Args:
        tree: What to draw. A ``SearchSpace`` brings the names and the labels.
        names: The names of the ``d`` columns. Default: those of the space, or ``x0``,
            ``x1`` and so on.
        ax: Where to draw; by default a new figure that is just large enough. In small
            axes all shrinks, the text down to 6 points.
        labels: Decision column -> the names of its outcomes, in the order of
            ``tree.decision_values``. Default: those of the space, or the numbers.
        X: ``n x d`` evaluated points.
        Y: ``n`` or ``n x 1`` outcomes of them; NaN where an evaluation failed.
        minimize: Whether the smallest outcome is the best. False for the outcomes of
            models and of ``suggest``, of which the largest is.
        value_format: How to write the best value.
        max_paths: The largest number of paths that is drawn.

    Returns:
        The axes.

    Raises:
        ValueError: Something else than a tree, too many paths, or arguments whose
            lengths do not fit.
        ImportError: Without matplotlib.
    """
    tree, names, texts = with_names(tree, names, labels)
    if tree.num_paths > max_paths:
        raise ValueError(
            f"tree: expected at most max_paths={max_paths} paths to draw, got "
            f"{tree.num_paths}."
        )
    if X is None and Y is not None:
        raise ValueError("Y: expected X, the points that it belongs to, got Y alone.")
    data = None if X is None else PathData(tree, X, Y, minimize, value_format)
    return Drawing(tree, names, texts, data).draw(ax)


def with_names(
    tree: Any, names: Sequence[str] | None, labels: Mapping[int, Sequence[str]] | None
) -> tuple[ParameterTree, list[str], dict[tuple[int, Any], str]]:
    """A tree or that of a space, names of columns, ``(decision, outcome)`` -> name.

    Args:
        tree: The tree or the space.
        names: Default: those of the space, or ``x0``, ``x1`` and so on.
        labels: Default: those of the space, or the numbers.
    """
    space = tree if isinstance(tree, SearchSpace) else None
    tree = tree if space is None else space.tree
    if not isinstance(tree, ParameterTree):
        raise ValueError(
            f"tree: expected a ParameterTree or a SearchSpace, got {brief(tree)}."
        )
    if names is None:
        names = space.names if space else [f"x{c}" for c in range(tree.dim)]
    if len(names) != tree.dim:
        raise ValueError(
            f"names: expected {tree.dim} names, one for each column, got {len(names)}."
        )
    labels = labels or {}
    if unknown := sorted(labels.keys() - tree.decision_values.keys()):
        raise ValueError(
            f"labels: expected columns of {tree.decision_columns}, got {unknown}."
        )
    texts: dict[tuple[int, Any], str] = {}
    for column, outcomes in tree.decision_values.items():
        written = labels.get(column) or [_label(space, column, x) for x in outcomes]
        if len(written) != len(outcomes):
            raise ValueError(
                f"labels[{column}]: expected {len(outcomes)} names, one for each of "
                f"{outcomes}, got {list(written)}."
            )
        for outcome, text in zip(outcomes, written, strict=True):
            texts[column, outcome] = str(text)
    return tree, list(names), texts


def _label(space: SearchSpace | None, column: int, outcome: Any) -> str:
    if not isinstance(outcome, tuple):
        return str(space.columns[column].decode(outcome)) if space else f"{outcome:g}"
    if space is not None and space.columns[column].discrete:
        span = space.columns[column].within(*outcome)
        if span is not None:
            return " to ".join(f"{x:g}" for x in dict.fromkeys(span))
    return _interval(*outcome)


def path_text(
    path: Path,
    names: Sequence[str] | None,
    labels: Mapping[tuple[int, Any], str],
    most: int = 24,
) -> str:
    """The decisions of a path: ``learner=svm, layers ≥ 2``; without names if None."""
    parts = []
    for column, outcome in path.decisions.items():
        text = shortened(labels.get((column, outcome), f"{outcome}"), most)
        if names is not None:
            joint = " " if text[:1] in "<>≤≥=[(" else "="
            text = f"{shortened(names[column], most)}{joint}{text}"
        parts.append(text)
    return ", ".join(parts)


def _interval(low: float, high: float) -> str:
    """An interval as text. An end that is a short number is in it: ``≥ 0.5``."""
    lower = f"{low:.6g}"
    upper = f"{high:.6g}"
    closed_low = float(lower) == low
    closed_high = float(upper) == high
    if low == high or (lower == upper and closed_low and closed_high):
        return f"= {lower}"
    if math.isinf(low) and math.isinf(high):
        return "any"
    if math.isinf(low):
        return f"{'≤' if closed_high else '<'} {upper}"
    if math.isinf(high):
        return f"{'≥' if closed_low else '>'} {lower}"
    return f"{'[' if closed_low else '('}{lower}, {upper}{']' if closed_high else ')'}"


@dataclass
class TrieNode:
    """The state after some decisions.

    Args:
        outcome: The last decision, as ``(decision column, value or interval)``; None at
            the root.
        paths: The numbers of the paths that go through here.
        columns: The columns that become active here and are no decisions.
        decision: The column decided next; None at a leaf.
        depth: The number of decisions made.
        row: Its place from the top: that of the path at a leaf, else the middle of its
            children.
        parts: Its texts, their looks and the room that each takes, see `Drawing`.
        left: Where its texts begin, in inches.
        right: Where they end.
    """

    outcome: tuple[int, float | tuple[float, float]] | None
    paths: list[int]
    columns: list[int] = field(default_factory=list)
    decision: int | None = None
    depth: int = 0
    row: float = 0.0
    children: list[TrieNode] = field(default_factory=list)
    parts: list[tuple[str, dict[str, Any], float]] = field(default_factory=list)
    left: float = 0.0
    right: float = 0.0

    def walk(self) -> Iterator[TrieNode]:
        """This node and all below it, from the top."""
        yield self
        for child in self.children:
            yield from child.walk()


def layout(tree: ParameterTree) -> TrieNode:
    """The root of the drawing; each leaf has exactly one path."""
    paths = list(tree.paths)
    decisions = set(tree.decision_columns)

    def grow(node: TrieNode, made: frozenset[int], shown: frozenset[int]) -> None:
        through = [paths[i] for i in node.paths]
        active = set.intersection(*(set(path.active_columns) for path in through))
        node.columns = sorted(active - decisions - shown)
        open_decisions = set.intersection(*(set(p.decisions) for p in through)) - made
        if not open_decisions:
            (node.row,) = node.paths
            return
        node.decision = decision = min(open_decisions)
        for value in tree.decision_values[decision]:
            below = [i for i in node.paths if paths[i].decisions[decision] == value]
            if below:
                child = TrieNode((decision, value), below, depth=node.depth + 1)
                grow(child, made | {decision}, shown | set(node.columns))
                node.children.append(child)
        node.row = (node.children[0].row + node.children[-1].row) / 2

    root = TrieNode(None, list(range(len(paths))))
    grow(root, frozenset(), frozenset())
    return root


class PathData:
    """Counts and best values by path.

    Args:
        tree: The tree.
        X: ``n x d`` points.
        Y: ``n`` outcomes of them, NaN where an evaluation failed, or None.
        minimize: Whether the smallest is the best.
        value_format: How to write the best value.
    """

    def __init__(
        self,
        tree: ParameterTree,
        X: Tensor,
        Y: Tensor | None,
        minimize: bool,
        value_format: str,
    ) -> None:
        style.check_points(X, tree.dim)
        index = tree.path_index(X).cpu()
        declared = index < tree.num_paths
        counts = index[declared].bincount(minlength=tree.num_paths)
        self.counts: list[int] = counts.tolist()
        self.elsewhere = int((~declared).sum())
        self.best: list[str] | None = None
        self.winner: int | None = None
        if Y is None:
            return
        if not isinstance(Y, Tensor) or Y.numel() != len(X):
            got = f"shape {tuple(Y.shape)}" if isinstance(Y, Tensor) else brief(Y)
            raise ValueError(
                f"Y: expected one outcome for each of the {len(X)} points, got {got}."
            )
        sign = 1.0 if minimize else -1.0
        values = sign * Y.detach().double().reshape(-1).cpu()
        values = values.masked_fill(values.isnan(), math.inf)
        least = torch.full((tree.num_paths,), math.inf, dtype=torch.double)
        least.scatter_reduce_(0, index[declared], values[declared], "amin")
        if least.min() < math.inf:
            self.winner = int(least.argmin())
        self.best = []
        for count, value in zip(self.counts, least.tolist(), strict=True):
            failed = "none" if count else "–"
            written = format(sign * value, value_format)
            self.best.append(failed if math.isinf(value) else written)


class Drawing:
    """All parts and their places: inches from the left, and rows from the top."""

    def __init__(
        self,
        tree: ParameterTree,
        names: Sequence[str],
        texts: Mapping[tuple[int, Any], str],
        data: PathData | None,
    ) -> None:
        self.data = data
        self.winner = None if data is None else data.winner
        self.nodes = list(layout(tree).walk())
        self.rows = tree.num_paths
        left = _GAP
        for depth in range(1 + max(node.depth for node in self.nodes)):
            level = [node for node in self.nodes if node.depth == depth]
            for node in level:
                node.parts = _parts(node, names, texts, self.winner in node.paths)
                node.left = left
                node.right = left + sum(width for *_, width in node.parts)
            left = 0.5 + max((n.right for n in level if n.children), default=left)
        self.table = max(node.right for node in self.nodes) + _GAP
        self.width = self.table
        self.height = _ROW * self.rows
        if data is not None:
            self.width += 1.5  # a bar of one inch and its number
            self.height += _ROW * (2 if data.elsewhere else 1)
            if data.best is not None:
                self.width += max(text_width(x, weight="bold") for x in data.best)
            self.width += _GAP

    def draw(self, ax: Axes | None) -> Axes:
        """Draw all in these axes, or in those of a new figure."""
        scale = 1.0
        if ax is None:
            ax = style.new_axes(None, self.width + 0.2, self.height + 0.2)
        else:
            figure = ax.figure.figure
            figure.draw_without_rendering()  # the layout engine sets the axes' size
            room = ax.get_window_extent()
            wide = room.width / figure.dpi / self.width
            scale = min(1.0, wide, room.height / figure.dpi / self.height)
        font = max(_FONT * scale, 6.0)
        top = -0.5 if self.data is None else -1.5
        ax.set(xlim=(0.0, self.width), ylim=(top + self.height / _ROW, top))
        ax.axis("off")
        for node in self.nodes:
            for child in node.children:
                marked = self.winner in child.paths
                t = np.linspace(0.0, 1.0, 33)
                ax.plot(
                    node.right + (child.left - node.right) * t,
                    node.row + (child.row - node.row) * (3.0 - 2.0 * t) * t**2,
                    color=RED if marked else "#b6bec9",
                    linewidth=(1.8 if marked else 1.1) * scale,
                    zorder=2 if marked else 1,
                )
            x = node.left
            for text, look, width in node.parts:
                _write(ax, font, x, node.row, text, **look)
                x += width
        if self.data is not None:
            self.draw_table(ax, font, self.data)
        return ax

    def draw_table(self, ax: Axes, font: float, data: PathData) -> None:
        """A bar for the evaluations of each path, and its best value."""
        rows = range(self.rows)
        longest = max(1, *data.counts)
        bars = ax.barh(
            rows,
            [count / longest for count in data.counts],
            0.45,
            left=self.table,
            color=[RED if row == self.winner else BLUE for row in rows],
        )
        ax.bar_label(bars, data.counts, padding=4, fontsize=font, color=INK)
        _write(ax, font, self.table, -1, "evaluations", color=GREY)
        if data.elsewhere:
            more = f"{data.elsewhere} more at undeclared values"
            _write(ax, font, self.table, self.rows, more, color=GREY)
        if data.best is not None:
            right = self.width - _GAP
            _write(ax, font, right, -1, "best", color=GREY, ha="right")
            for row, text in enumerate(data.best):
                look = {"color": INK}
                if row == self.winner:
                    look = {"color": RED, "weight": "bold"}
                _write(ax, font, right, row, text, ha="right", **look)


def _write(ax: Axes, font: float, x: float, row: float, text: str, **look: Any) -> None:
    align = "center" if "\n" in text else "center_baseline"
    ax.text(x, row, text, fontsize=font, va=align, zorder=4, **look)


def _parts(
    node: TrieNode,
    names: Sequence[str],
    texts: Mapping[tuple[int, Any], str],
    marked: bool,
) -> list[tuple[str, dict[str, Any], float]]:
    """Texts of a node from left to right, their looks and the room that each takes."""
    parts: list[tuple[str, dict[str, Any]]] = []
    prefix = ""
    if node.outcome is not None:
        label = texts[node.outcome]
        prefix = f"{label}:"  # ``svm:C`` is just ``C`` beside ``svm``
        face = RED if marked else PALE
        box = {"boxstyle": "round,pad=0.35", "facecolor": face, "edgecolor": face}
        look = {"color": "white" if marked else INK, "bbox": box}
        parts.append((shortened(label), look))
    if node.decision is not None:
        look = {"color": BLUE, "weight": "bold"}
        parts.append((shortened(names[node.decision]), look))
    if node.columns:
        columns = [shortened(names[c].removeprefix(prefix)) for c in node.columns]
        text = textwrap.fill(
            ", ".join(columns),
            36,
            max_lines=2,
            placeholder=" …",
            break_on_hyphens=False,
        )
        parts.append((text, {"color": GREY}))
    return [(text, look, text_width(text, **look) + _GAP) for text, look in parts]


def text_width(text: str, **look: Any) -> float:
    """The width of a text of 9 points, in inches."""
    figure = style.new_figure(1.0, 1.0)
    drawn = figure.text(0.0, 0.0, text, fontsize=_FONT, **look)
    return float(drawn.get_window_extent().width / figure.dpi)


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
    lines separate the paths. Zero is pale; where covariances are negative, they are
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
    if tree is None:
        tree = getattr(kernel, "tree", None)
    if tree is not None:
        tree, columns, texts = with_names(tree, names, labels)
    elif not (names is None and labels is None):
        raise ValueError("names, labels: expected a tree with them, got none.")
    if limits is not None and not limits[0] < limits[1]:
        raise ValueError(f"limits: expected two numbers in order, got {limits}.")
    covariance = _covariance(kernel, X, None if tree is None else tree.dim)
    if tree is not None:
        index, order = tree.path_index(X).cpu().sort(stable=True)
        covariance = covariance[order][:, order]
    ax = style.new_axes(ax, 4.8 if colorbar else 4.0, 4.0)
    if limits is None:
        largest = covariance.abs().max().item() or 1.0
        # small negative values are rounding errors
        negative = covariance.min().item() < -1e-9 * largest
        limits = (-largest if negative else 0.0, largest)
    image = ax.imshow(
        covariance.numpy(),
        cmap="RdBu" if limits[0] < 0 else "Blues",
        clim=limits,
        interpolation="none",
    )
    ax.tick_params(length=0, labelcolor=INK)
    ax.spines[:].set_color(GREY)
    if tree is None:
        ax.set(xticks=[], yticks=[])
    else:
        _mark_paths(ax, tree, X[order], index, columns, texts)
    if colorbar:
        ax.figure.colorbar(image, ax=ax)
    return ax


def _covariance(kernel: Kernel | Tensor, X: Tensor, d: int | None) -> Tensor:
    """``n x n`` on the CPU."""
    style.check_points(X, d)
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


def _mark_paths(
    ax: Axes,
    tree: ParameterTree,
    X: Tensor,
    index: Tensor,
    names: Sequence[str],
    texts: Mapping[tuple[int, Any], str],
) -> None:
    """Lines between the blocks of sorted points, and labels below and on the left."""
    shown = names if len(tree.decision_columns) > 1 else None
    ticks = []
    labels = []
    start = 0
    for count in index.unique_consecutive(return_counts=True)[1].tolist():
        if start:
            ax.axhline(start - 0.5, color=INK, linewidth=0.8)
            ax.axvline(start - 0.5, color=INK, linewidth=0.8)
        # labels of smaller blocks would overlap; a single block needs none
        if 0.03 * len(index) <= count < len(index):
            ticks.append(start + (count - 1) / 2)
            labels.append(path_text(tree.path_of(X[start]), shown, texts))
        start += count
    # long labels would run into each other along the bottom
    crowded = max(map(len, labels), default=0) * len(labels) > 25
    ax.set_xticks(ticks, labels, rotation=90 if crowded else 0)
    ax.set_yticks(ticks, labels)
