"""Equation (2) of a whole tree, and its gradient, against the dense definition."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_operator.utils.errors import NotPSDError
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from botorch_structured.linalg.correlations import CORRELATIONS, Correlation
from botorch_structured.models.treed.growth import grow_by_variance
from botorch_structured.models.treed.objective import (
    KernelCovariances,
    PathGroup,
    StationaryCovariances,
    nested_groups,
    node_groups,
    path_evidence,
)
from botorch_structured.models.treed.tree import Rows, TreeNode

seeds = st.integers(0, 10_000)
Arguments = tuple[Tensor, Tensor, Tensor, Tensor]


def problem(seed: int, n: int) -> tuple[TreeNode, Tensor, Tensor]:
    """A tree and its data, some of them twice."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 2))
    X[-3:] = X[:3]
    y = rng.standard_normal(n) + 3.0 * (X[:, 0] > 0.5)
    return grow_by_variance(X, y, 4), torch.as_tensor(X), torch.as_tensor(y)


def rows_of(node: TreeNode) -> Rows:
    return node.rows


def arguments(root: TreeNode, X: Tensor, seed: int, nodes: int) -> Arguments:
    """Hyperparameters of leaves, then of so many nodes."""
    g = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    L, n, V = len(root.leaves()), len(X), len(root.leaves()) + nodes
    found = (
        X / (0.3 + rand(L, 1, 2)),
        0.5 + rand(V),
        (rand(V, 1) - 0.5).expand(V, n),
        # noise that differs between rows too: known noise may
        0.01 + 0.1 * rand(V, 1) + 0.05 * rand(n),
    )
    return tuple(t.clone().requires_grad_() for t in found)  # type: ignore[return-value]


def stationary(
    groups: list[PathGroup], y: Tensor, at: Arguments, correlation: Correlation
) -> Tensor:
    scaled, variance, mean, noise = at
    covariances = StationaryCovariances(correlation, scaled, variance)
    return path_evidence(groups, y, covariances, mean, noise)


def dense(
    groups: list[PathGroup], y: Tensor, at: Arguments, correlation: Correlation
) -> Tensor:
    """Term by term, each from torch's own distribution."""
    scaled, variance, mean, noise = at
    total = torch.zeros((), dtype=torch.float64)
    for group in groups:
        for b, (leaf, v) in enumerate(zip(group.leaves, group.values, strict=True)):
            for member, weight in zip(group.members[b], group.weights[b], strict=True):
                if weight == 0.0:
                    continue
                rows = group.rows[b, member > 0.0]
                s = scaled[leaf, rows]
                squared = (s[:, None] - s).square().sum(-1)
                K = variance[v] * correlation.value(squared)
                total = total + weight * torch.distributions.MultivariateNormal(
                    mean[v, rows], K + torch.diag(noise[v, rows])
                ).log_prob(y[rows])
    return total


@settings(max_examples=12)
@given(seeds, st.sampled_from(CORRELATIONS), st.sampled_from([1, 3_000, 10**6]))
def test_value_and_gradient_are_those_of_the_dense_computation(
    seed: int, correlation: Correlation, max_elements: int
) -> None:
    root, X, y = problem(seed, 24 + seed % 20)
    for make, nodes in ((nested_groups, 0), (node_groups, len(root.walk()))):
        groups = make(root, rows_of, max_elements)
        at = arguments(root, X, seed, nodes)
        value = stationary(groups, y, at, correlation)
        expected = dense(groups, y, at, correlation)
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
        found = torch.autograd.grad(3.0 * value, at)
        slopes = torch.autograd.grad(3.0 * expected, at)
        L = len(root.leaves())
        for k, (a, b) in enumerate(zip(found, slopes, strict=True)):
            if k in (1, 2):  # amplitudes and means of nodes above leaves are known
                a, b = a[:L], b[:L]
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def evidence_of(root: TreeNode, X: Tensor, y: Tensor, at: Arguments) -> Tensor:
    groups = [g.to(X) for g in node_groups(root, rows_of, 10**6)]
    return stationary(groups, y, at, CORRELATIONS[0])


def test_devices_and_single_precision(device: torch.device) -> None:
    root, X, y = problem(1, 60)
    at = arguments(root, X, 1, len(root.walk()))
    expected = evidence_of(root, X, y, at)
    slopes = torch.autograd.grad(expected, at)
    L = len(root.leaves())
    for dtype, tol in ((torch.float64, 1e-9), (torch.float32, 1e-2)):
        moved: Any = [t.detach().to(device, dtype).requires_grad_() for t in at]
        value = evidence_of(root, X.to(device, dtype), y.to(device, dtype), moved)
        assert value.dtype == dtype and value.device.type == device.type
        # single precision: a matrix of condition 1e3 leaves four digits
        torch.testing.assert_close(
            value.cpu().double(), expected, rtol=0.1 * tol, atol=tol
        )
        for a, b in zip(torch.autograd.grad(value, moved), slopes, strict=True):
            scale = b[:L].abs().max()
            torch.testing.assert_close(
                a[:L].cpu().double() / scale, b[:L] / scale, rtol=tol, atol=tol
            )


def test_no_gradient_is_computed_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    root, X, y = problem(2, 30)
    at = arguments(root, X, 2, len(root.walk()))
    expected = evidence_of(root, X, y, at)
    calls = []
    original = torch.cholesky_inverse
    monkeypatch.setattr(
        torch, "cholesky_inverse", lambda *a: calls.append(1) or original(*a)
    )
    detached: Any = [t.detach() for t in at]
    assert evidence_of(root, X, y, detached) == expected.detach()
    assert not calls
    assert evidence_of(root, X, y, at).requires_grad and calls


def test_one_derivative_is_all_there_is() -> None:
    """A second one would be wrong without a word."""
    root, X, y = problem(2, 30)
    at = arguments(root, X, 2, len(root.walk()))
    value = evidence_of(root, X, y, at) * at[1][0]
    (slope,) = torch.autograd.grad(value, at[1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_what_cannot_be_factorised_is_an_error() -> None:
    root, X, y = problem(2, 30)
    scaled, variance, mean, noise = arguments(root, X, 2, len(root.walk()))
    with pytest.raises(NotPSDError):
        evidence_of(root, X, y, (scaled, variance, mean, noise.detach() - 5.0))


def test_jitter_is_added_where_it_is_needed() -> None:
    """Rows that stand twice make covariances without noise singular."""
    root, X, y = problem(2, 30)
    scaled, variance, mean, noise = arguments(root, X, 2, len(root.walk()))
    groups, given = node_groups(root, rows_of, 10**6), []
    for level in (-1e-10, 1e-8 - 1e-10):  # with jitter, and nearly what it makes of it
        at = (scaled, variance, mean, torch.full_like(noise, level))
        warned = pytest.warns(NumericalWarning) if level < 0.0 else nullcontext()
        with warned:
            value = stationary(groups, 1e-4 * y, at, CORRELATIONS[0])
        given.append([value, *torch.autograd.grad(value, at[:2])])
    for a, b in zip(*given, strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05 * b.abs().max().item())


class Scaled(torch.nn.Module):
    """A kernel that is not stationary, with parameters of each leaf."""

    def __init__(self, num_leaves: int, seed: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        start = 0.5 + torch.rand(num_leaves, 3, generator=g, dtype=torch.float64)
        self.values = torch.nn.Parameter(start)

    def leaf_covariance(self, element: int, leaves: Tensor, X: Tensor) -> Tensor:
        scale, offset, slope = (v[:, None, None] for v in self.values[leaves].unbind(1))
        return scale * (offset + X @ X.mT * slope)


@settings(max_examples=8)
@given(seeds)
def test_any_kernel_has_the_amplitude_of_the_node(seed: int) -> None:
    """Term by term with autograd; above leaves the mean prior variance is given."""
    root, X, y = problem(seed, 24 + seed % 20)
    leaves: Any = root.leaves()
    L = len(leaves)
    place = {id(node): k for k, node in enumerate(root.walk())}
    kernel: Any = Scaled(L, seed)
    for make, nodes in ((nested_groups, 0), (node_groups, len(place))):
        _, variance, mean, noise = arguments(root, X, seed, nodes)
        covariances = KernelCovariances(kernel, 0, X, variance.detach(), L)
        value = path_evidence(make(root, rows_of, 3_000), y, covariances, mean, noise)
        expected = torch.zeros((), dtype=torch.float64)
        for j, leaf in enumerate(leaves):
            for node in leaf.path():
                rows = torch.as_tensor(node.rows)
                weight = len(leaf.rows) / len(rows) / (1 + leaf.depth - node.depth)
                (K,) = kernel.leaf_covariance(0, torch.tensor([j]), X[rows][None])
                v = j
                if nodes and node is not leaf:
                    v = L + place[id(node)]
                    K = K * variance[v].detach() / K.diagonal().mean()
                density = torch.distributions.MultivariateNormal(
                    mean[v, rows], K + torch.diag(noise[v, rows])
                )
                expected = expected + weight * density.log_prob(y[rows])
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
        at = (kernel.values, mean, noise)
        found = torch.autograd.grad(3.0 * value, at)
        slopes = torch.autograd.grad(3.0 * expected, at)
        torch.testing.assert_close(found[0], slopes[0], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(found[1][:L], slopes[1][:L], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found[2], slopes[2], rtol=1e-9, atol=1e-9)


def test_one_factorisation_per_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    root, X, y = problem(3, 30)
    L = len(root.leaves())
    groups = nested_groups(root, rows_of, 10**6)
    assert sum(len(group.leaves) for group in groups) == L
    sizes: list[torch.Size] = []
    original = torch.linalg.cholesky_ex

    def counted(K: Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes.append(K.shape)
        return original(K, *args, **kwargs)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", counted)
    stationary(groups, y, arguments(root, X, 3, 0), CORRELATIONS[0]).backward()
    assert sizes == [torch.Size([L, len(X), len(X)])]


def test_an_amplitude_may_vanish() -> None:
    """Without a prior it does: nodes above the leaf then lose their covariance too."""
    root, X, y = problem(1, 30)
    L, N = len(root.leaves()), len(root.walk())
    kernel: Any = Scaled(L, 1)
    with torch.no_grad():
        kernel.values[:, 0] = 1e-200
    _, variance, mean, noise = arguments(root, X, 1, N)
    covariances = KernelCovariances(kernel, 0, X, variance.detach(), L)
    groups = node_groups(root, rows_of, 10**6)
    value = path_evidence(groups, y, covariances, mean, noise)
    (slope,) = torch.autograd.grad(value, kernel.values)
    assert value.isfinite() and slope.isfinite().all()
