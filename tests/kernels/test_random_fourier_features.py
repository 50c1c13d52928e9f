"""RandomFourierFeatures: an RBF kernel, the same for a seed, its bandwidth learnt."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.kernels import RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import given
from strategies import seeds

from botorch_structured.kernels import RandomFourierFeatures
from botorch_structured.models import MultiTaskABLR

pytestmark = pytest.mark.usefixtures("double")


@given(seed=seeds)
def test_inner_products_are_the_rbf_kernel_up_to_chance(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(12, 3, generator=g)
    features = RandomFourierFeatures(4000, ard_num_dims=3, seed=seed)
    features.lengthscale = torch.tensor([0.3, 1.0, 4.0])
    kernel = RBFKernel(ard_num_dims=3)
    kernel.lengthscale = features.lengthscale.detach()
    phi = features(X)
    error = phi @ phi.mT - kernel(X).to_dense()
    # an entry is a mean of 4,000 numbers in [-2, 2] whose variance is at most 1
    assert error.abs().max() < 6.0 / 4000**0.5


def test_the_formula() -> None:
    X = torch.rand(2, 5, 3)
    features = RandomFourierFeatures(7, num_dims=3, seed=1)
    features.lengthscale = 0.5
    expected = (2.0 / 7.0) ** 0.5 * torch.cos(
        X @ features.frequencies.mT / 0.5 + features.phases
    )
    torch.testing.assert_close(features(X), expected)
    assert features.lengthscale.shape == (1,)


def test_a_seed_means_the_same_features(device: torch.device) -> None:
    state = torch.random.get_rng_state()
    a, b = (
        RandomFourierFeatures(9, seed=3),
        RandomFourierFeatures(9, num_dims=2, seed=3),
    )
    X = torch.rand(4, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(a(X), b(X))
    single = RandomFourierFeatures(9, seed=3).to(device, torch.float32)
    values = single(X.to(device, torch.float32)).double().cpu()
    torch.testing.assert_close(values, a(X), rtol=1e-4, atol=1e-4)
    assert torch.equal(state, torch.random.get_rng_state())
    c, d = RandomFourierFeatures(9), RandomFourierFeatures(9)
    assert not torch.allclose(c(X), d(X))


def test_copies_and_states() -> None:
    X = torch.rand(4, 2)
    features = RandomFourierFeatures(9, seed=3)
    features.lengthscale = 0.7
    expected = features(X)
    fresh = RandomFourierFeatures(9, num_dims=2, seed=8)
    fresh.load_state_dict(features.state_dict())
    for other in (fresh, copy.deepcopy(features), pickle.loads(pickle.dumps(features))):
        assert torch.equal(other(X), expected)


@pytest.mark.parametrize("ard", [None, 2])
def test_the_bandwidth_is_learnt(ard: int | None) -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(60, 2, generator=g)
    Y = torch.sin(6.0 * X[:, :1]) + 0.01 * torch.randn(60, 1, generator=g)
    features = RandomFourierFeatures(80, ard_num_dims=ard, seed=0)
    model = MultiTaskABLR(X, Y, None, feature_map=features)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll)
    X_new = torch.rand(50, 2, generator=g)
    error = model.posterior(X_new).mean - torch.sin(6.0 * X_new[:, :1])
    assert error.square().mean().sqrt() < (0.15 if ard is None else 0.05)
    if ard is not None:
        assert features.lengthscale[1] > 2.0 * features.lengthscale[0]


def test_errors() -> None:
    makers: list[tuple[Callable[[], object], str]] = [
        (lambda: RandomFourierFeatures(0), "num_features: expected a positive integer"),
        (lambda: RandomFourierFeatures(5, num_dims=1.5), "num_dims"),  # type: ignore[arg-type]  # on purpose
        (
            lambda: RandomFourierFeatures(5, ard_num_dims=2, num_dims=3),
            "ard_num_dims: expected None or num_dims=3",
        ),
        (
            lambda: RandomFourierFeatures(5, num_dims=3)(torch.rand(4, 2)),
            "X: expected 3 columns",
        ),
    ]
    for make, message in makers:
        with pytest.raises(ValueError, match=message):
            make()
