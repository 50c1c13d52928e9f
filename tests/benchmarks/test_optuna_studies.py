from pathlib import Path

import optuna
import pytest

from benchmarks.reach.optuna_studies import PROBLEMS, make_learners


@pytest.mark.parametrize("name", ["jenatton", "wine"])
def test_what_follows_is_what_is_asked_for(name: str) -> None:
    is_tree = name == "jenatton"
    problem = PROBLEMS[name](0, Path()) if is_tree else make_learners(0, name)
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
