"""Context columns: the product of K_p and K_context, and fast inference with it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from botorch import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import assume, given, settings
from strategies import random_points, random_tree, seeds
from torch import Tensor

from botorch_structured.kernels import TreeStructuredKernel
from botorch_structured.linalg.correlations import MATERN52, RBF
from botorch_structured.models import TreeStructuredGP
from botorch_structured.spaces import ParameterTree

# column 0 chooses between columns 1 and 2; columns 3 and 4 are shared
TREE = ParameterTree(5, {0: {0.0: [1], 1.0: [2]}})


pytestmark = pytest.mark.usefixtures("double")


def points(n: int, seed: int = 0) -> Tensor:
    X = torch.rand(n, 5, generator=torch.Generator().manual_seed(seed))
    X[:, 0] = X[:, 0].round()
    return X


def outcomes(X: Tensor) -> Tensor:
    own = torch.where(X[:, 0] == 0.0, torch.sin(5.0 * X[:, 1]), X[:, 2].square())
    return (own + X[:, 3] - (1.0 - X[:, 4]).square() * own).unsqueeze(-1)


def randomised(module: Any, seed: int) -> Any:
    """The same with random hyperparameters and a noise that dense algebra can bear."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g))
            if "raw_noise" in name:
                p.fill_(-4.0)
    return module


def close(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["matern", "rbf"])
@pytest.mark.parametrize("sharing", ["hierarchical", "independent", "tied"])
def test_is_the_product_of_the_paper(name: str, sharing: Any) -> None:
    """K~_p((x, b), (x', b')) = K_p(x, x') K_context(b, b'), section 5, by hand."""
    kernel = TreeStructuredKernel(
        TREE,
        shared_features="none",
        leaf_hyperparameters=sharing,
        leaf_offset=False,
        node_weights=False,
        correlation=name,
        context_features=[4],
    )
    randomised(kernel, 1)
    correlation = {"matern": MATERN52, "rbf": RBF}[name]
    leaf = kernel.leaf_hyperparameters
    path = torch.tensor([0, 1])
    inverse = leaf.inverse_lengthscale(path).expand(2, -1)
    lengths = inverse[0, 0], inverse[1, 1]
    context = leaf.context_lengthscale.value.item()
    X = points(12)
    covariance = kernel(X).to_dense()
    for i, j in [(0, 1), (2, 7), (5, 5), (3, 8), (4, 11), (9, 10)]:
        a, b = X[i], X[j]
        p = int(a[0])
        expected = torch.tensor(0.0)
        if a[0] == b[0]:
            distance = ((a[1 + p] - b[1 + p]) * lengths[p]).square()
            of_context = ((a[4] - b[4]) / context).square()
            codes = TREE.locate(X[i : i + 1])[0]
            nodes = kernel.weights.node_indicators(codes)
            variance = leaf.scale(path[p : p + 1], nodes)[0]
            expected = correlation.value(distance) * correlation.value(of_context)
            expected = variance * expected
        close(covariance[i, j], expected)


@settings(max_examples=40)
@given(seeds)
def test_structured_is_dense(seed: int) -> None:
    """Evidence, its gradient and posteriors with context, over random trees."""
    tree = random_tree(seed)
    free = [c for c in range(tree.dim) if c not in tree.decision_columns]
    context = [c for c in free if c not in tree.conditions][:2]
    assume(context and tree.decision_columns)
    X = random_points(tree, 25, torch.Generator().manual_seed(seed))
    Y = torch.randn(25, 1, generator=torch.Generator().manual_seed(seed + 1))
    model = TreeStructuredGP(
        X,
        Y,
        tree,
        context_features=context,
        leaf_inputs="own" if seed % 2 else "active",
        leaf_hyperparameters=("hierarchical", "independent", "tied")[seed % 3],
        leaf_kernel="matern" if seed % 5 else "rbf",
    )
    randomised(model, seed)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    parameters = list(model.parameters())

    def evidence() -> tuple[Tensor, list[Tensor]]:
        model.train()
        value = -model.compute_custom_loss(mll)
        return value, list(torch.autograd.grad(value, parameters))

    def predict() -> list[Tensor]:
        model.eval()
        test = random_points(tree, 6, torch.Generator().manual_seed(seed + 2))
        one, three = (
            model.posterior(test.unsqueeze(1)),
            model.posterior(test.view(2, 3, -1)),
        )
        return [
            one.mean,
            one.variance,
            three.mean,
            three.distribution.covariance_matrix,
        ]

    fast = evidence(), predict()
    model._is_structured = model._use_predictor = lambda: False
    slow = evidence(), predict()
    close(fast[0][0], slow[0][0])
    for a, b in zip(fast[0][1] + fast[1], slow[0][1] + slow[1], strict=True):
        close(a, b, 1e-7)


def test_undeclared_value_keeps_its_offset() -> None:
    """The offset of an undeclared path is not multiplied by K_context."""
    X, Y = points(12), outcomes(points(12))
    X[:4, 0] = 7.0
    model = randomised(TreeStructuredGP(X, Y, TREE, context_features=[4]), 3)
    model.eval()
    fast = model.posterior(X + 0.01 * (torch.arange(5) > 0))
    model._use_predictor = lambda: False
    slow = model.posterior(X + 0.01 * (torch.arange(5) > 0))
    close(fast.mean, slow.mean)
    close(fast.distribution.covariance_matrix, slow.distribution.covariance_matrix)


def test_fit_and_points_one_by_one() -> None:
    """A fit uses the closed form, and single points are as points together."""
    X = points(40)
    model = TreeStructuredGP(X, outcomes(X), TREE, context_features=[4])
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    assert model.fit_objective(mll) is not None
    fit_gpytorch_mll(mll)
    test = points(30, seed=9)
    together, alone = model.posterior(test), model.posterior(test.unsqueeze(1))
    close(alone.mean.squeeze(1), together.mean, 1e-7)
    close(alone.variance.squeeze(1), together.variance, 1e-7)
    assert (together.mean - outcomes(test)).abs().mean() < 0.05


def test_copies_and_later_data() -> None:
    X = points(30)
    model = TreeStructuredGP(X, outcomes(X), TREE, context_features=[4])
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll)
    test = points(6, seed=5)
    copied = copy.deepcopy(model).posterior(test).mean
    close(copied, model.posterior(test).mean, 1e-12)
    more = points(34)
    later = TreeStructuredGP(more, outcomes(more), TREE, context_features=[4])
    fit_gpytorch_mll(
        ExactMarginalLogLikelihood(later.likelihood, later), start_from=model
    )
    assert later._fit_record is not None
    other = TreeStructuredGP(more, outcomes(more), TREE)
    with pytest.raises(ValueError, match="start_from: .* another context_features"):
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(other.likelihood, other), start_from=model
        )


@pytest.mark.parametrize("column", [0, 1, 3])
def test_refuses_columns_that_are_no_context(column: int) -> None:
    X = points(8)
    with pytest.raises(ValueError, match="context_features: expected numeric columns"):
        TreeStructuredGP(
            X, outcomes(X), TREE, categorical_features=[3], context_features=[column]
        )
