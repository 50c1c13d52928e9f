"""Context columns: the product of K_p and K_context, and fast inference with it."""

from typing import Any

import pytest
import torch
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
    inverse = leaf.inverse_lengthscale().expand(2, -1)
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
            variance = kernel.rows(X[i : i + 1]).variance[0]
            expected = correlation.value(distance) * correlation.value(of_context)
            expected = variance * expected
        close(covariance[i, j], expected)


def test_undeclared_value_keeps_its_offset() -> None:
    """The offset of an undeclared path is not multiplied by K_context."""
    X = points(12)
    Y = X.sum(-1, keepdim=True).sin()
    X[:4, 0] = 7.0
    model = randomised(TreeStructuredGP(X, Y, TREE, context_features=[4]), 3)
    model.eval()
    fast = model.posterior(X + 0.01 * (torch.arange(5) > 0))
    model._solver_cache = (None,)
    slow = model.posterior(X + 0.01 * (torch.arange(5) > 0))
    close(fast.mean, slow.mean)
    close(fast.distribution.covariance_matrix, slow.distribution.covariance_matrix)


@pytest.mark.parametrize("column", [0, 1, 3])
def test_refuses_columns_that_are_no_context(column: int) -> None:
    X = points(8)
    with pytest.raises(ValueError, match="context_features: expected numeric columns"):
        TreeStructuredGP(
            X, X[:, 3:4], TREE, categorical_features=[3], context_features=[column]
        )
