"""A parameter tree as a drawing: nodes in rows and columns, before any ink.

The decisions of a tree may be a forest, and be switched on by combinations of others.
Along one path, though, they are met in an order, so that the paths make a trie: each
inner node is the next decision that all its paths make, each leaf is one path.
"""

from __future__ import annotations

__all__ = ["Node", "layout"]

from collections.abc import Iterator
from dataclasses import dataclass, field

from botorch_structured.spaces import ParameterTree


@dataclass
class Node:
    """What is known after some decisions.

    Args:
        outcome: How the last decision was made, as ``(decision column, value or
            interval)``; None at the root.
        paths: The numbers of the paths that go through here.
        columns: The columns that became active here and decide nothing.
        decision: The column decided next; None at a leaf.
        depth: The number of decisions made.
        row: Its place from the top: that of the path at a leaf, else the middle of its
            children.
    """

    outcome: tuple[int, float | tuple[float, float]] | None
    paths: list[int]
    columns: list[int]
    decision: int | None = None
    depth: int = 0
    row: float = 0.0
    children: list[Node] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """This node and all below it, from the top."""
        yield self
        for child in self.children:
            yield from child.walk()


def layout(tree: ParameterTree) -> Node:
    """The root of the drawing; each leaf has exactly one path."""
    paths = list(tree.paths)
    decisions = set(tree.decision_columns)
    rows = iter(range(len(paths)))

    def grow(
        outcome: tuple[int, float | tuple[float, float]] | None,
        members: list[int],
        made: frozenset[int],
        shown: frozenset[int],
        depth: int,
    ) -> Node:
        here = [paths[i] for i in members]
        active = set.intersection(*(set(path.active_columns) for path in here))
        node = Node(outcome, members, sorted(active - decisions - shown), depth=depth)
        open_decisions = set.intersection(*(set(p.decisions) for p in here)) - made
        if not open_decisions:
            node.row = next(rows)
            return node
        node.decision = decision = min(open_decisions)
        for value in tree.decision_values[decision]:
            through = [i for i in members if paths[i].decisions[decision] == value]
            if through:
                child = grow(
                    (decision, value),
                    through,
                    made | {decision},
                    shown | set(node.columns),
                    depth + 1,
                )
                node.children.append(child)
        node.row = (node.children[0].row + node.children[-1].row) / 2
        return node

    return grow(None, list(range(len(paths))), frozenset(), frozenset(), 0)
