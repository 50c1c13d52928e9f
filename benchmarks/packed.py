"""Thousands of runs in one file.

    python -m benchmarks.packed results/quadratics quadratics.jsonl.xz

The file has the lines of all runs, one run after the other. `benchmarks.summary.load`
and the scripts' ``--report`` read it in place of the folder. To continue such runs,
unpack them first (`unpack`).
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import read_records


def pack(out: str | Path, file: str | Path) -> int:
    """Write all the runs in a folder of the harness to one file.

    Args:
        out: The folder.
        file: Its name should end in ``.jsonl.xz``.

    Returns:
        How many runs.

    Raises:
        ValueError: There are none.
    """
    paths = sorted(Path(out).glob("*/*/*.jsonl"))
    if not paths:
        raise ValueError(f"out: expected a folder with runs, got {out}.")
    with lzma.open(file, "wt", encoding="utf-8") as packed:
        for path in paths:
            for record in read_records(path):
                packed.write(json.dumps(record) + "\n")
    return len(paths)


def groups(out: str | Path) -> Iterator[list[dict[str, Any]]]:
    """The records of each run in a packed file, or in a folder of the harness."""
    if not Path(out).is_file():
        yield from filter(None, map(read_records, Path(out).glob("*/*/*.jsonl")))
        return
    records: list[dict[str, Any]] = []
    with lzma.open(out, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if record["step"] == 0 and records:
                yield records
                records = []
            records.append(record)
    if records:
        yield records


def unpack(file: str | Path, out: str | Path) -> None:
    """Restore the folder of a packed file; existing runs are kept."""
    for records in groups(file):
        first = records[0]
        path = Path(out) / first["problem"] / first["method"] / f"{first['seed']}.jsonl"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(r) + "\n" for r in records))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path, help="a folder of the harness")
    parser.add_argument("file", type=Path, help="to write, .jsonl.xz")
    options = parser.parse_args(arguments)
    print(f"{pack(options.out, options.file)} runs in {options.file}")


if __name__ == "__main__":
    main()
