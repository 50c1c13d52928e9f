"""DecomposedGP: one output outside, components inside."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.deterministic import (
    AffineDeterministicModel,
    GenericDeterministicModel,
)
from botorch.models.transforms import Log, Normalize
from botorch.posteriors import GPyTorchPosterior
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.mlls import SumMarginalLogLikelihood
from torch import Tensor

from botorch_structured.models.monotone.decomposed_gp import DecomposedGP
from botorch_structured.models.monotone.monotone_gp import MonotoneGP
from botorch_structured.models.sampled.sampled_gp import SampledGP
from botorch_structured.test_functions import MonotoneMixture1D

D = 2
BOUNDS = torch.tensor([[0.0] * D, [10.0] * D], dtype=torch.double)


def price(X: Tensor) -> Tensor:
    return 0.3 * X.sum(-1, keepdim=True) - 1.0


def data(n: int = 10, seed: int = 0, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """``n x d`` and the two components that have data, ``n x 2``."""
    g = torch.Generator().manual_seed(seed)
    X = 10 * torch.rand(n, D, generator=g, dtype=torch.double)
    parts = torch.stack([X.sum(-1).mul(0.3).sin(), 5 + X[:, 0].mul(0.4).cos()], -1)
    return X.to(**kwargs), parts.to(**kwargs)


def component(X: Tensor, Y: Tensor, scale: float = 0.3, **kwargs: Any) -> SingleTaskGP:
    """Hyperparameters are set: nothing depends on a fit that is not of that test."""
    if "input_transform" not in kwargs:
        kwargs["input_transform"] = Normalize(D, bounds=BOUNDS.to(X))
    model = SingleTaskGP(X, Y, **kwargs)
    model.covar_module.lengthscale = scale
    if "train_Yvar" not in kwargs:
        model.likelihood.noise = 1e-2
    return model


def components(n: int = 10, **kwargs: Any) -> list[SingleTaskGP]:
    X, parts = data(n, **kwargs)
    return [component(X, parts[:, :1]), component(X, parts[:, 1:], 0.5)]


def points(*shape: int, seed: int = 5) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return 10 * torch.rand(*shape, D, generator=g, dtype=torch.double)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


class TestPosterior:
    @pytest.mark.parametrize("shape", [(4,), (3, 1), (2, 3, 4)])
    @pytest.mark.parametrize("noise", [False, True])
    def test_means_and_covariances_add(
        self, shape: tuple[int, ...], noise: bool, device: torch.device
    ) -> None:
        X = points(*shape).to(device)
        first, second = components(device=device)
        known = GenericDeterministicModel(price)
        model = DecomposedGP(first, known, second)
        posterior = model.posterior(X, observation_noise=noise)
        a, b = (m.posterior(X, observation_noise=noise) for m in (first, second))
        assert isinstance(posterior, GPyTorchPosterior)
        assert posterior.mean.shape == (*shape, 1)
        close(posterior.mean, a.mean + price(X) + b.mean)
        close(posterior.variance, a.variance + b.variance)
        close(
            posterior.distribution.covariance_matrix,
            a.distribution.covariance_matrix + b.distribution.covariance_matrix,
        )
        assert model.num_outputs == 1
        assert model.batch_shape == torch.Size()

    def test_batched_components(self) -> None:
        X, parts = data()
        X2 = torch.stack([X, 10 - X])
        batch = [
            component(X2, part.expand(2, -1, -1)) for part in parts.split(1, dim=-1)
        ]
        model = DecomposedGP(*batch)
        assert model.batch_shape == (2,)
        posterior = model.posterior(points(3, 1, 4))
        assert posterior.mean.shape == (3, 2, 4, 1)
        single = DecomposedGP(*(component(10 - X, p) for p in parts.split(1, dim=-1)))
        close(posterior.mean[:, 1], single.posterior(points(3, 4)).mean)

    def test_each_component_has_its_own_data_and_transforms(self) -> None:
        X, parts = data(12)
        one = component(X, parts[:, :1], outcome_transform=None)
        other = component(X[:7] / 10, parts[:7, 1:], input_transform=None)
        model = DecomposedGP(one, other)
        x = points(3) / 10
        expected = one.posterior(x).mean + other.posterior(x).mean
        close(model.posterior(x).mean, expected)
        assert [len(y) for y in model.train_targets] == [12, 7]

    def test_posterior_transform_sees_the_components_in_order(self) -> None:
        first, second = components()
        model = DecomposedGP(first, GenericDeterministicModel(price), second)
        weights = torch.tensor([2.0, -3.0, 0.5], dtype=torch.double)
        X = points(2, 3)
        posterior = model.posterior(
            X, posterior_transform=ScalarizedPosteriorTransform(weights, offset=1.0)
        )
        a, b = first.posterior(X), second.posterior(X)
        close(posterior.mean, 1 + 2 * a.mean - 3 * price(X) + 0.5 * b.mean)
        close(
            posterior.distribution.covariance_matrix,
            4 * a.distribution.covariance_matrix
            + 0.25 * b.distribution.covariance_matrix,
            1e-8,  # nine times GPyTorch's least variance, for the known component
        )
        joint = model.component_posterior(X)
        close(joint.mean, torch.cat([a.mean, price(X), b.mean], -1))
        zero = torch.zeros_like(a.variance)
        close(joint.variance, torch.cat([a.variance, zero, b.variance], -1), 1e-9)
        samples = joint.rsample(torch.Size([2]))  # known: to GPyTorch's least variance
        close(samples[..., 1:2], price(X).expand(2, 2, 3, 1), 1e-4)

    def test_noise_of_components(self) -> None:
        models = components()
        model = DecomposedGP(*models)
        X = points(4)
        noise = 0.01 * torch.arange(8, dtype=torch.double).reshape(4, 2) + 0.1
        expected = sum(
            m.posterior(X, observation_noise=noise[:, i : i + 1]).variance
            for i, m in enumerate(models)
        )
        close(model.posterior(X, observation_noise=noise).variance, expected)

    @pytest.mark.filterwarnings("ignore:Component models of DecomposedGP:UserWarning")
    def test_an_ensemble_makes_a_mixture(self) -> None:
        X, parts = data()
        members = [component(X, parts[:, :1], scale) for scale in (0.2, 0.4, 0.8)]
        sampled = SampledGP(members)
        model = DecomposedGP(sampled, components()[1], GenericDeterministicModel(price))
        x = points(2, 3)
        posterior = model.posterior(x)
        assert isinstance(posterior, GaussianMixturePosterior)
        other = model.models[1].posterior(x)
        for i, member in enumerate(members):
            expected = member.posterior(x).mean + other.mean + price(x)
            close(posterior.mean[:, i], expected)
        expected = sampled.posterior(x).mixture_mean + other.mean + price(x)
        close(posterior.mixture_mean, expected)


class TestObservations:
    def test_conditioning_is_the_model_with_more_data(self) -> None:
        X, parts = data(8)
        new_X, new_parts = data(3, seed=7)

        def build(X: Tensor, parts: Tensor) -> DecomposedGP:
            first = component(X, parts[:, :1], outcome_transform=None)
            second = component(X, parts[:, 1:], 0.5, outcome_transform=None)
            return DecomposedGP(first, GenericDeterministicModel(price), second)

        model = build(X, parts)
        model.posterior(X)
        more = build(torch.cat([X, new_X]), torch.cat([parts, new_parts]))
        x = points(4)
        for given in (new_X, [new_X, new_X]):
            conditioned = model.condition_on_observations(given, new_parts)
            assert isinstance(conditioned, DecomposedGP)
            assert len(conditioned.components) == 3
            close(conditioned.posterior(x).mean, more.posterior(x).mean, 1e-7)
            close(conditioned.posterior(x).variance, more.posterior(x).variance, 1e-7)

    def test_fantasies_of_components_are_independent(self) -> None:
        """The fantasised sum varies as the sum does, not as perfectly correlated."""
        first, second = components()
        model = DecomposedGP(first, GenericDeterministicModel(price), second)
        x = points(1)
        sampler = SobolQMCNormalSampler(torch.Size([512]), seed=0)
        fantasies = model.fantasize(x, sampler)
        assert fantasies.batch_shape == (512,)
        means = fantasies.posterior(x).mean.squeeze()
        # the law of total variance, on the sum: prior variance less what is left
        before, left = model.posterior(x), fantasies.posterior(x).variance
        expected = (before.variance - left.mean()).squeeze()
        torch.testing.assert_close(means.var(), expected, rtol=0.05, atol=0.0)
        torch.testing.assert_close(
            means.mean(), before.mean.squeeze(), rtol=1e-2, atol=1e-2
        )

    def test_fantasies_with_fixed_noise(self) -> None:
        X, parts = data()
        fixed = component(
            X, parts[:, :1], train_Yvar=torch.full_like(parts[:, :1], 0.02)
        )
        model = DecomposedGP(fixed, components()[1])
        sampler = SobolQMCNormalSampler(torch.Size([3]), seed=0)
        fantasies = model.fantasize(points(2, 2), sampler)
        assert fantasies.posterior(points(2, 5)).mean.shape == (3, 2, 5, 1)
        noise = fantasies.models[0].likelihood.noise
        close(noise[..., -2:], noise[..., :2])  # the mean of equal ones
        given = torch.tensor([[0.3, 0.4]], dtype=torch.double)
        fantasies = model.fantasize(points(2), sampler, observation_noise=given)
        noise = fantasies.models[0].likelihood.noise[..., -2:]
        close(noise, torch.full_like(noise, 0.3))
        nothing = model.fantasize(points(0), sampler)
        close(
            nothing.posterior(points(4)).mean,
            model.posterior(points(4)).mean.expand(3, -1, -1),
        )

    def test_sample_paths_are_sums(self) -> None:
        first, second = components()
        model = DecomposedGP(first, GenericDeterministicModel(price), second)
        X, shape = points(6), torch.Size([3])
        torch.manual_seed(1)
        path = draw_matheron_paths(model, shape)(X)
        torch.manual_seed(1)
        a, b = (draw_matheron_paths(m, shape)(X) for m in (first, second))
        assert path.shape == (3, 6)
        close(path, a + b + price(X).squeeze(-1))


def test_state_pickle_and_copies() -> None:
    def build() -> DecomposedGP:
        slope = AffineDeterministicModel(torch.full((D, 1), 0.7).double())
        return DecomposedGP(slope, *components())

    model, X = build(), points(4)
    model.models[0].covar_module.lengthscale = 0.11
    expected = model.posterior(X).mean
    fresh = build()
    fresh.load_state_dict(model.state_dict())
    for other in (fresh, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        close(other.posterior(X).mean, expected)


def test_monotone_components() -> None:
    """Fit, sum and acquisition with EP inside the components."""
    problem = MonotoneMixture1D(negate=True)
    X = problem.starts(1)
    parts = problem.components(X)
    model = DecomposedGP(
        *(
            MonotoneGP(X, parts[:, i : i + 1], signs, signs_in_fit=True)
            for i, signs in enumerate(problem.monotone)
        )
    )
    fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
    x = torch.linspace(0, 1, 9, dtype=torch.double).unsqueeze(-1)
    falling, rising = (one.posterior(x).mean for one in model.models)
    assert falling.diff(dim=0).max() < 0 < rising.diff(dim=0).min()
    close(model.posterior(x).mean, falling + rising)
    acqf = LogExpectedImprovement(model, best_f=parts.sum(-1).max())
    assert acqf(x.unsqueeze(1)).isfinite().all()


def test_wrong_arguments() -> None:
    first, second = components()
    X, parts = data()
    two = SingleTaskGP(X / 10, parts)
    log = SingleTaskGP(X / 10, parts[:, 1:], outcome_transform=Log())
    known = GenericDeterministicModel(price)
    for models, message in (
        ((), "at least one component with data"),
        ((known, known), "all of them known"),
        ((first, two), "models: expected components with one output, got 2"),
        ((first, log), "models: .* a Log at 1"),
        ((first, DecomposedGP(first, second)), "a DecomposedGP at 1"),
        ((first, torch.nn.Linear(1, 1)), "a Linear at 1"),
        ((first, known, first), "models: .* got component 2 twice"),
    ):
        with pytest.raises(ValueError, match=message):
            DecomposedGP(*models)
    model = DecomposedGP(first, known, second)
    assert model.subset_output([0]) is model
    model.posterior(X)
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
    three = torch.ones(len(X), 3).double()
    for call, message in (
        (lambda: model.posterior(X, output_indices=[1]), "one output, the sum"),
        (lambda: model.subset_output([1]), "one output, the sum"),
        (
            lambda: model.posterior(X, observation_noise=three),
            "noise: expected 2 columns",
        ),
        (lambda: model.condition_on_observations(X, three), "Y: expected 2 columns"),
        (lambda: model.condition_on_observations([X], parts), "got 1"),
        (
            lambda: model.condition_on_observations(X, parts, noise=three),
            "noise: expected 2 columns",
        ),
        (lambda: model.fantasize(X, sampler, three), "noise: expected 2 columns"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_bad_points_and_observations() -> None:
    """Components that check nothing themselves: the sum checks what it is given."""
    model = DecomposedGP(*components())
    X, parts = data(3, seed=7)
    nan, nan_parts = X.clone(), parts.clone()
    nan[1, 0] = nan_parts[2, 1] = float("nan")
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
    finite = r"X: expected finite numbers, got nan in columns \[0\] of rows \[1\]"
    width = r"X: expected ``batch_shape x q x 2``, got \(3, 1\)"
    condition = model.condition_on_observations
    for call, message in (
        (lambda: model.posterior(X[:, :1]), width),
        (lambda: model.posterior(nan), finite),
        (lambda: model.component_posterior(nan), finite),
        (lambda: model.fantasize(X[:, :1], sampler), width),
        (lambda: model.fantasize(nan, sampler), finite),
        (lambda: condition(X[:, :1], parts), width),
        (lambda: condition([X, nan], parts), finite),
        (lambda: condition(X, nan_parts), r"Y: .* nan in columns \[1\] of rows \[2\]"),
        (lambda: condition(X[:2], parts), r"Y: expected ``batch_shape x 2 x 2``, .*"),
        (lambda: condition(X, parts.float()), "Y: expected torch.float64"),
        (lambda: condition(X, parts, noise=-parts.abs()), "noise: .* not negative"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_noise_is_for_components_with_fixed_noise() -> None:
    X, parts = data()
    Yvar = torch.full_like(parts[:, :1], 0.02)
    inferred = MonotoneGP(X / 10, parts[:, 1:], {})
    model = DecomposedGP(component(X / 10, parts[:, :1], train_Yvar=Yvar), inferred)
    model.posterior(X / 10)
    more = model.condition_on_observations(X[:2] / 10, parts[:2], noise=parts[:2].abs())
    noise = more.models[0].likelihood.noise[-2:]
    assert noise.shape == (2,) and (noise > Yvar[:2, 0]).all()
    assert len(more.models[1].train_targets) == 12
