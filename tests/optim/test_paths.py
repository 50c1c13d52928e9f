import math

import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    PosteriorMean,
    qLogExpectedImprovement,
)
from botorch.exceptions.errors import CandidateGenerationError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf_mixed
from botorch.optim.utils.timeout import minimize_with_timeout
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.optimize import OptimizeResult
from search_problems import data
from torch import Tensor

from botorch_structured.models import ConditionalGP
from botorch_structured.optim import boxes, optimize_acqf_paths, search
from botorch_structured.spaces import Between, ParameterTree, SearchSpace


def bonus_for(best: int):  # noqa: ANN201
    return lambda X: 100.0 * (X[..., 0].round() == best).to(X)


def test_all_paths_share_the_calls(peak) -> None:
    tree = ParameterTree(65, {0: {p: [1 + p] for p in range(64)}})
    bounds = torch.zeros(2, 65, dtype=torch.double)
    bounds[1] = 1.0
    bounds[1, 0] = 63.0
    acqf = peak(tree, torch.linspace(0.1, 0.9, 65).double(), lambda X: X[..., 0] / 100)
    X, value = optimize_acqf_paths(acqf, bounds, tree)
    assert float(X[0, 0]) == 63
    assert float(value) == pytest.approx(0.63, abs=1e-12)
    assert acqf.calls < 40


def test_a_peak_as_narrow_as_at_the_end_of_a_run(peak) -> None:
    # Expected improvement next to a noise-free incumbent: 1e-5 wide, a distance of 1e-4
    # away from the best known point, in a box of width 2.
    tree = ParameterTree(4, {0: {0: [1, 3], 1: [2, 3]}})
    bounds = torch.tensor([[0.0, -1, -1, 0], [1, 1, 1, 1]], dtype=torch.double)
    target = torch.tensor([1.0, 0.5, 0.3141, 0.0], dtype=torch.double)

    def narrow(X: Tensor) -> Tensor:
        gap = (X[..., 2] - target[2]) ** 2 + X[..., 3] ** 2
        return torch.where(X[..., 0] > 0.5, -torch.log(gap + 1e-10), -5.0)

    class Narrow(peak):
        def forward(self, X: Tensor) -> Tensor:
            return narrow(X.squeeze(-2))

    start = torch.tensor([[1.0, 0.5, 0.3140, 0.0]], dtype=torch.double)
    for seed in range(5):
        X, _ = optimize_acqf_paths(
            Narrow(tree, target), bounds, tree, X_start=start, seed=seed
        )
        assert torch.allclose(X[0], target, atol=1e-8, rtol=0)


def test_wide_integers(peak) -> None:
    tree = ParameterTree(3, {0: {0: [1], 1: [2]}})
    bounds = torch.tensor([[0.0, 1, 1], [1, 10**6, 9]], dtype=torch.double)
    acqf = peak(tree, torch.tensor([0, 271828.3, 3]).double(), bonus_for(0))
    X, _ = optimize_acqf_paths(acqf, bounds, tree, integer_features=[1, 2])
    assert X[0, 1] == 271828


def test_at_least_as_good_as_one_optimisation_per_path(small) -> None:
    tree, bounds = small
    X, Y = data(tree)
    acqf = LogExpectedImprovement(SingleTaskGP(X, Y), Y.max())
    each = [{0: float(p), **{c: 0.5 for c in range(1, 5)}} for p in range(3)]
    for p, columns in enumerate(([1, 3], [2, 3], [4])):
        for c in columns:
            del each[p][c]
    _, stock = optimize_acqf_mixed(
        acqf, bounds, q=1, num_restarts=8, raw_samples=128, fixed_features_list=each
    )
    for seed in range(3):
        _, value = optimize_acqf_paths(acqf, bounds, tree, seed=seed)
        assert value >= stock - 1e-8


def test_batches_run_out_with_the_space(small) -> None:
    tree = ParameterTree(1, values={0: [0, 1]})
    X = torch.tensor([[0.0], [1.0], [0.0]], dtype=torch.double)
    acqf = qLogExpectedImprovement(SingleTaskGP(X, X), 1.0)
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    new, _ = optimize_acqf_paths(acqf, bounds, tree, q=2)
    assert sorted(new.view(-1).tolist()) == [0.0, 1.0]
    with pytest.raises(CandidateGenerationError, match="2 points are known"):
        optimize_acqf_paths(acqf, bounds, tree, q=3)
    assert acqf.X_pending is None


def test_numeric_decisions_move_inside_their_interval(peak) -> None:
    tree = ParameterTree(
        3, conditions={1: Between(0, 0.5, math.inf), 2: Between(0, 3, 5)}
    )
    bounds = torch.tensor([[0.0, 0, 0], [10, 1, 1]], dtype=torch.double)
    acqf = peak(tree, torch.tensor([4.2, 0.1, 0.9]).double())
    X, value = optimize_acqf_paths(acqf, bounds, tree)
    # Any active column costs: where there is none, the decision is as high as it may.
    assert float(value) == pytest.approx(0.0, abs=1e-12)
    acqf = peak(tree, torch.tensor([0.7, 0.1, 0.9]).double(), lambda X: -9 * X[..., 0])
    X, _ = optimize_acqf_paths(acqf, bounds, tree)
    assert float(X[0, 0]) == 0
    X, _ = optimize_acqf_paths(
        acqf, bounds, tree, integer_features=[0], fixed_features={0: 4.0}
    )
    assert torch.allclose(X, torch.tensor([[4.0, 0.1, 0.9]]).double())


def test_paths_that_are_drawn_and_changed(peak, monkeypatch) -> None:
    """Where there are too many to search all."""
    tree = ParameterTree(8, {c: {0: [], 1: [4 + c]} for c in range(4)})
    bounds = torch.tensor([[0.0] * 8, [1.0] * 8]).double()
    acqf = peak(tree, torch.full((8,), 0.5).double(), lambda X: X[..., :4].sum(-1))
    for module in (boxes, search):
        monkeypatch.setattr(module, "MAX_PATHS", 4)
    best, _ = optimize_acqf_paths(acqf, bounds, tree)
    assert best[0, :4].tolist() == [1.0] * 4


def test_linear_constraints_bind_where_all_their_columns_are_active(peak) -> None:
    tree = ParameterTree(4, {0: {0: [1, 2], 1: [1, 3]}})
    bounds = torch.tensor([[0.0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.double)
    target = torch.full((4,), 0.8).double()
    at_most = (torch.tensor([1, 2]), torch.tensor([-1.0, -1.0]).double(), -1.0)

    def best(path: int) -> Tensor:
        return optimize_acqf_paths(
            peak(tree, target, bonus_for(path)),
            bounds,
            tree,
            inequality_constraints=[at_most],
        )[0][0]

    assert torch.allclose(best(0), torch.tensor([0, 0.5, 0.5, 0.5]).double())
    assert best(0)[1] + best(0)[2] <= 1.0
    assert torch.allclose(best(1), torch.tensor([1, 0.8, 0.5, 0.8]).double())


def test_an_early_end_under_constraints_is_no_warning(
    peak, monkeypatch, recwarn
) -> None:
    def early(*args: object, **kwargs: object) -> OptimizeResult:
        result = minimize_with_timeout(*args, **kwargs)
        return OptimizeResult(result, success=False, status=8, message="early")

    monkeypatch.setattr("botorch.generation.gen.minimize_with_timeout", early)
    tree, bounds = ParameterTree(2), torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    acqf = peak(tree, torch.full((2,), 0.8).double(), lambda X: 0.0)
    at_most = (torch.tensor([0, 1]), torch.tensor([-1.0, -1.0]).double(), -1.0)
    X, _ = optimize_acqf_paths(acqf, bounds, tree, inequality_constraints=[at_most])
    assert torch.allclose(X, torch.full((1, 2), 0.5).double())
    assert not recwarn.list


def test_feasible_is_honoured_to_the_end(peak, small) -> None:
    tree, bounds = small
    seen = []

    def outside(X: Tensor) -> Tensor:
        seen.append(len(X))
        return (X[:, 4] - 0.5).abs() > 0.25

    acqf = peak(tree, torch.full((5,), 0.6).double(), bonus_for(2))
    X, _ = optimize_acqf_paths(acqf, bounds, tree, feasible=outside)
    assert X[0, 0] == 2
    assert 0.75 < float(X[0, 4]) < 0.7505


def test_a_climb_ends_at_the_distance_from_a_known_point() -> None:
    """And not at a raw sample, where the maximum is too near to one."""
    space = SearchSpace.from_dictionaries({"x": (0.0, 1.0), "y": (0.0, 1.0)})
    X = torch.tensor([[0.5, 0.5], [0.1, 0.2], [0.9, 0.3], [0.3, 0.9], [0.7, 0.8]])
    Y = -((X - 0.48) ** 2).sum(-1, keepdim=True)
    model = ConditionalGP(X, Y, space)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    mean = PosteriorMean(model)
    grid = torch.cartesian_prod(torch.linspace(0, 1, 201), torch.linspace(0, 1, 201))
    far = ((grid.unsqueeze(1) - X).abs() > 0.05).any(-1).all(-1)
    best = mean(grid[far].unsqueeze(-2)).max()
    for seed in range(4):
        found, value = optimize_acqf_paths(
            mean, space=space, X_avoid=X, min_distance=0.05, seed=seed
        )
        assert ((found - X).abs() > 0.05).any(-1).all()
        assert value > best - 2e-4
