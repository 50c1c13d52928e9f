"""What a treed GP predicts, by plain formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.cross_validation import loo_cv
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms.input import AppendFeatures, InputPerturbation
from gpytorch.mlls import ExactMarginalLogLikelihood
from model_test_case import PlusMinus
from treed_models import (
    PUBLISHED,
    hyperparameters,
    kernel_of,
    leaf_prediction,
    randomised,
    step_data,
)

from botorch_structured.models.treed.treed_gp import TreedGP

pytestmark = pytest.mark.usefixtures("double")


def test_leaves_are_independent_a_priori() -> None:
    model = randomised(TreedGP(*step_data()))
    X, _ = step_data(15, seed=3)
    model.eval()
    prior = model.forward(X)
    leaf = model.partition.leaf_index(X)
    same = leaf.unsqueeze(-1) == leaf
    matrix = prior.covariance_matrix
    assert same.any() and not same.all()
    assert (matrix[~same] == 0.0).all()
    for number in range(model.partition.num_leaves):
        mine = leaf == number
        length, variance, mean, _ = hyperparameters(model, number)
        expected = kernel_of(model, X[mine], X[mine], length, variance)
        torch.testing.assert_close(matrix[mine][:, mine], expected)
        assert (prior.mean[mine] == mean).all()
    diagonal = model.covar_module(X, diag=True)
    torch.testing.assert_close(diagonal, matrix.diagonal())


def test_the_published_method_predicts_from_all_data() -> None:
    model = randomised(TreedGP(*step_data(), outcome_transform=None, **PUBLISHED))
    X, _ = step_data(12, seed=5)
    posterior = model.posterior(X)
    everything = torch.ones(40, dtype=torch.bool)
    leaf = model.partition.leaf_index(X)
    for i in range(12):
        mean, covariance = leaf_prediction(
            model, int(leaf[i]), everything, X[i : i + 1]
        )
        torch.testing.assert_close(posterior.mean[i], mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(
            posterior.variance[i], covariance[0], rtol=1e-7, atol=1e-8
        )


def step_model(jump: float = 4.0) -> TreedGP:
    """One split in one dimension, known hyperparameters."""
    x = torch.linspace(0.0, 1.0, 21).unsqueeze(-1)
    y = torch.where(x < 0.52, 0.5 * torch.sin(3.0 * x), jump + torch.sin(20.0 * x))
    model = TreedGP(x, y, outcome_transform=None, max_leaves=2)
    (root, *_) = model.partition.nodes
    assert root.split is not None
    assert root.split.threshold == pytest.approx(0.5)
    model.eval()
    return model


@pytest.mark.parametrize("jump", [4.0, 0.0])
def test_gaps_are_mixtures(jump: float) -> None:
    """Jointly the first two moments under what is known of the change point."""
    model = step_model(jump)
    change = model.partition.nodes[0].change
    assert change is not None
    starts, ends, weights = change.starts, change.ends, change.weights
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
    X = torch.tensor([0.3, 0.44, 0.5, 0.51, 0.525, 0.54, 0.55, 0.58, 0.8]).unsqueeze(-1)
    posterior = model.posterior(X)
    predictor = model._predictors()[0]
    sides = []
    for leaf in (0, 1):
        mean, projected = predictor._project(leaf, predictor.factors(leaf), X)
        length, variance, _, _ = hyperparameters(model, leaf)
        prior = kernel_of(model, X, X, length, variance)
        sides.append((mean, prior - projected @ projected.mT))
    # change points on a grid in each interval
    grid = (torch.arange(2_000) + 0.5) / 2_000
    points = (starts.unsqueeze(-1) + (ends - starts).unsqueeze(-1) * grid).reshape(-1)
    probability = (weights / 2_000).repeat_interleave(2_000)
    left = X.squeeze(-1) <= points.unsqueeze(-1)
    patterns, which = left.unique(dim=0, return_inverse=True)
    mean, second = torch.zeros(9), torch.zeros(9, 9)
    for k, pattern in enumerate(patterns):
        p = probability[which == k].sum()
        m = torch.where(pattern, sides[0][0], sides[1][0])
        both_left = pattern.unsqueeze(-1) & pattern
        both_right = ~pattern.unsqueeze(-1) & ~pattern
        C = both_left * sides[0][1] + both_right * sides[1][1]
        mean += p * m
        second += p * (C + m.unsqueeze(-1) * m)
    expected = second - mean.unsqueeze(-1) * mean
    # 2,000 change points in each interval
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean, rtol=1e-3, atol=1e-3)
    covariance = posterior.distribution.covariance_matrix
    torch.testing.assert_close(covariance, expected, rtol=2e-3, atol=2e-3)
    assert torch.linalg.eigvalsh(covariance).min() > 0.0
    # each point alone, and in a t-batch
    alone = model.posterior(X.unsqueeze(-2))
    torch.testing.assert_close(alone.mean.squeeze(), posterior.mean.squeeze())
    torch.testing.assert_close(alone.variance.squeeze(), covariance.diagonal())
    # the noise is mixed with the same probabilities
    noisy = model.posterior(X, observation_noise=True)
    noise = (noisy.variance - posterior.variance).squeeze(-1)
    p = (left * probability.unsqueeze(-1)).sum(0)
    values = model.likelihood.noise
    torch.testing.assert_close(
        noise, p * values[0] + (1.0 - p) * values[1], rtol=1e-3, atol=1e-6
    )


def test_a_clear_change_point_is_in_one_gap() -> None:
    """Where the data leave no doubt, everything else is left or right for sure."""
    model = step_model(jump=40.0)
    change = model.partition.nodes[0].change
    assert change is not None
    starts, ends, weights = change.starts, change.ends, change.weights
    k = int(weights.argmax())
    assert weights[k] > 0.999
    torch.testing.assert_close(starts[k], torch.tensor(0.5))
    torch.testing.assert_close(ends[k], torch.tensor(0.55))


def test_at_the_threshold_the_left_leaf_predicts() -> None:
    for condition_on in ("leaf", "all"):
        X, Y = step_data()
        model = TreedGP(X, Y, condition_on=condition_on)
        node = model.partition.nodes[0]
        assert node.split is not None
        at = X[X[:, node.split.column] == node.split.threshold]
        index = model.partition.leaf_index(at)
        left = [leaf.leaf for leaf in node.children[0].leaves()]
        assert int(index[0]) in left


def test_a_plausible_point_is_lent() -> None:
    x = torch.linspace(0.0, 1.0, 21).unsqueeze(-1)
    y = torch.where(x < 0.52, 0.0 * x, torch.sin(25.0 * (x - 0.5)))
    model = TreedGP(x, y, outcome_transform=None, max_leaves=2)
    split = model.partition.nodes[0].split
    assert split is not None
    model.eval()
    data = x.squeeze(-1)
    right, lent = data > split.threshold, data == split.threshold
    X = torch.tensor([[0.9], [float(data[right].min()) + 0.02]])
    plain = leaf_prediction(model, 1, right, X)
    with_lent = leaf_prediction(model, 1, right | lent, X)
    posterior = model.posterior(X)
    torch.testing.assert_close(posterior.mean.squeeze(-1), with_lent[0])
    assert not torch.allclose(posterior.variance[1], plain[1][1, 1])
    # the same point is no longer lent where the leaf finds it impossible
    targets = model.train_targets.clone()
    targets[lent] = 50.0
    model.set_train_data(targets=targets)
    posterior = model.posterior(X)
    torch.testing.assert_close(posterior.mean.squeeze(-1), plain[0])


def test_leaves_find_their_own_noise() -> None:
    X, Y = step_data(100, d=1)
    model = TreedGP(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    at = torch.tensor([[0.2], [0.8]])
    noise = (
        model.posterior(at, observation_noise=True).variance
        - model.posterior(at).variance
    ).sqrt()
    # 0.01 and 0.3
    assert 0.004 < noise[0] < 0.03 and 0.2 < noise[1] < 0.45
    shared = TreedGP(X, Y, leaf_noise=False)
    assert shared.likelihood.noise.shape == (1,)


def test_leave_one_out_without_noise() -> None:
    model = TreedGP(*step_data(24))
    model.eval()
    with_noise, without = loo_cv(model), loo_cv(model, observation_noise=False)
    assert (with_noise.posterior.variance >= without.posterior.variance).all()
    with pytest.raises(ValueError, match="points where the noise"):
        model.likelihood(model.forward(torch.rand(3, 2)))


@pytest.mark.parametrize("options", [{}, PUBLISHED], ids=["default", "published"])
@pytest.mark.parametrize("m", [1, 2])
def test_fantasies_in_gaps_and_across_leaves(options: dict[str, Any], m: int) -> None:
    """Where leaves disagree, fantasies still are of one distribution."""
    X, Y = step_data()
    model = randomised(TreedGP(X, torch.cat([Y, Y.flip(0)], -1)[:, :m], **options))
    edge = X[:, 0].sort().values
    at = int((edge < 0.5).sum())  # the data on both sides of the step
    x = torch.tensor([[[0.3, 0.4]], [[0.0, 0.2]], [[0.9, 0.5]]])
    x[1, 0, 0] = edge[at - 1 : at + 1].mean()
    X_test = torch.rand(60, 2, generator=torch.Generator().manual_seed(1))
    X_test[:30, 0] = torch.linspace(float(edge[at - 1]), float(edge[at]), 30)
    before = model.posterior(X_test)
    first = model.fantasize(x, PlusMinus())
    after = first.posterior(X_test)
    shift = (after.mean.mean(0) - before.mean).abs() / before.variance.sqrt()
    assert shift.max() < 1e-8
    moved = (after.mean - after.mean.mean(0)).square().mean(0)
    total = after.variance.mean(0) + moved
    torch.testing.assert_close(
        total, before.variance.expand_as(total), rtol=1e-6, atol=1e-9
    )
    if m > 1:
        return
    second = first.fantasize(x.flip(0), PlusMinus())
    scale, n = model.outcome_transform, X_test.shape[-2]
    drawn = second.train_targets[..., -2:] * scale.stdvs[..., 0] + scale.means[..., 0]
    # by hand, on one joint distribution of test points and fantasies
    twice = torch.cat([x, x.flip(0)], dim=-2)
    points = torch.cat([X_test.expand(3, -1, -1), twice], dim=-2)
    law = model.posterior(points).distribution
    noisy = model.posterior(twice, observation_noise=True).distribution
    cross = law.covariance_matrix[:, n:, :n]
    weights = torch.linalg.solve(noisy.covariance_matrix, cross).mT
    residual = (drawn - law.mean[:, n:]).unsqueeze(-1)
    expected = law.mean[:, :n].unsqueeze(-1) + weights @ residual
    found = second.posterior(X_test)
    torch.testing.assert_close(found.mean, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("append", [False, True])
def test_fantasies_with_a_transform_of_points_only(append: bool) -> None:
    """The inputs that it leaves alone in training are the original ones, too."""
    X, Y = step_data()
    transform: Any = InputPerturbation(torch.tensor([[0.0, 0.0], [0.01, 0.02]]))
    points = X[:3]
    if append:
        transform, points = AppendFeatures(torch.tensor([[0.1], [0.7]])), X[:3, :1]
    model = TreedGP(X, Y, input_transform=transform)
    assert model.partition.num_leaves > 1
    fantasies = model.fantasize(X[:2], PlusMinus())
    assert torch.equal(fantasies._original_train_inputs, torch.cat([X, X[:2]]))
    before, after = (m.posterior(points).mean for m in (model, fantasies))
    torch.testing.assert_close(after.mean(0), before)
