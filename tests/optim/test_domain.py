from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_structured.optim.domain import Domain, make_domain
from botorch_structured.optim.problem import Problem, make_problem
from botorch_structured.spaces import Between, ParameterTree

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


def test_undeclared_outcomes_are_those_seen() -> None:
    tree = ParameterTree(2, {0: {1: [1]}})
    bounds = torch.tensor([[0.0, 0.0], [5.0, 1.0]], dtype=torch.double)
    seen = torch.tensor([[3.0, FILL], [9.0, FILL], [1.0, 0.2]], dtype=torch.double)
    domain = make_domain(problem_of(tree, bounds), seen)
    assert domain.tables[0].tolist() == [1.0, 3.0]  # 9 is out of bounds


def test_columns_without_a_value_are_never_new() -> None:
    tree = ParameterTree(3, {0: {0: [1], 1: [2]}})
    bounds = torch.tensor([[0.0, 0.2, 0.0], [1.0, 0.8, 1.0]], dtype=torch.double)
    domain = domain_of(tree, bounds, integer_features=[1])  # none in [0.2, 0.8]
    X = domain.impute(domain.draw(50, torch.Generator().manual_seed(0)))
    assert X.isfinite().all()
    new = domain.is_new(X, tree.active_mask(X), X[:0])
    assert torch.equal(new, X[:, 0] == 1)
    assert new.any() and not new.all()


def test_points_are_projected_on_their_own_path_only() -> None:
    tree = ParameterTree(4, {0: {0: [1, 2], 1: [1], 2: [3]}}, values={0: [0, 1, 2]})
    bounds = torch.tensor([[0.0, 0, 0, 0], [2, 1, 5, 5]], dtype=torch.double)
    domain = domain_of(
        tree,
        bounds,
        integer_features=[2],
        categorical_features={0: [0.0, 2.0], 3: [1.0, 5.0]},
    )
    X = bounds.new_tensor(
        [[0, 1.5, 2.7, FILL], [1, 0.5, FILL, FILL], [2, FILL, FILL, 4.0]]
    )
    assert domain.project(X).tolist() == [[0, 1, 3, FILL], [2, FILL, FILL, 5.0]]


def test_fixed_and_numeric_columns() -> None:
    tree = ParameterTree(
        4, {0: {0: [2], 1: [3]}}, conditions={2: Between(1, 0.5, math.inf)}
    )
    bounds = torch.tensor([[0.0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.double)
    domain = domain_of(tree, bounds, fixed_features={0: 1.0, 1: 0.75, 3: 0.25})
    X = domain.draw(20, torch.Generator().manual_seed(0))
    assert (X[:, 0] == 1).all() and (X[:, 1] == 0.75).all()
    assert (X[:, 3] == 0.25).all() and not domain.empty.any()
