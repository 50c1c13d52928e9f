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

from botorch_structured.linalg.correlations import MATERN52
from botorch_structured.models.treed.scoring import (
    CONVERGED,
    NodeEvidence,
    NodePrior,
    likelihood,
)

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
    floor, k = 1e-6, 1 if one else d
    prior = NodePrior.of_dimension(d, floor, lengthscales=k)
    tX, ty = torch.as_tensor(X), torch.as_tensor(y)
    for known in (None, rng.uniform(0.1, 0.2, n)):
        node = NodeEvidence(X, y, prior, known, rbf=rbf)
        theta = prior.mode + rng.normal(0.0, 0.3, k + 3)
        point = node._evaluate(theta, node.squared, y, known)
        assert point is not None
        free = node.free
        spread = torch.eye(k + 3)
        if one:  # the lengthscale of all columns
            spread = torch.cat([spread[:1].expand(d, -1), spread[1:]])
        mode, scale = torch.as_tensor(prior.mode), torch.as_tensor(prior.scale)

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
        fit = node.fit(np.arange(n), [prior.mode])
        best = node._evaluate(fit.theta, node.squared, y, known)
        first = node._evaluate(prior.mode, node.squared, y, known)
        assert best is not None and first is not None
        assert best.value >= first.value
        assert math.isfinite(fit.log_evidence)


def test_evidence_of_a_node_is_near_the_integral() -> None:
    """Against sampling from the prior; Laplace falls short by .15 of a nat."""
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
        point = node._evaluate(prior.mode + prior.scale * draw, node.squared, y, None)
        density = -0.5 * float(draw @ draw) - constant
        values.append(-math.inf if point is None else point.value - density)
    peak = max(values)
    integral = peak + math.log(np.mean(np.exp(np.array(values) - peak)))
    assert fit.log_evidence == pytest.approx(integral, abs=0.25)


def test_scoring_finds_the_maximum() -> None:
    rng = np.random.default_rng(1)
    X = rng.random((25, 2))
    y = np.sin(5.0 * X[:, 0])  # the second column does nothing, and there is no noise
    prior = NodePrior.of_dimension(2, math.exp(-7.0), lengthscales=2)
    node = NodeEvidence(X, y, prior)
    found = node.fit(np.arange(25), [prior.mode]).theta
    point = node._evaluate(found, node.squared, y, None)
    assert point is not None
    decrement = point.gradient @ np.linalg.solve(point.information, point.gradient)
    assert 0.5 * decrement < 2.0 * CONVERGED  # twice, as steps are damped
    assert found[1] > found[0] + 0.5


def test_a_fit_goes_on_where_it_stopped() -> None:
    """As one from its mode, whose density is not computed again."""
    rng = np.random.default_rng(1)
    X = rng.random((25, 1))
    y = np.sin(5.0 * X[:, 0]) + 0.1 * rng.standard_normal(25)
    prior = NodePrior.of_dimension(1, math.exp(-7.0))
    rows, node = np.arange(25), NodeEvidence(X, y, prior)
    first = node.fit(rows, [prior.mode], 2)
    again = node.fit(rows, [first.theta], 3)
    on = node.fit(rows, [first.theta], 3, first.point)
    assert again.log_evidence > first.log_evidence
    assert on.log_evidence == again.log_evidence
    assert np.array_equal(on.theta, again.theta)
    held = node.fit(rows, [first.theta], 0, first.point)
    assert held.point is first.point


def test_what_a_step_would_gain_is_added_to_the_evidence() -> None:
    """Near the mode that is what is gained, but for the Fisher information's error."""
    ratios = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        X = rng.random((30, 2))
        y = np.sin(5.0 * X[:, 0]) + 0.2 * rng.standard_normal(30)
        prior, rows = NodePrior.of_dimension(2, math.exp(-7.0)), np.arange(30)
        node = NodeEvidence(X, y, prior)
        mode = node.fit(rows, [prior.mode], least_gain=1e-12)
        near = mode.theta + 0.05 * rng.standard_normal(4)
        with_step, without = (
            node.fit(rows, [near], 0, least_gain=most) for most in (10.0, 0.0)
        )
        assert mode.point is not None and without.point is not None
        gain = mode.point.value - without.point.value
        ratios.append((with_step.log_evidence - without.log_evidence) / gain)
    assert 0.8 < float(np.median(ratios)) < 1.25


def test_scoring_gives_up_where_nothing_can_be_computed() -> None:
    X = np.zeros((3, 1))
    # three copies of a point without noise: no factor
    node = NodeEvidence(X, np.arange(3.0), NodePrior.of_dimension(1, 1e-6), np.zeros(3))
    assert node.fit(np.arange(3), [np.zeros(4)]).log_evidence == -math.inf


def test_less_than_is_wanted_costs_a_factorisation_only() -> None:
    """A step that leads down is given up at its value."""
    rng = np.random.default_rng(0)
    X, y = rng.random((12, 2)), rng.standard_normal(12)
    squared = ((X[:, None] - X) ** 2).sum(-1)[None]
    theta = np.array([-1.0, 0.1, 0.2, -2.0])
    found = likelihood(theta, squared, y, MATERN52)
    assert found is not None
    above = likelihood(theta, squared, y, MATERN52, least=found[0] - 1e-6)
    assert above is not None
    for a, b in zip(found, above, strict=True):
        assert np.array_equal(a, b)
    assert likelihood(theta, squared, y, MATERN52, least=found[0] + 1e-6) is None
