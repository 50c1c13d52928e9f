"""TransferGP: its formulas, that it needs no fit, and that optimisers can use it."""

import pickle
from typing import Any

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.sampling.normal import SobolQMCNormalSampler
from leaf_models import point_moments
from old_problems import SPACE, make_studies, outcome, points, transformed
from rehearsed_device import RehearsedDevice
from torch import Tensor

from botorch_structured.models import OldStudiesMean, TransferGP
from botorch_structured.models.tree import transfer_gp
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.suggest import leave_one_out_weights
from botorch_structured.transforms import ClipTail


@pytest.fixture(scope="module")
def old() -> OldStudiesMean:
    return OldStudiesMean.from_studies(make_studies(6), SPACE)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_moments_are_those_of_the_definition(
    old: OldStudiesMean, n: int, known: bool
) -> None:
    X, Y = points(n)
    Yvar = torch.linspace(0.01, 0.1, n).double().unsqueeze(-1) if known else None
    model = TransferGP(X, Y, old, Yvar)
    test = SPACE.sample(20, seed=7)
    x, z, y = transformed(X), transformed(test), model.train_targets
    a, noise = model.covar_module.scale, model.likelihood.noise

    def covariance(p: Tensor, q: Tensor) -> Tensor:
        return a**2 * (old.covariance(p, q) + transfer_gp._LEVEL_VARIANCE)

    K = covariance(x, x) + noise * torch.eye(n)
    weights = torch.linalg.solve(K, covariance(x, z))
    mean = a * old.basis(z) + weights.mT @ (y - a * old.basis(x))
    variance = covariance(z, z).diagonal() - (covariance(x, z) * weights).sum(0)
    scale, shift = model.outcome_transform.stdvs, model.outcome_transform.means
    found = point_moments(model, test)
    assert found is not None
    torch.testing.assert_close(found.mean, (mean * scale + shift).flatten())
    torch.testing.assert_close(
        found.variance, (variance * scale**2).flatten(), rtol=1e-6, atol=1e-9
    )
    posterior = model.posterior(test.unsqueeze(-2))
    torch.testing.assert_close(posterior.mean.flatten(), found.mean)


@pytest.mark.parametrize("known", [False, True])
def test_points_alone_are_those_of_the_joint_posterior(
    old: OldStudiesMean, known: bool
) -> None:
    X, Y = points(9)
    Yvar = torch.linspace(0.01, 0.1, 9).double().unsqueeze(-1) if known else None
    model, test = TransferGP(X, Y, old, Yvar), SPACE.sample(24, seed=7)
    alone, together = test.clone().requires_grad_(), test.clone().requires_grad_()
    batches = model.posterior(alone.reshape(4, 6, 1, -1))
    assert batches.mean.shape == batches.variance.shape == (4, 6, 1, 1)
    assert batches.rsample(torch.Size([3])).shape == (3, 4, 6, 1, 1)
    joint = model.posterior(together)
    for name in ("mean", "variance"):
        found, expected = getattr(batches, name), getattr(joint, name)
        torch.testing.assert_close(
            found.flatten(), expected.flatten(), rtol=1e-6, atol=1e-9
        )
        found.sum().backward(retain_graph=True)
        expected.sum().backward(retain_graph=True)
    torch.testing.assert_close(alone.grad, together.grad, rtol=1e-6, atol=1e-7)
    in_closed_form = point_moments(model, test, gradient=True)
    assert in_closed_form is not None and alone.grad is not None
    gradient = in_closed_form.mean_gradient + in_closed_form.variance_gradient
    torch.testing.assert_close(gradient, alone.grad, rtol=1e-6, atol=1e-7)


def test_new_data_may_have_gradients(old: OldStudiesMean) -> None:
    model, test = TransferGP(*points(9), old), SPACE.sample(5, seed=7)
    X, Y = SPACE.sample(2, seed=8).requires_grad_(), torch.zeros(2, 1).double()
    model.posterior(test)
    new = model.condition_on_observations(X, Y)
    with torch.no_grad():  # keeps nothing without gradients
        new.posterior(test.unsqueeze(-2))
    for _ in range(2):
        mean = new.posterior(test.unsqueeze(-2)).mean
        (slope,) = torch.autograd.grad(mean.sum(), X, retain_graph=True)
        assert slope.abs().sum() > 0.0
    assert point_moments(new, test) is None  # they know no gradients of data


def test_hyperparameters_may_have_gradients(old: OldStudiesMean) -> None:
    model, test = TransferGP(*points(9), old), SPACE.sample(5, seed=7)
    model.requires_grad_(True)
    for _ in range(2):  # nothing is cached of a graph
        model.posterior(test.unsqueeze(-2)).mean.sum().backward()
    assert model.mean_module.raw_slope.grad is not None


def test_the_scale_has_the_largest_evidence(old: OldStudiesMean) -> None:
    """With one more outcome of variance a^2, the prior of a."""
    X, Y = points(9)
    model = TransferGP(X, Y, old)
    x, y, a = transformed(X), model.train_targets, model.covar_module.scale
    K = old.covariance(x, x) + transfer_gp._LEVEL_VARIANCE
    K = K + model.likelihood.noise / a**2 * torch.eye(9)

    def evidence(scale: Tensor) -> Tensor:
        residual = y / scale - old.basis(x)
        square = residual @ torch.linalg.solve(K, residual) + scale**-2
        return -0.5 * square - 10 * scale.log()

    trial = a.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(evidence(trial), trial)
    assert slope.abs() < 1e-6
    assert evidence(a) > max(evidence(0.9 * a), evidence(1.1 * a))


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_odds_are_those_of_the_definition(old: OldStudiesMean, n: int) -> None:
    model = TransferGP(*points(n), old)
    y, x = model.train_targets, transformed(points(n)[0])
    t = torch.logspace(-4, 4, 20_000, dtype=torch.float64)
    read = old.columns.read(x)
    k = old.columns.covariance(read, read, old.inverse_lengthscale)
    common, own, noise = old.variances
    pairs = (old.covariance(x, x), old.basis(x)), ((common + own) * k, 0.0 * y)
    found = []
    for K, h in pairs:
        K = K + transfer_gp._LEVEL_VARIANCE + noise * torch.eye(n)
        residual = t[:, None] * y - h
        square = (residual * torch.linalg.solve(K, residual.mT).mT).sum(-1)
        density = (n + 1) * t.log() - 0.5 * (square + t**2) - 0.5 * K.logdet()
        found.append(torch.trapezoid(density.exp(), t).log())
    # the integrals are Laplace's: 1 / (12 n) each, most of which cancels
    assert float(found[0] - found[1]) == pytest.approx(model.log_odds(), abs=0.02)


def test_known_noise_explains_outcomes(old: OldStudiesMean) -> None:
    """a maximises the evidence of ``y ~ N(a h, a^2 K + noise)`` and of its prior."""
    X, Y = points(9)
    test, scales = SPACE.sample(20, seed=7), []
    for size in (1e-4, 0.01, 1.0, 1e4):
        Yvar = size * torch.linspace(0.1, 1.0, 9).double().unsqueeze(-1)
        model = TransferGP(X, Y, old, Yvar)
        x, y, a = transformed(X), model.train_targets, model.covar_module.scale
        scale = model.outcome_transform.stdvs.squeeze(-1)
        least = 0.03 * old.variances[2]
        K = old.covariance(x, x) + transfer_gp._LEVEL_VARIANCE + least * torch.eye(9)
        noise = (Yvar / scale**2).flatten()

        tried = [
            torch.distributions.MultivariateNormal(
                t * old.basis(x), t**2 * K + noise.diag()
            ).log_prob(y)
            - 0.5 / t**2
            - t.log()
            for t in (0.98 * a, a, 1.02 * a)
        ]
        assert tried[1] > max(tried[0], tried[2])
        found_noise, expected = model.likelihood.noise, noise + least * a**2
        torch.testing.assert_close(found_noise, expected, atol=1e-6, rtol=0.0)
        scales.append(float(a))
        found = point_moments(model, test)
        assert found is not None and (found.variance > 0.0).all()
    without = TransferGP(X, Y, old).covar_module.scale
    assert scales[0] == pytest.approx(float(without), rel=0.01)
    # nothing but the prior is left, whose mode is 1
    assert scales[-1] == pytest.approx(1.0, abs=0.1)


def test_old_studies_that_mislead_lose_their_weight(old: OldStudiesMean) -> None:
    wrong = OldStudiesMean.from_studies([(X, -Y) for X, Y in make_studies(6)], SPACE)
    for n in (3, 4, 5, 12):
        right, misled = (TransferGP(*points(n), mean) for mean in (old, wrong))
        assert n == 12 or right.log_odds() > 0.0 > misled.log_odds()
    assert leave_one_out_weights([right, misled])[0] > 0.99
    odds = [1.0, 1e30]  # what is known before counts, too
    assert leave_one_out_weights([right, misled], odds)[0] < 0.5


def test_in_a_loop(old: OldStudiesMean) -> None:
    X = old.starts(1)
    Y = outcome(X)[:, None]
    for _ in range(5):
        told = Y.clone()
        if len(told) > 2:
            told[1] = -torch.inf  # a failure
        model = TransferGP(X, told, old, outcome_transform=ClipTail(tail="log"))
        acqf = LogExpectedImprovement(model, best_f=Y.max())
        x = optimize_acqf_paths(acqf, space=SPACE, X_avoid=X)[0]
        X, Y = torch.cat([X, x]), torch.cat([Y, outcome(x)[:, None]])
    assert Y.max() > -0.15  # of random points the best of 200 is worse


def test_copies_and_fantasies(old: OldStudiesMean) -> None:
    X, Y = points(6)
    model, test = TransferGP(X, Y, old), SPACE.sample(5, seed=1)
    before = point_moments(model, test)
    again = point_moments(pickle.loads(pickle.dumps(model)), test)
    assert before is not None and again is not None
    torch.testing.assert_close(again.mean, before.mean)
    other = TransferGP(X, Y * 2.0 + 1.0, old)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.covar_module.scale, model.covar_module.scale)
    inner = model.transform_inputs(test)
    with torch.no_grad():
        means = model(inner.unsqueeze(-2)).mean.flatten()
    after = point_moments(model.get_fantasy_model(inner, means), test)
    assert after is not None
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-4, atol=1e-4)
    assert (after.variance < before.variance).all()


def test_where_moments_have_no_closed_form(old: OldStudiesMean) -> None:
    X, Y = points(6)
    assert point_moments(TransferGP(X, Y, old), X.float()) is None
    sampler = SobolQMCNormalSampler(torch.Size([3]))
    fantasies = TransferGP(X, Y, old).fantasize(SPACE.sample(2, seed=1), sampler)
    assert point_moments(fantasies, X) is None
    assert fantasies.posterior(X).mean.shape == (3, 6, 1)
    with RehearsedDevice():
        model = TransferGP(X.to("meta"), Y.to("meta"), old)
        assert point_moments(model, X.to("meta")) is None
        mean = model.posterior(X.to("meta")).mean.cpu()
    torch.testing.assert_close(mean, TransferGP(X, Y, old).posterior(X).mean)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("old", None, "old: expected an OldStudiesMean, got NoneType"),
        ("train_Y", torch.zeros(3, 2), "train_X, train_Y: expected n x d"),
        ("train_X", torch.zeros(2, 3, 5), "train_X, train_Y: expected"),
        ("train_Y", torch.full((3, 1), torch.nan), "train_Y: expected finite outcomes"),
        ("train_Yvar", torch.full((3, 1), torch.inf), "train_Yvar: .*, got inf in"),
        ("train_Yvar", torch.ones(3), "train_Yvar: expected the shape of train_Y"),
    ],
)
def test_errors(old: OldStudiesMean, name: str, value: Any, message: str) -> None:
    X, Y = points(3)
    with pytest.raises(ValueError, match=message):
        value = value if value is None else value.double()
        TransferGP(**{"train_X": X, "train_Y": Y, "old": old, name: value})
