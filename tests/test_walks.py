"""How long the way through the package is, as it is at run time.

Files and functions of the package that a trip enters, and the calls of these. The
figures are guards: a decision that is made again at each call shows here first, as does
one more layer beside the others. A change that needs more says in its message what that
is worth; one that needs less lowers the figure.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood

import botorch_structured
from botorch_structured import Study
from botorch_structured.models import TreeStructuredGP
from botorch_structured.spaces import SearchSpace
from botorch_structured.suggest import suggest

PACKAGE = str(Path(botorch_structured.__file__).parent)
SPACE = [
    {"learner": ["svm"], "C": (1e-3, 1e3, "log")},
    {"learner": ["neighbours"], "k": (1, 50)},
]
# On another processor fits and climbs take other steps: a search is the mean of a few,
# and functions and calls may be so many times as many.
REPEATS = 5
MORE_FUNCTIONS = 1.05
MORE_CALLS = 1.3


class Walk(NamedTuple):
    """The length of a trip."""

    files: int
    functions: int
    calls: int


# What each trip may take at most.
MOST = {
    "space": Walk(7, 126, 420),
    "construct": Walk(9, 47, 76),
    "fit": Walk(13, 86, 620),
    "first posterior": Walk(12, 75, 121),
    "second posterior": Walk(7, 29, 33),
    "suggest": Walk(30, 320, 2_000),
    "ask": Walk(33, 370, 2_700),
    "tell": Walk(7, 53, 81),
    "Optuna": Walk(42, 580, 3_100),
}


def walk(trip: Callable[[], Any]) -> Walk:
    """Take a trip, and count."""
    files: set[str] = set()
    functions: set[tuple[str, str]] = set()
    calls = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            calls += 1
            files.add(code.co_filename)
            functions.add((code.co_filename, code.co_qualname))

    before = sys.getprofile()
    gc.disable()  # generators that other tests left are entered when they are collected
    sys.setprofile(profile)
    try:
        trip()
    finally:
        sys.setprofile(before)
        gc.enable()
    return Walk(len(files), len(functions), calls)


def _mean(walks: Iterable[Walk]) -> Walk:
    files, functions, calls = zip(*walks, strict=True)
    return Walk(max(files), max(functions), round(sum(calls) / len(calls)))


def _error(config: dict[str, Any]) -> float:
    if config["learner"] == "svm":
        return (math.log10(config["C"]) - 1.0) ** 2
    return 0.5 + (config["k"] / 50.0 - 0.3) ** 2


def _objective(trial: Any) -> float:
    learners = ["svm", "neighbours"]
    config: dict[str, Any] = {"learner": trial.suggest_categorical("learner", learners)}
    if config["learner"] == "svm":
        config["C"] = trial.suggest_float("C", 1e-3, 1e3, log=True)
    else:
        config["k"] = trial.suggest_int("k", 1, 50)
    return _error(config)


def _fit(model: TreeStructuredGP) -> None:
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))


def _moments(model: TreeStructuredGP, X: torch.Tensor) -> None:
    posterior = model.posterior(X)
    assert posterior.mean.shape == posterior.variance.shape


@pytest.fixture(scope="module")
def double() -> Iterator[None]:
    """Double precision by default, as in most searches."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(scope="module")
def walks(double: None) -> dict[str, Walk]:
    """All trips; what is loaded or made once for a process is there already."""
    space = SearchSpace.from_dictionaries(SPACE)
    X = space.sample(20, seed=0)
    Y = -X.new_tensor([[_error(config)] for config in space.decode(X)])
    warm = TreeStructuredGP(X, Y, space)
    _fit(warm)
    _moments(warm, X[:3])
    suggest(space, X, Y, seed=0)
    spaces: list[SearchSpace] = []
    out = {"space": walk(lambda: spaces.append(SearchSpace.from_dictionaries(SPACE)))}
    (space,) = spaces
    models: list[TreeStructuredGP] = []
    out["construct"] = walk(lambda: models.append(TreeStructuredGP(X, Y, space)))
    (model,) = models
    out["fit"] = walk(lambda: _fit(model))
    out["first posterior"] = walk(lambda: _moments(model, X[:3]))
    out["second posterior"] = walk(lambda: _moments(model, X[:3]))
    searches = [partial(suggest, space, X, Y, seed=1 + s) for s in range(REPEATS)]
    out["suggest"] = _mean(map(walk, searches))
    study = Study(SPACE, seed=0)
    for _ in range(15):
        (config,) = study.ask()
        study.tell(config, _error(config))
    asked: list[dict[str, Any]] = []
    asks, tells = [], []
    for _ in range(REPEATS):
        asks.append(walk(lambda: asked.extend(study.ask())))
        tells.append(walk(lambda: study.tell(asked[-1], _error(asked[-1]))))
    out["ask"], out["tell"] = _mean(asks), _mean(tells)
    if not find_spec("optuna"):
        return out
    import optuna

    from botorch_structured.integrations.optuna import StructuredSampler

    trials = optuna.create_study(sampler=StructuredSampler(seed=0))
    trials.optimize(_objective, n_trials=15)
    one_more = [
        walk(lambda: trials.optimize(_objective, n_trials=1)) for _ in range(REPEATS)
    ]
    out["Optuna"] = _mean(one_more)
    return out


@pytest.mark.parametrize("trip", MOST)
def test_a_trip_is_no_longer_than_it_was(trip: str, walks: dict[str, Walk]) -> None:
    if trip not in walks:
        pytest.skip("Optuna is not installed")
    now, most = walks[trip], MOST[trip]
    assert now.files <= most.files, now
    assert now.functions <= MORE_FUNCTIONS * most.functions, now
    assert now.calls <= MORE_CALLS * most.calls, now


def test_a_walk_counts_calls_of_the_package() -> None:
    now = walk(lambda: [SearchSpace.from_dictionaries(SPACE) for _ in range(2)])
    once = walk(lambda: SearchSpace.from_dictionaries(SPACE))
    assert now == (once.files, once.functions, 2 * once.calls)
    assert walk(lambda: math.sqrt(2.0)) == (0, 0, 0)
