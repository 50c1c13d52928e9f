"""Equation (2) as a model has it, for all of its kernels, against one another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from gpytorch.priors import LogNormalPrior, NormalPrior
from torch import Tensor

from botorch_structured.models.tree.noise import register_noise_std_prior
from botorch_structured.models.treed.kernel import TreedStationary
from botorch_structured.models.treed.treed_gp import TreedGP
from tests.treed_models import PUBLISHED, randomised, step_data

pytestmark = pytest.mark.usefixtures("double")


def with_gradient(model: TreedGP, value: Tensor) -> list[Tensor]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [value, *torch.autograd.grad(value.sum(), parameters, allow_unused=True)]


def by_the_kernel(model: TreedGP) -> Tensor:
    """The objective from covariances as predictions take them, by autograd."""
    totals = []
    for e, data in enumerate(model._plan()):
        levels = model.levels.reshape(-1, *model.levels.shape[-2:])[e]
        mean, noise = model._mean_and_noise(e, data, levels)
        L = len(data.root.leaves())
        total = torch.zeros(())
        for group in data.groups:
            for b, (leaf, v) in enumerate(zip(group.leaves, group.values, strict=True)):
                for member, weight in zip(
                    group.members[b], group.weights[b], strict=True
                ):
                    if weight == 0.0:
                        continue
                    rows = group.rows[b, member > 0.0]
                    X = data.X[rows].unsqueeze(0)
                    # two sets of points: no shortcut for the gradient
                    K = model.covar_module.leaf_covariance(
                        e, leaf.unsqueeze(0), X, X.clone()
                    )[0]
                    if v >= L:
                        own = model.covar_module.variance_of(e, leaf)
                        K = K * (levels[v - L, 0] / own)
                    K = K + torch.diag(noise[v, rows])
                    density = torch.distributions.MultivariateNormal(mean[v, rows], K)
                    total = total + weight * density.log_prob(data.y[rows])
        totals.append(total)
    return torch.stack(totals).reshape(model.partition.tree_shape)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("kind", ["warp", "categorical", "known noise", "batch"])
def test_one_pass_over_the_terms_is_autograd_over_each(
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
    else:
        Y = torch.cat([Y, Y.flip(0), X[:, :1]], dim=-1)  # trees of several sizes
    model = randomised(TreedGP(X, Y, **kwargs), seed=2).train()
    assert isinstance(model.covar_module, TreedStationary)
    assert model.partition.num_leaves > 1
    found = with_gradient(model, model._log_path_evidence())
    expected = with_gradient(model, by_the_kernel(model))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


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
        names = [name for name, _ in model.named_parameters()]
        theta = problem.theta()
        value, gradient = problem.loss_and_gradient(theta)
        assert value == pytest.approx(expected[0].item(), rel=1e-11)
        for name, slope in zip(names, expected[1:], strict=True):
            d = X.shape[-1]
            (k,) = (
                k
                for k, key in enumerate(("length", "variance", "constant", "noise"))
                if key in name
            )
            part = gradient[:, :d] if k == 0 else gradient[:, d + k - 1]
            if slope.numel() == 1:  # of all leaves
                part = part.sum(keepdims=True)
            np.testing.assert_allclose(
                part.reshape(slope.shape), slope.numpy(), rtol=1e-9, atol=1e-11
            )
        # what is written is what is read
        problem.write(theta - 0.01)
        np.testing.assert_allclose(
            problem.theta()[problem.free], (theta - 0.01)[problem.free]
        )


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
        {"likelihood": with_prior_of_deviation(), "max_leaves": 1},
    ):
        model = TreedGP(X, Y, **kwargs)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        assert model._leaf_problem(mll) is None, kwargs


def with_prior_of_deviation() -> GaussianLikelihood:
    """A prior on the square root of what is fitted."""
    likelihood = GaussianLikelihood()
    register_noise_std_prior(likelihood.noise_covar, LogNormalPrior(-2.0, 0.5))
    return likelihood


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
