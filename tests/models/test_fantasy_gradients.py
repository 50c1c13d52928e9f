"""Gradients in the points of fantasies, by finite differences."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import qKnowledgeGradient
from botorch.acquisition.active_learning import qNegIntegratedPosteriorVariance
from botorch.acquisition.multi_step_lookahead import qMultiStepLookahead
from botorch.models import SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel
from torch import Tensor

from botorch_structured.models import (
    ConditionalGP,
    DecomposedGP,
    MonotoneGP,
    SampledGP,
    TreedGP,
    TreeStructuredGP,
)

pytestmark = pytest.mark.usefixtures("double")


def points(n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, 3, generator=generator, dtype=torch.float64)


def steep(x: Tensor) -> Tensor:
    return torch.where(x[:, :1] > 0.5, (20.0 * x[:, 1:2]).sin(), 0.2 * x[:, 2:])


X = points(24, 0)
Y = (3.0 * X[:, :1]).sin() + X[:, 1:2] ** 2 + 0.3 * (7.0 * X[:, 2:]).cos()


def treed() -> TreedGP:
    model = TreedGP(X, steep(X))
    assert model.partition.num_leaves > 1
    return model


def sampled(make: Callable[[], Any]) -> SampledGP:
    models = [make(), make()]
    for module in models[1].modules():
        if isinstance(module, MaternKernel):
            module.lengthscale = 0.7 * module.lengthscale.detach()
    return SampledGP(models)


def single() -> SingleTaskGP:
    return SingleTaskGP(X, Y, covar_module=MaternKernel(ard_num_dims=3))


def monotone() -> MonotoneGP:
    kernel = MaternKernel(ard_num_dims=3)
    model = MonotoneGP(X, Y, {0: -1, 1: 1}, covar_module=kernel, virtual_X="grid")
    assert model.has_sites
    return model


def dense_tree() -> TreeStructuredGP:
    return TreeStructuredGP(X.clone(), Y, {}, covar_module=MaternKernel())


MAKE: dict[str, Callable[[], Any]] = {
    "monotone": monotone,
    "one leaf": lambda: TreedGP(X, Y, max_leaves=1),
    "dense": dense_tree,
    "decomposed": lambda: DecomposedGP(monotone(), single()),
    "sampled": lambda: sampled(single),
    "sampled monotone": lambda: sampled(monotone),
    "treed": treed,
    "conditional": lambda: ConditionalGP(X, Y, {}),
}


def acquisitions(model: Any) -> dict[str, Any]:
    return {
        "variance": qNegIntegratedPosteriorVariance(model, points(9, 3)),
        "lookahead": qMultiStepLookahead(
            model, batch_sizes=[1, 1], num_fantasies=[1, 1]
        ),
        "gradient": qKnowledgeGradient(model, num_fantasies=2),
    }


@pytest.mark.parametrize("name", ["variance", "lookahead", "gradient"])
@pytest.mark.parametrize("kind", MAKE)
def test_gradients_are_those_of_values(kind: str, name: str) -> None:
    model = MAKE[kind]()
    acqf = acquisitions(model.eval())[name]
    q = 2 if name == "variance" else acqf.get_augmented_q_batch_size(2)
    at = points(q, 11).unsqueeze(0)
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


@pytest.mark.parametrize("kind", ["two", *MAKE])
def test_gradients_through_fantasies_of_fantasies(kind: str) -> None:
    make = MAKE | {"two": lambda: DecomposedGP(single(), single())}
    if kind.startswith("sampled"):
        pytest.skip("SampledGP has no fantasies of fantasies")
    model = make[kind]().eval()
    first, second = (SobolQMCNormalSampler(torch.Size([2]), seed=i) for i in range(2))

    def value(at: Tensor) -> Tensor:
        once = model.fantasize(at, first)
        next_ = (0.9 * at.flip(-2) + 0.05).expand(2, *at.shape)
        twice = once.fantasize(next_, second)
        return twice.posterior(points(5, 3)).mean.sin().sum()

    at = points(2, 11).unsqueeze(0)
    variable = at.clone().requires_grad_()
    value(variable).backward()
    assert variable.grad is not None
    move = torch.randn(at.shape, generator=torch.Generator().manual_seed(0))
    step = 1e-5
    up, down = (value(at + s * step * move.to(at)) for s in (1.0, -1.0))
    numeric = ((up - down) / (2.0 * step)).item()
    assert (variable.grad * move).sum().item() == pytest.approx(numeric, rel=1e-4)
