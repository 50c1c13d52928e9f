"""Tasks whose rows are spread over several processes.

Run it on two processes of this machine, or over machines as ``torchrun`` says:

    torchrun --nproc-per-node 2 examples/ablr_torchrun.py

Each process holds a shard of the rows. The evidence that they agree on, after a few
steps of L-BFGS, is printed beside that of one process with all rows.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import os

import torch
import torch.distributed as dist
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.models import MultiTaskABLR
from botorch_structured.models.ablr.feature_maps import TanhNetwork

NUM_TASKS, DIM = 5, 3


def old_runs(rows: int) -> tuple[Tensor, Tensor]:
    """Made-up old tuning runs: parameters with a task column, and their errors."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(rows, DIM, generator=generator, dtype=torch.float64)
    task = torch.randint(NUM_TASKS, (rows, 1), generator=generator)
    best = torch.linspace(0.2, 0.8, NUM_TASKS, dtype=torch.float64)[task]
    noise = 0.05 * torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    Y = (X - best).square().sum(-1, keepdim=True) * (1.0 + task) + noise
    return torch.cat([X, task.double()], dim=-1), Y


def fitted(X: Tensor, Y: Tensor, steps: int, process_group: object) -> MultiTaskABLR:
    """A model of the rows of this process, fitted on those of all."""
    model = MultiTaskABLR(
        X,
        Y,
        task_feature=-1,
        all_tasks=list(range(NUM_TASKS)),
        feature_map=TanhNetwork(DIM, widths=(16, 16)),
        process_group=process_group,
    )
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": steps}})
    return model


def prediction(model: MultiTaskABLR) -> float:
    """The mean of the last task in the middle of the box; all processes ask for it."""
    X = torch.full((1, DIM), 0.5, dtype=torch.float64)
    return model.posterior(X, output_indices=[NUM_TASKS - 1]).mean.item()


def main() -> None:
    """Fit on all processes, then on the first alone, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=60.0, help="in seconds")
    parser.add_argument("--end-rank", type=int, help="end this process before its fit")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", timeout=datetime.timedelta(seconds=arguments.timeout)
    )
    rank, size = dist.get_rank(), dist.get_world_size()
    X, Y = old_runs(arguments.rows)
    if rank == arguments.end_rank:
        print(f"process {rank} ends here, as it was told to", flush=True)
        os._exit(3)
    model = fitted(X[rank::size], Y[rank::size], arguments.steps, dist.group.WORLD)
    shared, predicted = model.log_evidence().item(), prediction(model)
    print(f"process {rank} of {size}: log evidence {shared:.12e}", flush=True)
    print(f"process {rank} of {size}: prediction {predicted:.12e}", flush=True)
    # the model has the group, whose threads have to end before the process does
    del model
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        model = fitted(X, Y, arguments.steps, None)
        alone, predicted = model.log_evidence().item(), prediction(model)
        print(f"one process:  log evidence {alone:.12e}")
        print(f"one process:  prediction {predicted:.12e}")
        print(f"relative difference {abs(shared / alone - 1.0):.1e}", flush=True)


if __name__ == "__main__":
    main()
