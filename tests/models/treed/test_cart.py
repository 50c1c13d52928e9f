from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from botorch_structured.models.treed.cart import (
    ChangePoint,
    Split,
    TreeNode,
    grow,
    propose_by_variance,
    split_by_variance,
)
from botorch_structured.models.treed.growth import (
    NodeEvidence,
    fit_root,
    propose_by_evidence,
)
from botorch_structured.models.treed.tree_partition import TreePartition

Array = NDArray[np.float64]
seeds = st.integers(0, 10_000)


def grow_by_variance(
    X: Array, y: Array, least: int, max_leaves: int | None = None
) -> TreeNode:
    root = TreeNode.root(X)
    grow(root, lambda node: propose_by_variance(node, X, y, least), max_leaves)
    return root


def grow_by_evidence(
    X: Array,
    evidence: NodeEvidence,
    max_leaves: int | None = None,
    categorical: Sequence[int] = (),
) -> TreeNode:
    root = TreeNode.root(X)
    root.fit = fit_root(evidence, root.home)
    grow(
        root,
        lambda node: propose_by_evidence(node, X, evidence, 5, categorical),
        max_leaves,
    )
    return root


def data(seed: int, n: int | None = None, ties: bool = True) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 40)) if n is None else n
    X = rng.random((n, int(rng.integers(1, 5))))
    if ties and seed % 2:
        X = np.round(5 * X) / 5
    return X, rng.standard_normal(n) + (X[:, 0] > 0.5)


def reduction(y: Array, left: Array, right: Array) -> float:
    """Equation (1), as printed."""

    def u(part: Array) -> float:
        return float(np.mean((part - part.mean()) ** 2))

    return u(y) - len(left) / len(y) * u(left) - len(right) / len(y) * u(right)


def plain_search(
    X: Array, y: Array, least: int, categorical: tuple[int, ...] = ()
) -> tuple[float, Split] | None:
    """Every threshold of every column, by the definition."""
    best = None
    for j in range(X.shape[1]):
        for tau in np.unique(X[:, j]):
            x = X[:, j]
            if j in categorical:
                left, right = y[x == tau], y[x != tau]
            else:
                left, right = y[x <= tau], y[x >= tau]  # tau belongs to both
            if min(len(left), len(right)) < least:
                continue
            if max(len(left), len(right)) == len(y):
                continue
            value = reduction(y, left, right)
            if best is None or value > best[0] + 1e-12:
                best = (value, Split(j, float(tau), j in categorical))
    return best if best is not None and best[0] > 1e-11 else None


@given(seeds, st.integers(1, 6))
def test_the_best_split_is_that_of_the_definition(seed: int, least: int) -> None:
    X, y = data(seed)
    expected, found = plain_search(X, y, least), split_by_variance(X, y, least)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert found[0] == pytest.approx(expected[0], rel=1e-9, abs=1e-12)
    assert found[1] == expected[1]


@given(seeds)
def test_categorical_columns_are_split_one_against_the_rest(seed: int) -> None:
    X, y = data(seed, n=30, ties=False)
    X[:, 0] = np.floor(4 * X[:, 0])
    y = y + 3.0 * (X[:, 0] == seed % 4)
    found = split_by_variance(X, y, 3, categorical=(0,))
    expected = plain_search(X, y, 3, categorical=(0,))
    assert found is not None and expected is not None
    assert found[0] == pytest.approx(expected[0], rel=1e-9)
    assert found[1] == expected[1]


def test_nothing_to_split() -> None:
    X = np.random.default_rng(0).random((20, 2))
    assert split_by_variance(X, np.ones(20), 2) is None
    assert split_by_variance(X, 1e8 + np.zeros(20), 2) is None
    assert split_by_variance(np.ones((20, 2)), X[:, 0], 2) is None
    assert split_by_variance(X, X[:, 0], 11) is None
    assert split_by_variance(X[:1], X[:1, 0], 1) is None
    # two values: whichever is tau, one child would be everything
    assert split_by_variance(np.round(X[:, :1]), X[:, 0], 2) is None


def test_the_offset_of_outcomes_has_no_influence() -> None:
    X, y = data(4, n=30)
    near, far = split_by_variance(X, y, 3), split_by_variance(X, y + 1e6, 3)
    assert near is not None and far is not None
    assert near[1] == far[1]
    assert far[0] == pytest.approx(near[0], rel=1e-6)


def check_tree(root: TreeNode, X: Array, least: int) -> None:
    n = len(X)
    homes = np.concatenate([leaf.home for leaf in root.leaves()])
    assert sorted(homes) == list(range(n))  # each point is at home on one leaf
    for node in root.walk():
        assert set(node.home) <= set(node.rows)
        if node.split is None:
            continue
        left, right = node.children
        x = X[:, node.split.column]
        tau = node.split.threshold
        assert tau in x[node.rows]  # at a data point
        assert set(left.rows) == {i for i in node.rows if x[i] <= tau}
        assert set(right.rows) == {i for i in node.rows if x[i] >= tau}
        assert set(left.rows) & set(right.rows) == {i for i in node.rows if x[i] == tau}
        assert set(right.home) == {i for i in node.home if x[i] > tau}
    if root.split is not None:
        assert min(len(leaf.rows) for leaf in root.leaves()) >= least


@given(seeds, st.integers(2, 6))
def test_trees_by_variance(seed: int, least: int) -> None:
    X, y = data(seed, n=10 + seed % 40)
    root = grow_by_variance(X, y, least)
    check_tree(root, X, least)
    # as deep as it goes: no leaf can be split any more
    for leaf in root.leaves():
        assert split_by_variance(X[leaf.rows], y[leaf.rows], least) is None
    few = grow_by_variance(X, y, least, max_leaves=3)
    assert len(few.leaves()) == min(3, len(root.leaves()))
    assert len(grow_by_variance(X, y, least, max_leaves=1).leaves()) == 1


def test_few_leaves_are_those_that_gain_most() -> None:
    x = np.linspace(0.0, 1.0, 41)[:, None]
    y = np.where(x[:, 0] > 0.7, 10.0, 0.0) + np.where(x[:, 0] < 0.2, 1.0, 0.0)
    root = grow_by_variance(x, y, 3, max_leaves=2)
    assert root.split is not None and 0.68 < root.split.threshold < 0.73


def evidence_of(X: Array, y: Array) -> NodeEvidence:
    y = (y - y.mean()) / y.std()
    return NodeEvidence(X, y, 1e-6)


@settings(max_examples=8)
@given(seeds)
def test_trees_by_evidence(seed: int) -> None:
    X, _ = data(seed, n=30, ties=False)
    rng = np.random.default_rng(seed)
    # two regimes: a step with another wavelength
    y = np.where(X[:, 0] > 0.5, 4.0 + np.sin(20.0 * X[:, -1]), 0.1 * X[:, 0])
    y = y + 0.01 * rng.standard_normal(30)
    root = grow_by_evidence(X, evidence_of(X, y))
    check_tree(root, X, 4)
    assert root.split is not None and root.split.column == 0
    below = X[X[:, 0] <= 0.5, 0].max()
    assert abs(root.split.threshold - below) < 0.2
    assert len(grow_by_evidence(X, evidence_of(X, y), max_leaves=1).leaves()) == 1


def test_one_gp_is_enough_for_one_gp() -> None:
    """Draws of the model with one leaf are rarely split: the prior odds are 1 : 1."""
    split = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X = rng.random((40, 1 + seed % 3))
        r = np.sqrt(5.0 * ((X[:, None] - X) ** 2).sum(-1)) / 0.5
        K = (1.0 + r + r**2 / 3.0) * np.exp(-r) + 1e-4 * np.eye(40)
        y = np.linalg.cholesky(K) @ rng.standard_normal(40)
        split += len(grow_by_evidence(X, evidence_of(X, y)).leaves()) > 1
    assert split <= 1


def test_evidence_knows_more_than_variance() -> None:
    """The same mean and variance, another wavelength: CART sees nothing."""
    x = np.linspace(0.0, 1.0, 80)
    y = np.where(x < 0.5, np.sin(8 * np.pi * x), np.sin(80 * np.pi * x))
    root = grow_by_evidence(x[:, None], evidence_of(x[:, None], y))
    assert root.split is not None and abs(root.split.threshold - 0.5) < 0.06


def test_categorical_columns_in_trees_by_evidence() -> None:
    rng = np.random.default_rng(0)
    X = rng.random((40, 2))
    X[:, 1] = np.floor(3 * X[:, 1])
    y = np.where(X[:, 1] == 1.0, 5.0, 0.0) + 0.01 * rng.standard_normal(40)
    evidence = NodeEvidence(X, (y - y.mean()) / y.std(), 1e-6, categorical=[1])
    root = grow_by_evidence(X, evidence, categorical=[1])
    assert root.split == Split(1, 1.0, True)


@given(seeds)
def test_points_find_their_leaves(seed: int) -> None:
    """In torch, in a batch, as by following the tree by hand."""
    pairs = [data(seed + k, n=25) for k in range(3)]
    width = min(X.shape[1] for X, _ in pairs)
    pairs = [(X[:, :width], y) for X, y in pairs]
    roots = [grow_by_variance(X, y, 3) for X, y in pairs]
    partition = TreePartition(roots, [X for X, _ in pairs], torch.Size([3]))
    everything = torch.stack([torch.as_tensor(X) for X, _ in pairs])
    index = partition.leaf_index(everything)
    assert torch.equal(
        partition.leaf_index(everything.expand(2, 3, 25, width))[1], index
    )
    for k, (root, (X, _)) in enumerate(zip(roots, pairs, strict=True)):
        single = partition.element(k)
        assert single.num_leaves == len(root.leaves()) <= partition.num_leaves
        for number, leaf in enumerate(root.leaves()):
            assert (index[k, torch.as_tensor(leaf.home)] == number).all()
        assert torch.equal(single.leaf_index(everything[k]), index[k])
        nodes = single.nodes
        assert [n.split for n in nodes] == [n.split for n in root.walk()]
        assert [n.depth for n in nodes] == [n.depth for n in root.walk()]
        assert [n.size for n in nodes] == [len(n.rows) for n in root.walk()]
        assert [n.leaf for n in nodes if n.split is None] == list(
            range(single.num_leaves)
        )
        # data sent down the tree again arrive where they were
        again = single.tree(X)
        for a, b in zip(root.walk(), again.walk(), strict=True):
            assert np.array_equal(a.rows, b.rows) and np.array_equal(a.home, b.home)


def test_gaps() -> None:
    """At the threshold left, at the next point right, linear in between."""
    X = np.array([[0.0], [0.1], [0.2], [0.6], [0.8], [1.0]])
    root = grow_by_variance(X, np.array([0.0, 0, 0, 5, 5, 5]), 3)
    partition = TreePartition([root], [X])
    assert partition.num_leaves == 2
    points = torch.tensor([[0.0], [0.2], [0.3], [0.5], [0.6], [1.0]]).double()
    blended = partition.leaf_probabilities(points, blend=True)
    expected = torch.tensor([1.0, 1.0, 0.75, 0.25, 0.0, 0.0]).double()
    torch.testing.assert_close(blended[:, 0], expected)
    torch.testing.assert_close(blended.sum(-1), torch.ones(6).double())
    hard = partition.leaf_probabilities(points, blend=False)
    assert torch.equal(hard.argmax(-1), partition.leaf_index(points))


@pytest.mark.parametrize("seed", [3, 5])
def test_thresholds_are_weighed_by_their_evidence(seed: int) -> None:
    """Fits of the children that ended early would make the best one too sure."""
    X = np.random.default_rng(seed).random((50, 2))
    Z = 8.0 * X - 2.0
    y = Z[:, 0] * np.exp(-(Z**2).sum(-1))
    evidence = NodeEvidence(X, (y - y.mean()) / y.std(), 1e-8)
    root = grow_by_evidence(X, evidence)
    assert root.split is not None
    for node in root.walk():
        if node.split is None:
            continue
        assert node.change is not None
        x, values = X[node.home, node.split.column], []
        for threshold in node.change.starts.tolist():
            rows = node.home[x <= threshold], node.home[x > threshold]
            starts = [[node.fit.theta, child.fit.theta] for child in node.children]
            fits = [evidence.fit(*pair) for pair in zip(rows, starts, strict=True)]
            values.append(sum(fit.log_evidence for fit in fits))
        weights = np.exp(np.array(values) - max(values))
        distance = 0.5 * np.abs(weights / weights.sum() - node.change.weights.numpy())
        assert distance.sum() < 0.15


@pytest.mark.parametrize(
    "weights", [[0.0, 0.0, 1.0], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0], [1e-50, 0.2, 0.8]]
)
def test_weights_that_underflow(weights: list[float]) -> None:
    """An interval that the change is not in hides no other one, in no precision."""
    X = np.array([[0.0], [0.1], [0.2], [0.6], [0.8], [1.0]])
    root = grow_by_variance(X, np.array([0.0, 0, 0, 5, 5, 5]), 3)
    values = torch.tensor([0.1, 0.2, 0.6, 0.8]).double()
    root.change = ChangePoint(values[:-1], values[1:], torch.tensor(weights).double())
    partition = TreePartition([root], [X])
    points = torch.linspace(0.0, 1.0, 21).double().unsqueeze(-1)
    expected = root.change.left_probability(points.squeeze(-1))
    for x in (points, points.float()):
        partition.to(x)
        blended = partition.leaf_probabilities(x, blend=True)
        torch.testing.assert_close(blended[:, 0], expected.to(x))
        change = partition.nodes[0].change
        assert change is not None
        torch.testing.assert_close(change.weights.sum(), x.new_ones(()))


def test_a_batch_has_no_nodes_of_its_own() -> None:
    X, y = data(3, n=20)
    root = grow_by_variance(X, y, 3)
    partition = TreePartition([root, root], [X, X], torch.Size([2]))
    with pytest.raises(ValueError, match="element"):
        partition.nodes  # noqa: B018 (an attribute that raises)


def test_a_change_between_points_that_are_one_in_single_precision() -> None:
    starts = torch.tensor([0.2, 0.5], dtype=torch.double)
    ends = torch.tensor([0.4, 0.5 + 1e-9], dtype=torch.double)
    change = ChangePoint(starts, ends, torch.tensor([0.25, 0.75], dtype=torch.double))
    x = torch.tensor([0.1, 0.3, 0.45, 0.5, 0.7], requires_grad=True)
    left = change.left_probability(x)
    torch.testing.assert_close(left, torch.tensor([1.0, 0.875, 0.75, 0.75, 0.0]))
    (slope,) = torch.autograd.grad(left.sum(), x)
    torch.testing.assert_close(slope, torch.tensor([0.0, -1.25, 0.0, 0.0, 0.0]))
