"""Evaluations told with rounded numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from botorch_structured import Study

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
        assert {k: type(trial.config[k])(v) for k, v in config.items()} == trial.config
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
    study.tell({"x": 0.5039}, 1.0)  # told twice: it answers nothing more
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


@pytest.mark.parametrize(
    "other",
    [
        {"learner": "svm", "C": 2.0, "tol": 0.5},
        {"learner": "svm", "C": 1.0, "tol": 0.52},
        {"learner": "forest", "trees": 500, "share": 0.5},
        {"learner": "forest", "trees": 501, "share": 0.5001},
    ],
)
def test_other_configurations_answer_nothing(other: dict[str, Any]) -> None:
    starts = [
        {"learner": "svm", "C": 1.0, "tol": 0.5},
        {"learner": "forest", "trees": 502, "share": 0.5},
    ]
    study = Study(DICTIONARIES, starts=starts, seed=0)
    study.ask(2)
    study.tell(other, 1.0)
    assert study.pending == starts
