"""Units of outcomes do not matter, and awkward data are not warned of, in any model."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.model import ModelList
from botorch.models.transforms import Standardize
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from torch import Tensor

from botorch_structured import models
from botorch_structured.kernels import RandomFourierFeatures
from botorch_structured.models import ConditionalGP, TreedGP, TreeStructuredGP
from botorch_structured.spaces import ParameterTree

TREE = ParameterTree(4, {0: {0.0: [1], 1.0: [2]}}, values={0: [0.0, 1.0]})
pytestmark = pytest.mark.usefixtures("double")


def data(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Without noise: variances at data are at the floor."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 4, generator=g)
    X[:, 0] = X[:, 0].round()
    return X, torch.sin(3.0 * X[:, 1:2]) + X[:, 3:] + X[:, :1]


def ablr(X: Tensor, Y: Tensor, task: int | None, **kwargs: Any) -> Any:
    features = RandomFourierFeatures(20, num_dims=3, seed=0)
    return models.MultiTaskABLR(X, Y, task, feature_map=features, **kwargs)


def monotone(X: Tensor, Y: Tensor, **kwargs: Any) -> Any:
    kernel = ScaleKernel(RBFKernel())
    return models.MonotoneGP(X, Y, monotone={3: 1}, covar_module=kernel, **kwargs)


def decomposed(X: Tensor, Y: Tensor, **kwargs: Any) -> Any:
    parts = ConditionalGP(X, Y, TREE, **kwargs), TreedGP(X, 3.0 * Y, **kwargs)
    return models.DecomposedGP(*parts)


def both(Y: Tensor, scale: float) -> Tensor:
    return torch.cat([Y, scale * Y.flip(0)], -1)


MODELS: dict[str, Callable[..., Any]] = {
    "conditional": lambda X, Y, **kw: ConditionalGP(X, Y, TREE, **kw),
    "tree": lambda X, Y, **kw: TreeStructuredGP(X, Y, TREE, **kw),
    "treed": TreedGP,
    "published": TreedGP.as_published,
    "monotone": monotone,
    "decomposed": decomposed,
    "tasks": lambda X, Y, **kw: ablr(X, Y, 0, output_tasks=[0, 1], **kw),
    "signals": lambda X, Y, **kw: ablr(X[:, 1:], both(Y, -2.0), None, **kw),
    "outputs": lambda X, Y, **kw: ConditionalGP(X, both(Y, 1e3), TREE, **kw),
}
ALL = pytest.mark.parametrize("name", MODELS)


def points_of(name: str, X: Tensor) -> Tensor:
    return X[:, 1:] if name in ("tasks", "signals") else X


@ALL
def test_no_warning(name: str) -> None:
    """Repeated points, no noise, a scale of 1e-7, points that are known."""
    X, Y = (torch.cat([part, part[:6]]) for part in data(20))
    X_test = points_of(name, torch.cat([data(5, seed=1)[0], X[:8]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # advice on the data, which are as they are on purpose
        warnings.filterwarnings("ignore", ".*unit cube.*")
        model = MODELS[name](X, 1e-7 * Y)
        several = name == "decomposed"
        mll = SumMarginalLogLikelihood if several else ExactMarginalLogLikelihood
        options = {"options": {"maxiter": 15}}
        with warnings.catch_warnings():  # of the fit, which is stopped early
            warnings.filterwarnings("ignore", ".*OptimizationWarning|.*optim.*")
            fit_gpytorch_mll(mll(model.likelihood, model), optimizer_kwargs=options)
        posteriors = [
            model.posterior(X_test),
            model.posterior(X_test.unsqueeze(-2)),
            model.posterior(X_test, observation_noise=True),
        ]
        if name != "tasks":  # an outcome is of one task
            sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
            fantasy = model.fantasize(X_test[:3].unsqueeze(-2), sampler)
            posteriors.append(fantasy.posterior(X_test))
        for posterior in posteriors:
            assert (posterior.variance > 0).all()
            assert (posterior.variance[..., 0].sqrt() < 1e-5).all()


def moments(name: str, scale: float, shift: float) -> list[Tensor]:
    """Means and variances in units of ``scale``, from ``shift`` on."""
    X, Y = data(14)
    model = MODELS[name](X, scale * Y + shift).eval()
    X_test = points_of(name, torch.cat([data(6, seed=1)[0], X[:3]]))
    found = [model.posterior(X_test), model.posterior(X_test, observation_noise=True)]
    if name == "tree":
        found.append(model.path_posterior(X_test))
    values = []
    for posterior in found:
        values += [(posterior.mean - shift) / scale, posterior.variance / scale**2]
    return values


@ALL
def test_equivariance(name: str) -> None:
    """Y -> a Y + b: means as a m + b, standard deviations as |a| s."""
    expected = moments(name, 1.0, 0.0)
    assert (expected[1] > 0).all()
    several = name in ("decomposed", "signals", "outputs")  # each with its own scale
    for scale in (1e-12, 1e-8, 1e-6, 1e-3, 1e6, 1e12):
        found = moments(name, scale, 0.0 if several else 7.0 * scale)
        for a, b in zip(found, expected, strict=True):
            # eps times the condition number of a covariance with little noise
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@ALL
@pytest.mark.parametrize(
    ("dtype", "shift", "scale"),
    [(torch.float32, 1e3, 1e-3), (torch.float64, 1e3, 1e-10)],
)
def test_small_differences(
    name: str, dtype: torch.dtype, shift: float, scale: float
) -> None:
    """Of outcomes far from zero, down to some units in their last place."""
    X, Y = data(14)
    near = (scale * Y + shift).to(dtype)
    X_test = points_of(name, data(6, seed=1)[0].to(dtype))
    sds = []
    for outcomes, unit in ((near, scale), ((near.double() - shift) / scale, 1.0)):
        model = MODELS[name](X.to(dtype), outcomes.to(dtype)).eval()
        sds.append(model.posterior(X_test).variance.detach().sqrt() / unit)
    # in other units outcomes have other digits
    torch.testing.assert_close(*sds, rtol=0.2, atol=1e-3)


@ALL
def test_samples(name: str) -> None:
    """At repeated points, where a factorisation needs jitter, and by their spread."""
    X, Y = data(14)
    X_test = points_of(name, X[:4].repeat(2, 1))
    spreads = []
    for scale in (1.0, 1e-8, 1e8):
        posterior = MODELS[name](X, scale * Y).eval().posterior(X_test)
        torch.manual_seed(0)
        samples = posterior.rsample(torch.Size([64])) - posterior.mean
        spreads.append(float(samples.detach().std()) / scale)
    assert spreads[1:] == pytest.approx([spreads[0]] * 2, rel=1e-3)


def test_one_output_of_a_list() -> None:
    """Given variances of noise, BoTorch asks each model for its place in the list."""
    X, Y = data(14)
    two = [ConditionalGP(X, y, TREE).eval() for y in (Y, Y.cos())]
    noise = torch.rand(3, 2)
    for some in (two, [models.SampledGP([model]) for model in two]):
        listed = ModelList(*some).posterior(X[:3], observation_noise=noise)
        for i, model in enumerate(some):
            alone = model.posterior(X[:3], observation_noise=noise[:, i : i + 1])
            assert torch.equal(listed.posteriors[i].variance, alone.variance)


@ALL
def test_equal_outcomes_are_as_in_botorch(name: str) -> None:
    X, Y = data(14)
    model = MODELS[name](X, torch.full_like(Y, 0.1)).eval()
    posterior = model.posterior(points_of(name, X))
    level = 0.4 if name == "decomposed" else 0.1
    if name != "monotone":  # which has been told that they increase
        assert ((posterior.mean[..., 0] - level).abs() < 1e-6).all()
    assert torch.isfinite(posterior.variance).all()
    if name in ("conditional", "tree", "treed", "published"):
        assert torch.equal(model.outcome_transform.stdvs, torch.ones(1, 1))


@ALL
def test_targets_that_would_be_rounded_are_refused(name: str) -> None:
    X, Y = data(14)
    if name not in ("decomposed", "tasks", "signals", "outputs"):
        with pytest.raises(ValueError, match="train_Y: expected .* got"):
            MODELS[name](X, 1e-9 * Y, outcome_transform=Standardize(m=1))
    with pytest.raises(ValueError, match="train_Y: expected .* got"):
        MODELS[name](X, 1e-9 * Y, outcome_transform=None)
    MODELS[name](X, torch.zeros_like(Y), outcome_transform=None)
