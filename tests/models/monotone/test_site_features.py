"""Features given sites: their products are covariances; paths are posterior samples."""

from __future__ import annotations

import pytest
import torch
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.sampling.pathwise.features import gen_kernel_features
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from botorch_structured.models import MonotoneGP
from botorch_structured.models.monotone.expectation_propagation import GaussianSites
from botorch_structured.models.monotone.site_kernel import (
    DerivativeSites,
    SiteConditionedKernel,
)

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


def test_thompson_sampling() -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(6, 2, generator=g)
    model = MonotoneGP(X, X[:, :1], {0: 1}, virtual_X=X)
    acquisition = PathwiseThompsonSampling(model)
    assert acquisition(X.unsqueeze(-2)).shape == (6,)
