"""Fantasies: the noise they are given, and gradients in their points.

Tree models condition on the noise. Other models with inferred noise take it as
GPyTorch does.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import qKnowledgeGradient
from botorch.acquisition.active_learning import qNegIntegratedPosteriorVariance
from botorch.acquisition.joint_entropy_search import qJointEntropySearch
from botorch.acquisition.multi_step_lookahead import qMultiStepLookahead
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.sampling import IIDNormalSampler
from botorch.settings import propagate_grads
from conformance.model_test_case import PlusMinus
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from botorch_structured import models
from botorch_structured.kernels import ConditionalKernel
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


def dense_tree(X: Tensor, Y: Tensor, **kwargs: Any) -> Any:
    batch = X.shape[:-2] + (Y.shape[-1:] if Y.shape[-1] > 1 else ())
    base = ConditionalKernel(MaternKernel(batch_shape=batch), ParameterTree(3, TREE))
    kernel = ScaleKernel(base, batch_shape=batch)
    return models.TreeStructuredGP(X, Y, TREE, covar_module=kernel, **kwargs)


def treed(X: Tensor, Y: Tensor, **kwargs: Any) -> Any:
    model = models.TreedGP(X, Y, **kwargs)
    assert model.partition.num_leaves > 1
    return model


def noisy(model: Any, noise: float = 0.3) -> Any:
    if isinstance(model.likelihood, GaussianLikelihood):  # leaves have their own
        model.likelihood.noise = noise
    return model.eval()


MAKE: dict[str, Callable[..., Any]] = {
    "tree": lambda X, Y, **kw: models.TreeStructuredGP(X, Y, TREE, **kw),
    "conditional": lambda X, Y, **kw: models.ConditionalGP(X, Y, TREE, **kw),
    "dense": dense_tree,
    "treed": treed,
    "published": models.TreedGP.as_published,
    "one leaf": lambda X, Y, **kw: models.TreedGP(X, Y, max_leaves=1, **kw),
    "monotone": lambda X, Y, **kw: models.MonotoneGP(X, Y, {1: 1}, **kw),
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
    new_Y = first.train_targets[..., 40:]
    check(first, x, given_by_hand(model, x, columns(new_X), new_Y, variances))
    more = points(2, 3, *batch, 1, seed=5)
    second = fantasies(first, more)
    new_Y = second.train_targets[..., 40:]
    twice = torch.cat([new_X.expand(2, *new_X.shape), more], dim=-2)
    last = model.posterior(more, observation_noise=True).variance
    last = last - model.posterior(more).variance  # the model's own noise
    last = last.mT if m > 1 else last.squeeze(-1)
    variances = torch.cat([variances.expand(*last.shape[:-1], -1), last], dim=-1)
    check(second, x, given_by_hand(model, x, columns(twice), new_Y, variances))


@pytest.mark.parametrize(("kind", "n"), [("tree", 1), *((kind, 40) for kind in MAKE)])
def test_known_noise_is_concatenated(kind: str, n: int) -> None:
    X, Y = data(n=n)
    Yvar = torch.full_like(Y, 0.0025)
    model = MAKE[kind](X, Y, train_Yvar=Yvar, outcome_transform=None).eval()
    new_X, more, x = points(3, 1), points(2, 3, 1, seed=5), points(7, seed=4)
    noise = torch.tensor([[0.7]])
    second = fantasies(fantasies(model, new_X, noise), more, 0.1 * noise)
    new_Y = second.train_targets[..., n:]
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


# -- gradients in their points, by finite differences ---------------------------------


def uniform(n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, 3, generator=generator, dtype=torch.float64)


X = uniform(24, 0)
Y = (3.0 * X[:, :1]).sin() + X[:, 1:2] ** 2 + 0.3 * (7.0 * X[:, 2:]).cos()
STEEP = torch.where(X[:, :1] > 0.5, (20.0 * X[:, 1:2]).sin(), 0.2 * X[:, 2:])


def sampled(make: Callable[[], Any]) -> Any:
    two = [make(), make()]
    for module in two[1].modules():
        if isinstance(module, MaternKernel):
            module.lengthscale = 0.7 * module.lengthscale.detach()
    return models.SampledGP(two)


def single() -> SingleTaskGP:
    return SingleTaskGP(X, Y, covar_module=MaternKernel(ard_num_dims=3))


def monotone() -> Any:
    kernel = MaternKernel(ard_num_dims=3)
    signs = {0: -1, 1: 1}
    model = models.MonotoneGP(X, Y, signs, covar_module=kernel, virtual_X="grid")
    assert model.has_sites
    return model


WITH_GRADIENTS: dict[str, Callable[[], Any]] = {
    "monotone": monotone,
    "one leaf": lambda: models.TreedGP(X, Y, max_leaves=1),
    "dense": lambda: models.TreeStructuredGP(
        X.clone(), Y, {}, covar_module=MaternKernel()
    ),
    "decomposed": lambda: models.DecomposedGP(monotone(), single()),
    "sampled": lambda: sampled(single),
    "sampled monotone": lambda: sampled(monotone),
    "treed": lambda: treed(X, STEEP),
    "conditional": lambda: models.ConditionalGP(X, Y, {}),
}
ACQUISITIONS: dict[str, Callable[[Any], Any]] = {
    "variance": lambda model: qNegIntegratedPosteriorVariance(model, uniform(9, 3)),
    "lookahead": lambda model: qMultiStepLookahead(
        model, batch_sizes=[1, 1], num_fantasies=[1, 1]
    ),
    "gradient": lambda model: qKnowledgeGradient(model, num_fantasies=2),
}


@pytest.mark.parametrize("name", ACQUISITIONS)
@pytest.mark.parametrize("kind", WITH_GRADIENTS)
def test_gradients_are_those_of_values(kind: str, name: str) -> None:
    model = WITH_GRADIENTS[kind]().eval()
    acqf = ACQUISITIONS[name](model)
    q = 2 if name == "variance" else acqf.get_augmented_q_batch_size(2)
    at = uniform(q, 11).unsqueeze(0)
    # twice: nothing that the first ``backward`` has used up is needed again
    for _ in range(2):
        variable = at.clone().requires_grad_()
        acqf(variable).sum().backward()
    gradient = variable.grad
    assert gradient is not None
    step = 1e-5
    for i in range(0, at.numel(), 1 + at.numel() // 7):
        move = torch.zeros(at.numel())
        move[i] = step
        up, down = (acqf(at + s * move.view_as(at)).sum() for s in (1.0, -1.0))
        numeric = ((up - down) / (2.0 * step)).item()
        scale = gradient.abs().max().item()
        assert gradient.flatten()[i].item() == pytest.approx(
            numeric, rel=1e-4, abs=1e-5 * max(scale, 1e-3)
        )
    copy.deepcopy(model)  # no graph is left in it
