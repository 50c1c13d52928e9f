"""Wang and Welch (2018): sums of monotone parts.

    python -m benchmarks.papers.wang

Figures 2 and 4 to 6: the paper's GPs on 25 seeds (the paper: 10 trials),
``benchmarks/results/wang.jsonl.xz``, made by ``benchmarks.quality.wang``. One pair a
seed; a curve's area is its mean over the twelve evaluations. Figures 1 and 3 are
computed.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import torch

from benchmarks.papers.items import RESULTS, Claim, Item, lower, main
from benchmarks.papers.pictures import curves, finished, lines, panels
from benchmarks.quality import wang
from benchmarks.summary import Run, load, markdown_table, one_sided
from botorch_structured.test_functions import ElasticNetTuning, MonotoneMixture1D

_BUDGET, _STARTS = 12, 4
_METHODS = ("standard", "decomposed", "monotone")
_GRID, _SEEDS = 12, range(9001, 9011)


@cache
def _runs() -> list[Run]:
    return load(RESULTS / "wang.jsonl.xz")


@cache
def _curves(problem: str) -> dict[str, np.ndarray]:
    """The best score so far, ``seeds x 12``, of the methods with the paper's GPs."""
    return {
        name: np.stack(
            [
                wang.scores(run, _BUDGET)
                for run in _runs()
                if (run.problem, run.method) == (problem, f"{name}_paper")
            ]
        )
        for name in _METHODS
    }


def _table(curves: dict[str, np.ndarray]) -> str:
    header = ["method", "runs", "area", f"mean at {_BUDGET}"]
    header += [f"mean square at {n}" for n in range(_STARTS + 1, _BUDGET + 1)]
    rows = []
    for name, curve in curves.items():
        squares = [f"{x:.5g}" for x in (curve[:, _STARTS:] ** 2).mean(0)]
        numbers = [f"{curve.mean():.5g}", f"{curve[:, -1].mean():.5g}"]
        rows.append([name, str(len(curve)), *numbers, *squares])
    return markdown_table(header, rows)


def _draw_parts() -> Any:
    x = torch.linspace(0.0, 1.0, 201, dtype=torch.double)
    parts = MonotoneMixture1D(negate=True).components(x.unsqueeze(-1))
    figure = panels([""], "x", "", 4.2)
    of = {"f1": parts[:, 0], "f2": parts[:, 1], "f": parts.sum(-1)}
    lines(figure, 0, {name: (x, y) for name, y in of.items()})
    return finished(figure)


def _draw_surfaces() -> Any:
    figure = panels(["training error", "gap"], "log10 lambda", "alpha", 3.6)
    for ax, part in zip(figure.axes, _grid(_SEEDS[0]).unbind(-1), strict=True):
        image = ax.imshow(part, origin="lower", extent=(0, 1, 0, 1), cmap="Blues")
        figure.colorbar(image, ax=ax)
    return figure


def _draw_curves() -> Any:
    titles = ["Figure 2, value", "Figure 4, rank", "Figure 5, error", "Figure 6, error"]
    figure = panels(titles, "evaluations", "best so far", 2.8, columns=4)
    for k, problem in enumerate(("mixture", "elastic_net", "forest", "network")):
        curves(figure, k, _curves(problem))
    return finished(figure)


def figure_1() -> tuple[str, list[Claim]]:
    """The function is the sum of a part that falls and one that rises."""
    problem = MonotoneMixture1D(negate=True)
    X = torch.linspace(0.0, 1.0, 1001, dtype=torch.double).unsqueeze(-1)
    parts = problem.components(X)
    away = (parts.sum(-1) - problem(X)).abs().max().item()
    steps = parts.diff(dim=0)
    signs = [bool((steps[:, 0] <= 0).all()), bool((steps[:, 1] >= 0).all())]
    peak = problem(X).argmax()
    return f"maximum {problem(X).max():.4f} at {X[peak, 0]:.3f}", [
        Claim("f = f1 + f2", f"differs by at most {away:.1g}", away < 1e-12),
        Claim("f1 falls and f2 rises", f"on a grid of {len(X)} points", all(signs)),
    ]


def figure_2() -> tuple[str, list[Claim]]:
    """Decomposition helps; signs add little."""
    curves = _curves("mixture")
    areas = {name: curve.mean(1) for name, curve in curves.items()}
    by_parts = areas["standard"] - areas["decomposed"]
    by_signs = areas["decomposed"] - areas["monotone"]
    p = one_sided(areas["monotone"], areas["decomposed"])
    claims = lower(
        {"parts better than one GP, area": (areas["decomposed"], areas["standard"])}
    )
    claims.append(
        Claim(
            "signs add little: no significant gain, smaller than that of the parts",
            f"gain {by_signs.mean():.3g} (p = {p:.2g}) of signs, {by_parts.mean():.3g} "
            "of parts",
            bool(p >= 0.05 and by_signs.mean() < by_parts.mean()),
        )
    )
    return _table(curves), claims


def _grid(seed: int) -> torch.Tensor:
    """Training error and gap over the box, alpha x lambda x 2."""
    problem, unit = ElasticNetTuning(seed), torch.linspace(0.0, 1.0, _GRID).double()
    low, high = problem.bounds
    X = low + (high - low) * torch.cartesian_prod(unit, unit)
    return problem.components(X).reshape(_GRID, _GRID, 2)


def figure_3() -> tuple[str, list[Claim]]:
    """Training error and gap are roughly monotone in both penalties."""
    shares = [
        [
            (sign * parts[..., k].diff(dim=column) >= 0).double().mean().item()
            for k, signs in enumerate(ElasticNetTuning(seed).monotone)
            for column, sign in signs.items()
        ]
        for seed, parts in ((seed, _grid(seed)) for seed in _SEEDS)
    ]
    of_seeds = np.array(shares)  # ``seeds x 4``
    names = ["training error, alpha", "training error, lambda", "gap, alpha"]
    names.append("gap, lambda")
    return f"{_GRID} x {_GRID} points, {len(of_seeds)} data sets", [
        Claim(
            f"{name} monotone: > 90 % of neighbours on average, > 80 % on each",
            f"mean {column.mean():.0%}, least {column.min():.0%}",
            bool(column.mean() > 0.9 and column.min() > 0.8),
        )
        for name, column in zip(names, of_seeds.T, strict=True)
    ]


def _dominates(problem: str, parts_too: bool = False) -> tuple[str, list[Claim]]:
    """Signs have the smaller area, and no larger mean square at any evaluation."""
    curves = _curves(problem)
    areas = {name: curve.mean(1) for name, curve in curves.items()}
    pairs = {
        f"signs better than {name}, area": (areas["monotone"], areas[name])
        for name in ("standard", "decomposed")
    }
    if parts_too:
        text = "parts without signs better than standard, area"
        pairs[text] = areas["decomposed"], areas["standard"]
    claims = lower(pairs)
    squares = np.stack([(curves[m] ** 2).mean(0)[_STARTS:] for m in _METHODS])
    least = squares[-1] <= squares.min(0)  # the last is the one with signs
    found = f"at {least.sum()} of {len(least)}"
    rng, drawn = np.random.default_rng(0), 0
    for _ in range(1000):  # as many seeds as the paper has
        chosen = rng.choice(len(areas["monotone"]), 10, replace=False)
        of_ten = [(curves[m][chosen] ** 2).mean(0)[_STARTS:] for m in _METHODS]
        drawn += int((of_ten[-1] <= np.min(of_ten, axis=0)).all())
    why = f"So in {drawn / 10:.0f} % of 1,000 draws of ten of the seeds."
    text = "no other has a smaller mean square at any evaluation after the starts"
    table = f"{_table(curves)}\n\n{text}: {found}. {why}"
    return table, [*claims, Claim(text, found, bool(least.all()))]


ITEMS = [
    Item("Figure 1", "reproduces", figure_1, picture=("wang_1.png", _draw_parts)),
    Item("Figure 2", "reproduces", figure_2, picture=("wang_2.png", _draw_curves)),
    Item("Figure 3", "reproduces", figure_3, picture=("wang_3.png", _draw_surfaces)),
    Item("Figure 4", "reproduces", partial(_dominates, "elastic_net")),
    Item("Figure 5", "partly", partial(_dominates, "forest")),
    Item("Figure 6", "partly", partial(_dominates, "network", parts_too=True)),
]

if __name__ == "__main__":
    main(__doc__, ITEMS)
