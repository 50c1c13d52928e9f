"""What all optimisers over trees do alike, on top of the engine under them."""

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    UpperConfidenceBound,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.exceptions.errors import CandidateGenerationError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.models import SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler
from hypothesis import assume, given, settings
from search_problems import Function, data, make_problem
from strategies import random_tree, seeds
from torch import Tensor

from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import optimize_acqf_local_search, optimize_acqf_paths
from botorch_structured.optim.problem import KnownPoints
from botorch_structured.spaces import ParameterTree

best_of_random = partial(optimize_acqf_local_search, max_iter=0)
# With a small absolute error of a column where the maximum is a parabola's.
# A climb ends where an iteration gains less than 1e-6 of the value, which is 100 here.
ACCURACY = {optimize_acqf_paths: 1e-5, optimize_acqf_local_search: 2e-4}
climbing = pytest.mark.parametrize("optimize", ACCURACY)
every_one = pytest.mark.parametrize("optimize", [*ACCURACY, best_of_random])

CATEGORIES = {4: [0.0, 1.0, 2.5, 4.0]}
KINDS = {"integer_features": [3], "categorical_features": CATEGORIES}
PEAK = torch.tensor([0.0, 0.123456789, 0.7, 37.4, 2.4, 1.3], dtype=torch.double)


def bonus_for(best: int) -> Callable[[Tensor], Tensor]:
    return lambda X: 100.0 * (X[..., 0].round() == best).to(X)


@climbing
@pytest.mark.parametrize(
    ("best", "expected"),
    [
        (0, [0.0, 0.123456789, 0.7, 0.5, 0.5, 0.5]),
        (1, [1.0, 0.5, 0.7, 37.0, 0.5, 0.5]),
        (2, [2.0, 0.5, 0.5, 0.5, 2.5, 1.0]),
        (3, [3.0, 0.5, 0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_finds_the_maximum(optimize, peak, learners, best, expected, device) -> None:
    tree, bounds = learners
    acqf = peak(tree, PEAK, bonus_for(best))
    X, value = optimize(acqf, bounds.to(device), tree, **KINDS)
    assert X.device.type == device.type
    target = torch.tensor([expected], dtype=torch.double, device=device)
    assert torch.allclose(X, target, atol=ACCURACY[optimize], rtol=0)
    assert value.shape == torch.Size([])
    assert torch.equal(value, acqf(X.unsqueeze(0))[0])


@climbing
def test_fixed_decisions_restrict_the_paths(optimize, peak, learners) -> None:
    tree, bounds = learners
    acqf = peak(tree, PEAK, bonus_for(0))
    start = torch.tensor([[0.0, 0.1, 0.7, 0, 0, 0], [2, 0, 0, 0, 3.9, 0.2]]).double()
    X, _ = optimize(acqf, bounds, tree, fixed_features={0: 2.0}, X_start=start, **KINDS)
    assert X[0].tolist() == pytest.approx([2, 0.5, 0.5, 0.5, 2.5, 1], abs=2e-4)
    X, _ = optimize(acqf, bounds, tree, fixed_features={2: 0.2}, **KINDS)
    assert X[0, 0] == 0 and X[0, 2] == 0.2
    kinds = {**KINDS, "categorical_features": {**CATEGORIES, 0: [1, 2]}}
    assert optimize(acqf, bounds, tree, **kinds)[0][0, 0] in (1, 2)


@every_one
def test_undeclared_outcomes_are_proposed_where_they_are_named(optimize, peak) -> None:
    tree = ParameterTree(2, {0: {1: [1]}})
    bounds = torch.tensor([[0.0, 0], [5, 1]], dtype=torch.double)
    acqf = peak(tree, torch.zeros(2), lambda X: (X[..., 0] - 1).abs())
    assert optimize(acqf, bounds, tree)[0][0, 0] == 1
    X, _ = optimize(acqf, bounds, tree, categorical_features={0: [0.0, 1.0, 4.0]})
    assert X.tolist() == [[4.0, 0.5]]
    X, _ = optimize(acqf, bounds, tree, fixed_features={0: 3.0})
    assert X.tolist() == [[3.0, 0.5]]
    if optimize in ACCURACY:
        near = torch.tensor([[2.0, 0.5]], dtype=torch.double)
        X, _ = optimize(acqf, bounds, tree, X_start=near)
        assert X.tolist() == [[2.0, 0.5]]
    # beside them an outcome without columns, of another decision, stays one
    tree = ParameterTree(3, {0: {0: [2], 1: []}, 1: {0: []}})
    bounds = torch.tensor([[0.0, 0, 0], [1, 7, 1]], dtype=torch.double)
    acqf = peak(tree, torch.zeros(3), lambda X: X[..., 0] + X[..., 1])
    X, _ = optimize(acqf, bounds, tree, categorical_features={1: [0.0, 7.0]})
    assert X.tolist() == [[1.0, 7.0, 0.5]]


def discrete(seed: int) -> tuple[ParameterTree, Tensor, dict[str, Any], Tensor]:
    """A space without reals, and all of its points; numeric decisions are integers."""
    tree = random_tree(seed, max_decisions=4, max_columns=4)
    bounds = torch.zeros(2, tree.dim, dtype=torch.double)
    bounds[1] = 2.0
    listed = [c for c in tree.decision_columns if c not in tree.numeric_decisions]
    others = [c for c in range(tree.dim) if c not in listed]
    categories = {c: [0.0, 0.5, 2.0] for c in others[::2]}
    values = [tree.decision_values.get(c) for c in range(tree.dim)]
    for c in others:
        values[c] = categories.get(c, [0.0, 1.0, 2.0])
    rows = torch.tensor(list(product(*values)), dtype=torch.double)
    kinds = {"integer_features": others[1::2], "categorical_features": categories}
    return tree, bounds, kinds, tree.impute(rows).unique(dim=0)


@every_one
@settings(max_examples=8)
@given(seed=seeds)
def test_exhausts_discrete_spaces_in_order(optimize, seed: int) -> None:
    """By brute force: always the best point that is left, until none is."""
    tree, bounds, kinds, every = discrete(seed)
    # of a path with more points not all are looked at while some draws are new
    assume(int(tree.path_key(every).unique(return_counts=True)[1].max()) <= 256)
    weight = torch.randn(tree.dim, generator=torch.Generator().manual_seed(seed))

    def rugged(X: Tensor) -> Tensor:
        return torch.sin(50.0 * tree.impute(X) @ weight.to(X))

    known = every[torch.randperm(len(every))[: max(0, len(every) - 3)]]
    kinds["seed"] = 0
    for _ in range(min(3, len(every))):
        X, value = optimize(Function(rugged), bounds, tree, X_avoid=known, **kinds)
        left = [x for x in every if not (known == x).all(-1).any()]
        assert float(value) == float(rugged(torch.stack(left)).max())
        assert float(value) == float(rugged(X))
        known = torch.cat([known, X])
    with pytest.raises(CandidateGenerationError, match=f"{len(every)} points are know"):
        optimize(Function(rugged), bounds, tree, X_avoid=known, **kinds)


@every_one
def test_the_last_point_of_a_large_finite_space(optimize, peak) -> None:
    tree, kinds = ParameterTree(2), {"integer_features": [0, 1]}
    if optimize is not optimize_acqf_paths:
        kinds["raw_samples"] = 4
    bounds = torch.tensor([[0.0, 0], [99, 99]], dtype=torch.double)
    every = torch.cartesian_prod(*[torch.arange(100.0).double()] * 2)
    acqf = peak(tree, torch.tensor([3.0, 3.0]))
    known = every[torch.arange(len(every)) != 777]
    X, _ = optimize(acqf, bounds, tree, X_avoid=known, **kinds)
    assert torch.equal(X[0], every[777])
    with pytest.raises(CandidateGenerationError):
        optimize(acqf, bounds, tree, X_avoid=every, **kinds)


@every_one
@settings(max_examples=6)
@given(seed=seeds)
def test_candidates_keep_every_promise(optimize, seed: int) -> None:
    """Also the points in between, at which the acquisition function is evaluated."""
    tree = random_tree(seed)
    bounds = torch.zeros(2, tree.dim, dtype=torch.double)
    bounds[1] = 2.0
    others = [c for c in range(tree.dim) if c not in tree.decision_columns]
    kinds: dict[str, Any] = {
        "integer_features": others[::3],
        "categorical_features": {c: [0.0, 0.5, 2.0] for c in others[1::3]},
    }
    weight = torch.randn(tree.dim, generator=torch.Generator().manual_seed(seed))
    fill = -0.125
    fixed = {others[0]: 1.0} if others else {}
    ends = [0, tree.dim - 1]
    constraint = (torch.tensor(ends), torch.ones(2).double(), 0.5)
    constraints = [constraint] if tree.dim > 1 else None

    def smooth(X: Tensor) -> Tensor:
        X = tree.impute(X, 0.0)
        return torch.sin(3.0 * X @ weight.double()) + (X.sin() * weight).sum(-1)

    def feasible(X: Tensor) -> Tensor:
        assert torch.equal(X, tree.impute(X, fill))
        check(X)
        return X.sum(-1).cos() > -0.8

    def check(points: Tensor) -> None:
        active = tree.active_mask(points)
        assert (points[~active] == fill).all()
        assert ((points >= bounds[0]) & (points <= bounds[1]))[active].all()
        for c in kinds["integer_features"]:
            assert (points[:, c] == points[:, c].round())[active[:, c]].all()
        for c, values in kinds["categorical_features"].items():
            assert set(points[active[:, c], c].tolist()) <= set(values)
        assert tree.is_declared(points).all()
        for c, v in fixed.items():
            assert (points[active[:, c], c] == v).all()

    known, acqf = bounds[:0], Function(smooth)
    problem = make_problem(bounds, tree, fill=fill)
    for k in range(3):
        try:
            X, value = optimize(
                acqf,
                bounds,
                tree,
                raw_samples=64,
                fixed_features=fixed,
                inequality_constraints=constraints,
                feasible=feasible,
                X_avoid=known,
                fill=fill,
                seed=seed + k,
                **kinds,
            )
        except CandidateGenerationError:
            return  # small spaces are used up
        assert float(value) == pytest.approx(float(smooth(X)), abs=1e-9)
        for points in (X, *acqf.seen[:: max(1, len(acqf.seen) // 3)]):
            check(points)
        assert (
            feasible(X).all()
            and not KnownPoints(problem, known.numpy()).contains(X.numpy()).any()
        )
        binds = tree.active_mask(X)[:, ends].all(-1)
        assert constraints is None or (X[binds][:, ends].sum(-1) >= 0.5).all()
        known = torch.cat([known, X])


@climbing
@pytest.mark.parametrize("model_class", [SingleTaskGP, TreeStructuredGP])
@pytest.mark.parametrize("kind", ["ei", "ucb", "qei", "qnei"])
def test_any_acquisition_function(optimize, small, model_class, kind, device) -> None:
    tree, bounds = small
    X, Y = (t.to(device) for t in data(tree))
    arguments = [tree] if model_class is TreeStructuredGP else []
    model = model_class(X, Y, *arguments)
    sampler = SobolQMCNormalSampler(torch.Size([32]), seed=0)
    acqf = {
        "ei": lambda: LogExpectedImprovement(model, Y.max()),
        "ucb": lambda: UpperConfidenceBound(model, 2.0),
        "qei": lambda: qLogExpectedImprovement(model, Y.max(), sampler=sampler),
        "qnei": lambda: qLogNoisyExpectedImprovement(model, X, sampler=sampler),
    }[kind]()
    new, value = optimize(acqf, bounds.to(device), tree, X_avoid=X, seed=0)
    assert new.device.type == device.type
    assert torch.allclose(acqf(new.unsqueeze(0))[0], value, rtol=1e-6)
    # better than a large random search
    many, _ = data(tree, 2000)
    assert value >= acqf(many.to(device).unsqueeze(1)).max() - ACCURACY[optimize]
    assert all(p.requires_grad for p in model.covar_module.parameters())


@every_one
def test_greedy_batches(optimize, small) -> None:
    tree, bounds = small
    X, Y = data(tree)
    pending = tree.impute(X[:1] + torch.tensor([0, 0.01, 0.01, 0.01, 0.01]))
    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=0)
    acqf = qLogExpectedImprovement(
        SingleTaskGP(X, Y), Y.max(), sampler=sampler, X_pending=pending
    )
    new, values = optimize(acqf, bounds, tree, q=3, X_avoid=X, seed=1)
    assert new.shape == (3, 5) and values.shape == (3,)
    assert len(new.unique(dim=0)) == 3
    assert torch.equal(acqf.X_pending, pending)
    # Each value is given the earlier candidates.
    acqf.set_X_pending(torch.cat([pending, new[:1]]))
    assert torch.allclose(acqf(new[1:2].unsqueeze(0))[0], values[1], rtol=1e-6)


@every_one
def test_same_seed_same_answer(optimize, small) -> None:
    tree, bounds = small

    def run(seed: int | None) -> Tensor:
        acqf = Function(lambda X: torch.sin(1e3 * X.sum(-1)))
        return optimize(acqf, bounds, tree, seed=seed, raw_samples=8, num_restarts=1)[0]

    state = torch.get_rng_state()
    assert torch.equal(run(5), run(5))
    assert not torch.equal(run(5), run(6))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(8)
    first = run(None)
    torch.manual_seed(8)
    assert torch.equal(first, run(None))


@pytest.mark.parametrize("optimize", [optimize_acqf_paths, best_of_random])
def test_thin_feasible_sets(optimize, peak) -> None:
    # 1e-4 wide in six columns: no Sobol point lies in it.
    tree = ParameterTree(7, {0: {0: [1, 2, 3, 4, 5, 6], 1: []}}, values={0: [0, 1]})
    bounds = torch.zeros(2, 7, dtype=torch.double)
    bounds[1] = 1.0
    columns, ones = torch.arange(1, 7), torch.ones(6, dtype=torch.double)
    thin = [(columns, ones, 3.0), (columns, -ones, -3.0001)]
    acqf = peak(tree, torch.linspace(0, 1, 7).double(), bonus_for(0))
    kwargs = {"fixed_features": {0: 0.0}} if optimize is best_of_random else {}
    X, _ = optimize(acqf, bounds, tree, inequality_constraints=thin, **kwargs)
    # up to the rounding of a sum, which depends on its order
    assert X[0, 0] == 0 and -1e-14 <= float(X[0, 1:].sum()) - 3.0 <= 1e-4 + 1e-14
    if optimize is optimize_acqf_paths:
        expected = torch.linspace(0, 1, 7)[1:] - 0.5 / 6
        assert torch.allclose(X[0, 1:], expected.double(), atol=1e-3)
    with pytest.raises(CandidateGenerationError, match="feasible"):
        optimize(acqf, bounds, tree, feasible=lambda X: torch.zeros(len(X)).bool())


@every_one
@pytest.mark.parametrize("nothing", [math.nan, -math.inf])
def test_worthless_functions_still_give_a_point(optimize, small, nothing) -> None:
    tree, bounds = small
    known = data(tree)[0]
    acqf = Function(lambda X: X[:, 0] * 0 + nothing)
    with pytest.warns(OptimizationWarning, match="NaN or -inf"):
        X, value = optimize(acqf, bounds, tree, X_avoid=known, seed=0)
    assert value == -math.inf and X.isfinite().all()
    assert not (X == known).all(-1).any()


@climbing
def test_a_million_paths(optimize, peak) -> None:
    tree = ParameterTree(40, {k: {0: [], 1: [20 + k]} for k in range(20)})
    bounds = torch.zeros(2, 40, dtype=torch.double)
    bounds[1] = 1.0
    gain = torch.linspace(-1, 1, 20).double()
    acqf = peak(tree, torch.full((40,), 0.3), lambda X: X[..., :20] @ gain.to(X))
    X, value = optimize(acqf, bounds, tree, seed=1)
    assert torch.equal(X[0, :20], (gain > 0).double())
    best = float(gain.clamp_min(0).sum())
    assert best - 10 * 1e-8 <= float(value) <= best + 1e-12


def test_starts_on_paths_that_are_left_out_do_not_count(small) -> None:
    tree, bounds = small
    X = data(tree)[0]
    acqf = Function(lambda X: X.sum(-1))
    value = 1.0 - float(X[0, 0])
    best = optimize_acqf_paths(
        acqf, bounds, tree, X_start=X[:1], fixed_features={0: value}
    )[0]
    assert best[0, 0] == value
