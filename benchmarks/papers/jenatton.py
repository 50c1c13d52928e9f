"""Jenatton et al. (2017): tree-structured dependencies.

    python -m benchmarks.papers.jenatton

Figure 1 is computed. Of Figure 2 the runs of the tree, of independent GPs and of random
points exist (``benchmarks/results/jenatton.jsonl.xz``, made by
``benchmarks.quality.jenatton``): their tests are printed, and are no verdict on it.
"""

from __future__ import annotations

__all__ = ["ITEMS"]

import numpy as np
import torch

from benchmarks.papers.items import RESULTS, Claim, Item, lower, main
from benchmarks.summary import gap_table, load, markdown_table
from botorch_structured.test_functions import JenattonTree


def _by_hand(leaves: int, shared: bool, x: list[float]) -> float:
    """The text of section 4.1: down the balanced tree, then the leaf's quadratic."""
    node = 1
    while node < leaves:
        node = 2 * node + int(x[node - 1])
    below = 0 if x[0] == 0 else 1  # which shared variable is on the path
    level = 0.1 * (node - leaves + 1)
    return x[node - 1] ** 2 + level + (x[2 * leaves - 1 + below] if shared else 0.0)


def figure_1() -> tuple[str, list[Claim]]:
    """The functions at the leaves, 4 and 8, with and without shared variables."""
    rows, away, inactive, optima = [], 0.0, True, True
    for leaves in (4, 8):
        for shared in (False, True):
            problem = JenattonTree(leaves, shared=shared)
            X = problem.space.sample(1000, seed=9001)
            values = problem(X)
            expected = [_by_hand(leaves, shared, x) for x in X.tolist()]
            away = max(away, (values - X.new_tensor(expected)).abs().max().item())
            other = torch.where(problem.tree.active_mask(X), X, X.flip(0))
            inactive &= torch.equal(problem(other), values)
            best = problem.optimizers
            place = problem.tree.path_index(best).item()
            value = problem(best).item()
            optima &= abs(value - 0.1) < 1e-12 and place == 0
            optima &= bool((values >= value).all())
            name = f"{leaves} leaves" + (", shared" if shared else "")
            rows.append([name, f"{value:.2f}", str(place + 1)])
    return markdown_table(["function", "optimum", "in leaf"], rows), [
        Claim("as in section 4.1", f"differs by at most {away:.1g}", away < 1e-12),
        Claim("inactive parameters do not matter", "1,000 points each", inactive),
        Claim("the optimum is 0.1, in leaf 1", "all four", optima),
    ]


def figure_2() -> tuple[str, list[Claim]]:
    """log10 distances of the methods that were run, ten seeds of four functions."""
    runs = [r for r in load(RESULTS / "jenatton.jsonl.xz") if r.method != "default"]

    def gaps(method: str, at: int) -> np.ndarray:
        return np.array([r.log_gap(at) for r in runs if r.method == method])

    pairs = {
        f"tree better than {other}, {at} evaluations": (
            gaps("paper", at),
            gaps(method, at),
        )
        for other, method, at in (
            ("random", "random", 40),
            ("independent", "independent", 20),
            ("independent", "independent", 30),
        )
    }
    return markdown_table(*gap_table(runs, 40)), lower(pairs)


ITEMS = [
    Item("Figure 1", "reproduces", figure_1),
    Item(
        "Figure 2",
        "not run",
        figure_2,
        "without marginal, gp-baseline, arc and SMAC; ten seeds of 25",
    ),
    Item("Table 1", "not run", missing="curves against the number of paths"),
    Item("Figures 3 and 4", "not run", missing="the networks on 45 data sets"),
    Item("Unbalanced trees", "not run", missing="25 seeds of four functions"),
    Item("Section 4.3", "not run", missing="25 seeds of four functions"),
]

if __name__ == "__main__":
    main(__doc__, ITEMS)
