from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    PosteriorMean,
    PriorGuidedAcquisitionFunction,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.exceptions.errors import CandidateGenerationError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf_mixed
from botorch.optim.utils.timeout import minimize_with_timeout
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import OptimizeResult
from torch import Tensor

from botorch_structured.acquisition import InteriorPrior
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.optim.problem import is_known, make_problem
from botorch_structured.spaces import Between, Equals, ParameterTree, SearchSpace

INTEGERS = [3]
CATEGORIES = {4: [0.0, 1.0, 2.5, 4.0]}
PEAK = torch.tensor([0.0, 0.123456789, 0.7, 37.4, 2.4, 1.3], dtype=torch.double)


def bonus_for(best: int):  # noqa: ANN201
    return lambda X: 100.0 * (X[..., 0].round() == best).to(X)


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
    X, value = optimize_acqf_paths(
        acqf,
        bounds.to(device),
        tree,
        integer_features=INTEGERS,
        categorical_features=CATEGORIES,
    )
    assert X.device.type == device.type
    target = torch.tensor([expected], dtype=torch.double, device=device)
    assert torch.allclose(X, target, atol=1e-7, rtol=0)
    assert value.shape == torch.Size([])
    assert torch.equal(value, acqf(X.unsqueeze(0))[0])


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


def test_discrete_columns_are_searched_exactly(peak) -> None:
    # A rugged function of discrete columns on a small space: every point is tried.
    tree = ParameterTree(4, {0: {0: [1, 2], 1: [1, 3]}})
    bounds = torch.tensor([[0.0, 0, 0, 0], [1, 4, 5, 5]], dtype=torch.double)

    class Rugged(peak):
        def forward(self, X: Tensor) -> Tensor:
            X = tree.impute(X.squeeze(-2))
            return torch.sin(37.0 * (X * X.new_tensor([1.0, 1.3, 2.1, 0.7])).sum(-1))

    acqf = Rugged(tree, bounds[0])
    rows = [
        [p, a, b, 0.5] if p == 0 else [p, a, 0.5, b]
        for p, a, b in product((0.0, 1.0), range(5), (0.0, 2.0, 5.0))
    ]
    every = torch.tensor(rows, dtype=torch.double)
    known = every[:0]
    cats = {2: [0, 2, 5], 3: [0, 2, 5]}
    for _ in range(6):
        X, value = optimize_acqf_paths(
            acqf,
            bounds,
            tree,
            integer_features=[1],
            categorical_features=cats,
            X_avoid=known,
        )
        new = [x for x in every if not (known == x).all(-1).any()]
        assert float(value) == float(acqf(torch.stack(new).unsqueeze(1)).max())
        known = torch.cat([known, X])


def test_wide_integers(peak) -> None:
    tree = ParameterTree(3, {0: {0: [1], 1: [2]}})
    bounds = torch.tensor([[0.0, 1, 1], [1, 10**6, 9]], dtype=torch.double)
    acqf = peak(tree, torch.tensor([0, 271828.3, 3]).double(), bonus_for(0))
    X, _ = optimize_acqf_paths(acqf, bounds, tree, integer_features=[1, 2])
    assert X[0, 1] == 271828


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_candidates_keep_every_promise(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(n: int) -> int:
        return int(torch.randint(n, (1,), generator=generator))

    # Column 0 decides; 1 decides under some values of 0; 6 is numeric and decides 7.
    tree = ParameterTree(
        9,
        {0: {v: list({2 + draw(3), 2 + draw(3)}) for v in range(3)} | {3: [1]}},
        conditions={
            5: Equals(1, draw(2)) | Equals(0, draw(4)),
            7: Between(6, 0.25, 0.5) & Equals(0, draw(4)),
        },
        values={0: [0, 1, 2, 3], 1: [0, 1]},
    )
    bounds = torch.tensor([[0, 0, -1, 0, -2, 0, 0, 1, 0], [3, 1, 1, 2, 2, 1, 1, 7, 1]])
    bounds = bounds.double()
    integers, cats = [3, 7], {4: [-2.0, 0.0, 0.25]}
    fixed = {8: 0.75} if draw(2) else {0: float(draw(4))}
    fill = -0.125
    # Binds only where 2 is active; 6 always is.
    constraint = (torch.tensor([2, 6]), torch.tensor([1.0, -1.0]).double(), -0.5)
    weight = torch.randn(9, generator=generator, dtype=torch.double)

    def feasible(X: Tensor) -> Tensor:
        assert torch.equal(X, tree.impute(X, fill))
        return (X[:, 3] < 2) | (X[:, 6] > 0.3)

    class Random(UpperConfidenceBound):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def forward(self, X: Tensor) -> Tensor:
            X = tree.impute(X.squeeze(-2))
            return (X @ weight) - 0.3 * (X**2).sum(-1)

    known = torch.zeros(0, 9, dtype=torch.double)
    for k in range(4):
        X, value = optimize_acqf_paths(
            Random(),
            bounds,
            tree,
            num_restarts=6,
            raw_samples=64,
            integer_features=integers,
            categorical_features=cats,
            fixed_features=fixed,
            inequality_constraints=[constraint],
            feasible=feasible,
            X_avoid=known,
            fill=fill,
            seed=seed + k,
        )
        active = tree.active_mask(X)
        assert (X[~active] == fill).all()
        assert ((X >= bounds[0]) & (X <= bounds[1]))[active].all()
        for c in integers:
            assert not active[0, c] or X[0, c] == X[0, c].round()
        assert not active[0, 4] or float(X[0, 4]) in cats[4]
        for c in tree.decision_columns:
            if c not in tree.numeric_decisions and active[0, c]:
                assert float(X[0, c]) in tree.decision_values[c]
        for c, v in fixed.items():
            assert X[0, c] == v
        assert not active[0, 2] or X[0, 2] - X[0, 6] >= -0.5
        assert feasible(X).all()
        assert value.isfinite()
        problem = make_problem(bounds, tree, fill=fill)
        assert not is_known(problem, X, known).any()
        known = torch.cat([known, X])


def test_known_points_are_compared_on_active_columns(peak, learners) -> None:
    tree, bounds = learners
    acqf = peak(tree, PEAK, bonus_for(3))
    kwargs = {"integer_features": INTEGERS, "categorical_features": CATEGORIES}
    first, _ = optimize_acqf_paths(acqf, bounds, tree, **kwargs)
    assert first[0, 0] == 3  # a path without any column
    seen = first.clone()
    seen[0, 1:] = 0.123  # what an inactive column holds does not matter
    second, _ = optimize_acqf_paths(acqf, bounds, tree, X_avoid=seen, **kwargs)
    assert second[0, 0] != 3


def test_paths_are_exhausted_one_after_the_other(peak) -> None:
    tree = ParameterTree(3, {0: {0: [1], 1: [2], 2: []}})
    bounds = torch.tensor([[0.0, 0, 0], [2, 2, 3]], dtype=torch.double)
    acqf = peak(tree, torch.tensor([0.0, 1.0, 2.0]), lambda X: -X[..., 0])
    known = torch.zeros(0, 3, dtype=torch.double)
    for _ in range(3 + 2 + 1):
        X, _ = optimize_acqf_paths(
            acqf,
            bounds,
            tree,
            integer_features=[1],
            categorical_features={2: [1, 3]},
            X_avoid=known,
        )
        known = torch.cat([known, X])
    assert len(known.unique(dim=0)) == 6
    assert sorted(known[:, 0].tolist()) == [0, 0, 0, 1, 1, 2]
    for fixed, message in (
        (None, "6 points are known or pending.$"),
        ({0: 1.0}, r"6 points are .*; fixed_features hold \{0: 1.0\}"),
    ):
        with pytest.raises(CandidateGenerationError, match=message):
            optimize_acqf_paths(
                acqf,
                bounds,
                tree,
                integer_features=[1],
                categorical_features={2: [1, 3]},
                fixed_features=fixed,
                X_avoid=known,
            )


def test_the_last_point_of_a_large_finite_space(peak) -> None:
    tree = ParameterTree(2)
    bounds = torch.tensor([[0.0, 0], [39, 39]], dtype=torch.double)
    every = torch.cartesian_prod(*[torch.arange(40.0).double()] * 2)
    acqf = peak(tree, torch.tensor([3.0, 3.0]))
    known = every[torch.arange(1600) != 777]
    X, _ = optimize_acqf_paths(
        acqf, bounds, tree, integer_features=[0, 1], X_avoid=known
    )
    assert torch.equal(X[0], every[777])
    with pytest.raises(CandidateGenerationError):
        optimize_acqf_paths(acqf, bounds, tree, integer_features=[0, 1], X_avoid=every)


def data(tree: ParameterTree, bounds: Tensor, n: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    X = torch.rand(n, tree.dim, generator=generator, dtype=torch.double)
    X = bounds[0] + X * (bounds[1] - bounds[0])
    X[:, tree.decision_columns] = tree.random_paths(n, generator)[
        :, tree.decision_columns
    ]
    X = tree.impute(X)
    return X, -((X - 0.4) ** 2).sum(-1, keepdim=True)


@pytest.fixture
def small() -> tuple[ParameterTree, Tensor]:
    tree = ParameterTree(5, {0: {0: [1, 3], 1: [2, 3], 2: [4]}}, values={0: [0, 1, 2]})
    bounds = torch.zeros(2, 5, dtype=torch.double)
    bounds[1] = torch.tensor([2.0, 1, 1, 1, 1])
    return tree, bounds


@pytest.mark.parametrize("model_class", [SingleTaskGP, TreeStructuredGP])
@pytest.mark.parametrize("kind", ["ei", "ucb", "qei", "qnei"])
def test_any_acquisition_function(small, model_class, kind, device) -> None:
    tree, bounds = small
    bounds = bounds.to(device)
    X, Y = (t.to(device) for t in data(tree, bounds.cpu()))
    model = (
        SingleTaskGP(X, Y)
        if model_class is SingleTaskGP
        else TreeStructuredGP(X, Y, tree)
    )
    sampler = SobolQMCNormalSampler(torch.Size([32]), seed=0)
    acqf = {
        "ei": lambda: LogExpectedImprovement(model, Y.max()),
        "ucb": lambda: UpperConfidenceBound(model, 2.0),
        "qei": lambda: qLogExpectedImprovement(model, Y.max(), sampler=sampler),
        "qnei": lambda: qLogNoisyExpectedImprovement(model, X, sampler=sampler),
    }[kind]()
    new, value = optimize_acqf_paths(acqf, bounds, tree, X_avoid=X, seed=0)
    assert new.device.type == device.type
    assert torch.allclose(acqf(new.unsqueeze(0))[0], value, rtol=1e-6)
    # Better than a large random search.
    many, _ = data(tree, bounds.cpu(), 2000)
    assert value >= acqf(many.to(device).unsqueeze(1)).max() - 1e-9
    assert all(p.requires_grad for p in model.covar_module.parameters())


def test_at_least_as_good_as_one_optimisation_per_path(small) -> None:
    tree, bounds = small
    X, Y = data(tree, bounds)
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


def test_greedy_batches(small) -> None:
    tree, bounds = small
    X, Y = data(tree, bounds)
    pending = tree.impute(X[:1] + torch.tensor([0, 0.01, 0.01, 0.01, 0.01]))
    acqf = qLogExpectedImprovement(
        SingleTaskGP(X, Y),
        Y.max(),
        sampler=SobolQMCNormalSampler(torch.Size([64]), seed=0),
        X_pending=pending,
    )
    new, values = optimize_acqf_paths(acqf, bounds, tree, q=3, X_avoid=X, seed=1)
    assert new.shape == (3, 5)
    assert values.shape == (3,)
    assert len(new.unique(dim=0)) == 3
    assert torch.equal(acqf.X_pending, pending)
    # Each value is given the earlier candidates.
    acqf.set_X_pending(torch.cat([pending, new[:1]]))
    assert torch.allclose(acqf(new[1:2].unsqueeze(0))[0], values[1], rtol=1e-6)


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


def test_same_seed_same_answer(small) -> None:
    tree, bounds = small
    X, Y = data(tree, bounds)
    acqf = LogExpectedImprovement(SingleTaskGP(X, Y), Y.max())

    def run(seed: int | None) -> Tensor:
        return optimize_acqf_paths(
            acqf, bounds, tree, seed=seed, raw_samples=8, num_restarts=1
        )[0]

    assert torch.equal(run(5), run(5))
    torch.manual_seed(8)
    first = run(None)
    torch.manual_seed(8)
    assert torch.equal(first, run(None))


def test_a_million_paths(peak) -> None:
    decisions = 20
    tree = ParameterTree(40, {k: {1: [20 + k]} for k in range(decisions)})
    tree = ParameterTree(
        40, conditions=tree.conditions, values={k: [0, 1] for k in range(decisions)}
    )
    assert tree.num_paths == 2**20
    bounds = torch.zeros(2, 40, dtype=torch.double)
    bounds[1] = 1.0
    gain = torch.linspace(-1, 1, decisions).double()
    acqf = peak(tree, torch.full((40,), 0.3), lambda X: X[..., :decisions] @ gain.to(X))
    X, value = optimize_acqf_paths(acqf, bounds, tree)
    assert torch.equal(X[0, :decisions], (gain > 0).double())
    assert float(value) == pytest.approx(float(gain.clamp_min(0).sum()), abs=1e-10)


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


def test_fixed_decisions_restrict_the_paths(peak, learners) -> None:
    tree, bounds = learners
    acqf = peak(tree, PEAK, bonus_for(0))
    kwargs = {"integer_features": INTEGERS, "categorical_features": CATEGORIES}
    X, _ = optimize_acqf_paths(acqf, bounds, tree, fixed_features={0: 2.0}, **kwargs)
    assert X[0, 0] == 2
    X, _ = optimize_acqf_paths(acqf, bounds, tree, fixed_features={2: 0.2}, **kwargs)
    assert X[0, 0] == 0
    assert X[0, 2] == 0.2
    kwargs["categorical_features"] = {**CATEGORIES, 0: [1, 2]}
    X, _ = optimize_acqf_paths(acqf, bounds, tree, **kwargs)
    assert X[0, 0] in (1, 2)


def test_undeclared_outcomes_are_proposed_where_they_are_named(peak) -> None:
    tree = ParameterTree(2, {0: {1: [1]}})
    bounds = torch.tensor([[0.0, 0], [5, 1]], dtype=torch.double)
    acqf = peak(tree, torch.zeros(2), lambda X: (X[..., 0] - 1).abs())
    assert optimize_acqf_paths(acqf, bounds, tree)[0][0, 0] == 1
    cats = {0: [0.0, 1.0, 4.0]}
    X, _ = optimize_acqf_paths(acqf, bounds, tree, categorical_features=cats)
    assert X.tolist() == [[4.0, 0.5]]
    X, _ = optimize_acqf_paths(acqf, bounds, tree, fixed_features={0: 3.0})
    assert X.tolist() == [[3.0, 0.5]]
    near = torch.tensor([[2.0, 0.5]], dtype=torch.double)
    X, _ = optimize_acqf_paths(acqf, bounds, tree, X_start=near)
    assert X.tolist() == [[2.0, 0.5]]


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


def test_thin_feasible_sets(peak) -> None:
    # 1e-4 wide in six columns: no Sobol point lies in it.
    tree = ParameterTree(7, {0: {0: [1, 2, 3, 4, 5, 6], 1: []}}, values={0: [0, 1]})
    bounds = torch.zeros(2, 7, dtype=torch.double)
    bounds[1] = 1.0
    columns, ones = torch.arange(1, 7), torch.ones(6, dtype=torch.double)
    constraints = [(columns, ones, 3.0), (columns, -ones, -3.0001)]
    acqf = peak(tree, torch.linspace(0, 1, 7).double(), bonus_for(0))
    X, _ = optimize_acqf_paths(acqf, bounds, tree, inequality_constraints=constraints)
    assert X[0, 0] == 0
    assert 3.0 <= float(X[0, 1:].sum()) <= 3.0001
    expected = torch.linspace(0, 1, 7)[1:] - 0.5 / 6
    assert torch.allclose(X[0, 1:], expected.double(), atol=1e-3)


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
    with pytest.raises(CandidateGenerationError, match="feasible"):
        optimize_acqf_paths(
            acqf, bounds, tree, feasible=lambda X: torch.zeros(len(X)).bool()
        )


def test_single_precision(peak, learners) -> None:
    tree, bounds = learners
    acqf = peak(tree, PEAK.float(), bonus_for(0))
    X, value = optimize_acqf_paths(
        acqf,
        bounds.float(),
        tree,
        integer_features=INTEGERS,
        categorical_features=CATEGORIES,
    )
    assert X.dtype == value.dtype == torch.float
    assert torch.allclose(X[0, 1:3], PEAK[1:3].float(), atol=1e-3)


def test_errors_come_before_any_work(peak, small) -> None:
    tree, bounds = small
    acqf = peak(tree, torch.zeros(5))

    def refused(message: str, **kwargs: object) -> None:
        args = {"acq_function": acqf, "bounds": bounds, "tree": tree, **kwargs}
        with pytest.raises(ValueError, match=message):
            optimize_acqf_paths(**args)

    X = torch.rand(4, 5, dtype=torch.double)
    model = SingleTaskGP(X, X[:, :1])
    refused("acq_function.*one-shot.*qLogNoisy", acq_function=qKnowledgeGradient(model))
    refused("acq_function: expected", acq_function=lambda X: X)
    refused("tree: expected a ParameterTree", tree={0: {0: [1]}})
    refused("bounds: expected a floating-point 2 x 5", bounds=bounds[:, :4])
    refused("bounds: expected finite lower", bounds=bounds.flip(0))
    refused("q: expected a positive integer", q=0)
    refused("num_restarts: expected", num_restarts=-1)
    refused("raw_samples: expected", raw_samples=0)
    refused("max_paths: expected", max_paths=0)
    refused("pending.*q=2", q=2)
    refused("integer_features: expected columns from 0 to 4", integer_features=[5])
    refused(r"categorical_features\[1\]: expected", categorical_features={1: []})
    refused(r"fixed_features\[3\]: expected a finite", fixed_features={3: math.nan})
    refused(
        r"fixed_features\[1\]: expected an integer",
        fixed_features={1: 0.5},
        integer_features=[1],
    )
    refused("fixed_features", fixed_features={0: 7.0})
    refused("categorical_features", categorical_features={0: [0, 7]})
    refused(
        "expected to leave at least one path",
        categorical_features={0: [0]},
        bounds=bounds + 0.5,
    )
    pair = (torch.tensor([0, 1]), torch.tensor([1.0]), 0.0)
    refused(r"inequality_constraints\[0\]", inequality_constraints=[pair])
    refused("feasible: expected a callable", feasible=True)
    refused(r"feasible: .*\(\d+,\) booleans", feasible=lambda X: torch.ones(1).bool())
    refused("X_avoid: expected an m x 5", X_avoid=X[:, :2])
    refused("X_start: column 0: expected", X_start=X * math.nan)
    refused("fill: expected a number or 5", fill=torch.zeros(3))
    assert acqf.calls == 0


def test_min_distance(peak: type) -> None:
    """The maximum itself is known: what comes is the nearest that is far enough."""
    tree = ParameterTree(2, {0: {0: [1], 1: []}}, values={0: [0, 1]})
    bounds = torch.tensor([[0.0, 0.0], [1.0, 10.0]], dtype=torch.double)
    acqf = peak(tree, torch.tensor([0.0, 4.0]), lambda X: -100.0 * X[..., 0])
    known = torch.tensor([[0.0, 4.0]], dtype=torch.double)
    X, _ = optimize_acqf_paths(
        acqf, bounds, tree, X_avoid=known, min_distance=0.05, seed=0
    )
    assert X[0, 0] == 0 and 0.5 <= (X[0, 1] - 4.0).abs() < 0.8
    with pytest.raises(ValueError, match="min_distance"):
        optimize_acqf_paths(acqf, bounds, tree, min_distance=1.5)


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


def test_wrappers_are_searched_from_the_best_of_what_they_wrap() -> None:
    space = SearchSpace.from_dictionaries({"x": (0.0, 1.0), "y": (0.0, 1.0)})
    X = space.sample(8, seed=0)
    Y = ((X - 0.3) ** 2).sum(-1, keepdim=True)
    inner = LogExpectedImprovement(
        ConditionalGP(X, Y, space), best_f=Y.min(), maximize=False
    )
    outer = PriorGuidedAcquisitionFunction(inner, InteriorPrior(space), log=True)
    good = make_problem(space=space, acq_function=outer).good
    assert torch.equal(good[0], X[Y.argmin()])
