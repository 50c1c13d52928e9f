from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("sklearn")

from botorch_structured.demo import Settings


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "settings.json"
    settings = Settings("iris", 3, 5)
    settings.write(path)
    assert Settings.read(path) == settings
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected an object with dataset, seed, budget, got b''"),
        ("[1]", "expected an object with dataset, seed, budget"),
        ('{"dataset": "iris", "seed": 1}', "expected an object with"),
        ('{"dataset": "a", "seed": 1, "budget": 1}', "dataset: expected one of .*'a'"),
        ('{"dataset": "iris", "seed": -1, "budget": 1}', "seed: .* from 0, got -1"),
        ('{"dataset": "iris", "seed": true, "budget": 1}', "seed: expected .* True"),
        ('{"dataset": "iris", "seed": 1, "budget": 0.5}', "budget: expected .* 0.5"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"settings.json: {message}"):
        Settings.read(path)
