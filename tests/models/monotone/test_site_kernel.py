"""A prior given sites: the joint system of values and derivatives, written out."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.sampling.pathwise.features import gen_kernel_features
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, LinearMean, Mean, ZeroMean
from hypothesis import given
from hypothesis import strategies as st
from strategies import seeds
from torch import Tensor

from botorch_structured.models import MonotoneGP
from botorch_structured.models.monotone.expectation_propagation import GaussianSites
from botorch_structured.models.monotone.site_kernel import (
    DerivativeSites,
    SiteConditionedKernel,
    SiteConditionedMean,
    StationaryDerivatives,
)

DOUBLE = {"dtype": torch.float64}
COLUMNS = [1, 0]


def rand(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), **DOUBLE)


def prior(
    seed: int, matern: bool = False, mean: Mean | None = None, points: int = 6
) -> tuple[SiteConditionedKernel, SiteConditionedMean]:
    inner = MaternKernel(nu=2.5, ard_num_dims=2) if matern else RBFKernel()
    base = ScaleKernel(inner).double()
    base.outputscale, inner.lengthscale = 1.7, 0.5
    sites = DerivativeSites(rand(seed, points, 2), COLUMNS)
    precision = 10.0 ** (4.0 * rand(seed + 1, 2 * points) - 2.0)
    shift = precision * (rand(seed + 2, 2 * points) - 0.3)
    sites.set(GaussianSites(precision, shift, torch.zeros((), **DOUBLE)))
    kernel = SiteConditionedKernel(base, sites)
    return kernel, SiteConditionedMean((mean or ZeroMean()).double(), kernel)


def dense(
    kernel: SiteConditionedKernel, mean: Mean, slope: Tensor, X: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of f(X) given the sites, as observations of derivatives."""
    sites, k = kernel.sites, StationaryDerivatives.of(kernel.base_kernel)
    gram = k.gram(sites.points, COLUMNS) + torch.diag(1.0 / sites.precision)
    cross = k.cross(X, sites.points, COLUMNS)
    target = sites.shift / sites.precision - slope
    solved = torch.linalg.solve(gram, torch.cat([cross.mT, target[:, None]], -1))
    covariance = k.value(X, X) - cross @ solved[:, :-1]
    return mean(X) + cross @ solved[:, -1], covariance


@given(seeds, st.booleans())
def test_dense(seed: int, matern: bool) -> None:
    linear = LinearMean(2)
    with torch.no_grad():
        linear.weights.copy_(torch.tensor([[0.5], [-2.0]]))
    for base, by_column in ((ConstantMean(), [0.0, 0.0]), (linear, [-2.0, 0.5])):
        kernel, mean = prior(seed, matern, base)
        X = rand(seed + 3, 5, 2)
        slope = torch.tensor(by_column, **DOUBLE).repeat_interleave(6)
        expected = dense(kernel, base, slope, X)
        for _ in range(2):
            tolerance = {"rtol": 1e-9, "atol": 1e-9}
            torch.testing.assert_close(mean(X), expected[0], **tolerance)
            K = kernel(X).to_dense()
            torch.testing.assert_close(K, expected[1], **tolerance)
            torch.testing.assert_close(
                kernel(X, diag=True), expected[1].diagonal(), **tolerance
            )
            torch.testing.assert_close(
                kernel(X[:2], X[2:]).to_dense(), expected[1][:2, 2:], **tolerance
            )
            kernel.eval()


def test_copies() -> None:
    kernel, mean = prior(5)
    X = rand(3, 4, 2)
    both = torch.nn.ModuleList([kernel, mean]).eval()
    kernel(X).to_dense()
    for copied in (copy.deepcopy(both), pickle.loads(pickle.dumps(both))):
        assert copied[1].kernel is copied[0]
        assert torch.equal(copied[0](X).to_dense(), kernel(X).to_dense())
    names = [name for name, _ in both.named_parameters()]
    assert len(names) == len(set(names)) == 2  # the mean has none of the kernel's
    assert not any("kernel" in name for name in mean.state_dict())


def test_part_of_a_batch() -> None:
    shape = torch.Size([3])
    base: Kernel = RBFKernel(ard_num_dims=2, batch_shape=shape).double()
    base.lengthscale = 0.3 + rand(0, 3, 1, 2)
    sites = DerivativeSites(rand(1, 5, 2), [0], shape)
    sites.set(GaussianSites(rand(2, 3, 5), rand(3, 3, 5), rand(4, 3)))
    kernel = SiteConditionedKernel(base, sites)
    X = rand(5, 4, 2)
    full = kernel(X.expand(3, 4, 2)).to_dense()
    assert kernel.batch_shape == shape
    for i in range(3):
        torch.testing.assert_close(kernel[i](X).to_dense(), full[i])
    unbatched = SiteConditionedKernel(RBFKernel().double(), sites)
    assert unbatched.batch_shape == shape
    assert unbatched[1](X).to_dense().shape == (4, 4)


pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("matern", [False, True])
def test_products_are_covariances(matern: bool, batch: tuple[int, ...]) -> None:
    shape = torch.Size(batch)
    g = torch.Generator().manual_seed(0)
    inner = (MaternKernel if matern else RBFKernel)(ard_num_dims=2, batch_shape=shape)
    inner.lengthscale = 0.6
    base = ScaleKernel(inner, batch_shape=shape)
    base.outputscale = 1.5
    sites = DerivativeSites(torch.rand(5, 2, generator=g), [1, 0], shape)
    precision = 10.0 * torch.rand(*shape, 10, generator=g)
    sites.set(GaussianSites(precision, precision, torch.zeros(shape)))
    kernel = SiteConditionedKernel(base, sites)
    X = torch.rand(6, 2, generator=g)
    phi = gen_kernel_features(kernel, num_inputs=2, num_outputs=2048)(X)
    assert phi.shape == (*shape, 6, 2048)
    K = kernel(X.expand(*shape, 6, 2)).to_dense()
    # 1024 random frequencies; those of Matern, with their heavy tails, less even
    torch.testing.assert_close(phi @ phi.mT, K, rtol=0.0, atol=0.1)
    assert (K - base(X).to_dense()).abs().max() > 0.5  # the sites say something


def test_paths_are_samples_of_the_posterior() -> None:
    """Moments of 2048 paths."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(6, 1, generator=g)
    model = MonotoneGP(X, X.square(), {0: 1})
    points = torch.linspace(0.0, 1.0, 7).unsqueeze(-1)
    paths = draw_matheron_paths(model, sample_shape=torch.Size([2048]))
    values = paths(points).reshape(2048, 7)
    posterior = model.posterior(points)
    sd = posterior.variance.squeeze(-1).sqrt()
    # four standard errors of a mean
    assert ((values.mean(0) - posterior.mean.squeeze(-1)) / sd).abs().max() < 0.09
    # random features widen paths of a SingleTaskGP by 6 % here, too; those of the prior
    # without sites would widen these by 200 %
    assert (values.std(0) / sd - 1.0).abs().max() < 0.12
