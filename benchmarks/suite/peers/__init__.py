"""What the package is compared with, each peer through its documented interface.

`PEERS` has the methods by name, for the harness: each gets all that was evaluated and
returns the next point. A peer whose library is not installed is left out. Libraries are
imported when a peer first suggests.
"""

from __future__ import annotations

__all__ = ["PEERS", "SLOW", "versions"]

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from benchmarks.methods import random
from benchmarks.suite.peers import (
    evolution,
    gaussian_processes,
    optuna_samplers,
    papers,
    smac,
)

_BY_LIBRARY: dict[str, dict[str, Any]] = {
    "botorch": {
        "random": random,
        "imputed": gaussian_processes.imputed,
        "arc": gaussian_processes.arc,
        "hierarchical": gaussian_processes.hierarchical,
        "independent": papers.independent,
        "marginal": papers.marginal,
        "published": papers.published,
    },
    "optuna": {
        "plain_tpe": optuna_samplers.PlainTPE(),
        "tpe": optuna_samplers.TPE(),
        "tpe_starts": optuna_samplers.TPEWithStarts(),
        "gpsampler": optuna_samplers.GPSampler(flat=True),
        "gpsampler_conditional": optuna_samplers.GPSampler(flat=False),
    },
    "smac": {"smac": smac.SMAC(), "smac_starts": smac.SMACWithStarts()},
    "cmaes": {"cmaes": evolution.CMAES()},
}

PEERS: dict[str, Any] = {
    name: method
    for library, methods in _BY_LIBRARY.items()
    if find_spec(library) is not None
    for name, method in methods.items()
}

# More than a second of one core for a suggestion after 60 evaluations.
SLOW = frozenset({"arc", "hierarchical"})


def versions() -> dict[str, str]:
    """The versions of what peers are made of; a library that is missing is left out."""
    found = {}
    for name in (
        *("botorch", "cmaes", "ConfigSpace", "gpytorch", "numpy", "optuna"),
        *("scikit-learn", "scipy", "smac", "torch"),
    ):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
