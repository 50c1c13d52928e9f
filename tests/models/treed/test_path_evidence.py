"""Equation (2), and the fits of nodes and leaves, against plain dense computations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from botorch_structured.models.treed.growth import (
    LeafObjective,
    LeafPrior,
    LeafTerm,
    grow_by_variance,
)
from botorch_structured.models.treed.objective import (
    PathGroup,
    log_path_evidence,
    nested_groups,
    node_groups,
)
from botorch_structured.models.treed.scoring import NodeEvidence, NodePrior
from botorch_structured.models.treed.tree import TreeNode

seeds = st.integers(0, 10_000)


@pytest.fixture(autouse=True)
def double() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def matern(X: Tensor, length: Tensor, variance: Any = 1.0, rbf: bool = False) -> Tensor:
    """Matern-5/2, or RBF."""
    if rbf:
        squared = ((X[:, None] - X) / length).square().sum(-1)
        return variance * torch.exp(-0.5 * squared)
    r = (((X[:, None] - X) / length).square().sum(-1) * 5.0).clamp_min(1e-30).sqrt()
    return variance * (1.0 + r + r.square() / 3.0) * torch.exp(-r)


def log_density(K: Tensor, residual: Tensor) -> Tensor:
    """Log N(residual; 0, K), from torch's own distribution."""
    return torch.distributions.MultivariateNormal(
        torch.zeros_like(residual), covariance_matrix=K
    ).log_prob(residual)


def problem(seed: int) -> tuple[TreeNode, Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    X = rng.random((int(rng.integers(12, 40)), 2))
    y = rng.standard_normal(len(X)) + 3.0 * (X[:, 0] > 0.5)
    return grow_by_variance(X, y, 4), torch.as_tensor(X), torch.as_tensor(y)


def weights_as_printed(leaf: TreeNode) -> list[tuple[TreeNode, float]]:
    return [
        (node, len(leaf.rows) / len(node.rows) / (1 + leaf.depth - node.depth))
        for node in leaf.path()
    ]


@settings(max_examples=15)
@given(seeds)
def test_objective_and_gradient_are_those_of_a_dense_computation(seed: int) -> None:
    root, X, y = problem(seed)
    leaves = root.leaves()
    g = torch.Generator().manual_seed(seed)
    L = len(leaves)
    length = (0.5 + torch.rand(L, 2, generator=g).double()).requires_grad_()
    variance = (0.5 + torch.rand(L, generator=g).double()).requires_grad_()
    mean = torch.randn(L, generator=g).double().requires_grad_()
    noise = (0.01 + 0.1 * torch.rand(L, generator=g).double()).requires_grad_()
    parameters = (length, variance, mean, noise)

    def by(groups: list[PathGroup]) -> Tensor:
        total = torch.zeros(L, dtype=torch.float64)
        for group in groups:
            K = torch.stack(
                [
                    matern(X[rows], length[b], variance[b])
                    for b, rows in zip(group.leaves, group.rows, strict=True)
                ]
            )
            own_noise = noise[group.leaves].unsqueeze(-1).expand(group.rows.shape)
            residual = y[group.rows] - mean[group.leaves].unsqueeze(-1)
            value = log_path_evidence(group, K, own_noise, residual)
            total = total.index_add(0, group.leaves, value)
        return total

    dense = []
    for b, leaf in enumerate(leaves):
        terms = []
        for node, weight in weights_as_printed(leaf):
            rows = torch.as_tensor(node.rows)
            K = matern(X[rows], length[b], variance[b])
            K = K + noise[b] * torch.eye(len(rows))
            terms.append(weight * log_density(K, y[rows] - mean[b]))
        dense.append(torch.stack(terms).sum())
    expected = torch.stack(dense)
    # each leaf's own term has weight one
    assert all(weights_as_printed(leaf)[0][1] == 1.0 for leaf in leaves)
    # unequal gradients of the leaves
    scale = torch.rand(L, generator=g).double()
    slopes = torch.autograd.grad((expected * scale).sum(), parameters)
    for make in (nested_groups, node_groups):
        groups = make(root, lambda node: node.rows, 5_000)
        value = by(groups)
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
        found = torch.autograd.grad((value * scale).sum(), parameters)
        for a, b in zip(found, slopes, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_one_factorisation_per_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    root, X, y = problem(3)
    groups = nested_groups(root, lambda node: node.rows, 10**6)
    assert sum(len(group.leaves) for group in groups) == len(root.leaves())
    sizes: list[torch.Size] = []
    original = torch.linalg.cholesky_ex

    def counted(K: Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes.append(K.shape)
        return original(K, *args, **kwargs)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", counted)
    for group in groups:
        K = torch.stack([matern(X[rows], torch.ones(2)) for rows in group.rows])
        K.requires_grad_()
        noise = torch.full(group.rows.shape, 0.1).double()
        log_path_evidence(group, K, noise, y[group.rows]).sum().backward()
    assert sizes == [torch.Size([len(root.leaves()), len(X), len(X)])]


# -- fits of nodes and leaves ------------------------------------------------------


def numeric_gradient(value: Any, theta: np.ndarray) -> np.ndarray:
    steps = 1e-5 * np.eye(len(theta))
    return np.array([(value(theta + s) - value(theta - s)) / 2e-5 for s in steps])


def torch_log_density(
    theta: Tensor, X: Tensor, y: Tensor, noise: Tensor, rbf: bool
) -> Tensor:
    d = len(theta) - 3
    K = matern(X, theta[:d].exp(), theta[d].exp(), rbf) + torch.diag(noise)
    return log_density(K, y - theta[d + 1])


def expected_information(theta: Tensor, X: Tensor, noise: Any, rbf: bool) -> Tensor:
    """Minus the expected Hessian: 1/2 tr(K^-1 dK_i K^-1 dK_j), and 1' K^-1 1."""
    d = len(theta) - 3

    def covariance(t: Tensor) -> Tensor:
        v = t[d + 2].exp().expand(len(X)) if noise is None else noise
        return matern(X, t[:d].exp(), t[d].exp(), rbf) + torch.diag(v)

    dK = torch.func.jacfwd(covariance)(theta)
    inverse = torch.linalg.inv(covariance(theta))
    parts = [inverse @ dK[..., i] for i in range(d + 3)]
    info = torch.tensor([[0.5 * float((a @ b).trace()) for a in parts] for b in parts])
    info[d + 1, d + 1] = inverse.sum()
    return info


@settings(max_examples=6)
@given(seeds, st.booleans())
def test_terms_of_a_leaf(seed: int, rbf: bool) -> None:
    """Value, gradient and information of a term, with all ways to treat its noise."""
    rng = np.random.default_rng(seed)
    n, d = 12, 1 + seed % 3
    X, y = rng.random((n, d)), rng.standard_normal(n)
    known = rng.uniform(0.1, 0.2, n)
    theta = np.concatenate([rng.uniform(-1, 0.5, d), rng.normal(0, 0.3, 2), [-2.0]])
    tX, ty, t = (torch.as_tensor(a) for a in (X, y, theta))
    for noise, own in ((None, None), (known, None), (None, (0.7, 0.2, 0.05))):
        term = LeafTerm(1.0, X, y, noise, own, rbf)
        point = term.evaluate(theta)
        assert point is not None
        at = t.clone()
        rows = torch.as_tensor(known) if noise is not None else t[-1].exp().expand(n)
        if own is not None:
            at[d], at[d + 1] = math.log(own[0]), own[1]
            rows = torch.full((n,), own[2]).double()
        value = torch_log_density(at, tX, ty, rows, rbf)
        assert point.value == pytest.approx(float(value), rel=1e-9)
        slope = numeric_gradient(lambda u: term.evaluate(u).value, theta)  # noqa: B023
        np.testing.assert_allclose(point.gradient, slope, rtol=1e-5, atol=1e-6)
        info = expected_information(
            at, tX, None if own is None and noise is None else rows, rbf
        )
        if own is not None:
            info[d:], info[:, d:] = 0.0, 0.0
        np.testing.assert_allclose(
            point.information, info.numpy(), rtol=1e-7, atol=1e-9
        )


@settings(max_examples=6)
@given(seeds, st.booleans())
def test_evidence_of_a_node(seed: int, rbf: bool) -> None:
    """The same for the one lengthscale of a node; Laplace's approximation is sane."""
    rng = np.random.default_rng(seed)
    n, d = 14, 1 + seed % 3
    X, y = rng.random((n, d)), rng.standard_normal(n)
    prior = NodePrior.of_dimension(d, 1e-6)
    for known in (None, rng.uniform(0.1, 0.2, n)):
        node = NodeEvidence(X, y, prior, known, rbf=rbf)
        theta = prior.mode + rng.normal(0.0, 0.3, 4)

        def value(u: np.ndarray) -> float:
            return node._evaluate(u, node.scaled, y, known).value  # noqa: B023

        point = node._evaluate(theta, node.scaled, y, known)
        free = node.free
        slope = numeric_gradient(value, theta)[free]
        np.testing.assert_allclose(point.gradient, slope, rtol=1e-5, atol=1e-6)
        t = torch.as_tensor(np.concatenate([np.full(d, theta[0]), theta[1:]]))
        rows = (
            (t[-1].exp() + 1e-6).expand(n) if known is None else torch.as_tensor(known)
        )
        expected = float(
            torch_log_density(t, torch.as_tensor(X), torch.as_tensor(y), rows, rbf)
        )
        z = (theta - prior.mode)[free] / prior.scale[free]
        expected -= float(0.5 * z @ z + np.log(prior.scale[free]).sum())
        expected -= 0.5 * free.sum() * math.log(2.0 * math.pi)
        assert point.value == pytest.approx(expected, rel=1e-9)
        fit = node.fit(np.arange(n), [prior.mode])
        assert value(fit.theta) >= value(prior.mode)
        assert math.isfinite(fit.log_evidence)


def test_evidence_of_a_node_is_near_the_integral() -> None:
    """Against sampling from the prior, by two tenths of a nat or so."""
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 1.0, 10)[:, None]
    y = np.sin(6.0 * x[:, 0]) + 0.1 * rng.standard_normal(10)
    prior = NodePrior.of_dimension(1, 1e-6)
    node = NodeEvidence(x, y, prior)
    fit = node.fit(np.arange(10), [prior.mode])
    z = rng.standard_normal((20_000, 4))
    constant = np.log(prior.scale).sum() + 2.0 * math.log(2.0 * math.pi)
    values = []
    for draw in z:
        point = node._evaluate(prior.mode + prior.scale * draw, node.scaled, y, None)
        density = -0.5 * float(draw @ draw) - constant
        values.append(-math.inf if point is None else point.value - density)
    peak = max(values)
    integral = peak + math.log(np.mean(np.exp(np.array(values) - peak)))
    assert fit.log_evidence == pytest.approx(integral, abs=1.0)


def test_scoring_finds_the_maximum_within_bounds() -> None:
    rng = np.random.default_rng(1)
    X = rng.random((25, 2))
    y = np.sin(5.0 * X[:, 0])  # the second column does nothing, and there is no noise
    prior = LeafPrior(
        mode=np.array([-0.5, -0.5, 0.0, 0.0, -5.0]),
        scale=np.array([1.0, 1.0, 1.5, 1.0, 2.5]),
        lower=np.array([-4.0, -4.0, -9.0, -5.0, -7.0]),
        upper=np.array([4.0, 4.0, 5.0, 5.0, 2.0]),
    )
    objective = LeafObjective([LeafTerm(1.0, X, y, None, None)], prior)
    found = objective.maximise(prior.mode)
    assert found is not None and found[-1] == -7.0  # the noise is at its bound
    point = objective.evaluate(found)
    assert point is not None
    decrement = point.gradient[:-1] @ np.linalg.solve(
        point.information[:-1, :-1], point.gradient[:-1]
    )
    assert decrement < 1e-3 and point.gradient[-1] < 0.0
    assert found[1] > found[0] + 0.5


def test_scoring_gives_up_where_nothing_can_be_computed() -> None:
    X = np.zeros((3, 1))
    prior = LeafPrior(np.zeros(4), np.ones(4), -np.full(4, 50.0), np.full(4, 50.0))
    # three copies of a point, noise of 1e-20: no factor
    term = LeafTerm(1.0, X, np.arange(3.0), np.full(3, 1e-20), None)
    assert LeafObjective([term], prior).maximise(np.zeros(4)) is None
    node = NodeEvidence(X, np.arange(3.0), NodePrior.of_dimension(1, 1e-6), np.zeros(3))
    assert node.fit(np.arange(3), [np.zeros(4)]).log_evidence == -math.inf
