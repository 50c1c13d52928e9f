"""A client of Ax that is saved and loaded: run it again, and it goes on.

``--quick`` runs few trials.
"""

import math
import sys
from pathlib import Path

from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

# it also tells Ax how to load its strategy
from botorch_structured.integrations.ax import structured_generation_strategy

QUICK, FILE = "--quick" in sys.argv, Path("client.json")


def evaluate(config):
    """The error; here a formula. Put your evaluation in its place."""
    if config["learner"] == "svm":
        return (math.log10(config["C"]) - 1) ** 2
    return 0.5 + (config["k"] / 50 - 0.3) ** 2


def make_client():
    """A new client with two learners."""
    branches = {"svm": ["C"], "neighbours": ["k"]}
    learner = ChoiceParameterConfig(
        "learner", [*branches], "str", is_ordered=False, dependent_parameters=branches
    )
    C = RangeParameterConfig("C", (1e-3, 1e3), "float", scaling="log")
    client = Client()
    client.configure_experiment([learner, C, RangeParameterConfig("k", (1, 50), "int")])
    client.configure_optimization(objective="-error")
    client.set_generation_strategy(structured_generation_strategy(seed=0))
    return client


client = Client.load_from_json_file(str(FILE)) if FILE.exists() else make_client()
for _ in range(5 if QUICK else 20):
    for trial, config in client.get_next_trials(max_trials=1).items():
        client.complete_trial(trial, raw_data={"error": evaluate(config)})
    client.save_to_json_file(str(FILE))
print(client.get_best_parameterization(use_model_predictions=False)[:2])
