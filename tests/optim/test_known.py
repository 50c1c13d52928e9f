from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from botorch_structured.optim.problem import is_known, make_problem
from botorch_structured.spaces import ParameterTree


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-6, 1.0, 1e7]))
def test_equals_comparing_all_pairs(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    tree = ParameterTree(5, {0: {0: [1, 2], 1: [2, 3], 2: []}})
    bounds = torch.tensor([[0.0, 0, -1, 0, 5], [2, 1, 1, 3, 5]]).double()
    bounds[:, 1:4] *= scale
    problem = make_problem(bounds, tree, None, None, None, None, None, None, 0.5, 9)
    X = tree.random_paths(60, generator)
    X[:, 1:4] = torch.randint(3, (60, 3), generator=generator) * bounds[1, 1:4] / 2
    X[:, 4] = 5
    X = tree.impute(X)
    known = X[torch.randperm(60, generator=generator)[:20]]
    known[:10, 2] += 1e-10 * scale  # too close to tell apart
    known[10:, 2] += 1e-4 * scale
    known = tree.impute(known)
    expected = [
        any(
            tree.path_key(x[None]) == tree.path_key(k[None])
            and ((x - k).abs() <= 1e-8 * (bounds[1] - bounds[0])).all()
            for k in known
        )
        for x in X
    ]
    assert is_known(problem, X, known).tolist() == expected
    assert is_known(problem, known, known).all()
    assert not is_known(problem, X, known[:0]).any()


def test_a_distance_is_kept_in_continuous_columns_only() -> None:
    # column 1 moves continuously, column 2 is an integer; a point is 0.01 widths wide
    tree = ParameterTree(3, {0: {0: [1, 2], 1: []}})
    bounds = torch.tensor([[0.0, 0.0, 0.0], [1.0, 10.0, 9.0]]).double()
    problem = make_problem(
        bounds, tree, [2], None, None, None, None, None, 0.5, 9, min_distance=0.01
    )
    known = torch.tensor([[0.0, 5.0, 3.0]]).double()
    X = torch.tensor(
        [[0, 5.09, 3], [0, 5.11, 3], [0, 5.0, 4], [1, 0.5, 0.5]], dtype=torch.double
    )
    assert is_known(problem, X, known).tolist() == [True, False, False, False]
