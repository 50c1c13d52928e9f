"""Priors on values that depend on other sampled values, as the SAAS prior does."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.hierarchical import HierarchicalConditionalKernelGP
from botorch.models.map_saas import add_saas_prior
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from botorch_structured.fit import fit_slice_sampling
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


def saas_reversed() -> SingleTaskGP:
    """The prior on what depends comes first."""
    model = saas()
    priors = model.covar_module._priors
    priors["tau_prior"] = priors.pop("tau_prior")
    return model


def saas_at_one() -> SingleTaskGP:
    """Where tau / l^2 looks like a power of l."""
    model = saas()
    model.covar_module.raw_tau.data.zero_()
    return model


def hierarchical() -> HierarchicalConditionalKernelGP:
    X, Y = data(d=3)
    X[:, 0] = X[:, 0].round()
    tree = {0: {0: [1], 1: [2]}}
    return HierarchicalConditionalKernelGP(X, Y, hierarchical_dependencies=tree)


def ratio(kernel: ScaleKernel) -> Tensor:
    """Signal variance in squared lengthscales."""
    return kernel.outputscale / kernel.base_kernel.lengthscale.square().squeeze()


def set_ratio(kernel: ScaleKernel, value: Tensor) -> None:
    square = kernel.base_kernel.lengthscale.square().squeeze()
    kernel.outputscale = torch.as_tensor(value) * square


def chained() -> SingleTaskGP:
    """A ratio with a lengthscale whose prior comes after it."""
    kernel = ScaleKernel(RBFKernel(lengthscale_prior=LogNormalPrior(0.0, 1.0)))
    kernel.register_prior("ratio_prior", LogNormalPrior(0.0, 1.0), ratio, set_ratio)
    return single(kernel)


MODELS = {
    "saas": saas,
    "saas reversed": saas_reversed,
    "saas at one": saas_at_one,
    "hierarchical": hierarchical,
    "chained": chained,
}


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
        value = density.along(axis)(position[axis])
        np.testing.assert_allclose(c.read_values(), c.to_values(position), rtol=1e-9)
        expected = density_of(MODELS[name]()).log_density(position)
        assert value == pytest.approx(expected, rel=1e-9)
    # what was not accepted leaves nothing behind
    again = density.along(0)(start[0])
    assert again == pytest.approx(density.log_density(start), rel=1e-12)
    np.testing.assert_allclose(c.read_values(), c.to_values(start), rtol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_values_are_written_in_an_order_that_keeps_them(name: str) -> None:
    c = PriorCoordinates(MODELS[name]())
    values = c.read_values() * np.linspace(1.1, 1.6, len(c))
    assert c.write_values(values)
    np.testing.assert_allclose(c.read_values(), values, rtol=1e-9)


def test_values_that_depend_on_each_other_are_not_both_sampled() -> None:
    """There is no order of setting them."""
    model = chained()
    kernel = model.covar_module
    kernel.register_prior(
        "size_prior",
        LogNormalPrior(0.0, 1.0),
        lambda m: m.outputscale * m.base_kernel.lengthscale.squeeze(),
        lambda m, v: m.base_kernel.initialize(lengthscale=v / m.outputscale),
    )
    del kernel.base_kernel._priors["lengthscale_prior"]
    c = PriorCoordinates(model)
    assert c.derived == ["covar_module.size_prior"]
    assert "covar_module.base_kernel.raw_lengthscale" in c.held


def fitted() -> SingleTaskGP:
    """Its MAP estimate has tau and the second lengthscale on bounds."""
    model = saas()
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    kernel = model.covar_module
    tau, length = kernel.raw_tau.exp().item(), kernel.lengthscale[0, 1].item()
    assert tau == pytest.approx(1e-3) and length == pytest.approx(1e4)
    return model


@pytest.mark.filterwarnings("ignore:No prior that can be sampled from on mean_module")
@pytest.mark.filterwarnings("ignore:Chains may not have converged")
def test_a_model_at_its_bounds_is_sampled_as_any_other() -> None:
    model = fitted()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    c, fresh = PriorCoordinates(model), PriorCoordinates(saas())
    assert c.names == fresh.names and c.held == fresh.held
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    result = fit_slice_sampling(model, num_samples=2, warmup=4, thinning=4, seed=0)
    assert np.isfinite(result.chains.log_density).all()
    for k, draw in enumerate(result.chains.samples[:, 3]):
        values = PriorCoordinates(result.models[k].train()).read_values()
        np.testing.assert_allclose(values, draw, rtol=1e-6)


@pytest.mark.parametrize("at", ["low", "high", "mixed"])
def test_probing_starts_inside_the_bounds(at: str) -> None:
    """A setting closure that stays clear of bounds, and elements on both of them."""
    bounds = Interval(0.5, 2.0, transform=None, initial_value=1.0)
    kernel = RBFKernel(ard_num_dims=2, lengthscale_constraint=bounds)
    kernel.register_prior(
        "lengthscale_prior",
        LogNormalPrior(0.0, 1.0),
        lambda m: m.lengthscale,
        lambda m, v: m.initialize(lengthscale=v.clamp(0.5 + 1e-8, 2.0 - 1e-8)),
    )
    values = {"low": [0.5, 0.5], "high": [2.0, 2.0], "mixed": [0.5, 2.0]}[at]
    kernel.lengthscale = torch.tensor(values)
    model = single(kernel)
    c = PriorCoordinates(model)
    assert c.names[1:] == ("covar_module.lengthscale[0]", "covar_module.lengthscale[1]")
    assert c.blocks[1].power == 1.0
    np.testing.assert_allclose(c.lower[1:], 0.5)
    np.testing.assert_allclose(c.upper[1:], 2.0)
    assert kernel.lengthscale.tolist() == [values]
