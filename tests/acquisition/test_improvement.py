"""EI of paths, and at the target context per cost: formulas, limits and searches."""

import math
from typing import Any

import mpmath
import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import LogExpectedImprovement
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.datasets import SupervisedDataset
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from botorch_structured.acquisition import (
    ContextLogExpectedImprovement,
    PathContextLogExpectedImprovement,
    PathExpectedImprovement,
    PathLogExpectedImprovement,
    best_at_context,
)
from botorch_structured.models import TreeStructuredGP

PATHS = (PathExpectedImprovement, PathLogExpectedImprovement)
CONTEXTS = (ContextLogExpectedImprovement, PathContextLogExpectedImprovement)


class GivenMoments(SingleTaskGP):
    """Mean ``x_0`` and standard deviation ``x_1``; column 2 is a leaf's own."""

    def path_posterior(self, X: Tensor) -> GPyTorchPosterior:
        covariance = DiagLinearOperator(X[..., 1] ** 2)
        return GPyTorchPosterior(MultivariateNormal(X[..., 0], covariance))


def given_moments(dtype: torch.dtype = torch.double) -> GivenMoments:
    X = torch.rand(3, 3, dtype=dtype)
    return GivenMoments(X, X.sum(-1, keepdim=True))


def exact(mean: float, sigma: float, best_f: float, maximize: bool) -> mpmath.mpf:
    """Equation (6) of the paper with 60 digits."""
    with mpmath.workdps(60):
        m, s, y = mpmath.mpf(mean), mpmath.mpf(sigma), mpmath.mpf(best_f)
        xi = (m - y) / s if maximize else (y - m) / s
        # erfc keeps its digits in the tail; the difference still loses log10(xi^2).
        cdf = mpmath.erfc(-xi / mpmath.sqrt(2)) / 2
        return s * (mpmath.npdf(xi) + xi * cdf)


@pytest.mark.parametrize("maximize", [True, False])
def test_equals_equation_6(maximize: bool) -> None:
    model = given_moments()
    moments = [(0.3, 0.7), (-2.0, 0.1), (1.5, 1e-3), (0.5, 2.0), (4.0, 0.2)]
    X = torch.tensor([[*m, 0.5] for m in moments], dtype=torch.double).unsqueeze(1)
    found = PathExpectedImprovement(model, 0.4, maximize=maximize)(X)
    logs = PathLogExpectedImprovement(model, 0.4, maximize=maximize)(X)
    for (mean, sigma), ei, log_ei in zip(moments, found, logs, strict=True):
        expected = exact(mean, sigma, 0.4, maximize)
        assert float(ei) == pytest.approx(float(expected), rel=1e-10, abs=1e-300)
        with mpmath.workdps(60):
            expected_log = float(mpmath.log(expected))
        assert float(log_ei) == pytest.approx(expected_log, rel=1e-10, abs=1e-12)


@pytest.mark.filterwarnings("ignore:Negative variance values")  # of the stand-in
def test_zero_variance_is_the_plain_improvement() -> None:
    X = torch.tensor([[[0.25, 0.0, 0.0]], [[1.0, 0.0, 0.0]]]).double()
    X.requires_grad_()
    value = PathExpectedImprovement(given_moments(), 0.5, maximize=False)(X)
    assert torch.allclose(value, torch.tensor([0.25, 0.0]).double(), atol=1e-12)
    log_value = PathLogExpectedImprovement(given_moments(), 0.5, maximize=False)(X)
    assert log_value.isfinite().all()
    assert float(log_value[0]) == pytest.approx(math.log(0.25), abs=1e-10)
    (gradient,) = torch.autograd.grad(log_value.sum(), X)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("acqf", PATHS)
def test_batches_of_paths(acqf: type[PathExpectedImprovement]) -> None:
    X = torch.rand(4, 5, 1, 3, dtype=torch.double)
    values = acqf(given_moments(), 0.5)(X)
    assert values.shape == (4, 5)
    assert torch.equal(values[2], acqf(given_moments(), 0.5)(X[2]))
    best_f = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]).double()
    each = acqf(given_moments(), best_f)(X[0])
    alone = [acqf(given_moments(), best_f[i])(X[0, i : i + 1]) for i in range(5)]
    assert torch.allclose(each, torch.cat(alone))
    for n in (1, 2):  # as many values as there are numbers would be a silent surprise
        with pytest.raises(ValueError, match=rf"best_f: .*\({n},\), got shape \(5,\)"):
            acqf(given_moments(), best_f)(X[0, :n])


@pytest.mark.parametrize("acqf", PATHS)
def test_posterior_transform(acqf: type[PathExpectedImprovement]) -> None:
    negate = ScalarizedPosteriorTransform(torch.tensor([-1.0]).double())
    X = torch.rand(6, 1, 3, dtype=torch.double)
    model = given_moments()
    one = acqf(model, -0.5, posterior_transform=negate, maximize=True)(X)
    assert torch.allclose(one, acqf(model, 0.5, maximize=False)(X))


@pytest.mark.parametrize("acqf", PATHS)
def test_input_constructor(acqf: type[PathExpectedImprovement]) -> None:
    X = torch.rand(5, 3, dtype=torch.double)
    Y = X.sum(-1, keepdim=True)
    data = SupervisedDataset(X, Y, feature_names=list("abc"), outcome_names=["y"])
    model = given_moments()
    kwargs = get_acqf_input_constructor(acqf)(model=model, training_data=data)
    built = acqf(**kwargs)
    assert float(built.best_f) == float(Y.max())
    assert built.maximize


def tree_model(device: torch.device) -> TreeStructuredGP:
    """Column 0 decides; 1 is shared; 2 and 3 belong to a leaf each."""
    X = torch.rand(12, 4, dtype=torch.double, device=device)
    X[:, 0] = torch.arange(12, device=device) % 2
    Y = (X[:, 1:2] - 0.3) ** 2 + X[:, :1] + 0.1 * X[:, 2:3]
    return TreeStructuredGP(X, Y, {0: {0: [1, 2], 1: [1, 3]}})


@pytest.mark.parametrize("acqf", PATHS)
def test_constant_in_leaf_columns(
    acqf: type[PathExpectedImprovement], device: torch.device
) -> None:
    value = acqf(tree_model(device), 0.2, maximize=False)
    X = torch.rand(8, 1, 4, dtype=torch.double, device=device)
    X[..., 0] = torch.arange(8, device=device)[:, None] % 2
    other = X.clone()
    other[..., 2:] = torch.rand(8, 1, 2, dtype=torch.double, device=device)
    assert torch.equal(value(X), value(other))


# column 0 chooses between columns 1 and 2; column 3 is the context, the target is 1
TREE = {0: {0: [1], 1: [2]}}
TARGET = {3: 1.0}


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


@pytest.mark.usefixtures("double")
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


@pytest.mark.usefixtures("double")
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


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("acqf", CONTEXTS)
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


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("acqf", CONTEXTS)
def test_batches_and_gradients(acqf: Any, models: Any) -> None:
    model, cost = models
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


@pytest.mark.usefixtures("double")
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


@pytest.mark.usefixtures("double")
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


@pytest.mark.usefixtures("double")
def test_best_at_context(models: Any) -> None:
    model, _ = models
    X = points(24)
    best, x = best_at_context(model, X, TARGET)
    means = model.posterior(with_context(X, 1.0)).mean.squeeze(-1)
    assert best == means.max()
    assert torch.equal(x, with_context(X, 1.0)[means.argmax()])


X = points(4).double()
ONE = SingleTaskGP(X, errors(X).unsqueeze(-1))
TREE_GP = TreeStructuredGP(X, X[:, :1], TREE)
CONTEXT = ContextLogExpectedImprovement


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (PATHS[0], (ONE, 0.0), "model: .*path_posterior.*got SingleTaskGP"),
        (PATHS[0], (None, 0.0), "model: expected one with a path_post"),
        *[
            (make, (given_moments(), best_f), "best_f: expected")
            for make in PATHS
            for best_f in (None, "a", math.nan, math.inf, torch.tensor(math.nan))
        ],
        (CONTEXT, (ONE, 0.0, {7: 1.0}), "target: expected columns from 0 to 3, got 7"),
        (CONTEXT, (ONE, 0.0, {3: math.inf}), "target.3.: expected a finite number"),
        (CONTEXT, (ONE, 0.0, 3), "target: expected {column: value}, got 3"),
        (CONTEXT, (ONE, torch.tensor(math.nan), {}), "best_f: expected finite number"),
        (CONTEXT, (ONE, torch.zeros(2), {}), "best_f: expected a finite number"),
        (CONTEXT, (ONE, 0.0, {}, ONE, "printed"), 'improvement: expected "learned" or'),
        (CONTEXT, (ModelListGP(ONE, ONE), 0.0, {}), "model: expected a BoTorch model"),
        (
            CONTEXT,
            (ONE, 0.0, {}, ModelListGP(ONE, ONE)),
            "cost_model: expected a BoTorch model with",
        ),
        (CONTEXTS[1], (ONE, 0.0, {}), "model: expected one with a path_posterior"),
        (CONTEXTS[1], (TREE_GP, 0.0, {}, ONE), "cost_model: expected one with a path"),
        (best_at_context, (ONE, X[:0], {}), "X: expected n x d points"),
    ],
)
def test_bad_arguments(make: Any, arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(*arguments)
