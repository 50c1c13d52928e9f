"""Terms of equation (2) in batches: each of them once, in what fits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_structured.models.treed import objective as treed_groups
from botorch_structured.models.treed.growth import grow_by_variance
from botorch_structured.models.treed.objective import nested_groups, node_groups
from botorch_structured.models.treed.tree import Rows, TreeNode

seeds = st.integers(0, 10_000)


def tree(seed: int, n: int = 60) -> tuple[TreeNode, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.random((n, 2))
    return grow_by_variance(X, rng.standard_normal(n), 4), X


def rows_of(node: TreeNode) -> Rows:
    return node.rows


def expected_terms(root: TreeNode) -> Counter[Any]:
    """(leaf, whose values, rows, weight) of all pairs."""
    leaves, nodes = root.leaves(), root.walk()
    place = {id(node): k for k, node in enumerate(nodes)}
    return Counter(
        (
            j,
            j if node is leaf else len(leaves) + place[id(node)],
            tuple(sorted(node.rows)),
            round(len(leaf.rows) / len(node.rows) / (1 + leaf.depth - node.depth), 12),
        )
        for j, leaf in enumerate(leaves)
        for node in leaf.path()
    )


@settings(max_examples=10)
@given(seeds, st.sampled_from([1, 500, 5_000, 10**6]))
def test_each_term_is_in_one_group(seed: int, max_elements: int) -> None:
    root, _ = tree(seed)
    found: Counter[Any] = Counter()
    for group in node_groups(root, rows_of, max_elements):
        B, m = group.rows.shape
        assert B == 1 or B * m**2 <= max_elements
        assert group.padded == bool((group.members == 0.0).any())
        assert group.own == bool((group.values < len(root.leaves())).any())
        for b in range(B):
            rows = group.rows[b, group.members[b, 0] > 0.0]
            found[
                int(group.leaves[b]),
                int(group.values[b]),
                tuple(sorted(rows.tolist())),
                round(float(group.weights[b, 0]), 12),
            ] += 1
    assert found == expected_terms(root)


@settings(max_examples=10)
@given(seeds, st.sampled_from([1, 8_000, 10**6]))
def test_each_leaf_is_in_one_nested_group(seed: int, max_elements: int) -> None:
    root, _ = tree(seed)
    found: Counter[Any] = Counter()
    for group in nested_groups(root, rows_of, max_elements):
        B, n = group.rows.shape
        assert n == len(root.rows) and (B == 1 or B * n**2 <= max_elements)
        assert torch.equal(group.leaves, group.values) and group.own
        assert not group.padded
        for b, leaf in enumerate(group.leaves.tolist()):
            for member, weight in zip(group.members[b], group.weights[b], strict=True):
                # the rows of a node come before all others
                size = int(member.sum())
                assert (member[:size] == 1.0).all()
                if weight > 0.0:
                    rows = tuple(sorted(group.rows[b, :size].tolist()))
                    found[leaf, rows, round(float(weight), 12)] += 1
    expected = Counter((j, rows, weight) for j, _, rows, weight in expected_terms(root))
    assert found == expected


def test_small_terms_share_batches_and_large_ones_are_not_padded() -> None:
    root, _ = tree(0, 150)
    groups = node_groups(root, rows_of, 10**6)
    assert any(group.padded for group in groups)
    for group in groups:
        sizes = group.members.sum(-1)[:, 0]
        assert int(sizes.max()) == group.rows.shape[-1]
        if group.padded:
            assert sizes.max() <= treed_groups._SMALL
            assert (sizes.max() <= 1.25 * sizes + 4.0).all()
    # fewer batches than there are nodes, though every node has terms
    assert len(groups) < len(root.walk())


@pytest.mark.parametrize("make", [nested_groups, node_groups])
def test_a_leaf_without_data_counts_nothing(make: Any) -> None:
    root, X = tree(3)
    # other data, none of which is in the first leaf
    first = set(root.leaves()[0].rows)
    keep = np.array([i for i in range(len(X)) if i not in first])
    other = TreeNode(rows=keep, home=keep)

    def divide(old: TreeNode, new: TreeNode) -> None:
        new.split = old.split
        if old.split is not None:
            new.children = new.divided(X, old.split)
            for a, b in zip(old.children, new.children, strict=True):
                divide(a, b)

    divide(root, other)
    groups = make(other, rows_of, 10**6)
    leaves = torch.cat([group.leaves for group in groups])
    assert set(leaves.tolist()) == set(range(1, len(root.leaves())))
    assert all((group.row_weights >= 0.0).all() for group in groups)
    assert all(group.row_weights.isfinite().all() for group in groups)


def test_a_processor_works_within_its_cache() -> None:
    cpu, other = (
        treed_groups.batch_elements(torch.device(name)) for name in ("cpu", "cuda")
    )
    assert 8 * cpu <= 2**20 < 8 * other
