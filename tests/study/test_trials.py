"""Objectives and constraints, and what models see of them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from botorch_structured.study import Trial
from botorch_structured.study.trials import Constraint, Goals

NAMES = ["loss", "speed", "memory"]


def make() -> Goals:
    return Goals(
        {"loss": "minimize", "speed": "maximize"},
        ["memory <= 8", "speed>=1e-1", " memory  >=  -2.5 "],
    )


def test_what_models_see() -> None:
    outcomes = make()
    told = outcomes.read({"memory": 9, "loss": 0.5, "speed": 3.0})
    assert list(told) == outcomes.names == NAMES
    trials = [Trial(0, {}, told), Trial(1, {})]
    assert outcomes.train_Y(trials).tolist() == [[-0.5, 3.0], [-math.inf, -math.inf]]
    first, second = outcomes.train_C(trials).tolist()
    assert first == [1.0, pytest.approx(-2.9), -11.5]
    assert all(map(math.isnan, second))
    assert outcomes.feasible(trials) == []
    good = Trial(2, {}, outcomes.read({"memory": 8.0, "loss": 1, "speed": 0.1}))
    assert outcomes.feasible([*trials, good]) == [good]
    assert (good.state, good.value, trials[1].state, trials[1].value) == (
        "complete",
        1.0,
        "failed",
        None,
    )


def test_nothing_told_yet() -> None:
    outcomes = make()
    assert outcomes.train_Y([]).shape == (0, 2) and outcomes.train_C([]).shape == (0, 3)
    assert Goals("minimize").feasible([]) == []


@pytest.mark.parametrize("text", ["memory <= 8.0", "top-1 error (%) >= -0.25"])
def test_constraints_are_written_as_they_are_read(text: str) -> None:
    assert str(Constraint.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["memory", "memory < 8", "memory = 8", "<= 8", "memory <= much", "m <= nan", 8],
)
def test_constraints_that_are_none(text: Any) -> None:
    with pytest.raises(ValueError, match="constraints: expected texts such as"):
        Goals("minimize", [text])
    with pytest.raises(ValueError, match=f"constraints: expected a list, got {text!r}"):
        Goals("minimize", text)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.5, r"value: expected {name: number} with the names \['loss', 'speed', 'me"),
        ({"loss": 1.0}, r"value: expected numbers for .* got them for \['loss'\]"),
        ({**dict.fromkeys(NAMES, 1.0), "ram": 2.0}, "value: expected numbers for"),
        ({**dict.fromkeys(NAMES, 1.0), "memory": math.nan}, r"value\['memory'\]: exp"),
    ],
)
def test_values_that_do_not_fit(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make().read(value)


def test_what_it_shows() -> None:
    good = Trial(3, {"a": 1}, {"value": 0.5}, cost=2.0)
    shown = "Trial(3, 'complete', config={'a': 1}, values={'value': 0.5}, cost=2.0)"
    assert repr(good) == shown
    bad = Trial(4, {"a": 1}, error="ValueError: no")
    assert repr(bad) == "Trial(4, 'failed', config={'a': 1}, error='ValueError: no')"


def test_trials_that_another_thread_tells_meanwhile() -> None:
    trials = [Trial(0, {}, {"value": 1.0})]

    class Late(Goals):
        def train_C(self, some: Any) -> Any:
            trials.append(Trial(1, {}, {"value": 0.0}))
            return super().train_C(some)

    assert Late("minimize").feasible(trials) == trials[:1]
