"""Two learners, each with a hyperparameter of its own."""

from __future__ import annotations

import math

import optuna

import optunahub


def objective(trial: optuna.Trial) -> float:
    """An error with its optimum, 0, at C = 10."""
    learner = trial.suggest_categorical("learner", ["svm", "neighbours"])
    if learner == "svm":
        return (math.log10(trial.suggest_float("C", 1e-3, 1e3, log=True)) - 1) ** 2
    return 0.5 + (trial.suggest_int("k", 1, 50) / 50 - 0.3) ** 2


if __name__ == "__main__":
    module = optunahub.load_module(package="samplers/structured")
    study = optuna.create_study(sampler=module.StructuredSampler(seed=0))
    study.optimize(objective, n_trials=30)
    print(study.best_params, study.best_value)
