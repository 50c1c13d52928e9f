from typing import Any

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.exceptions.errors import CandidateGenerationError
from torch import Tensor

from botorch_structured.acquisition import PathLogExpectedImprovement
from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import optimize_acqf_paths, optimize_acqf_two_step
from botorch_structured.optim.boxes import Boxes
from botorch_structured.optim.search import Search
from botorch_structured.spaces import ParameterTree


@pytest.fixture
def space() -> tuple[ParameterTree, Tensor]:
    """Three paths; column 4 is shared by all of them."""
    tree = ParameterTree(5, {0: {p: [1 + p, 4] for p in range(3)}})
    bounds = torch.zeros(2, 5, dtype=torch.double)
    bounds[1] = torch.tensor([2.0, 1, 1, 1, 1])
    return tree, bounds


def per_path(*bonus: float):  # noqa: ANN201
    table = torch.tensor(bonus, dtype=torch.double)
    return lambda X: table.to(X)[X[..., 0].round().long()]


def test_the_first_step_chooses_the_path(peak, space) -> None:
    tree, bounds = space
    # The path acquisition prefers path 1, then 2; the other one path 0, then 2.
    first = peak(tree, torch.full((5,), 0.2).double(), per_path(0.0, 9.0, 5.0))
    second = peak(tree, torch.full((5,), 0.7).double(), per_path(8.0, 0.0, 3.0))
    expected = {1: 1.0, 2: 2.0, 3: 0.0}
    for top_k, path in expected.items():
        X, value = optimize_acqf_two_step(first, second, bounds, tree, top_k=top_k)
        assert X[0, 0] == path
        assert torch.equal(second(X.unsqueeze(0))[0], value)
        p = int(path)
        assert torch.allclose(X[0, [1 + p, 4]], torch.full((2,), 0.7).double())
    X, _ = optimize_acqf_paths(second, bounds, tree)
    assert X[0, 0] == 0


def test_shared_columns_of_the_first_step_can_be_kept(peak, space) -> None:
    tree, bounds = space
    first = peak(tree, torch.full((5,), 0.2).double(), per_path(0.0, 9.0, 5.0))
    second = peak(tree, torch.full((5,), 0.7).double())
    X, _ = optimize_acqf_two_step(first, second, bounds, tree, fix_shared=True)
    assert torch.allclose(X, torch.tensor([[1.0, 0.5, 0.7, 0.5, 0.2]]).double())


def test_exhausted_paths_are_passed_over(peak) -> None:
    tree = ParameterTree(2, {0: {0: [], 1: [1], 2: []}})
    bounds = torch.tensor([[0.0, 0], [2, 3]], dtype=torch.double)
    first = peak(tree, torch.zeros(2), per_path(90.0, 50.0, 10.0))
    second = peak(tree, torch.ones(2))
    known = torch.zeros(0, 2, dtype=torch.double)
    for _ in range(6):
        X, _ = optimize_acqf_two_step(
            first, second, bounds, tree, integer_features=[1], X_avoid=known
        )
        known = torch.cat([known, X])
    assert known[:, 0].tolist() == [0, 1, 1, 1, 1, 2]
    assert known[1:5, 1].tolist()[0] == 1
    with pytest.raises(CandidateGenerationError):
        optimize_acqf_two_step(
            first, second, bounds, tree, integer_features=[1], X_avoid=known
        )


def test_errors(peak, space) -> None:
    tree, bounds = space
    acqf = peak(tree, torch.zeros(5))
    with pytest.raises(ValueError, match="path_acq_function: expected"):
        optimize_acqf_two_step(None, acqf, bounds, tree)
    with pytest.raises(ValueError, match="top_k: expected a positive integer, got 0"):
        optimize_acqf_two_step(acqf, acqf, bounds, tree, top_k=0)
    with pytest.raises(ValueError, match="pending.*q=2"):
        optimize_acqf_two_step(acqf, acqf, bounds, tree, q=2)
    assert acqf.calls == 0
    X = torch.rand(6, 5, dtype=torch.double)
    X[:, 0] = torch.arange(6) % 2
    model = TreeStructuredGP(X, X.sum(-1, keepdim=True), tree)
    both = [
        kind(model, best_f=1.0)
        for kind in (LogExpectedImprovement, PathLogExpectedImprovement)
    ]
    with pytest.raises(ValueError, match="acq_function: expected one that tells"):
        optimize_acqf_two_step(*both, bounds, tree)


def test_the_first_step_searches_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared columns and those declared comparable; the others are held."""
    tree = ParameterTree(6, {0: {p: [1 + p, 4, 5] for p in range(3)}})
    bounds = torch.zeros(2, 6, dtype=torch.double)
    bounds[1] = torch.tensor([2.0, 1, 1, 1, 1, 1])
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(24, 6, generator=generator, dtype=torch.double)
    X[:, 0] = torch.arange(24) % 3
    X = tree.impute(X)
    Y = torch.sin(6.0 * X[:, 4:]).sum(-1, keepdim=True) - X[:, :1]
    moved: list[list[int]] = []
    maximise = Search.maximise

    def spy(self: Search, boxes: Boxes, *args: Any, **kwargs: Any) -> Any:
        moved.append(boxes.free.any(0).nonzero()[0].tolist())
        found = maximise(self, boxes, *args, **kwargs)
        if len(moved) == 1:
            best.append(float(found[1].max()))
        return found

    monkeypatch.setattr(Search, "maximise", spy)
    grid = torch.linspace(0.0, 1.0, 41, dtype=torch.double)
    dense = torch.full((3 * 41 * 41, 6), 0.3, dtype=torch.double)
    dense[:, [0, 4, 5]] = torch.cartesian_prod(bounds.new_tensor([0, 1, 2]), grid, grid)
    model = TreeStructuredGP(X, Y, tree)
    first = PathLogExpectedImprovement(model, best_f=Y.max())
    second = LogExpectedImprovement(model, best_f=Y.max())
    best: list[float] = []
    # known points do not exclude a path from the first step
    optimize_acqf_two_step(first, second, bounds, tree, seed=1, X_avoid=X)
    assert moved[0] == [4, 5] and 4 in moved[1] and 5 in moved[1]
    values = first(dense.unsqueeze(1))
    assert best[0] >= values.max() - 1e-6
    # where a restriction involves any column, all of them are searched
    moved.clear()
    optimize_acqf_two_step(
        first, second, bounds, tree, seed=1, feasible=lambda X: X[:, 1] < 0.9
    )
    assert moved[0] == [1, 2, 3, 4, 5]


def test_a_path_whose_held_point_is_known_is_chosen() -> None:
    """With nothing shared, each path is one point to the first step."""
    tree = ParameterTree(4, {0: {p: [1 + p] for p in range(3)}})
    bounds = torch.zeros(2, 4, dtype=torch.double)
    bounds[1] = torch.tensor([2.0, 1, 1, 1])
    X = tree.impute(torch.zeros(3, 4, dtype=torch.double), 0.5)
    X[:, 0] = torch.arange(3)
    X[torch.arange(3), 1 + torch.arange(3)] = 0.0
    Y = torch.tensor([[0.0], [3.0], [1.0]], dtype=torch.double)
    model = TreeStructuredGP(X, Y, tree)
    candidate, _ = optimize_acqf_two_step(
        PathLogExpectedImprovement(model, best_f=3.0),
        LogExpectedImprovement(model, best_f=3.0),
        bounds,
        tree,
        X_avoid=X,
    )
    assert candidate[0, 0] == 1.0 and candidate[0, 2] > 0.0
