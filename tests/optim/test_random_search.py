from __future__ import annotations

import math

import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    qKnowledgeGradient,
    qLogExpectedImprovement,
)
from botorch.exceptions.errors import CandidateGenerationError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.models import SingleTaskGP
from torch import Tensor

from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import (
    optimize_acqf_local_search,
    optimize_acqf_random,
)
from botorch_structured.spaces import Between, ParameterTree, SearchSpace


class Recorder(AcquisitionFunction):
    """Keeps what it is asked about; the value is a rugged function of all columns."""

    def __init__(self) -> None:
        super().__init__(model=torch.nn.Module())
        self.seen: list[Tensor] = []

    def forward(self, X: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        self.seen.append(X.squeeze(-2))
        return torch.sin(1e3 * X.squeeze(-2).sum(-1))


def test_the_best_of_a_thousand_in_one_call(learners) -> None:
    tree, bounds = learners
    acqf = Recorder()
    X, value = optimize_acqf_random(acqf, bounds, tree, integer_features=[3], seed=0)
    (seen,) = acqf.seen
    # Path 3 has no columns: its points are one, and scored once.
    assert 600 < len(seen) <= 1000
    assert len(seen.unique(dim=0)) == len(seen)
    values = torch.sin(1e3 * seen.sum(-1))
    assert value == values.max()
    assert torch.equal(X[0], seen[values.argmax()])
    optimize_acqf_random(acqf, bounds, tree, raw_samples=7)
    assert len(acqf.seen[1]) <= 7


def test_points_are_distributed_as_those_of_the_search_space() -> None:
    """Paths, integers and reals: same shares, same moments, within five sigma."""
    tree = ParameterTree(
        5,
        {0: {0: [1], 1: [2], 2: []}},
        conditions={4: Between(3, 0.9, math.inf)},
        values={0: [0, 1, 2]},
    )
    bounds = torch.tensor([[0.0, -1, 1, 0, 0], [2, 3, 4, 1, 1]], dtype=torch.double)
    space = SearchSpace(["a", "b", "c", "d", "e"], bounds, tree, integer_features=[2])
    n = 20_000
    acqf = Recorder()
    optimize_acqf_random(
        acqf, bounds, tree, raw_samples=n, integer_features=[2], fill=space.fill
    )
    mine, theirs = acqf.seen[0], space.sample(n, seed=1)
    keys = tree.path_key(torch.cat([mine, theirs]))
    for key in keys.unique():
        p, q = (keys[:n] == key).double().mean(), (keys[n:] == key).double().mean()
        assert abs(p - q) < 5 * math.sqrt(2 * p * (1 - p) / n)
    for c in range(5):
        a = mine[tree.active_mask(mine)[:, c], c]
        b = theirs[tree.active_mask(theirs)[:, c], c]
        sigma = float(b.std() * (1 / len(a) + 1 / len(b)) ** 0.5)
        assert abs(float(a.mean() - b.mean())) < 5 * sigma
        assert float(a.std()) == pytest.approx(float(b.std()), rel=0.05)
    # A tenth of the range of the numeric decision, not half of its two intervals.
    assert abs(float((mine[:, 3] >= 0.9).double().mean()) - 0.1) < 0.011


def test_every_promise_is_kept() -> None:
    tree = ParameterTree(6, {0: {0: [1, 2], 1: [2, 3], 2: [4]}}, values={0: [0, 1, 2]})
    bounds = torch.tensor([[0.0, 0, 0, 0, 0, 0], [2, 1, 1, 9, 1, 1]]).double()
    known = torch.tensor([[0.0, 0.5, 0.5, 0, 0, 0.25]], dtype=torch.double)
    acqf = Recorder()
    constraint = (torch.tensor([1, 2]), torch.tensor([1.0, 1.0]).double(), 1.0)
    optimize_acqf_random(
        acqf,
        bounds,
        tree,
        categorical_features={3: [0.0, 2.5, 9.0], 0: [0.0, 1.0]},
        fixed_features={5: 0.25},
        inequality_constraints=[constraint],
        feasible=lambda X: X[:, 2] > 0.1,
        X_avoid=known,
        fill=-1.0,
        min_distance=0.2,
    )
    (X,) = acqf.seen
    active = tree.active_mask(X)
    assert (X[~active] == -1.0).all()
    assert ((X >= bounds[0]) & (X <= bounds[1]))[active].all()
    assert set(X[:, 0].tolist()) == {0.0, 1.0}
    assert set(X[X[:, 0] == 1, 3].tolist()) == {0.0, 2.5, 9.0}
    assert (X[:, 5] == 0.25).all() and (X[:, 2] > 0.1).all()
    first = X[X[:, 0] == 0]
    assert (first[:, 1] + first[:, 2] >= 1.0).all()
    assert ((first[:, 1:3] - 0.5).abs() > 0.2).any(-1).all()


def test_seeds(learners) -> None:
    tree, bounds = learners

    def run(seed: int | None) -> Tensor:
        return optimize_acqf_random(Recorder(), bounds, tree, seed=seed)[0]

    state = torch.get_rng_state()
    assert torch.equal(run(5), run(5))
    assert not torch.equal(run(5), run(6))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(8)
    first = run(None)
    torch.manual_seed(8)
    assert torch.equal(first, run(None))


def test_the_last_points_of_finite_spaces(peak) -> None:
    tree = ParameterTree(3, {0: {0: [1], 1: [2], 2: []}}, values={0: [0, 1, 2]})
    bounds = torch.tensor([[0.0, 0, 0], [2, 2, 3]], dtype=torch.double)
    kwargs = {"integer_features": [1], "categorical_features": {2: [1, 3]}}
    acqf = peak(tree, torch.tensor([0.0, 1.0, 2.0]), lambda X: -X[..., 0])
    known = torch.zeros(0, 3, dtype=torch.double)
    for _ in range(3 + 2 + 1):
        X, _ = optimize_acqf_random(acqf, bounds, tree, X_avoid=known, **kwargs)
        known = torch.cat([known, X])
    assert sorted(known[:, 0].tolist()) == [0, 0, 0, 1, 1, 2]
    assert len(known.unique(dim=0)) == 6
    with pytest.raises(CandidateGenerationError, match="6 points are known"):
        optimize_acqf_random(acqf, bounds, tree, X_avoid=known, **kwargs)


def test_the_last_point_of_a_large_finite_space(peak) -> None:
    """Hardly to be met by chance: 8 draws a point of the space."""
    tree = ParameterTree(2)
    bounds = torch.tensor([[0.0, 0], [199, 199]], dtype=torch.double)
    every = torch.cartesian_prod(*[torch.arange(200.0).double()] * 2)
    acqf = peak(tree, torch.tensor([3.0, 3.0]))
    known = every[torch.arange(len(every)) != 777]
    kwargs = {"integer_features": [0, 1], "raw_samples": 4}
    X, _ = optimize_acqf_random(acqf, bounds, tree, X_avoid=known, **kwargs)
    assert torch.equal(X[0], every[777])


def test_thin_feasible_sets(peak) -> None:
    tree = ParameterTree(7, {0: {0: [1, 2, 3, 4, 5, 6], 1: []}}, values={0: [0, 1]})
    bounds = torch.zeros(2, 7, dtype=torch.double)
    bounds[1] = 1.0
    columns, ones = torch.arange(1, 7), torch.ones(6, dtype=torch.double)
    constraints = [(columns, ones, 3.0), (columns, -ones, -3.0001)]
    acqf = peak(tree, torch.linspace(0, 1, 7).double())
    X, _ = optimize_acqf_random(
        acqf,
        bounds,
        tree,
        fixed_features={0: 0.0},
        inequality_constraints=constraints,
    )
    assert 3.0 <= float(X[0, 1:].sum()) <= 3.0001
    with pytest.raises(CandidateGenerationError, match="feasible"):
        optimize_acqf_random(
            acqf, bounds, tree, feasible=lambda X: torch.zeros(len(X)).bool()
        )


def test_undeclared_outcomes_are_proposed_where_they_are_named(peak) -> None:
    tree = ParameterTree(2, {0: {1: [1]}})
    bounds = torch.tensor([[0.0, 0], [5, 1]], dtype=torch.double)
    acqf = peak(tree, torch.zeros(2), lambda X: (X[..., 0] - 1).abs())
    assert optimize_acqf_random(acqf, bounds, tree)[0][0, 0] == 1
    cats = {0: [0.0, 1.0, 4.0]}
    X, _ = optimize_acqf_random(acqf, bounds, tree, categorical_features=cats)
    assert X.tolist() == [[4.0, 0.5]]
    X, _ = optimize_acqf_random(acqf, bounds, tree, fixed_features={0: 3.0})
    assert X.tolist() == [[3.0, 0.5]]


def test_a_million_paths() -> None:
    tree = ParameterTree(20, values={k: [0, 1] for k in range(20)})
    bounds = torch.zeros(2, 20, dtype=torch.double)
    bounds[1] = 1.0
    acqf = Recorder()
    optimize_acqf_random(acqf, bounds, tree, seed=0)
    share = acqf.seen[0].mean(0)
    assert ((share - 0.5).abs() < 5 * 0.5 / math.sqrt(len(acqf.seen[0]))).all()


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_expected_improvement(dtype, device) -> None:
    tree = ParameterTree(4, {0: {0: [1, 3], 1: [2, 3]}}, values={0: [0, 1]})
    bounds = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=dtype, device=device)
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(16, 4, generator=generator).to(bounds)
    X[:, 0] = X[:, 0].round()
    X = tree.impute(X)
    Y = -((X - 0.4) ** 2).sum(-1, keepdim=True)
    model = TreeStructuredGP(X, Y, tree).eval()
    acqf = LogExpectedImprovement(model, Y.max())
    new, value = optimize_acqf_random(acqf, bounds, tree, X_avoid=X, seed=0)
    assert new.dtype == value.dtype == dtype and new.device.type == device.type
    assert new.shape == (1, 4) and value.shape == torch.Size([])
    # Alone and among a thousand: the same up to rounding of a product of other sizes.
    assert torch.allclose(acqf(new.unsqueeze(0))[0], value, rtol=1e-3)
    qei = qLogExpectedImprovement(model, Y.max(), X_pending=X[:2])
    new, values = optimize_acqf_random(qei, bounds, tree, q=2, X_avoid=X, seed=0)
    assert new.shape == (2, 4) and values.shape == (2,)
    assert not torch.equal(new[0], new[1])
    assert torch.equal(qei.X_pending, X[:2])


def test_errors_come_before_any_work(peak) -> None:
    tree = ParameterTree(3, {0: {0: [1], 1: [2]}}, values={0: [0, 1]})
    bounds = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.double)
    acqf = peak(tree, torch.zeros(3))

    def refused(message: str, **kwargs: object) -> None:
        args = {"acq_function": acqf, "bounds": bounds, "tree": tree, **kwargs}
        with pytest.raises(ValueError, match=message):
            optimize_acqf_random(**args)

    X = torch.rand(4, 3, dtype=torch.double)
    knowledge = qKnowledgeGradient(SingleTaskGP(X, X[:, :1]))
    refused("acq_function.*one-shot", acq_function=knowledge)
    refused("tree: expected a ParameterTree", tree={0: {0: [1]}})
    refused("bounds: expected a floating-point 2 x 3", bounds=bounds[:, :2])
    refused("q: expected a positive integer", q=0)
    refused("raw_samples: expected a positive integer", raw_samples=0)
    refused("pending.*q=2", q=2)
    refused("X_avoid: column 0: expected", X_avoid=X * math.nan)
    refused("min_distance: expected", min_distance=1.0)
    refused(r"feasible: .*\(\d+,\) booleans", feasible=lambda X: torch.ones(1).bool())
    refused("expected to leave at least one path", bounds=0.5 * bounds + 0.25)
    assert acqf.calls == 0


def test_an_acquisition_function_of_nothing_but_nan_is_told(peak) -> None:
    tree = ParameterTree(2, {0: {0: [1]}})
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    acqf = peak(tree, torch.full((2,), math.nan, dtype=torch.double))
    for optimize in (optimize_acqf_random, optimize_acqf_local_search):
        with pytest.warns(OptimizationWarning, match="NaN or -inf"):
            x, value = optimize(acqf, bounds, tree, seed=0)
        assert x.shape == (1, 2) and value == -math.inf
