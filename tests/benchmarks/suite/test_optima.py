import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.suite.optima import Scale, improve, read_scale, write_scales
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.columns import (
    CategoricalColumn,
    FloatColumn,
    IntegerColumn,
)

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
    found, values = improve(SPACE, bowl, X, bowl(X), generations=60, children=20)
    assert torch.equal(X, before)
    assert (values <= bowl(X)).all() and torch.equal(bowl(found), values)
    assert SPACE.feasible(found).all() and torch.equal(SPACE.impute(found), found)
    best = SPACE.decode(found[values.argmin()])[0]
    assert best["choice"] == "b" and best["n"] == 64
    assert best["x"] == pytest.approx(100.0, rel=0.01)
    again = improve(SPACE, bowl, X, bowl(X), generations=60, children=20)
    assert torch.equal(again[0], found)


def test_forbidden_points_are_not_kept() -> None:
    space = SearchSpace.from_columns(
        SPACE.columns, SPACE.tree, feasible=lambda X: X[..., 2] >= 100
    )
    X = space.sample(4, seed=0)
    found, _ = improve(space, bowl, X, bowl(X), generations=20, children=10)
    assert (found[:, 2] >= 100).all()
    with pytest.raises(ValueError, match="k x 3 points and k values"):
        improve(space, bowl, X, bowl(X)[:2], generations=1, children=1)


def test_the_table(tmp_path: Path) -> None:
    path = tmp_path / "optima.json"
    assert read_scale("one", "p", path) is None
    write_scales("two", "command 2", {"p": Scale(0.5, 1.0)}, path)
    write_scales("one", "command 1", {"p": Scale(-1.0, 2.0)}, path)
    write_scales("one", "command 1", {"q": Scale(1 / 3, 2.0), "p": Scale(0, 1)}, path)
    assert read_scale("one", "q", path) == Scale(optimal=1 / 3, middle=2.0)
    assert read_scale("two", "q", path) is None
    write_scales("one", "longer", {"q": Scale(0.25, 2.0)}, path)
    assert json.loads(path.read_text()) == {
        "one": {"command 1": {"p": [0.0, 1.0]}, "longer": {"q": [0.25, 2.0]}},
        "two": {"command 2": {"p": [0.5, 1.0]}},
    }
    assert read_scale("one", "q", path) == (0.25, 2.0)
