"""Moments of points one by one against the same by operations that autograd knows."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from botorch.models.kernels import CategoricalKernel
from botorch.models.transforms import Normalize
from botorch.models.transforms.input import (
    ChainedInputTransform,
    Log10,
    Warp,
)
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from hypothesis import given, settings
from leaf_models import point_moments, random_model, some_points
from strategies import seeds
from torch import Tensor

from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.models.tree import moments as module
from botorch_structured.spaces import ParameterTree

pytestmark = pytest.mark.usefixtures("double")


def close(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b.detach(), rtol=tolerance, atol=tolerance)


def moments_of(posterior: Any, X: Tensor) -> list[Tensor]:
    """Means and variances, and their gradients."""
    values = posterior.mean.flatten(), posterior.variance.flatten()
    slopes = []
    for value in values:
        slope = None
        if value.requires_grad:
            (slope,) = torch.autograd.grad(
                value.sum(), X, retain_graph=True, allow_unused=True
            )
        slopes.append(torch.zeros_like(X) if slope is None else slope)
    return [*values, *slopes]


def all_close(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    for a, b in zip(found, expected, strict=True):
        close(a, b, tolerance)


# -- of any points ------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [1, None])
@given(seeds)
@settings(max_examples=10)
def test_points_one_by_one_are_those_of_all_points(
    numbers: int | None, seed: int
) -> None:
    """With gradients, for optimisers and for autograd, on paths old and new.

    With room for the tables of one path, no more than one is looked at.
    """
    model = random_model(seed, n=12)
    with pytest.MonkeyPatch.context() as patched:
        if numbers is not None:
            patched.setattr(module, "_MAX_NUMBERS", numbers)
        for n in (9, 1, 40):
            X = some_points(model, n, seed + n).requires_grad_()
            expected = moments_of(model.posterior(X), X)
            all_close(moments_of(model.posterior(X.unsqueeze(1)), X), expected)
            all_close(point_moments(model, X.detach(), gradient=True), expected)
            without = point_moments(model, X.detach())
            assert without.mean_gradient is None
            close(without.mean, expected[0])
            if isinstance(model, TreeStructuredGP):
                expected = moments_of(model.path_posterior(X), X)
                found = point_moments(model, X.detach(), gradient=True, path=True)
                all_close(found, expected)


LATER: dict[str, Any] = {
    "train": lambda m: m.train(),
    "data": lambda m: m.set_train_data(m.train_inputs[0] / 2, m.train_targets * 2),
    "kernel": lambda m: m.covar_module.set_correlation("rbf"),
}


@pytest.mark.parametrize("wanted", ["hyperparameters", "points", "points twice"])
@pytest.mark.parametrize("later", LATER)
def test_a_later_state_of_the_model_has_no_influence(later: str, wanted: str) -> None:
    """On gradients of a posterior that was computed before."""
    X = 7.0 * torch.rand(14, 3, generator=torch.Generator().manual_seed(0))
    X[:, 0] = (X[:, 0] > 3.5).double()
    Y = X.sin().sum(-1, keepdim=True)

    def gradients(change: Any) -> list[Tensor]:
        transform = Normalize(3, indices=[1, 2])
        model = TreeStructuredGP(
            X, Y, {0: {0.0: [1], 1.0: [2]}}, input_transform=transform
        )
        model.covar_module.set_correlation("matern")
        at = (X[:5] + torch.tensor([0.0, 0.1, 0.1])).unsqueeze(1)
        at.requires_grad_(wanted != "hyperparameters")
        posterior = model.posterior(at)
        value = (posterior.mean + posterior.variance).sum()
        change(model)
        if wanted == "hyperparameters":
            value.backward()
            return [p.grad for p in model.parameters() if p.grad is not None]
        (g,) = torch.autograd.grad(value, at, create_graph=wanted != "points")
        if wanted == "points":
            return [g]
        return [g, *torch.autograd.grad(g.square().sum(), at)]

    expected = gradients(lambda model: None)
    assert any(g.abs().max() > 1e-3 for g in expected)
    all_close(gradients(LATER[later]), expected)


def test_threads_share_a_model() -> None:
    """Each of them meets paths without data that the others have not seen."""
    g = torch.Generator().manual_seed(0)
    X, test = torch.rand(40, 3, generator=g), torch.rand(300, 3, generator=g)
    X[:, 0] = torch.randint(3, (40,), generator=g).double()
    test[:, 0] = torch.randint(60, (300,), generator=g).double()
    tree = {0: {float(i): [1] for i in range(60)}}
    model = TreeStructuredGP(X, X[:, 1:2].sin(), tree, leaf_kernel="matern")
    model.likelihood.noise = 1e-2
    posterior = model.posterior(test.unsqueeze(1))
    expected = posterior.mean.flatten(), posterior.variance.flatten()
    model.train().eval()
    model.posterior(test[:1].unsqueeze(1))

    def work(seed: int) -> None:
        own = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(40):
                i = torch.randint(300, (3,), generator=own)
                found = model.posterior(test[i].unsqueeze(1))
                close(found.mean.flatten(), expected[0][i])
                close(found.variance.flatten(), expected[1][i])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


# -- of other kernels ---------------------------------------------------------------


def numbers(count: int, columns: list[int]) -> Any:
    return {"ard_num_dims": count, "active_dims": columns}


BASES = {
    "default": lambda: None,
    "categories alone": lambda: ScaleKernel(CategoricalKernel(**numbers(2, [3, 4]))),
    "not scaled": lambda: (
        RBFKernel(**numbers(2, [1, 2])) * CategoricalKernel(**numbers(2, [3, 4]))
    ),
    "two of numbers": lambda: (
        RBFKernel(**numbers(1, [1])) * MaternKernel(nu=1.5, **numbers(2, [1, 2]))
    ),
    "one lengthscale": lambda: ScaleKernel(
        CategoricalKernel(active_dims=[3, 4]) * MaternKernel(nu=2.5, active_dims=[2, 1])
    ),
}


@pytest.mark.parametrize("name", BASES)
def test_categories_of_a_conditional_kernel(name: str) -> None:
    """Against the dense posterior; some values are not in the data."""
    tree = ParameterTree(5, {0: {0.0: [1, 2, 3], 1.0: [1, 4]}})
    g = torch.Generator().manual_seed(0)

    def points(n: int, values: int) -> Tensor:
        X = torch.rand(n, 5, generator=g)
        X[:, 0] = torch.randint(2, (n,), generator=g).double()
        X[:, 3:] = torch.randint(values, (n, 2), generator=g).double()
        return X

    X = points(25, 3)
    Y = X[:, 1:2].sin() + X[:, 3:4] * (1.0 - X[:, :1]) - X[:, 4:] * X[:, :1]
    base = BASES[name]()
    options = {"categorical_features": [3, 4]} if base is None else {}
    model = ConditionalGP(X, Y, tree, covar_module=base, **options)
    model.likelihood.noise = 1e-2
    test = points(40, 5).requires_grad_()
    found = point_moments(model, test, gradient=True)
    assert found is not None
    model._solver_cache = (None,)
    all_close(found, moments_of(model.posterior(test.unsqueeze(1)), test), 1e-8)


TREE = ParameterTree(6, {0: {0.0: [1, 2], 1.0: [3], 2.0: []}})


def transforms() -> dict[str, Any]:
    normalize = Normalize(6, indices=[1, 2, 3, 4, 5])
    return {
        "none": None,
        "normalize": normalize,
        "chain": ChainedInputTransform(log=Log10(indices=[2, 4]), normalize=normalize),
        "normal first": ChainedInputTransform(
            bounds=Normalize(6, indices=[1], bounds=torch.tensor([[0.0], [9.0]])),
            log=Log10(indices=[1]),
        ),
        "warp": Warp(6, indices=[1], bounds=torch.tensor([[0.0] * 6, [9.0] * 6])),
    }


@pytest.mark.parametrize("name", transforms())
@pytest.mark.parametrize("kind", [TreeStructuredGP, ConditionalGP, "flat"])
@pytest.mark.parametrize("offset", ["random", "fixed"])
def test_on_the_scale_of_outcomes(name: str, kind: Any, offset: str) -> None:
    """With transforms of inputs and outcomes, and with a mean for each path."""
    g = torch.Generator().manual_seed(0)
    X = 0.1 + 4.0 * torch.rand(30, 6, generator=g)
    X[:, 0] = torch.randint(3, (30,), generator=g).double()
    Y = 30.0 + 7.0 * X[:, 1:].sin().sum(-1, keepdim=True)
    options = {} if kind is ConditionalGP else {"leaf_offset": offset}
    tree, make = (TREE, kind) if kind != "flat" else ({}, TreeStructuredGP)
    model = make(X, Y, tree, input_transform=transforms()[name], **options)
    if offset == "fixed" and kind is TreeStructuredGP:
        with torch.no_grad():
            model.mean_module.raw_offset += torch.arange(3.0)
    test = torch.cat([X[:5, :1], X[:5, 1:] + 0.1], dim=-1).requires_grad_()
    expected = moments_of(model.posterior(test), test)  # in another way
    all_close(moments_of(model.posterior(test.unsqueeze(1)), test), expected, 1e-7)
    found = point_moments(model, test, gradient=True)
    assert (found is None) == (name in ("normal first", "warp"))
    if found is not None:
        all_close(found, expected, 1e-7)
