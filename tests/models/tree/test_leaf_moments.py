"""Moments of points one by one against the same by operations that autograd knows."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import copy, deepcopy
from typing import Any

import pytest
import torch
from botorch.models.kernels import CategoricalKernel
from botorch.models.transforms import Normalize
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from hypothesis import assume, given
from leaf_models import random_model, some_points
from strategies import random_points, seeds
from torch import Tensor

from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.models.tree import leaf_moments
from botorch_structured.models.tree.leaf_stack import LeafStack
from botorch_structured.spaces import ParameterTree

pytestmark = pytest.mark.usefixtures("double")


def close(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def with_gradients(values: tuple[Tensor, ...], X: Tensor, **kwargs: Any) -> Any:
    out = list(values)
    for value in values:
        if value.requires_grad:
            (g,) = torch.autograd.grad(
                value.sum(), X, retain_graph=True, allow_unused=True, **kwargs
            )
        else:
            g = None
        out.append(torch.zeros_like(X) if g is None else g)
    return out


@given(seeds)
def test_moments_and_their_gradients(seed: int) -> None:
    """In one call and row by row, on paths seen before and on new ones."""
    model = random_model(seed)
    moments = model._moments()
    assert moments is not None
    for n in (9, 1, 40):
        X = some_points(model, n, seed + n).requires_grad_()
        expected = with_gradients(moments.graph(X), X)
        for a, b in zip(moments(X, gradient=True), expected, strict=True):
            close(a, b)
        one = [moments(x, gradient=True) for x in X.split(1)]
        for parts, b in zip(zip(*one, strict=True), expected, strict=True):
            close(torch.cat(parts), b)


@given(seeds)
def test_derivatives_of_a_posterior(seed: int) -> None:
    """In the points, again in the points, and in hyperparameters."""
    model = random_model(seed, n=12)
    # GPyTorch's Matern kernel, a factor of theirs, has no second derivative
    assume(type(model) is not ConditionalGP or not model._moments()._codes)
    X = some_points(model, 6, seed).requires_grad_()
    parameters = [p for p in model.covar_module.parameters() if p.requires_grad]

    def derivatives(mean: Tensor, variance: Tensor) -> list[Tensor]:
        value = (mean.sin() + variance.log()).sum()
        of = [X, *parameters]
        first = torch.autograd.grad(value, of, create_graph=True, allow_unused=True)
        gradient = torch.zeros_like(X) if first[0] is None else first[0]
        second = None
        if gradient.requires_grad:
            (second,) = torch.autograd.grad(
                gradient.square().sum(), X, allow_unused=True
            )
        every = [gradient, second, *first[1:]]
        like = [X, X, *parameters]
        return [
            torch.zeros_like(b) if a is None else a.detach()
            for a, b in zip(every, like, strict=True)
        ]

    moments = leaf_moments.differentiable_moments(X, model._moments())
    actual, expected = derivatives(*moments), derivatives(*model._moments().graph(X))
    for a, b in zip(actual, expected, strict=True):
        close(a, b, 1e-7)
    # where the points are constants
    moments = leaf_moments.differentiable_moments(X.detach(), model._moments())
    graph = model._moments().graph(X.detach())
    a, b = (
        torch.autograd.grad(sum(v.sum() for v in values), parameters, allow_unused=True)
        for values in (moments, graph)
    )
    for x, y in zip(a, b, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            close(x, y)


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
    for a, b in zip(gradients(LATER[later]), expected, strict=True):
        close(a, b)


@given(seeds)
def test_inactive_columns_have_no_influence(seed: int) -> None:
    model = random_model(seed, n=12)
    X = some_points(model, 8, seed)
    other = torch.randn(X.shape, generator=torch.Generator().manual_seed(seed))
    changed = torch.where(model.tree.active_mask(X), X, 1e3 * other)
    for a, b in zip(
        model._moments()(changed, True), model._moments()(X, True), strict=True
    ):
        assert torch.equal(a, b)


@given(seeds)
def test_point_moments_are_those_of_the_posterior(seed: int) -> None:
    model = random_model(seed)
    X = some_points(model, 9, seed).requires_grad_()
    posterior = model.posterior(X.unsqueeze(1))
    values = (posterior.mean.flatten(), posterior.variance.flatten())
    found = model.point_moments(X.detach(), gradient=True)
    assert found is not None
    for a, b in zip(found, with_gradients(values, X), strict=True):
        close(a, b.detach())
    without = model.point_moments(X.detach())
    assert without.mean_gradient is None
    close(without.mean, found.mean)
    if isinstance(model, TreeStructuredGP):
        posterior = model.path_posterior(X.unsqueeze(1))
        values = (posterior.mean.flatten(), posterior.variance.flatten())
        found = model.point_moments(X.detach(), gradient=True, path=True)
        for a, b in zip(found, with_gradients(values, X), strict=True):
            close(a, b.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_paths_without_data(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them, and more decision values, than are kept."""
    monkeypatch.setattr(leaf_moments, "_MAX_PRIOR", 3)
    monkeypatch.setattr(leaf_moments, "_MAX_KEPT", 4)
    monkeypatch.setattr(leaf_moments, "_MAX_STACKS", 2)
    tree = ParameterTree(
        12, {0: {float(p): [2 + p] for p in range(10)}, 1: {0.0: [3], 1.0: []}}
    )
    g = torch.Generator().manual_seed(0)
    X = random_points(tree, 5, g).to(dtype)
    Y = torch.randn(5, 1, generator=g).to(dtype)
    model = TreeStructuredGP(X, Y, tree).eval()
    for _ in range(3):
        test = random_points(tree, 30, g).to(dtype)
        found = model._moments()(test)
        for a, b in zip(found[:2], model._moments().graph(test), strict=True):
            close(a, b.detach(), 1e-4 if dtype == torch.float32 else 1e-9)


@given(seeds)
def test_many_weights(seed: int) -> None:
    """A factor of their covariance."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(leaf_moments, "_WIDE", 2)
        model = random_model(seed)
        moments = model._moments()
        for n in (1, 30):
            X = some_points(model, n, seed + n).requires_grad_()
            expected = with_gradients(moments.graph(X), X)
            for a, b in zip(moments(X, gradient=True), expected, strict=True):
                close(a, b)
            for a, b in zip(moments(X)[:2], expected[:2], strict=True):
                close(a, b)


@given(seeds)
def test_calls_are_divided_for_their_memory(seed: int) -> None:
    """With room for the tables of one path, no more than one is looked at."""
    widths = []
    evaluate = LeafStack.__call__

    def recorded(stack: LeafStack, *args: Any) -> Any:
        widths.append(len(stack.variance) // stack.elements)
        return evaluate(stack, *args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(leaf_moments, "_MAX_STACKED", -1)
        patched.setattr(LeafStack, "__call__", recorded)
        model = random_model(seed)
        moments = model._moments()
        for path in (False, True):
            X = some_points(model, 30, seed).requires_grad_()
            found = moments(X, gradient=True, path=path)
            assert set(widths) == {1}
            if not path:
                expected = with_gradients(moments.graph(X), X)
                for a, b in zip(found, expected, strict=True):
                    close(a, b)


@given(seeds)
def test_a_covariance_of_weights_that_rounding_made_singular(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(leaf_moments, "_WIDE", 2)
        model = random_model(seed)
        predictor = model._predictor()
        zeros = torch.zeros_like(predictor.weight_covariance)
        predictor.__dict__["weight_covariance"] = zeros
        X = some_points(model, 9, seed)
        found = model._moments()(X)
        for a, b in zip(found[:2], model._moments().graph(X), strict=True):
            close(a, b.detach())


def test_one_leaf_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the tables too, and no path is looked up twice."""
    tree = ParameterTree(9, {0: {float(p): [1 + 2 * p, 2 + 2 * p] for p in range(4)}})
    g = torch.Generator().manual_seed(0)
    X = random_points(tree, 40, g)
    model = TreeStructuredGP(X, torch.randn(40, 1, generator=g), tree).eval()
    test = random_points(tree, 7, g)
    test[:, 0] = 2.0
    first = model.posterior(test.unsqueeze(1))
    located: list[int] = []
    locate = ParameterTree.locate

    def spy(self: ParameterTree, X: Tensor, *args: Any, **kwargs: Any) -> Any:
        located.append(len(X))
        return locate(self, X, *args, **kwargs)

    monkeypatch.setattr(ParameterTree, "locate", spy)
    again = model.posterior(test.unsqueeze(1))
    assert torch.equal(first.mean, again.mean) and not located
    assert [len(s.inputs) for s in model._moments()._stacks.values()] == [1]
    # a decision that differs in its last bit is looked up
    test[3, 0] = torch.nextafter(test[3, 0], test.new_tensor(3.0))
    close(model.posterior(test.unsqueeze(1)).mean, first.mean)
    assert located


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


@given(seeds)
def test_copies_of_a_model_with_moments(seed: int) -> None:
    model = random_model(seed)
    X = some_points(model, 5, seed).unsqueeze(1)
    expected = model.posterior(X).mean
    copies = deepcopy(model), pickle.loads(pickle.dumps(model)), copy(model)
    for other in copies:
        close(other.posterior(X).mean, expected)


def numbers(count: int, columns: list[int]) -> Any:
    return {"ard_num_dims": count, "active_dims": columns}


BASES = {
    "default": lambda: None,
    "categories alone": lambda: ScaleKernel(CategoricalKernel(**numbers(2, [3, 4]))),
    "not scaled": lambda: (
        RBFKernel(**numbers(2, [1, 2])) * CategoricalKernel(**numbers(2, [3, 4]))
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
    found = model.point_moments(test, gradient=True)
    assert found is not None
    model._use_predictor = lambda: False
    posterior = model.posterior(test.unsqueeze(1))
    expected = with_gradients((posterior.mean, posterior.variance), test)
    for a, b in zip(found, expected, strict=True):
        close(a.view(b.shape), b.detach(), 1e-8)


def test_products_without_a_closed_form() -> None:
    tree = ParameterTree(5, {0: {0.0: [1, 2, 3], 1.0: [1, 4]}})
    X = torch.rand(6, 5).round()
    first, second = MaternKernel(nu=2.5), MaternKernel(nu=1.5)
    for base in (
        first * RBFKernel(),
        second * CategoricalKernel(),
        ScaleKernel(first) * CategoricalKernel(),
        CategoricalKernel() * CategoricalKernel(),
    ):
        model = ConditionalGP(X, X[:, :1], tree, covar_module=base)
        assert model.point_moments(X) is None


@given(seeds)
def test_values_on_many_paths_need_no_tables(seed: int) -> None:
    model = random_model(seed)
    moments, X = model._moments(), some_points(model, 30, seed)
    expected = moments(X)

    def refuse(*_: Any) -> Any:
        raise AssertionError("a table was made")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(leaf_moments, "_MAX_TABLED", -1)
        patched.setattr(leaf_moments, "_MAX_STACKED", 200)  # several parts
        patched.setattr(LeafStack, "__call__", refuse)
        found = model._moments()(X)
    assert found.mean_gradient is None and found.variance_gradient is None
    for a, b in zip(found[:2], expected[:2], strict=True):
        close(a, b)
        assert not a.requires_grad
