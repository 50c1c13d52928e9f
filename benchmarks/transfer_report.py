"""Runs paired by problem: ranks at each budget, evaluations to a gap, tests.

All methods have the same starts on a problem with a seed, so runs are compared in
pairs. Tests are about new problems, not new seeds: runs with different seeds are
averaged, and tests have one pair for each *problem* (a task, a data set).
"""

from __future__ import annotations

__all__ = [
    "Paired",
    "evaluations_to",
    "mean_rank_curve",
    "one_sided",
    "pair",
    "ranks_of",
    "standard_error",
    "write_figure",
]

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata, wilcoxon

from benchmarks.summary import Run
from botorch_structured.plots.style import new_figure


@dataclasses.dataclass(frozen=True)
class Paired:
    """Best values so far where all the methods have a run.

    Attributes:
        methods: The ``M`` names.
        problems: ``R``, the problem of each pair.
        traces: ``R x M x budget``, to be minimised.
        optima: ``R``.
    """

    methods: list[str]
    problems: list[str]
    traces: np.ndarray
    optima: np.ndarray

    def by_problem(self, values: np.ndarray) -> np.ndarray:
        """Means over the seeds of each problem: ``R x ...`` -> ``P x ...``."""
        problems = np.array(self.problems)
        return np.stack(
            [values[problems == name].mean(0) for name in dict.fromkeys(self.problems)]
        )

    def of(self, method: str) -> int:
        """The position of a method."""
        return self.methods.index(method)


def pair(runs: Sequence[Run], methods: Sequence[str], budget: int) -> Paired:
    """The runs that are complete for all methods.

    Raises:
        ValueError: There are none.
    """
    found: dict[tuple[str, int], dict[str, Run]] = {}
    for run in runs:
        if run.method in methods and len(run.values) >= budget:
            found.setdefault((run.problem, run.seed), {})[run.method] = run
    whole = {k: v for k, v in sorted(found.items()) if len(v) == len(methods)}
    if not whole:
        raise ValueError(
            f"runs: expected some of {list(methods)} with {budget} values, got none."
        )
    traces = [[by[m].trace()[:budget] for m in methods] for by in whole.values()]
    optima = [next(iter(by.values())).optimum for by in whole.values()]
    return Paired(
        methods=list(methods),
        problems=[problem for problem, _ in whole],
        traces=np.array(traces),
        optima=np.array([np.nan if v is None else v for v in optima], dtype=float),
    )


def evaluations_to(gaps: np.ndarray, gap: float) -> np.ndarray:
    """How many evaluations until a gap: ``... x budget`` -> ``...``.

    If the gap was not reached, one more than the budget, a lower bound.
    """
    reached = gaps <= gap
    return np.where(reached.any(-1), reached.argmax(-1) + 1, gaps.shape[-1] + 1)


def ranks_of(traces: np.ndarray) -> np.ndarray:
    """Ranks in each run at each budget, ties shared: ``R x M x budget``."""
    # rounding must not decide which of two equal accuracies is better
    return rankdata(np.round(traces, 12), axis=1)


def mean_rank_curve(traces: np.ndarray) -> np.ndarray:
    """Mean rank at each budget: ``R x M x budget`` -> ``M x budget``."""
    return ranks_of(traces).mean(0)


def standard_error(values: np.ndarray) -> np.ndarray:
    """Standard error of a mean over problems: ``P x ...`` -> ``...``."""
    return values.std(0, ddof=1 if len(values) > 1 else 0) / len(values) ** 0.5


def one_sided(mine: np.ndarray, other: np.ndarray) -> float:
    """P of a paired Wilcoxon signed-rank test that ``mine`` is smaller; 1 if equal."""
    difference = np.round(mine - other, 12)
    if not (difference != 0).any():
        return 1.0
    return float(wilcoxon(difference, alternative="less").pvalue)


def write_figure(
    folder: Path, name: str, numbers: dict[str, Any], draw: Callable[[Any], None]
) -> None:
    """``name.json`` with the numbers, and ``name.png`` with the picture.

    Raises:
        ImportError: Without matplotlib.
    """
    figure = new_figure(9.0, 3.8)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(numbers, indent=1) + "\n")
    draw(figure)
    figure.savefig(folder / f"{name}.png", dpi=120)
