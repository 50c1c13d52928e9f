"""Seconds of Jenatton et al.'s three strategies against the number of paths.

    python -m benchmarks.papers.table_1 --out benchmarks/results/papers/table_1.json

Five points in each leaf. The evidence with its gradient leaf by leaf ("tree",
"independent") and of the same covariance as one dense matrix ("naive"); the search in
two steps ("tree") and over all paths ("independent"). CPU time, the median of five.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement

from benchmarks.fits import cpu_seconds, objective
from benchmarks.methods import INDEPENDENT
from benchmarks.speed.peers import TorchDense
from benchmarks.speed.tree_rows import evaluation
from botorch_structured.acquisition import PathLogExpectedImprovement
from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import optimize_acqf_paths, optimize_acqf_two_step
from botorch_structured.test_functions import JenattonTree

SIZES = (4, 8, 16, 32, 64, 128, 256, 512)
_POINTS = 5


def measure(paths: int) -> dict[str, float]:
    """Seconds with so many paths."""
    problem = JenattonTree(paths, negate=True)
    X = torch.cat([problem.starts(seed) for seed in range(_POINTS)])
    Y = problem(X).unsqueeze(-1)
    tree = TreeStructuredGP.as_published(X, Y, problem.space)
    alone = TreeStructuredGP(X, Y, problem.space, leaf_kernel="matern", **INDEPENDENT)
    dense = TorchDense(objective(tree))
    parameters = [p for p in tree.parameters() if p.requires_grad]
    found = {
        "evidence, tree": cpu_seconds(evaluation(objective(tree))),
        "evidence, independent": cpu_seconds(evaluation(objective(alone))),
        "evidence, naive": cpu_seconds(
            lambda: torch.autograd.grad(dense.loss(), parameters)
        ),
    }
    options: dict[str, Any] = {"space": problem.space, "X_avoid": X}
    best = Y.max()
    path, whole, other = (
        PathLogExpectedImprovement(tree.eval(), best),
        LogExpectedImprovement(tree, best),
        LogExpectedImprovement(alone.eval(), best),
    )
    found["search, tree"] = cpu_seconds(
        lambda: optimize_acqf_two_step(path, whole, top_k=1, fix_shared=True, **options)
    )
    found["search, independent"] = cpu_seconds(
        lambda: optimize_acqf_paths(other, **options)
    )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = {str(paths): measure(paths) for paths in options.sizes}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
