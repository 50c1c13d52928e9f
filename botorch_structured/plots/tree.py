"""Pictures by path: `plot_tree`, `plot_covariance`.

The decisions of a tree may be a forest, and be switched on by combinations of others.
But along one path they have an order, so the paths make a trie: each inner `TrieNode`
is the next decision on all its paths, each leaf is one path. `layout` makes that trie,
`Drawing` computes positions and draws it.
"""

from __future__ import annotations

__all__ = [
    "layout",
    "path_text",
    "plot_covariance",
    "plot_tree",
    "text_width",
    "tree_size",
    "with_names",
]

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
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

# Inches, for text of 9 points; smaller axes shrink all of it, but no text below 6.
_FONT, _SMALLEST = 9.0, 6.0
_ROW, _EDGE, _PAD, _MARGIN, _GAP = 0.36, 0.5, 0.07, 0.15, 0.25
_BAR = 1.0  # the longest bar of the counts
# Characters: from the first on the columns of a leaf take two lines; the most of both.
_LINE, _MOST = 34, 120


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

    Names in bold are decisions, boxes are their values, and beside a box stand the
    columns that it activates: those beside a leaf are its own, those further left are
    shared by all leaves to their right. With ``X`` each path shows how often it was
    evaluated, with ``Y`` also its best value; the best path is marked. Names and values
    of more than 24 characters are written without their middle.

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
    tree, names, written = with_names(tree, names, labels)
    if tree.num_paths > max_paths:
        raise ValueError(
            f"tree: expected at most max_paths={max_paths} paths to draw, got "
            f"{tree.num_paths}."
        )
    if X is None and Y is not None:
        raise ValueError("Y: expected X, the points that it belongs to, got Y alone.")
    data = None if X is None else PathData(tree, X, Y, minimize)
    return Drawing(layout(tree), names, written, data, value_format).draw(ax)


def tree_size(
    space: SearchSpace, X: Tensor, Y: Tensor, minimize: bool
) -> tuple[float, float]:
    """Inches that `plot_tree` takes with these arguments where nothing shrinks."""
    tree, names, written = with_names(space, None, None)
    data = PathData(tree, X, Y, minimize)
    return Drawing(layout(tree), names, written, data, ".4g").size


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
    given = dict(labels or {})
    if unknown := sorted(given.keys() - tree.decision_values.keys()):
        raise ValueError(
            f"labels: expected columns of {tree.decision_columns}, got {unknown}."
        )

    def label(column: int, outcome: Any) -> str:
        if isinstance(outcome, tuple):
            whole = space is not None and space.columns[column].discrete
            span = space.columns[column].within(*outcome) if space and whole else None
            if span is not None:
                return " to ".join(f"{x:g}" for x in dict.fromkeys(span))
            return _interval(*outcome)
        return str(space.columns[column].decode(outcome)) if space else f"{outcome:g}"

    written: dict[tuple[int, Any], str] = {}
    for column, outcomes in tree.decision_values.items():
        texts = given.get(column) or [label(column, outcome) for outcome in outcomes]
        if len(texts) != len(outcomes):
            raise ValueError(
                f"labels[{column}]: expected {len(outcomes)} names, one for each of "
                f"{outcomes}, got {list(texts)}."
            )
        for outcome, text in zip(outcomes, texts, strict=True):
            written[column, outcome] = str(text)
    return tree, list(names), written


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
    """An interval as text. An end next to a short number is open: ``< 0.5``."""

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
    """

    outcome: tuple[int, float | tuple[float, float]] | None
    paths: list[int]
    columns: list[int] = field(default_factory=list)
    decision: int | None = None
    depth: int = 0
    row: float = 0.0
    children: list[TrieNode] = field(default_factory=list)

    def walk(self) -> Iterator[TrieNode]:
        """This node and all below it, from the top."""
        yield self
        for child in self.children:
            yield from child.walk()


def layout(tree: ParameterTree) -> TrieNode:
    """The root of the drawing; each leaf has exactly one path."""
    paths = list(tree.paths)
    decisions = set(tree.decision_columns)
    rows = iter(range(len(paths)))

    def grow(node: TrieNode, made: frozenset[int], shown: frozenset[int]) -> None:
        here = [paths[i] for i in node.paths]
        active = set.intersection(*(set(path.active_columns) for path in here))
        node.columns = sorted(active - decisions - shown)
        open_decisions = set.intersection(*(set(p.decisions) for p in here)) - made
        if not open_decisions:
            node.row = next(rows)
            return
        node.decision = decision = min(open_decisions)
        for value in tree.decision_values[decision]:
            through = [i for i in node.paths if paths[i].decisions[decision] == value]
            if through:
                child = TrieNode((decision, value), through, depth=node.depth + 1)
                grow(child, made | {decision}, shown | set(node.columns))
                node.children.append(child)
        node.row = (node.children[0].row + node.children[-1].row) / 2

    root = TrieNode(None, list(range(len(paths))))
    grow(root, frozenset(), frozenset())
    return root


class PathData:
    """Counts and best values by path."""

    def __init__(
        self, tree: ParameterTree, X: Tensor, Y: Tensor | None, minimize: bool
    ) -> None:
        style.check_points(X, tree.dim)
        index = tree.path_index(X).tolist()
        self.counts = [index.count(i) for i in range(tree.num_paths)]
        self.elsewhere = sum(i >= tree.num_paths for i in index)
        self.best: list[float] | None = None
        self.winner: int | None = None
        if Y is None:
            return
        if not isinstance(Y, Tensor) or Y.numel() != len(X):
            got = f"shape {tuple(Y.shape)}" if isinstance(Y, Tensor) else brief(Y)
            raise ValueError(
                f"Y: expected one outcome for each of the {len(X)} points, got {got}."
            )
        values = Y.detach().double().reshape(-1).cpu() * (1 if minimize else -1)
        lowest = [math.inf] * tree.num_paths
        for i, value in zip(index, values.tolist(), strict=True):
            if i < tree.num_paths and not math.isnan(value):
                lowest[i] = min(lowest[i], value)
        if min(lowest) < math.inf:
            self.winner = lowest.index(min(lowest))
        self.best = [value if minimize else -value for value in lowest]


class Drawing:
    """Positions of all parts, in inches from the upper left corner; draws them."""

    def __init__(
        self,
        root: TrieNode,
        names: Sequence[str],
        labels: Mapping[tuple[int, Any], str],
        data: PathData | None,
        value_format: str,
    ) -> None:
        self.root, self.names, self.labels = root, names, labels
        self.data, self.value_format = data, value_format
        self.nodes = list(root.walk())
        self._place()

    def beside(self, node: TrieNode) -> str:
        """The columns of a node; ``svm:C`` is just ``C`` beside the outcome ``svm``."""
        prefix = "" if node.outcome is None else f"{self.labels[node.outcome]}:"
        names = [shortened(self.names[c].removeprefix(prefix)) for c in node.columns]
        most = _MOST // 2 if node.children else _MOST
        ends = accumulate(len(name) + 2 for name in names)
        shown = max(1, sum(end <= most for end in ends))
        more = [f"{len(names) - shown} more"] if shown < len(names) else []
        text = ", ".join(names[:shown] + more)
        if len(text) <= _LINE or node.children:
            return text
        return "\n".join(textwrap.wrap(text, max(_LINE, len(text) // 2 + 12)))

    def best(self, path: int) -> str:
        """The best value of a path as it is written."""
        assert self.data is not None and self.data.best is not None
        if not self.data.counts[path]:
            return "–"
        value = self.data.best[path]
        return "none" if math.isinf(value) else format(value, self.value_format)

    def box(self, node: TrieNode) -> str:
        return "" if node.outcome is None else shortened(self.labels[node.outcome])

    def decision(self, node: TrieNode) -> str:
        return "" if node.decision is None else shortened(self.names[node.decision])

    def _place(self) -> None:
        """Set left ends by depth, right ends by node, and the size of the figure."""
        self.left, self.end = [_MARGIN], {}
        for depth in range(1 + max(node.depth for node in self.nodes)):
            right = self.left[depth]
            for node in (node for node in self.nodes if node.depth == depth):
                end = self.end[id(node)] = self.left[depth] + self.width_of(node)
                right = max(right, end) if node.children else right
            self.left.append(right + _EDGE)
        self.tree_width = max(self.end.values()) + _MARGIN
        leaves = 1 + max(round(node.row) for node in self.nodes)
        self.table = 0.0
        if self.data is not None:
            counts = self.data.counts
            self.table = _BAR + _PAD + max(text_width(str(count)) for count in counts)
            if self.data.best is not None:
                best = ["best", *map(self.best, range(len(counts)))]
                self.table += _GAP + max(text_width(text, bold=True) for text in best)
        self.size = (
            self.tree_width + self.table + _MARGIN,
            (leaves + (0.9 if self.data else 0.0)) * _ROW + 0.1,
        )

    def box_width(self, node: TrieNode) -> float:
        return text_width(self.box(node)) + 2 * _PAD if self.box(node) else 0.0

    def width_of(self, node: TrieNode) -> float:
        parts = [self.box_width(node)]
        if node.decision is not None:
            parts.append(text_width(self.decision(node), bold=True) + _PAD)
        if node.columns and not node.children:
            parts.append(text_width(self.beside(node)) + _PAD)
        below = text_width(self.beside(node)) if node.children else 0.0
        return max(sum(parts) + _PAD * len(parts), self.box_width(node) + below + _PAD)

    def draw(self, ax: Axes | None) -> Axes:
        width, height = self.size
        self.ax = style.new_axes(ax, width + 0.1, height + 0.1)
        self.scale = 1.0 if ax is None else self.fit()
        top = -1.4 * _ROW if self.data else -0.5 * _ROW
        self.ax.set_xlim(0, width)
        self.ax.set_ylim(top + height, top)
        self.ax.axis("off")
        winner = None if self.data is None else self.data.winner
        for node in self.nodes:
            for child in node.children:
                self.draw_edge(node, child, winner in child.paths)
            self.draw_node(node, winner in node.paths)
        if self.data is not None:
            self.draw_table(self.data)
        return self.ax

    def fit(self) -> float:
        """The factor by which everything shrinks to fit the given axes."""
        figure = self.ax.figure.figure
        figure.draw_without_rendering()  # the layout engine sets the axes' size here
        inches = figure.dpi_scale_trans.inverted()
        room = self.ax.get_window_extent().transformed(inches)
        return min(1.0, room.width / self.size[0], room.height / self.size[1])

    def draw_edge(self, node: TrieNode, child: TrieNode, marked: bool) -> None:
        x0, y0 = self.end[id(node)], node.row * _ROW
        x1, y1 = self.left[child.depth], child.row * _ROW
        t = np.linspace(0.0, 1.0, 33)
        self.ax.plot(
            x0 + (x1 - x0) * t,
            y0 + (y1 - y0) * (3.0 - 2.0 * t) * t**2,
            color=RED if marked else "#b6bec9",
            linewidth=(1.8 if marked else 1.1) * self.scale,
            zorder=2 if marked else 1,
        )

    def draw_node(self, node: TrieNode, marked: bool) -> None:
        x, y = self.left[node.depth], node.row * _ROW
        if node.outcome is not None:
            colour, face = ("white", RED) if marked else (INK, PALE)
            box = {"boxstyle": "round,pad=0.35", "facecolor": face, "edgecolor": face}
            self.text(x + _PAD, y, self.box(node), color=colour, bbox=box)
            x += self.box_width(node) + _PAD
        if node.decision is not None:
            self.text(x, y, self.decision(node), weight="bold", color=BLUE)
            y += 0.17
        self.text(x, y, self.beside(node), color=GREY)

    def draw_table(self, data: PathData) -> None:
        x, most = self.tree_width, max(1, *data.counts)
        right = x + self.table
        self.text(x, -0.85 * _ROW, "evaluations", color=GREY)
        if data.best is not None:
            self.text(right, -0.85 * _ROW, "best", color=GREY, ha="right")
        for node in (node for node in self.nodes if not node.children):
            (path,), y = node.paths, node.row * _ROW
            wins = path == data.winner
            length = _BAR * data.counts[path] / most
            self.ax.barh(y, length, 0.16, left=x, color=RED if wins else BLUE)
            self.text(x + length + _PAD, y, str(data.counts[path]), color=INK)
            if data.best is not None:
                weight, colour = ("bold", RED) if wins else ("normal", INK)
                text = self.best(path)
                self.text(right, y, text, ha="right", color=colour, weight=weight)
        if data.elsewhere:
            self.ax.annotate(
                f"{data.elsewhere} more at undeclared values",
                (1, 0),
                xycoords="axes fraction",
                ha="right",
                fontsize=max((_FONT - 1) * self.scale, _SMALLEST),
                color=GREY,
            )

    def text(self, x: float, y: float, text: str, **look: Any) -> None:
        if text:
            self.ax.text(
                x,
                y,
                text,
                fontsize=max(_FONT * self.scale, _SMALLEST),
                va="center" if "\n" in text else "center_baseline",
                linespacing=1.1,
                zorder=4,
                clip_on=False,
                **look,
            )


def text_width(text: str, bold: bool = False) -> float:
    """The width of the longest line, in inches."""
    if not text:
        return 0.0
    textpath = style.import_matplotlib("textpath")
    font = style.import_matplotlib("font_manager").FontProperties(
        weight="bold" if bold else "normal"
    )
    lines = [textpath.TextPath((0, 0), one, _FONT, font) for one in text.split("\n")]
    return float(max(line.get_extents().width for line in lines)) / 72


# Blocks of less than this share of the rows have no label: they would overlap.
_SMALL_BLOCK = 0.03


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
        style.check_points(X, None)
        covariance = _covariance(kernel, X)
    else:
        paths, columns, outcomes = with_names(known, names, labels)
        style.check_points(X, paths.dim)
        order, blocks = _sorted_by_path(paths, X, columns, outcomes)
        covariance = _covariance(kernel, X)[order][:, order]
    ax = style.new_axes(ax, 4.8 if colorbar else 4.0, 4.0)
    if limits is None:
        largest = covariance.abs().max().item() or 1.0
        # small negative values are rounding errors
        negative = covariance.min().item() < -1e-9 * largest
        limits = (-largest if negative else 0.0), largest
    low, high = limits
    image = ax.imshow(
        covariance.numpy(),
        cmap=style.colour_map(signed=low < 0),
        vmin=low,
        vmax=high,
        interpolation="none",
    )
    _mark_blocks(ax, blocks, len(X))
    if colorbar:
        style.colour_bar(ax, image)
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
        path = tree.path_of(X[order[first]])
        shown = names if len(tree.decision_columns) > 1 else None
        blocks.append((path_text(path, shown, outcomes), count))
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
        if count >= _SMALL_BLOCK * n
        and len(blocks) > 1  # a single block needs no label
    }
    ticks, texts = list(shown), list(shown.values())
    # long names would run into each other along the bottom
    crowded = max(map(len, texts), default=0) * len(texts) > 40
    ax.set_xticks(ticks, texts, rotation=90 if crowded else 0)
    ax.set_yticks(ticks, texts)
    ax.tick_params(length=0, labelcolor=INK)
    ax.spines[:].set_color(GREY)
