"""Levesque et al. (2017): conditional kernels.

    python -m benchmarks.papers.levesque

Figures 1 to 4 are computed. Tables I and II and Figures 5 to 7 are from runs in
``benchmarks/results/papers/levesque.jsonl.xz``, by ``benchmarks.papers.runs``: the
test error of what had the least cross-validation error, means over splits, one pair a
data set.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import RBFKernel
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from benchmarks.papers.items import RESULTS, Claim, Item, lower, main
from benchmarks.papers.pictures import panels
from benchmarks.papers.runs import BUDGETS, LEVESQUE
from benchmarks.summary import load, markdown_table, one_sided
from botorch_structured._learners import LEARNERS
from botorch_structured.kernels import ConditionalKernel, LaplaceKernel, MondrianKernel
from botorch_structured.spaces import ParameterTree

METHODS = [*LEVESQUE, "CMA"]  # its runs are kept, its code is not
_LENGTH = 0.75
_TREES = 30
_SEEDS = range(9001, 9021)


def figure_1() -> tuple[str, list[Claim]]:
    """gamma_2 exists where gamma_1 = a, and gamma_5 where gamma_2 = c as well."""
    # values: gamma_1 is a (0) or b (1), gamma_2 is c (0) or d (1)
    tree = ParameterTree(5, {0: {0.0: [1], 1.0: [2]}, 1: {0.0: [4], 1.0: [3]}})
    rows, right = [], True
    for one, two in itertools.product((0.0, 1.0), repeat=2):
        x = torch.tensor([[one, two, 0.5, 0.5, 0.5]], dtype=torch.double)
        active = tree.active_mask(x)[0].tolist()
        right &= active[1] == (one == 0.0) and active[4] == (one == two == 0.0)
        names = [f"gamma_{k + 1}" for k, on in enumerate(active) if on]
        rows.append(["ab"[int(one)], "cd"[int(two)], ", ".join(names)])
    table = markdown_table(["gamma_1", "gamma_2", "active"], rows)
    text = "gamma_2 is active iff gamma_1 = a, gamma_5 iff gamma_2 = c too"
    return table, [Claim(text, "all combinations", right)]


def _sample(seed: int, n: int = 60) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 4, generator=generator, dtype=torch.double)
    X[:, 0] = torch.randint(3, (n,), generator=generator).double() / 2
    return X


_TREE = ParameterTree(4, {0: {0.0: [1], 0.5: [2], 1.0: [3]}})


@torch.no_grad()
def _matrices(seed: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Points ``n x 4``, and covariances of them by the name of the kernel."""
    X = _sample(seed)
    Z = _TREE.impute(X)
    se, laplace = RBFKernel().double(), LaplaceKernel().double()
    se.lengthscale = (_LENGTH / 2) ** 0.5  # exp(-|x - x'|^2 / 0.75)
    laplace.lengthscale = _LENGTH
    mondrian = MondrianKernel(lifetime=1 / _LENGTH, num_trees=_TREES, seed=seed)
    return X, {
        "dense": se(X).to_dense(),
        "imputed": se(Z).to_dense(),
        "conditional": ConditionalKernel(se, _TREE)(X).to_dense(),
        "Mondrian, 30 trees": mondrian.double()(Z).to_dense(),
        "Laplace": laplace(Z).to_dense(),
    }


def _draw_matrices() -> Any:
    X, of = _matrices(_SEEDS[0])
    order = X[:, 0].argsort(stable=True)
    figure = panels(list(of), "", "", 1.6, columns=5)
    for ax, K in zip(figure.axes, of.values(), strict=True):
        ax.imshow(K[order][:, order], vmin=0.0, vmax=1.0, cmap="Blues")
        ax.set_axis_off()
    return figure


def figures_2_to_4() -> tuple[str, list[Claim]]:
    """Covariances of 60 points of a choice of three, with one parameter each."""
    rows, zero = [], True
    for seed in _SEEDS:
        X, of = _matrices(seed)
        same = X[:, :1] == X[:, 0]
        contrast = [
            (K[same].mean() - K[~same].mean()).item()
            for K in (of["dense"], of["imputed"])
        ]
        C = of["conditional"]
        zero &= bool((C[~same] == 0).all() and (C[same] > 0).all())
        error = of["Mondrian, 30 trees"] - of["Laplace"]
        rows.append([*contrast, error.square().mean().sqrt().item()])
    dense, imputed, rms = torch.tensor(rows).T
    # what a mean of so many independent indicators can have at most
    limit = 0.5 / _TREES**0.5
    overall = rms.square().mean().sqrt().item()
    table = markdown_table(
        ["mean over samples", ""],
        [
            ["within less between blocks, dense", f"{dense.mean():.3f}"],
            ["the same, imputed", f"{imputed.mean():.3f}"],
            ["Mondrian less Laplace, root mean square", f"{overall:.3f}"],
        ],
    )
    wins = int((imputed > dense).sum())
    text = f"Figure 4: Mondrian is close to Laplace (root mean square < {limit:.3f})"
    found = f"{overall:.3f} over {len(rms)} samples, {rms.max():.3f} in one"
    return table, [
        Claim(
            "Figure 2: imputation separates the choices",
            f"in {wins} of {len(rows)} samples",
            wins == len(rows),
        ),
        Claim("Figure 3: exactly zero between blocks", "all", zero),
        Claim(text, found, overall < limit),
    ]


@cache
def _found() -> tuple[list[str], np.ndarray, np.ndarray]:
    """Data sets; errors in test and cross-validation, ``2 x data sets x methods x
    splits``; and learners, without the 2.
    """
    runs = load(RESULTS / "papers" / "levesque.jsonl.xz")
    done = {(r.problem, r.method, r.seed): r for r in runs if len(r.values) == _BUDGET}
    names = sorted({r.problem for r in runs})
    seeds = [
        k
        for k in sorted({r.seed for r in runs})
        if all((d, m, k) in done for d in names for m in METHODS)
    ]
    errors = np.empty((2, len(names), len(METHODS), len(seeds)))
    learners = np.empty(errors.shape[1:], dtype=int)
    for at in np.ndindex(*learners.shape):
        run = done[names[at[0]], METHODS[at[1]], seeds[at[2]]]
        assert run.truths is not None and run.branches is not None
        best = run.values.argmin()
        errors[:, *at] = run.truths[best], run.values[best]
        learners[at] = run.branches[best]
    return names, errors, learners


def _means(kind: int = 0) -> dict[str, np.ndarray]:
    """Mean errors on the data sets, in the test (0) or in cross-validation."""
    return dict(zip(METHODS, _found()[1][kind].mean(-1).T, strict=True))


def _ranks(kind: int = 0) -> dict[str, float]:
    """Mean ranks over data sets."""
    ranks = rankdata(np.stack(list(_means(kind).values())).round(12), axis=0)
    return dict(zip(METHODS, ranks.mean(1), strict=True))


def _better(means: dict[str, np.ndarray]) -> list[Claim]:
    """GP-cond-ls against all others, of which three are the paper's claims."""
    others = {f"{_OURS} better than {m}": (means[_OURS], means[m]) for m in METHODS}
    del others[f"{_OURS} better than {_OURS}"]
    return [c for c in lower(others) if c.text.split()[-1] in _WORSE]


def table_1_and_figure_5() -> tuple[str, list[Claim]]:
    """Test errors in per cent, mean ranks, Friedman's and Nemenyi's tests."""
    names, errors, _ = _found()
    means, ranks, others = _means(), _ranks(), _ranks(1)
    k, n = len(METHODS), len(names)
    q = studentized_range.ppf(0.95, k, np.inf) / 2**0.5
    distance = q * (k * (k + 1) / (6 * n)) ** 0.5
    rows = [
        [m, *(f"{100 * e:.2f}" for e in means[m]), f"{ranks[m]:.2f}"]
        + [f"{others[m]:.2f}"]
        for m in METHODS
    ]
    p = friedmanchisquare(*means.values()).pvalue
    searched = {m: (ranks[f"{m}-ls"], ranks[m]) for m in _KERNELS}
    beating = [m for m in METHODS if ranks["RS"] - ranks[m] > distance]
    first = min(ranks, key=lambda m: ranks[m])
    header = ["error in %", *names, "rank", "by cross-validation"]
    text = f"{markdown_table(header, rows)}\n\n{errors.shape[-1]} splits; critical "
    text += f"difference {distance:.2f}. By cross-validation error:\n"
    text += "\n".join(f"{c.text}: {c.found}" for c in _better(_means(1)))
    return text, [
        Claim(f"{_OURS} has the best mean rank", first, first == _OURS),
        *_better(means),
        Claim("the methods differ (Friedman)", f"p = {p:.2g}", p < 0.05),
        Claim(
            "local search helps all three kernels",
            ", ".join(f"{m} {a:.2f} from {b:.2f}" for m, (a, b) in searched.items()),
            all(a < b for a, b in searched.values()),
        ),
        Claim(
            f"Nemenyi: {_OURS} alone beats random search",
            ", ".join(beating) or "none does",
            beating == [_OURS],
        ),
    ]


def table_2() -> tuple[str, list[Claim]]:
    """Pairwise tests: GP-cond-ls is better than all, Spearmint worse than all."""
    means = _means()
    pairs = [(_OURS, m) for m in METHODS if m != _OURS]
    pairs += [(m, "Spearmint") for m in METHODS if m != "Spearmint"]
    ps = [[one_sided(means[x], means[y]) for x, y in (q, q[::-1])] for q in pairs]
    right = sum(p < q for p, q in ps)
    reversed_ = [
        f"{x} : {y}" for (x, y), (_, q) in zip(pairs, ps, strict=True) if q < _P
    ]
    rows = [[*pair, f"{p:.3f}"] for pair, (p, _) in zip(pairs, ps, strict=True)]
    return markdown_table(["method", "better than", "p, uncorrected"], rows), [
        Claim("at least 17 of 20 directions", f"{right}", right >= 17),
        Claim("none reversed, p < .05", ", ".join(reversed_) or "none", not reversed_),
    ]


def _chosen() -> np.ndarray:
    """How often GP-cond-ls ends with a learner, ``data sets x learners``."""
    learners = _found()[2][:, METHODS.index(_OURS)]
    return np.stack([(learners == k).sum(1) for k in range(len(LEARNERS))], axis=1)


def figure_6() -> tuple[str, list[Claim]]:
    """Learners that GP-cond-ls ends with, all data sets."""
    counts = _chosen().sum(0)
    shares = dict(zip(LEARNERS, counts / counts.sum(), strict=True))
    both = shares["rf"] + shares["svm"]
    most = max((v, k) for k, v in shares.items() if k not in ("rf", "svm"))
    rows = [[k, f"{v:.3f}"] for k, v in shares.items()]
    return markdown_table(["learner", "share"], rows), [
        Claim(
            "random forests and RBF machines: more than half", f"{both:.3f}", both > 0.5
        ),
        Claim("each other less than .2", f"{most[1]} {most[0]:.3f}", most[0] < 0.2),
    ]


def figure_7() -> tuple[str, list[Claim]]:
    """The same for each data set; a permutation test that they differ."""
    names, _, learners = _found()
    counts, mine = _chosen(), learners[:, METHODS.index(_OURS)]
    rng = np.random.default_rng(0)

    def spread(x: np.ndarray) -> float:
        """How often splits of a data set agree on a learner."""
        return float((x[:, :, None] == x[:, None]).mean())

    drawn = [
        spread(rng.permutation(mine.ravel()).reshape(mine.shape)) for _ in range(9999)
    ]
    p = (1 + sum(d >= spread(mine) for d in drawn)) / 10_000
    trees = counts[names.index("titanic"), list(LEARNERS).index("dt")] / mine.shape[1]
    rows = [[n, *map(str, row)] for n, row in zip(names, counts, strict=True)]
    return markdown_table(["data set", *LEARNERS], rows), [
        Claim("data sets prefer different learners", f"p = {p:.2g}", p < 0.05),
        Claim("titanic: a decision tree in 80 %", f"{trees:.0%}", trees >= 0.8),
    ]


_OURS, _P, _BUDGET = "GP-cond-ls", 0.05, BUDGETS["levesque"]
_WORSE = ("RS", "Spearmint", "GP-matern-noimpute")
_KERNELS = ("GP-matern", "GP-cond", "GP-laplace")
ITEMS = [
    Item("Figure 1", "reproduces", figure_1),
    Item(
        "Figures 2 to 4",
        "reproduces",
        figures_2_to_4,
        picture=("levesque_2.png", _draw_matrices),
    ),
    Item("Table I and Figure 5", "does not", table_1_and_figure_5),
    Item("Table II", "reproduces", table_2),
    Item("Figure 6", "partly", figure_6),
    Item("Figure 7", "partly", figure_7),
]

if __name__ == "__main__":
    main(__doc__, ITEMS)
