"""A new data set, 39 old ones: what a prior mean from old studies is worth.

    python -m benchmarks.quality.old_studies --half develop --out results/old_studies

The problems are those of ``benchmarks.suite.yahpo`` (tuning xgboost). Of each data set
of a half an old study is known: 60 random evaluations and the first 10 of a search
without transfer. The data set itself is left out when its search uses the others.

``without``: the default model, from one random start on each path. ``starts``: the
same from ``OldStudiesMean.starts()``. ``mean``: in addition with the mean as
``mean_module``. All evaluations count, the starts too; old ones do not. ``--random``
and ``--searched`` change the old studies; give such runs another ``--out``.
"""

from __future__ import annotations

__all__ = ["main", "report"]

import argparse
import copy
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.stats import wilcoxon
from torch import Tensor

from benchmarks.harness import RunKey, read_records, run
from benchmarks.suite.yahpo import DATA, DEVELOP_TASKS, REPORT_TASKS, YahpoXGBoost, make
from benchmarks.summary import Run, load
from botorch_structured.models import TreeStructuredGP
from botorch_structured.models.tree.old_studies import OldStudiesMean
from botorch_structured.optim import optimize_acqf_paths

_HALVES = {"develop": DEVELOP_TASKS, "report": REPORT_TASKS}
_SHOWN = (3, 5, 10, 15, 20, 30, 40)


class Transfer:
    """A method that knows the studies of the other data sets of its half.

    Args:
        half: "develop" or "report".
        out: The folder with the runs without transfer.
        data: The folder of the surrogate.
        random: Random evaluations in each old study.
        searched: Evaluations of a search without transfer in each.
        with_mean: Whether the model gets the mean; the starts are from old studies
            anyway.
    """

    def __init__(
        self,
        half: str,
        out: Path,
        data: Path,
        random: int,
        searched: int,
        with_mean: bool,
    ) -> None:
        self._studies = (half, out, data, random, searched)
        self._with_mean = with_mean

    def _mean(self, problem: YahpoXGBoost) -> OldStudiesMean:
        return copy.deepcopy(_learnt(problem.name, *self._studies))

    def starts(self, problem: YahpoXGBoost, seed: int) -> Tensor:
        """The first points, as many as there are paths."""
        return self._mean(problem).starts()

    def __call__(
        self, problem: YahpoXGBoost, X: Tensor, Y: Tensor, seed: int
    ) -> Tensor:
        """The next point."""
        mean = self._mean(problem) if self._with_mean else None
        return _suggest(problem, X, Y, mean)


def without(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """The default model; it knows nothing of old studies."""
    return _suggest(problem, X, Y, None)


def _suggest(problem: Any, X: Tensor, Y: Tensor, mean: OldStudiesMean | None) -> Tensor:
    model = TreeStructuredGP(X, Y, problem.space, mean_module=mean)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    acquisition = LogExpectedImprovement(model, best_f=Y.max())
    return optimize_acqf_paths(acquisition, space=problem.space, X_avoid=X)[0]


@lru_cache(maxsize=2)
def _learnt(task: str, *studies: Any) -> OldStudiesMean:
    every = _studies(*studies)
    space = make(0, task, studies[2]).space
    return OldStudiesMean.from_studies(
        [study for other, study in every.items() if other != task], space
    )


@lru_cache(maxsize=1)
def _studies(
    half: str, out: Path, data: Path, random: int, searched: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """The old studies by data set, larger outcomes are better."""
    found = {}
    for task in _HALVES[half]:
        problem = make(0, task, data)
        X = problem.space.sample(random, seed=int(task))
        key = RunKey(f"yahpo-{task}", "without", 0)
        points = [record["x"] for record in read_records(key.path(out))[:searched]]
        if len(points) < searched:
            raise ValueError(
                f"--searched: expected at most the {len(points)} evaluations of the "
                f"search without transfer on {task} in {out}, got {searched}."
            )
        X = torch.cat([X, X.new_tensor(points).reshape(-1, X.shape[-1])])
        found[task] = (X, -problem.truths(X).unsqueeze(-1))
    return found


def report(runs: Sequence[Run], tasks: Sequence[str], methods: Sequence[str]) -> str:
    """Scaled regret, its mean and median, and a paired test over data sets.

    Args:
        runs: Those of all methods and data sets, seed 0.
        tasks: Names of data sets.
        methods: "without", and those to compare with it.
    """
    by_key = {(one.problem, one.method): one for one in runs}
    traces = {}
    for method in methods:
        found = []
        for task in tasks:
            one = by_key[f"yahpo-{task}", method]
            assert one.optimum is not None and one.middle is not None
            found.append((one.trace() - one.optimum) / (one.middle - one.optimum))
        length = min(map(len, found))
        traces[method] = np.stack([trace[:length] for trace in found])
    shown = [n for n in _SHOWN if n <= min(t.shape[1] for t in traces.values())]
    lines = [
        f"{len(tasks)} data sets; mean / median scaled regret; quotient of the means; "
        "better / worse; one-sided Wilcoxon p",
        "| evaluations | " + " | ".join(map(str, shown)) + " |",
        "|---|" + "---|" * len(shown),
    ]
    base = traces["without"]
    for method, trace in traces.items():
        cells = []
        for n in shown:
            a, b = trace[:, n - 1], base[:, n - 1]
            cell = f"{a.mean():.3f} / {np.median(a):.3f}"
            if method != "without":
                p = wilcoxon(a, b, alternative="less").pvalue
                cell += f"; {a.mean() / b.mean():.2f}; {(a < b).sum()} / "
                cell += f"{(a > b).sum()}; {p:.2g}"
            cells.append(cell)
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--half", choices=_HALVES, default="develop")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--methods", nargs="*", default=["starts", "mean"])
    parser.add_argument("--tasks", type=int, help="only the first so many")
    parser.add_argument("--random", type=int, default=60)
    parser.add_argument("--searched", type=int, default=10)
    parser.add_argument("--budget", type=int, default=20, help="starts included")
    parser.add_argument("--out", type=Path, default=Path("results/old_studies"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--report", type=Path, help="only print the runs stored here")
    options = parser.parse_args(arguments)
    out = options.out / options.half
    every = _HALVES[options.half]
    tasks = every[: options.tasks]
    if options.report:
        print(report(load(options.report), tasks, ["without", *options.methods]))
        return
    settings = (options.half, out, options.data, options.random, options.searched)
    methods = {
        name: Transfer(*settings, with_mean=name == "mean") for name in options.methods
    }

    def problems(some: Sequence[str]) -> dict[str, Any]:
        return {f"yahpo-{t}": partial(make, task_id=t, data=options.data) for t in some}

    common = {"seeds": [0], "out": out, "processes": options.processes}
    old = {"without": without}  # all of them first: they are the old studies
    run(old, problems(every), budget=options.searched, **common)
    run({**old, **methods}, problems(tasks), budget=options.budget, **common)
    print(report(load(out), tasks, ["without", *methods]))


if __name__ == "__main__":
    main()
