from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from botorch_structured.spaces import SearchSpace
from botorch_structured.suggest import suggest
from botorch_structured.suggest.exploration import path_to_explore

SPACE = SearchSpace.from_dictionaries(
    [
        {"kind": ["a"], "x": (0.0, 1.0)},
        {"kind": ["b"], "y": (0.0, 1.0)},
        {"kind": ["c"], "z": (0.0, 1.0)},
    ]
)


def points(**counts: int) -> Tensor:
    """So many points on each path, in turn from 0.1 to 0.9."""
    names = {"a": "x", "b": "y", "c": "z"}
    return SPACE.encode(
        [
            {"kind": kind, names[kind]: float(u)}
            for kind, n in counts.items()
            for u in torch.linspace(0.1, 0.9, n)
        ]
    )


def kinds(X: Tensor) -> list[str]:
    return [config["kind"] for config in SPACE.decode(X)]


def explored(known: Tensor, targets: Any, **kwargs: Any) -> str | None:
    """The kind of the path that is explored."""
    targets = torch.as_tensor(targets, dtype=torch.double)
    feasible = kwargs.pop("feasible", torch.ones(len(known), dtype=torch.bool))
    key = path_to_explore(SPACE, known, targets, feasible, **kwargs)
    keys = SPACE.tree.path_key(known).tolist()
    return None if key is None else kinds(known)[keys.index(key)]


def test_a_path_that_began_badly_is_seen_again() -> None:
    # small improvements on a; the one point of b and that of c were bad
    X = points(a=12, b=1, c=1)
    Y = torch.cat([torch.linspace(0.99, 1.0, 12), torch.tensor([-1.0, -2.0])])
    Y = Y.double().unsqueeze(-1)
    assert kinds(suggest(SPACE, X, Y, seed=0).X) == ["b"]
    # and five suggestions later
    found = suggest(SPACE, X, Y, q=6, seed=0).X
    assert kinds(found)[5] != "a"


def test_the_best_path_is_not_explored() -> None:
    X, y = points(a=5, b=5, c=4), torch.zeros(14)
    for best, wanted in ((0, "b"), (5, "a")):
        y = torch.zeros(14)
        y[best], y[-1] = 2.0, -1.0
        y[5 if best == 0 else 0] = 1.0
        assert explored(X, y) == wanted


def test_paths_take_turns() -> None:
    # b and c are as good as each other: what is pending on one counts
    y = [*range(10, 22), 0.0, 0.0]
    X = points(a=12, b=1, c=1)
    assert explored(X, y) == "b"
    pending = points(b=5)
    assert explored(torch.cat([X, pending]), y) == "c"


@pytest.mark.parametrize("n", [9, 10, 11, 12, 13, 15, 18, 20])
def test_four_of_five_are_left_to_the_models(n: int) -> None:
    X = points(a=n - 2, b=1, c=1)
    assert explored(X, torch.linspace(1.0, 0.0, n)) is None


def test_many_paths_are_left_to_the_models() -> None:
    space = SearchSpace.from_dictionaries(
        [{"kind": [str(k)], "x": (0.0, 1.0)} for k in range(9)]
    )
    for n, wanted in ((24, False), (29, True)):
        X = space.sample(n, seed=0)
        feasible = torch.ones(n, dtype=torch.bool)
        found = path_to_explore(space, X, torch.arange(n).double(), feasible)
        assert (found is not None) == wanted


def test_what_is_left_out() -> None:
    X, y = points(a=12, b=1, c=1), [*range(10, 22), 1.0, 0.0]
    code = float(X[-1, SPACE.tree.decision_columns[0]])  # that of c
    column = SPACE.tree.decision_columns[0]
    assert explored(X, y) == "b"
    assert explored(X, y, fixed_features={column: code}) is None
    assert explored(X, y, fixed_features={1: 0.5}) == "b"  # no decision
    bad = torch.ones(14, dtype=torch.bool)
    bad[12] = False
    assert explored(X, y, feasible=bad) == "c"
    assert explored(X, y, feasible=torch.zeros(14, dtype=torch.bool)) is None
    assert explored(X, torch.ones(14)) is None  # nothing is better than anything
    assert explored(points(a=14), range(14)) is None  # no other path is known


def test_a_path_that_is_used_up() -> None:
    space = SearchSpace.from_dictionaries(
        [{"kind": ["a"], "x": (0.0, 1.0)}, {"kind": ["b"]}]
    )
    configs = [{"kind": "a", "x": i / 20} for i in range(13)] + [{"kind": "b"}]
    Y = torch.linspace(1.0, 0.0, 14).double().unsqueeze(-1)
    (config,) = space.decode(suggest(space, space.encode(configs), Y, seed=0).X)
    assert config["kind"] == "a"


def test_held_decisions_are_held() -> None:
    column = SPACE.tree.decision_columns[0]
    X = points(a=12, b=1, c=1)
    Y = torch.linspace(1.0, 0.0, 14).double().unsqueeze(-1)
    for row, kind in ((0, "a"), (12, "b"), (13, "c")):
        fixed = {column: float(X[row, column])}
        found = suggest(SPACE, X, Y, seed=0, fixed_features=fixed).X
        assert kinds(found) == [kind]


@given(scale=st.sampled_from([1e-6, 1.0, 1e6]), shift=st.floats(-3.0, 3.0))
def test_units_do_not_matter(scale: float, shift: float) -> None:
    X = points(a=6, b=5, c=3)
    y = torch.sin(torch.arange(14.0).double() * 7)
    assert explored(X, scale * (y + shift)) == explored(X, y)
