"""Speed, always as a ratio against a named peer in the same run."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path

from botorch_structured import __version__


def machine() -> dict[str, object]:
    """The processor and the versions, on which a ratio depends besides the code."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(t.partition(":")[2].strip() for t in lines if "model name" in t)
    except (OSError, StopIteration):  # not Linux, or not x86
        cpu = platform.processor() or platform.machine()
    packages = ("botorch", "gpytorch", "linear_operator", "numpy", "scipy", "torch")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {"botorch_structured": __version__}
        | {name: version(name) for name in packages},
    }


def report(result: dict[str, object], out: str | None) -> None:
    """Print a result, and append it to a JSONL file with the machine beside it."""
    print(json.dumps(result), flush=True)
    if out:
        with open(out, "a", encoding="utf-8") as file:
            file.write(json.dumps(result | {"machine": machine()}) + "\n")
