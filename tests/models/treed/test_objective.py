"""Equation (2) as a model has it, for all of its kernels, against one another."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from gpytorch.priors import GammaPrior, NormalPrior
from torch import Tensor

from botorch_structured.models.treed.leaf_modules import (
    LeafNoiseLikelihood,
)
from botorch_structured.models.treed.treed_gp import TreedGP
from botorch_structured.test_functions import RKHS1D
from tests.treed_models import PUBLISHED, randomised, step_data

pytestmark = pytest.mark.usefixtures("double")


def with_gradient(model: TreedGP, value: Tensor) -> list[Tensor]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [value, *torch.autograd.grad(value.sum(), parameters, allow_unused=True)]


def by_the_kernel(model: TreedGP, published: bool) -> Tensor:
    """The objective, each term from torch's own distribution."""
    rows_of = attrgetter("rows" if published else "home")
    totals, of_leaves = [], isinstance(model.likelihood, LeafNoiseLikelihood)
    for e, data in enumerate(model._plan()):
        levels = model.levels.reshape(-1, *model.levels.shape[-2:])[e]
        place = {id(node): k for k, node in enumerate(data.root.walk())}
        total = torch.zeros(())
        for j, leaf in enumerate(data.root.leaves()):
            number = torch.tensor([j])
            for node in leaf.path():
                rows = torch.as_tensor(rows_of(node))
                X = data.X[rows].unsqueeze(0)
                # two sets of points: no shortcut for the gradient
                K = model.covar_module.leaf_covariance(e, number, X, X.clone())[0]
                mean = model.mean_module.leaf_mean(e, number, X)[0]
                if of_leaves:
                    noise = model.likelihood.noise
                    noise = noise.reshape(-1, noise.shape[-1])[e, number]
                else:
                    noise = model._known_noise().reshape(-1, len(data.y))[e, rows]
                if node is not leaf and not model._share_all:
                    variance, level, own = levels[place[id(node)]]
                    K = K * (variance / K.diagonal().mean())
                    mean, noise = level, own if of_leaves else noise
                weight = len(rows_of(leaf)) / len(rows)
                weight /= 1 + leaf.depth - node.depth
                total = total + weight * torch.distributions.MultivariateNormal(
                    mean.expand(len(rows)), K + noise.expand(len(rows)).diag()
                ).log_prob(data.y[rows])
        totals.append(total)
    return torch.stack(totals).reshape(model.partition.tree_shape)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize(
    "kind",
    ["default", "warp", "categorical", "known noise", "one noise", "batch", "modules"],
)
def test_the_sum_over_nodes_is_that_over_leaves_and_paths(
    kind: str, published: bool
) -> None:
    X, Y = step_data(40, seed=1)
    kwargs: dict[str, Any] = dict(PUBLISHED) if published else {}
    if kind == "warp":
        kwargs["warp"] = True
    elif kind == "categorical":
        X = torch.cat([X, (3.0 * X[:, :1] + X[:, 1:]).floor()], dim=-1)
        kwargs["categorical_features"] = [2]
    elif kind == "known noise":
        kwargs["train_Yvar"] = 0.01 + 0.1 * X[:, :1]
    elif kind == "one noise":
        kwargs["leaf_noise"] = False
    elif kind == "modules":  # copies of what a user gave
        kwargs["covar_module"] = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2))
        kwargs["mean_module"] = ConstantMean()
    elif kind == "batch":
        Y = torch.cat([Y, Y.flip(0), X[:, :1]], dim=-1)  # trees of several sizes
    model = randomised(TreedGP(X, Y, **kwargs), seed=2).train()
    assert model.partition.num_leaves > 1
    found = with_gradient(model, model._log_path_evidence())
    total = by_the_kernel(model, published)
    expected = with_gradient(model, total)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    if kind != "batch":
        mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
        for _, module, prior, closure, _ in model.named_priors():
            total = total + prior.log_prob(closure(module)).sum()
        objective = mll(model(*model.train_inputs), model.train_targets)
        for value in (objective, -model.compute_custom_loss(mll)):
            torch.testing.assert_close(value, total / 40.0, rtol=1e-9, atol=1e-9)


ONE_COLUMN = ScaleKernel(MaternKernel(nu=2.5, active_dims=[1]))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        PUBLISHED,
        {**PUBLISHED, "leaf_noise": True},
        {"known": True},
        {**PUBLISHED, "known": True},
        {"max_leaves": 1},
        {"max_leaves": 1, "gamma": True},
        {"max_leaves": 1, "covar_module": RBFKernel()},
        {"max_leaves": 1, "covar_module": ONE_COLUMN},
    ],
)
def test_what_a_fit_maximises_is_the_objective(
    kwargs: dict[str, Any], seed: int
) -> None:
    """Value and gradient on arrays, against autograd."""
    X, Y = step_data(40, seed=seed)
    kwargs = deepcopy(kwargs)
    if kwargs.pop("known", False):
        kwargs["train_Yvar"] = 0.01 + 0.1 * X[:, :1]
    if kwargs.pop("gamma", False):
        kwargs["likelihood"] = with_gamma_prior()
    model = TreedGP(X, Y, **kwargs)
    if "max_leaves" not in kwargs:  # whose lengthscales are no logarithms
        randomised(model, seed)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    problem = model._objective(mll.train())
    assert problem is not None
    loss = model.compute_custom_loss(mll)
    free = [p for p in mll.parameters() if p.requires_grad]
    slopes = torch.cat([s.flatten() for s in torch.autograd.grad(loss, free)])
    raw = problem.read()
    value, gradient = problem(raw)
    assert value == pytest.approx(loss.item(), rel=1e-10)
    np.testing.assert_allclose(gradient, slopes.numpy(), rtol=1e-8, atol=1e-10)
    # what is written is what is read
    problem.write(raw - 0.01)
    np.testing.assert_array_equal(problem.read(), raw - 0.01)


def test_an_amplitude_may_vanish() -> None:
    """Without a prior it does: nodes above the leaf then lose their covariance too."""
    kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2))
    model = TreedGP(*step_data(), covar_module=kernel)
    assert model.partition.num_leaves > 1
    with torch.no_grad():
        for copy in model.covar_module.copies:
            copy.raw_outputscale.fill_(-300.0)
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    value_and_slopes = with_gradient(model, model.compute_custom_loss(mll))
    assert all(part.isfinite().all() for part in value_and_slopes)


def with_one_more_prior(X: Tensor, Y: Tensor) -> TreedGP:
    model = TreedGP(X, Y)
    model.register_prior("more", NormalPrior(3, 0.1), lambda m: m.mean_module.constant)
    return model


def with_gamma_prior() -> GaussianLikelihood:
    """As that of GPyTorch's tutorials."""
    return GaussianLikelihood(
        noise_prior=GammaPrior(1.1, 0.05),
        noise_constraint=GreaterThan(1e-4, None, initial_value=1e-2),
    )


def test_a_fit_survives_many_damped_updates() -> None:
    """Steps of the noise that all leaves share go against what some of them ask for."""
    X = torch.rand(150, 4, generator=torch.Generator().manual_seed(6053))
    step = 3.0 * ((X[:, 1] > 0.5) & (X[:, 2] < 0.7)) * X[:, 3]
    Y = (5.0 * ((5.0 * X).sin().sum(-1) + step)).round().unsqueeze(-1)
    model = TreedGP.as_published(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.posterior(X).mean.isfinite().all()


@pytest.mark.parametrize("unit", [30.0, 1e4])
def test_outcomes_that_are_not_standardised(unit: float) -> None:
    """Their noise may be beyond the bounds: the fit begins at these."""
    X = torch.rand(60, 2, generator=torch.Generator().manual_seed(1))
    Y = unit * torch.randn(60, 1, generator=torch.Generator().manual_seed(2))
    with pytest.warns(InputDataWarning):
        model = TreedGP.as_published(X, Y, outcome_transform=None)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.posterior(X).mean.isfinite().all()


def by_torch(mll: MarginalLogLikelihood) -> None:
    fit_gpytorch_mll_scipy(mll.train(), options={"maxiter": 500, "maxcor": 30})


def smooth_data(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Without noise: the optimum is at bounds and steep next to them."""
    X = torch.rand(n, 1, generator=torch.Generator().manual_seed(seed))
    return X, RKHS1D(negate=True)(X).unsqueeze(-1)


@pytest.mark.parametrize(
    ("data", "make"),
    [
        (lambda: step_data(40, seed=0), TreedGP),
        (lambda: step_data(40, seed=1), TreedGP.as_published),
        (lambda: smooth_data(50, 3), TreedGP),
        # others than the objective that is written out
        (lambda: step_data(40, seed=0), with_one_more_prior),
        (lambda: step_data(40, seed=0), partial(TreedGP, warp=True)),
        (lambda: step_data(40, seed=0), partial(TreedGP, leaf_noise=False)),
    ],
)
def test_a_fit_ends_at_an_optimum(data: Any, make: Any) -> None:
    """L-BFGS-B on the general path finds no better one from where the fit ended."""
    X, Y = data()
    model = make(X, Y)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    values = []
    for fit in (fit_gpytorch_mll, by_torch):
        fit(mll)
        with torch.no_grad():
            values.append(-len(X) * float(model.compute_custom_loss(mll.train())))
    assert model.partition.num_leaves > 1
    assert values[1] - values[0] < 0.05  # nats


def test_many_rows_are_fitted_well() -> None:
    X, Y = step_data(600)
    model = TreedGP.as_published(X, Y)
    assert model.partition.num_leaves > 100
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll)
    points = step_data(200, seed=1)[0]
    left = points[:, 0] < 0.5
    smooth = 4.0 + (9.0 * points[:, -1]).sin()
    expected = torch.where(left, 0.3 * points[:, -1], smooth)
    error = model.posterior(points).mean.squeeze(-1) - expected
    assert float(error.abs().median()) < 0.1
