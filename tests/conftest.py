from __future__ import annotations

import os

# Matrices are small, and files are tested side by side: threads of linear algebra would
# only wait for each other. It has to be said before NumPy is loaded, and holds for the
# tutorials and scripts that tests start.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from botorch.acquisition.multi_objective import logei
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# ``python -m pytest`` puts the repository in front of the installed package. What is
# installed is what users get, so that is what is tested; ``benchmarks``, which is not
# installed, is still found here.
if str(ROOT) not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    sys.path[:] = [p for p in sys.path if p not in ("", str(ROOT))] + [str(ROOT)]

# BoTorch compiles a C++ kernel for hypervolumes when one is first asked for, and waits
# for ever for the lock of a process that was killed meanwhile. It has a fallback.
logei._load_attempted = True

settings.register_profile("local", deadline=None, max_examples=25)
settings.register_profile("ci", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--reference",
        type=Path,
        default=Path(__file__).parent / "reference",
        metavar="DIR",
        help="the folder with the reference numbers (default: tests/reference)",
    )


@pytest.fixture(autouse=True)
def reproducible() -> Iterator[None]:
    """One thread, the same seeds; PyTorch's default dtype is restored."""
    default = torch.get_default_dtype()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    yield
    torch.set_default_dtype(default)


@pytest.fixture
def double() -> Iterator[None]:
    """What is made without a dtype, such as GPyTorch's priors, is in double precision.

    For a whole file: ``pytestmark = pytest.mark.usefixtures("double")``.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(default)


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device of this machine in turn."""
    return torch.device(request.param)


@pytest.fixture(scope="session")
def reference_files(pytestconfig: pytest.Config) -> Callable[[str], list[Path]]:
    """``reference_files("treegp_*.json")``: those in ``--reference``, at least one."""
    folder: Path = pytestconfig.getoption("reference")

    def find(pattern: str) -> list[Path]:
        files = sorted(folder.glob(pattern))
        if not files:
            raise FileNotFoundError(f"Expected files {pattern} in {folder}. Got none.")
        return files

    return find


@pytest.fixture
def random_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random points in place of those of models, for tests of bookkeeping.

    In all doors: each asks a `Study`.
    """
    from botorch_structured import Study

    monkeypatch.setattr(Study, "_choose", Study._draw)
