"""The default: what it suggests, and what it does not."""

import math
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from botorch.exceptions.errors import CandidateGenerationError
from torch import Tensor

from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.suggest import fit_models, suggest, suggestion
from botorch_structured.suggest.suggestion import make_criterion
from botorch_structured.test_functions import JenattonTree


def evaluated(n: int, seed: int = 0) -> tuple[JenattonTree, Tensor, Tensor]:
    problem = JenattonTree(shared=True, off_centre=True)
    X = problem.space.sample(n, seed=seed)
    return problem, X, -problem(X).unsqueeze(-1)


def test_finds_the_optimum_of_a_small_tree() -> None:
    problem = JenattonTree(off_centre=True)
    X = problem.space.starts(seed=0)
    Y = -problem(X).unsqueeze(-1)
    for step in range(20):
        x = suggest(problem.space, X, Y, seed=step).X
        X, Y = torch.cat([X, x]), torch.cat([Y, -problem(x).unsqueeze(-1)])
    assert -float(Y.max()) - problem.optimal_value < 1e-3


def test_the_same_seed_gives_the_same_points_and_leaves_the_generator() -> None:
    problem, X, Y = evaluated(12)
    state = torch.random.get_rng_state()
    found = suggest(problem.space, X, Y, q=2, seed=3).X
    assert torch.equal(torch.random.get_rng_state(), state)
    again = suggest(problem.space, X, Y, q=2, seed=3).X
    assert torch.equal(found, again)


def test_later_fits_start_from_the_last_ones() -> None:
    problem, X, Y = evaluated(12)
    last = suggest(problem.space, X[:-1], Y[:-1], seed=0)
    found = suggest(problem.space, X, Y, start_from=last, seed=0)
    assert [type(m) for m in found.models] == [TreeStructuredGP, ConditionalGP]
    assert float(found.weights.sum()) == pytest.approx(1.0)
    again = suggest(problem.space, X, Y, start_from=last.surrogates, seed=0)
    assert torch.equal(again.X, found.X)


def test_a_space_without_decisions_has_one_model() -> None:
    bounds = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.double)
    space = SearchSpace(["a", "b"], bounds)
    X = space.sample(6, seed=0)
    found = suggest(space, X, X.sum(-1, keepdim=True), seed=0)
    assert len(found.models) == 1 and space.feasible(found.X).all()


def test_many_observations_have_one_model() -> None:
    problem, X, Y = evaluated(201)
    assert len(fit_models(problem.space, X, Y)) == 1


def test_fixed_features_hold_where_they_are_active() -> None:
    problem, X, Y = evaluated(12)
    shared = problem.space.tree.shared_columns[-1]
    fixed = {0: 1.0, shared: 0.25}
    found = suggest(problem.space, X, Y, q=2, fixed_features=fixed, seed=0).X
    assert found[:, [0, shared]].tolist() == [[1.0, 0.25]] * 2
    assert len(found.unique(dim=0)) == 2


def test_steps_of_a_column_without_room() -> None:
    """No point of the column is a hundredth of its width away from all known ones."""
    space = SearchSpace(["a"], torch.tensor([[0.0], [1.0]]).double())
    X = torch.linspace(0.0, 1.0, 80, dtype=torch.double).unsqueeze(-1)
    x = suggest(space, X, (4.0 * X).floor(), seed=0).X
    assert space.feasible(x).all()
    assert float((x - X).abs().min()) >= 1e-3


def test_bad_arguments() -> None:
    problem, X, Y = evaluated(6)
    space: Any = problem.space
    outside, undeclared = X.clone(), X.clone()
    outside[:, -1] = 9e9
    undeclared[:, space.tree.decision_columns] = 7.0
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("space: expected", {"space": space.tree}),
        ("train_Y: expected a tensor of shape 6 x m", {"train_Y": Y[:3]}),
        ("X_pending: expected a tensor of shape n x", {"X_pending": X[0]}),
        ("seed: expected", {"seed": "one"}),
        ("start_from: expected an earlier suggestion", {"start_from": [X]}),
        ("train_X: expected a number in .* got 9", {"train_X": outside}),
        ("X_pending: expected a number in .* got 9", {"X_pending": outside}),
        ("train_X: expected one of .* got 7", {"train_X": undeclared}),
        ("X_pending: expected one of .* got 7", {"X_pending": undeclared}),
        ("fixed_features: expected", {"fixed_features": {99: 1.0}}),
        ("q: expected", {"q": 0}),
    ]
    for message, change in wrong:
        with pytest.raises(ValueError, match=message):
            suggest(**{"space": space, "train_X": X, "train_Y": Y, **change})


def test_the_documented_loop_makes_the_same_choices() -> None:
    """The block of docs/models.md that takes `suggest` apart."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (block,) = [b for b in blocks if "AveragedLogExpectedImprovement(" in b]
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(block, names)
    torch.manual_seed(0)
    problem, X = names["problem"], names["space"].starts(kind="inner", seed=0)
    Y = -problem(X).unsqueeze(-1)
    while len(X) < len(names["X"]):
        x = suggest(problem.space, X, Y).X
        X, Y = torch.cat([X, x]), torch.cat([Y, -problem(x).unsqueeze(-1)])
    assert torch.equal(X, names["X"])


def test_corners_are_the_exception() -> None:
    """In 16 suggestions; without the prior a fifth of the columns are on bounds."""
    tree = ParameterTree(9, {0: {0.0: [1, 2, 3, 4], 1.0: [5, 6, 7, 8]}})
    bounds = torch.tensor([[0.0] * 9, [1.0] * 9], dtype=torch.double)
    space = SearchSpace([f"x{c}" for c in range(9)], bounds, tree)
    shares = []
    for seed in range(2):
        X = space.starts(4, seed=seed)
        for _ in range(8):
            active = tree.active_mask(X)[:, 1:]
            waves = torch.where(active, (9.0 * X[:, 1:]).cos(), 1.0)
            Y = waves.prod(-1, keepdim=True)
            X = torch.cat([X, suggest(space, X, Y, seed=seed).X])
        new, active = X[4:, 1:], tree.active_mask(X)[4:, 1:]
        shares.append(((new == 0.0) | (new == 1.0))[active].double().mean())
    assert float(torch.stack(shares).mean()) < 0.1


def failing(n_good: int = 6) -> tuple[SearchSpace, Tensor, Tensor]:
    """Three branches with a column each; the only point of the last one failed."""
    tree = ParameterTree(4, {0: {0: [1], 1: [2], 2: [3]}})
    bounds = torch.tensor([[0.0] * 4, [2.0, 1.0, 1.0, 1.0]]).double()
    space = SearchSpace(list("abcd"), bounds, tree)
    X = torch.cat([space.sample(40, seed=0), space.starts(seed=0)])
    branch = X[:, 0]
    X = torch.cat([X[branch < 2][:n_good], X[branch == 2][:1]])
    Y = X[:, 1:].sum(-1, keepdim=True)
    Y[-1] = -math.inf
    return space, X, Y


def test_a_branch_whose_only_evaluation_failed_is_tried_again() -> None:
    """Until one does not fail, or three did."""
    space, X, Y = failing()
    for _ in range(2):
        x = suggest(space, X, Y, seed=0).X
        assert float(x[0, 0]) == 2.0 and not (x == X).all(-1).any()
        worked = suggest(
            space, torch.cat([X, x]), torch.cat([Y, Y[:1] - 5.0]), seed=0
        ).X
        assert float(worked[0, 0]) != 2.0  # a bad one that did not fail
        X, Y = torch.cat([X, x]), torch.cat([Y, Y[-1:]])
    assert float(suggest(space, X, Y, seed=0).X[0, 0]) != 2.0


def test_pending_points_are_tries_and_failures_have_half_of_all_points() -> None:
    space, X, Y = failing()
    found = suggest(space, X, Y, q=4, seed=0).X
    assert (found[:, 0] == 2.0).tolist() == [True, True, False, False]
    after = suggest(space, X, Y, X_pending=found[:2], seed=0).X
    assert float(after[0, 0]) != 2.0
    few = torch.cat([X[:1], X[-1:], found[:1]])
    Y = torch.cat([Y[:1], Y[-1:], Y[-1:]])
    assert float(suggest(space, few, Y, seed=0).X[0, 0]) != 2.0


def test_what_is_fixed_decides_over_another_try() -> None:
    space, X, Y = failing()
    assert float(suggest(space, X, Y, seed=0, fixed_features={0: 1.0}).X[0, 0]) == 1.0
    held = suggest(space, X, Y, seed=0, fixed_features={3: 0.25}).X
    assert held[0, [0, 3]].tolist() == [2.0, 0.25]
    X = X.clone()
    X[-1, 3] = 0.25  # nothing else is left on that branch
    held = suggest(space, X, Y, seed=0, fixed_features={3: 0.25}).X
    assert float(held[0, 0]) != 2.0


def test_an_improvement_is_one_for_a_number_that_is_held() -> None:
    space = SearchSpace.from_dictionaries({"x": (0.0, 1.0), "y": (0.0, 1.0)})
    X = space.sample(12, seed=0)
    for k in range(8):
        Y = -(((X - torch.tensor([0.2, 0.7])) ** 2).sum(-1, keepdim=True))
        found = suggest(space, X, Y, seed=k, fixed_features={0: 0.9}).X
        X = torch.cat([X, found])
    assert (X[12:, 0] == 0.9).all()
    assert (X[12:, 1] - 0.7).abs().min() < 1e-3


def test_one_evaluation_with_known_noise_and_another_pending() -> None:
    space = SearchSpace.from_dictionaries({"x": (0.0, 1.0), "y": (0.0, 1.0)})
    X = space.sample(2, seed=0)
    known = {"train_Yvar": torch.full((1, 1), 0.01).to(X)}
    found = suggest(space, X[:1], X[:1, :1], X_pending=X[1:], seed=0, **known)
    assert found.X.isfinite().all()


def test_more_points_than_are_left() -> None:
    space = SearchSpace.from_dictionaries({"i": (1, 4), "j": (1, 3)})
    every = torch.cartesian_prod(torch.arange(1, 5), torch.arange(1, 4)).to(
        space.bounds
    )
    X = every[:10]
    Y = -X.sum(-1, keepdim=True)
    assert len(suggest(space, X, Y, q=2, seed=0).X) == 2
    with pytest.raises(
        CandidateGenerationError, match="q: expected at most 2, as many"
    ):
        suggest(space, X, Y, q=4, seed=0)


def test_a_branch_that_brings_nothing_is_left_for_one_point() -> None:
    """After five evaluations; for the branch with the fewest points, then the best."""
    tree = ParameterTree(5, {0: {0.0: [1], 1.0: [2], 2.0: [3], 3.0: [4]}})
    bounds = torch.tensor([[0.0] * 5, [3.0, 1.0, 1.0, 1.0, 1.0]]).double()
    space = SearchSpace(["m", *"abcd"], bounds, tree)

    def on(*branches: int) -> Tensor:
        X = space.impute(space.sample(len(branches), seed=0))
        X[:, 0] = torch.tensor(branches).double()
        return space.impute(X)

    X = on(0, 1, 1, 2, 3, *[0] * 6)
    Y = torch.tensor([5.0, 1.0, 1.0, 2.0, 3.0, 9.0, *[4.0] * 5]).double()[:, None]

    def branches(X: Tensor, Y: Tensor, q: int = 1, **given: Any) -> list[float]:
        return suggest(space, X, Y, q, seed=0, **given).X[:, 0].tolist()

    assert branches(X, Y) == [3.0]
    assert branches(torch.cat([X, on(3)[:1]]), torch.cat([Y, Y[:1]])) == [0.0]
    assert branches(X, Y, 2)[0] == 3.0 and branches(X, Y, 2)[1] != 3.0
    # the last is the best; only four stand still; a column is held; one is elsewhere
    better = torch.cat([Y[:-1], Y[-1:] + 6.0])
    assert branches(X, better) == [0.0]
    assert branches(X[:-1], Y[:-1]) == [0.0]
    assert branches(X, Y, fixed_features={0: 0.0}) == [0.0]
    assert branches(X, Y, X_pending=on(1)) == [0.0]
    # a branch on which three tries failed is left out, and nothing has worked at all
    bad = torch.where(X[:, :1] == 3.0, -torch.inf, Y)
    tried = torch.cat([X, *[on(3)] * 2]).roll(2, 0), torch.cat([bad, bad[4:5]])
    tried = tried[0], torch.cat([tried[1], bad[4:5]]).roll(2, 0)
    assert branches(*tried) == [2.0]
    # the best one breaks a constraint
    C = (torch.cat([Y[:-1], Y[-1:] + 6.0]) > 9.0).double() - 0.5
    assert branches(X, better, train_C=C) == [3.0]
    # two decisions that do not depend on each other: neither is left
    tree = ParameterTree(4, {0: {0.0: [2], 1.0: []}, 1: {0.0: [3], 1.0: []}})
    space = SearchSpace(["m", *"abc"], [[0.0] * 4, [1.0] * 4], tree)
    X = torch.tensor([[1.0, 1.0, 0.5, 0.5]] + [[0.0, 0.0, 0.1, 0.1]] * 6).double()
    X[1:, 2:] += torch.arange(6).double()[:, None] / 10
    Y = torch.tensor([0.0, 9.0, *[8.0] * 5]).double()[:, None]
    with mock.patch.object(suggestion, "make_criterion", wraps=make_criterion) as spy:
        suggest(space, X, Y, seed=0)
    assert [call.args[-1] for call in spy.call_args_list] == [{}]


def test_a_branch_is_left_although_it_began_late() -> None:
    """Ten points on one branch, then five on another without a gain."""
    tree = ParameterTree(3, {0: {0.0: [1], 1.0: [2]}})
    space = SearchSpace(["m", "a", "b"], [[0.0] * 3, [1.0] * 3], tree)
    X = space.fill.repeat(15, 1)
    X[10:, 0] = 1.0
    X[:, 1] = torch.where(X[:, 0] == 0.0, torch.linspace(0.05, 0.95, 15), X[:, 1])
    X[:, 2] = torch.where(X[:, 0] == 1.0, torch.linspace(0.05, 0.95, 15), X[:, 2])
    Y = torch.where(X[:, :1] == 0.0, X[:, 1:2] - 2.0, -1.5 - X[:, 2:])
    assert suggest(space, X, Y, seed=0).X[0, 0] == 0.0
