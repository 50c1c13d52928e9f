"""Perrone et al. (2017): warm starts and side signals with ABLR.

    python -m benchmarks.papers.perrone

Runs in ``benchmarks/results/ablr``, made by ``benchmarks.quality.quadratics``,
``.forests`` and ``.signals`` and by ``benchmarks.speed.ablr_against_gp``. Tests have
one pair a task or data set, means over its seeds; side signals one a data set and seed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.papers.items import RESULTS, Claim, Item, lower, main
from benchmarks.papers.pictures import curves, finished, lines, panels
from benchmarks.quality import forests, quadratics, signals
from benchmarks.summary import Paired, load, markdown_table, one_sided, pair


def _paired(name: str, methods: Iterable[str], budget: int) -> Paired:
    return pair(load(RESULTS / "ablr" / f"{name}.jsonl.xz"), list(methods), budget)


def _by_method(paired: Paired, values: np.ndarray) -> dict[str, np.ndarray]:
    """Means over the seeds of each task, by method."""
    means = paired.by_problem(values).swapaxes(0, 1)
    return dict(zip(paired.methods, means, strict=True))


def _distances(paired: Paired) -> dict[str, np.ndarray]:
    """log10 of the distance in ranges of the task, not below -6, ``tasks x 20``."""
    logs = np.log10(np.maximum(quadratics.gaps_of(paired), 1e-6))
    return _by_method(paired, logs)


def _seconds() -> dict[str, dict[str, Any]]:
    return json.loads((RESULTS / "ablr" / "ablr_against_gp.json").read_text())["models"]


def _draw_quadratics() -> Any:
    figure = panels(["30 quadratics"], "evaluations", "log10 distance", 6.5)
    curves(figure, 0, _distances(_paired("quadratics", quadratics.METHODS, 20)))
    return finished(figure)


def _draw_seconds() -> Any:
    figure = panels([""], "evaluations", "seconds of a fit", 4.2)
    times = {n: m["seconds"] for n, m in _seconds().items()}
    points = {n: ([int(k) for k in t], list(t.values())) for n, t in times.items()}
    lines(figure, 0, points, marker=".")
    figure.axes[0].loglog()
    return finished(figure)


def figure_1_left() -> tuple[str, list[Claim]]:
    """Evaluations to 1 % of the range, 30 quadratic functions."""
    paired = _paired("quadratics", quadratics.METHODS, 20)
    of = _by_method(paired, quadratics.needed(paired))
    claims = lower(
        {
            "ABLR transfer faster than ABLR plain": (of["warm"], of["ablr"]),
            "ABLR transfer faster than GP plain": (of["warm"], of["gp"]),
            "GP transfer faster than GP plain": (of["gp_stacked"], of["gp"]),
            "network faster than random Fourier features": (
                of["warm"],
                of["warm_fourier"],
            ),
            "GP transfer faster than ABLR transfer": (of["gp_stacked"], of["warm"]),
        }
    )
    p = one_sided(of["warm_context"], of["warm"])
    means = of["warm_context"].mean(), of["warm"].mean()
    found = "{:.2f} with, {:.2f} without".format(*means) + f" (p = {p:.2g})"
    claims.append(Claim("contexts bring no clear improvement", found, p >= 0.05))
    gaps = _distances(paired)
    rows = [[m, *(f"{x:.2f}" for x in gaps[m].mean(0)[1:6])] for m in gaps]
    header = ["mean log10 distance after", *map(str, range(2, 7))]
    return f"{quadratics.tables(paired)}\n\n{markdown_table(header, rows)}", claims


def figure_1_right() -> tuple[str, list[Claim]]:
    """Seconds against evaluations."""
    of = _seconds()
    sizes = list(of["network"]["seconds"])
    seconds = {name: model["seconds"] for name, model in of.items()}
    rows = [
        [n, *(f"{s[n]:.4f}" if n in s else "" for s in seconds.values())] for n in sizes
    ]
    cheaper = [seconds["fourier"][n] < seconds["network"][n] for n in sizes]
    gp, network = (of[name]["exponent"] for name in ("gp", "network"))
    return markdown_table(["rows", *seconds], rows), [
        Claim("a GP is cubic", f"exponent {gp:.2f}", abs(gp - 3.0) < 0.5),
        Claim("ABLR is linear", f"exponent {network:.2f}", abs(network - 1.0) < 0.5),
        Claim(
            "random Fourier features are cheaper than the network",
            f"at {sum(cheaper)} of {len(sizes)} sizes",
            all(cheaper),
        ),
    ]


def figure_2_left() -> tuple[str, list[Claim]]:
    """Random forests: mean distance to the best forest over two spans of budgets."""
    paired = _paired("forests", forests.METHODS, 50)
    # of the errors of the 500 forests of each data set, by OpenML's number
    ranges = json.loads((RESULTS / "papers" / "forest_ranges.json").read_text())
    scale = np.array([ranges[name.split("-")[1]] for name in paired.problems])
    gaps = (paired.traces - paired.optima[:, None, None]) / scale[:, None, None]
    of = _by_method(paired, gaps)
    at = (5, 10, 20, 50)
    rows = [[k, *(f"{v[:, n - 1].mean():.4f}" for n in at)] for k, v in of.items()]
    pairs = {
        f"transfer better than {name} plain, evaluations 1 to {n}": (
            of["warm"][:, :n].mean(-1),
            of[other][:, :n].mean(-1),
        )
        for name, other in (("GP", "gp"), ("ABLR", "ablr"))
        for n in (10, 50)
    }
    header = ["method", *(f"distance at {n}" for n in at)]
    ps = [one_sided(of["warm"][:, n], of["ablr"][:, n]) for n in range(50)]
    ahead = [str(n) for n, p in enumerate(ps, 1) if p < 0.05]
    why = f"transfer against ABLR plain, p < .05 uncorrected after {', '.join(ahead)}"
    return f"{markdown_table(header, rows)}\n\n{why}", lower(pairs)


def figure_2_right() -> tuple[str, list[Claim]]:
    """Networks: with and without training accuracy and time."""
    folder = RESULTS / "ablr" / "networks"
    paired = _paired("signals", signals.METHODS, 30)
    gaps = signals.gaps_of(paired, folder)
    d = signals.difference(paired, gaps)
    found = f"mean distance {d.mean:+.3f} [{d.low:+.4f}, {d.high:+.4f}], p = "
    text = "side signals speed ABLR up"
    claim = Claim(text, f"{found}{d.p_better:.2g}", d.p_better < 0.05)
    rows = []
    for path in sorted(folder.iterdir()):
        accuracy, *side = signals.make(0, path)._signals.numpy().T
        best = accuracy >= np.quantile(accuracy, 0.9)
        pairs = [(of[k], accuracy[k]) for of in side for k in (slice(None), best)]
        numbers = [f"{spearmanr(*both).statistic:.2f}" for both in pairs]
        rows.append([path.stem, *numbers])
    header = ["rank correlation with the target", "training accuracy", "of the best"]
    why = markdown_table([*header, "time", "of the best tenth"], rows)
    return f"{signals.tables(paired, gaps)}\n\n{why}", [claim]


ITEMS = [
    Item(
        "Figure 1, left",
        "reproduces",
        figure_1_left,
        picture=("perrone_1.png", _draw_quadratics),
    ),
    Item(
        "Figure 1, right",
        "partly",
        figure_1_right,
        picture=("perrone_1_right.png", _draw_seconds),
    ),
    Item("Figure 2, left", "does not", figure_2_left),
    Item("Figure 2, right", "does not", figure_2_right),
]

if __name__ == "__main__":
    main(__doc__, ITEMS)
