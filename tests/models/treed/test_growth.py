"""The fits of nodes against plain dense computations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import MultivariateNormal
from treed_models import stationary, step_data

from botorch_structured.models import TreedGP
from botorch_structured.models.treed.cart import (
    ChangePoint,
    Split,
    TreeNode,
    grow,
    propose_by_variance,
)
from botorch_structured.models.treed.growth import (
    NodeEvidence,
    fit_root,
    propose_by_evidence,
)
from botorch_structured.models.treed.tree_partition import TreePartition

pytestmark = pytest.mark.usefixtures("double")


seeds = st.integers(0, 10_000)


def dense_log_density(
    theta: Tensor, X: Tensor, y: Tensor, noise: Tensor, rbf: bool
) -> Tensor:
    """Log density of data under (log l_1, .., log l_d, log s^2, m, log v)."""
    d = len(theta) - 3
    K = stationary(X, X, theta[:d].exp(), theta[d].exp(), rbf) + torch.diag(noise)
    return MultivariateNormal(theta[d + 1].expand(len(y)), K).log_prob(y)


@settings(max_examples=12)
@given(seeds, st.booleans(), st.booleans())
def test_evidence_of_a_node(seed: int, rbf: bool, one: bool) -> None:
    """Value and gradient, with one lengthscale or one for each column."""
    rng = np.random.default_rng(seed)
    n, d = 14, 1 + seed % 3
    X, y = rng.random((n, d)), rng.standard_normal(n)
    floor, k, everything = 1e-6, 1 if one else d, np.arange(n)
    tX, ty = torch.as_tensor(X), torch.as_tensor(y)
    for known in (None, rng.uniform(0.1, 0.2, n)):
        node = NodeEvidence(X, y, floor, known, rbf=rbf, ard=not one)
        theta = node.mode + rng.normal(0.0, 0.3, k + 3)
        point = node.evaluate(theta, everything, node.squared)
        assert point is not None
        free = node.free
        spread = torch.eye(k + 3)
        if one:  # the lengthscale of all columns
            spread = torch.cat([spread[:1].expand(d, -1), spread[1:]])
        mode, scale = torch.as_tensor(node.mode), torch.as_tensor(node.scale)

        def log_posterior(u: Tensor) -> Tensor:
            t = spread @ u  # noqa: B023
            rows = (t[-1].exp() + floor).expand(n)
            if known is not None:  # noqa: B023
                rows = torch.as_tensor(known)  # noqa: B023
            value = dense_log_density(t, tX, ty, rows, rbf)
            gaussian = torch.distributions.Normal(mode[free], scale[free])  # noqa: B023
            return value + gaussian.log_prob(u[free]).sum()  # noqa: B023

        at = torch.as_tensor(theta).requires_grad_()
        expected = log_posterior(at)
        (slope,) = torch.autograd.grad(expected, at)
        assert point.value == pytest.approx(expected.item(), rel=1e-9)
        np.testing.assert_allclose(
            point.gradient, slope[free].numpy(), rtol=1e-5, atol=1e-6
        )
        fit = node.fit(everything, [node.mode])
        best = node.evaluate(fit.theta, everything, node.squared)
        first = node.evaluate(node.mode, everything, node.squared)
        assert best is not None and first is not None
        assert best.value >= first.value
        assert math.isfinite(fit.log_evidence)


Array = NDArray[np.float64]


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


def treed(X: Array, y: Array, **kwargs: Any) -> TreedGP:
    return TreedGP(torch.as_tensor(X), torch.as_tensor(y).unsqueeze(-1), **kwargs)


@given(seeds, st.integers(2, 6), st.sampled_from([(), (0,)]))
def test_trees_by_variance(seed: int, least: int, categorical: tuple[int, ...]) -> None:
    """Each split is the best by the definition, and no leaf can be split.

    A categorical column is split one value against the rest.
    """
    X, y = data(seed)
    if categorical:
        X[:, 0] = np.floor(4 * X[:, 0])
        y = y + 3.0 * (X[:, 0] == seed % 4)
    options: dict[str, Any] = {
        "split_criterion": "variance",
        "min_leaf_size": least,
        "categorical_features": list(categorical),
    }
    model = treed(X, y, **options)
    leaf = model.partition.leaf_index(torch.as_tensor(X)).numpy()

    def check(node: TreeNode, rows: Array, home: Array, depth: int) -> None:
        best = plain_search(X[rows], y[rows], least, categorical)
        assert (node.size, node.depth) == (len(rows), depth)
        if node.split is None:
            assert best is None
            assert (leaf[home] == node.leaf).all()
            return
        assert best is not None
        column, tau = node.split.column, node.split.threshold
        assert node.split.categorical == (column in categorical)
        left = X[:, column] == tau if node.split.categorical else X[:, column] <= tau
        right = ~left if node.split.categorical else X[:, column] >= tau
        sides = rows[left[rows]], rows[right[rows]]
        value = reduction(y[rows], *(y[side] for side in sides))
        assert value == pytest.approx(best[0], rel=1e-9, abs=1e-12)
        homes = home[left[home]], home[~left[home]]
        for child, *parts in zip(node.children, sides, homes, strict=True):
            check(child, *parts, depth + 1)

    everything = np.arange(len(X))
    check(model.partition.nodes[0], everything, everything, 0)
    few = treed(X, y, **options, max_leaves=3)
    assert few.partition.num_leaves == min(3, model.partition.num_leaves)


def test_few_leaves_are_those_that_gain_most() -> None:
    x = np.linspace(0.0, 1.0, 41)
    y = np.where(x > 0.7, 10.0, 0.0) + np.where(x < 0.2, 1.0, 0.0)
    model = treed(x[:, None], y, split_criterion="variance", max_leaves=2)
    split = model.partition.nodes[0].split
    assert split is not None and 0.68 < split.threshold < 0.73


@settings(max_examples=8)
@given(seeds)
def test_trees_by_evidence(seed: int) -> None:
    X, _ = data(seed, n=30, ties=False)
    rng = np.random.default_rng(seed)
    # two regimes: a step with another wavelength
    y = np.where(X[:, 0] > 0.5, 4.0 + np.sin(20.0 * X[:, -1]), 0.1 * X[:, 0])
    y = y + 0.01 * rng.standard_normal(30)
    model = treed(X, y)
    split = model.partition.nodes[0].split
    assert split is not None and split.column == 0
    below = X[X[:, 0] <= 0.5, 0].max()
    assert abs(split.threshold - below) < 0.2
    assert min(n.size for n in model.partition.nodes if n.split is None) >= 4
    assert treed(X, y, max_leaves=1).partition.num_leaves == 1


def test_one_gp_is_enough_for_one_gp() -> None:
    """Draws of the model with one leaf are rarely split: the prior odds are 1 : 1."""
    split = 0
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        X = torch.rand(40, 1 + seed % 3, generator=g)
        K = stationary(X, X, torch.tensor(0.5), 1.0, rbf=False) + 1e-4 * torch.eye(40)
        Y = torch.linalg.cholesky(K) @ torch.randn(40, 1, generator=g)
        split += TreedGP(X, Y).partition.num_leaves > 1
    assert split <= 1


def test_evidence_knows_more_than_variance() -> None:
    """The same mean and variance, another wavelength: CART sees nothing."""
    x = np.linspace(0.0, 1.0, 80)
    y = np.where(x < 0.5, np.sin(8 * np.pi * x), np.sin(80 * np.pi * x))
    split = treed(x[:, None], y).partition.nodes[0].split
    assert split is not None and abs(split.threshold - 0.5) < 0.06


@pytest.mark.parametrize("seed", [3, 5])
def test_thresholds_are_weighed_by_their_evidence(seed: int) -> None:
    """Fits of the children that ended early would make the best one too sure."""
    X = np.random.default_rng(seed).random((50, 2))
    Z = 8.0 * X - 2.0
    y = Z[:, 0] * np.exp(-(Z**2).sum(-1))
    evidence = NodeEvidence(X, (y - y.mean()) / y.std(), 1e-8)
    root = TreeNode.root(X)
    root.fit = fit_root(evidence, root.home)
    grow(root, lambda node: propose_by_evidence(node, X, evidence, 5, ()))
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
    root, y = TreeNode.root(X), np.array([0.0, 0, 0, 5, 5, 5])
    grow(root, lambda node: propose_by_variance(node, X, y, 3))
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
    X, Y = step_data(20)
    model = TreedGP(X.expand(2, 20, 2), Y.expand(2, 20, 1))
    with pytest.raises(ValueError, match="element"):
        assert model.partition.nodes


def test_a_change_between_points_that_are_one_in_single_precision() -> None:
    starts = torch.tensor([0.2, 0.5], dtype=torch.double)
    ends = torch.tensor([0.4, 0.5 + 1e-9], dtype=torch.double)
    change = ChangePoint(starts, ends, torch.tensor([0.25, 0.75], dtype=torch.double))
    x = torch.tensor([0.1, 0.3, 0.45, 0.5, 0.7]).float().requires_grad_()
    left = change.left_probability(x)
    expected = torch.tensor([1.0, 0.875, 0.75, 0.75, 0.0]).float()
    torch.testing.assert_close(left, expected)
    (slope,) = torch.autograd.grad(left.sum(), x)
    expected = torch.tensor([0.0, -1.25, 0.0, 0.0, 0.0]).float()
    torch.testing.assert_close(slope, expected)
