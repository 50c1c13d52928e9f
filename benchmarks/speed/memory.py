"""The most memory that a call needs beyond what there is before it."""

from __future__ import annotations

__all__ = ["extra_mib"]

import resource
import sys
from collections.abc import Callable
from pathlib import Path


def extra_mib(call: Callable[[], object]) -> float:
    """MiB by which a call raises the peak of this process's memory, on the CPU.

    Linux can forget earlier peaks. Elsewhere they stay, and the answer is too small
    where they were higher.
    """
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
