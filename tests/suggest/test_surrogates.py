"""What is fitted, to which rows, and what is refused."""

import math
import warnings
from typing import Any

import pytest
import torch
from botorch.exceptions.warnings import InputDataWarning
from torch import Tensor

from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.spaces import SearchSpace
from botorch_structured.suggest import fit_surrogates, suggest, surrogates
from botorch_structured.test_functions import JenattonTree


def data(n: int = 10) -> tuple[SearchSpace, Tensor, Tensor]:
    """Two objectives."""
    problem = JenattonTree(shared=True, off_centre=True)
    X = problem.space.sample(n, seed=0)
    return problem.space, X, torch.stack([-problem(X), X.cos().sum(-1)], dim=-1)


@pytest.mark.parametrize("num_objectives", [1, 2])
def test_models_of_each_outcome_and_one_of_the_cost(num_objectives: int) -> None:
    """Two of each where there is one objective, else one: fronts are better so."""
    space, X, Y = data()
    cost = 1.0 + X.square().sum(-1, keepdim=True)
    found = fit_surrogates(
        space, X, Y[:, :num_objectives], train_C=Y - 1.0, train_cost=cost
    )
    expected = [TreeStructuredGP, ConditionalGP][: 3 - num_objectives]
    for mixture in (*found.objectives, *found.constraints):
        assert [type(model) for model in mixture.models] == expected
        assert float(mixture.weights.sum()) == pytest.approx(1.0)
    assert len(found.objectives) == num_objectives
    assert len(found.constraints) == 2
    assert isinstance(found.cost, TreeStructuredGP)
    predicted = found.cost.posterior(X).mean.exp()
    torch.testing.assert_close(predicted, cost, rtol=0.05, atol=0.0)


def test_an_evaluation_fails_as_a_whole() -> None:
    space, X, Y = data()
    partly, wholly, C = Y.clone(), Y.clone(), Y[:, :1].clone()
    partly[2, 1] = -math.inf
    wholly[2] = C[2] = -math.inf
    C[2] = math.nan
    found = suggest(space, X, partly, train_C=C, seed=0)
    again = suggest(space, X, wholly, train_C=C, seed=0)
    assert torch.equal(found.X, again.X)
    (constraint,) = found.surrogates.constraints
    assert [len(model.train_targets) for model in constraint.models] == [9]


def test_unknown_costs_are_left_out() -> None:
    space, X, Y = data()
    cost = torch.full_like(Y[:, :1], math.nan)
    cost[0] = 3.0
    assert fit_surrogates(space, X, Y, train_cost=cost).cost is None
    cost[1] = 4.0
    model = fit_surrogates(space, X, Y, train_cost=cost).cost
    assert model is not None and len(model.train_targets) == 2
    assert suggest(space, X, Y, train_cost=cost, seed=0).X.isfinite().all()


def test_fits_of_a_search_can_be_repeated_without_its_suggestions() -> None:
    space, X, Y = data(10)
    Y, more = Y[:, :1], {"train_C": Y[:, 1:] - 1.0, "train_cost": 2.0 + Y[:, 1:].sin()}
    last, replayed = None, None
    for n in range(7, 10):
        rows = {k: v[:n] for k, v in more.items()}
        last = suggest(space, X[:n], Y[:n], start_from=last, seed=n, **rows)
        replayed = fit_surrogates(
            space, X[:n], Y[:n], start_from=replayed, seed=n, **rows
        )
    found = suggest(space, X, Y, start_from=last, seed=0, **more).X
    assert torch.equal(
        found, suggest(space, X, Y, start_from=replayed, seed=0, **more).X
    )


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_one_and_two_observations(n: int, m: int) -> None:
    space, X, Y = data(n)
    C = Y[:, :1] - 5.0
    cost = C.exp()
    for more in ({}, {"train_C": C}, {"train_C": -C, "train_cost": cost}):
        x = suggest(space, X, Y[:, :m], seed=0, **more).X
        assert x.isfinite().all() and space.feasible(x).all()


@pytest.mark.parametrize("m", [1, 2])
def test_outcomes_that_are_all_equal(m: int) -> None:
    space, X, Y = data()
    same = torch.full_like(Y[:, :m], -3.0)
    for C in (same[:, :1], -same[:, :1]):
        x = suggest(space, X, same, train_C=C, train_cost=-same[:, :1], seed=0).X
        assert x.isfinite().all() and space.feasible(x).all()


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_floats_are_bad_or_good_outcomes(sign: float) -> None:
    """Squares of numbers above 1e154 are infinite; some return them for failures."""
    space, X, Y = data()
    Y[::2, 0] = sign * torch.finfo(Y.dtype).max
    C = Y[:, :1].clone()
    for objectives in (Y[:, :1], Y):
        found = suggest(space, X, objectives, train_C=-C, seed=0)
        means = found.models[0].posterior(X).mean.detach()
        assert means.isfinite().all()
        extreme = means[::2].mean() - means[1::2].mean()
        assert sign * float(extreme) > 0.0
        assert found.X.isfinite().all()


@pytest.mark.parametrize(
    ("dtype", "small", "too_small"),
    [(torch.double, 1e-152, [1e-157, 1e-300]), (torch.float, 1e-17, [1e-20, 1e-35])],
)
def test_units_down_to_those_whose_squares_are_no_numbers(
    dtype: torch.dtype, small: float, too_small: list[float]
) -> None:
    space, X, Y = data()
    X, Y = X.to(dtype), Y[:, :1].to(dtype)
    usual, tiny = (suggest(space, X, Y * unit, seed=0).X for unit in (1.0, small))
    torch.testing.assert_close(usual, tiny, rtol=0.0, atol=0.02)
    for unit in too_small:
        with pytest.raises(ValueError, match="expected .* deviation of about 1"):
            suggest(space, X, Y * unit, seed=0)


def test_all_but_one_failed() -> None:
    space, X, Y = data()
    Y = Y.index_fill(0, torch.arange(1, 10), -math.inf)
    for m in (1, 2):
        assert suggest(space, X, Y[:, :m], seed=0).X.isfinite().all()
    with pytest.raises(ValueError, match="train_Y: expected at least one evaluation"):
        suggest(space, X[1:], Y[1:])


def test_single_precision_has_one_kind_of_warning() -> None:
    """BoTorch's, that double precision is recommended; none of each matrix."""
    problem = JenattonTree(shared=True, off_centre=True)
    X = problem.space.sample(40, seed=0)
    Y = -problem(X).unsqueeze(-1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = suggest(problem.space, X.float(), Y.float(), seed=0)
    assert found.X.dtype == torch.float and problem.space.feasible(found.X).all()
    assert {w.category for w in caught} == {InputDataWarning}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        suggest(problem.space, X[:12], Y[:12], seed=0)


def test_points_have_no_graph() -> None:
    space, X, Y = data()
    Yvar = torch.full_like(Y, 0.01)
    busy = space.sample(1, seed=3)
    expected = suggest(space, X, Y, X_pending=busy, train_Yvar=Yvar, seed=0).X
    with_graph = [t.clone().requires_grad_() * 1.0 for t in (X, Y, busy, Yvar)]
    known, values, pending, noise = with_graph
    found = suggest(space, known, values, X_pending=pending, train_Yvar=noise, seed=0)
    assert not found.X.requires_grad and torch.equal(found.X, expected)


def test_bad_data() -> None:
    space, X, Y = data()
    C, nan = Y[:, :1], Y[:, :1].clone()
    nan[4] = math.nan
    wrong: list[tuple[str, dict[str, Any]]] = [
        (r"train_Y: expected numbers, or -inf.* rows \[4\]", {"train_Y": nan}),
        ("train_Y: expected numbers, or -inf", {"train_Y": Y / 0.0}),
        ("train_Y: expected a tensor of shape 10 x m", {"train_Y": Y[:, 0]}),
        ("train_Y: expected a tensor of shape 10 x m", {"train_Y": Y.tolist()}),
        ("train_Y: expected a tensor of shape 10 x m", {"train_Y": Y.long()}),
        ("train_Y: expected a tensor of shape 10 x m", {"train_Y": Y.float()}),
        ("train_Yvar: expected a tensor of shape 10 x 2", {"train_Yvar": C}),
        ("train_C: expected a tensor of shape 10 x m", {"train_C": C[:4]}),
        ("train_C: expected a tensor .* torch.float64", {"train_C": C.float()}),
        (r"train_C: expected finite numbers, .* rows \[4\]", {"train_C": nan}),
        ("train_C: expected finite numbers", {"train_C": C / 0.0}),
        ("train_cost: expected a tensor of shape 10 x 1", {"train_cost": Y}),
        ("train_cost: expected positive numbers", {"train_cost": C - C}),
        ("ref_point: expected 2 finite numbers", {"ref_point": [1.0]}),
        ("ref_point: expected None for", {"train_Y": C, "ref_point": [1.0]}),
        ("start_from: expected an earlier", {"start_from": ["model"]}),
        ("max_rows: expected", {"max_rows": 0}),
    ]
    for match, change in wrong:
        with pytest.raises(ValueError, match=match):
            suggest(space, X, **{"train_Y": Y, **change})
    with pytest.raises(ValueError, match=r"one evaluated point, got none.*starts"):
        suggest(space, X[:0], Y[:0])


@pytest.mark.parametrize(("max_rows", "seen"), [(20, 40), (None, 90)])
def test_models_see_some_rows_of_each_path(max_rows: int | None, seen: int) -> None:
    space = SearchSpace.from_dictionaries(
        [{"kind": ["a"], "x": (0.0, 1.0)}, {"kind": ["b"], "y": (0.0, 1.0)}]
    )
    X = space.sample(90, seed=0)
    Y = -(X.sum(-1, keepdim=True) - 0.7).square()
    Y[3] = -math.inf
    found = suggest(space, X, Y, seed=0, max_rows=max_rows)
    assert [len(model.train_targets) for model in found.models] == [seen, seen]


def test_it_is_said_once_that_all_of_many_rows_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(surrogates, "_MANY_ROWS", 30)
    surrogates._warn_of_rows.cache_clear()
    space = SearchSpace.from_dictionaries({"x": (0.0, 1.0)})
    X = space.sample(31, seed=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        suggest(space, X, -X, seed=0)
        suggest(space, X[1:], -X[1:], seed=0, max_rows=None)
        for _ in range(2):
            suggest(space, X, -X, seed=0, max_rows=None)
    (one,) = said
    assert "default, max_rows=1000" in str(one.message)
    assert one.filename == __file__
