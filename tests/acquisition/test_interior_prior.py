from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, PriorGuidedAcquisitionFunction
from hypothesis import given
from torch.autograd import grad

from botorch_structured.acquisition import InteriorPrior
from botorch_structured.models import TreeStructuredGP
from botorch_structured.spaces import SearchSpace
from botorch_structured.test_functions import JenattonTree
from tests.strategies import random_points, random_tree, seeds


def space_of(seed: int) -> SearchSpace:
    tree = random_tree(seed, numeric=False, compound=False, strict=True)
    bounds = torch.stack([torch.zeros(tree.dim), 3.0 * torch.ones(tree.dim)]).double()
    names = [f"x{c}" for c in range(tree.dim)]
    return SearchSpace(names, bounds, tree)


def test_by_hand() -> None:
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
    found = [torch.from_numpy(part) for part in prior.at(X, gradient=True)]
    inside = (X > 0) & (X < 3)
    torch.testing.assert_close(found[0], value.detach())
    torch.testing.assert_close(found[1][inside], slope[inside])
    others = torch.where(space.tree.active_mask(X), X, 1.7)
    torch.testing.assert_close(prior(others), value.detach())


def test_in_botorchs_acquisition_function() -> None:
    problem = JenattonTree()
    X = problem.space.starts(seed=0)
    Y = -problem(X).unsqueeze(-1)
    plain = LogExpectedImprovement(TreeStructuredGP(X, Y, problem.space), Y.max())
    prior = InteriorPrior(problem.space)
    guided = PriorGuidedAcquisitionFunction(plain, prior, log=True, prior_exponent=0.5)
    Z = problem.space.sample(4, seed=1).unsqueeze(-2)
    expected = plain(Z) + 0.5 * prior(Z).squeeze(-1)
    torch.testing.assert_close(guided(Z), expected)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="space: expected a SearchSpace, got Param"):
        InteriorPrior(JenattonTree().space.tree)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="floor: expected a positive number"):
        InteriorPrior(JenattonTree().space, floor=0.0)


@given(seeds)
def test_near_rows(seed: int) -> None:
    """Where rows change fewer columns than others, the rest may be decisions."""
    space = space_of(seed)
    prior = InteriorPrior(space)
    X = space.sample(5, seed=seed)
    active = space.tree.active_mask(X)
    active[:, space.tree.decision_columns] = False
    # those that change, then any others, such as decisions
    place = active.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    changing = active.gather(-1, place)
    new = torch.where(changing, 3.0 * torch.rand(X.shape).double(), X.gather(-1, place))
    value, slope = prior.near(X, place.numpy())(new.numpy()[:, None], np.arange(5))
    moved = prior.at(X.scatter(-1, place, new), gradient=True)
    expected, gradient = map(torch.from_numpy, moved)
    torch.testing.assert_close(torch.from_numpy(value)[:, 0], expected)
    torch.testing.assert_close(
        torch.from_numpy(slope)[:, 0][changing], gradient.gather(-1, place)[changing]
    )


def test_integers_on_a_logarithmic_scale_do_not_count() -> None:
    space = SearchSpace.from_dictionaries({"units": (8, 1024, "log"), "x": (0.0, 1.0)})
    configs = [{"units": units, "x": 0.3} for units in (8, 90, 516, 1024)]
    density = InteriorPrior(space)(space.encode(configs).unsqueeze(-2))
    torch.testing.assert_close(density, density[:1].expand_as(density))
