"""Which values are sampled, on which scale, within which bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from botorch.models import MultiTaskGP, SingleTaskGP
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.priors import (
    GammaPrior,
    HorseshoePrior,
    LogNormalPrior,
    MultivariateNormalPrior,
    NormalPrior,
    Prior,
    UniformPrior,
)
from torch import Tensor

from botorch_structured.models import ConditionalGP
from botorch_structured.models.sampled.coordinates import (
    PriorCoordinates,
    scalar_log_densities,
)


def data(n: int = 8, d: int = 2) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    return X, X.sin().sum(-1, keepdim=True)


def single(**kwargs) -> SingleTaskGP:
    return SingleTaskGP(*data(), **kwargs)


def test_single_task_gp() -> None:
    c = PriorCoordinates(single())
    assert c.names == (
        "likelihood.noise_covar.noise",
        "covar_module.lengthscale[0]",
        "covar_module.lengthscale[1]",
    )
    assert c.held == ["mean_module.raw_constant"] and c.derived == []
    assert c.positive.all()
    np.testing.assert_allclose(c.lower, [1e-4, 0.025, 0.025], rtol=1e-6)
    assert (c.upper == 1e30).all()


def test_values_and_coordinates_are_inverse() -> None:
    c = PriorCoordinates(
        single(mean_module=ConstantMean(constant_prior=NormalPrior(0.0, 1.0)))
    )
    assert c.names[1] == "mean_module.mean" and not c.positive[1]
    z = np.array([-3.0, -1.5, 0.2, 2.0])
    values = c.to_values(z)
    np.testing.assert_allclose(values, [math.exp(-3), -1.5, math.exp(0.2), math.exp(2)])
    np.testing.assert_allclose(c.to_position(values), z)
    c.write_values(values)
    np.testing.assert_allclose(c.read_values(), values, rtol=1e-15)
    for axis in range(4):
        assert c.scalar_value(axis)(z[axis]) == pytest.approx(values[axis], rel=1e-15)
    assert c.scalar_value(0)(math.log(0.9e-4)) is None  # below the floor
    assert c.scalar_value(0)(1e4) is None  # exp overflows
    assert not c.inside(c.to_position(np.array([0.9e-4, 0.0, 1.0, 1.0])))


def test_standard_deviations_are_coordinates_of_their_own() -> None:
    """Priors on square roots: positive, bounded by the bounds of the variances."""
    X, Y = data(d=3)
    X[:, 0] = (X[:, 0] > 0.5).double()
    model = ConditionalGP(X, Y, {0: {0: [1], 1: [2]}})
    c = PriorCoordinates(model)
    assert c.held == [] and c.derived == []
    block = {b.name: b for b in c.blocks}
    noise = block["likelihood.noise_covar.noise_std"]
    amplitude = block["covar_module.base_kernel.amplitude"]
    assert (noise.power, amplitude.power) == (2.0, 2.0)
    floor = model.likelihood.noise_covar.raw_noise_constraint.lower_bound.item()
    np.testing.assert_allclose(c.lower[noise.places], [math.sqrt(floor)], rtol=1e-6)
    np.testing.assert_allclose(c.lower[amplitude.places], [1e-2], rtol=1e-6)
    np.testing.assert_allclose(c.upper[amplitude.places], [1e2], rtol=1e-6)
    assert c.positive[noise.places] and c.positive[amplitude.places]
    values = c.read_values()
    values[noise.places] = 0.3
    c.write_values(values)
    assert model.likelihood.noise.item() == pytest.approx(0.09)


@pytest.mark.parametrize(
    "value",
    [
        lambda m: 1.0 + m.outputscale,
        lambda m: m.outputscale / m.base_kernel.lengthscale.square().squeeze(),
        lambda m: m.outputscale.square(),
    ],
    ids=["shifted", "of two parameters", "squared"],
)
def test_priors_on_derived_quantities_are_not_sampled(value) -> None:
    """Also where the value happens to be the parameter."""
    kernel = ScaleKernel(RBFKernel())
    kernel.register_prior("level_prior", LogNormalPrior(0.0, 1.0), value)
    kernel.outputscale = 1.0
    kernel.base_kernel.lengthscale = 1.0
    c = PriorCoordinates(single(covar_module=kernel))
    assert c.derived == ["covar_module.level_prior"]
    assert c.names == ("likelihood.noise_covar.noise",)
    assert "covar_module.raw_outputscale" in c.held


def test_a_prior_on_a_matrix_is_not_sampled() -> None:
    X, Y = data()
    X[:, 0] = torch.arange(8) % 2
    model = MultiTaskGP(X, Y, task_feature=0)
    c = PriorCoordinates(model)
    assert c.derived == ["covar_module.kernels.1.IndexKernelPrior"]
    assert "covar_module.kernels.1.raw_var" in c.held


def test_a_second_prior_on_the_same_parameter_is_not_a_coordinate() -> None:
    kernel = RBFKernel(ard_num_dims=2, lengthscale_prior=LogNormalPrior(0.0, 1.0))
    kernel.register_prior(
        "smoothness_prior",
        GammaPrior(2.0, 2.0),
        lambda m: m.lengthscale.reciprocal(),
        lambda m, v: m.initialize(lengthscale=torch.as_tensor(v).reciprocal()),
    )
    c = PriorCoordinates(single(covar_module=kernel))
    assert len(c) == 3 and c.derived == ["covar_module.smoothness_prior"]


def test_what_the_user_holds_is_neither_sampled_nor_fitted() -> None:
    model = single()
    model.covar_module.raw_lengthscale.requires_grad_(False)
    model.mean_module.raw_constant.requires_grad_(False)
    c = PriorCoordinates(model)
    assert c.names == ("likelihood.noise_covar.noise",)
    assert c.held == [] and c.derived == []


def test_nothing_to_sample_raises() -> None:
    model = single(likelihood=GaussianLikelihood(), covar_module=RBFKernel())
    with pytest.raises(ValueError, match="at least one prior on a parameter"):
        PriorCoordinates(model)


@pytest.mark.parametrize("values", [[0.95, 0.5], [0.95, 0.105], [0.5, 1.0]])
def test_near_the_ends_of_a_support(values: list[float]) -> None:
    prior = UniformPrior(0.1, 1.0)
    kernel = RBFKernel(ard_num_dims=2, lengthscale_prior=prior)
    kernel.lengthscale = torch.tensor(values)
    c = PriorCoordinates(single(covar_module=kernel))
    np.testing.assert_allclose(c.lower[1:], 0.1, rtol=1e-6)
    np.testing.assert_allclose(c.upper[1:], 1.0, rtol=1e-6)
    assert c.densities is not None
    for density in c.densities[1:]:
        assert density(0.3) == pytest.approx(-math.log(0.9), rel=1e-6)


class Halved(LogNormalPrior):
    """Has a density of its own: what a table of classes would get wrong."""

    def log_prob(self, value: Tensor) -> Tensor:
        return 0.5 * super().log_prob(value)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    "prior",
    [
        LogNormalPrior(0.3, 0.8),
        LogNormalPrior(tensor(0.3, -0.5, 1.0), tensor(0.8, 0.9, 1.0)),
        NormalPrior(0.3, 0.8),
        GammaPrior(3.0, 6.0),
        HorseshoePrior(0.7),
        Halved(0.0, 1.0),
        NormalPrior(0.0, 1.0, transform=torch.log),
        UniformPrior(tensor(0.0, 0.0, 0.0), tensor(5.0, 6.0, 7.0)),
    ],
    ids=lambda p: type(p).__name__,
)
def test_scalar_densities_are_those_of_the_priors(prior: Prior) -> None:
    value = tensor(0.2, 0.7, 2.5)
    densities = scalar_log_densities(prior, value)
    assert densities is not None
    for x in (value, 0.1 * value, 1.9 * value):
        ours = tensor(*(f(v) for f, v in zip(densities, x.tolist(), strict=True)))
        # float32 buffers of a scalar prior: its own log_prob knows no more digits
        given = prior.log_prob(x).double()
        torch.testing.assert_close(ours, given, rtol=1e-6, atol=1e-6)


def test_values_whose_densities_depend_on_each_other() -> None:
    prior = MultivariateNormalPrior(torch.zeros(2), torch.eye(2))
    assert scalar_log_densities(prior, torch.tensor([0.3, 0.4])) is None
