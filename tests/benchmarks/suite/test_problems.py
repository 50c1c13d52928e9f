"""Problems of the suite: what they say of themselves is so."""

import pickle

import pytest
import torch
from torch import Tensor

from benchmarks.suite import jenatton, optima
from benchmarks.suite.problem import kind_of
from benchmarks.suite.synthetic import draw
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.columns import (
    CategoricalColumn,
    FloatColumn,
    IntegerColumn,
)
from botorch_structured.test_functions import JenattonTree

# -- Jenatton's functions -----------------------------------------------------------


def test_jenatton() -> None:
    assert len(jenatton.DEVELOP) == 8 and len(jenatton.REPORT) == 10
    for name, factory in {**jenatton.DEVELOP, **jenatton.REPORT}.items():
        problem = pickle.loads(pickle.dumps(factory))(0)
        assert kind_of(name) == "jenatton"
        assert problem.optimal_value == 0.1 < problem.middle_value < 3.0
        assert problem.noise_std == (0.05 if "noisy" in name else 0.0)
    tree = JenattonTree(8, shared=True, balanced=False)
    problem = jenatton.DEVELOP["jenatton-8-chain-shared"](0)
    X = problem.space.sample(20, seed=0)
    assert problem.truths(X).equal(tree.evaluate_true(X))
    assert problem.starts(5).equal(tree.starts(5))
    with pytest.raises(ValueError, match="name: expected a number and words"):
        jenatton.make(0, "8-odd")


# -- random functions ---------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 12, 38])  # rough, smooth, bowls; chains, trees
def test_a_problem_is_what_it_says(number: int) -> None:
    problem = draw(number)
    space, p = problem.space, problem.properties
    X = space.sample(5_000, seed=1)
    values = problem.truths(X)
    assert values.isfinite().all()
    assert space.tree.num_paths == p["paths"] and space.dim == p["columns"]
    # inactive columns do not count
    low = torch.where(space.tree.active_mask(X), X, space.bounds[0])
    assert problem.truths(low).equal(values)
    # nothing random is below the optimum, which is a point of the space
    assert space.feasible(problem.optimizer.unsqueeze(0)).all()
    room = problem.middle_value - problem.optimal_value
    assert values.min() > problem.optimal_value - 1e-6 * room
    assert room > 0.1 * problem.spread
    assert problem.noise_std == pytest.approx(p["noise"] * problem.spread)


# -- the search for optima ----------------------------------------------------------

# A choice, a number only where it is "b", a whole number on a logarithmic scale.
NUMBERS = [FloatColumn("x", 1e-3, 1e3, log=True), IntegerColumn("n", 1, 1000, log=True)]
SPACE = SearchSpace.from_columns(
    [CategoricalColumn("choice", ["a", "b"]), *NUMBERS],
    ParameterTree(3, {0: {0: [], 1: [1]}}, values={0: [0, 1]}),
)


def bowl(X: Tensor) -> Tensor:
    """At its least, 0, where x = 100 and n = 64; at least 1 without an x."""
    number = torch.where(X[:, 0] == 1, (X[:, 1] - 2).square(), 1.0)
    return number + (X[:, 2].log2() - 6).square()


def test_the_search_finds_the_optimum() -> None:
    X = SPACE.sample(8, seed=0)
    before = X.clone()
    points, values = optima.improve(SPACE, bowl, X, bowl(X), 60, 20)
    assert torch.equal(X, before)
    assert (values <= bowl(X)).all() and torch.equal(bowl(points), values)
    assert SPACE.feasible(points).all() and torch.equal(SPACE.impute(points), points)
    best = SPACE.decode(points[values.argmin()])[0]
    assert best["choice"] == "b" and best["n"] == 64
    assert best["x"] == pytest.approx(100.0, rel=0.01)
    restricted = SearchSpace.from_columns(
        SPACE.columns, SPACE.tree, feasible=lambda X: X[..., 2] >= 100
    )
    X = restricted.sample(4, seed=0)
    points, _ = optima.improve(restricted, bowl, X, bowl(X), 20, 10)
    assert (points[:, 2] >= 100).all()
