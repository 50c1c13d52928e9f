"""Evaluations on a Ray cluster, as many at a time as there are workers: `Study`.

The driver asks and tells, and has the log: stop it, run it again, and it goes on.
``--quick`` makes few evaluations on this machine.
"""

import sys

import ray

from botorch_structured import Study

QUICK = "--quick" in sys.argv
BUDGET, WORKERS = (8, 2) if QUICK else (60, 8)
SPACE = [
    {"learner": ["svm"], "C": (1e-3, 1e3, "log")},
    {"learner": ["neighbours"], "k": (1, 50)},
]


@ray.remote
def evaluate(config):
    """The validation error; put your training in its place."""
    if config["learner"] == "svm":
        return abs(config["C"] - 10.0) / 1e3
    return 0.1 + config["k"] / 500


if QUICK:
    ray.init("local", num_cpus=WORKERS, include_dashboard=False)
else:
    ray.init(include_dashboard=False)  # the cluster of RAY_ADDRESS, if there is one
study = Study(SPACE, log="ray.jsonl", seed=0)
running = {}
while len(study.trials) < BUDGET:
    free = min(WORKERS, BUDGET - len(study.trials)) - len(running)
    for config in study.ask(free) if free > 0 else []:
        running[evaluate.remote(config)] = config
    (done, *_), _ = ray.wait(list(running))
    config = running.pop(done)
    try:
        study.tell(config, ray.get(done))
    except ray.exceptions.RayError as error:  # a worker died, or the training failed
        study.tell(config, None, error=str(error))
ray.shutdown()
print(study.best)
