"""A part of the data first: context and cost against full evaluations.

    python -m benchmarks.quality.context_cost --half develop --data DIR --out OUT

Surrogates of xgboost on data sets (``benchmarks.suite.yahpo``), with their training
time. "full" is `suggest` without costs, 40 evaluations on all training data; with
``--full-from DIR`` from a folder of runs of ``benchmarks.suite``, method "default".

The others may spend half the seconds that "full" spent on that data set with that seed,
in at most 120 evaluations. "limited" is `suggest` with costs, in which an evaluation is
stopped after a fifth of the seconds and, from the 21st on, costs count in half of the
seconds only. "cost" is ``TreeStructuredGP`` with EI per expected second, times the
probability that what is left pays for it. "context" chooses the share of the training
set (1, 1/3, 1/9 or 1/27) with each candidate (Jenatton et al., section 5), "halving"
does so after a bracket of successive halving. Why all data: on the median development
data set, a tenth of the data takes 0.37 of the seconds, and its errors have a rank
correlation of 0.65 with those on all data (0.40 among the best quarter of 200 random
points).

Cheap evaluations are not free: an evaluation is priced at its seconds plus (seconds
left) / (evaluations left), in the choices of the methods and not in the results.
A run ends when it has the error that "full" ends with (its regret after that is an
upper bound), unless ``--go-on``. Seconds are the surrogate's training times. Found is
the best error *observed* with all training data; what a model predicts, and evaluations
on a part of it, do not count.

Printed: scaled regret (0 the best known error, 1 the median of random points) when a
share of the seconds of "full" is spent; the share at which a method has the error that
"full" ends with (exactly, and up to 0.001 of scaled regret); and on how many data sets
it has at half of the seconds a better or a worse error than that (p: one-sided Wilcoxon
test), and than "full" has in the same seconds.
Runs that ``--out`` has are not repeated. With ``--worth`` it says instead what a part
of the data costs and tells, at random points.
"""

from __future__ import annotations

__all__ = [
    "ContextProblem",
    "Trace",
    "main",
    "read_full",
    "run_full",
    "run_limited",
    "run_with_cost",
    "worth",
]

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import LogExpectedImprovement, PriorGuidedAcquisitionFunction
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.stats import spearmanr, wilcoxon
from torch import Tensor

from benchmarks.harness import read_records
from benchmarks.suite.yahpo import DATA, DEVELOP_TASKS, REPORT_TASKS, YahpoXGBoost
from benchmarks.summary import markdown_table
from botorch_structured.acquisition import (
    ContextLogExpectedImprovement,
    CostPrior,
    best_at_context,
)
from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import (
    hyperband_rungs,
    optimize_acqf_paths,
    successive_halving,
)
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.columns import IntegerColumn
from botorch_structured.suggest import suggest

_RUNGS = 3
# Scaled regret that does not matter.
_CLOSE = 1e-3
_METHODS = ("context", "halving", "cost", "limited")
# "limited": the longest evaluation, as a share of all seconds; after so many
# evaluations costs count in half of the seconds only.
_LONGEST, _KNOWN = 0.2, 20
_SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)


class ContextProblem:
    """A data set; the last column k says that 3^-k of the training set is used.

    Rungs, not any share: with nearly all of the data an evaluation is as dear as with
    all of them, and has to be repeated.

    Attributes:
        space: With the column "rung".
        context: Its number.
        scale: The best known error, and the median one of random points.
    """

    def __init__(self, task: str, data: Path = DATA) -> None:
        self.full = YahpoXGBoost(task, data)
        inner = self.full.space
        tree = ParameterTree(
            inner.dim + 1,
            conditions=inner.tree.conditions,
            values=inner.tree.decision_values,
        )
        rung = IntegerColumn("rung", 0, _RUNGS)
        self.space = SearchSpace.from_columns([*inner.columns, rung], tree)
        self.context = inner.dim
        self.scale = self.full.optimal_value, self.full.middle_value

    def __call__(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Errors and seconds of ``n x d`` points, ``n`` each."""
        found = self.full.evaluate(X[:, : self.context], self.share(X))
        return 1.0 - found["acc"], found["timetrain"]

    def share(self, X: Tensor) -> Tensor:
        """The shares of the training set, ``n``."""
        return 3.0 ** -X[:, self.context]


@dataclass(frozen=True)
class Trace:
    """The evaluations of a run.

    Attributes:
        problem: The data set.
        method: Its name.
        seed: Its seed.
        errors: In the order of evaluation.
        seconds: Of each.
        shares: Of the training set.
    """

    problem: str
    method: str
    seed: int
    errors: list[float]
    seconds: list[float]
    shares: list[float]

    @property
    def spent(self) -> float:
        """Seconds of all evaluations."""
        return sum(self.seconds)

    def best(self, seconds: float) -> float:
        """The best error with all training data after so many seconds."""
        spent = np.cumsum(self.seconds)
        counts = (spent <= seconds * (1 + 1e-9)) & (np.array(self.shares) > 1 - 1e-9)
        return float(np.array(self.errors)[counts].min(initial=math.inf))

    def seconds_to(self, error: float) -> float:
        """Seconds after which the error is found with all data; infinite if never."""
        good = np.array(self.errors) <= error + 1e-12
        at = (good & (np.array(self.shares) > 1 - 1e-9)).nonzero()[0]
        return float(np.cumsum(self.seconds)[at[0]]) if len(at) else math.inf


def _fitted(
    X: Tensor, Y: Tensor, space: SearchSpace, before: Any = None, **options: Any
) -> TreeStructuredGP:
    model = TreeStructuredGP(X, Y.reshape(-1, 1), space, **options)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, start_from=before)
    return model


def run_full(
    problem: ContextProblem, seed: int, evaluations: int
) -> tuple[Tensor, ...]:
    """`suggest` without costs on all training data: errors, seconds and shares."""
    torch.manual_seed(seed)
    space = problem.full.space

    def evaluate(X: Tensor) -> tuple[Tensor, Tensor]:
        found = problem.full.evaluate(X)
        return 1.0 - found["acc"], found["timetrain"]

    X = problem.full.starts(seed)
    errors, seconds = evaluate(X)
    while len(X) < evaluations:
        x = suggest(space, X, -errors.unsqueeze(-1)).X
        error, second = evaluate(x)
        X, errors = torch.cat([X, x]), torch.cat([errors, error])
        seconds = torch.cat([seconds, second])
    return errors, seconds, torch.ones(len(X))


def read_full(
    problem: ContextProblem, seed: int, evaluations: int, folder: Path
) -> tuple[Tensor, ...]:
    """``run_full``'s answer from a run of ``benchmarks.suite``, method "default".

    Raises:
        ValueError: There are fewer evaluations.
    """
    file = folder / f"yahpo-{problem.full.name}" / "default" / f"{seed}.jsonl"
    points = [record["x"] for record in read_records(file)][:evaluations]
    if len(points) < evaluations:
        raise ValueError(
            f"{file}: expected {evaluations} evaluations, got {len(points)}."
        )
    found = problem.full.evaluate(torch.tensor(points, dtype=torch.double))
    return 1.0 - found["acc"], found["timetrain"], torch.ones(evaluations)


def run_with_cost(
    problem: ContextProblem,
    seed: int,
    allowed: float,
    evaluations: int,
    method: str = "context",
    goal: float = -math.inf,
) -> tuple[Tensor, ...]:
    """Candidates, and shares of the data unless it is "cost", by EI per cost.

    In all of them the criterion is multiplied by the probability that what is left pays
    for an evaluation.

    Args:
        problem: The data set.
        seed: The run.
        allowed: Seconds; no evaluation is started when they are spent.
        evaluations: The most evaluations.
        method: "context", "halving" or "cost".
        goal: Stop when this error is found with all data.

    Returns:
        Errors, seconds and shares.
    """
    torch.manual_seed(seed)
    space, c = problem.space, problem.context
    use_context = method != "cost"
    target = {c: 0.0}
    X = space.starts(seed=seed)
    X[:, c] = 0.0
    if method == "halving":
        X = torch.cat([X, space.sample(9 - len(X), seed=seed)])
        rungs = [
            (n, float(round(-math.log(share, 3))))
            for n, share in hyperband_rungs(1 / 9)[0]
        ]
        X, Y, S = successive_halving(problem, X, c, rungs, maximize=False)
        errors, seconds = Y.flatten(), S.flatten()
    else:
        errors, seconds = problem(X)
    # what was spent since the recommended candidate was last evaluated on all data
    since, model, costs = 0.0, None, None
    while float(seconds.sum()) < allowed and len(X) < evaluations:
        if bool((errors[X[:, c] == 0.0] <= goal).any()):
            break
        left = allowed - float(seconds.sum())
        price = left / (evaluations - len(X))
        options = {"context_features": [c]} if use_context else {}
        model = _fitted(X, -errors, space, model, **options)
        costs = _fitted(X, (seconds + price).log(), space, costs)
        best_f, x = best_at_context(model, X, target)
        x = x.unsqueeze(0)
        of_full = costs.posterior(x).mean.exp().item()
        is_known = bool(((X - x).abs().amax(-1) < 1e-9).any())
        confirm = use_context and not is_known and since >= of_full
        if not confirm:
            improvement: Any = LogExpectedImprovement(model, best_f=(-errors).max())
            if use_context:
                improvement = ContextLogExpectedImprovement(model, best_f, target)
            acqf = PriorGuidedAcquisitionFunction(
                improvement, CostPrior(costs, left + price), log=True
            )
            x, _ = optimize_acqf_paths(
                acqf,
                space=space,
                X_avoid=X,
                fixed_features=None if use_context else target,
                num_restarts=4,
            )
        error, second = problem(x)
        since = 0.0 if confirm else since + float(second) + price
        X, errors = torch.cat([X, x]), torch.cat([errors, error])
        seconds = torch.cat([seconds, second])
    return errors, seconds, problem.share(X)


def run_limited(
    problem: ContextProblem,
    seed: int,
    allowed: float,
    evaluations: int,
    goal: float = -math.inf,
) -> tuple[Tensor, ...]:
    """`suggest` with costs, where an evaluation that takes long is stopped.

    An evaluation is stopped after a fifth of the seconds: it has failed, and these are
    what it cost. From the 21st on, half of the seconds are for suggestions without
    costs: where less than half of what was spent since the starts went to them, the
    next one is without costs.

    Args:
        problem: The data set; all training data are used.
        seed: The run.
        allowed: Seconds; no evaluation is started when they are spent.
        evaluations: The most evaluations.
        goal: Stop when this error is found.

    Returns:
        Errors (infinite where an evaluation was stopped), seconds and shares.
    """
    torch.manual_seed(seed)
    space = problem.full.space
    longest = _LONGEST * allowed

    def evaluate(X: Tensor) -> tuple[Tensor, Tensor]:
        found = problem.full.evaluate(X)
        error, seconds = 1.0 - found["acc"], found["timetrain"]
        return error.where(seconds <= longest, math.inf), seconds.clamp_max(longest)

    X = problem.full.starts(seed)
    errors, seconds = evaluate(X)
    last, plain, spent = None, 0.0, 0.0
    while float(seconds.sum()) < allowed and len(X) < evaluations:
        if bool((errors <= goal).any()):
            break
        by_cost = len(X) < _KNOWN or plain > 0.5 * spent
        if bool(errors.isfinite().any()):
            price = (allowed - seconds.sum()) / (evaluations - len(X))
            costs = (seconds + price).unsqueeze(-1) if by_cost else None
            Y = -errors.unsqueeze(-1)
            last = suggest(space, X, Y, start_from=last, train_cost=costs)
            x = last.X
        else:  # nothing is known
            x = space.sample(1)
        error, second = evaluate(x)
        spent += float(second)
        plain += 0.0 if by_cost else float(second)
        X, errors = torch.cat([X, x]), torch.cat([errors, error])
        seconds = torch.cat([seconds, second])
    return errors, seconds, torch.ones(len(X))


def _read(file: Path) -> list[Trace]:
    if not file.exists():
        return []
    content = file.read_text()
    whole = content[: content.rfind("\n") + 1]
    if whole != content:  # it was killed while it wrote
        file.write_text(whole)
    return [Trace(**json.loads(line)) for line in whole.splitlines()]


def report(traces: Sequence[Trace], scales: dict[str, tuple[float, float]]) -> str:
    """Scaled regret by share of the seconds of "full", and when its error is found."""
    by_run = {(t.problem, t.seed, t.method): t for t in traces}
    rows = []
    for method in dict.fromkeys(t.method for t in traces):
        regrets: dict[float, list[float]] = {share: [] for share in _SHARES}
        ratios, close, differences, counts, equal = [], [], [], [], []
        for (problem, seed, name), run in by_run.items():
            if name != method:
                continue
            full = by_run[problem, seed, "full"]
            best, middle = scales[problem]
            for share in _SHARES:
                found = run.best(share * full.spent)
                regrets[share].append((found - best) / (middle - best))
            ratios.append(run.seconds_to(min(full.errors)) / full.spent)
            nearly = min(full.errors) + _CLOSE * (middle - best)
            close.append(run.seconds_to(nearly) / full.spent)
            of_half = run.best(0.5 * full.spent)
            differences.append((of_half - min(full.errors)) / (middle - best))
            counts.append(len(run.errors))
            equal.append(of_half - full.best(0.5 * full.spent))
        better, worse = np.less(differences, 0), np.greater(differences, 0)
        p = "-"
        if np.any(differences) and np.isfinite(differences).all():
            p = f"{wilcoxon(differences, alternative='less').pvalue:.2g}"
        rows.append(
            [
                method,
                str(len(ratios)),
                *(f"{np.median(regrets[share]):.4f}" for share in _SHARES),
                f"{np.median(ratios):.3f}",
                f"{sum(r <= 0.5 for r in ratios)} of {len(ratios)}",
                f"{np.median(close):.3f}",
                f"{sum(r <= 0.5 for r in close)} of {len(close)}",
                f"{np.sum(better)} / {np.sum(worse)}",
                p,
                f"{np.sum(np.less(equal, 0))} / {np.sum(np.greater(equal, 0))}",
                f"{np.mean(counts):.0f}",
            ]
        )
    header = ["method", "runs", *(f"regret at {share:g}" for share in _SHARES)]
    header += ["seconds to the error of full", "at most half"]
    header += ["up to 0.001", "at most half"]
    header += ["at half better / worse", "p", "in equal seconds", "evaluations"]
    return markdown_table(header, rows)


def worth(problem: ContextProblem, share: float, points: int = 200) -> list[float]:
    """What so large a share of the training set costs and tells, at random points.

    Returns:
        The median of the seconds relative to those on all data; the rank correlation of
        the errors with those on all data; the same among the best quarter.
    """
    X = problem.full.space.sample(points, seed=5)
    whole, part = problem.full.evaluate(X), problem.full.evaluate(X, share)
    ratio = (part["timetrain"] / whole["timetrain"]).median()
    good = whole["acc"] > whole["acc"].quantile(0.75)
    of_all = spearmanr(whole["acc"], part["acc"]).statistic
    of_good = spearmanr(whole["acc"][good], part["acc"][good]).statistic
    return [float(ratio), float(of_all), float(of_good)]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--half", choices=["develop", "report"], default="develop")
    parser.add_argument("--tasks", nargs="+", help="some of that half")
    parser.add_argument("--methods", nargs="+", default=["limited"], choices=_METHODS)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=Path("results/context_cost"))
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--full-evaluations", type=int, default=40)
    parser.add_argument("--full-from", type=Path, help="runs of the suite's default")
    parser.add_argument(
        "--evaluations", type=int, default=120, help="the most of others"
    )
    parser.add_argument(
        "--share", type=float, default=0.5, help="of the seconds of full"
    )
    parser.add_argument(
        "--go-on", action="store_true", help="also after finding the error of full"
    )
    parser.add_argument("--worth", action="store_true", help="of a part of the data")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    half = DEVELOP_TASKS if options.half == "develop" else REPORT_TASKS
    tasks = options.tasks or half
    if not {*tasks} <= {*half}:
        parser.error(f"--tasks: expected some of {half}, got {tasks}")
    torch.set_num_threads(1)
    if options.worth:
        problems = [ContextProblem(task, options.data) for task in tasks]
        rows = []
        for share in (1 / 27, 0.1, 1 / 3, 1.0):
            medians = np.median([worth(p, share) for p in problems], axis=0)
            rows.append([f"{share:.3f}", *(f"{value:.2f}" for value in medians)])
        header = ["share", "seconds", "rank correlation", "of the best quarter"]
        print(markdown_table(header, rows))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{options.half}.jsonl"
    traces = {(t.problem, t.seed, t.method): t for t in _read(file)}
    scales = {}
    for task in tasks:
        problem = ContextProblem(task, options.data)
        scales[task] = problem.scale
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        todo = [(s, m) for s in seeds for m in ("full", *options.methods)]
        for seed, method in [] if options.report else todo:
            if (task, seed, method) in traces:
                continue
            if method == "full" and options.full_from is not None:
                found = read_full(
                    problem, seed, options.full_evaluations, options.full_from
                )
            elif method == "full":
                found = run_full(problem, seed, options.full_evaluations)
            else:
                full = traces[task, seed, "full"]
                allowed = options.share * full.spent
                goal = -math.inf if options.go_on else min(full.errors)
                if method == "limited":
                    found = run_limited(
                        problem, seed, allowed, options.evaluations, goal
                    )
                else:
                    found = run_with_cost(
                        problem, seed, allowed, options.evaluations, method, goal
                    )
            trace = Trace(task, method, seed, *(part.tolist() for part in found))
            traces[task, seed, method] = trace
            with file.open("a") as stream:
                stream.write(json.dumps(asdict(trace)) + "\n")
            print(task, seed, method, min(trace.errors), round(trace.spent), flush=True)
    chosen = [t for t in traces.values() if t.problem in scales]
    if chosen:
        print(report(chosen, scales))


if __name__ == "__main__":
    main()
