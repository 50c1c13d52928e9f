"""One test for each case of every file of reference numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module names its files in ``FILES``, ``NEEDS`` what cases of a test have."""
    module, directory = metafunc.module, Path(metafunc.config.getoption("--reference"))
    needed = getattr(module, "NEEDS", {}).get(metafunc.function.__name__)
    cases = []
    for file in sorted(directory.glob(module.FILES)):
        content = json.loads(file.read_text())
        for i, case in enumerate(content.get("cases") or content["problems"]):
            if needed is None or needed in case:
                name = f"{file.stem}-{case.get('name', i)}"
                cases.append(pytest.param(case, id=name))
    if not cases:
        raise ValueError(f"--reference: expected {module.FILES} in {directory}.")
    metafunc.parametrize("case", cases)
