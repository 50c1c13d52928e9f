"""Time against evaluations: linear for ABLR, cubic for a GP. Perrone, Figure 1, right.

    python -m benchmarks.speed.ablr_against_gp --out FILE

CPU time on one thread of one value and gradient of what a fit maximises, for rows of
``QuadraticTasks``: ``SingleTaskGP`` on all rows stacked, and ``MultiTaskABLR`` of 30
tasks with a network of 3 x 50 units and with 100 random Fourier features. A fit takes
tens to hundreds of these, whichever the model. The median of several, after one that
does not count. Printed: seconds, and the exponent of the growth from the second largest
number of rows to the largest. ``benchmarks.papers.perrone`` reads and draws the file.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.optim.closures import get_loss_closure_with_grads
from torch import Tensor

from benchmarks.fits import cpu_seconds, objective
from benchmarks.speed import machine
from benchmarks.summary import markdown_table
from botorch_structured.kernels import RandomFourierFeatures
from botorch_structured.models import MultiTaskABLR
from botorch_structured.test_functions import QuadraticTasks

_NUM_TASKS = 30


def _rows(n: int) -> tuple[Tensor, Tensor]:
    """``n`` rows of all tasks: inputs on [0, 1] with the task last, and values."""
    tasks = QuadraticTasks(_NUM_TASKS)
    X = tasks.starts(0, n // _NUM_TASKS)
    Y = tasks(X).unsqueeze(-1)
    return torch.cat([(X[:, :-1] + 1.0) / 2.0, X[:, -1:]], -1), Y


def _gp(X: Tensor, Y: Tensor) -> SingleTaskGP:
    return SingleTaskGP(X[:, :-1], Y)


def _ablr(X: Tensor, Y: Tensor, fourier: bool) -> MultiTaskABLR:
    features = RandomFourierFeatures(100, seed=0) if fourier else None
    return MultiTaskABLR(X, Y, task_feature=-1, feature_map=features)


_MODELS: dict[str, Callable[..., Any]] = {
    "gp": _gp,
    "network": partial(_ablr, fourier=False),
    "fourier": partial(_ablr, fourier=True),
}


def measure(model: str, n: int) -> float:
    """Median CPU seconds of one value and gradient with ``n`` rows."""
    X, Y = _rows(n)
    mll = objective(_MODELS[model](X, Y)).train()
    parameters = {k: p for k, p in mll.named_parameters() if p.requires_grad}
    return cpu_seconds(get_loss_closure_with_grads(mll, parameters))


def _exponent(times: dict[int, float]) -> float:
    a, b = sorted(times)[-2:]
    return math.log(times[b] / times[a]) / math.log(b / a)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--largest", type=int, default=92_160, help="rows of ABLR")
    parser.add_argument("--largest-gp", type=int, default=5_760, help="rows of the GP")
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    sizes = [_NUM_TASKS * 12 * 2**k for k in range(10)]
    models: dict[str, Any] = {}
    for name in _MODELS:
        largest = options.largest_gp if name == "gp" else options.largest
        times = {n: measure(name, n) for n in sizes if n <= largest}
        models[name] = {"seconds": times, "exponent": _exponent(times)}
    rows = [
        [name, *(f"{of['seconds'].get(n, math.nan):.4f}" for n in sizes)]
        + [f"{of['exponent']:.2f}"]
        for name, of in models.items()
    ]
    print(markdown_table(["model", *map(str, sizes), "exponent"], rows))
    numbers = {"tasks": _NUM_TASKS, "threads": 1, "models": models} | machine()
    if options.out:
        options.out.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
