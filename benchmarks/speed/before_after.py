"""Our calls of each row in two states of the repository, alternating.

    python -m benchmarks.speed.before_after OTHER [--rows NAME ...] [--repeats K]

``OTHER`` is a checkout of another state. Each case runs in two processes at the same
time, one for each state, of which one waits while the other one measures: CPU time of
one thread, the same repetition after the other. The ratio is that of this state to the
other one: more than 1 is slower now.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def work(row: str, case: str) -> None:
    """Time our call of a case for each number that comes in; one that does not count.

    Args:
        row: The name of a row of ``benchmarks.speed``.
        case: One of its cases.
    """
    import torch

    from benchmarks.speed.__main__ import ROWS

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    contest = ROWS[row].make(**ROWS[row].cases[case])
    call = next(iter(contest.calls.values()))
    contest.prepare(0)
    call(0)
    print("ready", flush=True)
    for line in sys.stdin:
        number = int(line)
        contest.prepare(number)
        start = time.process_time()
        result = call(number)
        spent = time.process_time() - start
        # a call may have measured itself, in a process of its own
        print(result if type(result).__name__ == "Seconds" else spent, flush=True)


class Worker:
    """A process that times one case in one state of the repository."""

    def __init__(self, checkout: Path, row: str, case: str) -> None:
        one_thread = dict.fromkeys(THREADS, "1")
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(checkout), "--work", row, case],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
            env={**os.environ, **one_thread, "PYTHONPATH": str(checkout)},
        )
        self._read()

    def _read(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError(f"{self._process.args} has ended.")
        return line.strip()

    def seconds(self, number: int) -> float:
        """CPU seconds of a repetition."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        return float(self._read())

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def compare(other: Path, row: str, case: str, repeats: int) -> dict[str, Any]:
    """Times of a case in both states, and the quartiles of their ratio.

    Args:
        other: A checkout of another state.
        row: The name of a row.
        case: One of its cases.
        repeats: Repetitions, at least two.
    """
    workers = [Worker(HERE, row, case), Worker(other, row, case)]
    try:
        pairs = []
        for number in range(repeats):
            order = workers if number % 2 == 0 else workers[::-1]
            spent = {id(worker): worker.seconds(number) for worker in order}
            pairs.append([spent[id(worker)] for worker in workers])
    finally:
        for worker in workers:
            worker.stop()
    ratios = [now / before for now, before in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    now, before = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
    return {"now": now, "before": before, "ratio": middle, "low": low, "high": high}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.before_after")
    parser.add_argument("other", type=Path, help="a checkout of another state")
    parser.add_argument("--rows", nargs="+", help="default: all")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(*options.work)
        return
    from benchmarks.speed.__main__ import ROWS

    for row in options.rows or ROWS:
        for case in ROWS[row].cases:
            try:
                found = compare(options.other, row, case, options.repeats)
            except RuntimeError as error:
                print(f"{row}, {case}: {error}", flush=True)
                continue
            print(
                f"{found['ratio']:.2f} ({found['low']:.2f} to {found['high']:.2f})  "
                f"{found['now']:.1f} for {found['before']:.1f} ms  {row}, {case}",
                flush=True,
            )


if __name__ == "__main__":
    main()
