"""The runs behind the papers' figures: made, and continued.

    python -m benchmarks.papers.runs figure-2 unbalanced section-4.3
    python -m benchmarks.problems.public_tables --data DIR --out tables.npz
    python -m benchmarks.papers.runs levesque networks --tables tables.npz

All methods on a problem have the same starts, one random point for each path, but SMAC,
which has its own. Each run has a file (`benchmarks.harness`), and
``python -m benchmarks.packed`` makes ``benchmarks/results/papers/*.jsonl.xz`` of them.
"""

from __future__ import annotations

__all__ = ["BUDGETS", "PLANS", "Plan", "main"]

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import jenatton_methods, levesque_methods
from benchmarks.harness import ProblemFactory, run
from benchmarks.problems.held_out import NetworkLayers, TestedCASH
from benchmarks.problems.public_tables import LEVESQUE, LIBSVM
from benchmarks.suite.peers.smac import LiveSMAC

BUDGETS = {"figure-2": 40, "networks": 85, "levesque": 40}


class Plan(NamedTuple):
    """Methods on problems; the factories of these may take the tables' ``file``."""

    methods: Mapping[str, Any]
    problems: Mapping[str, Callable[..., Any]]
    seeds: int
    budget: int
    tables: bool = False


def _synthetic(names: str, problems: Mapping[str, ProblemFactory]) -> Plan:
    methods = {name: jenatton_methods.METHODS[name] for name in names.split()}
    return Plan(methods, problems, 25, BUDGETS["figure-2"])


def _networks(names: str, shared: bool) -> Plan:
    methods = {**jenatton_methods.METHODS, "smac": LiveSMAC(BUDGETS["networks"])}
    problems = {
        f"{d}-{'shared' if shared else 'duplicated'}": partial(
            NetworkLayers, dataset=d, shared=shared
        )
        for d in LIBSVM
    }
    chosen = {name: methods[name] for name in names.split()}
    return Plan(chosen, problems, 1, BUDGETS["networks"], tables=True)


_SIMPLE = "tree independent gp-baseline random"
_OF_2 = jenatton_methods.FIGURE_2
PLANS: dict[str, list[Plan]] = {
    "figure-2": [
        _synthetic(f"{_SIMPLE} arc smac", _OF_2),
        # does not apply to shared variables, the paper says
        _synthetic("marginal", {k: v for k, v in _OF_2.items() if "shared" not in k}),
    ],
    "unbalanced": [_synthetic(f"{_SIMPLE} marginal", jenatton_methods.UNBALANCED)],
    "section-4.3": [
        _synthetic("tree-nonlinear", jenatton_methods.LINEAR),
        _synthetic("tree tree-nonlinear", jenatton_methods.QUADRATIC),
    ],
    "networks": [
        _networks(f"{_SIMPLE} tree-nonlinear marginal arc smac", shared=True),
        _networks("tree independent", shared=False),
    ],
    "levesque": [
        Plan(
            levesque_methods.METHODS,
            {d: partial(TestedCASH, dataset=d) for d in LEVESQUE},
            5,
            BUDGETS["levesque"],
            tables=True,
        )
    ],
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("plans", nargs="+", choices=PLANS)
    parser.add_argument("--tables", type=Path, default=Path("tables.npz"))
    parser.add_argument("--methods", nargs="+", help="default: all of them")
    parser.add_argument("--problems", nargs="+", help="default: all of them")
    parser.add_argument("--seeds", type=int, help="how many")
    parser.add_argument("--budget", type=int, help="starts included")
    parser.add_argument("--out", type=Path, default=Path("results/papers"))
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    given = {"file": options.tables}
    for plan in (plan for name in options.plans for plan in PLANS[name]):
        problems = {
            name: partial(problem, **(given if plan.tables else {}))
            for name, problem in plan.problems.items()
            if name in (options.problems or plan.problems)
        }
        chosen = options.methods or plan.methods
        run(
            methods={k: v for k, v in plan.methods.items() if k in chosen},
            problems=problems,
            seeds=range(options.seeds or plan.seeds),
            budget=options.budget or plan.budget,
            out=options.out,
            processes=options.processes,
        )


if __name__ == "__main__":
    main()
