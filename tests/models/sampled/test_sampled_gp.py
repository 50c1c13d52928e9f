"""SampledGP: its law; fast predictions are those of the models one by one."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.acquisition.analytic import (
    LogExpectedImprovement,
    UpperConfidenceBound,
)
from botorch.acquisition.multi_objective.logei import (
    qLogNoisyExpectedHypervolumeImprovement,
)
from botorch.acquisition.objective import (
    ExpectationPosteriorTransform,
    PosteriorTransform,
    ScalarizedPosteriorTransform,
)
from botorch.cross_validation import loo_cv
from botorch.exceptions import BotorchWarning, UnsupportedError
from botorch.models import ModelListGP, MultiTaskGP, SingleTaskGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import ModelList
from botorch.models.transforms import Log, Normalize, Warp
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Standardize
from botorch.posteriors import Posterior, TransformedPosterior
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.evaluation import compute_in_sample_model_fit_metric
from gpytorch import settings
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import (
    InducingPointKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    RBFKernel,
    ScaleKernel,
)
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import LinearMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from linear_operator import to_dense
from strategies import random_points, random_tree, seeds
from torch import Tensor

from botorch_structured.models import TreeStructuredGP
from botorch_structured.models.sampled.sampled_gp import SampledGP
from botorch_structured.transforms import ClipTail

S, N, D = 4, 14, 3
DEPENDENCIES = {0: {0.0: [1], 1.0: [2]}}


def data(seed: int = 0, n: int = N, m: int = 1, d: int = D) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=g, dtype=torch.double)
    noise = 0.05 * torch.randn(n, m, generator=g, dtype=torch.double)
    phase = torch.arange(m, dtype=torch.double)
    return X, (4.0 * X.sum(-1, keepdim=True) + phase).sin() + noise


def points(*shape: int, seed: int = 9, d: int = D) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, d, generator=g, dtype=torch.double)


def samples(model: GPyTorchModel, num: int = S, seed: int = 0) -> list[GPyTorchModel]:
    """Copies of a model, each with hyperparameters of its own."""
    g = torch.Generator().manual_seed(seed)
    copies = []
    for _ in range(num):
        new = copy.deepcopy(model)
        for parameter in new.parameters():
            if parameter.requires_grad:
                step = torch.rand(parameter.shape, generator=g, dtype=torch.double)
                parameter.data.add_(0.4 * step.to(parameter))
        copies.append(new.eval())
    return copies


def sampled(seed: int = 0, **kwargs: Any) -> SampledGP:
    X, Y = data(seed)
    return SampledGP(samples(SingleTaskGP(X, Y, **kwargs), seed=seed))


def tree_model(seed: int = 0, n: int = N, **kwargs: Any) -> TreeStructuredGP:
    X, Y = data(seed, n)
    X[:, 0] = (X[:, 0] > 0.5).double()
    return TreeStructuredGP(X, Y, DEPENDENCIES, **kwargs)


def definition(model: SampledGP, X: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Means and covariances of the models one by one, and nothing of ``SampledGP``."""
    posteriors = [copy.deepcopy(m).posterior(X, **kwargs) for m in model.models]
    mean = torch.stack([p.mean for p in posteriors], dim=-3)
    covariance = [p.distribution.covariance_matrix for p in posteriors]
    return mean, torch.stack(covariance, dim=-3)


def assert_is_definition(
    model: SampledGP, X: Tensor, tol: float = 1e-8, **kwargs: Any
) -> None:
    posterior = model.posterior(X, **kwargs)
    assert isinstance(posterior, GaussianMixturePosterior)
    mean, covariance = definition(model, X, **kwargs)
    torch.testing.assert_close(posterior.mean, mean, rtol=0, atol=tol)
    found = posterior.distribution.covariance_matrix
    torch.testing.assert_close(found, covariance, rtol=0, atol=tol)


def folds(model: SampledGP) -> bool:
    with torch.no_grad():
        model.posterior(model.models[0].train_inputs[0][..., :1, :])
    assert model._predictor is not None
    return model._predictor[1] is not None


def on_tree(X: Tensor) -> Tensor:
    X[..., 0] = X[..., 0].round()
    return X


def test_shapes_and_moments_of_the_mixture() -> None:
    model = sampled()
    assert model.num_samples == S and model.num_outputs == 1
    assert model.batch_shape == torch.Size([S])
    assert model.train_inputs[0].shape == (S, N, D)
    assert model.train_targets.shape == (S, N)
    X = points(5, 2)
    posterior = model.posterior(X)
    assert posterior.mean.shape == (5, S, 2, 1)
    mean, covariance = definition(model, X)
    variance = covariance.diagonal(dim1=-1, dim2=-2).unsqueeze(-1)
    mixture = mean.mean(-3)
    torch.testing.assert_close(posterior.mixture_mean, mixture)
    spread = (variance + (mean - mixture.unsqueeze(-3)).square()).mean(-3)
    torch.testing.assert_close(posterior.mixture_variance, spread)
    # more than any sample's own average where the samples disagree
    assert (posterior.mixture_variance > variance.mean(-3)).all()


def test_many_joint_points_have_a_word_about_their_price() -> None:
    model = sampled()
    X = points(1000)
    with pytest.warns(BotorchWarning, match="1000 joint points have .* matrices"):
        joint = model.posterior(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        few = model.posterior(X[:9])
        model.posterior(X.unsqueeze(-2))
    torch.testing.assert_close(joint.mean[:, :9], few.mean)
    torch.testing.assert_close(joint.variance[:, :9], few.variance)


def test_noise_and_posterior_transforms() -> None:
    for model in (sampled(), sampled(train_Yvar=data()[1].square() / 50 + 1e-3)):
        X = points(3, 2)
        clean = model.posterior(X).variance
        noisy = model.posterior(X, observation_noise=True).variance
        assert (noisy > clean).all()
        # one value per sample
        noise = torch.linspace(0.1, 0.4, S, dtype=torch.double).view(S, 1, 1)
        each = noise.expand(3, S, 2, 1)
        own = model.posterior(X, observation_noise=each).variance
        scale = model.outcome_transform.stdvs.square()
        torch.testing.assert_close(own, clean + noise * scale)
        with pytest.raises(ValueError, match="4 samples in dimension -3"):
            model.posterior(X, observation_noise=each[:, :3])
        weights = torch.tensor([2.0], dtype=torch.double)
        affine = ScalarizedPosteriorTransform(weights, offset=1.0)
        twice = model.posterior(X, posterior_transform=affine)
        assert isinstance(twice, GaussianMixturePosterior)
        torch.testing.assert_close(twice.mean, 1.0 + 2.0 * model.posterior(X).mean)
        summed = ExpectationPosteriorTransform(n_w=2)
        torch.testing.assert_close(
            model.posterior(X, posterior_transform=summed).mean,
            model.posterior(X).mean.mean(-2, keepdim=True),
        )


def logmeanexp(values: Tensor) -> Tensor:
    return values.logsumexp(0) - math.log(len(values))


def average(values: Tensor) -> Tensor:
    return values.mean(0)


def sampler() -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([16]), seed=1)


def noisy(model: Any, **kwargs: Any) -> AcquisitionFunction:
    baseline = on_tree(data()[0][:6])
    return qLogNoisyExpectedImprovement(
        model, baseline, sampler=sampler(), prune_baseline=False, **kwargs
    )


ACQUISITIONS: dict[str, tuple[Callable[[Any], AcquisitionFunction], Any, int]] = {
    "LogEI": (lambda m: LogExpectedImprovement(m, 0.8), logmeanexp, 1),
    "UCB": (lambda m: UpperConfidenceBound(m, beta=2.0), average, 1),
    "qLogEI": (
        lambda m: qLogExpectedImprovement(m, 0.8, sampler=sampler()),
        logmeanexp,
        2,
    ),
    "qLogNEI": (lambda m: noisy(m, cache_root=True), logmeanexp, 2),
    "pending": (
        lambda m: noisy(m, cache_root=False, X_pending=on_tree(points(2, seed=3))),
        logmeanexp,
        2,
    ),
}


@pytest.mark.parametrize("name", ACQUISITIONS)
@pytest.mark.parametrize("tree", [False, True])
def test_acquisitions_average_over_the_samples(name: str, tree: bool) -> None:
    make, combine, q = ACQUISITIONS[name]
    model = SampledGP(samples(tree_model())) if tree else sampled()
    X = on_tree(points(5, q))
    with torch.no_grad():
        found = make(model)(X)
        singles = [make(copy.deepcopy(m))(X) for m in model.models]
    assert found.shape == (5,)
    expected = combine(torch.stack(singles))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(found, singles[0])


def test_several_objectives() -> None:
    X, Y = data(m=2)
    reference = torch.full((2,), -1.0, dtype=torch.double)
    singles = [samples(SingleTaskGP(X, Y[:, i : i + 1]), seed=i) for i in range(2)]
    first, second = (SampledGP(models) for models in singles)
    x = points(4, 2)

    def value(model: Any) -> Tensor:
        sampler = SobolQMCNormalSampler(torch.Size([8]), seed=1)
        acqf = qLogNoisyExpectedHypervolumeImprovement(
            model, reference, X[:6], sampler=sampler, prune_baseline=False
        )
        with torch.no_grad():
            return acqf(x)

    found = value(ModelListGP(first, second))
    listed, plain = ModelListGP(first, second), ModelList(first, second)
    torch.testing.assert_close(listed.posterior(x).mean, plain.posterior(x).mean)
    pairs = zip(*singles, strict=True)
    expected = logmeanexp(torch.stack([value(ModelListGP(*p)) for p in pairs]))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tree", [False, True])
def test_conditioning_is_conditioning_of_each_sample(tree: bool) -> None:
    single = tree_model() if tree else SingleTaskGP(*data())
    model = SampledGP(samples(single), chains="diagnostics")
    X, Y = data(3, n=2)
    test = points(5, 2)
    for x in (X, test):
        x[..., 0] = x[..., 0].round()

    def expect(new: SampledGP, pairs: list[tuple[Tensor, Tensor]], x: Tensor) -> None:
        for s, (m, pair) in enumerate(zip(model.models, pairs, strict=True)):
            own = copy.deepcopy(m)
            own.posterior(x)
            own = own.condition_on_observations(*pair)
            found, expected = new.posterior(x), own.posterior(x)
            mean = found.mean.select(-3, s)
            torch.testing.assert_close(mean, expected.mean, rtol=0, atol=1e-7)
            variance = found.variance.select(-3, s)
            torch.testing.assert_close(variance, expected.variance, rtol=0, atol=1e-7)

    same = model.condition_on_observations(X, Y)
    assert same.chains == "diagnostics" and same.num_samples == S
    expect(same, [(X, Y)] * S, test)
    assert same.train_targets.shape == (S, N + 2)
    # outcomes of each sample's own, in a batch, with fantasies in front
    g = torch.Generator().manual_seed(0)
    Ys = torch.randn(3, 5, S, 2, 1, generator=g, dtype=torch.double)
    Xs = on_tree(points(5, 2, seed=4))
    own = model.condition_on_observations(Xs, Ys)
    assert own.batch_shape == torch.Size([3, 5, S])
    expect(own, [(Xs, Ys[:, :, s]) for s in range(S)], test)
    # points of each sample's own
    Xe = on_tree(points(S, 2, seed=5))
    each = model.condition_on_observations(Xe, Ys[0, 0])
    expect(each, [(Xe[s], Ys[0, 0, s]) for s in range(S)], test)
    assert folds(each)
    with pytest.raises(ValueError, match="Y: expected 4 samples in dimension -3"):
        model.condition_on_observations(Xs, Ys[0, :, 0])


@pytest.mark.parametrize("fixed", [False, True])
def test_fantasies(fixed: bool) -> None:
    X, Y = data()
    yvar = torch.full_like(Y, 0.02) if fixed else None
    model = SampledGP(samples(SingleTaskGP(X, Y, yvar)))
    x = points(5, 2)
    sampler = SobolQMCNormalSampler(torch.Size([3]), seed=0)
    fantasies = model.fantasize(x, sampler)
    assert fantasies.batch_shape == torch.Size([3, 5, S])
    posterior = fantasies.posterior(x)
    assert posterior.mean.shape == (3, 5, S, 2, 1)
    assert (posterior.variance < model.posterior(x).variance).all()
    for s, m in enumerate(model.models):
        own = copy.deepcopy(m)
        own = own.fantasize(x, SobolQMCNormalSampler(torch.Size([3]), seed=0))
        torch.testing.assert_close(
            posterior.mean.select(-3, s), own.posterior(x).mean, rtol=0, atol=1e-7
        )
    if fixed:
        noise = torch.full((1, 1), 0.02, dtype=torch.double)
        noise = noise / model.outcome_transform.stdvs.square()
        again = model.fantasize(x, sampler, observation_noise=noise)
        torch.testing.assert_close(again.posterior(x).mean, posterior.mean)
    empty = model.fantasize(x[:, :0], sampler)
    torch.testing.assert_close(
        empty.posterior(x).mean[0], model.posterior(x).mean, rtol=0, atol=1e-8
    )


def test_state_dict_pickle_and_deepcopy() -> None:
    model, other = sampled(), SampledGP(samples(SingleTaskGP(*data()), seed=7))
    X = points(3, 2)
    expected = model.posterior(X).mean
    assert not torch.allclose(other.posterior(X).mean, expected)
    other.load_state_dict(model.state_dict())  # caches of ``other`` must go
    torch.testing.assert_close(other.posterior(X).mean, expected)
    for new in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert new._predictor is None
        torch.testing.assert_close(new.posterior(X).mean, expected)
    two = SampledGP(list(model.models)[:2])
    with pytest.raises(ValueError, match="the 30 entries of 2 samples, got 60"):
        two.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match="the 60 entries of 4 samples, got 30"):
        model.load_state_dict(two.state_dict())
    pair = ModelListGP(model, model)
    fresh = [SampledGP(samples(SingleTaskGP(*data()), seed=i)) for i in (7, 8)]
    listed = ModelListGP(*fresh)
    listed.load_state_dict(pair.state_dict())
    torch.testing.assert_close(listed.posterior(X).mean, pair.posterior(X).mean)


def test_caches_are_dropped() -> None:
    X = points(3, 2)

    def change_data(model: SampledGP) -> None:
        for m in model.models:
            m.set_train_data(targets=m.train_targets + 1.0)

    def change_one(model: SampledGP) -> None:
        single = model.models[1]
        single.train()
        single.covar_module.lengthscale = 0.1

    def change_all(model: SampledGP) -> None:
        model.train()
        for m in model.models:
            m.covar_module.lengthscale = 0.1

    for change in (change_data, change_one, change_all):
        model = sampled()
        before = model.posterior(X).mean
        change(model)
        assert not torch.allclose(model.posterior(X).mean, before)
        assert_is_definition(model, X)


def test_single_precision() -> None:
    X = points(3, 2)
    for model in (sampled(), SampledGP(samples(tree_model()))):
        X[..., 0] = X[..., 0].round()
        expected = model.posterior(X)
        single = copy.deepcopy(model).to(torch.float32)
        posterior = single.posterior(X.float())
        assert posterior.mean.dtype == torch.float32
        # as precise as the models are; at a noise of 1e-6 that is two digits
        own = (definition(single, X.float())[0] - expected.mean).abs().max()
        assert (posterior.mean - expected.mean).abs().max() < 2.0 * own + 1e-6
        back = single.to(torch.float64).posterior(X)
        torch.testing.assert_close(back.mean, expected.mean, rtol=0, atol=1e-3)


def test_input_transforms_and_modes() -> None:
    X, Y = data()
    model = SampledGP(samples(SingleTaskGP(10 * X, Y, input_transform=Normalize(D))))
    x = points(3, 2)
    assert_is_definition(model, 10 * x)
    normalized = model.transform_inputs(10 * X)
    torch.testing.assert_close(model.train_inputs[0], normalized.expand(S, -1, -1))
    torch.testing.assert_close(model._original_train_inputs[1], 10 * X)
    assert model.train() is model and model.training
    assert torch.equal(model.train_inputs[0][0], 10 * X)
    assert model.eval() is model and not model.models[0].training
    with pytest.raises(UnsupportedError, match="reset"):
        model.train(reset=True)


def test_leave_one_out_and_fit_metric() -> None:
    X, Y = data()
    for yvar in (None, torch.full_like(Y, 0.02)):
        model = SampledGP(samples(SingleTaskGP(X, Y, yvar)))
        found = loo_cv(model)
        assert found.posterior.mean.shape == (N, S, 1, 1)
        for s, m in enumerate(model.models):
            expected = loo_cv(copy.deepcopy(m)).posterior
            torch.testing.assert_close(
                found.posterior.mean[:, s], expected.mean, rtol=0, atol=1e-8
            )
        value = compute_in_sample_model_fit_metric(model, "MLL")
        each = [
            compute_in_sample_model_fit_metric(copy.deepcopy(m), "MLL")
            for m in model.models
        ]
        assert math.isclose(value, sum(each) / S, rel_tol=1e-8)


class Exponential(PosteriorTransform):
    scalarize = True

    def evaluate(self, Y: Tensor, X: Tensor | None = None) -> Tensor:
        return Y.exp()

    def forward(self, posterior: Posterior, X: Tensor | None = None) -> Posterior:
        return TransformedPosterior(posterior, torch.exp)


def test_errors() -> None:
    X, Y = data()
    single = SingleTaskGP(X, Y)
    linear = torch.nn.Linear(1, 1)
    for models in ([], [linear], [single, linear], [single, tree_model()]):
        names = ", ".join(repr(type(m).__name__) for m in models)
        with pytest.raises(ValueError, match=f"of one class.* got \\[{names}\\]"):
            SampledGP(models)
    with pytest.raises(ValueError, match="the same data"):
        SampledGP([single, SingleTaskGP(X[:5], Y[:5])])
    logs = SingleTaskGP(X, Y.exp(), outcome_transform=Log())
    with pytest.raises(UnsupportedError, match="Log"):
        SampledGP([logs])
    two = SingleTaskGP(X, data(m=2)[1])
    with pytest.raises(UnsupportedError, match="2 independent ones: use a ModelListGP"):
        SampledGP([two])
    model = sampled()
    with pytest.raises(UnsupportedError, match="TransformedPosterior"):
        model.posterior(points(2, 1), posterior_transform=Exponential())
    with pytest.raises(RuntimeError, match="must be given a GP"):
        ExactMarginalLogLikelihood(model.likelihood, model)


def single_task_models() -> dict[str, Callable[[], GPyTorchModel]]:
    X, Y = data()
    matern = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=D)) + LinearKernel()
    parts = ScaleKernel(RBFKernel(active_dims=[0, 2])) * MaternKernel(nu=1.5)
    unit = torch.stack([X.new_zeros(D), X.new_ones(D)])
    warp = Warp(d=D, indices=list(range(D)), bounds=unit)
    clip = ChainedOutcomeTransform(clip=ClipTail(), standardize=Standardize(m=1))
    return {
        "default": lambda: SingleTaskGP(X, Y),
        "matern": lambda: SingleTaskGP(X, Y, covar_module=matern),
        "product": lambda: SingleTaskGP(X, Y, covar_module=parts),
        "fixed noise": lambda: SingleTaskGP(X, Y, Y.square() / 50 + 1e-3),
        "means": lambda: SingleTaskGP(X, Y, mean_module=LinearMean(D)),
        "zero mean": lambda: SingleTaskGP(X, Y, mean_module=ZeroMean()),
        "raw": lambda: SingleTaskGP(X, Y, outcome_transform=None),
        "transforms": lambda: SingleTaskGP(
            X, Y, input_transform=Normalize(D), outcome_transform=clip
        ),
        "learned transform": lambda: SingleTaskGP(X, Y, input_transform=warp),
        "one point": lambda: SingleTaskGP(X[:1], Y[:1], outcome_transform=None),
    }


@pytest.mark.parametrize("name", single_task_models())
def test_fast_predictions_are_the_definition(name: str) -> None:
    model = SampledGP(samples(single_task_models()[name]()))
    assert folds(model)
    for shape in [(1,), (5,), (3, 1), (2, 3, 2), (0, 1)]:
        assert_is_definition(model, points(*shape))
    # more than one piece of a large batch
    few, many = points(3, 2, seed=1), points(4000, 2, seed=2)
    both = model.posterior(torch.cat([few, many])).distribution
    mean, covariance = definition(model, few)
    torch.testing.assert_close(both.mean[:3], mean.squeeze(-1), rtol=0, atol=1e-8)
    torch.testing.assert_close(
        both.covariance_matrix[:3], covariance, rtol=0, atol=1e-8
    )
    for noise in (True, torch.full((2, 1), 0.3, dtype=torch.double)):
        assert_is_definition(model, few, observation_noise=noise)


class OneByOne(ScaleKernel):
    """A kernel that takes no batch: its answer has the wrong shape for one."""

    def forward(self, x1: Tensor, x2: Tensor, **params: Any) -> Any:
        if self.batch_shape:
            raise RuntimeError("no batches")
        return super().forward(x1, x2, **params)


class Silent(ScaleKernel):
    """Gives numbers of the wrong samples when it has a batch."""

    def forward(self, *args: Tensor, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        return to_dense(result).flip(0) if self.batch_shape else result


MATERN = ScaleKernel(MaternKernel(nu=0.5))
NOT_STACKED: dict[str, list[Kernel]] = {
    "no batches": [OneByOne(RBFKernel()), OneByOne(RBFKernel())],
    "wrong in batches": [Silent(RBFKernel()), Silent(RBFKernel())],
    "bases": [MATERN, ScaleKernel(RBFKernel())],
    "lengthscales": [RBFKernel(ard_num_dims=3), RBFKernel()],
    "parts": [MATERN, RBFKernel()],
    "columns": [RBFKernel(active_dims=(0, 1)), RBFKernel(active_dims=(1, 2))],
}


@pytest.mark.parametrize("name", NOT_STACKED)
def test_kernels_that_are_evaluated_one_by_one(name: str) -> None:
    """They take no batches, or differ in more than parameters."""
    X, Y = data()
    singles = [SingleTaskGP(X, Y, covar_module=k) for k in NOT_STACKED[name]]
    for parameter in singles[1].parameters():
        parameter.data.add_(0.2)
    model = SampledGP([single.double() for single in singles])
    assert not folds(model)
    assert_is_definition(model, points(3, 2))


@given(seed=seeds, strict=st.booleans())
@hypothesis_settings(max_examples=15)
def test_fast_predictions_over_random_trees(seed: int, strict: bool) -> None:
    tree = random_tree(seed % 1000, strict=strict)
    g = torch.Generator().manual_seed(seed % 1000)
    X = random_points(tree, 12, g)
    Y = torch.randn(12, 1, generator=g, dtype=torch.double)
    sharing = ("hierarchical", "tied")[seed % 2]
    Yvar = torch.full_like(Y, 0.01) if seed % 3 == 0 else None
    single = TreeStructuredGP(X, Y, tree, Yvar, leaf_hyperparameters=sharing)
    model = SampledGP(samples(single, num=3, seed=seed % 1000))
    assert folds(model)
    test = random_points(tree, 10, g).view(5, 2, -1)
    assert_is_definition(model, test)
    assert_is_definition(model, test[:, :1], observation_noise=True)


def test_many_rows_are_left_to_the_leaves() -> None:
    model = SampledGP(samples(tree_model(n=320), num=2))
    assert not folds(model)
    assert_is_definition(model, on_tree(points(5, 1)))


def test_gradients_are_those_of_the_definition() -> None:
    for model in (sampled(), SampledGP(samples(tree_model()))):
        for shape in [(4, 1), (3, 2)]:
            X = points(*shape).requires_grad_(True)
            with torch.no_grad():
                X[..., 0] = X[..., 0].round()
            posterior = model.posterior(X)
            value = (posterior.mean + posterior.variance.log()).sum()
            (found,) = torch.autograd.grad(value, X)
            mean, covariance = definition(model, X)
            variance = covariance.diagonal(dim1=-1, dim2=-2)
            value = mean.sum() + variance.log().sum()
            (expected,) = torch.autograd.grad(value, X)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_predictions_at_a_tiny_noise() -> None:
    X, Y = data()
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(1e-10)).double()
    likelihood.noise = 1e-9
    single = SingleTaskGP(X, Y, likelihood=likelihood)
    single.likelihood.raw_noise.requires_grad_(False)
    model = SampledGP(samples(single))
    # GPyTorch's own solves keep about seven digits at this conditioning
    assert_is_definition(model, points(4, 2), tol=1e-6)
    with torch.no_grad():
        at_data = model.posterior(X.unsqueeze(-2)).mean.squeeze(-1).squeeze(-1)
    torch.testing.assert_close(at_data, Y.expand(-1, S), rtol=0, atol=1e-6)


def test_other_models_use_the_definition() -> None:
    X, Y = data()
    tasks = torch.cat([X[:, :2], torch.arange(N).remainder(2).unsqueeze(-1)], dim=-1)
    inducing = InducingPointKernel(
        RBFKernel(), X[:5].clone(), GaussianLikelihood()
    ).double()
    with_task = MultiTaskGP(tasks, Y, task_feature=-1)
    for single, x in [
        (with_task, points(3, 2, d=2)),
        (SingleTaskGP(X, Y, covar_module=inducing), points(3, 2)),
        (SingleTaskGP(X.expand(2, -1, -1), Y.expand(2, -1, -1)), points(2, 2)),
    ]:
        model = SampledGP(samples(single))
        model.posterior(x)
        assert model._predictor is not None and model._predictor[1] is None
        assert_is_definition(model, x)


def test_prior_mode_uses_the_definition() -> None:
    model = sampled()
    X = points(2, 1)
    posterior = model.posterior(X).mean
    with settings.prior_mode():
        prior = model.posterior(X).mean
        torch.testing.assert_close(prior, definition(model, X)[0])
    assert not torch.allclose(prior, posterior)
    torch.testing.assert_close(model.posterior(X).mean, posterior)
