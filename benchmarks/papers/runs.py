"""The runs behind figures and tables: made, and continued.

    python -m benchmarks.papers.runs figure-2 unbalanced section-4.3
    python -m benchmarks.problems.public_tables --data DIR --out tables.npz
    python -m benchmarks.papers.runs levesque networks --tables tables.npz
    python -m benchmarks.papers.runs classifiers

``classifiers`` are nine learners on the breast-cancer data, the README's picture. Seeds
below 200 were used while the default was chosen, 200 to 219 and 300 to 319 were shown
with earlier ones.

All methods on a problem have the same starts, one random point for each path, but SMAC,
which has its own. Each run has a file (`benchmarks.harness`), and
``python -m benchmarks.packed`` makes ``benchmarks/results/papers/*.jsonl.xz`` of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import methods
from benchmarks.harness import run
from benchmarks.problems import public_tables
from benchmarks.problems.held_out import NetworkLayers, TestedCASH
from benchmarks.suite import jenatton, ours
from benchmarks.suite.peers.smac import SMAC
from botorch_structured.test_functions import ScikitLearnCASH

BUDGETS = {"figure-2": 40, "networks": 85, "levesque": 40}
FIGURE_2 = ["4", "4-shared", "8", "8-shared"]
UNBALANCED = [f"{n}-chain{end}" for n in (4, 8, 16) for end in ("", "-shared")]
LINEAR = ["4-shared", "8-shared"]
QUADRATIC = ["4-quadratic", "8-quadratic"]

TREES: dict[str, Any] = {
    **methods.TREES,
    "smac": SMAC(BUDGETS["figure-2"]),
}
LEVESQUE: dict[str, Any] = {
    "RS": methods.LEVESQUE["RS"],
    "Spearmint": methods.LEVESQUE["Spearmint"],
    "SMAC": SMAC(BUDGETS["levesque"]),
    **methods.LEVESQUE,
}


def make_learners(seed: int) -> ScikitLearnCASH:
    """Nine learners; the seed determines the folds."""
    return ScikitLearnCASH("breast_cancer", seed=seed)


class Plan(NamedTuple):
    """Methods on problems, whose factories may take the ``file`` of tables."""

    methods: Mapping[str, Any]
    problems: Mapping[str, Callable[..., Any]]
    seeds: range
    budget: int
    reads: bool = False


def _synthetic(names: str, problems: Sequence[str]) -> Plan:
    chosen = {name: TREES[name] for name in names.split()}
    return Plan(chosen, jenatton.factories(problems), range(25), BUDGETS["figure-2"])


def _networks(names: str, shared: bool) -> Plan:
    able = {**TREES, "smac": SMAC(BUDGETS["networks"])}
    end = "shared" if shared else "duplicated"
    problems = {
        f"{name}-{end}": partial(NetworkLayers, dataset=name, shared=shared)
        for name in public_tables.LIBSVM
    }
    chosen = {name: able[name] for name in names.split()}
    return Plan(chosen, problems, range(1), BUDGETS["networks"], reads=True)


_SIMPLE = "tree independent gp-baseline random"
PLANS: dict[str, list[Plan]] = {
    "figure-2": [
        _synthetic(f"{_SIMPLE} smac", FIGURE_2),
        # does not apply to shared variables, the paper says
        _synthetic("marginal", ["4", "8"]),
    ],
    "unbalanced": [_synthetic(f"{_SIMPLE} marginal", UNBALANCED)],
    "section-4.3": [
        _synthetic("tree-nonlinear", LINEAR),
        _synthetic("tree tree-nonlinear", QUADRATIC),
    ],
    "networks": [
        _networks(f"{_SIMPLE} tree-nonlinear marginal smac", shared=True),
        _networks("tree independent", shared=False),
    ],
    "levesque": [
        Plan(
            LEVESQUE,
            {d: partial(TestedCASH, dataset=d) for d in public_tables.LEVESQUE},
            range(5),
            BUDGETS["levesque"],
            reads=True,
        )
    ],
    "classifiers": [
        Plan(
            {"default": ours.default, "random": methods.random},
            {"breast_cancer": make_learners},
            range(320, 340),
            59,
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
    for plan in (plan for name in options.plans for plan in PLANS[name]):
        reads = {"file": options.tables} if plan.reads else {}
        problems = {
            name: partial(problem, **reads)
            for name, problem in plan.problems.items()
            if name in (options.problems or plan.problems)
        }
        chosen = options.methods or plan.methods
        first = plan.seeds.start
        run(
            methods={k: v for k, v in plan.methods.items() if k in chosen},
            problems=problems,
            seeds=range(first, first + (options.seeds or len(plan.seeds))),
            budget=options.budget or plan.budget,
            out=options.out,
            processes=options.processes,
        )


if __name__ == "__main__":
    main()
