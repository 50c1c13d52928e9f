from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from strategies import random_tree, seeds
from torch import Tensor

from botorch_structured.optim.domain import Domain, make_domain
from botorch_structured.optim.local_search import Neighbourhood
from botorch_structured.optim.problem import Problem, make_problem
from botorch_structured.spaces import Between, Equals, ParameterTree

STEPS = (0.2, 0.05)
FILL = -7.0


def problem_of(tree: ParameterTree, bounds: Tensor, **kwargs: object) -> Problem:
    arguments = dict.fromkeys(
        (
            "integer_features",
            "categorical_features",
            "fixed_features",
            "inequality_constraints",
            "feasible",
            "X_avoid",
        )
    )
    arguments |= {"fill": FILL, "max_paths": 99} | kwargs
    return make_problem(bounds, tree, **arguments)


def domain_of(tree: ParameterTree, bounds: Tensor, **kwargs: object) -> Domain:
    return make_domain(problem_of(tree, bounds, **kwargs), bounds[:0])


def random_domain(seed: int) -> Domain:
    """A random tree with reals, integers, integers with gaps and categoricals."""
    tree = random_tree(seed)
    bounds = torch.zeros(2, tree.dim, dtype=torch.double)
    integers, categories = [], {}
    for c in range(tree.dim):
        if c in tree.numeric_decisions:
            bounds[1, c] = 1.0
        elif c in tree.decision_columns:
            bounds[1, c] = 2.0
        else:
            bounds[:, c] = torch.tensor([-1.0, 4.0])
            kind = (seed + c) % 4
            if kind in (1, 2):
                integers.append(c)
            if kind in (2, 3):
                categories[c] = [-1.0, 0.0, 3.0, 8.0]  # 8 is out of bounds
    last, fixed = tree.dim - 1, {}
    if seed % 3 == 0 and last not in categories:
        fixed = {last: 0.0}
    return domain_of(
        tree,
        bounds,
        integer_features=integers,
        categorical_features=categories,
        fixed_features=fixed,
    )


def by_hand(domain: Domain, x: Tensor) -> set[tuple[int, float]]:
    """Every column and value that equation (7) allows, one column after the other."""
    problem, tree = domain.problem, domain.problem.tree
    active = tree.active_mask(x)
    found = set()
    for c in range(tree.dim):
        if not active[c] or c in problem.fixed:
            continue
        lo, hi = problem.bounds[:, c].tolist()
        now = float(x[c])
        grid = problem.grids.get(c)
        if c in tree.decision_columns and c not in tree.numeric_decisions:
            values = {float(v) for v in problem.listed.decision_values[c]}
        elif grid is None:
            width = hi - lo
            values = {
                min(max(now + w * s * width, lo), hi) for s in STEPS for w in (-1, 1)
            }
        elif grid.values is None:
            values = {now - 1, now + 1}
        else:
            values = {v for v in grid.values if lo <= v <= hi}
            if grid.ordered:
                below, above = (
                    [v for v in values if v < now],
                    [v for v in values if v > now],
                )
                values = {*sorted(below)[-1:], *sorted(above)[:1]}
        found |= {(c, v) for v in values - {now} if lo <= v <= hi}
    return found


@settings(max_examples=40)
@given(seed=seeds)
def test_one_exchange_and_nothing_else(seed: int) -> None:
    domain = random_domain(seed)
    tree = domain.problem.tree
    generator = torch.Generator().manual_seed(seed)
    X = domain.impute(domain.draw(6, generator))
    active = tree.active_mask(X)
    near, on, owner = Neighbourhood(domain, STEPS).of(X, active, generator)
    assert torch.equal(on, tree.active_mask(near))
    assert torch.equal(near, tree.impute(near, FILL))
    assert (owner.diff() >= 0).all()
    changes: list[list[tuple[int, float]]] = [[] for _ in X]
    for y, y_on, i in zip(near, on, owner.tolist(), strict=True):
        both = active[i] & y_on
        changed = (both & (y != X[i])).nonzero().view(-1).tolist()
        assert len(changed) == 1
        changes[i].append((changed[0], float(y[changed[0]])))
        if changed[0] not in tree.decision_columns:
            assert torch.equal(y_on, active[i])
        # Whatever a branch opens lies in the space, too.
        assert ((y >= domain.lower) & (y <= domain.upper))[y_on].all()
        for c, grid in domain.problem.grids.items():
            assert not y_on[c] or grid.snap(y[c : c + 1]) == y[c]
        for c, v in domain.problem.fixed.items():
            assert not y_on[c] or y[c] == v
    for i, x in enumerate(X):
        expected = by_hand(domain, x)
        assert len(changes[i]) == len(expected)
        got = {(c, round(v, 9)) for c, v in changes[i]}
        assert got == {(c, round(v, 9)) for c, v in expected}


def test_a_new_branch_is_drawn_at_random() -> None:
    """Below 0 = 1: a real, an integer, and a decision with a real of its own."""
    tree = ParameterTree(
        6,
        {0: {0: [5], 1: [1, 2, 3, 5]}},
        conditions={4: Equals(3, 1)},
        values={0: [0, 1], 3: [0, 1, 2]},
    )
    bounds = torch.tensor([[0.0, -1, 1, 0, 0, 0], [1, 3, 4, 2, 1, 1]]).double()
    domain = domain_of(tree, bounds, integer_features=[2])
    n = 4000
    X = bounds.new_tensor([[0, FILL, FILL, FILL, FILL, 0.3]]).expand(n, -1)
    generator = torch.Generator().manual_seed(0)
    hood = Neighbourhood(domain, [1.0])
    near, on, owner = hood.of(X, tree.active_mask(X), generator)
    opened = near[near[:, 0] == 1]
    assert torch.equal(owner[near[:, 0] == 1], torch.arange(n))
    assert (opened[:, 5] == 0.3).all()  # active before and after
    # Five standard errors; uniform numbers have a standard deviation of width/sqrt(12).
    assert abs(float(opened[:, 1].mean()) - 1.0) < 5 * 4 / math.sqrt(12 * n)
    for col, values in ((2, (1.0, 2.0, 3.0, 4.0)), (3, (0.0, 1.0, 2.0))):
        p = 1 / len(values)
        for v in values:
            share = float((opened[:, col] == v).double().mean())
            assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / n)
    deeper = opened[:, 3] == 1
    assert (opened[~deeper, 4] == FILL).all()
    assert 0 <= opened[deeper, 4].min() < 0.01 and 0.99 < opened[deeper, 4].max() <= 1


def test_a_numeric_decision_steps_like_a_number() -> None:
    tree = ParameterTree(2, conditions={1: Between(0, 0.5, math.inf)})
    bounds = torch.tensor([[0.0, 2.0], [1.0, 3.0]], dtype=torch.double)
    domain = domain_of(tree, bounds)
    X = torch.tensor([[0.4, FILL], [0.6, 2.5]], dtype=torch.double)
    generator = torch.Generator().manual_seed(0)
    hood = Neighbourhood(domain, [0.2])
    near, _, owner = hood.of(X, tree.active_mask(X), generator)
    first, second = near[owner == 0], near[owner == 1]
    assert first[:, 0].tolist() == pytest.approx([0.2, 0.6])
    assert first[0, 1] == FILL and 2 <= first[1, 1] <= 3
    pairs = sorted((round(a, 9), round(b, 9)) for a, b in second.tolist())
    assert pairs == [(0.4, FILL), (0.6, 2.3), (0.6, 2.7), (0.8, 2.5)]


def test_single_precision() -> None:
    tree = ParameterTree(3, {0: {0.1: [1], 0.7: [2]}})
    bounds = torch.tensor([[0.1, 0.0, 0.1], [0.7, 3.0, 0.4]])
    domain = domain_of(tree, bounds, integer_features=[1])
    generator = torch.Generator().manual_seed(0)
    X = domain.impute(domain.draw(500, generator))
    assert X.dtype == torch.float
    active = tree.active_mask(X)
    near, on, _ = Neighbourhood(domain, STEPS).of(X, active, generator)
    for points, where in ((X, active), (near, on)):
        assert points.dtype == torch.float
        assert tree.is_declared(points).all()
        assert ((points >= bounds[0]) & (points <= bounds[1]))[where].all()
