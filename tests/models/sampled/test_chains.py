"""R-hat and effective sample size where they are known."""

from __future__ import annotations

import numpy as np
import pytest

from botorch_structured.models.sampled.chains import (
    Chains,
    effective_sample_size,
    split_r_hat,
)


def autoregressive(rho: float, chains: int, n: int, k: int, seed: int) -> np.ndarray:
    """Stationary AR(1) chains with unit innovations, ``chains x n x k``."""
    rng = np.random.default_rng(seed)
    x = np.empty((chains, n, k))
    x[:, 0] = rng.standard_normal((chains, k)) / np.sqrt(1.0 - rho**2)
    for t in range(1, n):
        x[:, t] = rho * x[:, t - 1] + rng.standard_normal((chains, k))
    return x


def some_chains(draws: int = 10) -> Chains:
    rng = np.random.default_rng(0)
    samples = np.exp(rng.standard_normal((2, draws, 3)))
    samples[..., 1] = np.log(samples[..., 1])
    return Chains(
        names=("noise", "mean", "lengthscale[0]"),
        samples=samples,
        log_density=rng.standard_normal((2, draws)),
        positive=np.array([True, False, True]),
        last=samples[:, -1],
        widths=np.ones(3),
    )


@pytest.mark.parametrize("rho", [-0.4, 0.0, 0.5, 0.9])
def test_effective_sample_size_of_an_autoregression(rho: float) -> None:
    """N (1 - rho) / (1 + rho) in expectation: the mean over 20 parameters."""
    n = 2000
    x = autoregressive(rho, chains=4, n=n, k=20, seed=1)
    expected = 4 * n * (1 - rho) / (1 + rho)
    # single estimates scatter by 10 % at rho = 0.9, so that their mean does by 2 %;
    # Geweke-style truncation biases it by a few per cent more
    assert effective_sample_size(x).mean() == pytest.approx(expected, rel=0.08)


def test_r_hat_of_shifted_and_drifting_chains() -> None:
    x = autoregressive(0.0, chains=2, n=1000, k=2, seed=3)
    assert (split_r_hat(x) < 1.01).all()
    shifted = x + np.array([0.0, 2.0])[:, None, None]
    # between variance 2^2 / 2 * 4 / 6 of four halves in two pairs: 4/3; within 1
    np.testing.assert_allclose(split_r_hat(shifted), np.sqrt(1 + 4 / 3), rtol=0.05)
    drifting = x + np.linspace(-1, 1, 1000)[:, None]
    # means of the halves 1 apart: between 1/2; within 1 + 1/12, that of the drift
    expected = np.sqrt(1 + 0.5 / (1 + 1 / 12))
    np.testing.assert_allclose(split_r_hat(drifting[:1]), expected, rtol=0.05)


def test_chains_that_do_not_move() -> None:
    x = np.zeros((2, 10, 1))
    assert np.isinf(split_r_hat(x)).all()
    assert (effective_sample_size(x) == 0).all()
    apart = x + np.arange(2.0)[:, None, None]
    assert np.isinf(split_r_hat(apart)).all()
    assert (effective_sample_size(apart) == 0).all()


def test_diagnostics_are_of_coordinates() -> None:
    chains = some_chains(200)
    logs = np.log(chains.samples[..., [0]])
    np.testing.assert_allclose(chains.r_hat[[0]], split_r_hat(logs))
    np.testing.assert_allclose(chains.ess[[0]], effective_sample_size(logs))
    mean = chains.samples[..., [1]]
    np.testing.assert_allclose(chains.r_hat[[1]], split_r_hat(mean))


def test_too_few_draws_are_no_evidence_of_convergence() -> None:
    chains = some_chains(3)
    assert np.isinf(chains.r_hat).all() and (chains.ess == 0).all()
