"""Peers of the package, each through its documented interface.

`PEERS` has the methods by name, for the harness: each gets all that was evaluated and
returns the next point. A peer whose library is not installed is left out. Libraries are
imported when a peer first suggests.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from benchmarks import methods
from benchmarks.suite.peers import gaussian_processes, optuna_samplers, smac

_BY_LIBRARY: dict[str, dict[str, Any]] = {
    "botorch": {
        "random": methods.random,
        "imputed": gaussian_processes.imputed,
        "independent": methods.independent,
        "marginal": methods.marginal,
        "published": methods.published,
    },
    "optuna": {
        "plain_tpe": optuna_samplers.PlainTPE(),
        "tpe": optuna_samplers.TPE(),
        "gpsampler": optuna_samplers.GPSampler(),
    },
    "smac": {"smac": smac.SMAC(), "smac_starts": smac.SMACWithStarts()},
}

PEERS: dict[str, Any] = {
    name: method
    for library, group in _BY_LIBRARY.items()
    if find_spec(library) is not None
    for name, method in group.items()
}
