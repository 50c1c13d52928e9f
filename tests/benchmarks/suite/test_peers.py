"""Each peer suggests what the space allows, whatever it is told."""

import math
from types import SimpleNamespace
from typing import Any

import ConfigSpace as cfg
import pytest
import torch
from torch import Tensor

from benchmarks.suite.peers import PEERS
from botorch_structured.spaces import SearchSpace

OPTIONAL = {"smac": "smac", "smac_starts": "smac"}
OPTIONAL |= dict.fromkeys(("plain_tpe", "tpe", "gpsampler"), "optuna")
SLOW = {"gpsampler"}


def peer(name: str) -> Any:
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    return PEERS[name]


def make_space(small: bool) -> SearchSpace:
    """Children of values, a choice that is no decision; or most kinds of columns."""
    cs = cfg.ConfigurationSpace()
    learner = cfg.Categorical("learner", ["svm", "net", "none"])
    act = cfg.Categorical("act", ["relu", "tanh", "gelu"])
    C = cfg.Float("C", (1e-3, 1e3), log=True)
    cs.add(learner, act, C, cfg.Float("drop", (0.0, 1.0)))
    cs.add(cfg.EqualsCondition(act, learner, "net"))
    if small:
        cs.add(cfg.EqualsCondition(C, learner, "svm"))
        return SearchSpace.from_configspace(cs)
    kernel = cfg.Categorical("kernel", ["linear", "rbf", "poly"])
    gamma = cfg.Float("gamma", (1e-4, 10.0), log=True)
    width = cfg.Integer("width", (4, 512), log=True)
    size = cfg.OrdinalHyperparameter("size", ["s", "m", "l"])
    cs.add(kernel, gamma, width, size)
    cs.add(
        cfg.EqualsCondition(kernel, learner, "svm"),
        cfg.InCondition(C, learner, ["svm", "net"]),
        cfg.InCondition(gamma, kernel, ["rbf", "poly"]),
        cfg.EqualsCondition(width, learner, "net"),
    )
    pair = [cfg.ForbiddenEqualsClause(*p) for p in ((learner, "none"), (size, "l"))]
    cs.add(cfg.ForbiddenAndConjunction(*pair))
    return SearchSpace.from_configspace(cs)


def told(space: SearchSpace, n: int) -> tuple[Tensor, Tensor]:
    """Points, and outcomes of which some are failures or huge."""
    X = space.sample(n, seed=0)
    Y = -((X - X.mean(0)) / (X.std(0) + 1.0)).square().sum(-1, keepdim=True)
    Y[1], Y[2], Y[3] = math.nan, -math.inf, -1e6
    return X, Y


@pytest.mark.parametrize("name", sorted({*PEERS, *OPTIONAL}))
def test_suggestions_are_allowed_and_repeatable(name: str) -> None:
    method = peer(name)
    space = make_space(name in SLOW)
    problem = SimpleNamespace(space=space, tree=space.tree)
    points = []
    for _ in range(2):
        torch.manual_seed(3)
        points.append(method(problem, *told(space, 11), 3).reshape(1, -1))
    assert torch.equal(*points)
    assert points[0].isfinite().all() and space.feasible(points[0]).all()
    back = space.encode(space.decode(points[0]))
    assert torch.allclose(back, space.impute(points[0]), rtol=0.0, atol=1e-7)
