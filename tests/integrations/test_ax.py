from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from botorch_structured import Study
from botorch_structured.spaces import SearchSpace

pytest.importorskip("ax")
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.exceptions.core import SearchSpaceExhausted

from botorch_structured.integrations.ax import structured_generation_strategy
from botorch_structured.models import ConditionalGP, TreedGP, TreeStructuredGP

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

Evaluate = Callable[[dict[str, Any]], Any]

LEARNERS: list[Any] = [
    ChoiceParameterConfig(
        "learner",
        ["linear", "boost", "none"],
        "str",
        is_ordered=False,
        dependent_parameters={"linear": ["penalty"], "boost": ["trees", "depth"]},
    ),
    RangeParameterConfig("penalty", (1e-4, 1e2), "float", scaling="log"),
    RangeParameterConfig("trees", (10, 1000), "int", scaling="log"),
    ChoiceParameterConfig("depth", [2, 4, 6, 8], "int", is_ordered=True),
    ChoiceParameterConfig("fixed", ["always"], "str", is_ordered=True),
    RangeParameterConfig("share", (0.2, 1.0), "float"),
]
ACTIVE = {
    "linear": {"penalty"},
    "boost": {"trees", "depth"},
    "none": set[str](),
}


def error(c: dict[str, Any]) -> float:
    """To be minimised: 0 at a boost of 100 trees of depth 6; Ax saves all digits."""
    parts = {
        "linear": lambda: 0.6 + (math.log10(c["penalty"]) + 1) ** 2 / 20,
        "boost": lambda: (math.log10(c["trees"]) - 2) ** 2 + abs(c["depth"] - 6) / 10,
        "none": lambda: 1.0,
    }
    return round(64 * (parts[c["learner"]]() + (c["share"] - 0.7) ** 2)) / 64


def make_client(
    parameters: Any = LEARNERS,
    objective: str = "-error",
    constraints: list[str] | None = None,
    parameter_constraints: list[str] | None = None,
    **kwargs: Any,
) -> Client:
    client = Client()
    client.configure_experiment(parameters, parameter_constraints)
    client.configure_optimization(objective, constraints)
    kwargs.setdefault("seed", 0)
    client.set_generation_strategy(structured_generation_strategy(**kwargs))
    return client


def search(
    client: Client, evaluate: Evaluate, n: int, at_once: int = 1
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < n:
        trials = client.get_next_trials(max_trials=at_once)
        for trial, config in trials.items():
            value = evaluate(dict(config))
            data = value if isinstance(value, dict) else {"error": value}
            client.complete_trial(trial, raw_data=data)
            found.append(dict(config))
    return found


def attach(client: Client, config: dict[str, Any], **data: Any) -> int:
    trial = client.attach_trial(dict(config))  # Ax adds to what it is given
    if data:
        client.complete_trial(trial, raw_data=data)
    return trial


def space_of(client: Client) -> SearchSpace:
    return SearchSpace.from_ax(client._experiment.search_space)


def test_a_hierarchical_space_is_searched() -> None:
    client = make_client()
    configs = search(client, error, 16)
    for config in configs:
        learner = config["learner"]
        assert config.keys() == {"learner", "fixed", "share"} | ACTIVE[learner]
        assert client._experiment.search_space.check_membership(config)
    # the starts: one on each path
    assert {config["learner"] for config in configs[:3]} == set(ACTIVE)
    best, values, trial, _ = client.get_best_parameterization()
    assert best["learner"] == "boost" and configs[trial] == best
    assert values["error"][0] == error(dict(best))  # type: ignore[index]
    assert error(dict(best)) < 0.02


def test_maximising_is_minimising_the_negative() -> None:
    least = search(make_client(), error, 5)
    most = search(make_client(objective="score"), lambda c: {"score": -error(c)}, 5)
    assert least == most


def test_parameter_constraints() -> None:
    ab = [RangeParameterConfig(name, (0.0, 1.0), "float") for name in "ab"]
    client = make_client([*LEARNERS, *ab], parameter_constraints=["a + b <= 0.4"])
    configs = search(client, lambda c: error(c) - c["a"] - c["b"], 6)
    assert all(c["a"] + c["b"] <= 0.4 + 1e-9 for c in configs)
    assert max(c["a"] + c["b"] for c in configs) > 0.35


def test_several_trials_at_once() -> None:
    client = make_client()
    configs = search(client, error, 9, at_once=3)
    assert len({json.dumps(c, sort_keys=True) for c in configs}) == 9
    assert {c["learner"] for c in configs[:3]} == set(ACTIVE)


A = {"learner": "boost", "trees": 50, "depth": 4, "fixed": "always", "share": 0.5}
B = {"learner": "linear", "penalty": 0.5, "fixed": "always", "share": 0.6}
C = {"learner": "none", "fixed": "always", "share": 0.4}
D = {"learner": "boost", "trees": 100, "depth": 6, "fixed": "always", "share": 0.7}


def with_data() -> Client:
    client = make_client()
    for config in (A, B, C):
        attach(client, config, error=error(config))
    return client


def next_of(client: Client) -> dict[str, Any]:
    return dict(next(iter(client.get_next_trials(max_trials=1).values())))


def asked(
    client: Client,
    told: Sequence[tuple[dict[str, Any], Any]],
    objectives: Any = "minimize",
    constraints: Sequence[str] = (),
    pending: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The suggestion of a `Study` with these trials."""
    study = Study(space_of(client), objectives, constraints, seed=0)
    for config, value in told:
        study.tell(config, value)
    return study.ask(pending=pending)[0]


KNOWN = [(config, error(config)) for config in (A, B, C)]


def stop_early(client: Client) -> None:
    trial = attach(client, D)
    client.attach_data(trial, {"error": 5.0}, progression=1)
    client.attach_data(trial, {"error": 0.4}, progression=2)
    client.mark_trial_early_stopped(trial)


@pytest.mark.parametrize(
    ("happens", "told", "pending"),
    [
        (lambda c: None, [], []),
        (lambda c: attach(c, D, error=0.4), [(D, 0.4)], []),
        (stop_early, [(D, 0.4)], []),
        (lambda c: c.mark_trial_failed(attach(c, D)), [(D, None)], []),
        (lambda c: attach(c, D, error=math.inf), [(D, None)], []),
        (lambda c: attach(c, D), [], [D]),
        (
            lambda c: c.attach_data(attach(c, D), {"error": 5.0}, progression=1),
            [],
            [D],
        ),
        (lambda c: c.mark_trial_abandoned(attach(c, D)), [], [D]),
        (lambda c: attach(c, D, other=1.0), [], [D]),
    ],
)
def test_trials_in_every_state(happens: Any, told: Any, pending: Any) -> None:
    client = with_data()
    happens(client)
    suggested = next_of(client)
    assert suggested == asked(client, [*KNOWN, *told], pending=pending)
    pending = [*pending, suggested]
    assert next_of(client) == asked(client, [*KNOWN, *told], pending=pending)


def test_trials_outside_of_the_space_are_named() -> None:
    client = with_data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ax's
        attach(client, B | {"penalty": 1e3}, error=0.0)
    with pytest.warns(UserWarning, match=r"Trials \[3\] lie outside"):
        assert next_of(client) == asked(client, KNOWN)


def test_an_exhausted_space_is_said_to_be() -> None:
    flag = ChoiceParameterConfig("flag", [True, False], "bool", is_ordered=True)
    client = make_client([flag])
    search(client, lambda c: float(c["flag"]), 2)
    with pytest.raises(SearchSpaceExhausted, match="Every point has been tried. "):
        client.get_next_trials(max_trials=1)
    with pytest.raises(SearchSpaceExhausted, match="2 of this batch: ask for 2"):
        make_client([flag]).get_next_trials(max_trials=3)


def test_no_point_is_rounded_to_a_known_one() -> None:
    """Of ranges that Ax rounds, every value is proposed once."""
    from ax.service.ax_client import AxClient, ObjectiveProperties

    client = AxClient(structured_generation_strategy(seed=0), verbose_logging=False)
    coarse = {"name": "x", "type": "range", "bounds": [0.2, 1.0], "digits": 1}
    client.create_experiment(
        parameters=[coarse | {"value_type": "float"}],
        objectives={"error, late": ObjectiveProperties(minimize=True)},
    )
    client.attach_trial({"x": 0.42})  # as 0.4
    client.complete_trial(0, raw_data={"error, late": (1.0, None)})
    points = []
    for _ in range(8):
        config, trial = client.get_next_trial()
        points.append(config["x"])
        client.complete_trial(trial, raw_data={"error, late": (config["x"], None)})
    assert sorted(points) == [0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    with pytest.raises(SearchSpaceExhausted):
        client.get_next_trial()


def test_fixed_parameters_are_held() -> None:
    client = make_client()
    fixed = {"learner": "boost", "depth": 4, "fixed": "always"}
    for _ in range(4):
        ((trial, config),) = client.get_next_trials(1, fixed_parameters=fixed).items()
        assert fixed.items() <= config.items()
        client.complete_trial(trial, raw_data={"error": error(dict(config))})
    assert next_of(client)["learner"] != "boost"  # the other paths have no trial
    for name, value, message in (
        ("speed", 1, "names among .*'learner'.*, got 'speed'"),
        ("fixed", "never", r"a value of .*fixed.*, got 'never'"),
        ("depth", 99, "a value of .*depth.*, got 99"),
    ):
        with pytest.raises(ValueError, match=f"^fixed_parameters: expected {message}"):
            client.get_next_trials(1, fixed_parameters={name: value})
    with pytest.raises(ValueError, match="^fixed_parameters: .* of one.* got 'depth'"):
        client.get_next_trials(1, fixed_parameters={"learner": "none", "depth": 4})


def test_the_centre_is_first() -> None:
    centre = {"learner": "boost", "trees": 100, "depth": 6, "share": 0.6}
    first, *others = search(make_client(), error, 3)
    assert first == centre | {"fixed": "always"}
    assert {c["learner"] for c in others} == {"linear", "none"}
    for kwargs in ({"starts": "random"}, {"initialize_with_center": False}):
        assert next_of(make_client(**kwargs)) != first
    client = make_client(starts="middle", initialize_with_center=True)
    assert next_of(client) == first
    client = make_client()  # in a batch it is the first, and once
    assert search(client, error, 3, at_once=3).count(first) == 1


def test_there_is_not_always_a_centre() -> None:
    client = make_client()
    attach(client, {"learner": "none", "fixed": "always", "share": 0.3}, error=1.0)
    assert next_of(client)["share"] != 0.6
    numbers = [RangeParameterConfig(name, (0, 3), "int") for name in "ab"]
    client = make_client(numbers, parameter_constraints=["a + b <= 0"])
    assert next_of(client) == {"a": 0, "b": 0}  # not the rounded centre (2, 2)


def test_fixed_parameters_that_are_aligned() -> None:
    client = make_client(optimisers(), aligned=[["rate_adam", "rate_sgd"]])
    for by, more in (("adam", {}), ("sgd", {"momentum": 0.5})):
        fixed = {"optimiser": by, f"rate_{by}": 0.5, **more}
        ((trial, config),) = client.get_next_trials(1, fixed_parameters=fixed).items()
        assert config == fixed
        client.complete_trial(trial, raw_data={"error": 0.0})


def test_where_to_begin(tmp_path: Path) -> None:
    client = make_client(starts="middle")
    study = Study(space_of(client), seed=0, starts="middle")
    assert search(client, error, 3) == study.starts
    client = make_client(starts=[D, B])
    path = tmp_path / "client.json"
    client.save_to_json_file(str(path))
    assert search(client, error, 2) == [D, B]
    assert next_of(Client.load_from_json_file(str(path))) == D
    wrong: list[Any] = [3, "best"]
    for starts in wrong:
        with pytest.raises(ValueError, match="starts: expected one of"):
            structured_generation_strategy(starts=starts)
    with pytest.raises(ValueError, match="starts: "):
        next_of(make_client(starts=[{"learner": "none"}]))
    with pytest.raises(ValueError, match="initialize_with_center: expected True"):
        structured_generation_strategy(initialize_with_center="no")  # type: ignore[arg-type]


def test_standard_errors_are_noise_where_all_are_given() -> None:
    def told(sems: list[float | None], **kwargs: Any) -> dict[str, Any]:
        client = make_client(**kwargs)
        for config, sem in zip((A, B, C, D), sems, strict=True):
            value = error(config)
            attach(client, config, error=value if sem is None else (value, sem))
        client.mark_trial_failed(attach(client, C | {"share": 0.9}))
        return next_of(client)

    def asked(sems: list[float | None]) -> dict[str, Any]:
        study = Study(space_of(make_client()), seed=0)
        for config, sem in zip((A, B, C, D), sems, strict=True):
            study.tell(config, error(config), sem=sem)
        study.tell(C | {"share": 0.9}, None)
        return study.ask()[0]

    every: list[float | None] = [0.3, 0.01, 0.02, 0.4]
    nothing = asked([None] * 4)
    assert told(every) == asked(every) != nothing
    assert told([0.3, 0.01, None, 0.4]) == told([0.0] * 4) == nothing


def test_what_is_not_supported_is_refused() -> None:
    client = make_client()
    client._experiment.search_space.disable_parameters({"share": 0.5})
    with pytest.raises(ValueError, match="'share': expected .*that is not disabled"):
        client.get_next_trials(1)


def test_parameters_added_later_have_their_backfill_value() -> None:
    from ax.core.parameter import ParameterType, RangeParameter

    client = with_data()
    width = RangeParameter("w", ParameterType.FLOAT, 0.0, 1.0, backfill_value=0.5)
    client._experiment.search_space.add_parameter(width)
    told = [(config | {"w": 0.5}, value) for config, value in KNOWN]
    assert next_of(client) == asked(client, told)


def optimisers(**changes: Any) -> list[Any]:
    return [
        ChoiceParameterConfig(
            "optimiser",
            ["adam", "sgd"],
            "str",
            is_ordered=False,
            dependent_parameters={
                "adam": ["rate_adam", *changes.get("adam", ())],
                "sgd": ["rate_sgd", "momentum", *changes.get("sgd", ())],
            },
        ),
        RangeParameterConfig("rate_adam", (1e-5, 1.0), "float", scaling="log"),
        RangeParameterConfig(
            "rate_sgd", changes.get("bounds", (1e-5, 1.0)), "float", scaling="log"
        ),
        RangeParameterConfig("momentum", (0.0, 1.0), "float"),
        *(
            RangeParameterConfig("more", (0.0, 1.0), "float")
            for names in changes.values()
            if "more" in names
        ),
    ]


def test_aligned_parameters_are_one() -> None:
    groups = [["rate_adam", "rate_sgd"]]
    client = make_client(optimisers(), aligned=groups)
    space = SearchSpace.from_ax(client._experiment.search_space, groups)
    assert space.names == ["optimiser", "rate_adam", "momentum"]
    assert space.tree.shared_columns == [1] and space.tree.num_paths == 2
    for config in search(client, lambda c: float(len(c)), 4):
        assert {"rate_adam", "rate_sgd"} & {*config} == {f"rate_{config['optimiser']}"}


@pytest.mark.parametrize(
    "group, changes, message",
    [
        (["rate_adam", "nobody"], {}, r"names among .*, got \['nobody'\]"),
        (
            ["rate_adam", "rate_sgd"],
            {"bounds": (1e-4, 1.0)},
            "parameters with the same bounds .*0.0001",
        ),
        (["rate_sgd", "momentum"], {}, "parameters with the same bounds or values"),
        (["optimiser", "rate_sgd"], {}, "parameters with the same bounds or values"),
        (
            ["momentum", "more"],
            {"sgd": ["more"]},
            ".*different values of one choice.*'sgd'.*'sgd",
        ),
        (["momentum", "more"], {"top": ["more"]}, ".*different values of one choice"),
        (
            ["momentum", "more"],
            {"adam": ["more"]},
            ".*without dependents and constraints, got .*'momentum'",
        ),
    ],
)
def test_parameters_that_cannot_be_one(
    group: list[str], changes: Any, message: str
) -> None:
    tied = ["momentum <= 0.5"] if "adam" in changes else None
    client = make_client(
        optimisers(**changes), parameter_constraints=tied, aligned=[group]
    )
    with pytest.raises(ValueError, match=f"aligned: expected {message}"):
        client.get_next_trials(1)


def test_loaded_in_a_new_process_it_goes_on_identically(tmp_path: Path) -> None:
    client = make_client(optimisers(), aligned=[["rate_adam", "rate_sgd"]])
    # outcomes with more digits than Ax saves
    search(client, lambda c: math.pi / sum(map(number, c.values())), 6)
    client.mark_trial_abandoned(attach(client, {"optimiser": "adam", "rate_adam": 0.1}))
    client.get_next_trials(max_trials=1)  # running
    path = tmp_path / "client.json"
    client.save_to_json_file(str(path))
    code = (
        "import json, logging; logging.disable(50)\n"
        "import botorch_structured.integrations.ax\n"
        "from ax.api.client import Client\n"
        f"client = Client.load_from_json_file({str(path)!r})\n"
        "print(json.dumps(list(client.get_next_trials(max_trials=3).values())))"
    )
    ours = list(client.get_next_trials(max_trials=3).values())
    theirs = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert json.loads(theirs.stdout) == ours


def number(value: Any) -> float:
    return value if isinstance(value, float) else float(len(value))


def test_ax_saves_strategies_with_our_models_too() -> None:
    from ax.storage.botorch_modular_registry import MODEL_REGISTRY

    assert {ConditionalGP, TreedGP, TreeStructuredGP} <= MODEL_REGISTRY.keys()


def test_without_ax_the_extra_is_named() -> None:
    code = (
        "import sys\n"
        "sys.modules['ax'] = None\n"
        "import botorch_structured.integrations.ax"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'botorch-structured[ax]'" in done.stderr


def outcomes(c: dict[str, Any]) -> dict[str, float]:
    return {"error": error(c), "cost": 2.0 * c["share"] + (c["learner"] == "boost")}


def client_with_outcomes(**kwargs: Any) -> Client:
    client = make_client(**kwargs)
    for config in (A, B, C):
        attach(client, config, **outcomes(config))
    return client


@pytest.mark.parametrize(
    ("asked_for", "constraints", "limits", "values"),
    [
        ("-error, -cost", None, [], lambda e, c: (-e, -c)),
        ("-error, -cost", ["error <= 0.5"], ["c <= 0.5"], lambda e, c: (-e, -c, e)),
        ("-error", ["cost <= 1.5"], ["c <= 1.5"], lambda e, c: (-e, c)),
        ("-error", ["2 * cost >= 2"], ["c >= 2.0"], lambda e, c: (-e, 2.0 * c)),
    ],
)
def test_several_objectives_and_constraints(
    asked_for: str, constraints: Any, limits: Any, values: Any
) -> None:
    client = client_with_outcomes(objective=asked_for, constraints=constraints)
    objectives = dict.fromkeys("ab" if "," in asked_for else "a", "maximize")
    names = [*objectives, *("c" if limits else "")]
    told = [
        (c, dict(zip(names, values(*outcomes(c).values()), strict=True)))
        for c in (A, B, C)
    ]
    first = next_of(client)
    assert first == asked(client, told, objectives, limits)
    if limits:  # without one of the metrics a trial is pending
        attach(client, D, error=0.0)
        pending = [first, D]
        assert next_of(client) == asked(client, told, objectives, limits, pending)


def test_constraints_relative_to_a_baseline() -> None:
    """In a space without a hierarchy: Ax has no baselines in others."""
    numbers = [RangeParameterConfig(name, (0.0, 1.0), "float") for name in "xy"]
    points = [{"x": 0.5, "y": 0.5}, {"x": 0.25, "y": 0.75}, {"x": 1.0, "y": 0.0}]

    def evaluate(c: dict[str, Any]) -> dict[str, float]:
        return {"error": (c["x"] - 0.5) ** 2 + c["y"], "cost": c["x"] + 1}

    client = make_client(numbers, constraints=["cost <= 0.9 * baseline"])
    baseline = client.attach_baseline(points[0])
    for config in points[1:]:
        attach(client, config, **evaluate(config))
    # without data of the baseline the constraint says nothing
    first = next_of(client)
    goal = {"a": "maximize"}
    told = [(c, {"a": -evaluate(c)["error"]}) for c in points[1:]]
    assert first == asked(client, told, goal, [], points[:1])
    client.complete_trial(baseline, evaluate(points[0]))
    values = [evaluate(c) for c in points]
    told = [
        (c, {"a": -v["error"], "c": v["cost"]})
        for c, v in zip(points, values, strict=True)
    ]
    assert next_of(client) == asked(client, told, goal, ["c <= 1.35"], [first])
