"""Worker processes that share a study and are killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import killed_workers as kill_test
import optuna
import pytest
from optuna.distributions import distribution_to_json
from optuna.trial import TrialState

from botorch_structured.integrations.optuna import StructuredSampler
from botorch_structured.integrations.optuna.shared_paths import SharedPaths


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_nothing_is_lost_nor_double_when_workers_are_killed(
    kind: kill_test.Kind, tmp_path: Path
) -> None:
    assert kill_test.run(tmp_path, kind, workers=3, trials=20, seed=1) > 0
    trials = kill_test.open_study(tmp_path, kind, 1).get_trials(deepcopy=False)
    assert sum(t.state == TrialState.COMPLETE for t in trials) >= 20
    notes = [
        json.loads(line)
        for path in tmp_path.glob("worker-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    evaluated = [number for event, number, _ in notes if event == "evaluated"]
    assert len(set(evaluated)) == len(evaluated)
    for event, number, value in notes:
        if event == "told":
            assert trials[number].state == TrialState.COMPLETE
            assert trials[number].value == value
    # those that were killed early have fewer parameters
    points = [tuple(sorted(t.params.items())) for t in trials if len(t.params) == 4]
    assert len(set(points)) == len(points)


@pytest.mark.parametrize("seed", range(4))
def test_a_trial_that_asked_for_nothing_teaches_nothing(seed: int) -> None:
    # it was suggested, before anything was known, what no trial asks for
    study = optuna.create_study(sampler=StructuredSampler(seed=seed))
    study.optimize(kill_test.objective, 1)
    study.ask()  # killed
    kept: list[str] = []

    def objective(trial: optuna.Trial) -> float:
        if trial.number >= 20:
            kept.append(study.user_attrs[f"structured:{trial.number}"])
        return kill_test.objective(trial)

    study.optimize(objective, 30)
    assert study.best_value < 0.11
    points = [tuple(sorted(trial.params.items())) for trial in study.trials]
    assert len(set(points)) == len(points) == 32
    # eight paths of four parameters
    assert all(text.count("Distribution(") <= 4 for text in kept) and len(kept) == 12


def test_a_worker_may_learn_of_a_parameter_between_two_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, its = (kill_test.open_study(tmp_path, "sqlite", 0) for _ in range(2))
    its.sampler = optuna.samplers.RandomSampler(seed=0)
    mine.optimize(kill_test.objective, 2)
    get_trials = optuna.Study.get_trials
    new = optuna.distributions.CategoricalDistribution(["a", "b"])
    number = its.ask().number
    left = [True]

    def in_between(study: optuna.Study, *args: Any, **kwargs: Any) -> Any:
        found = get_trials(study, *args, **kwargs)
        if study is mine and left:
            left.clear()
            # a trial has a new parameter, which the one before it is suggested
            its.tell(its.ask({"new": new}), 1.0)
            kept: dict[str, Any] = {"trial": number, "whole": False, "final": True}
            kept |= {"values": [["new", distribution_to_json(new), 0]], "knows": {}}
            its.set_user_attr(f"structured:{number}", json.dumps(kept))
        return found

    monkeypatch.setattr(optuna.Study, "get_trials", in_between)
    mine.optimize(kill_test.objective, 1)
    assert not left
    assert mine.trials[-1].state == TrialState.COMPLETE


@pytest.mark.parametrize("tells", [False, True])
def test_a_worker_may_end_a_trial_before_another_one_looks_again(
    tells: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a trial that ends gives its suggestion up first, and is "running" until then
    mine, its = (kill_test.open_study(tmp_path, "sqlite", 0) for _ in range(2))
    mine.optimize(kill_test.objective, 22)
    keep = SharedPaths.keep
    at: list[dict[str, Any]] = []

    def in_between(
        shared: Any, number: int, suggestion: Any, *args: Any, **kwargs: Any
    ) -> None:
        if not at:
            at.append({name: value for name, (_, value) in suggestion.values.items()})
            its.enqueue_trial(at[0])
            trial = its.ask()
            value = kill_test.objective(trial)
            if tells:
                its.tell(trial, value)
            else:
                (frozen,) = (t for t in its.trials if t.number == trial.number)
                state = TrialState.COMPLETE
                its.sampler.after_trial(its, frozen, state, [value])
        keep(shared, number, suggestion, *args, **kwargs)

    monkeypatch.setattr(SharedPaths, "keep", in_between)
    mine.optimize(kill_test.objective, 1)
    points = [trial.params for trial in mine.trials if len(trial.params) == 4]
    assert points.count(at[0]) == 1
