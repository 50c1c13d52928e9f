"""MultiTaskABLR: its numbers against a dense definition, tasks, signals, updates."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize
from botorch.models.transforms.input import Warp
from botorch.models.transforms.outcome import (
    ChainedOutcomeTransform,
    Log,
    StratifiedStandardize,
)
from botorch.optim.fit import fit_gpytorch_mll_torch
from botorch.posteriors import TransformedPosterior
from botorch.sampling.pathwise import draw_matheron_paths, get_matheron_path_model
from botorch.utils.sampling import manual_seed
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import (
    BernoulliLikelihood,
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    HadamardGaussianLikelihood,
)
from gpytorch.means import ConstantMean, LinearMean, Mean, MultitaskMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from botorch_structured.fit import fit_slice_sampling
from botorch_structured.kernels import MondrianKernel, RandomFourierFeatures
from botorch_structured.models import MultiTaskABLR
from botorch_structured.models.ablr.feature_maps import TanhNetwork
from botorch_structured.models.checks import ShapeError

pytestmark = pytest.mark.usefixtures("double")


TASKS = [0, 2, 5]


def network(**kwargs: Any) -> TanhNetwork:
    return TanhNetwork(2, widths=(8, 8), **kwargs)


def task_data(n: int = 21, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two inputs and a task column; each task has its own level and scale."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=g)
    task = torch.tensor(TASKS)[torch.arange(n) % 3]
    f = torch.sin(4.0 * X[:, 0]) * (1.0 + task) + X[:, 1] + 10.0 * task
    Y = f + 0.1 * torch.randn(n, generator=g)
    return torch.cat([X, task.unsqueeze(-1).double()], -1), Y.unsqueeze(-1)


def signal_data(n: int = 20) -> tuple[Tensor, Tensor]:
    """Three signals, some of them missing, one row without any."""
    g = torch.Generator().manual_seed(1)
    X = torch.rand(n, 2, generator=g)
    f = torch.sin(4.0 * X[:, 0])
    Y = torch.stack([f, 100.0 * f**2, X[:, 1] - 5.0], -1)
    Y = Y + 0.01 * torch.randn(n, 3, generator=g)
    Y[2, 0] = Y[5:9, 2] = Y[11] = torch.nan
    return X, Y


def fitted(model: MultiTaskABLR, steps: int = 8, **kwargs: Any) -> MultiTaskABLR:
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    options = {"options": {"maxiter": steps}}
    fit_gpytorch_mll(mll, optimizer_kwargs=options, num_starts=1, **kwargs)
    return model


def task_model(**kwargs: Any) -> MultiTaskABLR:
    return MultiTaskABLR(*task_data(), -1, **{"feature_map": network(), **kwargs})


def precision_of(model: MultiTaskABLR) -> Tensor:
    return model.covar_module.weight_precision.value


def objective(model: MultiTaskABLR) -> Tensor:
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()
    return mll(model(*model.train_inputs), model.train_targets)


def test_posterior_is_equations_1_and_2() -> None:
    X, Y = task_data()
    model = fitted(MultiTaskABLR(X, Y, -1, feature_map=network()))
    points = torch.rand(4, 2)
    posterior = model.posterior(points, observation_noise=True)
    for t, value in enumerate(TASKS):
        mine = X[:, 2] == value
        y = Y[mine, 0]
        shift, scale = y.mean(), y.std()
        alpha = 1.0 / model.likelihood.noise[t]
        beta = model.covar_module.weight_precision.value[t]
        phi, new = model.feature_map(X[mine, :2]), model.feature_map(points)
        K = alpha / beta * phi.mT @ phi + torch.eye(8)
        mean = alpha / beta * new @ torch.linalg.solve(K, phi.mT @ (y - shift) / scale)
        variance = (new @ torch.linalg.solve(K, new.mT)).diagonal() / beta + 1 / alpha
        torch.testing.assert_close(posterior.mean[:, t], shift + scale * mean)
        torch.testing.assert_close(posterior.variance[:, t], scale**2 * variance)
        # and no covariance between tasks
        block = posterior.distribution.covariance_matrix[4 * t : 4 * t + 4]
        block = block.clone()
        block[:, 4 * t : 4 * t + 4] = 0.0
        assert (block == 0.0).all()


def test_mll_of_the_model_is_what_is_fitted() -> None:
    for model in (
        task_model(),
        MultiTaskABLR(*signal_data(), None, feature_map=network()),
    ):
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        torch.testing.assert_close(objective(model), -model.compute_custom_loss(mll))
        count = model.train_targets.shape[-1]
        priors = sum(
            prior.log_prob(closure(module)).sum()
            for _, module, prior, closure, _ in model.named_priors()
        )
        expected = (model.log_evidence() + priors) / count
        torch.testing.assert_close(objective(model), expected)
        moved = mll(model(*model.train_inputs), model.train_targets + 1.0)
        assert moved != objective(model)
        with pytest.raises(ValueError, match="value: expected shape"):
            mll(model(*model.train_inputs), model.train_targets[..., :-1])


def test_a_mean_that_reads_the_task() -> None:
    """Asked task by task, or row by row, it is the same."""

    class Level(Mean):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 10.0 * x[..., -1]

    model = task_model(mean_module=Level(), outcome_transform=None).eval()
    X = torch.rand(4, 2)
    outputs = model.posterior(X).mean
    paths = draw_matheron_paths(model, torch.Size([2]))
    assert paths(X).mT.shape == (2, *outputs.shape)
    for i, value in enumerate(model.tasks.values.tolist()):
        rows = torch.cat([X, torch.full((4, 1), float(value))], -1)
        torch.testing.assert_close(outputs[:, [i]], model.posterior(rows).mean)


def test_outputs_tasks_and_columns() -> None:
    model = fitted(task_model(all_tasks=[0, 2, 5, 9], output_tasks=[5, 2]))
    X = torch.rand(3, 2, 2)
    both = model.posterior(X)
    assert model.num_outputs == 2 and both.mean.shape == (3, 2, 2)
    for i, value in enumerate((5.0, 2.0)):
        rows = torch.cat([X, torch.full((3, 2, 1), value)], -1)
        one = model.posterior(rows)
        asked = model.posterior(X, output_indices=[int(value)])
        for other in (one, asked, model.subset_output([i]).posterior(X)):
            torch.testing.assert_close(other.mean, both.mean[..., i : i + 1])
            torch.testing.assert_close(other.variance, both.variance[..., i : i + 1])
    # rows of different tasks are independent
    rows = torch.cat([X, torch.tensor([5.0, 2.0]).expand(3, 2).unsqueeze(-1)], -1)
    mixed = model.posterior(rows, observation_noise=True)
    assert (mixed.distribution.covariance_matrix[:, 0, 1] == 0.0).all()
    noisy = model.posterior(X, observation_noise=True)
    for i in range(2):
        torch.testing.assert_close(mixed.mean[:, i, 0], noisy.mean[:, i, i])
        torch.testing.assert_close(mixed.variance[:, i, 0], noisy.variance[:, i, i])
    with pytest.raises(ValueError, match="unexpected task values"):
        model.posterior(X, output_indices=[1])
    with pytest.raises(ValueError, match="output_indices: expected None where"):
        model.posterior(rows, output_indices=[5])
    rows[0, 0, -1] = 2.5
    with pytest.raises(ValueError, match=r"unexpected task values: \{2.5\}"):
        model.posterior(rows)


@pytest.mark.parametrize("priors", [True, False])
def test_a_task_without_rows_has_the_prior_at_the_usual_level(priors: bool) -> None:
    features = network(prior_scale=1.0 if priors else None)
    model = task_model(
        all_tasks=[*TASKS, 9], output_tasks=[9], priors=priors, feature_map=features
    )
    assert bool(list(model.named_priors())) == priors
    fitted(model, steps=20)
    points = torch.rand(5, 2)
    posterior = model.posterior(points)
    level = task_data()[1].reshape(-1, 3).mean(0).mean()
    torch.testing.assert_close(posterior.mean, level.expand(5, 1))
    phi = model.feature_map(points)
    scale = model.outcome_transform.stdvs
    variance = phi.square().sum(-1, keepdim=True) / precision_of(model)[3]
    torch.testing.assert_close(posterior.variance, scale[3] ** 2 * variance)
    for values in (scale, model.likelihood.noise, precision_of(model)):
        torch.testing.assert_close(values[3].log(), values[:3].log().mean())


@pytest.mark.parametrize("given", [False, True])
def test_conditioning_is_a_refit_of_the_weights(given: bool) -> None:
    X, Y = task_data()
    X_new, Y_new = task_data(9, seed=7)
    Y_new[4] = torch.nan
    noise = {"train_Yvar": torch.full_like(Y, 0.2)} if given else {}
    bounds = torch.tensor([[0.0, 0.0], [2.0, 1.0]])

    def transform() -> Normalize:
        return Normalize(3, indices=[0, 1], bounds=bounds)

    model = fitted(
        MultiTaskABLR(
            X, Y, -1, feature_map=network(), input_transform=transform(), **noise
        )
    )
    updated = model.condition_on_observations(X_new, Y_new)
    both, scaled = torch.cat([X, X_new]), torch.cat([Y, Y_new])
    if given:  # the default for new rows is the mean over those of their task
        noise = {"train_Yvar": torch.full_like(scaled, 0.2)}
    refit = MultiTaskABLR(
        both, scaled, -1, feature_map=network(), input_transform=transform(), **noise
    )
    refit.load_state_dict(model.state_dict())
    points = torch.rand(4, 2)
    a, b = updated.posterior(points), refit.posterior(points)
    torch.testing.assert_close(a.mean, b.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(a.variance, b.variance, rtol=1e-7, atol=1e-12)
    assert len(model.train_targets) == 21 and len(updated.train_targets) == 30
    updated.train()
    assert torch.equal(updated.train_inputs[0], both)
    torch.testing.assert_close(updated.log_evidence(), refit.log_evidence())
    again = updated.posterior(points)
    torch.testing.assert_close(again.mean, b.mean, rtol=1e-9, atol=1e-9)


def test_signals_are_regressions_of_what_was_observed() -> None:
    X, Y = signal_data()
    features = RandomFourierFeatures(15, seed=0)
    model = fitted(MultiTaskABLR(X, Y, None, feature_map=features))
    points = torch.rand(3, 4, 2)
    posterior = model.posterior(points)
    assert posterior.mean.shape == (3, 4, 3)
    for i in range(3):
        seen = ~Y[:, i].isnan()
        alone = MultiTaskABLR(
            X[seen], Y[seen, i : i + 1], None, feature_map=copy.deepcopy(features)
        )
        with torch.no_grad():
            alone.likelihood.noise = model.likelihood.noise[i]
            alone.covar_module.weight_precision.value = precision_of(model)[i]
        expected = alone.posterior(points)
        torch.testing.assert_close(posterior.mean[..., i], expected.mean[..., 0])
        torch.testing.assert_close(
            posterior.variance[..., i], expected.variance[..., 0]
        )
        asked = model.posterior(points, output_indices=[i])
        torch.testing.assert_close(asked.mean, expected.mean)
    X_new, Y_new = torch.rand(2, 2), torch.tensor([[0.1, torch.nan, -5.0]] * 2)
    both = torch.cat([X, X_new]), torch.cat([Y, Y_new])
    refit = MultiTaskABLR(*both, None, feature_map=RandomFourierFeatures(15, seed=0))
    refit.load_state_dict(model.state_dict())
    updated = model.condition_on_observations(X_new, Y_new)
    a, b = updated.posterior(points), refit.posterior(points)
    torch.testing.assert_close(a.mean, b.mean)
    torch.testing.assert_close(a.variance, b.variance)
    torch.testing.assert_close(
        updated.train_targets, refit.train_targets, equal_nan=True
    )


def test_known_noise() -> None:
    X, Y = signal_data()
    Yvar = 0.01 * (1.0 + torch.arange(60.0).reshape(20, 3)) * Y.nanmean(0) ** 2
    model = MultiTaskABLR(X, Y, None, train_Yvar=Yvar, feature_map=network())
    i, seen = 1, ~Y[:, 1].isnan()
    alone = MultiTaskABLR(
        X[seen], Y[seen, 1:2], None, train_Yvar=Yvar[seen, 1:2], feature_map=network()
    )
    with torch.no_grad():
        alone.covar_module.weight_precision.value = precision_of(model)[i]
    points = torch.rand(4, 2)
    for noise in (False, True):
        a = model.posterior(points, observation_noise=noise)
        b = alone.posterior(points, observation_noise=noise)
        torch.testing.assert_close(a.mean[:, i], b.mean[:, 0])
        torch.testing.assert_close(a.variance[:, i], b.variance[:, 0])
    more = 0.1 + torch.rand(4, 3)
    longer = model.condition_on_observations(points, torch.rand(4, 3), noise=more)
    torch.testing.assert_close(longer.likelihood.noise[:, -4:], more.mT)


def test_fit_starts_restarts_and_leaves_the_generator_alone() -> None:
    state = torch.random.get_rng_state()
    model = task_model()
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    options = {"options": {"maxiter": 8}}
    fit_gpytorch_mll(mll, optimizer_kwargs=options, num_starts=3)
    assert torch.equal(state, torch.random.get_rng_state())
    best = objective(model)
    singles = []
    for seed in range(3):
        one = task_model(feature_map=network(seed=seed))
        singles.append(objective(fitted(one, steps=8)))
    assert best > max(singles)  # the best of three brief fits, and some more steps
    # a state goes on from where it is, whatever the number of starts
    for other in (task_model(), copy.deepcopy(model)):
        other.load_state_dict(model.state_dict())
        torch.testing.assert_close(objective(other), best)
        mll = ExactMarginalLogLikelihood(other.likelihood, other)
        fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 1}})
        assert objective(other) >= best
    with pytest.raises(ValueError, match="num_starts"):
        fit_gpytorch_mll(mll, num_starts=0)


@pytest.mark.parametrize("outputs", [[2], [5, 0]])
def test_functions_drawn_have_the_posterior(outputs: list[int]) -> None:
    model = fitted(task_model(output_tasks=outputs))
    X = torch.rand(3, 2, 2, requires_grad=True)
    with manual_seed(0):
        paths = draw_matheron_paths(model, torch.Size([4000]))

    def functions(X: torch.Tensor) -> torch.Tensor:
        values = paths(X.flatten(0, -2))
        values = values.mT if len(outputs) > 1 else values.unsqueeze(-1)
        return values.unflatten(1, X.shape[:-1])

    values = functions(X)
    assert values.shape == (4000, 3, 2, len(outputs))
    posterior = model.posterior(X)
    sd = posterior.variance.sqrt()
    error = 5.0 / math.sqrt(4000.0)
    assert ((values.mean(0) - posterior.mean).abs() < error * sd).all()
    assert ((values.std(0) / sd - 1.0).abs() < error).all()
    # functions, not values: the same wherever they are asked, and with gradients
    torch.testing.assert_close(functions(X[:, :1]), values[:, :, :1])
    (gradient,) = torch.autograd.grad(values.sum(), X)
    assert torch.isfinite(gradient).all()


def test_paths_of_signals_take_plain_points() -> None:
    X, Y = signal_data()
    model = MultiTaskABLR(X, Y, None, feature_map=network())
    paths = draw_matheron_paths(model, torch.Size([7]))
    x = torch.rand(5, X.shape[-1])
    values = paths(x)
    assert values.shape == (7, Y.shape[-1], 5)
    assert torch.equal(paths(x.unsqueeze(0)), values)
    with pytest.raises(ShapeError, match="x: expected ``n x d`` or ``... x 1 x n x d"):
        paths(torch.rand(3, 5, X.shape[-1]))
    path = get_matheron_path_model(model, sample_shape=torch.Size([6]))
    assert path(torch.rand(6, 2, 2)).shape == (6, 2, 3)


def test_pathwise_thompson_sampling() -> None:
    model = task_model(output_tasks=[2])
    X = torch.rand(6, 2, 2)
    assert PathwiseThompsonSampling(model)(X).shape == (6,)
    path = get_matheron_path_model(model)
    assert path(X).shape == (6, 2, 1)
    rows = torch.cat([X, torch.full((6, 2, 1), 2.0)], -1)
    torch.testing.assert_close(path(rows), path(X))
    others = path(torch.cat([X, torch.zeros(6, 2, 1)], -1))  # of another task
    assert (others != path(X)).all()


def test_means_are_fitted_and_predicted() -> None:
    """Evidence and gradient are those of the dense Gaussian process."""
    X, Y = task_data(30)
    means = MultitaskMean(ConstantMean(), num_tasks=3)
    for mean in (means, LinearMean(3), ConstantMean()):
        model = MultiTaskABLR(
            X, Y, -1, mean_module=mean, feature_map=network(), outcome_transform=None
        )
        dense = model.forward(X)
        noise = model.likelihood.noise[model.tasks.index(X)[:, 0]]
        covariance = dense.covariance_matrix + torch.diag(noise)
        expected = MultivariateNormal(dense.mean, covariance).log_prob(Y[:, 0])
        torch.testing.assert_close(model.log_evidence(), expected)
        parameters = list(model.parameters())
        ours = torch.autograd.grad(model.log_evidence(), parameters)
        theirs = torch.autograd.grad(expected, parameters)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)
        fitted(model)
        far = model.posterior(X).mean - Y
        assert far.square().mean() < Y.square().mean()


def test_transforms_given_by_the_user() -> None:
    points = torch.rand(3, 2, 2)
    log = task_model(outcome_transform=Log())
    assert isinstance(log.posterior(points), TransformedPosterior)
    assert log.posterior(points).rsample(torch.Size([4])).shape == (4, 3, 2, 3)
    learnt = task_model(input_transform=Warp(3, indices=[0, 1]))
    before = learnt.input_transform.concentration0.clone()
    fitted(learnt)
    assert (learnt.input_transform.concentration0 != before).all()
    learnt.posterior(points)
    evidence = learnt.log_evidence()
    learnt.train()
    torch.testing.assert_close(learnt.log_evidence(), evidence)


def test_feature_maps() -> None:
    X, Y = task_data()
    kernel = MondrianKernel(lifetime=2.0, num_trees=5, seed=0)
    linear = nn.Linear(2, 4)  # float32 made double, by default
    for given in (
        {"feature_map": RandomFourierFeatures(10, seed=0)},
        {"feature_map": kernel.features},
        {"covar_module": kernel},
        {"feature_map": nn.Sequential(linear, nn.ReLU())},
        {},
    ):
        model = fitted(MultiTaskABLR(X, Y, -1, **given), steps=2)
        assert torch.isfinite(model.posterior(torch.rand(3, 2)).mean).all()
        pickle.loads(pickle.dumps(model))
    assert model.feature_map(torch.rand(3, 2)).shape == (3, 50)
    for given, message in (
        ({"covar_module": RBFKernel()}, "a kernel with explicit features"),
        (
            {"covar_module": kernel, "feature_map": linear},
            "expected None beside feature_map",
        ),
        ({"feature_map": torch.sin}, "expected a torch.nn.Module"),
        ({"feature_map": nn.Dropout()}, "a function of the row"),
        (
            {"feature_map": nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (1, -1)))},
            "``n x D``",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            MultiTaskABLR(X, Y, -1, **given)


def test_likelihoods_given_by_the_user() -> None:
    X, Y = task_data()
    one = GaussianLikelihood()
    model = fitted(task_model(likelihood=one))
    assert model.likelihood is one
    X[:, 2] = (X[:, 2] > 0).double() + (X[:, 2] > 2).double()
    each = HadamardGaussianLikelihood(3, task_feature_index=2)
    model = fitted(MultiTaskABLR(X, Y, -1, likelihood=each, feature_map=network()))
    assert model.likelihood is each
    with pytest.raises(ValueError, match="expected a GaussianLikelihood"):
        task_model(likelihood=BernoulliLikelihood())


def test_extremes_have_finite_fits() -> None:
    X, Y = task_data()
    constant = MultiTaskABLR(X, torch.ones_like(Y), -1, feature_map=network())
    assert torch.isfinite(fitted(constant).posterior(X).mean).all()
    torch.testing.assert_close(constant.posterior(X).mean, torch.ones_like(Y))
    single = MultiTaskABLR(X[:1], Y[:1], -1, feature_map=network())
    assert torch.isfinite(fitted(single).posterior(X[:1]).mean).all()
    repeated = MultiTaskABLR(
        X[:1].expand(30, 3), Y[:1].expand(30, 1), -1, feature_map=network()
    )
    assert torch.isfinite(fitted(repeated).posterior(X[:1]).variance).all()
    extreme = task_model()
    with torch.no_grad():
        extreme.likelihood.noise = torch.full((3,), 1e-8)
        extreme.covar_module.weight_precision.value = torch.full((3,), 1e-2)
    inside = extreme.posterior(X)
    assert (inside.mean - Y).abs().max() < 2.0 * Y.std()
    assert (inside.variance >= 0.0).all()


def test_other_optimisers_and_missing_outcomes() -> None:
    X, Y = task_data()
    Y[[1, 8]] = torch.nan
    model = MultiTaskABLR(X, Y, -1, feature_map=network())
    kept = ~Y[:, 0].isnan()
    same = MultiTaskABLR(X[kept], Y[kept], -1, feature_map=network())
    same.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.log_evidence(), same.log_evidence())
    before = objective(model)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(
        mll, optimizer=fit_gpytorch_mll_torch, optimizer_kwargs={"step_limit": 10}
    )
    assert not model.training and objective(model) > before


def test_lengthscales_change_the_number_of_mondrian_features() -> None:
    X, Y = task_data()
    kernel = MondrianKernel(2.0, 5, seed=0, lengthscale_prior=LogNormalPrior(0.0, 1.0))
    model = MultiTaskABLR(X, Y, -1, covar_module=kernel)
    before = model.feature_map(X[:1, :-1]).shape
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.feature_map(X[:1, :-1]).shape != before
    torch.manual_seed(0)
    alone = MultiTaskABLR(X, Y, -1, covar_module=copy.deepcopy(kernel))
    alone.load_state_dict(model.state_dict())
    mean = model.posterior(torch.rand(3, 2)).mean
    assert mean.isfinite().all()
    torch.testing.assert_close(alone.log_evidence(), model.log_evidence())


def test_sampled_models_of_a_task() -> None:
    X, Y = task_data()
    features = RandomFourierFeatures(10, seed=0)
    model = MultiTaskABLR(X, Y, -1, feature_map=features, output_tasks=[2])
    sampled = fit_slice_sampling(model, num_samples=3, warmup=4, num_chains=1, seed=0)
    points = torch.rand(2, 2)
    for observation_noise in (False, True):
        found = sampled.posterior(points, observation_noise=observation_noise)
        each = [
            sample.posterior(points, observation_noise=observation_noise)
            for sample in sampled.samples
        ]
        for name in ("mean", "variance"):
            expected = torch.stack([getattr(p, name) for p in each])
            torch.testing.assert_close(getattr(found, name), expected)


def data(n: int = 12) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, generator=g)
    task = torch.tensor([0.0, 2.0, 5.0])[torch.arange(n) % 3]
    Y = 1.0 + X[:, 0] + task
    return torch.cat([X, task.unsqueeze(-1)], -1), Y.unsqueeze(-1)


def changed(values: Tensor, place: tuple[int, int], value: float) -> Tensor:
    values = values.clone()
    values[place] = value
    return values


def make(**change: Any) -> MultiTaskABLR:
    X, Y = data()
    network = TanhNetwork(2, widths=(8, 8))
    arguments = {"train_X": X, "train_Y": Y, "task_feature": -1, "output_tasks": [2, 5]}
    return MultiTaskABLR(**{**arguments, "feature_map": network, **change})


X, Y = (t.double() for t in data())
ONES = torch.ones(12, 1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_X": changed(X, (4, 2), torch.nan)}, r"train_X: .* in columns \[2\]"),
        # one task's, which is standardised by itself
        (
            {"train_Y": Y * 1e-200 ** (X[:, 2:] == 2.0).double()},
            "train_Y: expected outcomes whose variance is a number .*e-201 at most",
        ),
        (
            {"task_feature": 2.0},
            "task_feature: expected an integer or None, .* got 2.0",
        ),
        ({"task_feature": True}, "task_feature: expected an integer or None"),
        ({"output_tasks": []}, "output_tasks: .*at least one, got"),
        ({"output_tasks": 2}, "output_tasks: .*a list of integers.* got 2"),
        ({"output_tasks": [2.5]}, "output_tasks: .*a list of integers"),
        ({"all_tasks": [0, 2, 5, 5.5]}, "all_tasks: .*a list of integers"),
        ({"all_tasks": torch.arange(6)}, "all_tasks: .*a list of integers"),
        ({"feature_map": TanhNetwork(3)}, r"feature_map: expected a map of inputs"),
        ({"feature_map": nn.Linear(5, 3)}, r"feature_map: .*``n x 2`` \(no task"),
        (
            {"mean_module": ConstantMean(batch_shape=torch.Size([3]))},
            "mean_module: expected",
        ),
        ({"output_tasks": [4]}, "output_tasks: expected tasks among"),
        ({"task_feature": 3}, "task_feature: .*a column from -3 to 2"),
        ({"task_feature": None}, "output_tasks: expected None or, with a task_feat"),
        ({"train_Y": Y.repeat(1, 2)}, "several tasks and several signals"),
        ({"train_X": X[:, 2:]}, "``n x 0`` .no task column"),
        ({"train_X": X + 0.5}, "expected integers in the task column"),
        ({"input_transform": Normalize(3)}, "leaves the task column"),
        *(
            ({"likelihood": one}, "likelihood: .*with noise variances of shape")
            for one in (
                HadamardGaussianLikelihood(2, task_feature_index=2),
                FixedNoiseGaussianLikelihood(torch.ones(5)),
                GaussianLikelihood(batch_shape=torch.Size([3])),
            )
        ),
        ({"train_X": changed(X, (4, 2), 1e100)}, "integers in the task .*at most 2.53"),
        (
            {"all_tasks": [0, 2, 5, torch.nan]},
            "all_tasks: .*a list of integers",
        ),
        ({"all_tasks": [0, 2, 5, 1e200]}, "all_tasks: .*a list of integers"),
    ],
)
def test_what_a_model_cannot_be_made_of(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**change)


def test_a_prior_that_inference_would_not_follow() -> None:
    class Higher(MultiTaskABLR):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x)

    with pytest.raises(ValueError, match="forward: expected that of MultiTaskABLR"):
        Higher(X, Y, -1)


def test_what_was_not_observed_needs_no_noise() -> None:
    model = make(
        train_Y=changed(Y, (3, 0), torch.nan),
        train_Yvar=changed(ONES, (3, 0), torch.nan),
    )
    posterior = model.posterior(X[:, :2], observation_noise=True)
    assert posterior.mean.isfinite().all() and posterior.variance.isfinite().all()


def test_conditioning_on_what_is_no_number() -> None:
    model = make()
    for arguments, message in (
        ((X[:1], torch.ones(1)), "Y: expected ``batch_shape x 1 x 1``"),
        ((torch.rand(3, 4), torch.rand(3, 2)), "X: expected 3 columns, or one less"),
        ((torch.tensor([[0.1, 0.2, 7.0]]), torch.rand(1, 1)), "unexpected task values"),
    ):
        with pytest.raises(ValueError, match=message):
            model.condition_on_observations(*arguments)


def test_points_that_cannot_be_asked_for() -> None:
    model = make()
    with pytest.raises(ValueError, match="output_indices: expected at least one"):
        model.posterior(torch.rand(3, 2), output_indices=[])
    with pytest.raises(
        ValueError, match="X: expected 3 columns, .*``batch_shape x q x d``, got"
    ):
        model.posterior(torch.rand(2))
    with pytest.raises(ValueError, match="X: expected finite numbers, got nan"):
        model.posterior(torch.full((1, 3), torch.nan))
    assert model.posterior(X[:0]).mean.shape == (0, 1)
    assert model(X.expand(0, *X.shape)).mean.shape == (0, len(X))


@pytest.mark.parametrize("log", [False, True])
def test_transforms_that_look_at_the_task(log: bool) -> None:
    each = StratifiedStandardize(2, torch.tensor([0, 2, 5]))
    transform = ChainedOutcomeTransform(log=Log(), each=each) if log else each
    model = make(outcome_transform=transform, output_tasks=[2])
    points = torch.rand(4, 2)
    with pytest.raises(ValueError, match="X is required"):  # outputs one by one
        model.posterior(points, output_indices=[5, 0])
    posterior = model.posterior(points)
    assert isinstance(posterior, TransformedPosterior) == log
    one = model.posterior(torch.cat([points, torch.full((4, 1), 2.0)], -1))
    torch.testing.assert_close(posterior.mean, one.mean)
    torch.testing.assert_close(posterior.variance, one.variance)
    middle = posterior.rsample_from_base_samples(
        torch.Size([1]), torch.zeros(1, *posterior.base_sample_shape)
    )
    with manual_seed(0):
        functions = draw_matheron_paths(model, torch.Size([2000]))(points).unsqueeze(-1)
    medians = functions.median(0).values
    spread = functions.log().std(0) if log else functions.std(0)
    error = (medians.log() - middle[0].log()) if log else (medians - middle[0])
    assert (error.abs() < 0.15 * spread).all()


def test_known_noise_without_rows() -> None:
    """No number stands in for one that nobody has given."""
    none = torch.zeros(0, 1)
    model = MultiTaskABLR(torch.zeros(0, 2), none, None, train_Yvar=none)
    points = torch.rand(3, 2)
    assert model.posterior(points).variance.isfinite().all()
    with pytest.raises(ValueError, match="noise: expected the noise variances"):
        model.posterior(points, observation_noise=True)
    with pytest.raises(ValueError, match="noise: expected the noise variances"):
        model.condition_on_observations(points, points[:, :1])
    new = model.condition_on_observations(
        points, points[:, :1], noise=torch.full((3, 1), 1e-6)
    )
    torch.testing.assert_close(
        new.posterior(points).mean, points[:, :1], atol=1e-2, rtol=0.0
    )


def test_columns_that_the_network_would_hardly_see() -> None:
    """Normalised or not is a guess where a column is within [0, 1]; it may be wrong."""
    X = torch.rand(12, 3, generator=torch.Generator().manual_seed(0))
    narrow = X * torch.tensor([1.0, 0.01, 1.0])
    with pytest.warns(InputDataWarning, match=r"columns \[1\].*span less than 0.1"):
        MultiTaskABLR(narrow, X[:, :1], None)
    for good in (X, 100.0 * X, narrow[:5], torch.where(X > 2.0, X, 0.5)):
        with warnings.catch_warnings():
            warnings.simplefilter("error", InputDataWarning)
            MultiTaskABLR(good, good[:, :1], None)
