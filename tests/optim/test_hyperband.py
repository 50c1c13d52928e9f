"""Rungs, halving, and the data of other programs."""

import math

import pytest
import torch
from botorch import fit_gpytorch_mll
from ConfigSpace import Categorical, ConfigurationSpace, EqualsCondition, Float
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import (
    encode_triplets,
    hyperband_rungs,
    successive_halving,
)
from botorch_structured.spaces import SearchSpace


def make_space() -> SearchSpace:
    cs = ConfigurationSpace()
    branch = Categorical("branch", ["left", "right"])
    a, b = Float("a", (0.0, 1.0)), Float("b", (0.0, 1.0))
    cs.add(branch, a, b, Float("share", (0.05, 1.0), log=True))
    cs.add(EqualsCondition(a, branch, "left"), EqualsCondition(b, branch, "right"))
    return SearchSpace.from_configspace(cs)


def test_rungs_are_those_of_the_paper() -> None:
    """Table 1 of Li et al., R = 81 and eta = 3."""
    table = [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]
    for rungs, expected in zip(hyperband_rungs(1, 81), table, strict=True):
        assert [count for count, _ in rungs] == [count for count, _ in expected]
        contexts = [context for _, context in rungs]
        assert contexts == pytest.approx([context for _, context in expected])


@pytest.mark.parametrize("eta", [2.0, 3.0, 3.5, 4.0])
@pytest.mark.parametrize("smallest", [1.0, 0.5, 1 / 9, 0.03])
def test_rungs_stay_inside(smallest: float, eta: float) -> None:
    brackets = hyperband_rungs(smallest, eta=eta)
    assert len(brackets) == 1 + math.floor(math.log(1 / smallest, eta) + 1e-9)
    for rungs in brackets:
        assert rungs[-1][1] == pytest.approx(1.0)
        assert rungs[0][1] >= smallest * (1 - 1e-9)
        assert sorted((c for c, _ in rungs), reverse=True) == [c for c, _ in rungs]


def test_the_better_ones_go_on() -> None:
    calls = []

    def evaluate(X: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(X)
        outcomes = -(X[:, 0] - 0.5).abs()
        outcomes[X[:, 0] < 0.1] = torch.nan  # failures
        return outcomes, X[:, 1] * 10

    X = torch.tensor([[0.0, 9.0], [0.9, 9.0], [0.4, 9.0], [0.52, 9.0], [0.8, 9.0]])
    rungs = [(4, 0.25), (2, 0.5), (1, 1.0)]
    points, Y, cost = successive_halving(evaluate, X, 1, rungs)
    assert points[:, 0].tolist() == pytest.approx([0, 0.9, 0.4, 0.52, 0.52, 0.4, 0.52])
    assert points[:, 1].tolist() == [0.25] * 4 + [0.5] * 2 + [1.0]
    assert Y.shape == cost.shape == (7, 1)
    assert torch.equal(cost, points[:, 1:] * 10)
    assert (X[:, 1] == 9.0).all()  # not changed
    assert [len(call) for call in calls] == [4, 2, 1]
    down = successive_halving(evaluate, X[1:], -1, [(4, 0.5), (1, 1.0)], maximize=False)
    assert down[0][-1].tolist() == pytest.approx([0.9, 1.0])


def test_triplets_start_a_model() -> None:
    space = make_space()
    triplets = [
        ({"branch": "left", "a": 0.2}, 0.1, 0.7, 3.0),
        ({"branch": "right", "b": 0.4}, 0.1, 0.6, 4.0),
        ({"branch": "left", "a": 0.2}, 1.0, 0.9, 20.0),
    ]
    X, Y, cost = encode_triplets(space, triplets, "share")
    assert cost is not None
    assert space.decode(X)[2] == {"branch": "left", "a": 0.2, "share": 1.0}
    assert Y.flatten().tolist() == [0.7, 0.6, 0.9]
    assert cost.flatten().tolist() == [3.0, 4.0, 20.0]
    assert encode_triplets(space, [row[:3] for row in triplets], "share")[2] is None
    failed = [(*triplets[0][:2], -math.inf, 1.0)]
    assert encode_triplets(space, failed, "share")[1].tolist() == [[-math.inf]]
    c = space.names.index("share")
    model = TreeStructuredGP(X, Y, space, context_features=[c])
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.posterior(X).mean.isfinite().all()


def test_bad_arguments() -> None:
    for eta, smallest, message in (
        (3.0, 0.0, "smallest: expected a positive number"),
        (3.0, -1.0, "smallest: expected a positive number"),
        (3.0, 2.0, "smallest: expected at most `largest`"),
        (1.0, 0.1, "eta: expected a number above 1"),
    ):
        with pytest.raises(ValueError, match=message):
            hyperband_rungs(smallest, eta=eta)
    X = torch.rand(3, 2)
    for rungs in ([], [(4, 0.1)], [(1, 0.1), (2, 1.0)]):
        with pytest.raises(ValueError, match="rungs: expected counts"):
            successive_halving(lambda x: (x[:, 0], x[:, 0]), X, 1, rungs)
    with pytest.raises(ValueError, match="evaluate: expected 3 outcomes and costs"):
        successive_halving(lambda x: (x[:1, 0], x[:, 0]), X, 1, [(3, 0.1)])
    space = make_space()
    with pytest.raises(ValueError, match="context: expected a name among"):
        encode_triplets(space, [], "size")
    row = ({"branch": "left", "a": 0.2}, 0.1, 0.7)
    for rows in ([], [row, (*row, 1.0)], [row[:2]]):
        with pytest.raises(ValueError, match="triplets: expected rows of 3"):
            encode_triplets(space, rows, "share")
    for bad in ((math.inf,), (math.nan,), (1.0, -math.inf)):
        with pytest.raises(ValueError, match="triplets: expected a"):
            encode_triplets(space, [(*row[:2], *bad)], "share")


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("failure", [math.nan, -math.inf])
def test_a_failure_is_the_worst_in_either_direction(
    maximize: bool, failure: float
) -> None:
    def evaluate(X: Tensor) -> tuple[Tensor, Tensor]:
        outcomes = X[:, 0].clone()
        outcomes[X[:, 0] == 0.5] = failure
        return outcomes, torch.ones(len(X))

    X = torch.tensor([[0.5, 0.0], [0.25, 0.0], [0.75, 0.0]])
    points, _, _ = successive_halving(evaluate, X, 1, [(3, 0.1), (2, 1.0)], maximize)
    assert points[3:, 0].tolist() == ([0.75, 0.25] if maximize else [0.25, 0.75])
