"""Data of trees that random ones seldom have."""

import warnings

import pytest
import torch
from leaf_models import check_objective
from torch import Tensor

from botorch_structured.models import TreeStructuredGP
from botorch_structured.spaces import ParameterTree


def uneven(values: list[float], counts: list[int], d: int) -> tuple[Tensor, Tensor]:
    """Rows of each value of the first column."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(sum(counts), d, generator=g, dtype=torch.double)
    X[:, 0] = torch.repeat_interleave(torch.tensor(values), torch.tensor(counts))
    return X, torch.randn(len(X), 1, generator=g, dtype=torch.double)


@pytest.mark.parametrize("children", [{0: [1], 1: [2]}, {0: [1], 1: [2], 2: []}])
def test_leaves_of_different_sizes(children: dict[int, list[int]]) -> None:
    """Also where a value of the data was not declared."""
    X, Y = uneven([0.0, 1.0, 2.0], [5, 6, 3], 3)
    with warnings.catch_warnings():
        if 2 in children:
            warnings.simplefilter("error")  # decision values are no unscaled data
        else:
            warnings.simplefilter("ignore")
        model = TreeStructuredGP(X, Y, ParameterTree(3, {0: children}))
    check_objective(model, seed=1)


def test_an_inactive_nested_decision_does_not_count() -> None:
    """A point that differs in what is inactive is the same point, in any form."""
    tree = ParameterTree(5, {0: {0: [1], 1: [2]}, 1: {0: [3], 1: [4]}})
    X, Y = uneven([0.0, 1.0], [8, 8], 5)
    X[:, 1] = X[:, 1].round()
    model = TreeStructuredGP(X, Y, tree).eval()
    point = torch.tensor([[1.0, 0.0, 0.4, 0.5, 0.5]], dtype=torch.double)
    other = torch.tensor([[1.0, 1.0, 0.4, 0.9, 0.1]], dtype=torch.double)
    both = torch.cat([point, other])
    K = model.covar_module(both).to_dense()
    torch.testing.assert_close(K, K[:1, :1].expand(2, 2))
    one, two = (model.posterior(p).mean for p in (point, other))
    torch.testing.assert_close(one, two)


def test_medians_of_the_default_priors() -> None:
    X, Y = uneven([0.0, 1.0], [5, 5], 4)
    model = TreeStructuredGP(X, Y, ParameterTree(4, {0: {0: [1], 1: [2]}}))
    half = torch.tensor(0.5, dtype=torch.double)
    medians = {
        name.split(".")[-2]: round(float(prior.icdf(half)), 4)
        for name, _, prior, _, _ in model.named_priors()
    }
    assert medians == {
        "noise_covar": 0.0081,
        "node_variance": 1.3591,
        "offset_variance": 1.3591,
        "linear_variance": 2.7183,
        "smooth_variance": 1.3591,
        "smooth_lengthscale": 1.7551,
        "common_lengthscale": 0.3852,
        "common_outputscale": 2.7183,
        "relative_lengthscale": 1.0942,
        "relative_outputscale": 1.0942,
    }
