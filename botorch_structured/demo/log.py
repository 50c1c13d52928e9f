"""A file of evaluations that a kill at any moment leaves readable."""

from __future__ import annotations

__all__ = ["EvaluationLog", "Record"]

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from botorch_structured.test_functions.cash import DATASETS

_MAX = math.nextafter(math.inf, 0.0)  # the largest finite number
_SHOWN = 60  # characters of what came, in a message


@dataclass(frozen=True)
class Record:
    """One finished evaluation.

    Args:
        method: Who chose it: ``"start"``, or the name of a method.
        config: The active parameters.
        x: The same as a point.
        value: Its error rate; 1.0, the worst, where it failed.
        error: What went wrong, if anything did.
        seconds: How long it took.
    """

    method: str
    config: dict[str, Any]
    x: list[float]
    value: float
    error: str | None
    seconds: float


def _between(low: float, high: float, *types: type) -> Callable[[Any], bool]:
    """Whether a value is of one of these types, which a bool is not, and in between."""
    return lambda x: type(x) in types and low <= x <= high


def _equals(expected: Any) -> Callable[[Any], bool]:
    return lambda x: x == expected and type(x) is type(expected)


# What each part of a line has to be, in words and as a check.
_Fields = dict[str, tuple[str, Callable[[Any], bool]]]
_is_finite = _between(-_MAX, _MAX, int, float)
_SETTINGS: _Fields = {
    "dataset": (f"one of {', '.join(DATASETS)}", lambda x: x in DATASETS),
    "seed": ("a whole number from 0", _between(0, _MAX, int)),
    "budget": ("a whole number from 1", _between(1, _MAX, int)),
}
_RECORD: _Fields = {
    "method": ("a string", lambda x: isinstance(x, str)),
    "config": (
        "an object with the name of a learner",
        lambda x: isinstance(x, dict) and isinstance(x.get("learner"), str),
    ),
    "x": (
        "a list of finite numbers",
        lambda x: isinstance(x, list) and all(map(_is_finite, x)),
    ),
    "value": ("a number from 0 to 1", _between(0.0, 1.0, int, float)),
    "error": ("a string or null", lambda x: x is None or isinstance(x, str)),
    "seconds": ("a number that is not negative", _between(0.0, _MAX, int, float)),
}


class EvaluationLog:
    """Settings and finished evaluations, one JSON object a line.

    Each evaluation is on the disk before the next one begins. A line that a kill cut
    in half is an evaluation that did not finish: it is dropped when the file is opened
    again, and so is done again. Each line names its study, so that lines of another
    one are noticed.

    Args:
        path: The file.
        settings: The first line: what identifies the study, and its ``"budget"``, which
            does not, as a study may be extended.
        records: What is in the file.
    """

    def __init__(
        self, path: Path, settings: dict[str, Any], records: list[Record]
    ) -> None:
        self.path, self.settings, self.records = path, settings, records

    @classmethod
    def create(cls, path: Path, settings: dict[str, Any]) -> EvaluationLog:
        """Begin a new file.

        Raises:
            FileExistsError: There is one already.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        log = cls(path, settings, [])
        path.touch(exist_ok=False)
        log._write(settings)
        return log

    @classmethod
    def resume(cls, path: Path) -> EvaluationLog:
        """Go on with a file.

        Raises:
            ValueError: It is not such a file, is damaged elsewhere than at its end, or
                has evaluations of another study. The message names file and line.
        """
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        lines = data[:end].splitlines() or [b""]
        log = cls(path, _read(lines[0], _SETTINGS, f"{path} line 1"), [])
        same = {
            key: (f"{json.dumps(value)} as in line 1", _equals(value))
            for key, value in log.study.items()
        }
        for number, line in enumerate(lines[1:], start=2):
            entry = _read(line, same | _RECORD, f"{path} line {number}")
            log.records.append(Record(**{key: entry[key] for key in _RECORD}))
        if end < len(data):
            os.truncate(path, end)
        return log

    @property
    def study(self) -> dict[str, Any]:
        """The settings that tell this study from another."""
        return {key: v for key, v in self.settings.items() if key != "budget"}

    def append(self, record: Record) -> None:
        """Put a finished evaluation on the disk."""
        self._write({**self.study, **asdict(record)})
        self.records.append(record)

    def _write(self, entry: dict[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _read(line: bytes, fields: _Fields, where: str) -> dict[str, Any]:
    """An object with these fields and no others."""
    try:
        entry = json.loads(line)
    except ValueError:  # text that is not UTF-8, too
        entry = line.decode(errors="replace")
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected a JSON object, got {_short(entry)}.")
    if entry.keys() != fields.keys():
        raise ValueError(
            f"{where}: expected {', '.join(fields)}, got {_short(', '.join(entry))}."
        )
    for key, (description, is_one) in fields.items():
        if not is_one(entry[key]):
            raise ValueError(
                f"{where}: {key}: expected {description}, got {_short(entry[key])}."
            )
    return entry


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
