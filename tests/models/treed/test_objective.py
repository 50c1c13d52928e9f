"""Equation (2) as a model has it, for all of its kernels, against one another."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from gpytorch.priors import GammaPrior, NormalPrior
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from botorch_structured.models.treed.leaf_modules import (
    LeafNoiseLikelihood,
    TreedStationary,
)
from botorch_structured.models.treed.objective import path_evidence
from botorch_structured.models.treed.treed_gp import TreedGP
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
                    noise = model.likelihood.noise_covar.leaf_noise(e, number)
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
    "kind", ["default", "warp", "categorical", "known noise", "one noise", "batch"]
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
    elif kind == "batch":
        Y = torch.cat([Y, Y.flip(0), X[:, :1]], dim=-1)  # trees of several sizes
    model = randomised(TreedGP(X, Y, **kwargs), seed=2).train()
    assert isinstance(model.covar_module, TreedStationary)
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


@pytest.mark.parametrize("share", ["all", "lengthscale"])
def test_copies_of_the_default_kernel_are_the_default(share: str) -> None:
    """Equation (2) is the same for a kernel of the user's, amplitudes included."""
    X, Y = step_data(40, seed=1)
    default = randomised(TreedGP(X, Y, path_sharing=share, leaf_kernel="matern"))
    copies = TreedGP(
        X,
        Y,
        path_sharing=share,
        covar_module=ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2)),
        mean_module=ConstantMean(),
    )
    copies.levels.copy_(default.levels)
    kernel, mean = default.covar_module, default.mean_module
    with torch.no_grad():
        copies.likelihood.noise_covar.noise_of_leaf.raw_value.copy_(
            default.likelihood.noise_covar.noise_of_leaf.raw_value
        )
        for j, (copy, constant) in enumerate(
            zip(copies.covar_module.copies, copies.mean_module.copies, strict=True)
        ):
            copy.base_kernel.lengthscale = kernel.lengthscale_of_leaf.value[j]
            copy.outputscale = kernel.variance_of_leaf.value[j]
            constant.constant = mean.constant[j]
    a, b = (model.train()._log_path_evidence() for model in (default, copies))
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    a.backward()
    b.backward()
    slopes = [copy.base_kernel for copy in copies.covar_module.copies]
    for j, base in enumerate(slopes):
        # from raw parameters to logarithms
        length = base.lengthscale
        (chain,) = torch.autograd.grad(length.log().sum(), base.raw_lengthscale)
        torch.testing.assert_close(
            base.raw_lengthscale.grad[0],
            kernel.lengthscale_of_leaf.raw_value.grad[j] * chain[0],
            rtol=1e-8,
            atol=1e-9,
        )
        copy = copies.covar_module.copies[j]
        (chain,) = torch.autograd.grad(copy.outputscale.log(), copy.raw_outputscale)
        torch.testing.assert_close(
            copy.raw_outputscale.grad,
            kernel.variance_of_leaf.raw_value.grad[j] * chain,
            rtol=1e-8,
            atol=1e-9,
        )


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("noise", ["known", "of each leaf", "of all leaves"])
def test_what_a_fit_maximises_is_the_objective(published: bool, noise: str) -> None:
    """Value and gradient on arrays, against autograd."""
    for seed in range(3):
        X, Y = step_data(40, seed=seed)
        kwargs: dict[str, Any] = dict(PUBLISHED) if published else {}
        if noise == "known":
            kwargs["train_Yvar"] = 0.01 + 0.1 * X[:, :1]
        else:
            kwargs["leaf_noise"] = noise == "of each leaf"
        model = randomised(TreedGP(X, Y, **kwargs), seed)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        problem = model._leaf_problem(mll.train())
        if noise == "of all leaves" and not published:
            assert problem is None  # nodes above the leaves have this noise, too
            return
        assert problem is not None
        expected = with_gradient(model, model.compute_custom_loss(mll))
        raw = problem.read()
        value, gradient = problem(raw)
        assert value == pytest.approx(expected[0].item(), rel=1e-11)
        slopes = torch.cat([slope.flatten() for slope in expected[1:]])
        np.testing.assert_allclose(gradient, slopes.numpy(), rtol=1e-9, atol=1e-11)
        # each leaf has its part of it, but for a constant
        parts = [
            f(x)[0] for f, x in zip(problem.densities, problem.theta(), strict=True)
        ]
        assert -(sum(parts) + problem.constant) / 40 == pytest.approx(value)
        # what is written is what is read
        problem.write(raw - 0.01)
        np.testing.assert_array_equal(problem.read(), raw - 0.01)


def test_one_leaf_is_fitted_in_closed_form() -> None:
    model = TreedGP(*step_data(), max_leaves=1)
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    problem = model._leaf_problem(mll)
    assert problem is not None and not problem.in_logarithms
    loss = -mll(model(*model.train_inputs), model.train_targets)
    expected, *slopes = with_gradient(model, loss)
    value, gradient = problem(problem.read())
    assert value == pytest.approx(expected.item(), rel=1e-11)
    # the likelihood comes first in the objective, last in the model
    names = [name for name, _ in model.named_parameters()]
    found = dict(zip(names, slopes, strict=True))
    inner = [name.removeprefix("model.") for name in problem._parameters.names]
    slopes = torch.cat([found[name].flatten() for name in inner])
    np.testing.assert_allclose(gradient, slopes.numpy(), rtol=1e-8, atol=1e-10)


def factors_of(model: TreedGP) -> list[Any]:
    """Value and gradient of the objective."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    return with_gradient(model, model.compute_custom_loss(mll))


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_one_covariance_of_several_gets_jitter() -> None:
    """A leaf's, in some of its nodes: the others stay as they are."""
    (data,) = TreedGP(*step_data(40, seed=1), path_sharing="all").train()._plan()
    L = len(data.root.leaves())
    assert L > 1
    K = (-(data.X[:, None] - data.X).square().sum(-1)).exp().expand(L, 40, 40).clone()
    mean, noise = torch.zeros(L, 40), torch.full((L, 40), 0.1)
    bad = torch.as_tensor(data.root.leaves()[0].home[:2])
    K[0, bad[1]], K[0, :, bad[1]] = K[0, bad[0]], K[0, :, bad[0]]  # twice one point
    noise[0, bad] = -1e-9
    found = path_evidence(data.terms, data.y, K, mean, noise)
    # the nodes that need it get 1e-8
    jitter = [
        1e-8 * bool(torch.isin(bad, term.rows).all() and 0 in term.leaves)
        for term in data.terms
    ]
    assert 0.0 in jitter and 1e-8 in jitter
    expected = torch.zeros(())
    for term, extra in zip(data.terms, jitter, strict=True):
        more = noise.clone()
        more[0] += extra
        expected = expected + path_evidence([term], data.y, K, mean, more)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(NotPSDError):
        path_evidence(data.terms, data.y, K, mean, noise - 5.0)


def test_an_amplitude_may_vanish() -> None:
    """Without a prior it does: nodes above the leaf then lose their covariance too."""
    kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2))
    model = TreedGP(*step_data(), covar_module=kernel)
    assert model.partition.num_leaves > 1
    with torch.no_grad():
        for copy in model.covar_module.copies:
            copy.raw_outputscale.fill_(-300.0)
    assert all(part.isfinite().all() for part in factors_of(model))


def test_other_modules_have_no_written_out_objective() -> None:
    X, Y = step_data()
    model = TreedGP(X, Y)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    assert model._leaf_problem(mll) is not None
    # one more prior is not in the formula
    model.register_prior("more", NormalPrior(0, 2), lambda m: m.mean_module.constant)
    assert model._leaf_problem(mll) is None
    for kwargs in (
        {"warp": True},
        {"covar_module": ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2))},
        {"likelihood": GaussianLikelihood()},
        {"covar_module": MaternKernel(nu=2.5), "max_leaves": 1},
        {"covar_module": RBFKernel(active_dims=[1]), "max_leaves": 1},
        {"likelihood": with_gamma_prior(), "max_leaves": 1},
    ):
        model = TreedGP(X, Y, **kwargs)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        assert model._leaf_problem(mll) is None, kwargs


def with_gamma_prior() -> GaussianLikelihood:
    """A log density that is not quadratic in logarithms."""
    return GaussianLikelihood(
        noise_prior=GammaPrior(1.1, 0.05),
        noise_constraint=GreaterThan(1e-4, None, initial_value=1e-2),
    )


def test_the_objective_of_a_subclass_is_its_own() -> None:
    class OwnPrior(TreedGP):
        def forward(self, x: Tensor) -> MultivariateNormal:
            return super().forward(x)

    class OwnLoss(TreedGP):
        def compute_custom_loss(
            self, mll: MarginalLogLikelihood, **kwargs: Any
        ) -> Tensor:
            return super().compute_custom_loss(mll, **kwargs) + 1.0

    for cls in (OwnPrior, OwnLoss):
        for kwargs in ({}, {"max_leaves": 1}):
            model = cls(*step_data(), **kwargs)
            mll = ExactMarginalLogLikelihood(model.likelihood, model)
            assert model._leaf_problem(mll) is None
    model = TreedGP(*step_data(), max_leaves=1)
    model.covar_module = MaternKernel(nu=0.5)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    assert model._leaf_problem(mll) is None
