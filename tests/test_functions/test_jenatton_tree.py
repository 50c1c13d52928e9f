from __future__ import annotations

import numpy as np
import pytest
import torch
from botorch.test_functions.synthetic import SyntheticTestFunction

from botorch_structured.test_functions import JenattonTree

VARIANTS = [
    dict(num_leaves=leaves, balanced=balanced, **more)
    for leaves, balanced in ((2, True), (4, True), (8, True), (2, False), (5, False))
    for more in (
        {},
        {"shared": True},
        {"off_centre": True},
        {"shared": True, "off_centre": True, "quadratic_shared": True},
    )
]


def leaf_of(config: dict, variant: dict) -> int:
    """0, 1, ...: by walking the tree as the docstring draws it."""
    P = variant["num_leaves"]
    k = 1
    while k < P:
        value = config[f"x{k}"]
        if variant["balanced"]:
            k = 2 * k + value
        elif value == 0:
            return k - 1
        else:
            k = k + 1 if k < P - 1 else 2 * P - 1
    return k - P


def plain(config: dict, variant: dict) -> float:
    """The definition, one configuration at a time."""
    P = variant["num_leaves"]
    a = leaf_of(config, variant)
    off = variant.get("off_centre", False)
    s = np.random.default_rng(12345).uniform(-0.8, 0.8, P) if off else np.zeros(P)
    value = (config[f"x{P + a}"] - s[a]) ** 2 + 0.1 * (a + 1)
    if variant.get("shared"):
        left = not variant["balanced"] or a < P // 2
        right = a >= P // 2
        for here, k, t in ((left, 0, 0.3), (right, 1, 0.7)):
            name = f"r{2 * P + k}"
            assert (name in config) == here
            if here:
                r = config[name]
                value += (r - t) ** 2 if variant.get("quadratic_shared") else r
    return value


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_is_its_definition(variant: dict) -> None:
    problem = JenattonTree(**variant)
    assert isinstance(problem, SyntheticTestFunction)
    P = variant["num_leaves"]
    assert problem.tree.num_paths == P
    X = torch.cat([problem.starts(0), problem.space.sample(40, seed=1)])
    expected = [plain(c, variant) for c in problem.space.decode(X)]
    torch.testing.assert_close(problem(X), torch.tensor(expected).double())
    # paths are the leaves, from left to right
    leaves = [leaf_of(c, variant) for c in problem.space.decode(X)]
    assert problem.tree.path_index(X).tolist() == leaves


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_optimum_and_bounds(variant: dict) -> None:
    problem = JenattonTree(**variant)
    assert problem.optimal_value == 0.1
    assert problem(problem.optimizers).item() == 0.1
    assert JenattonTree(**variant, negate=True).optimal_value == -0.1
    assert problem(problem.space.sample(300, seed=0)).min() > 0.1
    columns = dict(zip(problem.space.names, problem.bounds.T.tolist(), strict=True))
    P = variant["num_leaves"]
    shared = variant.get("shared", False)
    assert len(columns) == problem.dim == 2 * P - 1 + 2 * shared
    for k in range(1, 2 * P):
        assert columns[f"x{k}"] == ([0.0, 1.0] if k < P else [-1.0, 1.0])
    if shared:
        assert columns[f"r{2 * P}"] == columns[f"r{2 * P + 1}"] == [0.0, 1.0]


@pytest.mark.parametrize("balanced", [True, False])
def test_inactive_columns_are_ignored(balanced: bool) -> None:
    problem = JenattonTree(
        8, shared=True, quadratic_shared=True, off_centre=True, balanced=balanced
    )
    X = problem.space.sample(50, seed=0)
    active = problem.tree.active_mask(X)
    for fill in (0.5, -7.0, torch.nan, torch.inf):
        other = torch.where(active, X, fill).requires_grad_()
        values = problem(other)
        assert torch.equal(values, problem(X))
        (gradient,) = torch.autograd.grad(values.sum(), other)
        assert gradient.isfinite().all() and (gradient[~active] == 0).all()
        continuous = active.clone()
        continuous[:, problem.tree.decision_columns] = False
        assert (gradient[continuous] != 0).all()


def test_starts_are_one_point_on_each_path() -> None:
    problem = JenattonTree(8, shared=True)
    X = problem.starts(3)
    assert sorted(problem.tree.path_index(X).tolist()) == list(range(8))
    assert torch.equal(X, JenattonTree(8, shared=True).starts(3))
    assert not torch.equal(X, problem.starts(4))
    # as in the prototype behind the published figures: order of the leaves, own
    # variable, then the shared one
    rng = np.random.default_rng(1003)
    for row, leaf in zip(X, rng.permutation(8), strict=True):
        assert problem.tree.path_index(row.unsqueeze(0)).item() == leaf
        assert row[7 + leaf].item() == pytest.approx(2 * rng.random() - 1)
        assert row[15 + (leaf >= 4)].item() == pytest.approx(rng.random())


def test_wrong_arguments_and_points() -> None:
    for leaves, balanced in ((6, True), (1, True), (1, False), (0, True)):
        with pytest.raises(ValueError, match=f"got {leaves}"):
            JenattonTree(leaves, balanced=balanced)
    for arguments, message in (
        ({"num_leaves": "8"}, "num_leaves: expected a positive integer, got '8'"),
        ({"noise_std": -1.0}, "noise_std: expected no negative number, got -1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            JenattonTree(**arguments)
    problem = JenattonTree(4)
    X = problem.starts(0)
    with pytest.raises(ValueError, match="batch_shape x 7"):
        problem(X[:, :-1])
    outside = X.clone()
    outside[:, 3:] = 2.0
    with pytest.raises(ValueError, match="within the bounds"):
        problem(outside)
    between = X.clone()
    between[0, 0] = 0.5
    with pytest.raises(ValueError, match="integer values"):
        problem(between)
