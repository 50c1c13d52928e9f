from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.exceptions.errors import CandidateGenerationError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.models import SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler
from hypothesis import given, settings
from strategies import random_tree, seeds
from torch import Tensor

from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import (
    optimize_acqf_local_search,
    optimize_acqf_paths,
    optimize_acqf_random,
)
from botorch_structured.optim.boxes import whole_box
from botorch_structured.optim.climb import Evaluator, Neighbourhood, walk
from botorch_structured.optim.local_search import one_exchange
from botorch_structured.optim.problem import is_known, make_problem
from botorch_structured.spaces import Between, ParameterTree

INTEGERS = [3]
CATEGORIES = {4: [0.0, 1.0, 2.5, 4.0]}
KINDS = {"integer_features": INTEGERS, "categorical_features": CATEGORIES}
PEAK = torch.tensor([0.0, 0.123456789, 0.7, 37.4, 2.4, 1.3], dtype=torch.double)


def bonus_for(best: int):  # noqa: ANN201
    return lambda X: 100.0 * (X[..., 0].round() == best).to(X)


class Function(AcquisitionFunction):
    """Any function of ``n x d`` points; keeps the points, refuses gradients."""

    def __init__(self, function) -> None:  # noqa: ANN001
        super().__init__(model=torch.nn.Module())
        self.function = function
        self.seen: list[Tensor] = []

    def forward(self, X: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        assert X.dim() == 3 and X.shape[1] == 1
        self.seen.append(X.squeeze(-2))
        return self.function(X.squeeze(-2))


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        (0, [0.0, 0.123456789, 0.7, 0.5, 0.5, 0.5]),
        (1, [1.0, 0.5, 0.7, 37.0, 0.5, 0.5]),
        (2, [2.0, 0.5, 0.5, 0.5, 2.5, 1.0]),
        (3, [3.0, 0.5, 0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_finds_the_maximum(peak, learners, best, expected, device) -> None:
    tree, bounds = learners
    acqf = peak(tree, PEAK, bonus_for(best))
    X, value = optimize_acqf_local_search(acqf, bounds.to(device), tree, **KINDS)
    assert X.device.type == device.type
    # No step of at least 1e-4 widths (2 or 1) improves a parabola: half of it is left.
    target = torch.tensor([expected], dtype=torch.double, device=device)
    assert torch.allclose(X, target, atol=2e-4, rtol=0)
    assert value.shape == torch.Size([])
    assert torch.equal(value, acqf(X.unsqueeze(0))[0])


def discrete(seed: int) -> tuple[ParameterTree, Tensor, dict]:
    """No reals: decisions, integers, categoricals; numeric decisions are integers."""
    tree = random_tree(seed, max_decisions=4, max_columns=4)
    bounds = torch.zeros(2, tree.dim, dtype=torch.double)
    listed = [c for c in tree.decision_columns if c not in tree.numeric_decisions]
    bounds[1] = 2.0
    others = [c for c in range(tree.dim) if c not in listed]
    categories = {c: [0.0, 0.5, 2.0] for c in others[::2]}
    integers = others[1::2]
    return (
        tree,
        bounds,
        {
            "integer_features": integers,
            "categorical_features": categories,
        },
    )


def everything(tree: ParameterTree, bounds: Tensor, kinds: dict) -> Tensor:
    """All points of a discrete space."""
    values = []
    for c in range(tree.dim):
        if c in kinds["categorical_features"]:
            values.append(kinds["categorical_features"][c])
        elif c in kinds["integer_features"]:
            values.append([0.0, 1.0, 2.0])
        else:
            values.append(tree.decision_values[c])
    rows = torch.tensor(list(product(*values)), dtype=torch.double)
    return tree.impute(rows).unique(dim=0)


@settings(max_examples=20)
@given(seed=seeds)
def test_exhausts_discrete_spaces_in_order(seed: int) -> None:
    """By brute force: always the best point that is left, until none is."""
    tree, bounds, kinds = discrete(seed)
    every = everything(tree, bounds, kinds)
    weight = torch.randn(tree.dim, generator=torch.Generator().manual_seed(seed))

    def rugged(X: Tensor) -> Tensor:
        return torch.sin(50.0 * tree.impute(X) @ weight.to(X))

    known = every[torch.randperm(len(every))[: max(0, len(every) - 3)]]
    for _ in range(min(3, len(every))):
        X, value = optimize_acqf_local_search(
            Function(rugged), bounds, tree, X_avoid=known, seed=0, **kinds
        )
        left = [x for x in every if not (known == x).all(-1).any()]
        assert float(value) == float(rugged(torch.stack(left)).max())
        assert float(value) == float(rugged(X))
        known = torch.cat([known, X])
    with pytest.raises(CandidateGenerationError, match="points are known"):
        optimize_acqf_local_search(
            Function(rugged), bounds, tree, X_avoid=known, seed=0, **kinds
        )


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
def test_values_never_fall_and_ends_are_local_optima(seed: int) -> None:
    tree, bounds, kinds, smooth = mixed(seed)
    problem = make_problem(bounds, tree, **kinds)
    space = whole_box(problem)
    box = torch.zeros(5, dtype=torch.long)
    generator = torch.Generator().manual_seed(seed)
    U = torch.rand(5, tree.dim, generator=generator, dtype=torch.double)
    X = problem.impute(space.draw(box, U))
    active = tree.active_mask(X)

    def hood() -> Neighbourhood:
        return one_exchange(space, [0.3, 0.01], torch.Generator().manual_seed(1))

    before = smooth(X)
    near, _, owner = hood().of(X, active, box)
    steepest = before.scatter_reduce(0, owner, smooth(near), "amax")
    for length in (1, 2, 5, 10**4):
        # The same seed: the first iterations are those of the shorter climb.
        evaluator = Evaluator(Function(smooth))
        nothing = bounds[:0]
        ends, values = walk(
            hood(), evaluator, X, smooth(X), active, box, nothing, length
        )
        assert (values >= before).all()
        if length == 1:  # the best neighbour, not any better one
            assert torch.allclose(values, steepest, rtol=0, atol=1e-12)
        assert torch.allclose(values, smooth(ends), rtol=0, atol=1e-12)
        before = values
    near, _, owner = hood().of(ends, tree.active_mask(ends), box)
    same_path = tree.path_key(near) == tree.path_key(ends[owner])
    # Other branches are drawn anew: of these only what the climb drew was no better.
    assert same_path.any() or not len(near) or len(tree.paths) > 1
    assert (smooth(near) <= values[owner] + 1e-12)[same_path].all()


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


def test_all_starts_share_the_calls(learners) -> None:
    tree, bounds = learners
    acqf = Function(lambda X: -((tree.impute(X, PEAK) - PEAK) ** 2).sum(-1))
    optimize_acqf_local_search(acqf, bounds, tree, num_restarts=1, seed=0, **KINDS)
    one = [len(X) for X in acqf.seen]
    acqf.seen = []
    optimize_acqf_local_search(acqf, bounds, tree, num_restarts=30, seed=0, **KINDS)
    many = [len(X) for X in acqf.seen]
    assert len(many) < 200 and many[1] > 20 * one[1]


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


@settings(max_examples=15)
@given(seed=seeds)
def test_candidates_keep_every_promise(seed: int) -> None:
    tree, bounds, kinds, smooth = mixed(seed)
    fill = -0.125
    others = [c for c in range(tree.dim) if c not in tree.decision_columns]
    fixed = {others[0]: 1.0} if others else {}
    a, b = 0, tree.dim - 1
    pair = torch.tensor([a, b])
    constraint = (pair, torch.tensor([1.0, 1.0]).double(), 0.5)
    bound = tree.dim > 1

    def feasible(X: Tensor) -> Tensor:
        assert torch.equal(X, tree.impute(X, fill))
        return X.sum(-1).cos() > -0.8

    acqf = Function(smooth)
    known = bounds[:0]
    problem = make_problem(bounds, tree, fill=fill)
    for k in range(3):
        try:
            X, value = optimize_acqf_local_search(
                acqf,
                bounds,
                tree,
                num_restarts=4,
                raw_samples=64,
                fixed_features=fixed,
                inequality_constraints=[constraint] if bound else None,
                feasible=feasible,
                X_avoid=known,
                fill=fill,
                seed=seed + k,
                max_iter=20,
                **kinds,
            )
        except CandidateGenerationError:
            return  # small spaces are used up
        assert float(value) == pytest.approx(float(acqf.function(X)), abs=1e-12)
        for points in (X, acqf.seen[-1], acqf.seen[len(acqf.seen) // 2]):
            active = tree.active_mask(points)
            assert (points[~active] == fill).all()
            assert ((points >= bounds[0]) & (points <= bounds[1]))[active].all()
            assert feasible(points).all()
            for c in kinds["integer_features"]:
                assert (points[:, c] == points[:, c].round())[active[:, c]].all()
            for c, values in kinds["categorical_features"].items():
                assert set(points[active[:, c], c].tolist()) <= set(values)
            assert tree.is_declared(points).all()
            for c, v in fixed.items():
                assert (points[active[:, c], c] == v).all()
            binds = active[:, a] & active[:, b]
            if bound:
                assert (points[binds][:, [a, b]].sum(-1) >= 0.5).all()
        assert not is_known(problem, X, known).any()
        known = torch.cat([known, X])


def test_several_roots_and_a_million_paths(peak) -> None:
    tree = ParameterTree(40, {k: {0: [], 1: [20 + k]} for k in range(20)})
    bounds = torch.zeros(2, 40, dtype=torch.double)
    bounds[1] = 1.0
    gain = torch.linspace(-1, 1, 20).double()
    acqf = peak(tree, torch.full((40,), 0.3), lambda X: X[..., :20] @ gain.to(X))
    X, value = optimize_acqf_local_search(acqf, bounds, tree, seed=0)
    assert torch.equal(X[0, :20], (gain > 0).double())
    best = float(gain.clamp_min(0).sum())
    assert best - 10 * 1e-8 <= float(value) <= best


def test_numeric_decisions_cross_their_intervals(peak) -> None:
    tree = ParameterTree(
        3, conditions={1: Between(0, 5.0, math.inf), 2: Between(0, 3, 5)}
    )
    bounds = torch.tensor([[0.0, 0, 0], [10, 1, 1]], dtype=torch.double)
    target = torch.tensor([4.2, 0.1, 0.9]).double()
    acqf = peak(tree, target)
    start = torch.tensor([[9.0, 0.1, 0.5]], dtype=torch.double)
    kwargs = {"raw_samples": 1, "num_restarts": 1, "X_start": start}
    X, _ = optimize_acqf_local_search(acqf, bounds, tree, **kwargs, seed=1)
    assert abs(float(X[0, 0]) - 4.2) < 2e-3
    X, _ = optimize_acqf_local_search(
        acqf, bounds, tree, integer_features=[0], **kwargs, seed=1
    )
    assert X[0, 0] == 4.0 and abs(float(X[0, 2]) - 0.9) < 2e-4
    X, _ = optimize_acqf_local_search(acqf, bounds, tree, fixed_features={0: 5.0})
    assert torch.allclose(X, X.new_tensor([[5.0, 0.1, 0.9]]), atol=2e-4)


def test_fixed_decisions_and_starts_elsewhere(peak, learners) -> None:
    tree, bounds = learners
    acqf = peak(tree, PEAK, bonus_for(0))
    start = torch.tensor([[0.0, 0.1, 0.7, 0, 0, 0], [2, 0, 0, 0, 3.9, 0.2]]).double()
    X, _ = optimize_acqf_local_search(
        acqf, bounds, tree, fixed_features={0: 2.0}, X_start=start, **KINDS
    )
    assert X[0].tolist() == pytest.approx([2, 0.5, 0.5, 0.5, 2.5, 1], abs=2e-4)
    X, _ = optimize_acqf_local_search(
        acqf, bounds, tree, fixed_features={2: 0.2}, **KINDS
    )
    assert X[0, 0] == 0 and X[0, 2] == 0.2
    cats = {**CATEGORIES, 0: [1, 2]}
    X, _ = optimize_acqf_local_search(
        acqf, bounds, tree, integer_features=INTEGERS, categorical_features=cats
    )
    assert X[0, 0] in (1, 2)


def test_undeclared_outcomes_are_proposed_where_they_are_named(peak) -> None:
    tree = ParameterTree(2, {0: {1: [1]}})
    bounds = torch.tensor([[0.0, 0], [5, 1]], dtype=torch.double)
    acqf = peak(tree, torch.zeros(2), lambda X: (X[..., 0] - 1).abs())
    assert optimize_acqf_local_search(acqf, bounds, tree)[0][0, 0] == 1
    cats = {0: [0.0, 1.0, 4.0]}
    X, _ = optimize_acqf_local_search(acqf, bounds, tree, categorical_features=cats)
    assert X.tolist() == [[4.0, 0.5]]
    near = torch.tensor([[2.0, 0.5]], dtype=torch.double)
    X, _ = optimize_acqf_local_search(acqf, bounds, tree, X_start=near)
    assert X.tolist() == [[2.0, 0.5]]


def test_constraints_are_followed_along_the_axes(peak) -> None:
    tree = ParameterTree(4, {0: {0: [1, 2], 1: [1, 3]}}, values={0: [0, 1]})
    bounds = torch.tensor([[0.0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.double)
    at_most = (torch.tensor([1, 2]), torch.tensor([-1.0, -1.0]).double(), -1.0)
    for path, best in ((0, -0.18), (1, 0.0)):
        acqf = peak(tree, torch.full((4,), 0.8).double(), bonus_for(path))
        X, value = optimize_acqf_local_search(
            acqf, bounds, tree, inequality_constraints=[at_most], seed=0
        )
        assert path == 1 or X[0, 1] + X[0, 2] <= 1.0
        # On the border (slope 0.6 across, 0 along it) as near as the best start was.
        assert best - 0.02 < float(value) - 100 <= best + 1e-12


def data(tree: ParameterTree, n: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    X = torch.rand(n, tree.dim, generator=generator, dtype=torch.double)
    X[:, 0] = torch.arange(n) % 3
    X = tree.impute(X)
    return X, -((X - 0.4) ** 2).sum(-1, keepdim=True)


@pytest.fixture
def small() -> tuple[ParameterTree, Tensor]:
    tree = ParameterTree(5, {0: {0: [1, 3], 1: [2, 3], 2: [4]}}, values={0: [0, 1, 2]})
    bounds = torch.zeros(2, 5, dtype=torch.double)
    bounds[1] = torch.tensor([2.0, 1, 1, 1, 1])
    return tree, bounds


@pytest.mark.parametrize("kind", ["ei", "qei", "qnei"])
def test_as_good_as_with_gradients(small, kind, device) -> None:
    tree, bounds = small
    bounds = bounds.to(device)
    X, Y = (t.to(device) for t in data(tree))
    model = TreeStructuredGP(X, Y, tree).eval()
    sampler = SobolQMCNormalSampler(torch.Size([32]), seed=0)
    acqf = {
        "ei": lambda: LogExpectedImprovement(model, Y.max()),
        "qei": lambda: qLogExpectedImprovement(model, Y.max(), sampler=sampler),
        "qnei": lambda: qLogNoisyExpectedImprovement(model, X, sampler=sampler),
    }[kind]()
    for seed in range(2):
        kwargs = {"X_avoid": X, "seed": seed}
        new, value = optimize_acqf_local_search(acqf, bounds, tree, **kwargs)
        assert new.device.type == device.type
        assert torch.allclose(acqf(new.unsqueeze(0))[0], value, rtol=1e-6)
        _, random = optimize_acqf_random(acqf, bounds, tree, **kwargs)
        _, gradient = optimize_acqf_paths(acqf, bounds, tree, **kwargs)
        assert value > random
        # Logarithms: within a thousandth of the improvement.
        assert value >= gradient - 1e-3
    assert all(p.requires_grad for p in model.covar_module.parameters())


def test_greedy_batches(small) -> None:
    tree, bounds = small
    X, Y = data(tree)
    pending = tree.impute(X[:1] + torch.tensor([0, 0.01, 0.01, 0.01, 0.01]))
    acqf = qLogExpectedImprovement(
        SingleTaskGP(X, Y),
        Y.max(),
        sampler=SobolQMCNormalSampler(torch.Size([64]), seed=0),
        X_pending=pending,
    )
    new, values = optimize_acqf_local_search(acqf, bounds, tree, q=3, X_avoid=X, seed=1)
    assert new.shape == (3, 5) and values.shape == (3,)
    assert len(new.unique(dim=0)) == 3
    assert torch.equal(acqf.X_pending, pending)
    # Each value is given the earlier candidates.
    acqf.set_X_pending(torch.cat([pending, new[:1]]))
    assert torch.allclose(acqf(new[1:2].unsqueeze(0))[0], values[1], rtol=1e-6)


def test_same_seed_same_answer(small) -> None:
    tree, bounds = small
    X, Y = data(tree)
    acqf = LogExpectedImprovement(SingleTaskGP(X, Y), Y.max())

    def run(seed: int | None) -> Tensor:
        return optimize_acqf_local_search(
            acqf, bounds, tree, seed=seed, raw_samples=8, num_restarts=1, max_iter=2
        )[0]

    state = torch.get_rng_state()
    assert torch.equal(run(5), run(5))
    assert not torch.equal(run(5), run(6))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(8)
    first = run(None)
    torch.manual_seed(8)
    assert torch.equal(first, run(None))


def test_the_last_point_of_a_large_finite_space(peak) -> None:
    tree = ParameterTree(2)
    bounds = torch.tensor([[0.0, 0], [199, 199]], dtype=torch.double)
    every = torch.cartesian_prod(*[torch.arange(200.0).double()] * 2)
    acqf = peak(tree, torch.tensor([3.0, 3.0]))
    kwargs = {"integer_features": [0, 1], "raw_samples": 4}
    known = every[torch.arange(len(every)) != 777]
    X, _ = optimize_acqf_local_search(acqf, bounds, tree, X_avoid=known, **kwargs)
    assert torch.equal(X[0], every[777])
    with pytest.raises(CandidateGenerationError):
        optimize_acqf_local_search(acqf, bounds, tree, X_avoid=every, **kwargs)


def test_worthless_acquisition_functions_still_give_a_point(small) -> None:
    tree, bounds = small
    known = data(tree)[0]
    for nothing in (math.nan, -math.inf):
        acqf = Function(lambda X, nothing=nothing: X[:, 0] * 0 + nothing)
        with pytest.warns(OptimizationWarning, match="NaN or -inf"):
            X, value = optimize_acqf_local_search(
                acqf, bounds, tree, X_avoid=known, X_start=known, seed=0
            )
        assert value == -math.inf
        assert len(acqf.seen) <= 3  # no better neighbour, no further iteration
        assert not (X == known).all(-1).any() and X.isfinite().all()


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


def test_iterations_are_limited(small) -> None:
    tree, bounds = small
    acqf = Function(lambda X: -((X - 0.4) ** 2).sum(-1))
    optimize_acqf_local_search(acqf, bounds, tree, max_iter=3, batch_limit=10**6)
    assert len(acqf.seen) == 1 + 3


def test_single_precision(peak, learners) -> None:
    tree, bounds = learners
    acqf = peak(tree, PEAK.float(), bonus_for(0))
    X, value = optimize_acqf_local_search(acqf, bounds.float(), tree, **KINDS)
    assert X.dtype == value.dtype == torch.float
    # The bonus of 100 leaves 1e-5 of the value, so 3e-3 of the columns.
    assert torch.allclose(X[0, 1:3], PEAK[1:3].float(), atol=4e-3)


def test_errors_come_before_any_work(peak, small) -> None:
    tree, bounds = small
    acqf = peak(tree, torch.zeros(5))

    def refused(message: str, **kwargs: object) -> None:
        args = {"acq_function": acqf, "bounds": bounds, "tree": tree, **kwargs}
        with pytest.raises(ValueError, match=message):
            optimize_acqf_local_search(**args)

    X = torch.rand(4, 5, dtype=torch.double)
    model = SingleTaskGP(X, X[:, :1])
    refused("acq_function.*one-shot.*qLogNoisy", acq_function=qKnowledgeGradient(model))
    refused("tree: expected a ParameterTree", tree={0: {0: [1]}})
    refused("bounds: expected a floating-point 2 x 5", bounds=bounds[:, :4])
    refused("q: expected a positive integer", q=0)
    refused("num_restarts: expected", num_restarts=0)
    refused("raw_samples: expected", raw_samples=0)
    refused("max_iter: expected", max_iter=0)
    refused("max_paths: expected", max_paths=0)
    refused(r"step: expected a share of the width.*got 0\.0", step=0.0)
    refused("step: expected a number that is not NaN", step=math.nan)
    refused("min_step: expected.*at most step=0.1, got 0.2", step=0.1, min_step=0.2)
    refused("min_step: expected.*above 0", min_step=0.0)
    refused("pending.*q=2", q=2)
    refused("fixed_features", fixed_features={0: 7.0})
    refused("feasible: expected a callable", feasible=True)
    refused("X_avoid: expected an m x 5", X_avoid=X[:, :2])
    refused("X_start: column 0: expected", X_start=X * math.nan)
    refused("fill: expected a number or 5", fill=torch.zeros(3))
    refused(
        "expected to leave at least one path",
        categorical_features={0: [0]},
        bounds=bounds + 0.5,
    )
    assert acqf.calls == 0
