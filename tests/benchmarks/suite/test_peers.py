"""Each peer suggests what the space allows, whatever it is told."""

import math
from types import SimpleNamespace
from typing import Any

import ConfigSpace as cfg
import pytest
import torch
from torch import Tensor

from benchmarks.suite.peers import PEERS
from benchmarks.suite.peers import gaussian_processes as gps
from botorch_structured.spaces import SearchSpace
from botorch_structured.test_functions import JenattonTree

OPTIONAL = {"smac": "smac", "smac_starts": "smac", "cmaes": "cmaes"}
OPTIONAL |= dict.fromkeys(("plain_tpe", "tpe", "gpsampler"), "optuna")
SLOW = {"arc", "hierarchical", "gpsampler"}


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
        state = [None] if getattr(method, "keeps_state", False) else []
        x: Any = method(problem, *told(space, 11), 3, *state)
        points.append((x[0] if state else x).reshape(1, -1))
    assert torch.equal(*points)
    assert points[0].isfinite().all() and space.feasible(points[0]).all()
    back = space.encode(space.decode(points[0]))
    assert torch.allclose(back, space.impute(points[0]), rtol=0.0, atol=1e-7)


def test_optuna_gets_active_parameters_in_native_units() -> None:
    optuna = pytest.importorskip("optuna")
    from benchmarks.suite.peers.optuna_samplers import Study

    space = make_space(small=False)
    X, Y = told(space, 30)
    study = Study(space, optuna.samplers.RandomSampler(seed=0))
    study.add(X, Y)
    points = study.suggestions()
    X = torch.cat([X, torch.stack([next(points) for _ in range(30)])])
    expected = optuna.distributions.IntDistribution(4, 512, log=True)
    for trial, config in zip(study.study.trials, space.decode(X), strict=True):
        assert trial.params.keys() == config.keys()
        for name in {"C", "gamma", "width"} & config.keys():
            assert trial.params[name] == pytest.approx(config[name], rel=1e-12)
        assert trial.distributions.get("width", expected) == expected
    values = [t.value for t in study.study.trials[:30]]
    assert values[1] == values[2] == values[3] == 1e6 == max(values)


def test_smac_keeps_its_facade() -> None:
    """It is told of each value once, and its design is the start."""
    pytest.importorskip("smac")
    from benchmarks.suite.peers.smac import SMAC

    problem, smac = JenattonTree(4), SMAC(12)
    X = smac.starts(problem, 0)
    assert len(X) == 3
    state = None
    for k in range(3):
        x, state = smac(problem, X, -problem(X).unsqueeze(-1), k, state)
        assert smac._live is not None and smac._live.told == len(X)
        X = torch.cat([X, x[None]])
    assert state == {"seed": 0, "starts": 3}


@pytest.mark.parametrize("small", [False, True])
def test_the_hierarchical_kernel_knows_what_is_active(small: bool) -> None:
    """Also below several values, and below a value of another such parameter."""
    space = make_space(small)
    encoding, kernel = gps._hierarchical_kernel(space)
    X = space.sample(64, seed=0)
    Z, active = encoding(X), space.tree.active_mask(X)
    seen = set()
    for block, path in zip(kernel.partition, kernel.paths, strict=True):
        above = [(Z[:, j] - value).abs() < 1e-8 for j, value in path]
        on = torch.stack(above).all(0) if above else torch.ones(64).bool()
        for column in {encoding.source[j] for j in block if j < len(encoding.source)}:
            assert torch.equal(on, active[:, column])
            seen.add(column)
    assert seen == set(range(space.dim))
