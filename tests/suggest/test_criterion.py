"""Several objectives, constraints, costs, and points that are pending."""

import math
from collections.abc import Callable

import pytest
import torch
from botorch.utils.multi_objective.box_decompositions import (
    FastNondominatedPartitioning,
)
from torch import Tensor

from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.suggest import Suggestion, fit_surrogates, suggest
from botorch_structured.suggest.suggestion import make_criterion
from botorch_structured.test_functions import JenattonTree

TREE = ParameterTree(6, {0: {0.0: [1, 2], 1.0: [3, 4, 5]}})
BOUNDS = torch.tensor([[0.0] * 6, [1.0] * 6], dtype=torch.double)
SPACE = SearchSpace(["branch", "a", "b", "c", "d", "e"], BOUNDS, TREE)


def distance(X: Tensor, place: float) -> Tensor:
    """``n`` squared distances of the active columns from a place."""
    return torch.where(TREE.active_mask(X), (X - place).square(), 0.0)[:, 1:].sum(-1)


def conflict(X: Tensor) -> Tensor:
    """Two objectives with their optima at 0.2 and at 0.7; branch 1 is better."""
    worse = 0.3 * (1.0 - X[:, 0])
    return -torch.stack([distance(X, 0.2) + worse, distance(X, 0.7) + worse], dim=-1)


def volume(Y: Tensor) -> float:
    ref = torch.full((2,), -1.2, dtype=torch.double)
    return float(FastNondominatedPartitioning(ref, Y).compute_hypervolume())


def search(
    evaluate: Callable[[Tensor], dict[str, Tensor]], n: int, seed: int, random: int = 2
) -> tuple[Tensor, dict[str, Tensor]]:
    """``n`` evaluations, of which the first ones are random."""
    X, last = SPACE.sample(random, seed=seed), None
    data = evaluate(X)
    while len(X) < n:
        last = suggest(SPACE, X, start_from=last, seed=seed, **data)
        X = torch.cat([X, last.X])
        data = {k: torch.cat([v, evaluate(last.X)[k]]) for k, v in data.items()}
    return X, data


def test_the_front_of_two_objectives() -> None:
    """Larger than that of random search after 25 evaluations."""
    for seed in range(2):
        _, data = search(lambda X: {"train_Y": conflict(X)}, 25, seed, random=8)
        random = conflict(SPACE.sample(25, seed=seed))
        assert volume(data["train_Y"]) > volume(random)
        line = torch.linspace(0.2, 0.7, 500, dtype=torch.double).unsqueeze(-1)
        best = conflict(line.expand(-1, 6).index_fill(1, torch.tensor([0]), 1.0))
        assert volume(data["train_Y"]) > 0.95 * volume(best)


def constrained(X: Tensor) -> dict[str, Tensor]:
    """The best points, on branch 1, are not feasible; a ball of branch 0 is."""
    objective = X[:, :1] - 0.1 * distance(X, 0.9).unsqueeze(-1)
    ball = distance(X, 0.25) - 0.01 + X[:, 0]
    return {"train_Y": objective, "train_C": 1e6 * ball.unsqueeze(-1)}


def test_a_constraint_that_the_best_points_break() -> None:
    """The best feasible point is on the edge of the ball, nearest to 0.9."""
    edge = 0.25 + 0.1 / math.sqrt(2.0)
    best = -0.1 * 2.0 * (0.9 - edge) ** 2
    _, data = search(constrained, 20, 0)
    feasible = data["train_C"] <= 0.0
    assert float(data["train_Y"][feasible].max()) > best - 1e-3
    assert float(data["train_Y"].max()) > best  # where unconstrained search goes


def test_while_nothing_is_feasible_the_constraint_leads() -> None:
    X = SPACE.sample(10, seed=0)
    data = constrained(X)
    assert (data["train_C"] > 0.0).all()
    x = suggest(SPACE, X, seed=0, **data).X
    other = suggest(SPACE, X, 1e3 - data["train_Y"], train_C=data["train_C"], seed=0).X
    assert torch.equal(x, other)  # whatever the objective
    assert float(constrained(x)["train_C"]) < float(data["train_C"].min())


def jenatton(n: int, seed: int = 0) -> tuple[SearchSpace, Tensor, Tensor]:
    problem = JenattonTree(shared=True, off_centre=True)
    X = problem.space.sample(n, seed=seed)
    return problem.space, X, -problem(X).unsqueeze(-1)


@pytest.mark.parametrize(("unit", "shift"), [(1e-9, 5.0), (1e9, 0.0), (1e-12, 0.0)])
def test_units_do_not_matter(unit: float, shift: float) -> None:
    space, X, Y = jenatton(10)
    two = torch.cat([Y, X.cos().sum(-1, keepdim=True)], dim=-1)
    outcomes = {"train_Y": Y, "train_C": two[:, 1:] - two[:, 1:].median()}
    cost = 1.0 + X[:, -1:]
    for data in (
        {"train_Y": Y},
        {"train_Y": two},
        outcomes,
        {"train_Y": Y, "train_cost": cost},
    ):
        x = suggest(space, X, seed=0, **data).X
        # constraints are compared with 0, and costs positive
        moved = {k: unit * v + shift * (k == "train_Y") for k, v in data.items()}
        again = suggest(space, X, seed=0, **moved).X
        torch.testing.assert_close(again, x, rtol=0.0, atol=1e-3)


def test_a_pending_point_with_a_bad_mean_keeps_it() -> None:
    """It is not compressed a second time, as a new bad outcome would be."""
    space, X, Y = jenatton(14)
    Y = Y.clone()
    Y[:3] -= 100.0
    surrogates = fit_surrogates(space, X, Y)
    pending = X[:1] + 1e-3
    known = torch.cat([X, pending])
    criterion, _ = make_criterion(space, surrogates, known, len(X))
    (part, _) = criterion.acq_func.parts
    (model, _) = surrogates.objectives[0].models
    Z = pending.unsqueeze(-2)
    mean, spread = model.posterior(Z).mean, Y[3:].std()
    assert float((part.model.posterior(Z).mean - mean).abs() / spread) < 1e-3
    assert float(part.model.posterior(Z).variance) <= float(model.posterior(Z).variance)


def test_a_batch_has_a_spread() -> None:
    """Without what is pending, all three would be the same maximum."""
    space, X, Y = jenatton(12)
    for seed in range(3):
        new = space.tree.impute(suggest(space, X, Y, q=3, seed=seed).X)
        assert float(torch.pdist(new).min()) > 1e-2


def test_a_point_counts_as_feasible_by_its_outcomes_and_its_probability() -> None:
    """Above a half by probability alone; from 1 in 20 on if its outcomes were."""
    space, X, Y = jenatton(16)
    C = Y - Y.sort(dim=0).values[10]  # the best five are not feasible, one is open
    surrogates = fit_surrogates(space, X, Y, train_C=C)
    open_one = surrogates.constraints[0].models[0].posterior(X[C.flatten() == 0.0])
    C = C + 0.7 * open_one.variance.sqrt().detach()
    surrogates = fit_surrogates(space, X, Y, train_C=C)
    mixture = surrogates.objectives[0]
    means = torch.stack([m.posterior(X).mean.flatten() for m in mixture.models])

    def best_f(outcomes: Tensor) -> Tensor:
        criterion, _ = make_criterion(space, surrogates, X, 16, train_C=outcomes)
        guided = criterion.acq_func
        likely.append(guided.prior_module(X).exp())
        return torch.stack([part.best_f for part in guided.acq_func.parts])

    likely: list[Tensor] = []
    # none of the outcomes is feasible, all of them are, whatever the models say
    found = best_f(torch.full_like(C, 1.0)), best_f(torch.full_like(C, -1.0))
    assert (likely[0] < 0.05).any() and (likely[0] > 0.5).any()
    for value, least in zip(found, (0.5, 0.05), strict=True):
        expected = means[:, likely[0] >= least].amax(-1)
        torch.testing.assert_close(value, expected)
    assert (found[0] < found[1]).all() and (found[1] < means.amax(-1)).all()


def test_the_limit_of_a_count_is_halfway_to_the_next() -> None:
    space, X, Y = jenatton(12)
    C = X[:, -1:].mul(7.0).round() - 3.0  # whole numbers
    C[0] = 0.0
    surrogates = fit_surrogates(space, X, Y, train_C=C)
    limits = []
    for outcomes in (C, C - 0.25):
        criterion, _ = make_criterion(space, surrogates, X, len(X), train_C=outcomes)
        limits.append(float(criterion.acq_func.prior_module.limits[0]))
    assert limits == [0.5, 0.0]


def test_known_noise_of_pending_points_is_in_units_of_the_outcomes() -> None:
    """Outcomes with a thousandfold unit have a millionfold variance."""
    space, X, Y = jenatton(12)
    pending = space.sample(2, seed=5)
    found = [
        suggest(
            space,
            X,
            unit * Y,
            X_pending=pending,
            seed=0,
            train_Yvar=torch.full_like(Y, 0.1 * unit**2),
        ).X
        for unit in (1.0, 1e3)
    ]
    torch.testing.assert_close(*found, rtol=0.0, atol=1e-3)


def test_several_points_of_several_objectives() -> None:
    X = SPACE.sample(10, seed=0)
    Y, noise = conflict(X), torch.full((10, 2), 1e-4, dtype=torch.double)
    C = X[:, 1:2] - 2.0
    pending = SPACE.sample(2, seed=3)
    for more in ({}, {"train_C": C}, {"train_Yvar": noise}):
        found = suggest(SPACE, X, Y, q=3, X_pending=pending, seed=0, **more)
        assert SPACE.feasible(found.X).all() and found.X.shape == (3, 6)
        known = TREE.impute(torch.cat([X, pending, found.X]))
        apart = torch.pdist(known[10:])
        assert float(apart.min()) > 1e-2


def test_the_reference_point_says_what_counts() -> None:
    X = SPACE.sample(15, seed=0)
    Y = conflict(X)

    def suggested(ref_point: list[float] | None) -> Tensor:
        return conflict(suggest(SPACE, X, Y, ref_point=ref_point, seed=0).X)

    # one objective may be as bad as it likes, and then the other
    first, second = suggested([-0.1, -3.0]), suggested([-3.0, -0.1])
    assert float(first[0, 0]) > float(second[0, 0])
    assert float(second[0, 1]) > float(first[0, 1])


def test_cheap_points_first() -> None:
    """The outcome is constant in the column that an evaluation's cost grows with."""
    X = SPACE.sample(16, seed=0)
    X[:, 0] = 1.0
    Y = -((X[:, 3:4] - 0.5).square() + (X[:, 4:5] - 0.5).square())
    cost = 1e3 ** X[:, 5:]
    cost[:2] = math.nan

    def price(suggestion: Suggestion) -> float:
        x = suggestion.X
        return float(x[0, 5]) if x[0, 0] == 1.0 else 0.0

    dear, cheap = (
        suggest(SPACE, X, Y, seed=0, **more) for more in ({}, {"train_cost": cost})
    )
    assert dear.surrogates.cost is None and cheap.surrogates.cost is not None
    assert price(cheap) < 0.1 and price(cheap) <= price(dear)
