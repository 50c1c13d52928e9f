"""The command line that comparisons share: runs are made, continued and read."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import ProblemFactory, run
from benchmarks.summary import Run, load


def parser_of(
    title: str | None,
    methods: Mapping[str, Any],
    out: str,
    *,
    seeds: int,
    first_seed: int,
    budget: int,
) -> argparse.ArgumentParser:
    """A parser of what to run.

    Args:
        title: The docstring of the script, whose first line describes it.
        methods: By name.
        out: Default of the folder of runs.
        seeds: How many.
        first_seed: The first one.
        budget: Evaluations of each run, starts included.
    """
    parser = argparse.ArgumentParser(description=(title or "").split("\n")[0])
    names = list(methods)
    parser.add_argument("--methods", nargs="+", default=names, choices=names)
    parser.add_argument("--seeds", type=int, default=seeds, help="how many")
    parser.add_argument("--first-seed", type=int, default=first_seed)
    parser.add_argument("--budget", type=int, default=budget, help="starts included")
    parser.add_argument("--out", type=Path, default=Path(out), help="folder of runs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--report", action="store_true", help="run nothing; --out may be a packed file"
    )
    return parser


def with_data(factory: Any, data: Path | None) -> ProblemFactory:
    """A factory that reads files, of another folder unless that is None."""
    reads = isinstance(factory, partial) and "data" in factory.keywords
    return partial(factory, data=data) if reads and data is not None else factory


def runs_of(
    options: argparse.Namespace,
    methods: Mapping[str, Any],
    problems: Mapping[str, ProblemFactory],
) -> list[Run]:
    """Complete the runs unless they are only reported, and read them.

    Problems whose files are missing are left out, with a line on standard error.

    Args:
        options: What the parser of `parser_of` parsed.
        methods: By name.
        problems: Factories by name.
    """
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if not options.report:
        able = {}
        for name, factory in problems.items():
            try:
                factory(seeds[0])
            except FileNotFoundError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
            else:
                able[name] = factory
        chosen = {name: methods[name] for name in options.methods}
        run(chosen, able, seeds, options.budget, options.out, options.processes)
    return [
        one
        for one in load(options.out)
        if one.problem in problems
        and one.method in options.methods
        and one.seed in seeds
    ]
