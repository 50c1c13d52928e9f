"""Assael et al. (2014): treed Gaussian processes.

    python -m benchmarks.papers.assael

Figures 3 and 4: ``benchmarks/results/treed.jsonl.xz``, made by
``benchmarks.quality.treed``; ``TreedGP.as_published`` with its most probable
hyperparameters and LogEI, where the paper has MCMC and EI. One pair a seed. Figures 1
and 2 are computed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from benchmarks.papers.items import RESULTS, Claim, Item, lower, main
from benchmarks.papers.pictures import curves, finished, lines, panels
from benchmarks.quality import treed
from benchmarks.summary import evaluations_to, load, markdown_table
from botorch_structured.models.treed.cart import Split, TreeNode, split_by_variance
from botorch_structured.models.treed.objective import path_weight

_METHODS = ("htbo", "htbo_warp", "bo", "bo_warp")
_AREA = 40  # evaluations
_NOISE = 1e-4


@cache
def _regrets() -> treed.Regrets:
    return treed.regrets(load(RESULTS / "treed.jsonl.xz"), _AREA)


def _stacked(problem: str, method: str, length: int) -> np.ndarray:
    """Regrets, ``seeds x length``."""
    return np.stack(
        [r[:length] for _, r in sorted(_regrets()[problem, method].items())]
    )


def _kernel(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * ((X - Z.T) / 0.2) ** 2)


def _step_data(seed: int, n: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Points ``n x 1`` of a function with a jump, and its values."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.random((n, 1)), axis=0)
    return X, (X[:, 0] > 0.5) + 0.05 * rng.standard_normal(n)


def _variance(X: np.ndarray, split: Split, at: np.ndarray) -> float:
    """Mean posterior variance ``at`` some points, each in its own child."""
    left = split.left(at)
    found = np.empty(len(at))
    children = TreeNode.root(X).divided(X, split)
    for child, here in zip(children, (left, ~left), strict=True):
        Z = X[child.rows]
        k = _kernel(at[here], Z)
        K = _kernel(Z, Z) + _NOISE * np.eye(len(Z))
        found[here] = 1.0 - np.einsum("ij,ji->i", k, np.linalg.solve(K, k.T))
    return float(found.mean())


def _splits(seed: int) -> tuple[np.ndarray, np.ndarray, Split, Split]:
    """Data with a jump; the best split at a point, and the one halfway to the next."""
    X, y = _step_data(seed)
    best = split_by_variance(X, y, 5)
    assert best is not None
    low = best[1].threshold
    middle = 0.5 * (low + X[X[:, 0] > low, 0].min())
    return X, y, best[1], Split(0, middle)


def _draw_gap() -> Any:
    X, y, at_point, midpoint = _splits(0)
    x = np.linspace(0.0, 1.0, 401)[:, None]
    figure = panels([""], "x", "posterior variance", 6.0)
    of = {
        f"threshold at {name}": (x, [_variance(X, split, z[None]) for z in x])
        for name, split in (("a point", at_point), ("the midpoint", midpoint))
    }
    lines(figure, 0, of)
    figure.axes[0].plot(X[:, 0], 0.0 * y, "|", color="black", label="data")
    return finished(figure)


def _draw_regrets() -> Any:
    problems = [p for p in treed.PROBLEMS if (p, "htbo") in _regrets()]
    figure = panels(problems, "evaluations", "regret")
    for k, p in enumerate(problems):
        curves(figure, k, {m: _stacked(p, m, _AREA) for m in _METHODS})
    return finished(figure)


def figure_1() -> tuple[str, list[Claim]]:
    """A threshold at the midpoint leaves variance in the gap, one at a point less."""
    variances = []
    for seed in range(100):
        X, _, at_point, midpoint = _splits(seed)
        low = at_point.threshold
        gap = np.linspace(low, 2.0 * midpoint.threshold - low, 102)[1:-1, None]
        variances.append([_variance(X, split, gap) for split in (at_point, midpoint)])
    point, middle = np.array(variances).T
    less = point < middle
    found = f"on {less.sum()} of {len(less)} data sets"
    return "mean posterior variance in the gap, squared exponential of width 0.2", [
        *lower({"less variance with the threshold at a point": (point, middle)}),
        Claim("so on at least 95 %", found, bool(less.mean() >= 0.95)),
    ]


def figure_2() -> tuple[str, list[Claim]]:
    """Weights along the paths of a tree with three leaves."""
    X, _ = _step_data(0, 20)
    root = TreeNode.root(X)
    node = root
    for row in (9, 14):
        node.split = Split(0, float(X[row, 0]))
        node.children = node.divided(X, node.split)
        node = node.children[1]
    rows, same, order = [], True, True
    for leaf in root.leaves():
        path = leaf.path()
        weights = [path_weight(leaf, node, lambda n: n.rows) for node in path]
        for node, weight in zip(path, weights, strict=True):
            above = leaf.depth - node.depth
            same &= weight == len(leaf.rows) / len(node.rows) / (1 + above)
            sizes = (len(leaf.rows), len(node.rows), above)
            rows.append([*map(str, sizes), f"{weight:.4f}"])
        # the first of a path is the leaf, the last the root
        order &= weights[0] == 1.0 and bool((np.diff(weights) < 0).all())
    header = ["rows of the leaf", "of the node", "levels above", "weight"]
    return markdown_table(header, rows), [
        Claim("weights are those of equation (2)", "all", same),
        Claim("that of the leaf is 1, others fall towards the root", "all", order),
    ]


def figure_3() -> tuple[str, list[Claim]]:
    """RKHS-1D: evaluations until a regret of 0.01; a run without counts as 51."""
    needed = {m: evaluations_to(_stacked("rkhs", m, 50), 1e-2) for m in _METHODS}
    rows = [
        [
            m,
            str(len(n)),
            f"{np.median(n):g}",
            *(str((n <= k).sum()) for k in (16, 30, 50)),
        ]
        for m, n in needed.items()
    ]
    header = ["method", "runs", "median", "within 16", "within 30", "within 50"]
    share = treed.share_test(_regrets()["rkhs", "htbo"], _regrets()["rkhs", "bo"], 30)
    return markdown_table(header, rows), [
        *lower({"HTBO needs fewer evaluations": (needed["htbo"], needed["bo"])}),
        Claim(
            "HTBO finds the maximum where BO does not, after 30",
            f"share {share[0]:+.0%}, McNemar's p = {share[1]:.2g}",
            share[0] > 0 and share[1] < 0.05,
        ),
    ]


def figure_4() -> tuple[str, list[Claim]]:
    """Area under the regret over 40 evaluations, six problems."""
    problems = [p for p in treed.PROBLEMS if (p, "htbo") in _regrets()]
    areas = {(p, m): _stacked(p, m, _AREA).mean(1) for p in problems for m in _METHODS}
    early = {(p, m): _stacked(p, m, 20)[:, -1] for p in problems for m in _METHODS}
    first = {p: 0.01 * _stacked(p, "bo", 1).mean() for p in problems}
    rows = [
        [p, *(f"{areas[p, m].mean():.4g}" for m in _METHODS)]
        + [f"{(early[p, m] <= first[p]).mean():.2f}" for m in ("htbo", "bo")]
        for p in problems
    ]
    claims = lower(
        {
            f"HTBO{word} better than BO{word}, {p}": (
                areas[p, f"htbo{end}"],
                areas[p, f"bo{end}"],
            )
            for word, end in (("", ""), (" Warp", "_warp"))
            for p in problems
        }
    )
    helped = [p for p in problems if areas[p, "bo_warp"].mean() < areas[p, "bo"].mean()]
    text = "warping improves BO's mean area on at least half of the problems"
    claims.append(Claim(text, ", ".join(helped), 2 * len(helped) >= len(problems)))
    header = ["mean area", *_METHODS, "share within 1 % after 20, htbo", "bo"]
    return markdown_table(header, rows), claims


ITEMS = [
    Item("Figure 1", "reproduces", figure_1, picture=("assael_1.png", _draw_gap)),
    Item("Figure 2", "reproduces", figure_2),
    Item("Figure 3", "reproduces", figure_3),
    Item("Figure 4", "does not", figure_4, picture=("assael_4.png", _draw_regrets)),
]

if __name__ == "__main__":
    main(__doc__, ITEMS)
