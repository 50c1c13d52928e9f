"""EI at the target context per cost: the formulas, limits, paths and searches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import LogExpectedImprovement
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from ConfigSpace import Categorical, ConfigurationSpace, EqualsCondition, Float
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.acquisition import (
    ContextLogExpectedImprovement,
    PathContextLogExpectedImprovement,
    PathLogExpectedImprovement,
    best_at_context,
)
from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import optimize_acqf_paths, optimize_acqf_two_step
from botorch_structured.spaces import SearchSpace

BOTH = (ContextLogExpectedImprovement, PathContextLogExpectedImprovement)
# column 0 chooses between columns 1 and 2; column 3 is the context, the target is 1
TREE = {0: {0: [1], 1: [2]}}
TARGET = {3: 1.0}


pytestmark = pytest.mark.usefixtures("double")


def points(n: int, seed: int = 0) -> Tensor:
    X = torch.rand(n, 4, generator=torch.Generator().manual_seed(seed))
    X[:, 0] = X[:, 0].round()
    return X


def errors(X: Tensor) -> Tensor:
    """The best is 0, at 0.3 of column 1; less data are worse."""
    own = torch.where(X[:, 0] == 0.0, (X[:, 1] - 0.3).square(), 0.1 + X[:, 2])
    return own + 0.3 * (1.0 - X[:, 3]).square()


def log_cost(X: Tensor) -> Tensor:
    return 3.0 * X[:, 3] + X[:, 0]


def fitted(X: Tensor, y: Tensor, **kwargs: Any) -> TreeStructuredGP:
    model = TreeStructuredGP(X, y.unsqueeze(-1), TREE, **kwargs)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


@pytest.fixture(scope="module")
def models() -> tuple[TreeStructuredGP, TreeStructuredGP]:
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    X = points(24)
    noise = 0.01 * torch.randn(24, generator=torch.Generator().manual_seed(1))
    model = fitted(X, -errors(X) + noise, context_features=[3])
    pair = model, fitted(X, log_cost(X))
    torch.set_default_dtype(default)
    return pair


def with_context(X: Tensor, value: float) -> Tensor:
    X = X.clone()
    X[..., 3] = value
    return X


def test_is_ei_of_the_posterior_mean_after_the_evaluation(models: Any) -> None:
    """By simulation: the mean at the target is linear in the outcome at X."""
    model, _ = models
    X = points(3, seed=3)
    best_f = model.posterior(with_context(X, 1.0)).mean.max().item()
    found = ContextLogExpectedImprovement(model, best_f, TARGET)(X.unsqueeze(1))
    normal = torch.distributions.Normal(0.0, 1.0)
    quantiles = normal.icdf((torch.arange(20_000) + 0.5) / 20_000)
    for x, value in zip(X.unsqueeze(1), found, strict=True):
        with torch.no_grad():
            observed = model.posterior(x, observation_noise=True)
            after = [
                model.condition_on_observations(x, y)
                .posterior(with_context(x, 1.0))
                .mean.item()
                for y in (observed.mean, observed.mean + observed.variance.sqrt())
            ]
        means = after[0] + (after[1] - after[0]) * quantiles
        improvement = (means - best_f).clamp_min(0.0).mean()
        assert value.exp().item() == pytest.approx(improvement.item(), rel=1e-2)


def test_at_the_target_it_is_log_ei_minus_log_cost() -> None:
    X = points(20)
    y = -errors(X)
    model = TreeStructuredGP(
        X, y.unsqueeze(-1), TREE, torch.full((20, 1), 1e-12), context_features=[3]
    )
    cost = fitted(X, log_cost(X))
    x = with_context(points(9, seed=2), 1.0).unsqueeze(1)
    expected = LogExpectedImprovement(model, y.max())(x)
    cheap = ContextLogExpectedImprovement(model, y.max(), TARGET)(x)
    torch.testing.assert_close(cheap, expected, rtol=1e-4, atol=1e-4)
    dear = ContextLogExpectedImprovement(model, y.max(), TARGET, cost)(x)
    of_cost = cost.posterior(x.squeeze(1))
    mean = (of_cost.mean + of_cost.variance / 2).squeeze(-1)
    torch.testing.assert_close(dear, cheap - mean)
    # without a target it is EI per second
    per_second = ContextLogExpectedImprovement(model, y.max(), {}, cost)(x)
    torch.testing.assert_close(per_second, dear)


@pytest.mark.parametrize("acqf", BOTH)
def test_published_numerator_is_that_of_the_target(acqf: Any, models: Any) -> None:
    model, cost = models
    X = points(8, seed=5).unsqueeze(1)
    path = acqf is PathContextLogExpectedImprovement
    plain: Any = PathLogExpectedImprovement if path else LogExpectedImprovement
    expected = plain(model, -0.1)(with_context(X, 1.0))
    found = acqf(model, -0.1, TARGET, improvement="published")(X)
    torch.testing.assert_close(found, expected)
    found = acqf(model, -0.1, TARGET, cost, "published")(X)
    posterior = (cost.path_posterior if path else cost.posterior)(X)
    of_cost = (posterior.mean + posterior.variance / 2).flatten()
    torch.testing.assert_close(found, expected - of_cost)


def test_the_published_criterion_is_largest_at_the_cheapest_context(
    models: Any,
) -> None:
    """And ours is not: what says little about the target is worth little."""
    model, cost = models
    x = points(6, seed=7).unsqueeze(1)
    contexts = torch.linspace(0.0, 1.0, 11).tolist()
    for improvement, cheapest in (("published", True), ("learned", False)):
        acqf = ContextLogExpectedImprovement(model, -0.02, TARGET, cost, improvement)
        values = torch.stack([acqf(with_context(x, c)) for c in contexts])
        assert bool((values.argmax(0) == 0).all()) == cheapest


@pytest.mark.parametrize("acqf", BOTH)
def test_minimising_and_batches(acqf: Any, models: Any) -> None:
    model, cost = models
    X = points(24)
    mirrored = fitted(X, -model.train_targets, context_features=[3])
    mirrored.load_state_dict(model.state_dict(), strict=False)
    x = points(6, seed=9).view(2, 3, 1, 4).requires_grad_()
    value = acqf(model, -0.1, TARGET, cost)(x)
    assert value.shape == (2, 3)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert gradient.isfinite().all()
    assert gradient[..., 3].abs().min() > 0.0
    # far from the best value the logarithm keeps a gradient
    far = acqf(model, 1e3, TARGET)(x)
    assert far.isfinite().all()
    assert torch.autograd.grad(far.sum(), x)[0].abs().max() > 0.0


def test_maximize_false_is_the_mirror_image() -> None:
    X = points(16)
    up = SingleTaskGP(X, -errors(X).unsqueeze(-1))
    down = SingleTaskGP(X, errors(X).unsqueeze(-1))
    x = points(5, seed=1).unsqueeze(1)
    a = ContextLogExpectedImprovement(up, -0.1, TARGET)(x)
    b = ContextLogExpectedImprovement(down, 0.1, TARGET, maximize=False)(x)
    torch.testing.assert_close(a, b)
    (best, at), (worst, same) = (
        best_at_context(up, X, TARGET),
        best_at_context(down, X, TARGET, maximize=False),
    )
    torch.testing.assert_close(best, -worst)
    assert torch.equal(at, same)


def test_ensembles(models: Any) -> None:
    model, cost = models
    X = points(12)
    sampled = EnsembleMapSaasSingleTaskGP(X, -errors(X).unsqueeze(-1))
    x = points(5, seed=4).unsqueeze(1)
    value = ContextLogExpectedImprovement(sampled, -0.1, TARGET, cost)(x)
    assert value.shape == (5,)
    assert value.isfinite().all()
    with pytest.raises(ValueError, match="cost_model: expected one set"):
        ContextLogExpectedImprovement(model, -0.1, TARGET, sampled)


def test_best_at_context(models: Any) -> None:
    model, _ = models
    X = points(24)
    best, x = best_at_context(model, X, TARGET)
    means = model.posterior(with_context(X, 1.0)).mean.squeeze(-1)
    assert best == means.max()
    assert torch.equal(x, with_context(X, 1.0)[means.argmax()])
    with pytest.raises(ValueError, match="X: expected n x d points"):
        best_at_context(model, X[:0], TARGET)


def test_searches_find_a_cheap_context_and_the_best_branch() -> None:
    """Both searches, in a space with a context column, end near the optimum."""
    cs = ConfigurationSpace()
    branch = Categorical("branch", ["left", "right"])
    a, b = Float("a", (0.0, 1.0)), Float("b", (0.0, 1.0))
    cs.add(branch, a, b, Float("share", (0.05, 1.0)))
    cs.add(EqualsCondition(a, branch, "left"), EqualsCondition(b, branch, "right"))
    space = SearchSpace.from_configspace(cs)
    order = [space.names.index(name) for name in ("branch", "a", "b", "share")]
    share = order[3]
    X = space.starts(seed=0)
    X = torch.cat([X, space.sample(4, seed=1)])
    for i in range(6):
        y, cost = -errors(X[:, order]), log_cost(X[:, order])
        model = TreeStructuredGP(X, y.unsqueeze(-1), space, context_features=[share])
        cost_model = TreeStructuredGP(X, cost.unsqueeze(-1), space)
        for m in (model, cost_model):
            fit_gpytorch_mll(ExactMarginalLogLikelihood(m.likelihood, m))
        best_f, x_best = best_at_context(model, X, {share: 1.0})
        acqf = ContextLogExpectedImprovement(model, best_f, {share: 1.0}, cost_model)
        if i % 2:
            x, _ = optimize_acqf_paths(acqf, space=space, X_avoid=X, seed=i)
        else:
            first = PathContextLogExpectedImprovement(
                model, best_f, {share: 1.0}, cost_model
            )
            x, _ = optimize_acqf_two_step(
                first, acqf, space=space, X_avoid=X, top_k=2, seed=i
            )
        X = torch.cat([X, x])
    assert errors(x_best[order].unsqueeze(0)) < 0.02
    assert X[6:, share].mean() < 0.9  # cheaper than full evaluations


def test_bad_arguments(models: Any) -> None:
    model, cost = models
    make = ContextLogExpectedImprovement
    with pytest.raises(ValueError, match="target: expected columns from 0 to 3, got 7"):
        make(model, 0.0, {7: 1.0})
    with pytest.raises(ValueError, match="target.3.: expected a finite number"):
        make(model, 0.0, {3: math.inf})
    with pytest.raises(ValueError, match="target: expected {column: value}, got 3"):
        make(model, 0.0, 3)
    with pytest.raises(ValueError, match="best_f: expected finite numbers"):
        make(model, torch.tensor(math.nan), TARGET)
    with pytest.raises(ValueError, match='improvement: expected "learned" or'):
        make(model, 0.0, TARGET, cost, "printed")
    with pytest.raises(ValueError, match="cost_model: expected a BoTorch model with"):
        make(model, 0.0, TARGET, ModelListGP(cost, cost))
    plain = SingleTaskGP(points(4), errors(points(4)).unsqueeze(-1))
    with pytest.raises(ValueError, match="cost_model: expected one with a path_poster"):
        PathContextLogExpectedImprovement(model, 0.0, TARGET, plain)
