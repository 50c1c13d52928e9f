"""Workers of Optuna that share a study through a file.

Start it as often as you have cores: each process is a worker, and what one of them runs
the others leave alone. ``--quick`` runs few trials.
"""

import math
import sys

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from botorch_structured.integrations.optuna import StructuredSampler

QUICK = "--quick" in sys.argv


def objective(trial):
    """The validation error; here a formula. Put your training in its place."""
    optimizer = trial.suggest_categorical("optimizer", ["sgd", "adam"])
    rate = trial.suggest_float("rate", 1e-5, 1e-1, log=True)
    error = (math.log10(rate) + 3) ** 2 / 10
    if optimizer == "sgd":
        error += 0.1 + (trial.suggest_float("momentum", 0.0, 1.0) - 0.9) ** 2
    for i in range(trial.suggest_int("n_layers", 1, 3)):
        width = trial.suggest_int(f"width_{i}", 8, 256, log=True)
        error += (math.log2(width) - 6) ** 2 / 50 - 0.02
    return error


study = optuna.create_study(
    study_name="network",
    storage=JournalStorage(JournalFileBackend("network.log")),
    load_if_exists=True,
    sampler=StructuredSampler(seed=0),
)
study.optimize(objective, n_trials=6 if QUICK else 30, catch=(ArithmeticError,))
print(len(study.trials), "trials, the best:", study.best_params, study.best_value)
