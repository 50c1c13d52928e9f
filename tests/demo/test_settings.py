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
        ('{"data": "iris"}', "expected an object with dataset, seed, budget"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"settings.json: {message}"):
        Settings.read(path)
