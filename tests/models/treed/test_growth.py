"""The fits of nodes against plain dense computations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from botorch_structured.models.treed import growth
from botorch_structured.models.treed.growth import NodeEvidence

seeds = st.integers(0, 10_000)


pytestmark = pytest.mark.usefixtures("double")


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


def dense_log_density(
    theta: Tensor, X: Tensor, y: Tensor, noise: Tensor, rbf: bool
) -> Tensor:
    """Log density of data under (log l_1, .., log l_d, log s^2, m, log v)."""
    d = len(theta) - 3
    K = matern(X, theta[:d].exp(), theta[d].exp(), rbf) + torch.diag(noise)
    return log_density(K, y - theta[d + 1])


def expected_information(
    theta: Tensor, X: Tensor, noise: Tensor | None, floor: float, rbf: bool
) -> Tensor:
    """Minus the expected Hessian: 1/2 tr(K^-1 dK_i K^-1 dK_j), and 1' K^-1 1."""
    d = len(theta) - 3

    def covariance(t: Tensor) -> Tensor:
        v = (t[d + 2].exp() + floor).expand(len(X)) if noise is None else noise
        return matern(X, t[:d].exp(), t[d].exp(), rbf) + torch.diag(v)

    dK = torch.func.jacfwd(covariance)(theta)
    inverse = torch.linalg.inv(covariance(theta))
    parts = [inverse @ dK[..., i] for i in range(d + 3)]
    info = torch.tensor([[0.5 * float((a @ b).trace()) for a in parts] for b in parts])
    info[d + 1, d + 1] = inverse.sum()
    return info


@settings(max_examples=12)
@given(seeds, st.booleans(), st.booleans())
def test_evidence_of_a_node(seed: int, rbf: bool, one: bool) -> None:
    """Value, gradient and information, with one lengthscale or one for each column."""
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
        fisher = expected_information(
            spread @ at.detach(),
            tX,
            None if known is None else torch.as_tensor(known),
            floor,
            rbf,
        )
        fisher = spread.mT @ fisher @ spread + torch.diag(scale**-2.0)
        np.testing.assert_allclose(
            point.information, fisher[free][:, free].numpy(), rtol=1e-7, atol=1e-9
        )
        fit = node.fit(everything, [node.mode])
        best = node.evaluate(fit.theta, everything, node.squared)
        first = node.evaluate(node.mode, everything, node.squared)
        assert best is not None and first is not None
        assert best.value >= first.value
        assert math.isfinite(fit.log_evidence)


def test_evidence_of_a_node_is_near_the_integral() -> None:
    """Against sampling from the prior; Laplace falls short by .15 of a nat."""
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 1.0, 10)[:, None]
    y = np.sin(6.0 * x[:, 0]) + 0.1 * rng.standard_normal(10)
    node = NodeEvidence(x, y, 1e-6)
    fit = node.fit(np.arange(10), [node.mode])
    z = rng.standard_normal((20_000, 4))
    constant = np.log(node.scale).sum() + 2.0 * math.log(2.0 * math.pi)
    values = []
    for draw in z:
        theta = node.mode + node.scale * draw
        point = node.evaluate(theta, np.arange(10), node.squared)
        density = -0.5 * float(draw @ draw) - constant
        values.append(-math.inf if point is None else point.value - density)
    peak = max(values)
    integral = peak + math.log(np.mean(np.exp(np.array(values) - peak)))
    assert fit.log_evidence == pytest.approx(integral, abs=0.25)


def test_scoring_finds_the_maximum() -> None:
    rng = np.random.default_rng(1)
    X = rng.random((25, 2))
    y = np.sin(5.0 * X[:, 0])  # the second column does nothing, and there is no noise
    node, rows = NodeEvidence(X, y, math.exp(-7.0), ard=True), np.arange(25)
    theta = node.fit(rows, [node.mode]).theta
    point = node.evaluate(theta, rows, node.squared)
    assert point is not None
    decrement = point.gradient @ np.linalg.solve(point.information, point.gradient)
    assert 0.5 * decrement < 2.0 * growth._LEAST_GAIN  # twice, as steps are damped
    assert theta[1] > theta[0] + 0.5


def test_what_a_step_would_gain_is_added_to_the_evidence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Near the mode that is what is gained, but for the Fisher information's error."""
    ratios = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        X = rng.random((30, 2))
        y = np.sin(5.0 * X[:, 0]) + 0.2 * rng.standard_normal(30)
        node, rows = NodeEvidence(X, y, math.exp(-7.0)), np.arange(30)
        monkeypatch.setattr(growth, "_LEAST_GAIN", 1e-12)
        mode = node.fit(rows, [node.mode]).theta
        near = mode + 0.02 * rng.standard_normal(4)
        monkeypatch.setattr(growth, "_LEAST_GAIN", 0.05)
        points = [node.evaluate(theta, rows, node.squared) for theta in (near, mode)]
        fit = node.fit(rows, [near])
        if points[0] is None or points[1] is None or fit.theta is not near:
            continue
        half = float(np.linalg.slogdet(points[0].information)[1]) / 2.0
        plain = points[0].value + 2.0 * math.log(2.0 * math.pi) - half
        gain = points[1].value - points[0].value
        ratios.append((fit.log_evidence - plain) / gain)
    assert len(ratios) > 20
    assert 0.8 < float(np.median(ratios)) < 1.25


def test_scoring_gives_up_where_nothing_can_be_computed() -> None:
    X = np.zeros((3, 1))
    # three copies of a point without noise: no factor
    node = NodeEvidence(X, np.arange(3.0), 1e-6, np.zeros(3))
    assert node.fit(np.arange(3), [np.zeros(4)]).log_evidence == -math.inf
