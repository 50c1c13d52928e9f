"""The files that a person copies run, and go on where they say so."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
# What each needs besides ConfigSpace, and whether it goes on in the same folder.
NEEDS = {
    "ax_saved": ("ax", True),
    "configspace_learners": ("ConfigSpace", False),
    "optuna_journal": ("optuna", True),
    "ray_cluster": ("ray", True),
    "sklearn_pipeline": ("sklearn", False),
    "study_network": ("pandas", True),
}


def test_every_example_is_run() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == NEEDS.keys() | {"ablr_torchrun"}  # it has a test of its own


@pytest.mark.parametrize("name", NEEDS)
def test_an_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, goes_on = NEEDS[name]
    pytest.importorskip(module)
    path = EXAMPLES / f"{name}.py"
    code = path.read_text(encoding="utf-8").splitlines()
    assert sum(bool(line.strip()) for line in code) <= 45
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), "--quick"])
    for _ in range(1 + goes_on):
        found = runpy.run_path(str(path), run_name="__main__")
    if name == "optuna_journal":
        assert len(found["study"].trials) == 12
    if name == "ray_cluster":
        assert len(found["study"].trials) == 8
    if name == "study_network":
        assert len(found["study"].trials) == 6
    if name == "ax_saved":
        assert len(found["client"].summarize()) == 10
