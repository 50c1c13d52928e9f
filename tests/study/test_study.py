"""Ask and tell: the loop with `suggest`, and what a newcomer does."""

from __future__ import annotations

import logging
import math
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import CandidateGenerationError
from torch import Tensor

from botorch_structured import Study
from botorch_structured.spaces import Between, ParameterTree, SearchSpace
from botorch_structured.suggest import fit_surrogates, suggest
from botorch_structured.test_functions import JenattonTree

PROBLEM = JenattonTree(off_centre=True)
SPACE = PROBLEM.space
# Which of the dictionaries a configuration belongs to only its names say.
UNTOLD = SearchSpace.from_dictionaries([{"b": (0, 1)}, {"c": (0, 1)}])


def value(config: dict[str, Any]) -> float:
    return float(PROBLEM(SPACE.encode(config)))


def explicit_loop(seed: int, n: int) -> Tensor:
    X = SPACE.starts(kind="inner", seed=seed, at_most=16)
    Y = -PROBLEM(X).unsqueeze(-1)
    while len(X) < n:
        x = suggest(SPACE, X, Y, seed=seed + len(X)).X
        X, Y = torch.cat([X, x]), torch.cat([Y, -PROBLEM(x).unsqueeze(-1)])
    return X


def run(study: Study, n: int) -> Study:
    while len(study.trials) < n:
        (config,) = study.ask()
        study.tell(config, value(config), cost=1.0 + len(study.trials))
    return study


def points(study: Study) -> Tensor:
    return SPACE.encode([trial.config for trial in study.trials])


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_explicit_loop(seed: int) -> None:
    """Costs are recorded only, unless they are asked for."""
    study = run(Study(SPACE, seed=seed), 8)
    assert torch.equal(points(study), explicit_loop(seed, 8))
    config, best = study.best
    assert best == min(t.value for t in study.trials if t.value is not None)
    assert value(config) == best


def test_equals_the_explicit_loop_with_many_evaluations() -> None:
    """Fits start from that of the first evaluations, a multiple of ten."""
    X = SPACE.sample(27, seed=0)
    study = Study(SPACE, seed=0)
    study.tell_many(SPACE.decode(X), PROBLEM(X).tolist())
    run(study, 32)
    for n in range(27, 32):
        Y = -PROBLEM(X).unsqueeze(-1)
        first = n // 10 * 10
        start = None
        if first != n:
            start = fit_surrogates(SPACE, X[:first], Y[:first], seed=first)
        X = torch.cat([X, suggest(SPACE, X, Y, start_from=start, seed=n).X])
    assert torch.equal(points(study), X)


@pytest.mark.usefixtures("random_points")
def test_pending_configurations_are_not_asked_again() -> None:
    """Those of the study, and those that run elsewhere."""
    study, outside = Study(SPACE, seed=0), Study(SPACE, seed=0)
    first = study.ask(6)
    assert study.pending == first  # four starts and two random points
    later = study.ask(2)
    assert outside.ask(2, pending=first) == later == outside.pending
    for config in first:
        study.tell(config, value(config))
    assert study.pending == later
    more = study.ask(3)
    assert len(SPACE.encode(first + later + more).unique(dim=0)) == 11


def test_fixed_parameters_are_held() -> None:
    """In starts, random points and suggestions; ``fixed`` columns of `suggest`."""
    space = SearchSpace.from_dictionaries(
        [{"a": ["x"], "b": (0.0, 1.0)}, {"a": ["y"], "c": (1e-3, 1.0, "log")}]
    )
    study = Study(space, seed=0)
    one = study.ask(fixed={"a": "x"}) + study.ask(fixed={"a": "x"})
    assert [config["a"] for config in one] == ["x", "x"] and one[0] != one[1]
    (other,) = study.ask(fixed={"c": 0.1})  # the start of its path
    assert other == {"a": "y", "c": 0.1}
    for config in (*one, other):
        study.tell(config, config.get("b", 0.5))
    for fixed in ({"a": "y"}, {"a": "y", "c": 0.02}, {"b": 0.25, "c": 0.3}):
        (config,) = study.ask(fixed=fixed)
        assert all(fixed.get(k, v) == v for k, v in config.items())
        study.tell(config, 1.0)
    with pytest.raises(CandidateGenerationError):
        study.ask(fixed={"a": "y", "c": 0.02})


def test_a_fixed_number_that_decides() -> None:
    tree = ParameterTree(2, conditions={1: Between(0, 0.5, 1.0)})
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    study = Study(SearchSpace(["size", "extra"], bounds, tree), seed=0)
    with pytest.raises(ValueError, match="got 'extra', which none has with {'size'"):
        study.ask(fixed={"extra": 0.3, "size": 0.2})
    fixed = {"size": 0.7, "extra": 0.3}
    assert study.ask(fixed=fixed) == [fixed]


def test_fixed_parameters_of_a_rare_path() -> None:
    """Of 2^20 random points one is there; nothing is known yet."""
    depth = 20
    tree = ParameterTree(depth + 1, {c: {0.0: [], 1.0: [c + 1]} for c in range(depth)})
    names = [f"x{c}" for c in range(depth + 1)]
    space = SearchSpace(names, torch.tensor([[0.0], [1.0]]).repeat(1, depth + 1), tree)
    fixed = dict.fromkeys(names[:-1], 1.0)
    study = Study(space, seed=0)
    asked = [config for q in (1, 1, 1, 3) for config in study.ask(q, fixed=fixed)]
    assert all(fixed.items() < config.items() for config in asked)
    assert len({config[names[-1]] for config in asked}) == 6


def test_a_fixed_parameter_of_several_dictionaries() -> None:
    """By the name in configurations, in each of the dictionaries that are left."""
    groups = [
        {"a": ["x"], "b": (0.0, 9.0)},
        {"a": ["y"], "b": (0.0, 1.0)},
        {"a": ["z"], "c": (0.0, 1.0)},
    ]
    study = Study(groups, seed=0)
    for _ in range(6):
        (config,) = study.ask(fixed={"b": 0.5})
        assert config.get("b", 0.5) == 0.5
        study.tell(config, 1.0)
    assert {trial.config["a"] for trial in study.trials} == {"x", "y", "z"}
    assert study.ask(fixed={"a": "x", "b": 7.0}) == [{"a": "x", "b": 7.0}]
    with pytest.raises(ValueError, match=r"fixed: .* \['b', 'c'\], got 'dictionary'"):
        Study(UNTOLD).ask(fixed={"dictionary": 0})


def test_starts_leave_branches_out_that_are_known() -> None:
    """One start for each value of the decision above all others, on any path."""
    space = SearchSpace.from_dictionaries(
        [{"m": ["a"], "k": ["r", "s"], "x": (0.0, 1.0)}]
        + [{"m": [m], m: (0.0, 1.0)} for m in "bcd"]
    )
    study = Study(space, seed=0)
    starts = study.starts
    assert starts == space.decode(space.starts(kind="inner", seed=0, at_most=16))
    assert sorted(c["m"] for c in starts) == list("abcd")
    a, *others = sorted(starts, key=lambda c: c["m"])
    study.tell({"m": "a", "k": "r" if a["k"] == "s" else "s", "x": 0.5}, 0.5)
    assert study.ask(pending=others[:1]) == [c for c in starts if c in others[1:]][:1]


def test_sixteen_starts_at_most() -> None:
    """Of more paths; what was evaluated elsewhere, on others, counts."""
    names = [f"m{i}" for i in range(18)]
    space = SearchSpace.from_dictionaries([{"m": [m], m: (0, 1)} for m in names])
    study = Study(space, seed=1)
    starts = space.decode(space.starts(kind="inner", seed=1, at_most=16))
    assert study.starts == starts and len({c["m"] for c in starts}) == 16
    other = min({*names} - {c["m"] for c in starts})
    study.tell_many([{"m": other, other: x} for x in (0, 1)], [1.0, 1.1])
    assert study.ask(15) == starts[:15]
    study.tell_many(starts[:15], [2.0] * 15)
    assert study.ask() != [starts[15]]


@pytest.mark.usefixtures("random_points")
@pytest.mark.parametrize(
    ("space", "count"),
    [
        ([{"l": ["a", "b"], "k": (1, 3)}, {"l": ["b", "c"], "k": (1, 3)}], 9),
        ([{"x": (1, 10)}, {"x": (2, 5)}, {"x": (8, 12)}], 12),
        ([{"m": (1, 4), "d": [1, 2]}, {"m": [0.5, 1.0], "d": [1, 2]}], 10),
    ],
)
def test_what_several_dictionaries_have_is_asked_for_once(
    space: Any, count: int
) -> None:
    study = Study(space, seed=0)
    first = study.ask(4)
    seen = [str(config) for config in first]
    study.tell_many(first, [1.0] * 4)
    while len(seen) < count:
        (config,) = study.ask()
        seen.append(str(config))
        study.tell(config, float(len(seen)))
    assert len(set(seen)) == count
    with pytest.raises(CandidateGenerationError):
        study.ask()


def test_failures() -> None:
    study = Study(SPACE, seed=0)
    with pytest.raises(ValueError, match="got none yet: ask for a configuration"):
        study.best  # noqa: B018
    with pytest.raises(ValueError, match="got none yet: ask for a configuration"):
        study.plot()
    for _ in range(8):  # nothing works: starts, then random points
        (config,) = study.ask()
        study.tell(config, None)
    assert len(points(study).unique(dim=0)) == 8
    with pytest.raises(ValueError, match="trials: expected at least one with a value"):
        study.best  # noqa: B018
    run(study, 14)
    assert [t.state for t in study.trials] == ["failed"] * 8 + ["complete"] * 6
    assert study.model is not None and study.best[1] < 2.0


def test_standard_errors_are_the_noise(tmp_path: Path) -> None:
    X = SPACE.sample(10, seed=0)
    Y = PROBLEM(X)
    sems = [0.5, 0.01] * 5
    log = tmp_path / "study.jsonl"
    study = Study(SPACE, seed=0, log=log)
    study.tell_many(SPACE.decode(X), [*Y.tolist()[:-1], None], sems=[*sems[:-1], None])
    train_Y = -Y.unsqueeze(-1)
    train_Y[-1] = -math.inf
    train_Yvar = torch.tensor([*sems[:-1], 0.5], dtype=torch.double).square()[:, None]
    expected = suggest(SPACE, X, train_Y, train_Yvar=train_Yvar, seed=10).X
    plain = suggest(SPACE, X, train_Y, seed=10).X
    again = Study(SPACE, seed=0, log=log)
    assert again.trials == study.trials and again.trials[0].sem == {"value": 0.5}
    assert torch.equal(SPACE.encode(again.ask()), expected)
    assert not torch.equal(expected, plain)
    (config,) = again.pending
    again.tell(config, 1.0)  # without one: noise is estimated
    known = torch.cat([X, expected])
    values = torch.cat([train_Y, -torch.ones(1, 1).double()])
    wanted = suggest(SPACE, known, values, seed=11).X
    assert torch.equal(SPACE.encode(again.ask()), wanted)
    for sem in (0.0, -1.0, math.nan, {"b": 1.0}, 1e160, 1e-170):
        with pytest.raises(ValueError, match="sem: expected"):
            study.tell(config, 1.0, sem=sem)
    with pytest.raises(ValueError, match="sem: expected None for a failure"):
        study.tell(config, None, sem=1.0)


@pytest.mark.usefixtures("random_points")
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


@pytest.mark.parametrize("seed", [2**64 - 5, -1])
def test_after_the_largest_seed_comes_zero(seed: int) -> None:
    X = points(run(Study(SPACE, seed=seed), 7))
    Y = -PROBLEM(X[:6]).unsqueeze(-1)
    x = suggest(SPACE, X[:6], Y, seed=(seed + 6) % 2**64).X
    assert torch.equal(X[6:], x)
    # random points, of which there are more while all fail
    study = Study(SPACE, seed=seed)
    for config in study.ask(4):
        study.tell(config, None)
    assert study.ask()


@pytest.mark.parametrize("bounds", [(-1e308, 1e308), (1e308, 1.7e308), (0.0, 1e200)])
def test_bounds_that_models_cannot_square(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"'x': .*no number above 1e\+150 in size"):
        Study({"x": bounds})
    assert 1.0 <= Study({"x": (1.0, 1e308, "log")}).ask()[0]["x"] <= 1e308


@pytest.mark.usefixtures("random_points")
@pytest.mark.parametrize("told", [False, True])
def test_an_exhausted_space_is_an_error(told: bool) -> None:
    study = Study({"a": ["x", "y"], "b": [1, 2, 3]}, seed=0)
    for config in study.ask(3):
        if told:
            study.tell(config, config["b"])
    why = ", found fewer: others are equal to these, were evaluated"
    with pytest.raises(
        CandidateGenerationError, match=f"^Expected 5 new configurations{why}"
    ):
        study.ask(5)
    with pytest.raises(
        CandidateGenerationError, match=rf"^Expected 4 .*ns with {{'a': 'x'}}{why}"
    ):
        study.ask(4, fixed={"a": "x"})
    study.ask(3)
    with pytest.raises(CandidateGenerationError, match=f"^Expected 1 .*ion{why}"):
        study.ask()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (math.nan, "value: expected a finite number, or None for a failure, got nan"),
        (math.inf, "None for a failure, got inf"),
        ("0.5", "expected a finite number.*'0.5'"),
        *((t, "got .*True") for t in (True, np.bool_(True), torch.tensor(True))),
        (10**400, "expected a finite number"),
        (torch.zeros(1, 1), r"expected a finite number.*tensor\(\[\[0.\]\]\)"),
        ({"loss": 1.0}, r"expected numbers for \['value'\], got them for \['loss'\]"),
        ({"value": math.nan}, r"value\['value'\]: expected a finite number"),
        ({"value": None}, "or None in place of all of them for a failure, got None"),
        ({"value": 1.0, "ram": 2.0}, "value: expected numbers for"),
    ],
)
def test_values_that_are_none(given: Any, message: str) -> None:
    study = Study(SPACE, seed=0)
    (config,) = study.ask()
    with pytest.raises(ValueError, match=message):
        study.tell(config, given)
    assert study.pending == [config] and not study.trials


def test_bad_arguments() -> None:
    for arguments, message in (
        *(({"space": s}, "space: expected a S") for s in (None, "a", PROBLEM.tree)),
        ({"space": []}, "^space: expected at least one parameter with several values"),
        *(
            ({"objectives": o}, "objectives: expected 'minimize'")
            for o in ("min", {}, {"a": "down"}, ["minimize"], {1: "minimize"})
        ),
        ({"seed": "one"}, "seed: expected"),
        ({"log": 3}, "log: expected a path, got 3"),
        ({"max_rows": 0}, "max_rows: expected"),
    ):
        with pytest.raises(ValueError, match=message):
            Study(**({"space": SPACE} | arguments))
    study = Study(SPACE, seed=0)
    asked = study.ask()
    calls: list[tuple[Any, Any, str]] = [
        (study.ask, (0,), "q: expected"),
        (study.ask, (1, {"x": 1}), "pending: expected configurations"),
        (study.tell, ({"learner": "svm"}, 1.0), "config: .*unknown ones"),
        (study.tell, (*asked, 1.0, 0.0), "cost: expected a positive number"),
        (study.tell, (asked, 1.0), "config: expected one configuration, got several"),
        (study.tell, ("svm", 1.0), "config: expected a mapping"),
        (study.tell_many, (*asked, [1.0]), "configs: expected a list"),
        (study.tell_many, (asked, []), r"values: expected 1, one .*, got \[\]"),
        (study.tell_many, (asked, 3.0), "values: expected 1, one .*, got 3.0"),
        (study.tell_many, (asked, torch.tensor(3.0)), "values: .*, got tensor"),
        (study.tell_many, (asked, [1.0], 2.0), "costs: expected 1, one .*, got 2.0"),
    ]
    for call, given, message in calls:
        with pytest.raises(ValueError, match=message):
            call(*given)
    assert not study.trials


@pytest.mark.parametrize(
    "text",
    ["memory", "memory < 8", "memory = 8", "<= 8", "memory <= much", "m <= nan", 8],
)
def test_constraints_that_are_none(text: Any) -> None:
    with pytest.raises(ValueError, match="constraints: expected texts such as"):
        Study(SPACE, constraints=[text])
    with pytest.raises(ValueError, match=f"constraints: expected a list, got {text!r}"):
        Study(SPACE, constraints=text)


def test_what_trials_show() -> None:
    study = Study({"a": [1, 2]}, constraints=["top-1 error (%)>=-.25"], seed=0)
    told = {"value": 0.5, "top-1 error (%)": 1}
    study.tell({"a": 1}, told, cost=2.0)
    study.tell({"a": 2}, None)
    assert [repr(trial) for trial in study.trials] == [
        "Trial(0, 'complete', config={'a': 1}, values={'value': 0.5, "
        "'top-1 error (%)': 1.0}, cost=2.0)",
        "Trial(1, 'failed', config={'a': 2})",
    ]
    with pytest.raises(
        ValueError, match=r"with a value and top-1 error \(%\) >= 2.0, g"
    ):
        limited = Study({"a": [1, 2]}, constraints=["top-1 error (%) >= 2"], seed=0)
        limited.tell({"a": 1}, told)
        assert limited.best


def test_forbidden_configurations_are_refused() -> None:
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    space = SearchSpace(["a"], bounds, feasible=lambda X: X[..., 0] < 0.5)
    with pytest.raises(ValueError, match="config: expected a configuration that the"):
        Study(space).tell({"a": 0.7}, 1.0)
    bounds[1] = 0.0
    space = SearchSpace(["a"], bounds, feasible=lambda X: X[..., 0] < 0.5)
    with pytest.raises(CandidateGenerationError, match="or are not allowed.$"):
        Study(space).ask(2)


@pytest.mark.usefixtures("random_points")
def test_what_else_is_told_is_kept(tmp_path: Path) -> None:
    """Nothing depends on it, and a log gives it back."""
    log = tmp_path / "study.jsonl"
    study, plain = Study(SPACE, log=log, seed=0), run(Study(SPACE, seed=0), 6)
    told = {"seconds": torch.tensor(3), "rates": [np.float32(0.5), 1], "by": {"a": 0}}
    for i in range(6):
        (config,) = study.ask()
        study.tell(config, value(config), metadata=told if i % 2 else None)
    kept = {"seconds": 3, "rates": [0.5, 1], "by": {"a": 0}}
    assert [t.metadata for t in study.trials] == [{}, kept] * 3
    assert torch.equal(points(study), points(plain))
    trials = study.trials
    study = Study(SPACE, log=log)
    assert study.trials == trials
    configs = SPACE.decode(SPACE.starts(2, kind="inner", seed=1))
    plain.tell_many(configs, [1.0, None], metadata=[kept] * 2)
    assert [t.metadata for t in plain.trials[-2:]] == [kept, kept]
    (config,) = study.ask()
    wrongs: list[Any] = [3, [1], {1: 2}, {"a": {1, 2}}, {"a": torch.zeros(2)}, "text"]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="metadata: expected {name: number, text"):
            study.tell(config, 1.0, metadata=wrong)
    assert study.trials == trials


@pytest.mark.usefixtures("random_points")
def test_a_cost_is_the_time_of_the_evaluation() -> None:
    study = Study(SPACE, seed=0)
    study.optimize(lambda config: time.sleep(0.05) or value(config), 2, progress=False)
    assert all(t.cost is not None and 0.05 <= t.cost < 5.0 for t in study.trials)


@pytest.mark.usefixtures("random_points")
def test_optimize_catches_what_it_is_told_to() -> None:
    calls = iter(range(100))

    def evaluate(config: dict[str, Any]) -> float:
        call = next(calls)
        if call == 2:
            raise ZeroDivisionError("no data")
        if call == 3:
            raise KeyboardInterrupt
        return math.nan if call == 4 else value(config)

    study = Study(SPACE, seed=0)
    with pytest.raises(KeyboardInterrupt):
        study.optimize(evaluate, 6, catch=ZeroDivisionError, progress=False)
    assert [t.error for t in study.trials] == [None, None, "ZeroDivisionError: no data"]
    (stopped,) = study.pending
    with pytest.raises(ValueError, match="got nan"):
        study.optimize(evaluate, 3, progress=False)
    assert study.pending == [stopped]
    study.optimize(evaluate, 1, progress=False)
    assert study.trials[-1].config == stopped and not study.pending


OPTIMIZE: list[tuple[dict[str, Any], str]] = [
    ({"num_evaluations": -1}, "num_evaluations: expected an integer from 0 on"),
    ({"catch": "ValueError"}, "catch: expected an exception or a tuple"),
    ({"catch": KeyboardInterrupt}, "catch: expected an exception or a tuple"),
    ({"evaluate": 3}, "evaluate: expected a function"),
    ({"timeout": "1"}, "timeout: expected a number"),
    ({"callbacks": [3]}, "callbacks: expected a function, got 3"),
    ({"callbacks": 3}, "callbacks: expected a function, got 3"),
]


@pytest.mark.parametrize(("arguments", "message"), OPTIMIZE)
def test_bad_arguments_of_optimize(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Study(SPACE).optimize(**{"evaluate": value, "num_evaluations": 1, **arguments})


def test_optimize_stops_where_nothing_is_returned() -> None:
    """A forgotten return would look like a failure each time."""
    study = Study(SPACE, seed=0)
    with pytest.raises(
        ValueError, match=r"^evaluate\(config\) of trial 0.*: expected .*, got "
    ):
        study.optimize(lambda config: None, 5, progress=False, catch=ValueError)
    assert not study.trials and len(study.pending) == 1
    study.tell(study.pending[0], None)
    assert study.trials[0].state == "failed"


@pytest.mark.usefixtures("random_points")
def test_no_failure_ends_a_night(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever else a function returns that has returned a number."""
    bad: list[Any] = [math.nan, 1.0, -math.inf, None, "text", True, {"loss": 1.0}]
    told = iter([*bad, 10**400, ArithmeticError("diverged"), 0.5])

    def evaluate(config: dict[str, Any]) -> Any:
        if isinstance(value := next(told), Exception):
            raise value
        return value

    study = Study(SPACE, seed=0)
    with caplog.at_level(logging.INFO, "botorch_structured"):
        study.optimize(evaluate, 10, catch=ArithmeticError, progress=False)
    assert [t.number for t in study.trials if t.values] == [1, 9] and not study.pending
    levels = [r.levelname for r in caplog.records if r.name == "botorch_structured"]
    assert levels == ["WARNING", "INFO", *7 * ["WARNING"], "INFO"]
    assert "trial 0: expected a finite number" in caplog.text
    assert "diverged" in caplog.text


@pytest.mark.usefixtures("random_points")
def test_optimize_ends(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a callback, by the clock, and where nothing is left."""
    seen: list[Any] = []

    def callback(own: Study, trial: Any) -> None:
        seen.append(trial)
        trial.config.clear()  # a copy
        if len(seen) == 3:
            own.stop()

    study = Study(SPACE, seed=0)
    study.optimize(value, 9, callbacks=[callback])
    assert "best" in capsys.readouterr().err
    assert [t.number for t in seen] == [0, 1, 2] and study.trials[2].config
    study.optimize(value, 1, timeout=60.0, progress=False)  # it goes on
    study.optimize(value, 5, timeout=0.0, progress=False)
    assert len(study.trials) == 4 and not study.pending
    with pytest.raises(ZeroDivisionError):
        study.optimize(value, 2, callbacks=[lambda *_: 1 / 0], progress=False)
    assert len(study.trials) == 5 and not study.pending
    small = Study({"a": ["x", "y"], "b": [1, 2]}, seed=0)
    small.optimize(lambda config: config["b"], 9, progress=False)
    assert len(small.trials) == 4 and "Expected 1 new configuration" in caplog.text
    assert not capsys.readouterr().err


@pytest.mark.usefixtures("random_points")
def test_lists_among_choices_are_copies() -> None:
    """An objective that changes them would change the space."""
    study = Study({"sizes": [[1, 2], {"a": 3}], "x": (0.0, 1.0)}, seed=0)

    def evaluate(config: dict[str, Any]) -> float:
        config["sizes"].clear()
        return float(config.pop("x"))

    study.optimize(evaluate, 4, progress=False)
    study.starts[0]["sizes"].clear()
    study.best[0]["sizes"].clear()
    study.trials[0].config["sizes"].clear()
    study.ask()[0]["sizes"].clear()
    study.pending[0]["sizes"].clear()
    kept = [c["sizes"] for c in (*(t.config for t in study.trials), *study.pending)]
    assert all(sizes in ([1, 2], {"a": 3}) for sizes in kept) and len(kept) == 5


def test_trials_cannot_be_changed_and_are_a_table() -> None:
    study = Study(SPACE, {"error": "minimize", "cost": "maximize"}, seed=0)
    configs = SPACE.decode(SPACE.starts(2, kind="inner", seed=0))
    study.tell_many(
        configs, [{"error": 1, "cost": 2}, None], metadata=[{"a": [1]}, None]
    )
    for trial in study.trials:
        trial.config["x"] = trial.values["error"] = 9.0
    assert [t.config for t in study.trials] == configs and not study.trials[1].values
    pytest.importorskip("pandas")
    frame = study.trials_frame()
    assert frame["number"].tolist() == [0, 1]
    assert frame["values_error"].isna().tolist() == [False, True]
    assert frame["values_cost"][0] == 2 and frame["metadata_a"][0] == [1]
    assert frame["state"].tolist() == ["complete", "failed"]
    assert SPACE.encode(
        frame.filter(like="config_").rename(columns=lambda c: c.removeprefix("config_"))
    ).equal(SPACE.encode(configs))
    assert Study(SPACE).trials_frame().empty


def test_starts_of_ones_own() -> None:
    given = SPACE.decode(SPACE.sample(3, seed=9))
    study = Study(SPACE, seed=0, starts=given)
    study.tell(given[1], 1.0)
    assert study.ask() == [given[0]]
    assert study.ask(pending=[given[2]]) not in given

    def middle(space: SearchSpace, seed: int) -> Tensor:
        return space.starts(kind="middle", seed=seed)

    study = Study(SPACE, seed=0, starts=middle)
    assert study.ask(4) == study.starts == SPACE.decode(middle(SPACE, 0))
    by_kind = Study(SPACE, seed=0, starts="middle")
    by_kind.tell(given[0], 1.0)
    starts = SPACE.starts(kind="middle", seed=0, at_most=16)
    is_other = starts[:, 0] != SPACE.encode(given[:1])[0, 0]
    assert by_kind.ask() == SPACE.decode(starts[is_other])
    with pytest.raises(ValueError, match=r"starts: expected one of .*got 'best'"):
        Study(SPACE, starts="best")
    for starts in ([{"x": 1.0}], {"x": 1.0}, lambda space, seed: torch.zeros(2, 1)):
        with pytest.raises(ValueError, match="starts: "):
            Study(SPACE, starts=starts).ask()


def test_several_objectives_have_a_front() -> None:
    study = Study(SPACE, {"loss": "minimize", "speed": "maximize"}, seed=0)
    assert study.pareto == []
    for config, loss, speed in zip(
        study.ask(4), (1.0, 2.0, 3.0, 0.5), (1.0, 2.0, 1.5, 0.1), strict=True
    ):
        study.tell(config, {"loss": loss, "speed": speed})
    assert [t["loss"] for _, t in study.pareto] == [1.0, 2.0, 0.5]
    with pytest.raises(ValueError, match="objectives: expected one, .*pareto"):
        study.best  # noqa: B018


def test_a_study_in_memory_can_be_pickled() -> None:
    study = run(Study(SPACE, seed=0), 6)
    again = pickle.loads(pickle.dumps(study))
    assert again.ask() == study.ask()


def test_equals_the_explicit_loop_with_constraints_and_costs() -> None:
    n, failed = 8, 5

    def measure(config: dict[str, Any], i: int) -> tuple[list[float], float]:
        cost = math.nan if i == 3 else 1.0 + i % 3
        if i == failed:
            return [math.nan] * 3, cost
        a = value(config)
        return [a, float(SPACE.encode(config)[0, -1]), a / 3], cost

    rules = ["c <= 0.5", "b >= -0.9"]
    study = Study(SPACE, {"a": "minimize", "b": "maximize"}, rules, seed=1, costs=True)
    for i in range(n):
        (config,) = study.ask()
        outcomes, cost = measure(config, i)
        told = dict(zip("abc", outcomes, strict=True)) if i != failed else None
        study.tell(config, told, None if math.isnan(cost) else cost)

    X = SPACE.starts(kind="inner", seed=1, at_most=16)
    rows: list[tuple[list[float], float]] = []
    while len(rows) < n:
        for config in SPACE.decode(X[len(rows) :]):
            rows.append(measure(config, len(rows)))
        if len(rows) < n:
            ABC = torch.tensor([row for row, _ in rows], dtype=torch.double)
            a, b, c = ABC.unbind(-1)
            suggestion = suggest(
                SPACE,
                X,
                torch.stack([-a, b], -1).nan_to_num(nan=-math.inf),
                seed=1 + len(rows),
                train_C=torch.stack([c - 0.5, -0.9 - b], -1),
                train_cost=torch.tensor([[t] for _, t in rows], dtype=torch.double),
            )
            X = torch.cat([X, suggestion.X])
    assert torch.equal(points(study), X)
    # one model of each of four outcomes, and one of the cost
    assert len(study.models) == 5 and study.model is study.models[0]
    for _, values in study.pareto:
        assert values["c"] <= 0.5 and values["b"] >= -0.9


def test_nothing_is_feasible_yet() -> None:
    study = Study(SPACE, {"loss": "minimize"}, ["memory <= -1"], seed=0)
    for config in (*study.ask(4), *study.ask(2)):
        study.tell(config, {"loss": value(config), "memory": value(config)})
    with pytest.raises(ValueError, match="with a value and memory <= -1.0, got none"):
        study.best  # noqa: B018
    assert study.pareto == [] and len(study.ask(2)) == 2


@pytest.mark.filterwarnings("error")
def test_outcomes_that_are_all_alike() -> None:
    study = Study({"a": [1, 2, 3], "b": (0.0, 1.0)}, seed=0)
    study.optimize(lambda config: 1.0, 5, progress=False)
    assert repr(study) == "Study(value, 5 trials, 0 pending, best value 1)"


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_why_a_configuration_is_suggested(direction: str) -> None:
    sign = 1.0 if direction == "minimize" else -1.0
    space = [{"a": ["good"], "x": (0.0, 1.0)}, {"a": ["bad"], "y": (0.0, 1.0)}]
    space += [{"a": ["never"], "z": (0.0, 1.0)}]
    study = Study(space, {"error": direction}, seed=0, starts=[])
    for i in range(5):
        study.tell({"a": "good", "x": i / 4}, sign * (i / 4 - 0.4) ** 2)
        study.tell({"a": "bad", "y": i / 4}, None if i == 1 else sign * (1.0 + i / 9))
    (config,) = study.ask()
    found = study.explain(config)
    assert study.pending == [config] and found == study.explain(config)
    assert sign * found["mean"]["error"] < 0.05 and found["deviation"]["error"] < 0.2
    rows = {row["path"]: row for row in found["paths"]}
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1.0, abs=1e-2)
    shares = [row["share"] for row in found["paths"]]
    assert shares == sorted(shares, reverse=True) and "a=bad" in rows
    assert found["paths"][0]["path"] == f"a={config['a']}"
    good, bad = rows["a=good"], rows["a=bad"]
    assert (good["trials"], bad["trials"]) == (5, 5)
    assert good["best"] == pytest.approx(sign * 0.01) and bad["best"] == sign
    assert sign * good["mean"] < 0.1 < 0.7 < sign * bad["mean"]
    for told, v in (({"a": "good", "x": 1.0}, 0.36), ({"a": "bad", "y": 1.0}, 1.44)):
        assert study.explain(told)["mean"]["error"] == pytest.approx(sign * v, abs=0.1)
    with pytest.raises(ValueError, match="trials: expected at least one with a value"):
        Study(space).explain(config)
    with pytest.raises(ValueError, match="model: expected the default one, got one of"):
        Study(space, model=lambda *_: None).explain(config)  # type: ignore[arg-type,return-value]


def test_why_with_constraints_and_several_objectives() -> None:
    study = Study(
        SPACE, {"a": "minimize", "b": "maximize"}, constraints=["m <= 1"], seed=0
    )
    for config in SPACE.decode(SPACE.sample(8, seed=0)):
        v = value(config)
        study.tell(config, {"a": v, "b": v + 1.0, "m": v})
    found = study.explain(study.ask()[0])
    assert list(found["mean"]) == list(found["deviation"]) == ["a", "b"]
    assert found["mean"]["b"] == pytest.approx(found["mean"]["a"] + 1.0, abs=0.5)
