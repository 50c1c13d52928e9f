"""`StructuredSampler` with a declared space: what trials ask for, and what not."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import optuna
import pytest
from ConfigSpace import ConfigurationSpace, Float, ForbiddenLessThanRelation, Integer
from optuna.trial import TrialState

from botorch_structured.integrations.optuna import StructuredSampler
from botorch_structured.integrations.optuna.trial_space import configurations
from botorch_structured.spaces import SearchSpace

KINDS = [f"k{i}" for i in range(6)]
LEARNERS = [{"lr": (0.0, 1.0), "kind": [k], k: (0.0, 1.0)} for k in KINDS]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(optuna.logging.INFO)


def run(
    space: Any, objective: Callable[[optuna.Trial], float], n: int = 8, **more: Any
) -> optuna.Study:
    study = optuna.create_study(sampler=StructuredSampler(space, seed=0), **more)
    study.optimize(objective, n_trials=n, catch=(MemoryError,))
    return study


def told(study: optuna.Study) -> list[Any]:
    assert isinstance(study.sampler, StructuredSampler)
    own = study.sampler.study_of(study)
    assert own is not None
    return own.trials


@pytest.mark.parametrize(
    ("branches", "ranges", "lacking"),
    [
        # constants
        (({"n": [10]}, {"n": [20]}), ((10, 10), (20, 20)), None),
        (({"n": [10]}, {"n": [20]}), ((1, 99), (1, 99)), None),
        (({"n": [10]}, {"n": [20]}), ((15, 30), (15, 30)), "10"),
        (({"n": [10]}, {"n": [20]}), ((20, 20), (10, 10)), "10"),
        (({"n": [10]}, {}), ((10, 10), (20, 20)), None),
        # ranges
        (({"n": (1, 9)}, {}), ((1, 9), (1, 1)), None),
        (({"n": (1, 9)}, {}), ((1, 9), (5, 7)), None),
        (({"n": (1, 9)}, {}), ((1, 1), (1, 9)), "2 and 9"),
    ],
)
def test_what_other_branches_have_does_not_matter(
    branches: tuple[dict[str, Any], ...],
    ranges: tuple[tuple[int, int], ...],
    lacking: str | None,
) -> None:
    space = [
        {"k": [k], "x": (0.0, 1.0), **branch}
        for k, branch in zip("ab", branches, strict=True)
    ]

    def objective(trial: optuna.Trial) -> float:
        k = trial.suggest_categorical("k", ["a", "b"])
        trial.suggest_int("n", *ranges["ab".index(k)])
        return trial.suggest_float("x", 0.0, 1.0)

    if lacking is None:
        assert len(told(run(space, objective))) == 8
    else:
        with pytest.raises(ValueError, match=rf"'n': .*does not take {lacking}\."):
            run(space, objective)


def test_a_trial_that_fails_fails_as_it_did() -> None:
    """With a single value that is not all that is declared; pruned ones are checked."""
    stop: list[type[Exception]] = [MemoryError]

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_int("n", 3, 3)
        raise stop[0]

    space = {"n": (1, 9), "x": (0.0, 1.0)}
    states = [trial.state for trial in run(space, objective, 3).trials]
    assert states == [TrialState.FAIL] * 3
    stop = [optuna.TrialPruned]
    with pytest.raises(ValueError, match="'n': expected an objective that takes all"):
        run(space, objective, 3)


@pytest.mark.parametrize(
    ("declared", "ask"),
    [
        ((1e-12, 1.0, "log"), lambda trial: trial.suggest_float("x", 1e-9, 1.0)),
        ((0, 10**10), lambda trial: trial.suggest_int("x", 5, 10**10)),
        ((0.0, 1.0), lambda trial: trial.suggest_float("x", 1e-9, 1.0)),
    ],
)
def test_ends_differ_by_rounding_only(
    declared: Any, ask: Callable[[optuna.Trial], float]
) -> None:
    with pytest.raises(ValueError, match="'x': expected an objective that takes all"):
        run({"x": declared}, ask)


def test_trials_outside_of_the_space_are_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Here it holds the constant 20."""
    space = {"epochs": [20], "x": (0.0, 1.0)}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.logging.enable_propagation()
    try:
        study = optuna.create_study(sampler=StructuredSampler(space, seed=0))
        for n in (50, 50, 20, 20):
            study.enqueue_trial({"epochs": n})
        with caplog.at_level(logging.WARNING):
            study.optimize(
                lambda t: t.suggest_int("epochs", 1, 99) * t.suggest_float("x", 0, 1),
                n_trials=5,
            )
    finally:
        optuna.logging.disable_propagation()
    (said,) = {r.getMessage() for r in caplog.records if "left out" in r.getMessage()}
    assert said.startswith("Trial 0 is left out") and "'epochs': 50" in said
    assert len(told(study)) == 3


def test_what_a_trial_did_not_ask_for_is_drawn_on_a_path_that_has_the_rest() -> None:
    """Rare ones: a parameter below a choice that comes up in one of 40 draws; two that
    forbid most values of each other."""
    rare = [{"kind": [f"k{i}"], f"p{i}": (0.0, 1.0), "q": [1, 2]} for i in range(40)]
    space = SearchSpace.from_dictionaries(rare)
    found = configurations(
        space, [{f"p{i}": 0.3} for i in range(40)], [False] * 40, list(range(40))
    )
    for i, config in enumerate(found):
        assert config is not None
        assert config["kind"] == f"k{i}" and config[f"p{i}"] == 0.3
    assert {config["q"] for config in found if config is not None} == {1, 2}
    cs = ConfigurationSpace()
    a, b, c = Integer("a", (0, 1000)), Integer("b", (0, 1000)), Float("c", (0.0, 1.0))
    cs.add(a, b, c, ForbiddenLessThanRelation(a, b))
    space = SearchSpace.from_configspace(cs)
    values = (5, 10, 20, 50, 100)
    found = configurations(
        space, [{"a": v} for v in values], [False] * 5, list(range(5))
    )
    for v, config in zip(values, found, strict=True):
        assert config is not None and config["a"] == v and config["b"] <= v


@pytest.mark.parametrize("declared", [False, True])
def test_nan_is_a_choice_as_others_are(declared: bool) -> None:
    """Another object each time; pending where a running trial was suggested it."""

    def ask(trial: optuna.Trial) -> float:
        x = trial.suggest_categorical("x", [float("nan"), "a"])
        return 10.0 * (x == "a")

    def objective(trial: optuna.Trial) -> float:
        return ask(trial) + trial.suggest_categorical("z", [0, 1, 2, 3, 4, 5])

    space = {"x": [math.nan, "a"], "z": [0, 1, 2, 3, 4, 5]} if declared else None
    study = run(space, objective, 6)
    trials = []
    for _ in range(4):
        trials.append(study.ask())
        ask(trials[-1])
    for trial in trials:
        trial.suggest_categorical("z", [0, 1, 2, 3, 4, 5])
    asked = [(str(t.params["x"]), t.params["z"]) for t in study.trials]
    assert len(set(asked)) == len(asked)
    assert sum(x == "nan" for x, _ in asked[6:]) > 1
    assert len(told(study)) == 6
