import math

import numpy as np
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, PriorGuidedAcquisitionFunction
from botorch.models import SingleTaskGP
from hypothesis import given
from scipy.stats import norm
from search_problems import in_view
from torch import Tensor
from torch.autograd import grad

from botorch_structured.acquisition import CostPrior, InteriorPrior
from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.optim.view import view_on
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.test_functions import JenattonTree
from tests.strategies import random_points, random_tree, seeds

TREE = ParameterTree(3, {0: {0.0: [1], 1.0: [2]}})
BOUNDS = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]).double()
SPACE = SearchSpace(
    ["leaf", "a", "b"], BOUNDS, TREE, categorical_features={0: [0.0, 1.0]}
)


def seconds(X: Tensor) -> Tensor:
    """From 1 to 100 along the column of the first leaf; 10 in the second one."""
    return torch.where(X[:, :1] == 0.0, 100.0 ** X[:, 1:2], 10.0)


def cost_models() -> tuple[TreeStructuredGP, TreeStructuredGP]:
    """Of an outcome that grows along each column, and of the logarithm of the cost."""
    X = SPACE.sample(30, seed=0)
    Y = torch.where(X[:, :1] == 0.0, X[:, 1:2], 0.3 * X[:, 2:])
    of_outcome = TreeStructuredGP(X, Y, SPACE)
    of_cost = TreeStructuredGP(X, seconds(X).log(), SPACE)
    for model in (of_outcome, of_cost):
        model.likelihood.noise = 1e-4
    return of_outcome, of_cost


@pytest.mark.parametrize("left", [None, 0.5, 20.0, 1e6])
def test_cost_prior_is_the_formula(left: float | None) -> None:
    """The formula by SciPy."""
    _, cost_model = cost_models()
    prior = CostPrior(cost_model, left)
    X = SPACE.sample(8, seed=1).unsqueeze(-2)
    value = prior(X).detach()
    assert value.shape == (8, 1)
    posterior = cost_model.posterior(X)
    mean, variance = posterior.mean.flatten(), posterior.variance.flatten()
    expected = -(mean + 0.5 * variance).detach()
    if left is not None:
        z = (math.log(left) - mean) / variance.sqrt()
        expected = expected + torch.from_numpy(norm.logcdf(z.detach().numpy()))
    torch.testing.assert_close(value.flatten(), expected, rtol=1e-6, atol=1e-6)


def test_what_is_left_limits_the_candidate() -> None:
    model, cost_model = cost_models()
    improvement = LogExpectedImprovement(model, best_f=0.2)
    found = {}
    for left in (1e4, 4.0):
        prior = CostPrior(cost_model, left)
        acqf = PriorGuidedAcquisitionFunction(improvement, prior, log=True)
        assert in_view(acqf, SPACE.sample(2, seed=2), gradient=True) is not None
        x, _ = optimize_acqf_paths(acqf, space=SPACE, X_avoid=model.train_inputs[0])
        found[left] = float(seconds(x))
    assert found[4.0] < 4.0
    assert found[4.0] < found[1e4]


def space_of(seed: int) -> SearchSpace:
    tree = random_tree(seed, numeric=False, compound=False, strict=True)
    bounds = torch.stack([torch.zeros(tree.dim), 3.0 * torch.ones(tree.dim)]).double()
    names = [f"x{c}" for c in range(tree.dim)]
    return SearchSpace(names, bounds, tree)


def test_interior_prior_by_hand() -> None:
    """One active column besides decisions, at a quarter of its range."""
    space = JenattonTree().space
    x = space.starts(seed=0)[:1]
    active = space.tree.active_mask(x)[0]
    (column,) = [
        c for c in active.nonzero().flatten().tolist()
        if c not in space.tree.decision_columns
    ]  # fmt: skip
    x[0, column] = -0.5  # within [-1, 1]
    found = InteriorPrior(space, floor=0.2)(x)
    assert float(found) == pytest.approx(math.log(0.75 + 0.2))
    x[0, column] = 1.0
    assert float(InteriorPrior(space, floor=0.2)(x)) == pytest.approx(math.log(0.2))


@given(seeds)
def test_gradient_and_inactive_columns(seed: int) -> None:
    space = space_of(seed)
    X = random_points(space.tree, 6, torch.Generator().manual_seed(seed % 2**31))
    prior = InteriorPrior(space)
    leaf = X.clone().requires_grad_()
    value = prior(leaf)
    (slope,) = grad(value.sum(), leaf) if value.requires_grad else (0 * X,)
    view = view_on(prior, X)
    assert view is not None
    found = [torch.from_numpy(part) for part in view(X.numpy(), np.arange(6), True)]
    inside = (X > 0) & (X < 3)
    torch.testing.assert_close(found[0], value.detach())
    torch.testing.assert_close(found[1][inside], slope[inside])
    others = torch.where(space.tree.active_mask(X), X, 1.7)
    torch.testing.assert_close(prior(others), value.detach())


def test_integers_on_a_logarithmic_scale_do_not_count() -> None:
    space = SearchSpace.from_dictionaries({"units": (8, 1024, "log"), "x": (0.0, 1.0)})
    configs = [{"units": units, "x": 0.3} for units in (8, 90, 516, 1024)]
    density = InteriorPrior(space)(space.encode(configs).unsqueeze(-2))
    torch.testing.assert_close(density, density[:1].expand_as(density))


X = SPACE.sample(5, seed=0)
ONE, TWO = SingleTaskGP(X, X[:, 1:2]), SingleTaskGP(X, X[:, 1:])


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        *[(CostPrior, (ONE, left), "left: expected") for left in (0.0, -1.0, math.nan)],
        *[
            (CostPrior, (model,), "cost_model: expected a BoTorch model")
            for model in (TWO, "none")
        ],
        (InteriorPrior, (TREE,), "space: expected a SearchSpace, got Param"),
        (InteriorPrior, (SPACE, 0.0), "floor: expected a positive number"),
    ],
)
def test_bad_arguments(make: type, arguments: tuple, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(*arguments)
