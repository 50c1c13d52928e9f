"""Starts: one on each path, or a sample that covers them."""

from __future__ import annotations

import math
from collections import Counter
from unittest.mock import patch

import ConfigSpace as CS
import pytest
import torch
from hypothesis import given
from strategies import random_configspace, random_tree, seeds, up_to_last_digits
from torch import Tensor

from botorch_structured.spaces import (
    Between,
    ParameterTree,
    SearchSpace,
    path_search,
)

KINDS = ("random", "inner", "spread", "middle", "default")


def unit_space(tree: ParameterTree, **arguments: object) -> SearchSpace:
    """Decisions by value within their values, all other columns in [0, 1]."""
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).repeat(1, tree.dim)
    for c in tree.decision_columns:
        if c not in tree.numeric_decisions:
            values = tree.decision_values[c]
            bounds[:, c] = torch.tensor([values[0], values[-1]])
    return SearchSpace([f"x{c}" for c in range(tree.dim)], bounds, tree, **arguments)


def check_points(space: SearchSpace, X: Tensor) -> None:
    """Feasible, inside bounds, filled where inactive; configurations come back."""
    active = space.tree.active_mask(X)
    assert space.feasible(X).all()
    assert (X >= space.bounds[0]).all() and (X <= space.bounds[1]).all()
    assert torch.equal(torch.where(active, space.fill, X)[~active], X[~active])
    assert torch.equal(X[~active], space.fill.expand_as(X)[~active])
    again = space.encode(space.decode(X))
    assert torch.equal(space.tree.path_key(again), space.tree.path_key(X))
    # Next to a cut a value is moved by as much as ConfigSpace can tell apart.
    assert torch.allclose(again, X, rtol=1e-9, atol=2e-8)


def paths_with_room(space: SearchSpace) -> set[int]:
    """The paths some point of which lies within the bounds."""
    low, high = space.bounds.tolist()
    return {
        i
        for i, path in enumerate(space.tree.paths)
        if all(lo <= high[c] and hi >= low[c] for c, (lo, hi) in path.intervals.items())
    }


def check_cover(space: SearchSpace, X: Tensor) -> None:
    """All that some path within the bounds has, some row has."""
    tree = space.tree
    listed = [tree.paths[i] for i in paths_with_room(space)]
    found = [tree.path_of(x) for x in X]
    assert {c for p in found for c in p.active_columns} == {
        c for p in listed for c in p.active_columns
    }
    assert {d for p in found for d in p.decisions.items()} == {
        d for p in listed for d in p.decisions.items()
    }


@given(seeds)
def test_every_path_of_random_trees_once(seed: int) -> None:
    space = unit_space(random_tree(seed))
    expected = sorted(paths_with_room(space))
    for kind in KINDS:
        X = space.starts(kind=kind, seed=seed)
        check_points(space, X)
        index = space.tree.path_index(X).tolist()
        assert sorted(index) == expected
        if kind != "default":
            assert index == expected
        assert torch.equal(X, space.starts(kind=kind, seed=seed))


def test_inner_starts_are_in_the_middle_half_of_ranges_on_their_scale() -> None:
    space = SearchSpace.from_dictionaries(
        {
            "x": (-1.0, 3.0),
            "rate": (1e-4, 1.0, "log"),
            "units": (16, 4096, "log"),
            "layers": (1, 9),
            "colour": ["red", "green", "blue"],
        }
    )
    configs = space.decode(space.starts(300, "inner", seed=0))
    first, *others = configs  # on each path once, the rest as ``"random"``
    assert max(c["x"] for c in others) > 2.5
    firsts = [space.decode(space.starts(1, "inner", seed=s))[0] for s in range(300)]
    for name, lower, upper in (
        ("x", 0.0, 2.0),
        ("rate", 1e-3, 1e-1),
        ("units", 63, 1030),
        ("layers", 3, 7),
    ):
        values = [c[name] for c in firsts]
        assert lower <= min(values) < max(values) <= upper
        assert max(values) / upper > 0.9
    assert {c["colour"] for c in firsts} == {"red", "green", "blue"}


@given(seeds)
def test_rows_are_spread_evenly(seed: int) -> None:
    space = unit_space(random_tree(seed))
    total = len(paths_with_room(space))
    for n in (1, max(total // 2, 1), total, 2 * total + 1):
        X = space.starts(n, seed=seed)
        assert X.shape == (n, space.dim)
        check_points(space, X)
        _, counts = space.tree.path_index(X).unique(return_counts=True)
        assert len(counts) == min(n, total)
        assert counts.max() - counts.min() <= 1


@given(seeds)
def test_a_covering_sample_of_random_trees(seed: int) -> None:
    space = unit_space(random_tree(seed))
    total = len(paths_with_room(space))
    with patch.object(path_search, "_MAX_SPREAD", 0):
        for kind in KINDS:
            X = space.starts(kind=kind, seed=seed)
            check_points(space, X)
            check_cover(space, X)
            index = space.tree.path_index(X).tolist()
            assert len(set(index)) == len(index) <= total
        # The same paths come first where more are asked for.
        X = space.starts(total, seed=seed)
        assert len(space.tree.path_index(X).unique()) == total
        check_cover(space, X)


@given(seeds)
def test_random_configspaces(seed: int) -> None:
    cs = random_configspace(seed)
    space = SearchSpace.from_configspace(cs)
    for kind in KINDS:
        X = space.starts(kind=kind, seed=seed)
        check_points(space, X)
        keys = space.tree.path_key(X)
        assert len(keys.unique()) == len(keys)
        # What is left out is forbidden as a whole.
        drawn = space.tree.path_key(space.sample(50, seed=seed))
        assert set(drawn.tolist()) <= set(keys.tolist())
    default = dict(cs.get_default_configuration())
    assert space.decode(X[:1]) == [up_to_last_digits(default)]


@given(seeds)
def test_spread_starts_are_a_latin_hypercube(seed: int) -> None:
    """Of k starts in which a column is active one lies in each k-th of its scale."""
    cs = CS.ConfigurationSpace()
    cs.add(
        kind := CS.Categorical("kind", ["a", "b", "c"]),
        CS.Float("rate", (1e-4, 1.0), log=True),
        CS.Integer("units", (0, 999)),
        CS.Categorical("act", ["w", "x", "y", "z"]),
        CS.Categorical("rare", ["u", "v"], weights=[1, 3]),
        own := CS.Float("own", (2, 4)),
        layers := CS.Integer("layers", (1, 9)),
        deep := CS.Float("deep", (0, 1)),
    )
    cs.add(
        CS.InCondition(own, kind, ["a", "b"]),
        CS.EqualsCondition(layers, kind, "c"),
        CS.GreaterThanCondition(deep, layers, 5),
    )
    space = SearchSpace.from_configspace(cs)
    for n in (1, 4, 9, 10):
        X = space.starts(n, kind="spread", seed=seed)
        check_points(space, X)
        configs = space.decode(X)
        for name, position in {
            "rate": lambda x: 1 + math.log10(x) / 4,
            "units": lambda x: (x + 0.5) / 1000,
            "own": lambda x: (x - 2) / 2,
            "deep": lambda x: x,
        }.items():
            found = [position(c[name]) for c in configs if name in c]
            strata = [min(int(p * len(found)), len(found) - 1) for p in found]
            if name == "units" and 1000 % len(found):
                continue  # a whole number may be in two parts
            assert sorted(strata) == list(range(len(found)))
        for name, shares in {
            "act": {v: 0.25 for v in "wxyz"},
            "rare": {"u": 0.25, "v": 0.75},
        }.items():
            counts = Counter(c[name] for c in configs)
            assert all(abs(counts[v] - n * w) < 2 for v, w in shares.items())


def test_middles_and_defaults() -> None:
    cs = CS.ConfigurationSpace()
    cs.add(
        model := CS.Categorical("model", ["svm", "mlp", "none"], default="mlp"),
        c := CS.Float("C", (1e-3, 1e3), default=10.0, log=True),
        n := CS.Integer("layers", (1, 9), default=2),
        w := CS.Integer("width", (2, 512), log=True),
        s := CS.OrdinalHyperparameter("size", ["s", "m", "l"], default_value="s"),
        deep := CS.Float("deep", (0, 4), default=1.0),
    )
    cs.add(
        CS.EqualsCondition(c, model, "svm"),
        CS.EqualsCondition(n, model, "mlp"),
        CS.EqualsCondition(w, model, "mlp"),
        CS.EqualsCondition(s, model, "mlp"),
        CS.GreaterThanCondition(deep, n, 5),
    )
    space = SearchSpace.from_configspace(cs)
    mlp = {"model": "mlp", "size": "m", "width": 32}
    middles = space.decode(space.starts(kind="middle"))
    wanted = [{"model": "svm", "C": 1.0}, {**mlp, "layers": 3}, {"model": "none"}]
    wanted += [{**mlp, "layers": 7, "deep": 2.0}]
    assert len(middles) == 4 and all(config in middles for config in wanted)
    first, *others = space.decode(space.starts(kind="default"))
    assert first == {"model": "mlp", "layers": 2, "width": 32, "size": "s"}
    wanted = [{"model": "svm", "C": 10.0}, {**first, "layers": 7, "deep": 1.0}]
    wanted += [{"model": "none"}]
    assert len(others) == 3 and all(config in others for config in wanted)
    assert space.decode(space.starts(1, kind="default")) == [first]
    # Repetitions of a path are random, and the sequence starts alike.
    X = space.starts(9, kind="default", seed=3)
    assert torch.equal(X[:4], space.starts(kind="default"))
    assert len(X.unique(dim=0)) >= 7


def below(X: Tensor) -> Tensor:
    return X.sum(-1) < 0.8


def test_forbidden_starts_are_replaced() -> None:
    space = SearchSpace(["x", "y"], [[0, 0], [1, 1]], feasible=below)
    X = space.starts(50, seed=0)
    assert space.feasible(X).all()
    assert len(X.unique(dim=0)) == 50
    middle = space.starts(kind="middle")
    assert space.feasible(middle).all()
    assert (middle - 0.5).norm() < 0.25
    nothing = SearchSpace(["x"], [[0], [1]], feasible=lambda X: X[..., 0] < -1)
    with pytest.raises(ValueError, match="space: expected some path .*to 10000 random"):
        nothing.starts()


def test_forbidden_paths_have_no_start() -> None:
    cs = CS.ConfigurationSpace()
    cs.add(
        a := CS.Categorical("a", ["x", "y"]),
        b := CS.Categorical("b", ["u", "v"]),
        c := CS.Float("c", (0, 1)),
        d := CS.Float("d", (0, 1)),
    )
    cs.add(CS.EqualsCondition(c, a, "x"), CS.EqualsCondition(d, b, "u"))
    cs.add(
        CS.ForbiddenAndConjunction(
            CS.ForbiddenEqualsClause(a, "y"), CS.ForbiddenEqualsClause(b, "v")
        )
    )
    space = SearchSpace.from_configspace(cs)
    X = space.starts(seed=0)
    assert len(X) == 3 and space.tree.num_paths == 4
    assert space.feasible(X).all()
    with patch.object(path_search, "_MAX_SPREAD", 0):
        assert len(space.starts(3, seed=0).unique(dim=0)) == 3
    outside = SearchSpace(
        ["x", "y"], [[0, 0], [1, 1]], ParameterTree(2, None, {1: Between(0, 2, 3)})
    )
    assert outside.tree.num_paths == 3 and len(outside.starts()) == 1


@pytest.mark.parametrize("n", [20, 70])
def test_flags_are_covered_and_not_listed(n: int) -> None:
    tree = ParameterTree(2 * n, {i: {0: [], 1: [n + i]} for i in range(n)})
    space = unit_space(tree)
    X = space.starts(seed=0)
    assert len(X) == 2  # each flag once on and once off
    assert (X[:, :n].sum(0) == 1).all()
    X = space.starts(40, seed=0)
    assert torch.equal(X[:2, :n], space.starts(seed=0)[:, :n])
    assert len(tree.path_key(X).unique()) == 40


def test_at_most() -> None:
    """Of many paths as many as show everything, but five; never one path twice."""
    flags = {i: {0: [], 1: [4 + i]} for i in range(4)}
    for tree, most, wanted in [
        (ParameterTree(8, flags), 10, 5),
        (ParameterTree(8, flags), 16, 5),
        (ParameterTree(8, flags), 3, 3),
        (ParameterTree(2), 10, 1),
    ]:
        space = unit_space(tree)
        for kind in KINDS:
            X = space.starts(kind=kind, seed=1, at_most=most)
            assert torch.equal(X, space.starts(wanted, kind, 1))
            assert len(tree.path_index(X).unique()) == wanted
            if most == 10 and wanted < most:
                check_cover(space, X)
    deep = {i: {0: [], 1: [i + 1]} for i in range(6)}
    flat = {0: {v: [1] for v in range(12)}}
    for hierarchical_dependencies, wanted in [(deep, 2), (flat, 10)]:
        space = unit_space(ParameterTree(7, hierarchical_dependencies))
        for kind in KINDS:
            X = space.starts(kind=kind, seed=1, at_most=10)
            assert len(X) == len(X[:, 0].unique()) == wanted
    cs = CS.ConfigurationSpace()
    cs.add(a := CS.Categorical("a", list("xyz")), CS.Categorical("b", ["u", "v"]))
    cs.add(c := CS.Float("c", (0, 1)), CS.EqualsCondition(c, a, "x"))
    cs.add(CS.ForbiddenEqualsClause(a, "y"))
    space = SearchSpace.from_configspace(cs)
    assert len(space.starts(at_most=3)) == 2 < space.tree.num_paths


def test_paths_that_share_columns_come_first() -> None:
    """The booster of trees or the one with dropout would else have no start."""
    boosters = {"b": ["linear"]}, {"b": ["tree"]}, {"b": ["dart"]}
    shared = {"eta": (0.0, 1.0)}
    dictionaries = [{"m": [f"m{i}"], f"x{i}": (0.0, 1.0)} for i in range(20)]
    for booster, more in zip(boosters, ({}, shared, shared), strict=True):
        dictionaries.append({"m": ["xgboost"], **booster, **more})
    space = SearchSpace.from_dictionaries(dictionaries)
    for seed in range(10):
        configs = space.decode(space.starts(16, seed=seed))
        assert len(configs) == 16
        assert {"tree", "dart"} <= {c.get("b") for c in configs}
        first = space.decode(space.starts(seed=seed, at_most=16))
        assert len({c["m"] for c in first}) == 16
    # of more such values than half of the starts the other learners come first
    variants = [{"m": ["a"], "v": [f"v{i}"], "eta": (0.0, 1.0)} for i in range(20)]
    space = SearchSpace.from_dictionaries([*variants, *dictionaries[:12]])
    for n, at_most in ((16, None), (None, 16)):
        configs = space.decode(space.starts(n, seed=0, at_most=at_most))
        assert len({c["m"] for c in configs}) == 13


def test_few_starts_differ_at_the_top() -> None:
    tree = ParameterTree(3, {0: {0: [1], 1: [], 2: []}, 1: {0: [], 1: [], 2: [2]}})
    space = unit_space(tree)
    for seed in range(5):
        X = space.starts(3, seed=seed)
        assert sorted(X[:, 0].tolist()) == [0, 1, 2]


def test_wrong_arguments() -> None:
    space = SearchSpace(["x"], [[0], [1]])
    for arguments, message in [
        ({"n": -1}, "n: expected a positive integer, got -1"),
        ({"n": 0}, "n: expected a positive integer, got 0"),
        ({"kind": "best"}, r"kind: expected one of \['random', .*got 'best'"),
        ({"seed": 0.5}, "seed: expected an integer .*got 0.5"),
        ({"at_most": 0}, "at_most: expected a positive integer, got 0"),
        ({"n": 2, "at_most": 3}, "at_most: expected None with n=2, got 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            space.starts(**arguments)
    torch.manual_seed(3)
    X = space.starts(2)
    torch.manual_seed(3)
    assert torch.equal(space.starts(2), X)
