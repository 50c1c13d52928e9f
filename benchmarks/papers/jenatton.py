"""Jenatton et al. (2017): tree-structured dependencies.

    python -m benchmarks.papers.jenatton

Figure 1 is computed, Table 1 timed by ``benchmarks.papers.table_1``. The runs of the
others are in ``benchmarks/results/papers``, made by ``benchmarks.papers.runs``. One
pair a function and seed, or a data set (means over its seeds).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata

from benchmarks.papers.items import RESULTS, Claim, Item, lower, main
from benchmarks.papers.pictures import curves, finished, lines, panels
from benchmarks.papers.runs import BUDGETS, FIGURE_2, LINEAR, QUADRATIC, UNBALANCED
from benchmarks.summary import Run, gap_table, load, markdown_table, pair
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


def _runs(name: str) -> list[Run]:
    return _load(RESULTS / "papers" / f"{name}.jsonl.xz")


_load = cache(load)
_GAP = "log10 distance"


def _gaps(
    problems: Iterable[str], *methods: str, at: int | None = None
) -> list[np.ndarray]:
    """log10 distances where all have a run: ``pairs``, or ``pairs x evaluations``."""
    runs = [r for r in _runs("jenatton") if len(r.values) == BUDGETS["figure-2"]]
    found = {(r.problem, r.method, r.seed): r for r in runs}
    pairs = [(p, k) for p, _, k in found if p in set(problems)]
    whole = [
        (p, k)
        for p, k in dict.fromkeys(pairs)
        if all((p, m, k) in found for m in methods)
    ]
    traces = [
        np.stack([found[p, m, k].trace() - found[p, m, k].optimum for p, k in whole])
        for m in methods
    ]
    logs = [np.log10(np.maximum(x, 1e-16)) for x in traces]
    return logs if at is None else [x[:, at - 1] for x in logs]


def _better(
    mine: str, other: str, at: int, problems: Iterable[str], extra: str = ""
) -> tuple[str, tuple[np.ndarray, np.ndarray]]:
    first, second = _gaps(problems, mine, other, at=at)
    text = f"{mine} better than {other}{extra}, {at} evaluations, {len(first)} pairs"
    return text, (first, second)


def _table(problems: Iterable[str]) -> str:
    runs = [r for r in _runs("jenatton") if r.problem in set(problems)]
    return markdown_table(*gap_table(runs, BUDGETS["figure-2"]))


def _not_shared(problems: Iterable[str]) -> list[str]:
    return [p for p in problems if "shared" not in p]


def figure_2() -> tuple[str, list[Claim]]:
    """log10 distances of seven methods, four functions, 25 seeds."""
    of = FIGURE_2
    claims = [
        *(
            _better("tree", other, 40, of)
            for other in ("random", "gp-baseline", "smac")
        ),
        _better("tree", "marginal", 40, _not_shared(of)),
        *(_better("tree", "independent", at, of) for at in (20, 30)),
        _better("arc", "tree", 12, of),
        _better("tree", "arc", 40, of),
    ]
    return _table(of), lower(dict(claims))


def unbalanced() -> tuple[str, list[Claim]]:
    """The same on chains of 4, 8 and 16 leaves."""
    of = UNBALANCED
    claims = [
        *(_better("tree", m, 40, of) for m in ("random", "gp-baseline")),
        _better("tree", "marginal", 40, _not_shared(of)),
        *(_better("tree", "independent", at, of) for at in (20, 30)),
    ]
    lead = {}
    for leaves in (4, 8, 16):
        names = [p for p in of if p.startswith(f"{leaves}-")]
        tree, alone = _gaps(names, "tree", "independent", at=30)
        lead[leaves] = float((alone - tree).mean())
    found = ", ".join(f"{k} leaves {v:+.2f}" for k, v in lead.items())
    grows = list(lead.values()) == sorted(lead.values())
    text = "the tree's lead over independent grows with the leaves, 30 evaluations"
    # the same covariance, searched over all paths at once
    whys = [_better("marginal", "tree", at, of) for at in (20, 30)]
    why = "\n".join(f"{w[0]}: {lower(dict([w]))[0].found}" for w in whys)
    table = f"{_table(of)}\n\n{why}"
    return table, [*lower(dict(claims)), Claim(text, found, grows)]


def section_4_3() -> tuple[str, list[Claim]]:
    """Random Fourier features of shared variables."""
    claims = [
        _better("tree", "tree-nonlinear", 20, LINEAR, " (linear functions)"),
        _better("tree-nonlinear", "tree", 40, QUADRATIC, " (quadratic functions)"),
    ]
    values = _errors("shared", "tree", "tree-nonlinear", at=_LAST)
    text = f"tree better than tree-nonlinear, networks, {_LAST} evaluations"
    claims.append((text, (values[0], values[1])))
    return _table([*LINEAR, *QUADRATIC]), lower(dict(claims))


def _slope(seconds: Mapping[str, float]) -> float:
    x = np.log([float(k) for k in seconds])
    return float(np.polyfit(x, np.log(list(seconds.values())), 1)[0])


def _times() -> dict[str, dict[str, float]]:
    times = json.loads((RESULTS / "papers" / "table_1.json").read_text())
    names = next(iter(times.values()))
    return {n: {k: t[n] for k, t in times.items()} for n in names}


def table_1() -> tuple[str, list[Claim]]:
    """Seconds against the number of paths, five points in each leaf."""
    times = _times()
    rows = [[n, *(f"{t:.4f}" for t in times[n].values())] for n in times]
    large = {k: t for k, t in times["evidence, naive"].items() if int(k) >= 128}
    slopes = {n: _slope(t) for n, t in times.items()} | {"large": _slope(large)}
    ratio = times["search, independent"]["256"] / times["search, tree"]["256"]
    tree, alone = slopes["evidence, tree"], slopes["evidence, independent"]
    search, whole = slopes["search, tree"], slopes["search, independent"]
    return markdown_table(["seconds, paths", *times["search, tree"]], rows), [
        Claim(
            "naive: at least quadratic from 128 paths on",
            f"exponent {slopes['large']:.2f}",
            slopes["large"] >= 2.0,
        ),
        Claim(
            "evidence leaf by leaf: about linear (at most 1.3)",
            f"exponents {tree:.2f} and {alone:.2f}",
            max(tree, alone) <= 1.3,
        ),
        Claim(
            "independent searches all paths: exponent above .5",
            f"{whole:.2f}",
            whole > 0.5,
        ),
        Claim("tree searches one: below .3", f"{search:.2f}", search < 0.3),
        Claim("tree can be faster: twice at 256 paths", f"{ratio:.2f}", ratio > 2.0),
    ]


def _errors(topology: str, *methods: str, at: int | None = None) -> list[np.ndarray]:
    """Least errors so far, ``data sets`` (or ``x evaluations``), means over seeds."""
    runs = [r for r in _runs("networks") if r.problem.endswith(f"-{topology}")]
    paired = pair(runs, methods, BUDGETS["networks"])
    values = paired.by_problem(paired.traces).swapaxes(0, 1)
    return list(values if at is None else values[..., at - 1])


_SHARED = ("tree", "independent", "gp-baseline", "random", "smac")  # without arc
_LAST = BUDGETS["networks"]


def _ranks(topology: str, *methods: str) -> dict[str, np.ndarray]:
    """``data sets x evaluations`` for each method, 1 is best."""
    ranks = rankdata(np.stack(_errors(topology, *methods)).round(9), axis=0)
    return dict(zip(methods, ranks, strict=True))


def figures_3_and_4() -> tuple[str, list[Claim]]:
    """Networks of 0 to 4 layers: the duplicated and the shared topology."""
    rows = [
        [topology, m, *(f"{r[:, at - 1].mean():.2f}" for at in (20, 30, 50, _LAST))]
        for topology, methods in (("duplicated", _SHARED[:2]), ("shared", _SHARED))
        for m, r in _ranks(topology, *methods).items()
    ]
    header = ["topology", "method", *(f"mean rank at {n}" for n in (20, 30, 50, _LAST))]

    def claim(topology: str, mine: str, other: str, at: int) -> Any:
        first, second = _errors(topology, mine, other, at=at)
        text = f"{topology}: {mine} better than {other}, {at} evaluations"
        return text, (first, second)

    claims = [
        claim("duplicated", "tree", "independent", 20),
        claim("duplicated", "independent", "tree", _LAST),
        *(claim("shared", "tree", other, _LAST) for other in _SHARED[1:4]),
        claim("shared", "tree", "smac", 30),
    ]
    ranks = _ranks("shared", *_SHARED)
    apart = ranks["tree"][:, -1].mean() - ranks["smac"][:, -1].mean()
    text = f"shared: SMAC draws level, mean ranks differ by at most .5 at {_LAST}"
    searched = claim("shared", "marginal", "tree", _LAST)
    why = f"{searched[0]}: {lower(dict([searched]))[0].found}"
    return f"{markdown_table(header, rows)}\n\n{why}", [
        *lower(dict(claims)),
        Claim(text, f"{apart:+.2f}", abs(apart) <= 0.5),
    ]


_COLOURED = ("tree", "independent", "marginal", "arc", "random", "smac", "gp-baseline")


def _draw(problems: Sequence[str], methods: Sequence[str]) -> Any:
    columns = 2 if len(problems) == 4 else 3
    figure = panels(list(problems), "evaluations", _GAP, columns=columns)
    have = {(r.problem, r.method) for r in _runs("jenatton")}
    for k, p in enumerate(problems):
        of = {m: _gaps([p], m)[0] for m in methods if (p, m) in have}
        curves(figure, k, of, methods)
    return finished(figure)


def _draw_networks() -> Any:
    figure = panels(["duplicated", "shared"], "evaluations", "mean rank", 4.2)
    curves(figure, 0, _ranks("duplicated", *_SHARED[:2]), _COLOURED)
    curves(figure, 1, _ranks("shared", *_SHARED), _COLOURED)
    return finished(figure)


def _draw_table_1() -> Any:
    figure = panels(["evidence", "search"], "paths", "seconds", 4.2)
    for k, part in enumerate(("evidence", "search")):
        of = {n.split(", ")[1]: t for n, t in _times().items() if n.startswith(part)}
        points = {n: ([int(x) for x in t], list(t.values())) for n, t in of.items()}
        lines(figure, k, points, ("tree", "independent", "naive"), marker=".")
        figure.axes[k].loglog()
    return finished(figure)


ITEMS = [
    Item("Figure 1", "reproduces", figure_1),
    Item(
        "Figure 2",
        "partly",
        figure_2,
        picture=("jenatton_2.png", partial(_draw, FIGURE_2, _COLOURED)),
    ),
    Item("Table 1", "partly", table_1, picture=("jenatton_t1.png", _draw_table_1)),
    Item(
        "Figures 3 and 4",
        "does not",
        figures_3_and_4,
        picture=("jenatton_4.png", _draw_networks),
    ),
    Item(
        "Unbalanced trees",
        "does not",
        unbalanced,
        picture=("jenatton_chains.png", partial(_draw, UNBALANCED, _COLOURED)),
    ),
    Item(
        "Section 4.3",
        "does not",
        section_4_3,
        picture=(
            "jenatton_43.png",
            partial(_draw, [*LINEAR, *QUADRATIC], ("tree", "tree-nonlinear")),
        ),
    ),
]

if __name__ == "__main__":
    main(__doc__, ITEMS)
