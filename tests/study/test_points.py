"""Evaluations told with rounded numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import up_to_last_digits

from botorch_structured import Study

pytestmark = pytest.mark.usefixtures("random_points")

DICTIONARIES = [
    {"learner": ["svm"], "C": (1e-4, 1e2, "log"), "tol": (0.0, 1.0)},
    {"learner": ["forest"], "trees": (1, 10_000_000), "share": (0.1, 0.9)},
]
ROUNDINGS: dict[str, Callable[[float], float]] = {
    "six decimals": lambda v: round(v, 6),
    "single precision": lambda v: float(np.float32(v)),
    "three digits": lambda v: float(f"{v:.3g}"),
    "text": lambda v: f"{v:.6g}",  # type: ignore[dict-item,return-value]
}


def rounded(config: dict[str, Any], rounding: Callable[[float], float]) -> Any:
    return {k: rounding(v) if isinstance(v, float) else v for k, v in config.items()}


@pytest.mark.parametrize("rounding", ROUNDINGS.values(), ids=ROUNDINGS)
def test_they_answer_what_was_asked(
    tmp_path: Path, rounding: Callable[[float], float]
) -> None:
    log = tmp_path / "study.jsonl"
    study = Study(DICTIONARIES, log=log, seed=0)
    told = []
    for _ in range(3):
        for config in reversed(study.ask(3)):
            told.append(rounded(config, rounding))
            study.tell(told[-1], config.get("tol", 2.0))
        assert not study.pending
    for trial, config in zip(study.trials, told, strict=True):
        typed = {k: type(trial.config[k])(v) for k, v in config.items()}
        assert typed == up_to_last_digits(trial.config)
    (running,) = study.ask()
    trials = study.trials
    del study
    again = Study(DICTIONARIES, log=log)
    assert again.trials == trials and again.pending == [running]
    assert again.ask() == [running]


def test_the_nearest_of_several_is_answered() -> None:
    starts = [{"x": 0.501}, {"x": 0.504}, {"x": 0.509}]
    study = Study({"x": (0.0, 1.0)}, starts=starts, seed=0)
    study.ask(3)
    study.tell({"x": 0.5039}, 1.0)
    assert study.pending == [starts[0], starts[2]]


def test_a_rounded_number_that_comes_again_answers_what_was_asked_since(
    tmp_path: Path,
) -> None:
    """A search that converges asks for points that are rounded to the same one."""
    starts = [{"x": 0.298}, {"x": 0.3011}]
    log = tmp_path / "study.jsonl"
    study = Study({"x": (0.0, 1.0)}, starts=starts, log=log, seed=0)
    study.tell({"x": 0.3}, 1.0)
    for start in starts:
        assert study.ask() == [start] == study.pending
        study.tell({"x": 0.3}, 2.0)
        assert study.pending == []
    del study
    assert Study({"x": (0.0, 1.0)}, starts=starts, log=log, seed=0).pending == []


STARTS = [
    {"learner": "svm", "C": 1.0, "tol": 0.5},
    {"learner": "forest", "trees": 502, "share": 0.5},
]


@pytest.mark.parametrize(
    ("other", "left"),
    [
        ({"learner": "svm", "C": 2.0, "tol": 0.5}, STARTS[1:]),
        ({"learner": "svm", "C": 1.0, "tol": 0.52}, STARTS[1:]),
        ({"learner": "forest", "trees": 501, "share": 0.5001}, STARTS[:1]),
        ({"learner": "svm", "C": 1.0, "tol": 0.62}, STARTS),
        ({"learner": "forest", "trees": 2_000_000, "share": 0.5}, STARTS),
    ],
)
def test_near_ones_are_answered(
    other: dict[str, Any], left: list[dict[str, Any]], tmp_path: Path
) -> None:
    study = Study(DICTIONARIES, starts=STARTS, seed=0, log=tmp_path / "log")
    study.ask(2)
    study.tell(other, 1.0)
    study.tell(other, 1.0)
    assert study.pending == left
    del study
    study = Study(DICTIONARIES, starts=STARTS, log=tmp_path / "log")
    assert study.pending == left and study.ask(2)[: len(left)] == left


def test_numbers_rounded_to_one_digit_leave_nothing_behind() -> None:
    study = Study(DICTIONARIES, seed=0)
    for _ in range(20):
        (config,) = study.ask()
        told = rounded(config, lambda v: float(f"{v:.0e}"))
        study.tell(told, config.get("tol", 2.0))
    assert not study.pending


def test_what_nobody_asked_for_says_little_of_what_is_pending() -> None:
    """A table of evaluations that others made: its nearest row at most."""
    starts = [{"x": 0.25}, {"x": 0.27}, {"x": 0.95}]
    study = Study(
        {"x": (0.0, 1.0), "k": ["a", "b"]},
        seed=0,
        starts=[{**start, "k": "a"} for start in starts],
    )
    asked = study.ask(3)
    study.tell({"x": 0.21, "k": "a"}, 1.0)
    assert study.pending == asked[1:]
    study.tell_many([{"x": i / 99, "k": "b"} for i in range(99)], [1.0] * 99)
    assert study.pending == asked[1:]


def test_an_answer_that_never_comes() -> None:
    """Of a batch the last is answered however late; of what came before it is not."""
    study = Study({"x": (0.0, 1.0)}, starts=[], seed=0)
    study.ask(3)
    batch = study.ask(60)
    for config in batch[:60]:
        study.tell(config, None)
    assert len(study.pending) == 3
    for n in range(50):
        assert len(study.pending) == 3
        expected = pytest.warns(UserWarning) if n == 49 else nullcontext()
        (config,) = study.ask()
        with expected:
            study.tell(config, None)
    assert not study.pending
