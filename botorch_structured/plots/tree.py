"""Pictures by path: `plot_tree`, `plot_covariance`.

The decisions of a tree may be a forest, and be switched on by combinations of others.
But along one path they have an order, so the paths make a trie: each inner `TrieNode`
is the next decision on all its paths, each leaf is one path, on a row of its own.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
_LETTER = 0.077  # inches of a letter, about


def plot_tree(
    tree: ParameterTree | SearchSpace,
    names: Sequence[str] | None = None,
    ax: Axes | None = None,
    *,
    labels: Mapping[int, Sequence[str]] | None = None,
    X: Tensor | None = None,
    Y: Tensor | None = None,
    minimize: bool = True,
) -> Axes:
    """The decisions of a search space from left to right, a row for each path.

    Names in bold are decisions, boxes are their values, and after them stand the
    columns that a value activates: those at a leaf are its own, those further left are
    shared by all leaves to their right. With ``X`` each path shows how often it was
    evaluated, with ``Y`` also its best value; the best path is red. Names and values of
    more than 24 characters are written without their middle, and columns in 60
    characters at most.

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

    Returns:
        The axes.

    Raises:
        ValueError: Something else than a tree, more than 64 paths, or arguments whose
            lengths do not fit.
        ImportError: Without matplotlib.
    """
    tree, names, texts = with_names(tree, names, labels)
    if tree.num_paths > 64:
        raise ValueError(
            f"tree: expected at most 64 paths to draw, got {tree.num_paths}."
        )
    if X is None and Y is not None:
        raise ValueError("Y: expected X, the points that it belongs to, got Y alone.")
    counts: list[int] = []
    bar_labels: list[str] = []
    winner = None
    if X is not None:
        counts, bar_labels, winner = _evaluations(tree, X, Y, minimize)
    nodes = list(layout(tree).walk())
    for node in nodes:
        node.texts = _texts(node, names, texts, winner in node.paths)
    starts = [0.0]  # of the texts at each depth, in inches
    for depth in range(max(node.depth for node in nodes) + 1):
        level = [node for node in nodes if node.depth == depth]
        gap = 0.4 if any(node.children for node in level) else 0.1
        starts.append(starts[-1] + gap + max(map(_width, level)))
    width = starts[-1] + (1.3 + _LETTER * max(map(len, bar_labels)) if counts else 0.0)
    ends = (-1.5 if counts else -0.5, tree.num_paths - 0.5)
    height = _ROW * (ends[1] - ends[0])
    scale = 1.0
    if ax is None:
        ax = style.new_axes(None, width + 0.2, height + 0.2)
    else:
        ax.figure.figure.draw_without_rendering()  # the engine sets the axes' size
        dpi = ax.figure.dpi
        scale = min(
            1.0,
            ax.bbox.width / dpi / width,
            ax.bbox.height / dpi / height,
        )
    font = max(_FONT * scale, 6.0)
    ax.set(xlim=(0.0, width), ylim=ends[::-1])
    ax.axis("off")
    for node in nodes:
        x = starts[node.depth]
        for child in node.children:
            red = winner in child.paths
            ax.plot(
                [x + _width(node), starts[child.depth] - 0.05],
                [node.row, child.row],
                color=RED if red else GREY,
                linewidth=scale,
                zorder=2 if red else 1,
            )
        for text, look in node.texts:
            ax.text(
                x,
                node.row,
                text,
                fontsize=font,
                va="center",
                **look,
            )
            x += _text_width(text)
    if counts:
        bars = ax.barh(
            range(len(counts)),
            [count / max(1, *counts) for count in counts],
            0.45,
            left=starts[-1],
            color=[RED if row == winner else BLUE for row in range(len(counts))],
        )
        ax.bar_label(
            bars,
            bar_labels,
            padding=4,
            fontsize=font,
            color=INK,
        )
        ax.text(
            starts[-1],
            -1,
            "evaluations",
            fontsize=font,
            va="center",
            color=GREY,
        )
    return ax


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
            joint = " " if text[:1] in "<>≤≥=" else "="
            text = f"{shortened(names[column], most)}{joint}{text}"
        parts.append(text)
    return ", ".join(parts)


def _interval(low: float, high: float) -> str:
    """An interval as text. An end that is a short number is in it: ``≥ 0.5``."""
    lower = f"{low:.6g}"
    upper = f"{high:.6g}"
    if lower == upper:
        return f"= {lower}"
    parts = []
    if math.isfinite(low):
        parts.append(f"{'≥' if float(lower) == low else '>'} {lower}")
    if math.isfinite(high):
        parts.append(f"{'≤' if float(upper) == high else '<'} {upper}")
    return " and ".join(parts)


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
        texts: Its texts from left to right, and their looks.
    """

    outcome: tuple[int, float | tuple[float, float]] | None
    paths: list[int]
    columns: list[int] = field(default_factory=list)
    decision: int | None = None
    depth: int = 0
    row: float = 0.0
    children: list[TrieNode] = field(default_factory=list)
    texts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def walk(self) -> Iterator[TrieNode]:
        """This node and all below it, from the top."""
        yield self
        for child in self.children:
            yield from child.walk()


def layout(tree: ParameterTree) -> TrieNode:
    """The root of the drawing; each leaf has exactly one path."""
    decisions = set(tree.decision_columns)

    def grow(node: TrieNode, shown: set[int]) -> None:
        through = [tree.paths[i] for i in node.paths]
        active = set.intersection(*(set(path.active_columns) for path in through))
        node.columns = sorted(active - decisions - shown)
        # in one order, parents first: paths that agree so far decide the same next
        made = [list(path.decisions.items()) for path in through]
        node.row = node.paths[0]
        if node.depth == len(made[0]):
            return
        below: dict[tuple[int, Any], list[int]] = {}
        for i, path in zip(node.paths, made, strict=True):
            below.setdefault(path[node.depth], []).append(i)
        for outcome, paths in below.items():
            child = TrieNode(outcome, paths, depth=node.depth + 1)
            grow(child, shown | set(node.columns))
            node.children.append(child)
        node.decision = made[0][node.depth][0]
        node.row = (node.children[0].row + node.children[-1].row) / 2

    root = TrieNode(None, list(range(tree.num_paths)))
    grow(root, set())
    return root


def _evaluations(
    tree: ParameterTree,
    X: Tensor,
    Y: Tensor | None,
    minimize: bool,
) -> tuple[list[int], list[str], int | None]:
    """By path: evaluations, a text with the best value, and which path is best.

    Args:
        tree: The tree.
        X: ``n x d`` points; those at undeclared values are left out.
        Y: ``n`` outcomes of them, NaN where an evaluation failed, or None.
        minimize: Whether the smallest is the best.
    """
    style.check_points(X, tree.dim)
    P = tree.num_paths
    index = tree.path_index(X).cpu().clamp_max(P)
    counts = index.bincount(minlength=P)[:P].tolist()
    labels = [str(count) for count in counts]
    if Y is None:
        return counts, labels, None
    if not isinstance(Y, Tensor) or Y.numel() != len(X):
        raise ValueError(
            f"Y: expected one outcome for each of the {len(X)} points, got {brief(Y)}."
        )
    sign = 1.0 if minimize else -1.0
    loss = (sign * Y.detach().double().flatten().cpu()).nan_to_num(math.inf)
    least = loss.new_full((P + 1,), math.inf).scatter_reduce(
        0,
        index,
        loss,
        "amin",
    )[:P]
    for path, value in enumerate(least.tolist()):
        if math.isfinite(value):
            labels[path] += f" (best {sign * value:.4g})"
    winner = int(least.argmin()) if least.isfinite().any() else None
    return counts, labels, winner


def _texts(
    node: TrieNode,
    names: Sequence[str],
    texts: Mapping[tuple[int, Any], str],
    marked: bool,
) -> list[tuple[str, dict[str, Any]]]:
    """Texts of a node from left to right, and their looks."""
    parts: list[tuple[str, dict[str, Any]]] = []
    prefix = ""
    if node.outcome is not None:
        label = texts[node.outcome]
        prefix = f"{label}:"  # ``svm:C`` is just ``C`` beside ``svm``
        box = {"facecolor": "white" if marked else PALE, "edgecolor": "none"}
        parts.append((shortened(label), {"color": RED if marked else INK, "bbox": box}))
    if node.decision is not None:
        look = {"color": BLUE, "weight": "bold"}
        parts.append((shortened(names[node.decision]), look))
    if node.columns:
        columns = [shortened(names[c].removeprefix(prefix)) for c in node.columns]
        text = textwrap.shorten(
            ", ".join(columns),
            60,
            placeholder=" …",
        )
        parts.append((text, {"color": GREY}))
    return parts


def _width(node: TrieNode) -> float:
    return sum(_text_width(text) for text, _ in node.texts)


def _text_width(text: str) -> float:
    """The width of a text of 9 points with the space behind it, in inches, about."""
    return 0.15 + _LETTER * len(text)


def plot_covariance(
    kernel: Kernel | Tensor,
    X: Tensor,
    tree: ParameterTree | SearchSpace | None = None,
    ax: Axes | None = None,
    *,
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
        labels: Decision column -> the names of its outcomes, in the order of
            ``tree.decision_values``. Default: those of the space, or the numbers.
        limits: The covariances of the lightest and the darkest colour, to compare
            pictures. Default: from zero to the largest; symmetric where some are
            negative.
        colorbar: Whether to explain the colours.

    Returns:
        The axes.

    Raises:
        ValueError: Points, covariances or labels whose shapes do not fit, or limits
            that are not in order.
        ImportError: Without matplotlib.
    """
    if not isinstance(kernel, Kernel | Tensor):
        raise ValueError(f"kernel: expected a kernel or a tensor, got {brief(kernel)}.")
    if tree is None:
        tree = getattr(kernel, "tree", None)
    if tree is not None:
        tree, columns, texts = with_names(tree, None, labels)
    if limits is not None and not limits[0] < limits[1]:
        raise ValueError(f"limits: expected two numbers in order, got {limits}.")
    style.check_points(X, None if tree is None else tree.dim)
    with torch.no_grad():
        covariance = to_dense(kernel(X)) if isinstance(kernel, Kernel) else kernel
    if covariance.shape != (len(X), len(X)):
        raise ValueError(
            f"kernel: expected {len(X)} x {len(X)} covariances of the points, and no "
            f"batch shape, got {tuple(covariance.shape)}."
        )
    covariance = covariance.detach().double().cpu()
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
    if tree is None:
        ax.set(xticks=[], yticks=[])
    else:
        # lines between the blocks of points, and labels below and on the left
        shown = columns if len(tree.decision_columns) > 1 else None
        ticks = []
        marked = []
        start = 0
        for count in index.unique_consecutive(return_counts=True)[1].tolist():
            if start:
                ax.axhline(start - 0.5, color=INK, linewidth=0.8)
                ax.axvline(start - 0.5, color=INK, linewidth=0.8)
            # labels of smaller blocks would overlap; a single block needs none
            if 0.03 * len(index) <= count < len(index):
                ticks.append(start + (count - 1) / 2)
                marked.append(path_text(tree.path_of(X[order[start]]), shown, texts))
            start += count
        ax.set_xticks(ticks, marked, rotation=90)
        ax.set_yticks(ticks, marked)
    if colorbar:
        ax.figure.colorbar(image, ax=ax)
    return ax
