"""Equation (2) as a model has it, for all of its kernels, against one another."""

from __future__ import annotations

import time
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from gpytorch.priors import GammaPrior, NormalPrior
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from botorch_structured.linalg.correlations import RBF
from botorch_structured.models.stationary_evidence import (
    EvidenceTerm,
    StationaryEvidence,
)
from botorch_structured.models.treed.leaf_modules import (
    LeafNoiseLikelihood,
    TreedStationary,
)
from botorch_structured.models.treed.objective import (
    path_evidence,
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
        problem = model._objective(mll.train())
        if noise == "of all leaves" and not published:
            assert problem is None  # nodes above the leaves have this noise, too
            return
        assert problem is not None
        expected = with_gradient(model, model.compute_custom_loss(mll))
        raw = problem.read()
        value, gradient = problem(raw)
        assert value == pytest.approx(expected[0].item(), rel=1e-10)
        slopes = torch.cat([slope.flatten() for slope in expected[1:]])
        np.testing.assert_allclose(gradient, slopes.numpy(), rtol=1e-9, atol=1e-11)
        # what is written is what is read
        problem.write(raw - 0.01)
        np.testing.assert_array_equal(problem.read(), raw - 0.01)


@pytest.mark.parametrize("kind", ["default", "gamma", "isotropic", "one column"])
def test_one_leaf_is_fitted_in_closed_form(kind: str) -> None:
    likelihood = with_gamma_prior() if kind == "gamma" else None
    kernels = {
        "isotropic": RBFKernel(),
        "one column": ScaleKernel(MaternKernel(nu=2.5, active_dims=[1])),
    }
    model = TreedGP(
        *step_data(),
        likelihood=likelihood,
        covar_module=kernels.get(kind),
        max_leaves=1,
    )
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    problem = model._objective(mll)
    assert problem is not None
    loss = -mll(model(*model.train_inputs), model.train_targets)
    expected, *slopes = with_gradient(model, loss)
    value, gradient = problem(problem.read())
    assert value == pytest.approx(expected.item(), rel=1e-11)
    # the likelihood comes first in the objective, last in the model
    names = [name for name, _ in model.named_parameters()]
    found = dict(zip(names, slopes, strict=True))
    free = [name for name, p in mll.named_parameters() if p.requires_grad]
    inner = [name.removeprefix("model.") for name in free]
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
    assert model._objective(mll) is not None
    # one more prior is not in the formula
    model.register_prior("more", NormalPrior(0, 2), lambda m: m.mean_module.constant)
    assert model._objective(mll) is None
    for kwargs in (
        {"warp": True},
        {"covar_module": ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2))},
        {"likelihood": GaussianLikelihood()},
        {"covar_module": MaternKernel(nu=1.5), "max_leaves": 1},
    ):
        model = TreedGP(X, Y, **kwargs)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        assert model._objective(mll) is None, kwargs


def with_gamma_prior() -> GaussianLikelihood:
    """As that of GPyTorch's tutorials."""
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
            assert model._objective(mll) is None
    model = TreedGP(*step_data(), max_leaves=1)
    model.covar_module = MaternKernel(nu=0.5)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    assert model._objective(mll) is None


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


@pytest.mark.parametrize("kwargs", [{}, PUBLISHED])
def test_the_optimum_is_that_of_l_bfgs_b_or_better(kwargs: dict[str, Any]) -> None:
    """From the same start, on the general path."""
    gains = []
    for seed in range(6):
        values = []
        for fit in (fit_gpytorch_mll, by_torch):
            model = TreedGP(*step_data(40, seed=seed), **kwargs)
            mll = ExactMarginalLogLikelihood(model.likelihood, model)
            fit(mll)
            with torch.no_grad():
                loss = model.compute_custom_loss(mll.train())
            values.append(-40.0 * float(loss))
        gains.append(values[0] - values[1])
    # in nats; there may be several optima, and either may find a better one
    assert np.median(gains) > -1e-2
    assert sum(gain < -0.05 for gain in gains) <= 1


@pytest.mark.parametrize(("n", "seed"), [(100, 0), (50, 3)])
def test_a_fit_ends_at_an_optimum(n: int, seed: int) -> None:
    """Of data without noise, whose optimum is at bounds and steep next to them."""
    X = torch.rand(n, 1, generator=torch.Generator().manual_seed(seed))
    model = TreedGP(X, RKHS1D(negate=True)(X).unsqueeze(-1))
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    values = []
    # the general path begins where the first fit ended
    for fit in (fit_gpytorch_mll, by_torch):
        fit(mll)
        with torch.no_grad():
            values.append(-n * float(model.compute_custom_loss(mll.train())))
    assert model.partition.num_leaves > 1
    assert values[1] - values[0] < 0.05  # nats


@pytest.mark.parametrize("kwargs", [{}, PUBLISHED])
def test_a_fit_in_single_precision(kwargs: dict[str, Any]) -> None:
    """It goes by torch, and ends about as high as that in double precision."""
    values = []
    for dtype in (torch.float32, torch.float64):
        model = TreedGP(*step_data(24), **kwargs).to(dtype)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        fit_gpytorch_mll(mll)
        assert model.posterior(step_data(5)[0].to(dtype)).mean.isfinite().all()
        with torch.no_grad():
            values.append(-24 * float(model.double().compute_custom_loss(mll.train())))
    assert values[0] > values[1] - 1.0  # nats


def test_smooth_data_without_noise_get_jitter() -> None:
    """And where that is not enough, the fit is told."""
    rng = np.random.default_rng(0)
    X, y = rng.random((30, 2)), rng.standard_normal(30)
    term = EvidenceTerm(X, y, None, (10, 30), np.array([1.0, 0.3]))
    density = StationaryEvidence([term], RBF)
    assert np.isfinite(density(np.array([2.0, 2.0, 2.0, 0.0, -60.0]))[0])
    with pytest.raises(NotPSDError):
        density(np.array([2.0, 2.0, 30.0, 0.0, -60.0]))


@pytest.mark.parametrize("published", [False, True])
def test_large_nodes_are_represented_by_some_of_their_rows(published: bool) -> None:
    """With all of their weight; the leaf itself has all of its rows."""
    model = TreedGP(*step_data(400), **PUBLISHED if published else {})
    (data,) = model._plan()
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    problem = model._objective(mll.train())
    assert problem is not None
    leaves = data.root.leaves()
    for leaf, density in zip(leaves, problem.evidences, strict=True):
        sizes = [size for term in density.terms for size in term.sizes]
        weights = np.concatenate([term.weights for term in density.terms])
        rows = [len(data.data(node)) for node in leaf.path()]
        assert sizes[0] == rows[0] and sizes[-1] < 250 < rows[-1]
        shares = [rows[0] / (1 + depth) for depth in range(len(rows))]
        np.testing.assert_allclose(weights * sizes, shares)


def test_a_thousand_rows_are_fitted_in_seconds() -> None:
    """The exact objective alone takes seconds."""
    X, Y = step_data(1000)
    model = TreedGP.as_published(X, Y)
    assert model.partition.num_leaves > 100
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    start = time.process_time()
    fit_gpytorch_mll(mll)
    assert time.process_time() - start < 20.0
    points = step_data(200, seed=1)[0]
    left = points[:, 0] < 0.5
    smooth = 4.0 + (9.0 * points[:, -1]).sin()
    expected = torch.where(left, 0.3 * points[:, -1], smooth)
    error = model.posterior(points).mean.squeeze(-1) - expected
    assert float(error.abs().median()) < 0.1
