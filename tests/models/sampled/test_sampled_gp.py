from __future__ import annotations

import copy
import io
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

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
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.model import ModelList
from botorch.models.transforms import Log, Normalize
from botorch.posteriors import Posterior, TransformedPosterior
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.evaluation import compute_in_sample_model_fit_metric
from gpytorch.mlls import ExactMarginalLogLikelihood
from sampled_models import (
    D,
    N,
    S,
    assert_is_definition,
    data,
    definition,
    folds,
    on_tree,
    points,
    sampled,
    samples,
    tree_model,
)
from torch import Tensor

from botorch_structured.acquisition import PathLogExpectedImprovement
from botorch_structured.models.sampled.sampled_gp import SampledGP


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


def test_path_expected_improvement() -> None:
    model = SampledGP(samples(tree_model()))
    X = on_tree(points(5, 1))
    found = PathLogExpectedImprovement(model, 0.8)(X)
    each = [PathLogExpectedImprovement(m, 0.8)(X) for m in model.models]
    torch.testing.assert_close(found, logmeanexp(torch.stack(each)))
    with pytest.raises(ValueError, match="path_posterior"):
        PathLogExpectedImprovement(sampled(), 0.8)


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
            for a, b in ((found.mean, expected.mean),):
                torch.testing.assert_close(a.select(-3, s), b, rtol=0, atol=1e-7)
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


def test_gradients_reach_fantasies() -> None:
    model = sampled()
    x = points(2, 1).requires_grad_(True)
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
    value = model.fantasize(x, sampler).posterior(points(2, 1, seed=1)).mean.sum()
    (gradient,) = torch.autograd.grad(value, x)
    assert gradient.abs().min() > 0


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
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    torch.testing.assert_close(loaded.posterior(X).mean, expected)
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


def test_conversions_that_change_nothing_cost_nothing() -> None:
    model = sampled()
    X = points(3, 2)
    expected = model.posterior(X).mean
    kernel = model.models[0].covar_module
    with patch.object(type(kernel), "_apply", side_effect=AssertionError):
        assert model.to(X) is model and model.double() is model
        with pytest.raises(AssertionError):
            model.float()
    model = sampled()
    model.posterior(X)
    cache = model._predictor
    assert model.to(X)._predictor is cache
    torch.testing.assert_close(model.posterior(X).mean, expected, rtol=0, atol=1e-5)
    model.share_memory()
    assert all(p.is_shared() for p in model.parameters())


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


def test_called_as_a_gpytorch_model() -> None:
    model = sampled(outcome_transform=None)
    X = points(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model(X)
    posterior = model.posterior(X)
    torch.testing.assert_close(found.mean, posterior.mean.squeeze(-1))
    prior = model.forward(X)
    assert prior.mean.shape == (S, 5)
    covariance = [m.covar_module(X).to_dense() for m in model.models]
    torch.testing.assert_close(prior.covariance_matrix, torch.stack(covariance))


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
