from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from botorch_structured.kernels.mondrian import (
    LaplaceKernel,
    MondrianKernel,
    MondrianPartition,
)

DTYPE = torch.float64


def points(*shape: int, seed: int = 0, low: float = 0.0, high: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(*shape, dtype=DTYPE, generator=generator)
    return low + (high - low) * unit


def mondrian(*args: object, **kwargs: object) -> MondrianKernel:
    kwargs.setdefault("seed", 0)
    return MondrianKernel(*args, **kwargs).double()


def dense(kernel: MondrianKernel, a: Tensor, b: Tensor | None = None) -> Tensor:
    return kernel(a, a if b is None else b).to_dense().detach()


def laplace(kernel: MondrianKernel, a: Tensor, b: Tensor | None = None) -> Tensor:
    peer = LaplaceKernel(ard_num_dims=kernel.ard_num_dims).double()
    peer.lengthscale = (kernel.lengthscale / kernel.lifetime).detach()
    return peer(a, a if b is None else b).to_dense().detach()


def grid(low: float, high: float, steps: int, d: int) -> Tensor:
    axis = torch.linspace(low, high, steps, dtype=DTYPE)
    return torch.cartesian_prod(*[axis] * d).reshape(-1, d)


class TestApproachesTheLaplaceKernel:
    """Differences are sums over independent trees: their size is known."""

    @pytest.mark.parametrize("low, high", [(0.0, 1.0), (-1.5, 2.5)])
    def test_without_bias(self, low: float, high: float) -> None:
        """A few entries, many trees, against five standard deviations."""
        trees = 50_000
        bounds = torch.tensor([[low], [high]])
        kernel = mondrian(1.5, trees, ard_num_dims=3, bounds=bounds)
        kernel.lengthscale = torch.tensor([0.3, 1.0, 20.0], dtype=DTYPE)
        X = points(5, 3, low=low, high=high)
        expected = laplace(kernel, X)
        sd = ((1 - expected) * expected / trees).sqrt()
        assert ((dense(kernel, X) - expected).abs() <= 5 * sd + 1e-12).all()


class TestIsAMondrianProcess:
    def test_more_than_cuts_of_a_grid(self) -> None:
        """Independent columns would cut both halves alike; Mondrian trees do not."""
        lifetime, trees = 1.5, 20_000
        partition = MondrianPartition(trees, 0, None)
        a, b, c, d = partition(grid(0, 1, 2, 2), torch.ones(1, 1), lifetime)
        # the grid's rows: (0, 0), (0, 1), (1, 0), (1, 1)
        share = ((a == c) & (b != d)).double().mean().item()
        e = math.exp(-lifetime)
        p = e * (1 - e - lifetime * e)
        assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / trees)

    def test_longer_lifetimes_refine(self) -> None:
        X = points(30, 2)
        before = dense(mondrian(0.5, 50), X)
        for lifetime in (1.0, 2.0, 8.0):
            now = dense(mondrian(lifetime, 50), X)
            assert (now <= before).all() and (now < before).any()
            before = now


class TestKernel:
    @settings(max_examples=25, deadline=None)
    @given(
        st.integers(0, 2**32),
        st.integers(1, 4),
        st.integers(1, 20),
    )
    def test_laws(self, seed: int, d: int, trees: int) -> None:
        kernel = mondrian(2.0, trees, seed=seed)
        X = points(12, d, seed=seed)
        Z = points(5, d, seed=seed + 1)
        K = dense(kernel, X)
        assert torch.equal(K, K.mT)
        assert torch.equal(K.diagonal(), torch.ones(12, dtype=DTYPE))
        assert torch.linalg.eigvalsh(K).min() > -1e-12
        # entries do not depend on what else is asked for
        assert torch.equal(dense(kernel, X[3:7], X[:5]), K[3:7, :5])
        assert torch.equal((K * trees).round() / trees, K)
        assert (K >= 0).all()
        phi, psi = kernel.features(X), kernel.features(Z)
        assert phi.shape[-1] == psi.shape[-1]
        close = {"rtol": 0.0, "atol": 1e-14 * trees}
        torch.testing.assert_close(phi @ phi.mT, K, **close)
        torch.testing.assert_close(phi @ psi.mT, dense(kernel, X, Z), **close)
        assert torch.equal((phi != 0).sum(-1), torch.full((12,), trees))

    def test_seeds(self) -> None:
        X = points(20, 2)
        assert torch.equal(dense(mondrian(1.0, 9), X), dense(mondrian(1.0, 9), X))
        assert not torch.equal(
            dense(mondrian(1.0, 9), X), dense(mondrian(1.0, 9, seed=1), X)
        )
        one, more = (MondrianPartition(m, 3, None) for m in (4, 9))
        scale = torch.ones(1, 1)
        assert torch.equal(one(X, scale, 1.0), more(X, scale, 1.0)[:, :4])
        state = torch.get_rng_state()
        mondrian(1.0, 9)
        assert torch.equal(torch.get_rng_state(), state)
        torch.manual_seed(5)
        first = dense(MondrianKernel(1.0, 9).double(), X)
        torch.manual_seed(5)
        assert torch.equal(dense(MondrianKernel(1.0, 9).double(), X), first)

    def test_trees_survive_copies(self) -> None:
        X = points(20, 2)
        kernel = mondrian(2.0, 50, ard_num_dims=2)
        kernel.lengthscale = torch.tensor([0.5, 2.0], dtype=DTYPE)
        other = mondrian(2.0, 50, seed=7, ard_num_dims=2)
        assert not torch.equal(dense(other, X), dense(kernel, X))
        other.load_state_dict(kernel.state_dict())
        for again in (other, copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
            assert torch.equal(dense(again, X), dense(kernel, X))
            assert torch.equal(again.features(X), kernel.features(X))

    def test_device(self, device: torch.device) -> None:
        kernel = mondrian(2.0, 50)
        X = points(20, 2)
        expected = dense(kernel, X)
        K = dense(kernel.to(device), X.to(device)).cpu()
        # shares of 50 trees: a GPU divides by multiplying with 1/50
        torch.testing.assert_close(K, expected, rtol=1e-15, atol=1e-15)
        phi = kernel.features(X.to(device))
        assert phi.device.type == device.type

    def test_chunks_do_not_matter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kernel = mondrian(2.0, 50)
        X = points(20, 2)
        whole = dense(kernel, X)
        monkeypatch.setattr("botorch_structured.kernels.mondrian._CHUNK", 99)
        assert torch.equal(dense(kernel, X), whole)


class TestFeatures:
    def test_bounds(self) -> None:
        bounds = torch.tensor([[-5.0, 0.0], [5.0, 100.0]])
        kernel = mondrian(2.0, 30, ard_num_dims=2, bounds=bounds)
        kernel.lengthscale = torch.tensor([10.0, 100.0], dtype=DTYPE)
        X = bounds[0] + points(20, 2) * (bounds[1] - bounds[0])
        phi = kernel.features(X)
        torch.testing.assert_close(phi @ phi.mT, dense(kernel, X))
        assert kernel.features(bounds.double()).shape[-1] == phi.shape[-1]

    def test_too_many_or_outside(self) -> None:
        with pytest.raises(
            ValueError, match=r"at most 1048576 .* got about 4.78e\+08 in"
        ):
            mondrian(2.0, 100).features(points(3, 14))
        with pytest.raises(ValueError, match="points within bounds"):
            mondrian(50.0, 100).features(points(3, 1) + 1.0)


class TestInAModel:
    def test_predictions_and_gradients(self) -> None:
        torch.manual_seed(0)
        X = points(25, 2)
        Y = (X[:, :1] > 0.5).double() + 0.1 * X[:, 1:]
        kernel = mondrian(2.0, 200, ard_num_dims=2)
        model = SingleTaskGP(X, Y, covar_module=ScaleKernel(kernel))
        before = kernel.lengthscale.clone()
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        assert torch.equal(kernel.lengthscale, before)
        left, right = model.posterior(torch.tensor([[0.2, 0.5], [0.8, 0.5]])).mean
        assert right - left > 0.7
        x = points(4, 2, seed=1).requires_grad_()
        model.posterior(x).mean.sum().backward()
        assert torch.equal(x.grad, torch.zeros_like(x))
        features = kernel.features(x)
        assert torch.equal(torch.autograd.grad(features.sum(), x)[0], torch.zeros(4, 2))


def test_lengthscales_start_at_one() -> None:
    assert mondrian(2.0, 1).lengthscale.item() == pytest.approx(1.0)
    longer = mondrian(2.0, 1, lengthscale_constraint=GreaterThan(0.1))
    assert longer.lengthscale.item() == pytest.approx(1.0)
    start = Interval(0.1, 5.0, initial_value=3.0)
    other = mondrian(2.0, 1, lengthscale_constraint=start)
    assert other.lengthscale.item() == pytest.approx(3.0)


UNIT = torch.tensor([[0.0], [1.0]], dtype=DTYPE)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        *[
            (lambda t=t: MondrianKernel(t, 10), "lifetime: expected a positive number")
            for t in (0.0, -1.0, math.inf, math.nan)
        ],
        (lambda: MondrianKernel(1.0, 0), "num_trees: expected a positive int.* got 0"),
        (lambda: MondrianKernel(1.0, 2.5), "num_trees.*got 2.5"),
        (
            lambda: MondrianKernel(1.0, 10, ard_num_dims=3, bounds=torch.zeros(2, 2)),
            r"expected ``2 x 3``, got \(2, 2\)",
        ),
        (
            lambda: MondrianKernel(1.0, 10, bounds=torch.zeros(2, 2)),
            "finite low < high",
        ),
        *[
            (lambda x=x: dense(mondrian(1.0, 10), x * UNIT), "X: expected points with")
            for x in (math.nan, math.inf, -1e-6)
        ],
        (
            lambda: mondrian(2.0, 9, batch_shape=torch.Size([2])).features(UNIT),
            "a kernel without a batch_shape",
        ),
        (
            lambda: mondrian(1.0, 10)(points(3, 2), last_dim_is_batch=True).to_dense(),
            "last_dim_is_batch: expected False",
        ),
    ],
)
def test_wrong_arguments(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def by_definition(a: Tensor, b: Tensor, lengthscale: Tensor) -> Tensor:
    difference = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    return torch.exp(-(difference / lengthscale.unsqueeze(-2)).sum(-1))


class TestValues:
    @pytest.mark.parametrize("ard", [None, 3])
    def test_definition(self, ard: int | None) -> None:
        kernel = LaplaceKernel(ard_num_dims=ard).double()
        kernel.lengthscale = torch.tensor([0.3, 1.0, 4.0][: ard or 1], dtype=DTYPE)
        a, b = points(7, 3), points(4, 3, seed=1)
        expected = by_definition(a, b, kernel.lengthscale)
        torch.testing.assert_close(dense(kernel, a, b), expected, rtol=1e-14, atol=0)
        torch.testing.assert_close(
            dense(kernel, a), by_definition(a, a, kernel.lengthscale)
        )

    def test_columns_as_a_batch(self) -> None:
        kernel = LaplaceKernel(ard_num_dims=3).double()
        kernel.lengthscale = torch.tensor([0.3, 1.0, 4.0], dtype=DTYPE)
        a, b = points(2, 5, 3), points(2, 4, 3, seed=1)
        each = kernel(a, b, last_dim_is_batch=True).to_dense()
        assert each.shape == (2, 3, 5, 4)
        torch.testing.assert_close(each.prod(-3), dense(kernel, a, b))
        assert kernel(a, diag=True, last_dim_is_batch=True).shape == (2, 3, 5)


class TestGradients:
    def test_derivatives(self) -> None:
        kernel = LaplaceKernel(ard_num_dims=2).double()
        a, b = points(3, 2).requires_grad_(), points(2, 4, 2, seed=1).requires_grad_()
        assert torch.autograd.gradcheck(lambda a, b: kernel(a, b).to_dense(), (a, b))

    def test_zero_at_zero_distance(self) -> None:
        """Points that coincide do not pull at each other, nor at the lengthscales."""
        kernel = LaplaceKernel(ard_num_dims=2).double()
        x = points(1, 2).repeat(4, 1).requires_grad_()
        kernel(x).to_dense().sum().backward()
        assert torch.equal(x.grad, torch.zeros_like(x))
        assert torch.equal(
            kernel.raw_lengthscale.grad, torch.zeros_like(kernel.raw_lengthscale)
        )
