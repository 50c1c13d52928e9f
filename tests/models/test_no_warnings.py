"""Fits and predictions of awkward data say nothing that a user could not act on."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from strategies import random_points, random_tree
from torch import Tensor

from botorch_structured.kernels import RandomFourierFeatures
from botorch_structured.models import (
    ConditionalGP,
    DecomposedGP,
    MonotoneGP,
    MultiTaskABLR,
    TreedGP,
    TreeStructuredGP,
)
from botorch_structured.spaces import ParameterTree

pytestmark = pytest.mark.usefixtures("double")


def both(Y: Tensor) -> Tensor:
    return torch.cat([Y, Y.flip(0).square()], -1)


def decomposed(X: Tensor, Y: Tensor, tree: ParameterTree) -> DecomposedGP:
    return DecomposedGP(
        TreeStructuredGP(X, Y, tree), MonotoneGP(X, Y.sin(), monotone={0: 1})
    )


def signals(X: Tensor, Y: Tensor, tree: ParameterTree) -> MultiTaskABLR:
    features = RandomFourierFeatures(20, num_dims=tree.dim, seed=0)
    return MultiTaskABLR(X, both(Y), None, feature_map=features)


MODELS: dict[str, Callable[[Tensor, Tensor, ParameterTree], Any]] = {
    "tree": TreeStructuredGP,
    "outputs": lambda X, Y, tree: TreeStructuredGP(X, both(Y), tree),
    "conditional": lambda X, Y, tree: ConditionalGP(X, both(Y), tree),
    "treed": lambda X, Y, tree: TreedGP(X, both(Y)),
    "published": lambda X, Y, tree: TreedGP.as_published(X, Y),
    "monotone": lambda X, Y, tree: MonotoneGP(X, Y, monotone={0: 1}),
    "decomposed": decomposed,
    "signals": signals,
}


@pytest.mark.parametrize("seed", [4, 11])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_no_warning(make: Callable[..., Any], seed: int) -> None:
    """Repeated points, no noise, a scale of 1e-7, points that are known."""
    g = torch.Generator().manual_seed(seed)
    tree = random_tree(seed)
    X = random_points(tree, 20, g)
    X = torch.cat([X, X[:6]])
    Y = 1e-7 * (X @ torch.randn(tree.dim, 1, generator=g)).sin()
    X_test = torch.cat([random_points(tree, 5, g), X[:8]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # advice on the data, which are as they are on purpose
        warnings.filterwarnings("ignore", ".*unit cube.*")
        model = make(X, Y, tree)
        several = isinstance(model, DecomposedGP)
        mll = SumMarginalLogLikelihood if several else ExactMarginalLogLikelihood
        options = {"options": {"maxiter": 15}}
        with warnings.catch_warnings():  # of the fit, which is stopped early
            warnings.filterwarnings("ignore", ".*OptimizationWarning|.*optim.*")
            fit_gpytorch_mll(mll(model.likelihood, model), optimizer_kwargs=options)
        fantasy = model.fantasize(
            X_test[:3].unsqueeze(-2), SobolQMCNormalSampler(torch.Size([2]), seed=0)
        )
        for posterior in (
            model.posterior(X_test),
            model.posterior(X_test.unsqueeze(-2)),
            model.posterior(X_test, observation_noise=True),
            fantasy.posterior(X_test),
        ):
            assert (posterior.variance > 0).all()
            assert (posterior.variance.sqrt() < 1e-5).all()
