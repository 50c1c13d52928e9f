"""Noise that fantasies are given.

Tree models condition on it. Other models with inferred noise take it as GPyTorch
does.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition.joint_entropy_search import qJointEntropySearch
from botorch.models.transforms import Normalize
from botorch.sampling import IIDNormalSampler
from botorch.settings import propagate_grads
from conformance.model_test_case import PlusMinus
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from botorch_structured.kernels import ConditionalKernel
from botorch_structured.models import (
    ConditionalGP,
    MonotoneGP,
    TreedGP,
    TreeStructuredGP,
)
from botorch_structured.spaces import ParameterTree

pytestmark = pytest.mark.usefixtures("double")

TREE = {0: {0.0: [1], 1.0: [2]}}


def points(*shape: int, seed: int = 1) -> Tensor:
    X = torch.rand(*shape, 3, generator=torch.Generator().manual_seed(seed))
    X[..., 0] = X[..., 0].round()
    return X


def data(m: int = 1, batch: tuple[int, ...] = (), n: int = 40) -> tuple[Tensor, Tensor]:
    X = points(*batch, n, seed=0)
    g = torch.Generator().manual_seed(2)
    steep = torch.where(X[..., 2] > 0.5, (20.0 * X[..., 2]).sin(), 0.1 * X[..., 1])
    Y = torch.stack([(1 + i) * steep + X[..., 1] for i in range(m)], -1)
    return X, Y + 0.05 * torch.randn(Y.shape, generator=g)


def dense_tree(X: Tensor, Y: Tensor, **kwargs: Any) -> TreeStructuredGP:
    batch = X.shape[:-2] + (Y.shape[-1:] if Y.shape[-1] > 1 else ())
    base = ConditionalKernel(MaternKernel(batch_shape=batch), ParameterTree(3, TREE))
    kernel = ScaleKernel(base, batch_shape=batch)
    return TreeStructuredGP(X, Y, TREE, covar_module=kernel, **kwargs)


def treed(X: Tensor, Y: Tensor, **kwargs: Any) -> TreedGP:
    model = TreedGP(X, Y, **kwargs)
    assert model.partition.num_leaves > 1
    return model


def noisy(model: Any, noise: float = 0.3) -> Any:
    if isinstance(model.likelihood, GaussianLikelihood):  # leaves have their own
        model.likelihood.noise = noise
    return model.eval()


MAKE: dict[str, Callable[..., Any]] = {
    "tree": lambda X, Y, **kw: TreeStructuredGP(X, Y, TREE, **kw),
    "conditional": lambda X, Y, **kw: ConditionalGP(X, Y, TREE, **kw),
    "dense": dense_tree,
    "treed": treed,
    "published": TreedGP.as_published,
    "one leaf": lambda X, Y, **kw: TreedGP(X, Y, max_leaves=1, **kw),
    "monotone": lambda X, Y, **kw: MonotoneGP(X, Y, {1: 1}, **kw),
}
KINDS = pytest.mark.parametrize("kind", MAKE)
TREES = pytest.mark.parametrize("kind", ["tree", "conditional"])


@torch.no_grad()  # what has a graph cannot be copied
def fantasies(model: Any, X: Tensor, noise: Tensor | None = None) -> Any:
    return model.fantasize(X, PlusMinus(), observation_noise=noise)


def given_by_hand(
    model: Any, x: Tensor, new_X: Tensor, new_Y: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Moments at ``x`` of the model given more outcomes, by dense algebra."""
    q = x.shape[-2]
    batch = torch.broadcast_shapes(x.shape[:-2], new_X.shape[:-2])
    both = [part.expand(*batch, *part.shape[-2:]) for part in (x, new_X)]
    law = model(torch.cat(both, dim=-2))
    mean, covariance = law.mean, law.covariance_matrix
    noisy = covariance[..., q:, q:] + torch.diag_embed(noise)
    gain = torch.linalg.solve(noisy, covariance[..., q:, :q]).mT
    residual = (new_Y - mean[..., q:]).unsqueeze(-1)
    mean = mean[..., :q] + (gain @ residual).squeeze(-1)
    return mean, covariance[..., :q, :q] - gain @ covariance[..., q:, :q]


def check(model: Any, x: Tensor, expected: tuple[Tensor, Tensor]) -> None:
    law = model(x)
    for found, wanted in zip((law.mean, law.covariance_matrix), expected, strict=True):
        wanted = wanted.expand_as(found)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


@TREES
@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
def test_the_mean_and_the_variance_are_given_the_noise(
    kind: str, m: int, batch: tuple[int, ...]
) -> None:
    """Fantasies, and fantasies of these with the model's own noise."""
    model = noisy(MAKE[kind](*data(m, batch), outcome_transform=None))
    new_X, x = points(3, *batch, 2), points(7, seed=4)
    noise = torch.tensor([[0.5, 2.0], [1e-4, 0.1]])[:, :m]
    first = fantasies(model, new_X, noise)
    assert len(first.train_targets) == 2

    def columns(values: Tensor) -> Tensor:  # GPyTorch's order of dimensions
        return values.unsqueeze(-3) if m > 1 else values

    variances = noise.mT if m > 1 else noise[:, 0]
    n = model.train_targets.shape[-1]
    new_Y = first.train_targets[..., n:]
    expected = given_by_hand(model, x, columns(new_X), new_Y, variances)
    check(first, x, expected)
    # averaged over fantasies, the mean is that before
    before, after = model.posterior(x), first.posterior(x)
    torch.testing.assert_close(
        after.mean.mean(0), before.mean.expand_as(after.mean[0]), rtol=1e-6, atol=1e-8
    )
    more = points(2, 3, *batch, 1, seed=5)
    second = fantasies(first, more)
    new_Y = second.train_targets[..., n:]
    twice = torch.cat([new_X.expand(2, *new_X.shape), more], dim=-2)
    last = model.posterior(more, observation_noise=True).variance
    last = last - model.posterior(more).variance  # the model's own noise
    last = last.mT if m > 1 else last.squeeze(-1)
    variances = torch.cat([variances.expand(*last.shape[:-1], -1), last], dim=-1)
    expected = given_by_hand(model, x, columns(twice), new_Y, variances)
    check(second, x, expected)


@KINDS
def test_known_noise_is_concatenated(kind: str) -> None:
    X, Y = data()
    Yvar = torch.full_like(Y, 0.0025)
    model = MAKE[kind](X, Y, train_Yvar=Yvar, outcome_transform=None).eval()
    new_X, more, x = points(3, 1), points(2, 3, 1, seed=5), points(7, seed=4)
    noise = torch.tensor([[0.7]])
    first = fantasies(model, new_X, noise)
    second = fantasies(first, more, 0.1 * noise)
    new_Y = second.train_targets[..., 40:]
    twice = torch.cat([new_X.expand(2, -1, -1, -1), more], dim=-2)
    check(second, x, given_by_hand(model, x, twice, new_Y, torch.tensor([0.7, 0.07])))


@KINDS
def test_gradients_and_raw_inputs(kind: str) -> None:
    """An input transform is undone and done again, and gradients flow."""
    bounds = torch.tensor([[0.0] * 3, [1.0, 1.0, 2.0]])
    transform = Normalize(3, bounds=bounds)
    model = noisy(MAKE[kind](*data(n=60), input_transform=transform))
    new_X, x = points(3, 1).requires_grad_(), points(5, seed=4)
    noise = torch.full((1, 1), 0.3, requires_grad=True)
    with propagate_grads(True):
        sampler = IIDNormalSampler(torch.Size([2]), seed=0)
        new = model.fantasize(
            new_X, sampler, observation_noise=noise, propagate_grads=True
        )
        posterior = new.posterior(x)
        total = posterior.mean.sum() + posterior.variance.sum()
        gradients = torch.autograd.grad(total, [new_X, noise])
    assert all(g.isfinite().all() and g.abs().sum() > 0 for g in gradients)
    fixed = copy.deepcopy(model).fantasize(
        new_X.detach(), sampler, observation_noise=noise.detach()
    )
    expected = fixed.posterior(x)
    torch.testing.assert_close(posterior.mean, expected.mean)
    torch.testing.assert_close(posterior.variance, expected.variance)


@TREES
def test_joint_entropy_search_takes_optima_for_noiseless(kind: str) -> None:
    model = noisy(MAKE[kind](*data(), outcome_transform=None))
    best = points(2, seed=6), torch.full((2, 1), 2.5)
    x = points(9, 1, seed=8)
    with torch.no_grad():
        acqf = qJointEntropySearch(model, *best)
        given = best[0].unsqueeze(-2), best[1], torch.tensor([1e-4])
        at = x.unsqueeze(-3)
        check(acqf.conditional_model, at, given_by_hand(model, at, *given))
        noisily = qJointEntropySearch(model, *best, condition_noiseless=False)
        assert (acqf(x) - noisily(x)).abs().max() > 1e-6


def test_known_noise_of_one_row() -> None:
    X, Y = data(n=1)
    Yvar = torch.full_like(Y, 0.05)
    model = TreeStructuredGP(X, Y, TREE, train_Yvar=Yvar, outcome_transform=None)
    new_X, x = points(3, 1), points(7, seed=4)
    new = fantasies(model.eval(), new_X, torch.tensor([[0.7]]))
    new_Y = new.train_targets[..., 1:]
    check(new, x, given_by_hand(model, x, new_X, new_Y, torch.tensor([0.7])))
