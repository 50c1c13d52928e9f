"""ABLR's evidence with gradient: linear in the rows, close to its network alone.

    python -m benchmarks.speed.ablr [--rows 30000 750000] [--tasks 30] [--device cpu]
    [--out FILE]

For each number of rows, one line: microseconds per row of ``MultiTaskABLR``'s summed
log evidence with its gradient (3 layers of 50 tanh units, 10 inputs), and of a bare
forward and backward pass of the same network over the same chunks, which is what
stochastic gradients would cost. CPU time on one thread; medians over alternating
repetitions. Each number of rows is run in a process of its own, which also says by how
much the first evaluation raises the peak of memory after construction.

The last line is the ratio of the largest to the smallest number of rows, per row.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.speed import report
from botorch_structured.models import MultiTaskABLR

_INPUTS = 10


def make_model(rows: int, tasks: int, device: str) -> MultiTaskABLR:
    """Tasks of equal size whose outcomes are smooth in ten inputs."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(rows, 1 + _INPUTS, generator=g)
    X[:, 0] = torch.arange(rows) * tasks // rows
    shift = torch.rand(tasks, generator=g)[X[:, 0].long()]
    Y = torch.sin(3.0 * (X[:, 1:].sum(-1) + shift)).unsqueeze(-1)
    Y += 0.1 * torch.randn(Y.shape, generator=g)
    return MultiTaskABLR(X.to(device), Y.to(device), task_feature=0)


def evaluate(model: MultiTaskABLR) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The summed log evidence and its gradient."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    value = model.log_evidence()
    return value, torch.autograd.grad(value, parameters)


def network_alone(model: MultiTaskABLR, X: Tensor, chunk_rows: int) -> list[Tensor]:
    """Forward and backward of the features over the same chunks."""
    network = model.feature_map
    parameters = [p for p in network.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    for start in range(0, len(X), chunk_rows):
        loss = network(X[start : start + chunk_rows]).sum()
        found = torch.autograd.grad(loss, parameters)
        for t, g in zip(total, found, strict=True):
            t.add_(g)
    return total


def peak_mib(device: str) -> float:
    """The most memory that this process has had since the last ``forget_peak``."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        (line,) = [line for line in lines if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS: bytes


def forget_peak(device: str) -> None:
    """Count from the memory there is now; making the data may have needed more.

    Where the system cannot (macOS), the peak so far stays.
    """
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    elif Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def seconds(call: Callable[[], object], device: str) -> float:
    """CPU time (wall time on a GPU) of one call."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - start


def measure(args: argparse.Namespace, rows: int) -> dict[str, object]:
    """One row of the result."""
    model = make_model(rows, args.tasks, args.device)
    data = model._rows().data
    forget_peak(args.device)
    before = peak_mib(args.device)
    evaluate(model)
    memory = peak_mib(args.device) - before
    X = data.X.contiguous()
    chunk_rows = len(X[data.rows.chunks[0].rows])
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(args.repeats):
        ours.append(seconds(lambda: evaluate(model), args.device))
        bare.append(seconds(lambda: network_alone(model, X, chunk_rows), args.device))
    ratios = [a / b for a, b in zip(ours, bare, strict=True)]

    def median(values: list[float]) -> float:
        return sorted(values)[len(values) // 2]

    return {
        "device": torch.cuda.get_device_name() if args.device != "cpu" else "cpu",
        "rows": rows,
        "tasks": args.tasks,
        "chunk_rows": chunk_rows,
        "us_per_row": round(1e6 * median(ours) / rows, 3),
        "network_us_per_row": round(1e6 * median(bare) / rows, 3),
        "ratio": round(median(ratios), 2),
        "memory_mib": round(memory, 1),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[30_000, 750_000])
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--out",
        help="append to this JSONL file, machine beside it",
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    if args.here:  # the process of one number of rows
        print(json.dumps(measure(args, args.rows[0])))
        return
    results: list[dict[str, object]] = []
    for rows in args.rows:
        command = [sys.executable, "-m", "benchmarks.speed.ablr", "--here"]
        for name in ("tasks", "repeats", "device"):
            command += [f"--{name}", str(getattr(args, name))]
        command += ["--rows", str(rows)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results.append(json.loads(done.stdout.splitlines()[-1]))
        report(results[-1], args.out)
    if len(results) > 1:
        per_row = [float(str(r["us_per_row"])) for r in results]
        linear: dict[str, object] = {
            "rows": [args.rows[0], args.rows[-1]],
            "us_per_row_ratio": round(per_row[-1] / per_row[0], 2),
        }
        report(linear, args.out)


if __name__ == "__main__":
    main()
