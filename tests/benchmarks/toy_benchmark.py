"""A small benchmark to interrupt: ``python toy_benchmark.py OUT PROCESSES SLEEP``."""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from benchmarks.harness import read_records, run


class Toy:
    """The squared norm, two starts; ``broken`` raises from the fourth point on."""

    def __init__(
        self, seed: int, sleep: float = 0.0, broken: bool = False, dies: bool = False
    ) -> None:
        self.sleep, self.broken, self.dies = sleep, broken, dies
        self.count = 0
        self.space = SimpleNamespace(sample=self.sample)
        self.optimal_value = 0.0

    def starts(self, seed: int) -> Tensor:
        return self.sample(2, seed)

    def sample(self, n: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(n, 2, generator=generator, dtype=torch.float64)

    def __call__(self, x: Tensor) -> Tensor:
        time.sleep(self.sleep)
        self.count += 1
        if self.count > 3 and self.broken:
            raise ArithmeticError("the problem is broken")
        if self.count > 3 and self.dies:
            os._exit(3)
        return x.square().sum()


def walk(problem: Toy, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """Uses everything a method is given, and the global generator too."""
    assert Y.shape == (len(X), 1)
    best = X[Y.argmax()]
    generator = torch.Generator().manual_seed(seed)
    step = torch.randn(2, generator=generator, dtype=torch.float64) + torch.randn(2)
    return (best + 0.1 * step).clamp(0, 1).unsqueeze(0)


def guess(problem: Toy, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    return problem.sample(1, seed)[0]


def faulty(problem: Toy, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    if len(X) % 2:
        raise RuntimeError("the method failed")
    return torch.full((2,), torch.nan) if len(X) == 4 else X[0]


def complete_runs(out: Path, budget: int, pattern: str = "*") -> int:
    """The number of runs, all of which have ``budget`` evaluations and no error."""
    files = list(out.glob(f"{pattern}/*/*.jsonl"))
    for records in map(read_records, files):
        assert len(records) == budget and not any("error" in r for r in records)
    return len(files)


def arguments(out: Path, sleep: float = 0.0) -> dict:
    return {
        "methods": {"walk": walk, "guess": guess},
        "problems": {"toy": partial(Toy, sleep=sleep), "other": partial(Toy)},
        "seeds": range(2),
        "budget": 12,
        "out": out,
        "progress": False,
    }


if __name__ == "__main__":
    # A shell in a script starts what it puts into the background with SIGINT ignored,
    # which children inherit and Python respects: there the tests could not interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run(**arguments(Path(sys.argv[1]), float(sys.argv[3])), processes=int(sys.argv[2]))
