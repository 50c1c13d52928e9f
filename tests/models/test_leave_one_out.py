from __future__ import annotations

import pytest
import torch
from botorch.models import SingleTaskGP
from torch.distributions import Normal

from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.models.leave_one_out import (
    leave_one_out_log_density,
    leave_one_out_weights,
    stacking_weights,
)
from botorch_structured.test_functions import JenattonTree


def data(n: int = 9) -> tuple[JenattonTree, torch.Tensor, torch.Tensor]:
    problem = JenattonTree(shared=True)
    X = problem.space.sample(n, seed=0)
    return problem, X, -problem(X).unsqueeze(-1)


@pytest.mark.parametrize("kind", [TreeStructuredGP, ConditionalGP])
def test_equals_predictions_without_each_observation(kind: type) -> None:
    problem, X, Y = data()
    model = kind(X, Y, problem.space)
    model.likelihood.noise = 0.01
    model.eval()
    found = leave_one_out_log_density(model)
    targets = model.train_targets
    inputs = model.train_inputs[0]
    with torch.no_grad():
        prior = model.likelihood(model.forward(inputs))
        K, y = prior.covariance_matrix, targets - prior.mean
        for i in range(len(X)):
            rest = [j for j in range(len(X)) if j != i]
            solved = torch.linalg.solve(K[rest][:, rest], K[rest, i])
            mean = solved @ y[rest]
            variance = K[i, i] - solved @ K[rest, i]
            expected = Normal(mean, variance.sqrt()).log_prob(y[i])
            torch.testing.assert_close(found[i], expected, rtol=1e-7, atol=1e-8)


def test_weights_prefer_the_model_that_predicts() -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(12, 1, generator=g, dtype=torch.double)
    Y = (3.0 * X).sin()
    smooth, rough = SingleTaskGP(X, Y), SingleTaskGP(X, Y)
    smooth.covar_module.lengthscale, rough.covar_module.lengthscale = 0.5, 1e-3
    weights = leave_one_out_weights([rough, smooth])
    assert float(weights.sum()) == pytest.approx(1.0)
    assert weights[1] > 0.99
    torch.testing.assert_close(
        leave_one_out_weights([smooth, smooth]), torch.full((2,), 0.5).double()
    )


def test_stacked_weights_are_those_of_the_best_mixture() -> None:
    """The gradient of the penalised log score is the same for all weights."""
    problem, X, Y = data(12)
    models = [kind(X, Y, problem.space) for kind in (TreeStructuredGP, ConditionalGP)]
    models.append(ConditionalGP(X, Y, problem.space))
    models[-1].likelihood.noise = 0.5
    w = stacking_weights(models)
    assert float(w.sum()) == pytest.approx(1.0)
    assert (w > 0.0).all()
    p = torch.stack([leave_one_out_log_density(m) for m in models], -1).exp()
    slope = (p / (p @ w).unsqueeze(-1)).sum(0) + 1.0 / w
    torch.testing.assert_close(slope, slope.mean().expand(3), rtol=1e-6, atol=0.0)


def test_stacked_weights_keep_what_is_right_about_some() -> None:
    """Smooth on one side and rough on the other: one model is right about each."""
    g = torch.Generator().manual_seed(0)
    X = torch.linspace(0.0, 1.0, 40, dtype=torch.double).unsqueeze(-1)
    rough = torch.randn(40, 1, generator=g, dtype=torch.double)
    Y = torch.where(X < 0.5, (3.0 * X).sin(), rough)
    models = [SingleTaskGP(X, Y) for _ in range(2)]
    for model, lengthscale in zip(models, (0.5, 1e-3), strict=True):
        model.covar_module.lengthscale = lengthscale
        model.likelihood.noise = 1e-3
    assert leave_one_out_weights(models).min() < 1e-6
    assert stacking_weights(models).min() > 0.1


def test_stacked_weights_of_one_model_and_of_equal_ones() -> None:
    problem, X, Y = data()
    one = TreeStructuredGP(X, Y, problem.space)
    assert stacking_weights([one]).tolist() == [1.0]
    torch.testing.assert_close(
        stacking_weights([one, one]), torch.full((2,), 0.5).double()
    )


def test_stacked_weights_where_a_density_underflows() -> None:
    """A model that was sure of something else is not one that has no weight."""
    X = torch.linspace(0.0, 1.0, 6, dtype=torch.double).unsqueeze(-1)
    Y = X.square()
    sure, other = SingleTaskGP(X, Y), SingleTaskGP(X, Y)
    sure.likelihood.noise_covar.raw_noise_constraint.lower_bound.fill_(0.0)
    sure.covar_module.lengthscale = 50.0
    sure.likelihood.noise = 1e-7
    assert leave_one_out_log_density(sure).min() < -800.0  # exp gives zero
    weights = stacking_weights([sure, other])
    assert weights.isfinite().all()
    assert 0.0 < weights[0] < 0.5


def test_the_model_predicts_as_before() -> None:
    problem, X, Y = data()
    model = TreeStructuredGP(X, Y, problem.space)
    Z = problem.space.sample(5, seed=1)
    before = model.posterior(Z).mean
    leave_one_out_log_density(model)
    torch.testing.assert_close(model.posterior(Z).mean, before)


def test_what_is_refused() -> None:
    problem, X, Y = data()
    for weights in (leave_one_out_weights, stacking_weights):
        with pytest.raises(ValueError, match="models: expected at least one"):
            weights([])
    one = TreeStructuredGP(X, Y, problem.space)
    other = TreeStructuredGP(X, Y.square(), problem.space)
    with pytest.raises(ValueError, match="models: expected the same outcomes"):
        stacking_weights([one, other])
    several = TreeStructuredGP(X, torch.cat([Y, -Y], -1), problem.space)
    with pytest.raises(ValueError, match="model: expected one with one outcome"):
        leave_one_out_log_density(several)
