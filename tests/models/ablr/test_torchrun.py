"""Rows shared by processes: the example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "ablr_torchrun.py"
_LIMIT = 240.0  # seconds, on busy cores

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(),
    reason="torch was built without torch.distributed and gloo",
)


def torchrun(*arguments: str) -> tuple[int, str]:
    """Exit status and output of the example on two processes of this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(EXAMPLE), "--rows", "400", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
    return done.returncode, done.stdout


def test_two_processes_fit_what_one_does() -> None:
    status, output = torchrun("--steps", "4")
    assert status == 0, output
    for what in ("log evidence", "prediction"):
        # two processes may write to one line
        values = re.findall(rf"{what} ([-+.\de]+)", output)
        assert len(values) == 3, output
        first, second, alone = (float(v) for v in values)
        assert first == second
        assert first == pytest.approx(alone, rel=1e-9)
