from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("optuna") else ["test_optuna*.py"]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Optuna, where it was imported, says nothing but errors."""
    if optuna := sys.modules.get("optuna"):
        optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    if optuna:
        optuna.logging.set_verbosity(optuna.logging.INFO)
