"""Known signs of derivatives: Wang and Welch (2018), sections 3.2 and 4.

    python -m benchmarks.quality.wang --out results/wang

Four random starts and eight more evaluations on the illustrative mixture and an elastic
net, whose data the seed decides, too. Of a random forest on UCI's Adult data and of a
network on digits the runs are kept, the code is not. The score of an elastic net is its
rank among 100 random points; of the mixture, the distance to the optimum; of the
others, the error itself. Printed: the mean area under the curve of the best score so
far, and paired one-sided Wilcoxon tests that the area of ``--reference`` is the
smaller, with Holm's correction over all of them, and that it is the larger,
uncorrected. ``--reference monotone_paper`` is tested against the other two with the
paper's GPs, on the elastic net and the forest; any other against those with BoTorch's,
on the elastic net and the mixture. ``monotone`` is what the package documents,
``fit_gpytorch_mll`` of a ``DecomposedGP`` of ``MonotoneGP`` s, chosen on seeds 0 to 19.
Of the network and the mixture with the paper's GPs ``benchmarks.papers.wang`` has the
tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from benchmarks.command import parser_of, runs_of
from benchmarks.methods import MONOTONE
from benchmarks.summary import Run, holm, markdown_table
from botorch_structured.test_functions import ElasticNetTuning, MonotoneMixture1D

# problems on which signs are tested to have a smaller, or no larger, area
_CLAIMED = {"_paper": ("elastic_net", "forest"), "": ("elastic_net", "mixture")}
_RIVALS = ("standard", "decomposed")
_elastic_net = cache(ElasticNetTuning)  # the 100 points of its rank are evaluated once


def _mixture(seed: int) -> MonotoneMixture1D:
    return MonotoneMixture1D()


_MAKERS: dict[str, Any] = {"mixture": _mixture, "elastic_net": _elastic_net}
PROBLEMS = [*_MAKERS, "forest", "network"]


def scores(one: Run, budget: int) -> np.ndarray:
    """The best so far as the paper measures it, ``budget``; smaller is better."""
    best = one.trace()[:budget]
    if one.problem == "mixture":
        return best - MonotoneMixture1D().optimal_value
    if one.problem == "elastic_net":
        problem = _elastic_net(one.seed)
        return problem.rank(problem.bounds.new_tensor(best)).numpy().astype(float)
    return best


def tables(runs: Sequence[Run], budget: int, reference: str = "monotone_paper") -> str:
    """The tables that ``main`` prints."""
    curves: dict[str, dict[str, dict[int, np.ndarray]]] = {}
    for one in runs:
        if len(one.values) >= budget:
            by_method = curves.setdefault(one.problem, {})
            by_method.setdefault(one.method, {})[one.seed] = scores(one, budget)
    end = "_paper" if reference.endswith("_paper") else ""
    tests = [
        (problem, rival + end)
        for problem in _CLAIMED[end]
        for rival in _RIVALS
        if {reference, rival + end} <= set(curves.get(problem, {}))
    ]
    smaller, larger = (
        [_area_test(curves[p][reference], curves[p][rival], side) for p, rival in tests]
        for side in ("less", "greater")
    )
    columns = zip(smaller, holm(smaller), larger, strict=True)
    corrected = dict(zip(tests, columns, strict=True))
    parts = []
    for problem in [p for p in PROBLEMS if p in curves]:
        rows = []
        for method in [m for m in MONOTONE if m in curves[problem]]:
            all_runs = np.stack(list(curves[problem][method].values()))
            last = all_runs[:, -1]
            numbers = [f"{all_runs.mean():.5g}", f"{last.mean():.4g}"]
            p = corrected.get((problem, method))
            ps = [""] * 3 if p is None else [f"{x:.2g}" for x in p]
            rows.append([method, str(len(all_runs)), *numbers, *ps])
        header = ["method", "runs", "area", f"mean at {budget}"]
        header += [f"{reference} smaller: p", "p (Holm)", "larger: p"]
        parts.append(f"## {problem}\n\n" + markdown_table(header, rows))
    return "\n\n".join(parts)


def _area_test(
    ours: dict[int, np.ndarray], theirs: dict[int, np.ndarray], alternative: str
) -> float:
    seeds = sorted(set(ours) & set(theirs))
    change = np.array([ours[s].mean() - theirs[s].mean() for s in seeds])
    if not (change != 0).any():
        return 1.0
    return float(wilcoxon(change, alternative=alternative).pvalue)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = parser_of(
        __doc__, MONOTONE, "results/wang", seeds=25, first_seed=100, budget=12
    )
    parser.add_argument("--problems", nargs="+", default=[*_MAKERS], choices=_MAKERS)
    parser.add_argument("--reference", default="monotone_paper", choices=MONOTONE)
    options = parser.parse_args(arguments)
    problems = {name: _MAKERS[name] for name in options.problems}
    if options.report:
        problems = dict.fromkeys(PROBLEMS)
    runs = runs_of(options, MONOTONE, problems)
    print(tables(runs, options.budget, options.reference))


if __name__ == "__main__":
    main()
