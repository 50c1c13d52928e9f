from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.models import MultiTaskGP, SingleTaskGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.transforms import Normalize, Warp
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Standardize
from botorch.settings import propagate_grads
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
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from linear_operator import to_dense
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
from strategies import random_points, random_tree, seeds
from torch import Tensor

from botorch_structured.models import TreeStructuredGP
from botorch_structured.models.sampled.sampled_gp import SampledGP
from botorch_structured.transforms import ClipTail


def single_task_models() -> dict[str, Callable[[], GPyTorchModel]]:
    X, Y = data()
    matern = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=D)) + LinearKernel()
    parts = ScaleKernel(RBFKernel(active_dims=[0, 2])) * MaternKernel(nu=1.5)
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


class Undefined(ScaleKernel):
    """Gives NaN when it has a batch."""

    def forward(self, *args: Tensor, **kwargs: Any) -> Any:
        result = to_dense(super().forward(*args, **kwargs))
        return result * torch.nan if self.batch_shape else result


@pytest.mark.parametrize(
    "kernel", [OneByOne(RBFKernel()), Silent(RBFKernel()), Undefined(RBFKernel())]
)
def test_kernels_without_batches_are_called_one_by_one(kernel: Kernel) -> None:
    X, Y = data()
    model = SampledGP(samples(SingleTaskGP(X, Y, covar_module=kernel)))
    assert not folds(model)
    assert_is_definition(model, points(3, 2))


def test_modules_that_differ_in_more_than_parameters_are_not_stacked() -> None:
    X, Y = data()
    matern = ScaleKernel(MaternKernel(nu=0.5))
    columns = [torch.tensor([0, 1]), torch.tensor([1, 2])]
    for kernels in (
        [matern, ScaleKernel(RBFKernel())],
        [RBFKernel(ard_num_dims=3), RBFKernel()],
        [matern, RBFKernel()],
        [RBFKernel(active_dims=c) for c in columns],
    ):
        model = SampledGP([SingleTaskGP(X, Y, covar_module=k) for k in kernels])
        assert not folds(model)
        assert_is_definition(model, points(3, 2))


def test_learned_input_transforms_differ_between_samples() -> None:
    X, Y = data()
    unit = torch.stack([X.new_zeros(D), X.new_ones(D)])
    warp = Warp(d=D, indices=list(range(D)), bounds=unit)
    model = SampledGP(samples(SingleTaskGP(X, Y, input_transform=warp)))
    assert folds(model)
    first, last = model.models[0].input_transform, model.models[-1].input_transform
    assert not torch.equal(first.concentration0, last.concentration0)
    assert_is_definition(model, points(3, 2))
    assert_is_definition(model, points(3, 1), observation_noise=True)


@given(seed=seeds, strict=st.booleans())
@hypothesis_settings(max_examples=15)
def test_fast_predictions_over_random_trees(seed: int, strict: bool) -> None:
    tree = random_tree(seed % 1000, strict=strict)
    g = torch.Generator().manual_seed(seed % 1000)
    X = random_points(tree, 12, g)
    Y = torch.randn(12, 1, generator=g, dtype=torch.double)
    sharing = ("hierarchical", "tied")[seed % 2]
    single = TreeStructuredGP(X, Y, tree, leaf_hyperparameters=sharing)
    model = SampledGP(samples(single, num=3, seed=seed % 1000))
    assert folds(model)
    assert_is_definition(model, random_points(tree, 10, g).view(5, 2, -1))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"leaf_hyperparameters": "independent", "leaf_offset": "fixed"},
        {"train_Yvar": torch.full((N, 1), 0.01, dtype=torch.double)},
    ],
)
def test_tree_structured_models(options: dict[str, Any]) -> None:
    model = SampledGP(samples(tree_model(**options)))
    assert folds(model)
    X = on_tree(points(6, 2))
    assert_is_definition(model, X)
    assert_is_definition(model, X[:, :1], observation_noise=True)


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


def test_gradients_reach_the_data_where_they_are_asked_for() -> None:
    model = sampled(outcome_transform=None)
    X = points(2, 1)
    assert folds(model)
    targets = model.models[0].train_targets.clone().requires_grad_(True)
    for m in model.models:
        m.set_train_data(targets=targets)
    with propagate_grads(True):
        mean = model.posterior(X).mean
    (found,) = torch.autograd.grad(mean.sum(), targets)
    x = model.models[0].train_inputs[0]
    expected = torch.zeros_like(found)
    for m in model.models:
        noisy = m.covar_module(x).to_dense() + m.likelihood.noise * torch.eye(N)
        cross = m.covar_module(X.squeeze(-2), x).to_dense()
        expected += torch.linalg.solve(noisy, cross.mT).sum(-1)
    # GPyTorch's own gradient of a solve, in a covariance of condition 1e4
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_no_points_at_all() -> None:
    posterior = SampledGP(samples(single_task_models()["default"]())).posterior(
        points(3)[:0]
    )
    assert posterior.mean.shape == (S, 0, 1)
