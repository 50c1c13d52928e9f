"""Ask and tell: the loop with `suggest`, and what a newcomer does."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from botorch_structured import Study
from botorch_structured.spaces import SearchSpace
from botorch_structured.suggest import suggest
from botorch_structured.test_functions import JenattonTree

PROBLEM = JenattonTree(off_centre=True)
SPACE = PROBLEM.space


def value(config: dict[str, Any]) -> float:
    return float(PROBLEM(SPACE.encode(config)))


def explicit_loop(seed: int, n: int) -> Tensor:
    X = SPACE.starts(seed=seed)
    Y = -PROBLEM(X).unsqueeze(-1)
    while len(X) < n:
        x = suggest(SPACE, X, Y, seed=seed + len(X)).X
        X, Y = torch.cat([X, x]), torch.cat([Y, -PROBLEM(x).unsqueeze(-1)])
    return X


def run(study: Study, n: int) -> Study:
    while len(study.trials) < n:
        (config,) = study.ask()
        study.tell(config, value(config))
    return study


def points(study: Study) -> Tensor:
    return SPACE.encode([trial.config for trial in study.trials])


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_explicit_loop(seed: int) -> None:
    study = run(Study(SPACE, seed=seed), 12)
    assert torch.equal(points(study), explicit_loop(seed, 12))
    config, best = study.best
    assert best == min(t.value for t in study.trials if t.value is not None)
    assert value(config) == best


def test_maximising_minus_the_objective_is_the_same() -> None:
    study = Study(SPACE, {"reward": "maximize"}, seed=0)
    for _ in range(10):
        (config,) = study.ask()
        study.tell(config, {"reward": -value(config)})
    assert torch.equal(points(study), explicit_loop(0, 10))


def test_pending_configurations_are_not_asked_again() -> None:
    study = Study(SPACE, seed=0)
    first = study.ask(6)
    assert study.pending == first  # four starts and two random points
    later = study.ask(2)
    for config in first:
        study.tell(config, value(config))
    assert study.pending == later
    more = study.ask(3)
    assert len(SPACE.encode(first + later + more).unique(dim=0)) == 11


def test_configurations_that_run_elsewhere_count_as_pending() -> None:
    trials = run(Study(SPACE, seed=0), 8).trials
    inside, outside = Study(SPACE, seed=0), Study(SPACE, seed=0)
    for study in (inside, outside):
        study.tell_many([t.config for t in trials], [t.value for t in trials])
    (first,) = inside.ask()
    (second,) = inside.ask()
    assert outside.ask(pending=[first]) == [second]
    assert outside.pending == [second]


def test_starts_leave_paths_out_that_are_known() -> None:
    study = Study(SPACE, seed=0)
    starts = SPACE.decode(SPACE.starts(seed=0))
    study.tell(starts[1], 0.5)
    assert study.ask(pending=[starts[2]]) == [starts[0]]
    assert study.ask(pending=[starts[2]]) == [starts[3]]


def test_failures() -> None:
    study = Study(SPACE, seed=0)
    for _ in range(8):  # nothing works: starts, then random points
        (config,) = study.ask()
        study.tell(config, None)
    assert len(points(study).unique(dim=0)) == 8
    with pytest.raises(ValueError, match="trials: expected at least one with a value"):
        study.best  # noqa: B018
    run(study, 14)
    assert [t.state for t in study.trials] == ["failed"] * 8 + ["complete"] * 6
    assert study.model is not None and study.best[1] < 2.0


def test_an_evaluation_that_is_told_twice_is_kept_twice() -> None:
    study = run(Study(SPACE, seed=0), 5)
    config, best = study.best
    study.tell(config, best + 0.1, cost=3)
    assert len(study.trials) == 6 and study.trials[-1].cost == 3.0
    assert study.ask() != [config]


def test_the_seed_is_drawn_once() -> None:
    torch.manual_seed(0)
    first = Study(SPACE)
    assert first.seed != Study(SPACE).seed
    assert Study(SPACE, seed=first.seed).ask(4) == first.ask(4)


def test_a_configspace_will_do() -> None:
    from ConfigSpace import ConfigurationSpace, Float

    cs = ConfigurationSpace()
    cs.add(Float("x", (1e-3, 1e3), log=True))
    study = Study(cs, seed=0)
    for _ in range(8):
        (config,) = study.ask()
        study.tell(config, (math.log10(config["x"]) - 1.0) ** 2)
    assert study.best[1] < 0.1


def test_an_exhausted_space_is_an_error() -> None:
    space = SearchSpace(["a"], torch.tensor([[0.0], [1.0]]), integer_features=[0])
    study = Study(space, seed=0)
    study.ask(2)
    with pytest.raises(Exception, match="random points are new"):
        study.ask()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (math.nan, "value: expected a finite number, or None for a failure, got nan"),
        (math.inf, "None for a failure, got inf"),
        ("0.5", "expected a finite number.*'0.5'"),
        (torch.zeros(1, 1), r"expected a finite number.*tensor\(\[\[0.\]\]\)"),
        ({"loss": 1.0}, r"expected numbers for \['value'\], got them for \['loss'\]"),
        ({"value": math.nan}, r"value\['value'\]: expected a finite number"),
    ],
)
def test_values_that_are_none(given: Any, message: str) -> None:
    study = Study(SPACE, seed=0)
    (config,) = study.ask()
    with pytest.raises(ValueError, match=message):
        study.tell(config, given)
    assert study.pending == [config] and not study.trials


def test_bad_arguments() -> None:
    for space in (None, "space", PROBLEM.tree):
        with pytest.raises(ValueError, match="space: expected a SearchSpace or"):
            Study(space)
    for objectives in ("min", {}, {"a": "down"}, ["minimize"], {1: "minimize"}):
        with pytest.raises(ValueError, match="objectives: expected 'minimize'"):
            Study(SPACE, objectives)
    with pytest.raises(ValueError, match="seed: expected"):
        Study(SPACE, seed="one")  # type: ignore[arg-type]
    study = Study(SPACE, seed=0)
    with pytest.raises(ValueError, match="q: expected"):
        study.ask(0)
    with pytest.raises(ValueError, match="pending: expected configurations"):
        study.ask(pending={"x": 1})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="config: .*unknown ones"):
        study.tell({"learner": "svm"}, 1.0)
    with pytest.raises(ValueError, match="cost: expected a positive number"):
        study.tell(study.ask()[0], 1.0, cost=0.0)
    with pytest.raises(ValueError, match="values: expected 1, one for each"):
        study.tell_many(study.ask(), [])
    assert not study.trials


def test_forbidden_configurations_are_refused() -> None:
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    space = SearchSpace(["a"], bounds, feasible=lambda X: X[..., 0] < 0.5)
    with pytest.raises(ValueError, match="config: expected a configuration that the"):
        Study(space).tell({"a": 0.7}, 1.0)
