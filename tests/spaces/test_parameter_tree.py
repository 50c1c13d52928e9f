"""ParameterTree against a brute-force enumeration of the outcomes."""

from __future__ import annotations

import copy
import itertools
import math
import pickle

import pytest
import torch
from hypothesis import given
from strategies import random_points, random_tree, seeds
from torch import Tensor

from botorch_structured.spaces import (
    Between,
    Equals,
    In,
    Inactive,
    ParameterTree,
    SearchSpace,
)


def representatives(tree: ParameterTree) -> Tensor:
    """One point for every combination of outcomes, inactive decisions included."""
    outcomes = []
    for col in tree.decision_columns:
        values = []
        for v in tree.decision_values[col]:
            if isinstance(v, tuple):
                v = (
                    v[0]
                    if math.isfinite(v[0])
                    else (v[1] if math.isfinite(v[1]) else 0)
                )
            values.append(float(v))
        outcomes.append(values)
    X = torch.full((math.prod(map(len, outcomes)), tree.dim), 0.3, dtype=torch.double)
    if outcomes:
        combinations = list(itertools.product(*outcomes))
        X[:, tree.decision_columns] = torch.tensor(combinations, dtype=torch.double)
    return X


def brute_active(tree: ParameterTree, X: Tensor) -> Tensor:
    """Activity by evaluating the conditions over and over until nothing changes."""
    active = torch.ones_like(X, dtype=torch.bool)
    for _ in range(tree.dim + 1):
        for col, condition in tree.conditions.items():
            active[..., col] = condition.holds(X, active)
    return active


def brute_paths(tree: ParameterTree, X: Tensor) -> list[tuple]:
    """What tells paths apart: the active decisions and their outcomes."""
    active = brute_active(tree, X)
    keys = []
    for x, on in zip(X.tolist(), active.tolist(), strict=True):
        key = []
        for col in tree.decision_columns:
            if on[col]:
                outcome = x[col]
                if col in tree.numeric_decisions:
                    spans = tree.decision_values[col]
                    outcome = next(s for s in spans if s[0] <= outcome <= s[1])
                key.append((col, outcome))
        keys.append(tuple(key))
    return keys


@pytest.mark.parametrize("depth", [3, 6])
@given(seed=seeds)
def test_random_trees_agree_with_enumeration(depth: int, seed: int) -> None:
    tree = random_tree(seed, max_depth=depth, max_decisions=depth + 1)
    X = representatives(tree)
    active = brute_active(tree, X)
    paths = brute_paths(tree, X)
    assert torch.equal(tree.active_mask(X), active)
    assert tree.num_paths == len(set(paths)) == len(tree.paths)
    index = tree.path_index(X)
    assert set(index.tolist()) == set(range(tree.num_paths))
    assert len({*zip(paths, index.tolist(), strict=True)}) == tree.num_paths
    key = tree.path_key(X)
    assert len({*zip(index.tolist(), key.tolist(), strict=True)}) == tree.num_paths
    assert len(set(key.tolist())) == tree.num_paths
    for i, expected, on in zip(index.tolist(), paths, active, strict=True):
        path = tree.paths[i]
        assert tuple(path.decisions.items()) == expected
        assert path.active.tolist() == on.nonzero().flatten().tolist()
    counts = {i: on.tolist() for i, on in zip(index.tolist(), active, strict=True)}
    totals = [sum(on[c] for on in counts.values()) for c in range(tree.dim)]
    fixed = set(tree.decision_columns) - set(tree.numeric_decisions)
    assert tree.own_columns == [
        c for c in range(tree.dim) if totals[c] == 1 and c not in fixed
    ]
    assert tree.shared_columns == [
        c for c in range(tree.dim) if totals[c] > 1 and c not in fixed
    ]
    for path in tree.paths:
        own = [c for c in path.active_columns if c in tree.own_columns]
        assert tree.leaf_columns(path) == own


@given(seeds)
def test_points_of_random_trees(seed: int) -> None:
    tree = random_tree(seed)
    X = random_points(tree, 20, torch.Generator().manual_seed(seed))
    assert X.min() >= 0
    active = tree.active_mask(X)
    assert torch.equal(active, brute_active(tree, X))
    same_index = tree.path_index(X).unsqueeze(0) == tree.path_index(X).unsqueeze(1)
    same_key = tree.path_key(X).unsqueeze(0) == tree.path_key(X).unsqueeze(1)
    assert torch.equal(same_index, same_key)
    imputed = tree.impute(X)
    assert torch.equal(tree.impute(imputed), imputed)
    assert torch.equal(imputed[active], X[active])
    assert (imputed[~active] == 0.5).all()
    # What inactive columns hold means nothing to any of the answers.
    for answer in (tree.path_index, tree.path_key, tree.decision_codes):
        assert torch.equal(answer(imputed), answer(X))
        with pytest.raises(ValueError, match=f"rows of {tree.dim} columns"):
            answer(X[:, 1:])
        with pytest.raises(ValueError, match="X: expected a tensor .*got list"):
            answer(X.tolist())
    codes = tree.decision_codes(X)
    assert torch.equal(codes >= 0, active[:, tree.decision_columns])
    for x, row, i in zip(X, codes.tolist(), tree.path_index(X).tolist(), strict=True):
        path = tree.path_of(x)
        assert path == tree.paths[i]
        assert [
            tree.decision_values[c][k]
            for c, k in zip(tree.decision_columns, row, strict=True)
            if k >= 0
        ] == list(path.decisions.values())
    for one, other in zip(
        tree.locate(X), (codes, active, tree.path_key(X)), strict=True
    ):
        assert torch.equal(one, other)
    batched = X.reshape(4, 5, -1)
    assert torch.equal(tree.path_index(batched).flatten(), tree.path_index(X))
    assert torch.equal(tree.active_mask(batched).reshape(20, -1), active)
    assert torch.equal(tree.path_key(batched).flatten(), tree.path_key(X))


@given(seeds)
def test_trees_survive_pickle_and_copy(seed: int) -> None:
    tree = random_tree(seed)
    X = random_points(tree, 5, torch.Generator().manual_seed(seed))
    tree.path_index(X)
    for other in (pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree)):
        assert other == tree
        assert hash(other) == hash(tree)
        assert torch.equal(other.path_index(X), tree.path_index(X))
    assert str(tree.num_paths) in repr(tree)


def test_devices_and_dtypes(device: torch.device) -> None:
    tree = ParameterTree(
        4, {0: {0: [1], 1: [1, 2], 2: []}}, conditions={3: Between(1, 0.5, 2.0)}
    )
    X = random_points(tree, 50, torch.Generator().manual_seed(1))
    expected = tree.path_index(X)
    for dtype in (torch.float32, torch.float64):
        Y = X.to(device, dtype)
        assert torch.equal(tree.path_index(Y).cpu(), expected)
        assert tree.path_key(Y).device.type == device.type
        assert tree.impute(Y, fill=torch.arange(4.0)).dtype == dtype
        assert torch.equal(tree.active_mask(Y).cpu(), tree.active_mask(X))


def test_the_dictionary_of_botorch() -> None:
    tree = ParameterTree(5, {0: {0: [1], 1: [1, 2], 2: []}})
    paths = [p.active.tolist() for p in tree.paths]
    assert paths == [[0, 1, 3, 4], [0, 1, 2, 3, 4], [0, 3, 4]]
    assert tree.paths[1].decisions == {0: 1.0}
    assert tree.leaf_columns(tree.paths[1]) == tree.leaf_columns(1) == [2]
    assert tree.num_edges == 3 and tree.leaf_edges.all()
    same = ParameterTree(
        5, conditions={1: In(0, [0, 1]), 2: Equals(0, 1)}, values={0: [0, 1, 2]}
    )
    assert same.num_paths == 3
    assert same == tree  # that it refuses other values does not matter
    assert tree == ParameterTree(5, {0: {2: [], 1: [2, 1], 0: [1]}})


def test_undeclared_values_are_paths_of_their_own() -> None:
    tree = ParameterTree(3, {0: {0: [1], 1: [2]}})
    X = torch.zeros(6, 3, dtype=torch.double)
    X[:, 0] = torch.tensor([0.0, 1.0, 2.0, 3.0, 2.0, 0.4])
    index = tree.path_index(X)
    assert index[:2].tolist() == [0, 1]
    assert (index[2:] >= tree.num_paths).all()
    assert index[2] == index[4]
    assert len(set(index.tolist())) == 5
    assert torch.equal(tree.path_index(X[[5, 2]]), index[[5, 2]])
    assert len(set(tree.path_key(X).tolist())) == 5
    assert tree.decision_codes(X).flatten().tolist() == [0, 1, 2, 2, 2, 2]
    assert not tree.active_mask(X)[2:, 1:].any()
    assert tree.path_of(X[3]).decisions == {0: 3.0}
    assert not tree.is_declared(X[2:]).any()
    both = ParameterTree(2, {0: {0: [], 1: []}, 1: {0: [], 1: []}})
    pairs = torch.cartesian_prod(*2 * [torch.tensor([0.0, 1.0, 2.0, 3.0]).double()])
    assert len(both.path_key(pairs).unique()) == 16
    zeros = torch.tensor([[0.0], [-0.0]], dtype=torch.double)
    assert len(ParameterTree(1, {0: {1: [], 2: []}}).path_key(zeros).unique()) == 1
    with pytest.raises(IndexError):
        tree.paths[int(index[2])]


def test_strict_values() -> None:
    tree = ParameterTree(2, {0: {0: [1]}}, values={0: [0, 1]})
    X = torch.tensor([[0.0, 0.3], [2.0, 0.1]])
    for call in (tree.path_index, tree.active_mask, tree.impute, tree.decision_codes):
        with pytest.raises(ValueError, match=r"column 0: .*\[0.0, 1.0\], got \[2.0\]"):
            call(X)
    tree.path_key(X)
    assert tree.is_declared(X).tolist() == [True, False]
    # Close to a declared value is as good as equal.
    assert tree.decision_codes(X[:1] + 5e-4).tolist() == [[0]]


def test_numeric_decisions_are_cut_into_intervals() -> None:
    tree = ParameterTree(
        3, conditions={1: Between(0, 0.25, 0.5), 2: Between(0, 0.5, math.inf)}
    )
    assert tree.numeric_decisions == [0]
    spans = tree.decision_values[0]
    assert spans[0] == (-math.inf, math.nextafter(0.25, 0))
    assert spans[2] == (0.5, 0.5)  # the one point where both hold
    assert tree.num_paths == 4
    x = torch.tensor([[0.0], [0.25], [0.4], [0.5], [0.6]], dtype=torch.double)
    X = torch.cat([x, x, x], -1)
    assert tree.active_mask(X)[:, 1].tolist() == [False, True, True, True, False]
    assert tree.active_mask(X)[:, 2].tolist() == [False, False, False, True, True]
    assert tree.path_index(X).tolist() == [0, 1, 1, 2, 3]
    assert tree.paths[0].intervals == {0: spans[0]}
    assert tree.paths[0].fixed_features == {}
    # With all its values declared it is a decision by value.
    tree = ParameterTree(2, conditions={1: Between(0, 2, 9)}, values={0: [1, 2, 3]})
    assert tree.numeric_decisions == []
    assert tree.num_paths == 3


def flags(n: int) -> dict[str, ParameterTree]:
    switches = {i: {0: [], 1: []} for i in range(n)}
    under = {0: {0: [], 1: list(range(1, n + 1))}}
    under |= {i: {0: [], 1: []} for i in range(1, n + 1)}
    return {
        "independent": ParameterTree(n + 1, switches),
        "under one root": ParameterTree(n + 1, under),
        "with children": ParameterTree(
            2 * n, {i: {0: [], 1: [n + i]} for i in range(n)}
        ),
        "a child of all": ParameterTree(n + 1, {i: {0: [], 1: [n]} for i in range(n)}),
    }


@pytest.mark.parametrize("kind", list(flags(2)))
def test_twenty_flags_are_not_listed(kind: str) -> None:
    tree = flags(20)[kind]
    others = [c for c in range(tree.dim) if c not in tree.decision_columns]
    assert tree.num_paths >= 2**20 + (kind == "under one root")
    # one child of all flags is on all paths but one
    assert tree.own_columns == [] and tree.shared_columns == others
    X = torch.randint(0, 2, (100, tree.dim)).double()
    key = tree.path_key(X)
    paths = [tree.path_of(x) for x in X]
    assert len(key.unique()) == len({str(path.decisions) for path in paths})
    for call in (lambda: tree.paths, lambda: tree.path_index(X)):
        with pytest.raises(ValueError, match="at most 4096 paths .*path_key, path_of"):
            call()


def test_columns_on_one_path_of_many() -> None:
    """A column that all of thirty flags have to be on for, and a branch of its own."""
    together = Equals(0, 1)
    for c in range(1, 30):
        together = together & Equals(c, 1)
    values = {c: [0, 1] for c in range(30)}
    conditions = {c: Equals(30, 1) for c in range(30)}
    conditions |= {31: together, 32: Equals(30, 0), 33: Equals(3, 0)}
    tree = ParameterTree(34, {30: {0: [], 1: []}}, conditions, values)
    assert tree.num_paths > 2**30
    assert tree.own_columns == [31, 32]
    assert tree.shared_columns == [33]


def test_a_chain_of_a_thousand_decisions() -> None:
    D = 1_100
    tree = ParameterTree(D, {k: {0.0: [], 1.0: [k + 1]} for k in range(D - 1)})
    assert tree.num_paths == D
    X = torch.zeros(2, D, dtype=torch.double)
    X[1] = 1.0
    assert tree.active_mask(X).sum(-1).tolist() == [1, D]
    assert len(tree.path_index(X).unique()) == 2


def test_a_decision_without_values() -> None:
    tree = ParameterTree(2, conditions={1: Inactive(0)})
    assert tree.decision_values == {0: []}
    assert tree.num_paths == 0
    assert tree.own_columns == tree.shared_columns == []


def test_leaf_edges() -> None:
    tree = ParameterTree(3, {0: {0: [2], 1: [1]}, 1: {0: [2], 1: []}})
    assert tree.edge_offsets == [0, 2]
    assert tree.leaf_edges.tolist() == [True, False, True, True]


def test_impute_keeps_gradients_of_active_columns() -> None:
    tree = ParameterTree(3, {0: {0: [1], 1: [2]}})
    X = torch.tensor([[0.0, 0.3, 0.7]], dtype=torch.double, requires_grad=True)
    Y = tree.impute(X)
    assert Y.tolist() == [[0.0, 0.3, 0.5]]
    Y.sum().backward()
    assert X.grad is not None and X.grad.tolist() == [[1.0, 1.0, 0.0]]
    fill = torch.tensor([9.0, 8.0, 7.0])
    assert tree.impute(X, fill)[0, 2] == 7.0


def test_from_any() -> None:
    tree = ParameterTree(2, {0: {0: [1]}})
    assert ParameterTree.from_any(tree, 2) is tree
    assert ParameterTree.from_any({0: {0: [1]}}, 2) == tree
    assert ParameterTree.from_any({}, 2).num_paths == 1
    space = SearchSpace(["a", "b"], torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    for x, dim, message in (
        (None, 2, "for a space without decisions, got None"),
        (tree, 3, "over 3 columns, got one over 2"),
        (space, 2, "hierarchical_dependencies: .*space.tree"),
    ):
        with pytest.raises(ValueError, match=message):
            ParameterTree.from_any(x, dim)  # type: ignore[arg-type]


def test_random_paths_reach_every_path() -> None:
    tree = random_tree(3)
    X = tree.random_paths(500, torch.Generator().manual_seed(0))
    assert len(set(tree.path_index(X).tolist())) == tree.num_paths
    again = tree.random_paths(500, torch.Generator().manual_seed(0))
    assert torch.equal(X, again)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 0}, "dim: expected a positive integer"),
        ({"hierarchical_dependencies": {0: {0: [3]}}}, r"\]\[0\]: .*0 to 2, got 3"),
        ({"hierarchical_dependencies": {0: {0: 1.5}}}, "list of columns, got 1.5"),
        ({"hierarchical_dependencies": {7: {0: [1]}}}, "from 0 to 2, got 7"),
        ({"hierarchical_dependencies": {0: [1]}}, "value: "),
        ({"hierarchical_dependencies": {0: {}}}, "at least one value"),
        ({"hierarchical_dependencies": {0: {math.nan: [1]}}}, "finite"),
        ({"hierarchical_dependencies": {0: {"a": [1]}}}, "a number, got 'a'"),
        ({"hierarchical_dependencies": {0: {0: [0]}}}, "0 -> 0"),
        (
            {"hierarchical_dependencies": {0: {0: [1]}, 1: {0: [2]}, 2: {0: [0]}}},
            "0 -> 1 -> 2 -> 0",
        ),
        ({"conditions": {1: 3}}, "Equals, In, Between"),
        ({"values": [1]}, r"values: expected {column: \[values\]}, got"),
        ({"conditions": {1: Equals(5, 0)}}, r"conditions\[1\]: .* 0 to 2, got 5"),
        ({"values": {0: [0, 0]}}, "distinct values"),
        ({"values": {0: []}}, "at least one"),
        (
            {"hierarchical_dependencies": {0: {2: [1]}}, "values": {0: [0, 1]}},
            r"without \[2.0\]",
        ),
    ],
)
def test_errors_say_what_was_expected(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ParameterTree(**{"dim": 3, **arguments})


@pytest.mark.parametrize("numeric", [False, True])
def test_nan_means_nothing_where_inactive_and_is_refused_in_decisions(numeric) -> None:
    """Column 1 decides about 2, and is active where column 0 is 0."""
    second = Between(1, 0.5, math.inf) if numeric else Equals(1, 1)
    tree = ParameterTree(3, {0: {0: [1], 1: []}}, conditions={2: second})
    nan = math.nan
    X = torch.tensor([[0.0, 1.0, nan], [1.0, nan, nan]], dtype=torch.double)
    assert tree.path_index(X).tolist() == tree.path_index(X.nan_to_num(1.0)).tolist()
    assert tree.active_mask(X).tolist() == [[True, True, True], [True, False, False]]
    assert tree.impute(X)[1].tolist() == [1.0, 0.5, 0.5]
    bad = torch.tensor([[0.0, nan, 1.0]], dtype=torch.double)
    calls = (tree.path_index, tree.active_mask, tree.impute, tree.decision_codes)
    for call in (*calls, tree.path_of):
        with pytest.raises(ValueError, match="column 1: expected a number.*nan"):
            call(bad)
    assert not tree.is_declared(bad).any()
