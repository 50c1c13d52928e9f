import pytest
import torch
from botorch.models import SingleTaskGP
from torch.distributions import Normal

from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.suggest import (
    leave_one_out_log_density,
    leave_one_out_weights,
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
    alike = leave_one_out_weights([smooth, smooth]), torch.full((2,), 0.5).double()
    torch.testing.assert_close(*alike)
    assert leave_one_out_weights([rough]) == 1.0


@pytest.mark.parametrize("kind", [TreeStructuredGP, ConditionalGP])
def test_of_the_present_hyperparameters(kind: type) -> None:
    """Also of those that were set in evaluation mode, after a prediction."""
    problem, X, Y = data()
    model = kind(X, Y, problem.space)
    before = model.posterior(X).mean
    leave_one_out_log_density(model)
    torch.testing.assert_close(model.posterior(X).mean, before)
    model.likelihood.noise = 0.05
    other = kind(X, Y, problem.space)
    other.likelihood.noise = 0.05
    found, expected = map(leave_one_out_log_density, (model, other))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_what_is_refused() -> None:
    problem, X, Y = data()
    one = TreeStructuredGP(X, Y, problem.space)
    other = TreeStructuredGP(X, Y.square(), problem.space)
    with pytest.raises(ValueError, match="models: expected the same outcomes"):
        leave_one_out_weights([one, other])
    several = TreeStructuredGP(X, torch.cat([Y, -Y], -1), problem.space)
    with pytest.raises(ValueError, match="model: expected one with one outcome"):
        leave_one_out_log_density(several)
