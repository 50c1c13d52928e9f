"""Perrone et al. (2017): warm starts and side signals with ABLR.

    python -m benchmarks.papers.perrone

Runs in ``benchmarks/results/ablr``, made by ``benchmarks.quality.quadratics``,
``.forests`` and ``.signals`` and by ``benchmarks.speed.ablr_against_gp``. Tests have
one pair a task or data set, means over its seeds; side signals one a data set and seed.
"""

from __future__ import annotations

__all__ = ["ITEMS"]

import json
from typing import Any

import numpy as np

from benchmarks.papers.items import RESULTS, Claim, Item, lower, main
from benchmarks.quality import forests, quadratics, signals
from benchmarks.summary import load, markdown_table
from benchmarks.transfer_report import one_sided, pair

# Of the errors of the 500 forests of each data set (OpenML's number), which are data:
# the unit of distances, as in ``benchmarks.quality.forests``.
_RANGES = {
    "15": 0.034335,
    "20": 0.129000,
    "21": 0.217014,
    "22": 0.111500,
    "23": 0.059063,
    "28": 0.072064,
    "32": 0.031750,
    "41": 0.165446,
    "43": 0.032167,
    "2079": 0.093750,
    "3510": 0.096577,
    "3561": 0.071428,
    "9960": 0.015945,
    "9967": 0.044822,
    "9976": 0.107693,
    "9979": 0.007996,
    "14966": 0.039190,
    "34537": 0.031388,
    "125921": 0.062000,
    "146606": 0.037155,
}


def figure_1_left() -> tuple[str, list[Claim]]:
    """Evaluations to 1 % of the range, 30 quadratic functions."""
    runs = load(RESULTS / "ablr" / "quadratics.jsonl.xz")
    numbers = quadratics.figure(runs, list(quadratics.METHODS), 20)
    of = {k: np.array(v["task_means"]) for k, v in numbers["methods"].items()}
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
    return quadratics.tables(numbers), claims


def figure_1_right() -> tuple[str, list[Claim]]:
    """Seconds against evaluations."""
    of = json.loads((RESULTS / "ablr" / "ablr_against_gp.json").read_text())["models"]
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
    paired = pair(
        load(RESULTS / "ablr" / "forests.jsonl.xz"), list(forests.METHODS), 50
    )
    scale = np.array([_RANGES[name.split("-")[1]] for name in paired.problems])
    gaps = (paired.traces - paired.optima[:, None, None]) / scale[:, None, None]
    of = dict(zip(paired.methods, paired.by_problem(gaps).swapaxes(0, 1), strict=True))
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
    return markdown_table(header, rows), lower(pairs)


def figure_2_right() -> tuple[str, list[Claim]]:
    """Networks: with and without training accuracy and time."""
    tables = {p.stem: p for p in sorted((RESULTS / "ablr" / "networks").iterdir())}
    scales = {k: signals.spread(signals.make(0, p)) for k, p in tables.items()}
    runs = load(RESULTS / "ablr" / "signals.jsonl.xz")
    numbers = signals.figure(runs, list(signals.METHODS), 30, scales)
    change: dict[str, Any] = numbers["side_less_plain"]
    low, high = change["interval_95"]
    p = change["p_side_better"]
    claim = Claim(
        "side signals speed ABLR up",
        f"mean distance {change['mean']:+.3f} [{low:+.4f}, {high:+.4f}], p = {p:.2g}",
        p < 0.05,
    )
    return signals.tables(numbers, at=(5, 10, 20, 30)), [claim]


ITEMS = [
    Item("Figure 1, left", "partly", figure_1_left),
    Item("Figure 1, right", "partly", figure_1_right),
    Item("Figure 2, left", "partly", figure_2_left),
    Item("Figure 2, right", "does not", figure_2_right),
]

if __name__ == "__main__":
    main(__doc__, ITEMS)
