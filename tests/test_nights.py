"""No failure costs what a night has found."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import nights
import pytest


@pytest.mark.skipif(sys.platform == "win32", reason="needs forkserver")
def test_a_night_of_failures(tmp_path: Path) -> None:
    """200 trials; all good ones are kept, in order, and none twice."""
    processes = nights.run(tmp_path, 200)
    lines = nights.lines_of(tmp_path / "notes")
    good = [[config, value] for mode, config, value in lines if mode == "good"]
    assert json.loads((tmp_path / "found").read_text()) == good
    met = Counter(mode for mode, *_ in lines)
    assert met.keys() == set(nights.MODES) and processes > 20
    told = len(lines) - met["hang"] - met["kill"]
    assert told - met["interrupt"] <= 200 <= told
