"""Priors on quantities that are derived from parameters, as the SAAS prior is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.hierarchical import HierarchicalConditionalKernelGP
from botorch.models.map_saas import add_saas_prior
from gpytorch.kernels import Kernel, MaternKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.fit import ChainsWarning, fit_slice_sampling
from botorch_structured.models.sampled.coordinates import PriorCoordinates
from botorch_structured.models.sampled.density import ModelDensity, StationaryDensity

pytestmark = pytest.mark.usefixtures("double")


def data(n: int = 12, d: int = 2) -> tuple[Tensor, Tensor]:
    """The last column does not matter."""
    X = torch.rand(n, d, generator=torch.Generator().manual_seed(0))
    return X, (4 * X[:, :1]).sin()


def single(kernel: Kernel) -> SingleTaskGP:
    return SingleTaskGP(*data(), covar_module=kernel)


def saas() -> SingleTaskGP:
    kernel = MaternKernel(ard_num_dims=2)
    add_saas_prior(kernel)
    return single(kernel)


def hierarchical() -> HierarchicalConditionalKernelGP:
    X, Y = data(d=3)
    X[:, 0] = X[:, 0].round()
    tree = {0: {0: [1], 1: [2]}}
    return HierarchicalConditionalKernelGP(X, Y, hierarchical_dependencies=tree)


MODELS = {"saas": saas, "hierarchical": hierarchical}


def density_of(model: SingleTaskGP) -> ModelDensity:
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    return ModelDensity(mll, PriorCoordinates(model))


@pytest.mark.parametrize("name", MODELS)
def test_one_coordinate_changes_one_value(name: str) -> None:
    """Along a coordinate the density is that of a position with one other element."""
    density = density_of(MODELS[name]())
    c = density.coordinates
    assert StationaryDensity.of(density.mll, c) is None
    start = c.to_position(c.read_values())
    assert math.isfinite(density.move_to(start))
    for axis in range(len(c)):
        position = start.copy()
        position[axis] += 0.3
        value = density.along(start, axis)(position[axis])
        np.testing.assert_allclose(c.read_values(), c.to_values(position), rtol=1e-9)
        expected = density_of(MODELS[name]()).move_to(position)
        assert value == pytest.approx(expected, rel=1e-9)
    # what was not accepted leaves nothing behind
    again = density.along(start, 0)(start[0])
    assert again == pytest.approx(density.move_to(start), rel=1e-12)
    np.testing.assert_allclose(c.read_values(), c.to_values(start), rtol=1e-9)


def test_lengthscales_are_held_given_tau() -> None:
    """As the prior of SAAS is not on them, but on tau / l^2."""
    c = PriorCoordinates(saas())
    assert c.names == ("likelihood.noise_covar.noise", "covar_module.tau")
    assert c.derived == ["covar_module.inv_lengthscale_prior"]
    assert "covar_module.raw_lengthscale" in c.held


def fitted() -> SingleTaskGP:
    """Its MAP estimate has tau and the second lengthscale on bounds."""
    model = saas()
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    kernel = model.covar_module
    tau, length = kernel.raw_tau.exp().item(), kernel.lengthscale[0, 1].item()
    assert tau == pytest.approx(1e-3) and length == pytest.approx(1e4)
    return model


@pytest.mark.filterwarnings("ignore:Chains may not have converged")
def test_a_model_at_its_bounds_is_sampled_as_any_other() -> None:
    model = fitted()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    c, fresh = PriorCoordinates(model), PriorCoordinates(saas())
    assert c.names == fresh.names and c.held == fresh.held
    with pytest.warns(ChainsWarning, match="raw_lengthscale.*set to the MAP estimate"):
        result = fit_slice_sampling(model, num_samples=2, warmup=4, thinning=4, seed=0)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert np.isfinite(result.chains.log_density).all()
    for k, draw in enumerate(result.chains.samples[:, 3]):
        values = PriorCoordinates(result.models[k].train()).read_values()
        np.testing.assert_allclose(values, draw, rtol=1e-6)
