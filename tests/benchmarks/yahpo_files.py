"""The files of a surrogate of YAHPO Gym, but for the surrogate."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_files(
    folder: Path,
    parameters: Sequence[Mapping[str, Any]],
    conditions: Sequence[Mapping[str, Any]],
    choices: Mapping[str, Sequence[str]],
) -> None:
    """The space, and the codes of its choices in alphabetical order."""
    folder.mkdir()
    content = {"hyperparameters": parameters, "conditions": conditions}
    path = folder / "config_space.json"
    path.write_text(json.dumps({**content, "forbiddens": []}))
    codes = {
        name: {c: i for i, c in enumerate(["#na#", *sorted(some)])}
        for name, some in choices.items()
    }
    (folder / "encoding.json").write_text(json.dumps(codes))
