"""Gaussian sites against the joint system written out."""

from __future__ import annotations

import torch
from hypothesis import given
from strategies import seeds
from torch import Tensor

from botorch_structured.models.monotone.expectation_propagation import (
    GaussianSites,
    log_site_evidence,
    site_system,
)

DOUBLE = {"dtype": torch.float64}


def problem(seed: int, m: int = 6) -> tuple[Tensor, Tensor, GaussianSites]:
    g = torch.Generator().manual_seed(seed)
    A = torch.randn(m, m, generator=g, **DOUBLE)
    sites = GaussianSites(
        10.0 ** (4.0 * torch.rand(m, generator=g, **DOUBLE) - 2.0),
        torch.randn(m, generator=g, **DOUBLE),
        torch.randn((), generator=g, **DOUBLE),
    )
    return torch.randn(m, generator=g, **DOUBLE), A @ A.mT, sites


@given(seeds)
def test_sites_are_observations(seed: int) -> None:
    """With noise of variance 1 / precision, of value shift / precision."""
    mean, S, sites = problem(seed)
    system = site_system(S, sites)
    noisy = S + torch.diag(1.0 / sites.precision)
    inverse = torch.linalg.inv(noisy)
    tolerance = {"rtol": 1e-8, "atol": 1e-8}
    torch.testing.assert_close(system.root.mT @ system.root, inverse, **tolerance)
    away = sites.shift / sites.precision - mean
    weights = system.root.mT @ system.residual(mean)
    torch.testing.assert_close(weights, inverse @ away, **tolerance)
    # exp(-p (g - t)^2 / 2) is a density of t, times sqrt(2 pi / p)
    normal = torch.distributions.MultivariateNormal(mean, noisy)
    expected = normal.log_prob(sites.shift / sites.precision)
    expected = expected + 0.5 * (2.0 * torch.pi / sites.precision).log().sum()
    actual = log_site_evidence(system, mean, sites)
    torch.testing.assert_close(actual, expected + sites.log_scale, **tolerance)
