"""A file of configurations and outcomes that a kill at any moment leaves readable."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary, finalize

from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import brief
from botorch_structured.spaces.columns import CategoricalColumn, described

try:
    import fcntl
except ImportError:  # Windows: without a lock
    fcntl = None  # type: ignore[assignment]

# How lines begin, after the first one and before: a kill leaves no other beginnings.
_HEADER = b'{"study": 1, "'
_ENTRIES = (b'{"asked": [', b'{"told": {')
# The logs that are open in this process, by device and number of the file.
_OPEN: WeakValueDictionary[tuple[int, int], StudyLog] = WeakValueDictionary()


def describe(space: SearchSpace) -> dict[str, str]:
    """The texts that tell a space from another, for each parameter and each clause.

    Raises:
        ValueError: A choice has no text that is the same in every process, or one that
            is read as another choice.
    """
    _check_choices(space)
    tree = space.tree
    texts = {}
    for i, column in enumerate(space.columns):
        parts = [f"{type(column).__name__}: {described(column)}"]
        if i in tree.decision_values:
            parts.append(f"decides between {tree.decision_values[i]}")
        if i in tree.conditions:
            parts.append(f"if {tree.conditions[i]}")
        texts[column.name] = ", ".join(parts)
    for constant in space.constants:
        texts[constant.name] = f"always {constant.value!r}, if {constant.condition}"
    for i, clause in enumerate(space._forbidden):
        texts[f"forbidden clause {i + 1}"] = repr(clause)
    for name, text in texts.items():
        if " at 0x" in text:
            raise ValueError(
                "log: expected choices that a file can hold, such as texts and "
                f"numbers, got {name!r}, {text}."
            )
    if space._feasible is not None:
        kind = getattr(space._feasible, "__qualname__", type(space._feasible).__name__)
        texts["feasible"] = kind
    return texts


def writable(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as JSON gives it back; choices are read as their texts, too."""
    plain = (str, int, float, bool, type(None))
    return {k: v if isinstance(v, plain) else str(v) for k, v in config.items()}


def _check_choices(space: SearchSpace) -> None:
    """Raise for a choice that would not be read as itself from a file."""
    constants = [CategoricalColumn(c.name, [c.value]) for c in space.constants]
    for column in (*space.columns, *constants):
        for i, choice in enumerate(getattr(column, "choices", ())):
            if not _comes_back(column, i):
                name = space._shown(column.name) or column.name
                raise ValueError(
                    "log: expected choices that a file can hold, such as texts and "
                    f"numbers, got {brief(choice)} for {name!r}, whose text is also "
                    "that of another choice, or of none."
                )


def _comes_back(column: Any, i: int) -> bool:
    line = json.dumps(writable({"": column.choices[i]}))
    try:
        return bool(column.position(json.loads(line)[""]) == i)
    except ValueError:
        return False


class StudyLog:
    """Settings of a study, then what was asked for and told, one JSON object a line.

    Each line is on the disk before the study goes on. A line that a kill cut in half
    is dropped when the file is opened again. One process at a time holds the file;
    in that process, the study that opened it last.

    Args:
        path: The file; it is made if there is none.
        settings: ``space``, ``objectives``, ``constraints``, ``costs`` and ``seed``. A
            file that exists must have the same ones, in the same order; a seed of None
            is any.
        new_seed: What to write in a new file where the seed is None.

    Raises:
        ValueError: Another process holds the file, it is not a log, is damaged
            elsewhere than at its end, or is the log of another study. The message
            names file and line.
    """

    def __init__(
        self, path: str | os.PathLike[str], settings: Mapping[str, Any], new_seed: int
    ) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise ValueError(f"log: expected a file, got the folder {self.path}.")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Unlike "a+b", "r+b" can cut a line off; unlike "w", it keeps what is there. A
        # buffer would write again, and elsewhere, what the disk had no room for.
        os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o666))
        self._file = open(self.path, "r+b", buffering=0)
        finalize(self, self._file.close)
        try:
            self._hold()
            data = self._file.read()
            #: ``(line number, object)`` of all that was asked for and told so far.
            self.entries: list[tuple[int, dict[str, Any]]] = []
            end = data.rfind(b"\n") + 1
            tail = data[end:]
            if lacks_end := _is_object(tail):
                data += b"\n"
                end = len(data)
            elif tail.strip() and not _is_beginning(tail, is_first=not end):
                _parse(tail, self.where(data.count(b"\n") + 1))
            if end:
                self.seed = self._read(data[:end], settings)
            if lacks_end:
                self._file.write(b"\n")
            self._file.truncate(end)
            self._size = end
            if not end:
                self.seed = new_seed if settings["seed"] is None else settings["seed"]
                self.append({"study": 1, **settings, "seed": self.seed})
        except BaseException:
            self._file.close()
            raise

    def where(self, line: int) -> str:
        """A line in a message."""
        return f"{self.path} line {line}"

    def _hold(self) -> None:
        """Lock the file, and take it over from an earlier study of this process."""
        stat = os.fstat(self._file.fileno())
        key = (stat.st_dev, stat.st_ino)
        if (earlier := _OPEN.get(key)) is not None:
            earlier.close()
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"log: expected a file that no other process works with, got "
                    f"{self.path}. Stop the other one, or give each its own file."
                ) from None
            except OSError:  # a file system without locks
                pass
        _OPEN[key] = self

    def _read(self, data: bytes, settings: Mapping[str, Any]) -> int:
        """Check all lines, keep the entries, and return the seed."""
        numbered = enumerate(data.splitlines(), start=1)
        lines = [(k, line) for k, line in numbered if line.strip()]
        (number, first), *others = lines or [(1, b"")]
        where = self.where(number)
        header = _parse(first, where)
        _check_keys(header, ["study", *settings], [], where)
        if header["study"] != 1:
            raise ValueError(
                f"{where}: study: expected 1, the version of the format, got "
                f"{brief(header['study'])}."
            )
        for key, expected in settings.items():
            got: Any = header[key]
            # columns, and so points, have the order of the parameters
            if expected is None or json.dumps(expected) == json.dumps(got):
                continue
            if isinstance(expected, dict) and isinstance(got, dict):
                # the first difference is enough
                pairs = zip_longest(expected.items(), got.items())
                expected, got = next(pair for pair in pairs if pair[0] != pair[1])
            hint = " Without the argument it is read from the log."
            raise ValueError(
                f"{where}: {key}: expected {json.dumps(expected)} as in this "
                f"study, got {json.dumps(got)}.{hint if key == 'seed' else ''}"
            )
        for number, line in others:
            where = self.where(number)
            entry = _parse(line, where)
            if "asked" in entry:  # earlier versions wrote more
                _check_keys(entry, ["asked"], ["x", "fitted"], where)
            else:
                names = ["told", "values", "cost", "error"]
                _check_keys(entry, names, ["sem", "metadata"], where)
            self.entries.append((number, entry))
        return int(header["seed"])

    def append(self, *entries: Mapping[str, Any]) -> None:
        """Put lines on the disk.

        What something else has added to the file stays there.

        Raises:
            ValueError: Another study has opened the file since, or another process; or
                the path has another file by now, or a shorter one.
            OSError: The disk is full, say; the file is then as it was.
        """
        if self._file.closed:
            raise ValueError(
                f"log: expected the study that opened {self.path} last, in the process "
                "that opened it, got an earlier one or a copy in another process."
            )
        lines = "".join(f"{json.dumps(e)}\n" for e in entries).encode()
        end = self._file.seek(0, os.SEEK_END)
        opened = os.fstat(self._file.fileno())
        is_there = self.path.exists() and os.path.samestat(opened, self.path.stat())
        if end < self._size or not is_there:
            raise ValueError(
                f"log: expected {self.path} as this study left it, got another file, a "
                "shorter one, or none. Put it back, and tell again."
            )
        if end > self._size:
            self._file.seek(end - 1)
            lines = lines if self._file.read(1) == b"\n" else b"\n" + lines
        try:
            written = 0
            while written < len(lines):
                written += self._file.write(lines[written:])
            os.fsync(self._file.fileno())
        except BaseException:  # also a signal by hand
            self._file.truncate(end)
            raise
        self._size = end + len(lines)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _close_all() -> None:
    # A process that was forked has nothing to write, and must not keep the lock when
    # its parent is gone.
    for log in list(_OPEN.values()):
        log.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _is_beginning(line: bytes, is_first: bool) -> bool:
    """Whether it is a line of a log that a kill has cut."""
    if is_first:
        return line.startswith(_HEADER)
    return any(line.startswith(o) or o.startswith(line) for o in _ENTRIES)


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:  # text that is not UTF-8, too
        entry = line.decode(errors="replace")
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected a JSON object, got {brief(entry)}.")
    return entry


def _check_keys(
    entry: dict[str, Any], required: list[str], optional: list[str], where: str
) -> None:
    if not {*required} <= entry.keys() <= {*required, *optional}:
        raise ValueError(
            f"{where}: expected {', '.join(required)}, got {brief(', '.join(entry))}."
        )
