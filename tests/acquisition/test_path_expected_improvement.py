from __future__ import annotations

import math

import mpmath
import pytest
import torch
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models import SingleTaskGP
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.datasets import SupervisedDataset
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from botorch_structured.acquisition import (
    PathExpectedImprovement,
    PathLogExpectedImprovement,
)
from botorch_structured.models import TreeStructuredGP

BOTH = (PathExpectedImprovement, PathLogExpectedImprovement)


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


def test_improvement_is_downwards_when_minimising() -> None:
    # The sign that the paper prints is the other one.
    X = torch.tensor([[[-1.0, 0.1, 0.0]], [[1.0, 0.1, 0.0]]]).double()
    low, high = PathExpectedImprovement(given_moments(), 0.0, maximize=False)(X)
    assert low == pytest.approx(1.0, rel=1e-9)
    assert high < 1e-20
    low, high = PathExpectedImprovement(given_moments(), 0.0)(X)
    assert high == pytest.approx(1.0, rel=1e-9)
    assert low < 1e-20


@pytest.mark.parametrize("distance", [1e1, 1e2, 1e4, 1e7])
def test_log_form_in_the_far_tail(distance: float) -> None:
    X = torch.tensor([[[distance, 1.0, 0.0]]]).double().requires_grad_()
    value = PathLogExpectedImprovement(given_moments(), 0.0, maximize=False)(X)
    with mpmath.workdps(60):
        # Asymptotically phi(u) / u^2, to relative 3 / u^2.
        u = mpmath.mpf(distance)
        log_phi = -u * u / 2 - mpmath.log(2 * mpmath.pi) / 2
        expected = log_phi - 2 * mpmath.log(u) + mpmath.log(1 - 3 / u**2 + 15 / u**4)
    assert value.item() == pytest.approx(float(expected), rel=2e-5)
    (gradient,) = torch.autograd.grad(value.sum(), X)
    assert gradient[0, 0, 0] < 0
    assert float(gradient[0, 0, 0]) == pytest.approx(-distance, rel=0.05)


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


@pytest.mark.parametrize("acqf", BOTH)
def test_batches(acqf: type[PathExpectedImprovement]) -> None:
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


@pytest.mark.parametrize("acqf", BOTH)
def test_posterior_transform(acqf: type[PathExpectedImprovement]) -> None:
    negate = ScalarizedPosteriorTransform(torch.tensor([-1.0]).double())
    X = torch.rand(6, 1, 3, dtype=torch.double)
    model = given_moments()
    one = acqf(model, -0.5, posterior_transform=negate, maximize=True)(X)
    assert torch.allclose(one, acqf(model, 0.5, maximize=False)(X))


@pytest.mark.parametrize("acqf", BOTH)
def test_input_constructor(acqf: type[PathExpectedImprovement]) -> None:
    X = torch.rand(5, 3, dtype=torch.double)
    Y = X.sum(-1, keepdim=True)
    data = SupervisedDataset(X, Y, feature_names=list("abc"), outcome_names=["y"])
    model = given_moments()
    kwargs = get_acqf_input_constructor(acqf)(model=model, training_data=data)
    built = acqf(**kwargs)
    assert float(built.best_f) == float(Y.max())
    assert built.maximize


def test_refuses_a_model_without_paths() -> None:
    X = torch.rand(3, 2, dtype=torch.double)
    with pytest.raises(ValueError, match="model: .*path_posterior.*got SingleTaskGP"):
        PathExpectedImprovement(SingleTaskGP(X, X[:, :1]), 0.0)
    for wrong in (None, torch.nn.Module()):
        with pytest.raises(ValueError, match="model: expected one with a path_post"):
            PathExpectedImprovement(wrong, 0.0)


@pytest.mark.parametrize("acqf", BOTH)
@pytest.mark.parametrize(
    "wrong", [None, "a", math.nan, math.inf, torch.tensor(math.nan)]
)
def test_refuses_what_is_no_best_value(acqf, wrong) -> None:
    with pytest.raises(ValueError, match="best_f: expected"):
        acqf(given_moments(), wrong)


def tree_model(device: torch.device) -> TreeStructuredGP:
    """Column 0 decides; 1 is shared; 2 and 3 belong to a leaf each."""
    X = torch.rand(12, 4, dtype=torch.double, device=device)
    X[:, 0] = torch.arange(12, device=device) % 2
    Y = (X[:, 1:2] - 0.3) ** 2 + X[:, :1] + 0.1 * X[:, 2:3]
    return TreeStructuredGP(X, Y, {0: {0: [1, 2], 1: [1, 3]}})


@pytest.mark.parametrize("acqf", BOTH)
def test_constant_in_leaf_columns(
    acqf: type[PathExpectedImprovement], device: torch.device
) -> None:
    value = acqf(tree_model(device), 0.2, maximize=False)
    X = torch.rand(8, 1, 4, dtype=torch.double, device=device)
    X[..., 0] = torch.arange(8, device=device)[:, None] % 2
    other = X.clone()
    other[..., 2:] = torch.rand(8, 1, 2, dtype=torch.double, device=device)
    assert torch.equal(value(X), value(other))


def test_single_precision() -> None:
    X = torch.rand(6, 1, 3)
    for acqf in BOTH:
        value = acqf(given_moments(torch.float), 0.5)(X)
        assert value.dtype == torch.float
        assert value.isfinite().all()
