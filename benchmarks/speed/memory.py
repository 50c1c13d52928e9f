"""The most memory that a call needs beyond what there is before it."""

from __future__ import annotations

__all__ = ["extra_mib"]

import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch


def extra_mib(call: Callable[[], object], device: str = "cpu") -> float:
    """MiB by which a call raises the peak of memory: this process's, or of a GPU.

    Linux can forget earlier peaks. On other systems they stay, and the answer is too
    small where they were higher.

    Args:
        call: What needs memory.
        device: Where it computes.
    """
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    forget, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if forget.exists():
        forget.write_text("5")

    def peak() -> float:
        if status.exists():
            lines = status.read_text().splitlines()
            (line,) = [line for line in lines if line.startswith("VmHWM:")]
            return int(line.split()[1]) / 2**10
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit

    before = peak()
    call()
    return peak() - before
