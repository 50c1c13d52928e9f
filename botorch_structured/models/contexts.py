"""Context managers for long computations: seeds, warnings, threads, progress."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from linear_operator.utils.warnings import NumericalWarning
from threadpoolctl import LibController, ThreadpoolController
from tqdm import tqdm

_ROWS_FOR_ONE_THREAD = 1000


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global random state, which a fit's retries draw from, and restore it.

    Args:
        seed: The seed of the CPU's state and of the device's.
        device: A device on which random numbers may be drawn, too.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # not torch.manual_seed, which also seeds devices that are not restored
        torch.random.default_generator.manual_seed(seed)
        for other in devices:
            with torch.cuda.device(other):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings of jitter, which is added to nearly singular matrices.

    A slice sampler evaluates hyperparameters at the ends of their ranges.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        yield


@contextmanager
def few_threads(rows: int = 0) -> Iterator[None]:
    """Use one thread for factorisations of small matrices, where that is faster.

    At 200 rows two threads on busy cores took nine times as long as one. This sets the
    threads of NumPy's and SciPy's LAPACK, not those of torch.

    Args:
        rows: Rows of the matrices.
    """
    if rows > _ROWS_FOR_ONE_THREAD:
        yield
        return
    # ``ThreadpoolController.limit`` asks the libraries for all they know
    libraries = _blas()
    before = [library.num_threads for library in libraries]
    try:
        for library in libraries:
            library.set_num_threads(1)
        yield
    finally:
        for library, count in zip(libraries, before, strict=True):
            library.set_num_threads(count)


@cache
def _blas() -> list[LibController]:
    # looking for the libraries takes as long as ten evaluations of a small objective
    libraries: list[LibController]
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return libraries


@contextmanager
def progress_bar(
    total: int | None,
    progress: bool | None,
    name: str = "slice sampling",
    unit: str = "sweep",
) -> Iterator[Callable[[], None]]:
    """A progress bar over steps; the function that it yields is called after each.

    Args:
        total: Number of steps; None where it is not known.
        progress: Whether there is a bar; None: if it takes more than 3 seconds.
        name: Of what takes these steps.
        unit: A step's name.
    """
    delay = 0.0 if progress else 3.0  # seconds
    with tqdm(
        total=total,
        desc=name,
        unit=unit,
        disable=progress is False,
        delay=delay,
        leave=False,
    ) as bar:
        yield lambda: bar.update() and None
