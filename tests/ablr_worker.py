"""One of several processes that share the rows of a problem.

    python ablr_worker.py RANK SIZE STORE OUT [--then wait|stop]

Writes what it computed to OUT. ``--then``: evaluate again and again until a process of
the group is gone (``wait``), or stand still after the first time (``stop``).
"""

from __future__ import annotations

import argparse
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from ablr_problems import Problem, make_problem
from torch import Tensor

from botorch_structured.models import MultiTaskABLR
from botorch_structured.models.ablr.feature_maps import TanhNetwork
from botorch_structured.models.ablr.processes import Processes

COUNTS = [40, 0, 3, 7, 25, 8, 6]


def problems() -> dict[str, tuple[Problem, Tensor]]:
    """Problems, and which of two processes has each of their rows."""
    shuffled = make_problem(COUNTS, seed=1)
    fixed = make_problem(COUNTS, seed=2, fixed_noise=True)
    whole = make_problem(COUNTS, seed=3, ordered=True)
    n = len(whole.Y)
    g = torch.Generator().manual_seed(0)
    return {
        "any": (shuffled, torch.randint(0, 2, (n,), generator=g)),
        "uneven": (fixed, (torch.arange(n) > 2).long()),
        "by task": (whole, whole.task % 2),
        "all in one": (shuffled, torch.zeros(n, dtype=torch.long)),
    }


def evaluate(
    problem: Problem, chunk_rows: int | None = None, process_group: Any = None
) -> dict[str, object]:
    """Value, gradient and posterior."""
    regressions = problem.regressions(chunk_rows, Processes(process_group))
    value = regressions.log_evidence()
    learnt = [t for t in problem.learnt if t is not problem.X and t is not problem.Y]
    posterior = regressions.weights()
    return {
        "value": value.detach(),
        "gradient": [g.detach() for g in torch.autograd.grad(value, learnt)],
        "mean": posterior.mean,
        "covariance": posterior.root @ posterior.root.mT,
    }


def conditioned(rank: int, size: int, process_group: object) -> Tensor:
    """Evidence and predictions of a model that all processes gave the same new rows."""
    g = torch.Generator().manual_seed(4)
    X = torch.rand(33, 3, generator=g, dtype=torch.float64)
    X[:, 2] = torch.arange(33) % 3
    Y = torch.sin(4.0 * X[:, :1]) + X[:, 2:]
    old, new = slice(rank, 30, size), slice(30, 33)
    model = MultiTaskABLR(
        X[old],
        Y[old],
        2,
        all_tasks=[0, 1, 2],
        outcome_transform=None,
        feature_map=TanhNetwork(2, widths=(6,)),
        process_group=process_group,
    )
    points = torch.linspace(0.0, 1.0, 8, dtype=torch.float64).reshape(4, 2)
    found = []
    for values in (Y[new], torch.stack([Y[new], Y[new] + 1.0])):  # one, and a batch
        more = model.condition_on_observations(X[new], values)
        for _ in range(2):  # updated, then from all rows
            found.append(more.posterior(points).mean.detach().reshape(-1))
            more.train()
        if not more.batch_shape:
            found.append(more.log_evidence().detach().reshape(1))
    return torch.cat(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rank", type=int)
    parser.add_argument("size", type=int)
    parser.add_argument("store")
    parser.add_argument("out")
    parser.add_argument("--then", choices=["wait", "stop"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{args.store}",
        rank=args.rank,
        world_size=args.size,
        timeout=timedelta(seconds=100),  # until the other has started
    )
    group = dist.group.WORLD
    impatient = dist.new_group(timeout=timedelta(seconds=5))
    results: dict[str, object] = {}
    for name, (problem, owner) in problems().items():
        part = problem.part((owner == args.rank).nonzero()[:, 0])
        results[name] = evaluate(part, process_group=group, chunk_rows=9)
    results["conditioned"] = conditioned(args.rank, args.size, group)
    part = problems()["any"][0]
    part.log_beta = part.log_beta.detach() + args.rank  # not the same everywhere
    try:
        evaluate(part, process_group=group)
    except ValueError as error:
        results["other hyperparameters"] = str(error)
    torch.save(results, args.out)
    if args.then is None:
        dist.destroy_process_group()
        return
    part = problems()["any"][0]
    while True:
        if args.then == "stop":
            time.sleep(600)
        evaluate(part, process_group=impatient)


if __name__ == "__main__":
    main()
