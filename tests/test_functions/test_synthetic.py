"""Problems with known optima are their definitions; see also test_contract."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from botorch_structured.test_functions import (
    RKHS1D,
    GramacyExponential2D,
    JenattonTree,
    QuadraticTasks,
)

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
def test_jenatton_is_its_definition(variant: dict) -> None:
    problem = JenattonTree(**variant)
    P = variant["num_leaves"]
    assert problem.tree.num_paths == P
    X = torch.cat([problem.starts(0), problem.space.sample(40, seed=1)])
    expected = [plain(c, variant) for c in problem.space.decode(X)]
    torch.testing.assert_close(problem(X), torch.tensor(expected).double())
    # paths are the leaves, from left to right
    leaves = [leaf_of(c, variant) for c in problem.space.decode(X)]
    assert problem.tree.path_index(X).tolist() == leaves


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


@pytest.mark.parametrize("negate", [False, True])
def test_the_column_of_tasks(negate: bool) -> None:
    tasks = QuadraticTasks(num_tasks=7, seed=3, negate=negate)
    sign = -1.0 if negate else 1.0
    assert tasks.contexts.shape == (7, 3)
    assert tasks.contexts.min() >= 0.1 and tasks.contexts.max() <= 10
    X = tasks.space.sample(200, seed=1)
    assert X[:, -1].unique().tolist() == list(range(7))
    for *x, task in X.tolist():
        a, b, c = tasks.contexts[int(task)].tolist()
        value = a / 2 * sum(v * v for v in x) + b * sum(x) + c
        point = torch.tensor([*x, task], dtype=torch.double)
        assert tasks(point) == pytest.approx(sign * value, rel=1e-14)
    # the optimum, on a grid of one coordinate: they are alike
    grid = torch.linspace(-1, 1, 4001, dtype=torch.double).view(-1, 1).expand(-1, 3)
    number = torch.arange(7.0).double().view(-1, 1, 1).expand(-1, 4001, 1)
    values = sign * tasks(torch.cat([grid.expand(7, -1, -1), number], -1))
    assert values.min() >= sign * tasks.optimal_value - 1e-12
    assert float(values.min()) == pytest.approx(sign * tasks.optimal_value, abs=1e-5)
    assert tasks(tasks.optimizers).item() == pytest.approx(tasks.optimal_value)
    assert torch.equal(QuadraticTasks(4, seed=3).contexts, tasks.contexts[:4])
    assert not torch.equal(QuadraticTasks(7, seed=4).contexts, tasks.contexts)


def rkhs(x: float) -> float:
    """The definition, term by term."""
    s, a = [0.1, 0.15, 0.08, 0.3, 0.4], [4, -1, 2, -2, 1]
    t = "0.8 .85 .9 .95 .92 .74 .91 .89 .79 .88 .86 .96 .99 .82"
    b = [3, 4, 2, 1, -1, 2, 2, 3, 3, 2, -1, -2, 4, -3]
    value = 0.0
    for centre, weight in zip(s, a, strict=True):
        value += weight * math.exp(-((x - centre) ** 2) / (2 * 0.1**2))
    for centre, weight in zip(map(float, t.split()), b, strict=True):
        value += weight * math.exp(-((x - centre) ** 2) / (2 * 0.01**2))
    return value


def test_rkhs_is_its_definition() -> None:
    X = torch.linspace(0, 1, 301, dtype=torch.double).unsqueeze(-1)
    expected = torch.tensor([rkhs(x) for x in X.squeeze(-1).tolist()])
    torch.testing.assert_close(RKHS1D(negate=True)(X), expected.double())
    torch.testing.assert_close(RKHS1D()(X), -expected.double())


def test_gramacy_is_its_definition() -> None:
    problem = GramacyExponential2D()
    assert problem.bounds.tolist() == [[-2.0, -2.0], [6.0, 6.0]]
    X = problem.space.sample(50, seed=0)
    expected = [a * math.exp(-(a**2) - b**2) for a, b in X.tolist()]
    torch.testing.assert_close(problem(X), torch.tensor(expected).double())
    assert problem.optimal_value == pytest.approx(-0.428882, abs=1e-6)
    mirrored = -problem.optimizers
    assert GramacyExponential2D(negate=True)(mirrored) == pytest.approx(-0.428882, 1e-6)


def points(**changes: float) -> torch.Tensor:
    """Starts of a tree with four leaves, with other values in some columns."""
    X = JenattonTree(4).starts(0)
    for column, value in changes.items():
        X[0, int(column[1:])] = value
    return X


@pytest.mark.parametrize(
    ("make", "words"),
    [
        *[
            (lambda n=n, b=b: JenattonTree(n, balanced=b), f"got {n}")
            for n, b in ((6, True), (1, True), (1, False), (0, True))
        ],
        (lambda: JenattonTree("8"), "num_leaves: expected a positive integer, got '8'"),
        (lambda: JenattonTree(4)(points()[:, :-1]), "batch_shape x 7"),
        (lambda: JenattonTree(4)(points(x3=2, x4=2, x5=2, x6=2)), "within the bounds"),
        (lambda: JenattonTree(4)(points(x0=0.5)), "integer values"),
        (lambda: QuadraticTasks(1), "from 2 on, got 1"),
        (lambda: QuadraticTasks(seed=1.5), "seed: expected an integer .*got 1.5"),
    ],
)
def test_wrong_arguments_and_points(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
