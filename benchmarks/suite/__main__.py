"""The command line: ``python -m benchmarks.suite run ...`` and ``... report ...``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import with_data
from benchmarks.harness import ProblemFactory, run
from benchmarks.suite.ranks import BUDGETS, plot_ranks, report
from benchmarks.summary import Run, load

# Where the problems of a kind are.
_KINDS = {
    "synthetic": "benchmarks.suite.synthetic",
    "jenatton": "benchmarks.suite.jenatton",
    "yahpo": "benchmarks.suite.yahpo",
    "svm": "benchmarks.suite.svm_tables",
    "learners": "benchmarks.suite.yahpo_learners",
}
# Tables of methods, by name; of two with the same name the first counts.
_METHODS = [
    ("benchmarks.suite.ours", "METHODS"),
    ("benchmarks.suite.peers", "PEERS"),
    ("benchmarks.methods", "TREES"),
]


def problems(
    half: str, kinds: Sequence[str], data: Path | None = None
) -> dict[str, ProblemFactory]:
    """The problems of one half, by name.

    A kind whose package or files are missing is left out, with a line on standard
    error: its first problem is made.

    Args:
        half: ``"develop"`` or ``"report"``.
        kinds: Some of ``synthetic``, ``jenatton``, ``yahpo``, ``svm``, ``learners``.
        data: The folder of those that read files. Default: their own.
    """
    found: dict[str, ProblemFactory] = {}
    for kind in kinds:
        try:
            module = importlib.import_module(_KINDS[kind])
            factories = getattr(module, half.upper()).items()
            named = {name: with_data(factory, data) for name, factory in factories}
            next(iter(named.values()))(0)
        except (ImportError, FileNotFoundError) as error:
            print(f"{kind}: left out ({error})", file=sys.stderr)
            continue
        found |= named
    return found


def methods() -> dict[str, Any]:
    """All methods by name, without those whose modules cannot be imported."""
    found: dict[str, Any] = {}
    for module, table in _METHODS:
        try:
            named = getattr(importlib.import_module(module), table)
        except ImportError as error:
            print(f"{module}: left out ({error})", file=sys.stderr)
            continue
        found = {**named, **found}
    return found


def _run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    known = methods()
    unknown = [name for name in options.methods if name not in known]
    if unknown:
        parser.error(f"--methods: expected some of {sorted(known)}, got {unknown}")
    chosen = problems(options.half, options.kinds, options.data)
    if options.problems:
        missing = [name for name in options.problems if name not in chosen]
        if missing:
            parser.error(f"--problems: expected some of {list(chosen)}, got {missing}")
        chosen = {name: chosen[name] for name in options.problems}
    if not chosen:
        parser.error("--kinds: expected one that can be run here, got none")
    failures = run(
        methods={name: known[name] for name in options.methods},
        problems=chosen,
        seeds=range(options.first_seed, options.first_seed + options.seeds),
        budget=options.budget,
        out=options.out,
        processes=options.processes,
    )
    if failures:
        print(f"{len(failures)} runs could not be completed", file=sys.stderr)
    return 1 if failures else 0


def _report(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    found: dict[tuple[str, str, int], Run] = {}
    for source in options.out:
        for one in load(source):  # of a run in several places the longest counts
            key = (one.problem, one.method, one.seed)
            if key not in found or len(one.values) > len(found[key].values):
                found[key] = one
    runs = list(found.values())
    if options.methods:
        runs = [one for one in runs if one.method in options.methods]
    try:
        print(report(runs, options.reference, options.at))
    except ValueError as error:
        parser.error(str(error))
    if options.plot:
        plot_ranks(runs, options.plot)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suite",
        description="A suite of conditional problems, split by problem into halves.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run methods, or continue runs")
    runs.add_argument("--half", choices=["develop", "report"], default="develop")
    runs.add_argument("--kinds", nargs="+", choices=_KINDS, default=list(_KINDS))
    runs.add_argument("--problems", nargs="+", help="only these (default: all)")
    runs.add_argument("--methods", nargs="+", required=True)
    runs.add_argument("--seeds", type=int, default=1, help="how many")
    runs.add_argument("--first-seed", type=int, default=0)
    runs.add_argument("--budget", type=int, default=60, help="starts included")
    runs.add_argument("--processes", type=int, default=2)
    runs.add_argument("--data", type=Path, help="folder of the data sets")
    runs.add_argument("--out", type=Path, default=Path("results/suite"))
    tables = commands.add_parser("report", help="ranks, regrets and tests of runs")
    tables.add_argument(
        "out", type=Path, nargs="+", help="folders of the harness, or packed files"
    )
    tables.add_argument("--reference", help="method to test against the others")
    tables.add_argument("--methods", nargs="+", help="only these (default: all)")
    tables.add_argument("--at", type=int, nargs="+", default=list(BUDGETS))
    tables.add_argument(
        "--plot", type=Path, help="write the mean ranks to this picture"
    )
    options = parser.parse_args(arguments)
    if options.command == "run":
        return _run(options, runs)
    return _report(options, tables)


if __name__ == "__main__":
    sys.exit(main())
