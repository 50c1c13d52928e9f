import math
from functools import partial

import pytest
import search_problems
import torch
from hypothesis import given, settings
from strategies import random_tree, seeds
from torch import Tensor

from botorch_structured.optim import optimize_acqf_local_search
from botorch_structured.spaces import Between, ParameterTree, SearchSpace

best_of_random = partial(optimize_acqf_local_search, max_iter=0)


class Function(search_problems.Function):
    """Refuses gradients."""

    def forward(self, X: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        return super().forward(X)


def test_climbs_to_the_optimum_of_a_space_too_large_to_sample() -> None:
    """9^6 points and two random ones: a separable function has no other maximum."""
    tree = ParameterTree(7, {0: {0: [1, 2, 3, 4, 5, 6]}}, values={0: [0]})
    bounds = torch.zeros(2, 7, dtype=torch.double)
    bounds[1, 1:] = 8.0
    target = torch.tensor([0.0, 8, 0, 3, 5, 2, 7], dtype=torch.double)
    acqf = Function(lambda X: -(X - target).abs().sum(-1))
    X, value = optimize_acqf_local_search(
        acqf,
        bounds,
        tree,
        raw_samples=2,
        integer_features=[1, 2, 3],
        categorical_features={c: [float(v) for v in range(9)] for c in (4, 5, 6)},
    )
    assert torch.equal(X[0], target) and value == 0
    # Every call but the first is one iteration, of all starts together.
    assert len(acqf.seen) <= 1 + 3 * 8 + 3 + 1


def mixed(seed: int):  # noqa: ANN201
    """A tree with all kinds of columns in [0, 2], and something smooth on it."""
    tree = random_tree(seed)
    bounds = torch.zeros(2, tree.dim, dtype=torch.double)
    bounds[1] = 2.0
    others = [c for c in range(tree.dim) if c not in tree.decision_columns]
    kinds = {
        "integer_features": others[::3],
        "categorical_features": {c: [0.0, 0.5, 2.0] for c in others[1::3]},
    }
    weight = torch.randn(tree.dim, generator=torch.Generator().manual_seed(seed))
    weight = weight.double()

    def smooth(X: Tensor) -> Tensor:
        X = tree.impute(X, 0.0)
        return torch.sin(3.0 * X @ weight) + (torch.sin(2 * X) * weight).sum(-1)

    return tree, bounds, kinds, smooth


@settings(max_examples=20)
@given(seed=seeds)
def test_values_never_fall(seed: int) -> None:
    """The same seed: the first iterations are those of a shorter climb."""
    tree, bounds, kinds, smooth = mixed(seed)
    found = []
    for length in (0, 1, 2, 5, 10**4):
        x, value = optimize_acqf_local_search(
            Function(smooth),
            bounds,
            tree,
            raw_samples=5,
            max_iter=length,
            seed=seed,
            **kinds,
        )
        torch.testing.assert_close(value, smooth(x)[0], rtol=0.0, atol=1e-12)
        found.append(float(value))
    assert found == sorted(found)


def test_the_papers_fixed_step() -> None:
    """``min_step=step``: the end lies on the lattice through a start."""
    tree = ParameterTree(2)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 10.0]], dtype=torch.double)
    target = torch.tensor([0.47, 6.1], dtype=torch.double)
    acqf = Function(lambda X: -((X - target) ** 2).sum(-1))
    X, _ = optimize_acqf_local_search(
        acqf, bounds, tree, raw_samples=1, step=0.05, min_step=0.05, seed=3
    )
    start = acqf.seen[0][0]
    steps = (X[0] - start) / torch.tensor([0.05, 0.5], dtype=torch.double)
    assert torch.allclose(steps, steps.round(), atol=1e-9)
    assert steps.abs().max() >= 1
    width = bounds[1] - bounds[0]
    assert ((X[0] - target).abs() <= 0.5 * 0.05 * width + 1e-9).all()
    # One step both ways in both columns, in each iteration.
    assert all(len(X) == 4 for X in acqf.seen[1:])
    # With smaller ones in the same calls the climb gets nearer.
    fine, _ = optimize_acqf_local_search(
        acqf, bounds, tree, raw_samples=1, step=0.05, min_step=1e-4, seed=3
    )
    assert ((fine[0] - target).abs() <= 2e-4 * width).all()


def test_known_points_are_never_evaluated() -> None:
    """The maximum and what is near it are known: a climb goes on around them."""
    tree = ParameterTree(2)
    bounds = torch.tensor([[0.0, 0.0], [20.0, 20.0]], dtype=torch.double)
    square = torch.cartesian_prod(*[torch.arange(7.0, 14.0).double()] * 2)
    acqf = Function(lambda X: -((X - 10) ** 2).sum(-1))
    X, value = optimize_acqf_local_search(
        acqf, bounds, tree, integer_features=[0, 1], X_avoid=square, X_start=square
    )
    assert float(value) == -16.0
    assert len(acqf.seen) > 2
    for points in acqf.seen:
        assert not (points[:, None] == square).all(-1).any()


def test_a_start_at_a_known_point_moves_off() -> None:
    """As at the end of a run: the optimum is next to the best point, in a valley."""
    tree = ParameterTree(3, {0: {0: [1], 1: [2]}}, values={0: [0, 1]})
    bounds = torch.tensor([[0.0, 0, 0], [1, 1, 1]], dtype=torch.double)
    at = torch.tensor([[1.0, 0.5, 0.3141]], dtype=torch.double)

    def narrow(X: Tensor) -> Tensor:
        gap = (X[:, 2] - 0.3141).abs()
        inside = torch.where(gap < 3e-4, 2.0 - gap, -1.0)
        return torch.where(X[:, 0] == 1, torch.where(gap < 0.03, inside, -gap), -2.0)

    kwargs = {"X_avoid": at, "num_restarts": 1, "seed": 0}
    X, value = optimize_acqf_local_search(
        Function(narrow), bounds, tree, X_start=at, **kwargs
    )
    # The smallest step, 0.2 / 4^5, from the known point.
    assert float((X[0, 2] - 0.3141).abs()) == pytest.approx(0.2 / 4**5, abs=1e-9)
    without, lower = optimize_acqf_local_search(
        Function(narrow), bounds, tree, X_start=at[:0], **kwargs
    )
    far, same = optimize_acqf_local_search(
        Function(narrow), bounds, tree, X_start=at, min_distance=1e-3, **kwargs
    )
    for x, less in ((without, lower), (far, same)):
        assert less < 0 < value
        assert 0.03 <= float((x[0, 2] - 0.3141).abs()) < 0.0303


def test_a_plateau_ends_the_climb(small) -> None:
    tree, bounds = small
    acqf = Function(lambda X: torch.zeros_like(X[:, 0]))
    _, value = optimize_acqf_local_search(acqf, bounds, tree)
    assert value == 0 and len(acqf.seen) == 2


def test_starts_are_limited(small) -> None:
    tree, bounds = small
    given = tree.impute(torch.rand(50, 5, dtype=torch.double).round())
    acqf = Function(lambda X: X.sum(-1))
    optimize_acqf_local_search(acqf, bounds, tree, num_restarts=3, X_start=given)
    # The first of those given, and as many random ones besides.
    assert torch.equal(acqf.seen[1], given[:3])


def test_steps_are_checked(small) -> None:
    tree, bounds = small
    acqf = Function(lambda X: X.sum(-1))
    for message, arguments in (
        ("max_iter: expected", dict(max_iter=-1)),
        (r"step: expected a share of the width.*got 0\.0", dict(step=0.0)),
        ("step: expected a number that is not NaN", dict(step=math.nan)),
        ("min_step: .*at most step=0.1, got 0.2", dict(step=0.1, min_step=0.2)),
        ("min_step: expected.*above 0", dict(min_step=0.0)),
    ):
        with pytest.raises(ValueError, match=message):
            optimize_acqf_local_search(acqf, bounds, tree, **arguments)
    assert not acqf.seen


def test_points_are_distributed_as_those_of_the_search_space() -> None:
    """Paths, integers and reals: same shares, same moments, within five sigma."""
    tree = ParameterTree(
        6,
        {0: {0: [1], 1: [2, 5], 2: []}},
        conditions={4: Between(3, 0.9, math.inf)},
        values={0: [0, 1, 2]},
    )
    bounds = torch.tensor([[0.0, -1, 1, 0, 0, 1], [2, 3, 4, 1, 1, 1000]]).double()
    scales = {"integer_features": [2, 5], "log_features": [5]}
    space = SearchSpace(list("abcdef"), bounds, tree, **scales)
    n = 20_000
    acqf = Function(lambda X: torch.sin(1e3 * X.sum(-1)))
    best_of_random(acqf, space=space, raw_samples=n)
    mine, theirs = acqf.seen[0], space.sample(n, seed=1)
    keys = tree.path_key(torch.cat([mine, theirs]))
    for key in keys.unique():
        p, q = (keys[:n] == key).double().mean(), (keys[n:] == key).double().mean()
        assert abs(p - q) < 5 * math.sqrt(2 * p * (1 - p) / n)
    for c in range(6):
        a = mine[tree.active_mask(mine)[:, c], c]
        b = theirs[tree.active_mask(theirs)[:, c], c]
        sigma = float(b.std() * (1 / len(a) + 1 / len(b)) ** 0.5)
        assert abs(float(a.mean() - b.mean())) < 5 * sigma
        assert float(a.std()) == pytest.approx(float(b.std()), rel=0.05)
    # A tenth of the range of the numeric decision, not half of its two intervals.
    assert abs(float((mine[:, 3] >= 0.9).double().mean()) - 0.1) < 0.011
