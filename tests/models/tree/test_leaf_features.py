"""Whole functions of models on leaves, drawn with BoTorch's ``draw_matheron_paths``."""

from typing import Any

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.sampling.pathwise import (
    draw_kernel_feature_paths,
    draw_matheron_paths,
    gen_kernel_features,
)
from torch import Tensor

from botorch_structured.models import (
    ConditionalGP,
    SampledGP,
    TreedGP,
    TreeStructuredGP,
)
from botorch_structured.spaces import ParameterTree

pytestmark = pytest.mark.usefixtures("double")


# column 0 chooses between columns 1 and 2, column 3 is shared
TREE = {0: {0: [1], 1: [2]}}


def points(n: int) -> Tensor:
    X = torch.rand(n, 4, generator=torch.Generator().manual_seed(n))
    X[:, 0] = torch.arange(n) % 2
    return X


def outcomes(X: Tensor) -> Tensor:
    own = torch.where(X[:, 0] == 0.0, torch.sin(4.0 * X[:, 1]), X[:, 2])
    return (own + X[:, 3]).unsqueeze(-1)


def make(kind: Any = TreeStructuredGP, m: int = 1, **kwargs: Any) -> Any:
    X = points(16)
    Y = torch.cat([outcomes(X), -outcomes(X).square()][:m], dim=-1)
    return kind(X, Y, kwargs.pop("tree", TREE), **kwargs)


MODELS: dict[str, dict[str, Any]] = {
    "tree": {},
    "rbf": {"leaf_kernel": "rbf"},
    "a leaf's own": {"leaf_hyperparameters": "independent"},
    "categories": {"tree": {}, "categorical_features": [0]},
    "context": {"context_features": [3]},
    "two outputs": {"m": 2},
    "conditional": {"kind": ConditionalGP},
    "conditional, two outputs": {"kind": ConditionalGP, "m": 2},
    "published": {"kind": TreeStructuredGP.as_published},
}


@pytest.mark.parametrize("name", MODELS)
def test_paths_have_the_posteriors_moments(name: str) -> None:
    model = make(**MODELS[name])
    model.eval()
    X = points(10)
    drawn = draw_matheron_paths(model, torch.Size([2048]))(X)
    drawn = drawn.unsqueeze(-1) if model.num_outputs == 1 else drawn.mT
    posterior = model.posterior(X)
    spread = posterior.variance.sqrt()
    assert drawn.shape == (2048, 10, model.num_outputs)
    # 2048 draws, of which standard deviations have an error of 2 %, and 1024 features
    assert ((drawn.mean(0) - posterior.mean).abs() < 0.1 * spread).all()
    assert ((drawn.std(0) / spread - 1.0).abs() < 0.1).all()


def test_undeclared_values_have_an_offset_of_their_own() -> None:
    kernel = make().covar_module
    X = points(12)
    X[:, 0] = torch.arange(12) % 4  # 2 and 3 are not declared
    phi = gen_kernel_features(kernel, num_inputs=4, num_outputs=8192)(X)
    exact = kernel(X).to_dense()
    # signs: an error of K / sqrt(l) across paths
    assert (phi @ phi.mT - exact).abs().max() < 0.06 * exact.max()


def test_paths_are_functions_with_gradients() -> None:
    for model in (make(), make(ConditionalGP)):
        model.eval()
        path = draw_matheron_paths(model, torch.Size([3]))
        X = points(5).requires_grad_(True)
        values = path(X)
        torch.testing.assert_close(path(X[2:])[..., 1], values[..., 3])
        (slope,) = torch.autograd.grad(values.sum(), X)
        # a decision moves a point to no other path, however little it moves
        slope, active = slope[:, 1:], ParameterTree(4, TREE).active_mask(X)[:, 1:]
        assert slope[active].abs().min() > 0.0
        assert (slope[~active] == 0.0).all()


def test_models_whose_paths_cannot_be_drawn_say_what_can() -> None:
    X = points(16)
    categorical = ConditionalGP(X, outcomes(X), TREE, categorical_features=[3])
    for model in (
        TreedGP(X, outcomes(X), categorical_features=[0]),
        categorical,
    ):
        for draw in (draw_matheron_paths, draw_kernel_feature_paths):
            with pytest.raises(UnsupportedError, match=r"^model: .*posterior\(X\).rsa"):
                draw(model, torch.Size([2]))
    with pytest.raises(UnsupportedError, match=r"^model: .*model.models\[s\]"):
        sampled = SampledGP([SingleTaskGP(X, outcomes(X))])
        draw_matheron_paths(sampled, torch.Size([2]))
    one_leaf = TreedGP(X, outcomes(X), max_leaves=1)
    assert draw_matheron_paths(one_leaf, torch.Size([2]))(X).shape == (2, 16)
