"""Rows of what happens once: importing the package, constructing large trees."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any, Literal

import torch

from benchmarks.speed.contest import Contest, Row, Seconds
from benchmarks.speed.problems import chain, flat_tree, make_points
from botorch_structured.models import TreeStructuredGP
from botorch_structured.spaces import ParameterTree


def construct(shape: Literal["chain", "flat"], size: int, n: int) -> Contest:
    """A tree from its dictionary, and a model of some points of it."""

    def make() -> ParameterTree:
        return chain(size) if shape == "chain" else flat_tree(size)

    tree = make()
    last = torch.arange(n) * (tree.num_paths - 1) // max(n - 1, 1)
    X = make_points(tree, last, seed=0)
    Y = X.sum(-1, keepdim=True).sin()

    def check() -> dict[str, Any]:
        expected = size + 1 if shape == "chain" else size
        if make().num_paths != expected:
            raise AssertionError(f"paths: expected {expected}, got {tree.num_paths}.")
        return {}

    return Contest({"ours": lambda _: TreeStructuredGP(X, Y, make())}, check=check)


def imports(ours: str, theirs: str) -> Contest:
    """CPU time of new processes that import a name, ``module.name``."""

    def seconds(what: str) -> Seconds:
        module, _, name = what.rpartition(".")
        code = f"from {module} import {name}"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        user, system = (
            after.ru_utime - before.ru_utime,
            after.ru_stime - before.ru_stime,
        )
        return Seconds(user + system)

    return Contest(
        {what: lambda _, what=what: seconds(what) for what in (ours, theirs)},
        [[theirs]],
    )


#: By name.
ROWS = {
    "construct": Row(
        "construct a tree and TreeStructuredGP on 50 points",
        construct,
        {
            "a chain of 1,024 decisions": {"shape": "chain", "size": 1024, "n": 50},
            "1,000 flat leaves": {"shape": "flat", "size": 1000, "n": 50},
        },
        {"shape": "chain", "size": 6, "n": 5},
    ),
    "import": Row(
        "import",
        imports,
        {
            "TreeStructuredGP": {
                "ours": "botorch_structured.models.TreeStructuredGP",
                "theirs": "botorch.models.SingleTaskGP",
            }
        },
        {"ours": "json.loads", "theirs": "re.match"},
    ),
}
