from pathlib import Path

import optuna
import pytest

from benchmarks.harness import RunKey
from benchmarks.reach.optuna_studies import PROBLEMS, run_study


@pytest.mark.parametrize("name", ["jenatton", "wine"])
def test_what_follows_is_what_is_asked_for(name: str) -> None:
    problem = PROBLEMS[name](0, Path())
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(30):
        config = problem.ask(study.ask())
        told: dict[str, object] = {}
        while names := list(problem.following(told)):
            told |= {name: config[name] for name in names}
        assert told == config
        flat = problem.ask_all(study.ask())
        assert set(flat) <= set(study.trials[-1].params)


def test_a_study_leaves_records() -> None:
    problem = PROBLEMS["jenatton"](0, Path())
    sampler = optuna.samplers.RandomSampler(seed=0)
    records = run_study(RunKey("jenatton", "random", 0), problem, sampler, 3)
    assert [record["step"] for record in records] == [0, 1, 2]
    assert all(record["value"] > record["optimum"] for record in records)
