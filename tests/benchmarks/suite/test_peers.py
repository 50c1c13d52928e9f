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
from benchmarks.suite.peers.gaussian_processes import Encoding
from botorch_structured.spaces import SearchSpace

# A name that a library provides, and the library.
_OPTIONAL = {name: "smac" for name in ("smac", "smac_starts")} | {"cmaes": "cmaes"}
for _name in ("plain_tpe", "tpe", "tpe_starts", "gpsampler", "gpsampler_conditional"):
    _OPTIONAL[_name] = "optuna"
NAMES = sorted({*PEERS, *_OPTIONAL})


def peer(name: str) -> Any:
    if name in _OPTIONAL:
        pytest.importorskip(_OPTIONAL[name])
    return PEERS[name]


def shared_parameters() -> tuple[Any, ...]:
    """A space, and what both examples have."""
    return (
        cfg.ConfigurationSpace(),
        cfg.Categorical("learner", ["svm", "net", "none"]),
        cfg.Float("C", (1e-3, 1e3), log=True),
        cfg.Categorical("act", ["relu", "tanh", "gelu"]),
        cfg.Float("drop", (0.0, 1.0)),
    )


def mixed() -> SearchSpace:
    """Every kind of column and of condition, and a forbidden combination."""
    cs, learner, C, act, drop = shared_parameters()
    kernel = cfg.Categorical("kernel", ["linear", "rbf", "poly"])
    gamma = cfg.Float("gamma", (1e-4, 10.0), log=True)
    layers = cfg.Integer("layers", (1, 6))
    width = cfg.Integer("width", (4, 512), log=True)
    seed = cfg.Integer("repeats", (2, 9))
    size = cfg.OrdinalHyperparameter("size", ["s", "m", "l"])
    cs.add(learner, kernel, C, gamma, layers, width, drop, seed, size, act)
    cs.add(
        cfg.EqualsCondition(kernel, learner, "svm"),
        cfg.InCondition(C, learner, ["svm", "net"]),
        cfg.InCondition(gamma, kernel, ["rbf", "poly"]),
        cfg.EqualsCondition(layers, learner, "net"),
        cfg.AndConjunction(
            cfg.GreaterThanCondition(width, layers, 2),
            cfg.EqualsCondition(width, learner, "net"),
        ),
        cfg.GreaterThanCondition(seed, drop, 0.5),
        cfg.EqualsCondition(act, learner, "net"),
    )
    pair = [cfg.ForbiddenEqualsClause(*p) for p in ((learner, "none"), (size, "l"))]
    cs.add(cfg.ForbiddenAndConjunction(*pair))
    return SearchSpace.from_configspace(cs)


def plain_tree() -> SearchSpace:
    """Each child under one value, and a choice that is no decision."""
    cs, learner, C, act, drop = shared_parameters()
    cs.add(learner, C, act, drop)
    cs.add(
        cfg.EqualsCondition(C, learner, "svm"), cfg.EqualsCondition(act, learner, "net")
    )
    return SearchSpace.from_configspace(cs)


def told(space: SearchSpace, n: int) -> tuple[Tensor, Tensor]:
    """Points, and outcomes of which some are failures or huge."""
    X = space.sample(n, seed=0)
    Y = -((X - X.mean(0)) / (X.std(0) + 1.0)).square().sum(-1, keepdim=True)
    Y[1], Y[2], Y[3] = math.nan, -math.inf, -1e6
    return X, Y


def suggest(name: str, space: SearchSpace, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    method, problem = peer(name), SimpleNamespace(space=space, tree=space.tree)
    torch.manual_seed(seed)
    if getattr(method, "keeps_state", False):
        return method(problem, X, Y, seed, None)[0]
    return method(problem, X, Y, seed)


@pytest.mark.parametrize("name", NAMES)
def test_suggestions_are_allowed_and_repeatable(name: str) -> None:
    slow = name in {"arc", "hierarchical", "gpsampler", "gpsampler_conditional"}
    space = plain_tree() if slow else mixed()
    X, Y = told(space, 11)
    first = suggest(name, space, X, Y, 3).reshape(1, -1)
    assert first.isfinite().all() and space.feasible(first).all()
    back = space.encode(space.decode(first))
    assert torch.allclose(back, space.impute(first), rtol=0.0, atol=1e-7)
    assert torch.equal(suggest(name, space, X, Y, 3).reshape(1, -1), first)


def test_optuna_gets_active_parameters_in_native_units() -> None:
    optuna = pytest.importorskip("optuna")
    from benchmarks.suite.peers.optuna_samplers import _Study

    space = mixed()
    X, Y = told(space, 30)
    study = _Study(space, optuna.samplers.RandomSampler(seed=0), flat=False)
    study.add(X, Y)
    points = study.suggestions()
    X = torch.cat([X, torch.stack([next(points) for _ in range(30)])])
    expected = optuna.distributions.IntDistribution(4, 512, log=True)
    for trial, config in zip(study.study.trials, space.decode(X), strict=True):
        assert trial.params.keys() == config.keys()
        for name in {"C", "gamma", "width", "layers"} & config.keys():
            assert trial.params[name] == pytest.approx(config[name], rel=1e-12)
        assert trial.distributions.get("width", expected) == expected
    values = [t.value for t in study.study.trials[:30]]
    assert values[1] == values[2] == values[3] == 1e6 == max(values)


def test_the_state_of_cmaes_repeats_the_search() -> None:
    """A run, and one whose steps know nothing but points, outcomes and state."""
    method, space = peer("cmaes"), mixed()
    problem = SimpleNamespace(space=space)
    X, Y = told(space, 5)
    state = None
    for step in range(30):
        x, state = method(problem, X, Y, 100 + step, state)
        again, _ = method(problem, X, Y, 999, dict(state))
        assert torch.equal(x, again) and space.feasible(x[None]).all()
        # the last: a failure and the worst outcome in the middle of generations
        y = math.nan if step == 7 else -1e7 if step == 17 else -step
        X, Y = torch.cat([X, x[None]]), torch.cat([Y, Y.new_tensor([[y]])])
    assert state == {"seed": 100, "starts": 5}
    assert len(X.unique(dim=0)) > 25


def test_encoding() -> None:
    space = mixed()
    net = {"learner": "net", "C": 1.0, "layers": 6, "width": 512, "drop": 0.25}
    none = {"learner": "none", "drop": 1.0, "repeats": 2, "size": "s"}
    X = space.encode([net | {"size": "l", "act": "gelu"}, none])
    encoding = Encoding(space, inactive="marked")
    Z = encoding(X)
    assert len(encoding.source) == 7 + 3 + 3 + 3 == Z.shape[-1]
    for name, expected in {
        "learner": [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        "act": [[0.0, 0.0, 1.0], [-1.0] * 3],
        "size": [[1.0], [0.0]],
        "repeats": [[-1.0], [0.0]],
        "C": [[0.5], [-1.0]],
        "width": [[1.0], [-1.0]],
    }.items():
        at = encoding.source.index(space.names.index(name))
        found = Z[:, at : at + len(expected[0])]
        torch.testing.assert_close(found, Z.new_tensor(expected))
    filled = Encoding(space)(space.sample(50, seed=0))
    assert filled.min() >= 0.0 and filled.max() <= 1.0
    c = space.names.index("learner")
    whole = Encoding(space, whole=frozenset({c}))
    assert len(whole.source) == 14
    assert whole(X)[:, whole.source.index(c)].tolist() == [0.5, 1.0]


@pytest.mark.parametrize("space", [mixed(), plain_tree()])
def test_the_hierarchical_kernel_knows_what_is_active(space: SearchSpace) -> None:
    """Also below several values, and below a value of another such parameter."""
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
