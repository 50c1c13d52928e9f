"""The files that a person copies run, and go on where they say so."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
# What each needs besides ConfigSpace, and the trials there are after it was run twice,
# in the same folder, where it goes on.
NEEDS = {
    "ax_saved": ("ax", 10),
    "configspace_learners": ("ConfigSpace", None),
    "optuna_journal": ("optuna", 12),
    "ray_cluster": ("ray", 8),
    "sklearn_pipeline": ("sklearn", None),
    "study_network": ("pandas", 6),
}


def test_every_example_is_run() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == NEEDS.keys() | {"ablr_torchrun"}  # it has a test of its own


@pytest.mark.parametrize("name", NEEDS)
def test_an_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, trials = NEEDS[name]
    pytest.importorskip(module)
    path = EXAMPLES / f"{name}.py"
    code = path.read_text(encoding="utf-8").splitlines()
    assert sum(bool(line.strip()) for line in code) <= 45
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), "--quick"])
    for _ in range(2 if trials else 1):
        found = runpy.run_path(str(path), run_name="__main__")
    if trials:
        client = found.get("client")
        assert trials == len(client.summarize() if client else found["study"].trials)
