"""A network whose layers have a width each: `Study`, with a log and failures.

Run it, stop it by Ctrl-C, run it again: it goes on. ``--quick`` makes few evaluations.
"""

import logging
import math
import sys

from ConfigSpace import ConfigurationSpace, Float, GreaterThanCondition, Integer

from botorch_structured import Study

QUICK = "--quick" in sys.argv


def make_space():
    """One to three layers, and the widths of those that are there."""
    space = ConfigurationSpace()
    layers = Integer("n_layers", (1, 3))
    widths = [Integer(f"width_{i}", (8, 256), log=True) for i in (1, 2, 3)]
    space.add(layers, Float("rate", (1e-5, 1e-1), log=True), *widths)
    for i in (2, 3):  # a layer has a width if there is one
        space.add(GreaterThanCondition(widths[i - 1], layers, i - 1))
    return space


def train(config):
    """The validation error; here a formula. Put your training in its place."""
    if config["rate"] > 0.05:
        return math.nan  # diverged: a failure
    widths = [config[f"width_{i}"] for i in range(1, config["n_layers"] + 1)]
    missed = sum((math.log2(w) - 6) ** 2 for w in widths) / 50
    return 0.1 / len(widths) + missed + (math.log10(config["rate"]) + 3) ** 2 / 10


logging.basicConfig(level=logging.INFO, format="%(message)s")
study = Study(make_space(), {"error": "minimize"}, log="network.jsonl", seed=0)
budget = 6 if QUICK else 40
study.optimize(train, max(0, budget - len(study.trials)), catch=Exception, timeout=3600)
print(study.best)
print(study.trials_frame().sort_values("values_error").head())
if not QUICK:
    study.plot().savefig("network.png")
