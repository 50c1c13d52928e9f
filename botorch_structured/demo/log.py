"""A file of evaluations that a kill at any moment leaves readable."""

from __future__ import annotations

__all__ = ["EvaluationLog", "Record"]

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


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


class EvaluationLog:
    """Settings and finished evaluations, one JSON object a line.

    Each evaluation is on the disk before the next one begins. A line that a kill cut
    in half is an evaluation that did not finish: it is dropped when the file is opened
    again, and so is done again.

    Args:
        path: The file.
        settings: What identifies the study; the first line.
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
        with open(path, "x"):
            pass
        log._write(settings)
        return log

    @classmethod
    def resume(cls, path: Path) -> EvaluationLog:
        """Go on with a file.

        Raises:
            ValueError: It is not such a file, or damaged elsewhere than at its end.
        """
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        try:
            lines = [json.loads(line) for line in data[:end].splitlines()]
            records = [Record(**line) for line in lines[1:]]
            settings = dict(lines[0]) if lines else None
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Expected a log of evaluations in {path}. Got {error}."
            ) from error
        if settings is None:
            raise ValueError(
                f"Expected settings in the first line of {path}. Got none."
            )
        if end < len(data):
            os.truncate(path, end)
        return cls(path, settings, records)

    def append(self, record: Record) -> None:
        """Put a finished evaluation on the disk."""
        self._write(asdict(record))
        self.records.append(record)

    def _write(self, entry: dict[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
