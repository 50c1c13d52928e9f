from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.test_functions import TableProblem


def table(seed: int = 0, n: int = 40, d: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=generator, dtype=torch.double) * 100 - 30
    return X, torch.randn(n, generator=generator, dtype=torch.double)


def conditional() -> TableProblem:
    """A complete table on a tree: 3 points under each kernel of a machine, 1 at last.

    ::

        0: kernel (0, 1, 2)    1: gamma of 0    2: degree of 1, an integer
    """
    tree = ParameterTree(3, {0: {0: [1], 1: [2], 2: []}}, values={0: [0, 1, 2]})
    bounds = torch.tensor([[0.0, -3, 1], [2, 3, 5]])
    space = SearchSpace(
        ["kernel", "gamma", "degree"], bounds, tree, integer_features=[2]
    )
    X = torch.tensor(
        [[0, -3, 9], [0, 0, 9], [0, 3, 9], [1, 7, 1], [1, 7, 2], [1, 7, 5], [2, 7, 9.0]]
    )
    return TableProblem(X, torch.arange(7.0), space=space)


@given(seed=st.integers(0, 10_000), n=st.integers(1, 60), d=st.integers(1, 4))
@settings(deadline=None, max_examples=25)
def test_a_row_has_its_value(seed: int, n: int, d: int) -> None:
    X, y = table(seed, n, d)
    problem = TableProblem(X, y)
    assert torch.equal(problem(X), y)
    assert torch.equal(problem(X.view(1, n, 1, d)), y.view(1, n, 1))
    assert torch.equal(problem(problem.candidates), problem.values)
    assert problem.optimal_value == y.min() == problem(problem.optimizers)[0]
    assert torch.equal(problem.bounds, torch.stack([X.amin(0), X.amax(0)]))
    width = torch.where(X.amax(0) > X.amin(0), X.amax(0) - X.amin(0), 1.0)
    Z = problem.bounds[0] + width * torch.rand(
        20, d, generator=torch.Generator().manual_seed(seed), dtype=torch.double
    )
    expected = X[torch.cdist(Z / width, X / width).argmin(-1)]
    assert torch.equal(problem.nearest(Z), expected)


def test_nothing_is_known_between_the_rows() -> None:
    X, y = table()
    problem = TableProblem(X, y)
    with pytest.raises(ValueError, match="X: expected rows of `candidates`"):
        problem(X[:2].mean(0))
    width = problem.bounds[1] - problem.bounds[0]
    inner = X[((X > problem.bounds[0]) & (X < problem.bounds[1])).all(-1)]
    for step, is_row in ((1e-9, True), (1e-4, False)):
        moved = inner + step * width
        if is_row:
            assert torch.equal(problem(moved), problem(inner))
        else:
            with pytest.raises(ValueError, match="expected rows"):
                problem(moved)
    with pytest.raises(ValueError, match="within the bounds"):
        problem(X[:1] + 1e3)
    with pytest.raises(ValueError, match="x 3"):
        problem(X[:, :2])
    # rounded to float32, a row is still itself
    assert torch.equal(problem(problem.candidates.float()), problem.values.float())


def test_what_is_maximised_is_returned_negative() -> None:
    X, y = table()
    ore = TableProblem(X, y, maximize=True)
    assert torch.equal(ore(X), -y)
    assert ore.optimal_value == -y.max()
    assert torch.equal(ore.optimizers, X[y.argmax()][None])
    negated = TableProblem(X, y, maximize=True, negate=True)
    assert torch.equal(negated(X), y)
    assert negated.optimal_value == y.max()


def test_logarithmic_columns() -> None:
    X = [[1.0, 0.1], [4.0, 0.2], [16.0, 0.3], [1e4, 0.7]]
    problem = TableProblem(X, [3.0, 2.0, 1.0, 4.0], ["tau", "kappa"], log_features=[0])
    assert problem.bounds[:, 0].tolist() == [0.0, 4.0]
    (best,) = problem.optimizers
    assert best.tolist() == [pytest.approx(math.log10(16.0), abs=1e-14), 0.3]
    configs = problem.space.decode(problem.candidates)
    assert [list(c.values()) for c in configs] == X  # to the last digit
    assert problem(problem.space.encode([{"tau": 4.0, "kappa": 0.2}])) == 2.0


def test_repeated_rows_are_one_with_their_mean() -> None:
    X = torch.tensor([[0.0], [1.0], [0.0], [2.0], [0.0]])
    problem = TableProblem(X, torch.tensor([1.0, 5.0, 2.0, 3.0, 6.0]))
    assert problem.candidates.tolist() == [[0.0], [1.0], [2.0]]
    assert problem.values.tolist() == [3.0, 5.0, 3.0]
    assert problem.optimizers.tolist() == [[0.0], [2.0]]


def test_starts_and_samples_are_rows() -> None:
    X, y = table(n=40, d=3)
    problem = TableProblem(X, y)
    starts = problem.starts(0)
    assert starts.shape == (6, 3)
    assert len(starts.unique(dim=0)) == 6
    assert torch.equal(starts, problem.starts(0))
    assert not torch.equal(starts, problem.starts(1))
    # those of the published runs
    order = np.random.default_rng(1001).permutation(40)[:6]
    assert torch.equal(problem.starts(1), problem.candidates[order])
    assert len(problem.starts(0, 40).unique(dim=0)) == 40
    for wrong in (0, 41):
        with pytest.raises(ValueError, match="n: expected 1 to 40"):
            problem.starts(0, wrong)
    few = TableProblem(X[:3], y[:3])
    assert len(few.starts(0)) == 3


def test_conditional_tables() -> None:
    problem = conditional()
    assert problem.tree.num_paths == 3
    assert problem.candidates.shape == (7, 3)
    nan = math.nan
    X = torch.tensor([[0, 3, nan], [1, nan, 5], [2, nan, nan], [1, 0, 1.0]])
    assert problem(X).tolist() == [2.0, 5.0, 6.0, 3.0]
    assert sorted(problem.starts(0)[:, 0].tolist()) == [0, 1, 2]
    with pytest.raises(ValueError, match="expected rows"):
        problem(torch.tensor([1.0, 0, 4]))
    Z = torch.tensor([[0, 1.4, nan], [1, nan, 2.9], [1, nan, 3.9], [2, 0, 0]])
    near = problem.nearest(Z)
    assert problem(near).tolist() == [1.0, 4.0, 5.0, 6.0]
    assert problem.space.decode(near)[2] == {"kernel": 1, "degree": 5}
    with pytest.raises(ValueError, match="expected finite"):
        problem.nearest(torch.tensor([0, nan, 1]))
    with pytest.raises(ValueError, match="x 3"):
        problem.nearest(torch.zeros(2))


def test_a_category_is_kept_where_it_has_a_row() -> None:
    """However near a row of another category is in all the other columns."""
    space = SearchSpace(
        ["a", "b", "c"],
        torch.tensor([[0.0, 0, 0], [1, 1, 9]]),
        categorical_features={2: [0, 1, 9]},
    )
    X = torch.tensor([[0.0, 0, 0], [1, 1, 1], [0.5, 0.5, 9]])
    problem = TableProblem(X, [0.0, 1.0, 2.0], space=space)
    Z = torch.tensor([[1.0, 1, 0], [0, 0, 1], [0, 0, 9]])
    assert problem(problem.nearest(Z)).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(X=[[1.0]], y=[1.0, 2.0]), "n x d inputs and n values"),
        (dict(X=[], y=[]), "n x d inputs and n values"),
        (dict(X=[[math.nan]], y=[1.0]), "finite"),
        (dict(X=[[1.0]], y=[math.inf]), "finite"),
        (dict(X=[[1.0]], y=[1.0], names=["a", "b"]), "names: expected 1 names"),
        (dict(X=[[1.0]], y=[1.0], log_features=[1]), "columns from 0 to 0"),
        (dict(X=[[0.0], [1.0]], y=[1.0, 2.0], log_features=[0]), "logarithmic"),
        (dict(X=[[0.5]], y=[1.0], names=["a"], space="unit"), "none beside names"),
        (dict(X=[[0.5, 0.5]], y=[1.0], space="unit"), "rows of 1 columns"),
        (dict(X=[[0.5], [7.0]], y=[1.0, 2.0], space="unit"), "in row 1"),
    ],
)
def test_wrong_tables(arguments: dict, message: str) -> None:
    if arguments.get("space") == "unit":
        space = SearchSpace(["a"], torch.tensor([[0.0], [1.0]]))
        arguments = {**arguments, "space": space}
    with pytest.raises(ValueError, match=message):
        TableProblem(**arguments)
