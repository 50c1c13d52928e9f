"""Densities of hyperparameters: the definition, and what must be equal to it."""

from __future__ import annotations

import math
import warnings
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from botorch.models import MixedSingleTaskGP, MultiTaskGP, SingleTaskGP
from botorch.models.transforms.input import Normalize, Warp
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood, LeaveOneOutPseudoLikelihood
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from botorch_structured.kernels.mondrian import LaplaceKernel
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.models.sampled.coordinates import PriorCoordinates
from botorch_structured.models.sampled.density import ModelDensity, StationaryDensity

pytestmark = pytest.mark.usefixtures("double")


def data(n: int = 12, d: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The first column is a decision; outcomes with noise."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    X[:, 0] = (X[:, 0] > 0.5).double()
    noise = torch.randn(n, 1, generator=g, dtype=torch.float64)
    return X, (4 * X[:, 1:]).sin().sum(-1, keepdim=True) + 0.1 * noise


TREE = {0: {0: [1], 1: [2, 3]}}
LENGTH = LogNormalPrior(0.0, 1.0).double()
SCALE = GammaPrior(2.0, 0.15).double()


def single(seed: int = 0, n: int = 12, **kwargs) -> SingleTaskGP:
    return SingleTaskGP(*data(n, seed=seed), **kwargs)


def with_mean(**kwargs) -> dict:
    return {"mean_module": ConstantMean(constant_prior=NormalPrior(0.0, 1.0)), **kwargs}


FAST = {
    "default": lambda s: single(s),
    "one row": lambda s: single(s, n=1, outcome_transform=None),
    "mean": lambda s: single(s, **with_mean()),
    "zero mean": lambda s: single(s, mean_module=ZeroMean()),
    "fixed noise": lambda s: single(s, train_Yvar=data()[1].square() + 0.01),
    "normalize": lambda s: single(s, input_transform=Normalize(4)),
    "one lengthscale": lambda s: single(
        s, covar_module=RBFKernel(lengthscale_prior=LENGTH)
    ),
    **{
        f"matern {nu}": lambda s, nu=nu: single(
            s,
            **with_mean(
                covar_module=ScaleKernel(
                    MaternKernel(nu=nu, ard_num_dims=4, lengthscale_prior=LENGTH),
                    outputscale_prior=SCALE,
                )
            ),
        )
        for nu in (0.5, 1.5, 2.5)
    },
    "laplace": lambda s: single(
        s,
        covar_module=ScaleKernel(
            LaplaceKernel(ard_num_dims=4, lengthscale_prior=LENGTH),
            outputscale_prior=SCALE,
        ),
    ),
    "active dims": lambda s: single(
        s,
        covar_module=ScaleKernel(
            RBFKernel(ard_num_dims=2, active_dims=(3, 1), lengthscale_prior=LENGTH),
            outputscale_prior=SCALE,
        ),
    ),
    "conditional": lambda s: ConditionalGP(*data(seed=s), TREE),
    "conditional laplace": lambda s: ConditionalGP(
        *data(seed=s),
        TREE,
        covar_module=LaplaceKernel(ard_num_dims=4, lengthscale_prior=LENGTH),
    ),
    "tree without decisions": lambda s: TreeStructuredGP(*data(seed=s), {}),
}


def densities(model) -> tuple[ModelDensity, StationaryDensity | None]:
    coordinates = PriorCoordinates(model)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()
    return ModelDensity(mll, coordinates), StationaryDensity.of(mll, coordinates)


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=8)
@given(seed=st.integers(0, 1000))
def test_fast_equals_the_definition(name: str, seed: int) -> None:
    """At positions, along coordinates, and after steps that were taken or not."""
    slow, fast = densities(FAST[name](seed))
    assert fast is not None
    c = slow.coordinates
    rng = np.random.default_rng(seed)
    z = c.to_position(c.read_values())

    def compare(a: float, b: float) -> None:
        if a == b:
            return
        with torch.no_grad():
            model = slow.mll.model
            covariance = model.likelihood(model(*model.train_inputs)).covariance_matrix
            condition = float(torch.linalg.cond(covariance))
        # What rounding does to either where noise is next to nothing; more of it where
        # squared distances come from a product of inputs over short lengthscales, as in
        # the evidence by blocks (the incremental one has three digits more there).
        lost = 1000 if isinstance(model, ConditionalGP) else 4
        rounding = lost * torch.finfo(torch.float64).eps * condition
        assert a == pytest.approx(b, rel=max(1e-9, rounding), abs=1e-9)

    compare(fast.move_to(z), slow.move_to(z))
    for _ in range(8):
        axis = int(rng.integers(len(c)))
        along = fast.along(z, axis), slow.along(z, axis)
        for step in (rng.normal(), rng.choice([rng.normal(), 800.0, -800.0])):
            proposal = z[axis] + step  # also far outside of all bounds
            compare(along[0](proposal), along[1](proposal))
        if rng.random() < 0.6 and math.isfinite(along[0](proposal)):
            along[1](proposal)
            fast.accept()
            slow.accept()
            z[axis] = proposal
    compare(fast.move_to(z), slow.move_to(z))


class Louder(GaussianLikelihood):
    def _shaped_noise_covar(self, *args, **kwargs) -> Tensor:
        return super()._shaped_noise_covar(*args, **kwargs) * 100.0


OTHERS = {
    "default": lambda s: single(s),
    "rq": lambda s: single(s, covar_module=RQKernel(lengthscale_prior=LENGTH)),
    "noise": lambda s: single(
        s, likelihood=Louder(noise_prior=LogNormalPrior(-4.0, 1.0))
    ),
    "mixed": lambda s: MixedSingleTaskGP(*data(seed=s), [0]),
    "multitask": lambda s: MultiTaskGP(*data(seed=s), task_feature=0),
    "tree": lambda s: TreeStructuredGP(*data(seed=s), TREE),
    "warp": lambda s: single(
        s, input_transform=Warp(d=4, indices=[1], concentration0_prior=LENGTH)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
@settings(max_examples=4)
@given(seed=st.integers(0, 1000))
def test_the_definition_is_the_dense_evidence_and_the_priors(
    name: str, seed: int
) -> None:
    """However it is computed, along a coordinate and after a refused value."""
    model = OTHERS[name](seed)
    density, fast = densities(model)
    assert (fast is None) == (name != "default")
    c, rng = density.coordinates, np.random.default_rng(seed)
    z = c.to_position(c.read_values()) + 0.3 * rng.standard_normal(len(c))
    assert math.isfinite(density.move_to(z))

    def dense(position: np.ndarray) -> float:
        c.write_values(c.to_values(position))
        prior = model.forward(*model.train().train_inputs)
        value = model.likelihood(prior, *model.train_inputs).log_prob(
            model.train_targets
        )
        for _, module, p, closure, _ in model.named_priors():
            value = value + p.log_prob(closure(module)).sum()
        return float(value) + c.log_jacobian(position)

    # nine digits where noise is next to nothing
    close = partial(pytest.approx, rel=1e-9, abs=1e-7)
    for axis in range(len(c)):
        near = z.copy()
        near[axis] += 0.1
        along = density.along(z, axis)
        assert along(1e3) == -math.inf or not c.positive[axis]
        assert along(near[axis]) == close(dense(near))
    assert density.move_to(z) == close(dense(z))
    last = len(c) - 1
    along = density.along(z, last)
    value = along(z[last] + 0.3)
    density.accept()
    z[last] += 0.3
    assert value == close(density.move_to(z))


def test_another_objective_is_not_the_evidence() -> None:
    model = single()
    mll = LeaveOneOutPseudoLikelihood(model.likelihood, model)
    assert StationaryDensity.of(mll, PriorCoordinates(model)) is None


def test_a_custom_loss_is_the_objective() -> None:
    class Own(SingleTaskGP):
        def compute_custom_loss(self, mll) -> Tensor:
            return self.likelihood.noise.sum()

    model = Own(*data())
    slow, fast = densities(model)
    assert fast is None
    z = slow.coordinates.to_position(slow.coordinates.read_values())
    noise = slow.coordinates.to_values(z)[0]
    assert slow.move_to(z) == pytest.approx(-12 * noise + z.sum())


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("reason", ["singular", "bounds"])
def test_a_move_that_fails_changes_nothing(which: int, reason: str) -> None:
    """The end of a sweep may be where rounding makes a matrix singular."""
    X, Y = data()
    kernel = RBFKernel(ard_num_dims=4, lengthscale_prior=LENGTH)
    model = SingleTaskGP(
        torch.cat([X, X]),
        torch.cat([Y, Y + 0.1]),
        **with_mean(covar_module=ScaleKernel(kernel, outputscale_prior=SCALE)),
    )
    density, fresh = densities(model)[which], densities(deepcopy(model))[which]
    assert density is not None and fresh is not None
    c = density.coordinates
    z = c.to_position(c.read_values()) + 0.1
    density.move_to(z)
    fresh.move_to(z)
    far = z - 0.4
    far[c.names.index("covar_module.outputscale")] = (
        75.0 if reason == "singular" else 800.0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert density.move_to(far) == -math.inf
    for axis in range(len(c)):
        value = density.along(z, axis)(z[axis] + 0.2)
        assert value == pytest.approx(fresh.along(z, axis)(z[axis] + 0.2), rel=1e-9)


def test_priors_of_what_is_held_count() -> None:
    """A constant, but the number is that of the objective."""
    model = single()
    model.covar_module.raw_lengthscale.requires_grad_(False)
    slow, fast = densities(model)
    assert fast is not None
    z = np.array([-2.0])
    assert fast.move_to(z) == pytest.approx(slow.move_to(z), rel=1e-12)
