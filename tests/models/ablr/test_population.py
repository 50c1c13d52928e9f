"""The prior of one more task, and the scale of few outcomes: most probable values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from botorch_structured.models.ablr.new_task import (
    UsualOutcomes,
    most_probable_scale,
    population,
)


def regressions(
    T: int, D: int, rows: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Precisions and shifts of T tasks' likelihoods, and their posteriors."""
    g = torch.Generator().manual_seed(seed)
    mu = torch.randn(D, generator=g, dtype=torch.float64)
    half = torch.randn(D, D, generator=g, dtype=torch.float64) / math.sqrt(D)
    w = mu + torch.randn(T, D, generator=g, dtype=torch.float64) @ half.mT
    phi = torch.randn(T, rows, D, generator=g, dtype=torch.float64)
    y = (phi @ w.unsqueeze(-1)).squeeze(-1)
    y = y + 0.1 * torch.randn(T, rows, generator=g, dtype=torch.float64)
    A = 100.0 * phi.mT @ phi
    b = 100.0 * (phi.mT @ y.unsqueeze(-1)).squeeze(-1)
    beta = 0.5 + torch.rand(T, generator=g, dtype=torch.float64)
    total = A + beta[:, None, None] * torch.eye(D, dtype=torch.float64)
    V = torch.linalg.inv(total)
    mean = (V @ b.unsqueeze(-1)).squeeze(-1)
    return A, b, mean, torch.linalg.cholesky(V), beta


def log_density(A: Tensor, b: Tensor, beta: Tensor, mu: Tensor, root: Tensor) -> Tensor:
    """Of mu and Sigma = root root' and the data, up to a constant; written plainly."""
    T, D = b.shape
    sigma = root @ root.mT
    P = torch.linalg.inv(sigma)
    shifted = b + P @ mu
    value = 0.5 * (shifted * torch.linalg.solve(A + P, shifted)).sum()
    value = value - 0.5 * torch.logdet(A + P).sum() - 0.5 * T * torch.logdet(sigma)
    value = value - 0.5 * T * mu @ P @ mu
    spread = 1.0 / beta.log().mean().exp()
    value = value - 0.5 * D * (torch.logdet(sigma) + spread * P.trace())
    return value - 0.5 * mu @ mu / spread


@settings(deadline=None, max_examples=10)
@given(
    T=st.integers(1, 12),
    D=st.integers(1, 5),
    rows=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_most_probable(T: int, D: int, rows: int, seed: int) -> None:
    """A gradient method that starts from there finds nothing better."""
    A, b, mean, root, beta = regressions(T, D, rows, seed)
    found = population(mean, root, beta)

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        v = torch.from_numpy(values).requires_grad_()
        value = -log_density(A, b, beta, v[:D], v[D:].view(D, D))
        value.backward()
        return value.item(), v.grad.numpy()

    start = torch.cat([found.mean, found.root.flatten()]).numpy()
    best = minimize(loss, start, jac=True, method="L-BFGS-B")
    # expectation maximisation ends where steps are short, 1e-4 of Sigma
    assert loss(start)[0] - best.fun < 1e-2


def test_mean_of_tasks_that_tell_little_of_some_weights() -> None:
    """It is where the density has its top given Sigma, and not on the way there."""
    T, D = 40, 8
    g = torch.Generator().manual_seed(3)
    phi = torch.randn(T, 2, D, generator=g, dtype=torch.float64)
    phi = phi * torch.logspace(0, -2, D, dtype=torch.float64)
    w = 1.0 + 0.1 * torch.randn(T, D, 1, generator=g, dtype=torch.float64)
    A, b = 100.0 * phi.mT @ phi, 100.0 * (phi.mT @ (phi @ w)).squeeze(-1)
    eye = torch.eye(D, dtype=torch.float64)
    V = torch.linalg.inv(A + eye)
    mean = (V @ b.unsqueeze(-1)).squeeze(-1)
    found = population(mean, torch.linalg.cholesky(V), torch.ones_like(A[:, 0, 0]))
    P = torch.linalg.inv(found.root @ found.root.mT)
    told, shift = eye, torch.zeros_like(b[0])
    for t in range(T):  # of each task, weights integrated out
        told = told + A[t] @ torch.linalg.solve(A[t] + P, P)
        shift = shift + P @ torch.linalg.solve(A[t] + P, b[t])
    expected = torch.linalg.solve(told, shift)
    # what the last step of Sigma, 1e-4, moves it by
    assert torch.allclose(found.mean, expected, atol=1e-4)


def test_without_data_it_is_the_prior_of_the_paper() -> None:
    beta = torch.tensor([4.0, 4.0], dtype=torch.float64)
    root = 0.5 * torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    found = population(torch.zeros(2, 3, dtype=torch.float64), root, beta)
    assert torch.allclose(found.mean, torch.zeros(3, dtype=torch.float64))
    assert torch.allclose(found.root, root[0])


def test_directions_that_no_row_has_seen() -> None:
    """Rounding leaves no negative precision there."""
    beta = torch.tensor([1e8, 1e-6], dtype=torch.float64)
    root = torch.diag_embed(beta.reciprocal().sqrt().unsqueeze(-1).expand(2, 4))
    mean = torch.zeros(2, 4, dtype=torch.float64)
    found = population(mean, root, beta)
    assert found.root.isfinite().all() and (found.root.diagonal() > 0).all()


OUTCOMES = UsualOutcomes(level=(1.0, 3.0), log_scale=(0.5, 0.8), log_noise=(-4.0, 1.0))


def data(n: int, scale: float, D: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(n)
    features = torch.randn(n, D, generator=g, dtype=torch.float64)
    curve = torch.randn(n, generator=g, dtype=torch.float64)
    w = torch.randn(D, generator=g, dtype=torch.float64)
    noise = 0.1 * torch.randn(n, generator=g, dtype=torch.float64)
    return features, curve, 2.0 + scale * (curve + features @ w + noise)


def density(
    log_s: float, features: Tensor, curve: Tensor, Y: Tensor, noise: Tensor | None
) -> float:
    s = math.exp(log_s)
    cov = s**2 * features @ features.mT + OUTCOMES.level[1] ** 2
    own = s**2 * math.exp(OUTCOMES.log_noise[0]) * torch.ones_like(Y)
    cov = cov + torch.diag(own if noise is None else noise)
    mean = OUTCOMES.level[0] + s * curve
    prior = Normal(*(torch.tensor(v).double() for v in OUTCOMES.log_scale))
    value = MultivariateNormal(mean, cov).log_prob(Y)
    return float(value + prior.log_prob(torch.tensor(log_s).double()))


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 40])
def test_mode(n: int, known_noise: bool) -> None:
    features, curve, Y = data(n, 3.0)
    noise = torch.linspace(0.01, 0.3, n, dtype=torch.float64) if known_noise else None
    found = math.log(most_probable_scale(features, curve, Y, OUTCOMES, noise))
    here = density(found, features, curve, Y, noise)
    for step in (1e-2, 0.1, 1.0):
        for sign in (-1.0, 1.0):
            at = found + sign * step
            assert density(at, features, curve, Y, noise) < here + 1e-6


def test_exact_outcomes() -> None:
    """Their noise counts as 1e-9 of the usual variance, of outcomes of any unit."""
    features, curve, Y = data(12, 2.0)
    found = most_probable_scale(features, curve, Y, OUTCOMES, torch.zeros_like(Y))
    least = torch.full_like(Y, 1e-9 * math.exp(2.0 * OUTCOMES.log_scale[0]))
    here, *others = (
        density(math.log(found) + step, features, curve, Y, least)
        for step in (0.0, -0.05, 0.05)
    )
    assert max(others) < here
    unit = math.exp(-12.0)
    small = UsualOutcomes((unit, 3.0 * unit), (-11.5, 0.8), (-4.0, 1.0))
    other = most_probable_scale(features, curve, unit * Y, small, torch.zeros_like(Y))
    assert other == pytest.approx(unit * found, rel=1e-3)


@pytest.mark.parametrize("n", [6, 40])
def test_levels_far_apart_and_little_noise(n: int) -> None:
    """As if nothing were known of the level: against the density of differences."""
    outcomes = UsualOutcomes((0.0, 1e5), (0.0, 3.0), (math.log(1e-9), 1.0))
    features, curve, Y = data(n, 2.0)
    found = most_probable_scale(features, curve, Y + 3e5, outcomes)
    across = torch.eye(n)[1:].double() - torch.eye(n)[:1].double()
    F, c, y = across @ features, across @ curve, across @ Y
    noise = 1e-9 * across @ across.mT
    log_s = torch.linspace(-2.0, 6.0, 801, dtype=torch.float64)
    values = torch.stack(
        [
            MultivariateNormal(s.exp() * c, (2.0 * s).exp() * (F @ F.mT + noise))
            .log_prob(y)
            .sub(0.5 * (s / 3.0).square())
            for s in log_s
        ]
    )
    assert math.log(found) == pytest.approx(float(log_s[values.argmax()]), abs=0.01)
