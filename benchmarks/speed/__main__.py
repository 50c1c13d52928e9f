"""One command for every figure of speed: each a ratio to a peer in the same run.

    python -m benchmarks.speed [--rows NAME ...] [--repeats K] [--out FILE]
    python -m benchmarks.speed --quick [--rows NAME ...]
    python -m benchmarks.speed --report FILE

Models have their defaults. Times are CPU times of one thread in float64; calls that do
the same work alternate after one that does not count, and ratios are medians of the
ratios of the repetitions. Each case runs in a process of its own and is one line of
``--out``: every sample, medians, quartiles, ranges, what else was found, the processor
and the versions. The same command again does only the cases that the file has not.

``--quick`` checks on small data that the sides of each row agree, and measures nothing.
``--report`` prints the table of a file's results: a line for each case and peer, with
medians, and the quartiles between which the middle half of the ratios is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.speed import machine
from benchmarks.speed.contest import Case, measure
from benchmarks.speed.family_rows import ROWS as FAMILY_ROWS
from benchmarks.speed.prediction_rows import ROWS as PREDICTION_ROWS
from benchmarks.speed.space_rows import ROWS as SPACE_ROWS
from benchmarks.speed.start_rows import ROWS as START_ROWS
from benchmarks.speed.tree_rows import ROWS as TREE_ROWS
from benchmarks.summary import markdown_table

ROWS = TREE_ROWS | SPACE_ROWS | PREDICTION_ROWS | FAMILY_ROWS | START_ROWS

_ONE_THREAD = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
}
_LIMIT_SECONDS = 3600.0  # for a case


def run_here(case: Case, repeats: int) -> dict[str, Any]:
    """Measure a case in this process.

    Args:
        case: The row's name and the case's.
        repeats: Samples of each call.
    """
    row = ROWS[case[0]]
    result = measure(row.make(**row.cases[case[1]]), repeats)
    return {"row": case[0], "case": case[1], **result, "machine": machine()}


def _run_apart(case: Case, repeats: int) -> dict[str, Any]:
    """Measure a case in a process of its own, whose libraries have one thread."""
    command = [sys.executable, "-m", "benchmarks.speed", "--here", *case]
    done = subprocess.run(
        [*command, "--repeats", str(repeats)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_LIMIT_SECONDS,
        env={**os.environ, **_ONE_THREAD},
    )
    return json.loads(done.stdout.splitlines()[-1])


def quick(names: Iterable[str]) -> None:
    """Check the small case of each row, and make each of its calls once.

    Args:
        names: Names of rows.
    """
    for name in names:
        contest = ROWS[name].make(**ROWS[name].quick)
        facts = contest.check()
        contest.prepare(0)
        for call in contest.calls.values():
            call(0)
        print(f"{name}: {', '.join(contest.calls)} agree. {facts}", flush=True)


def read_results(path: Path) -> list[dict[str, Any]]:
    """The results of a file; a last line that was cut off is removed from it.

    Args:
        path: The file; it need not exist.

    Raises:
        ValueError: If the file holds something else.
    """
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    results = [json.loads(line) for line in whole.splitlines()]
    odd = [r for r in results if r.get("row") not in ROWS]
    if odd:
        raise ValueError(f"{path}: expected results of {sorted(ROWS)}, got {odd[0]}.")
    return results


def run_all(names: Sequence[str], repeats: int, out: Path | None) -> list[Case]:
    """Run what a file has not, and print each result.

    Args:
        names: Names of rows.
        repeats: Samples of each call.
        out: The file, or None to keep nothing.

    Returns:
        The cases that failed.
    """
    results = read_results(out) if out else []
    done = {(r["row"], r["case"]) for r in results}
    cases = [(n, c) for n in names for c in ROWS[n].cases if (n, c) not in done]
    failed: list[Case] = []
    bar = tqdm(cases, unit="case", file=sys.stderr)
    for case in bar:
        bar.set_postfix_str(", ".join(case))
        try:
            result = _run_apart(case, repeats)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            bar.write(f"{', '.join(case)}: {error}", file=sys.stderr)
            failed.append(case)
            continue
        if out:
            with open(out, "a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
        bar.write("\n".join(" | ".join(line) for line in table_rows([result])))
        sys.stdout.flush()
    return failed


def _number(value: float) -> str:
    """Two digits, all of those before the point."""
    if value >= 10.0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1.0 else f"{value:.2g}"


def _times(ratio: float) -> str:
    return _number(ratio) if ratio >= 1.0 else f"1/{_number(1.0 / ratio)}"


def duration(seconds: float) -> str:
    """In seconds or milliseconds."""
    return f"{_number(seconds)} s" if seconds >= 1.0 else f"{_number(1e3 * seconds)} ms"


def table_rows(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Lines of the table, one for each case and each of its peers.

    Args:
        results: Of ``run_here``.
    """
    lines = []
    for found in results:
        what = f"{ROWS[found['row']].what}: {found['case']}"
        ours = duration(found["ours"])
        for peer in found["peers"]:
            low, high = map(_times, peer["quartiles"])
            ratio = f"{_times(peer['ratio'])} ({low} to {high})"
            lines.append([what, ours, peer["name"], ratio])
            what = ours = ""  # once for all peers
        if what:
            lines.append([what, ours, "", ""])
    return lines


def report(path: Path) -> str:
    """The Markdown table of a file, in the order of the rows.

    Args:
        path: A file that ``--out`` wrote.
    """
    results = read_results(path)
    order = [(n, c) for n in ROWS for c in ROWS[n].cases]
    results.sort(key=lambda r: order.index((r["row"], r["case"])))
    header = ["what", "time", "against", "times as fast (middle half)"]
    return markdown_table(header, table_rows(results))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, metavar="NAME")
    parser.add_argument("--repeats", type=int, default=7)

    what = parser.add_mutually_exclusive_group()
    what.add_argument("--out", type=Path, help="results are added to this JSONL file")
    what.add_argument("--quick", action="store_true", help="check, and do not measure")
    what.add_argument("--report", type=Path, help="print the table of this file")
    what.add_argument("--here", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    names = options.rows or list(ROWS)
    if options.repeats < 1:
        parser.error(f"--repeats: expected at least 1, got {options.repeats}.")
    torch.set_num_threads(1)
    if options.report:
        print(report(options.report))
    elif options.quick:
        quick(names)
    elif options.here:
        warnings.simplefilter("ignore")  # a peer's do not belong to a result
        print(json.dumps(run_here(tuple(options.here), options.repeats)))
    elif failed := run_all(names, options.repeats, options.out):
        sys.exit(f"Failed: {failed}")


if __name__ == "__main__":
    main()
