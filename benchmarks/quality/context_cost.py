"""A part of the data first: context and cost against full evaluations.

    python -m benchmarks.quality.context_cost --half develop --data DIR --out OUT

Surrogates of xgboost on data sets (``benchmarks.suite.yahpo``), with their training
time. "full" is `suggest` without costs, 40 evaluations on all training data.

The others may spend half the seconds that "full" spent on that data set with that seed,
in at most 120 evaluations. "limited" is `suggest` with costs, in which an evaluation is
stopped after a fifth of the seconds and, from the 21st on, costs count in half of the
seconds only. "cost" is ``TreeStructuredGP`` with EI per expected second, times the
probability that what is left pays for it. "context" chooses the share of the training
set (1, 1/3, 1/9 or 1/27) with each candidate (Jenatton et al., section 5).

Cheap evaluations are not free: an evaluation is priced at its seconds plus (seconds
left) / (evaluations left), in the choices of the methods and not in the results.
A run ends when it has the error that "full" ends with (its regret after that is an
upper bound), unless ``--go-on``. Seconds are the surrogate's training times. Only the
best error *observed* with all training data counts.

Printed: scaled regret (0 the best known error, 1 the median of random points) when a
share of the seconds of "full" is spent; the share at which a method has the error that
"full" ends with; and on how many data sets it has at half of the seconds a better or a
worse error than that, and than "full" has in the same seconds.
Runs that ``--out`` has are not repeated. With ``--worth`` it says instead what a part
of the data costs and tells, at random points.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.acquisition import LogExpectedImprovement, PriorGuidedAcquisitionFunction
from botorch.fit import fit_gpytorch_mll
from scipy.stats import spearmanr
from torch import Tensor

from benchmarks.fits import objective
from benchmarks.suite.yahpo import DATA, DEVELOP_TASKS, REPORT_TASKS, YahpoXGBoost
from benchmarks.summary import markdown_table
from botorch_structured import acquisition
from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.columns import IntegerColumn
from botorch_structured.suggest import suggest

_METHODS = ("context", "cost", "limited")
_FULL_EVALUATIONS = 40
_LONGEST = 0.2  # of all seconds, an evaluation of "limited"
_BY_COST = 20  # evaluations, after which costs count in half of the seconds only
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
        rung = IntegerColumn("rung", 0, 3)
        self.space = SearchSpace.from_columns([*inner.columns, rung], tree)
        self.context = inner.dim
        self.scale = self.full.optimal_value, self.full.middle_value

    def __call__(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Errors and seconds of ``n x d`` points, with or without rungs, ``n`` each."""
        share: float | Tensor = 1.0
        if X.shape[1] > self.context:
            share = 3.0 ** -X[:, self.context]
        columns = self.full.evaluate(X[:, : self.context], share)
        return 1.0 - columns["acc"], columns["timetrain"]


class _Evaluations:
    """Points, errors and seconds of a run, begun at some points."""

    def __init__(
        self, evaluate: Callable[[Tensor], tuple[Tensor, Tensor]], X: Tensor
    ) -> None:
        self.evaluate = evaluate
        self.X = X
        self.errors, self.seconds = evaluate(X)

    def add(self, x: Tensor) -> float:
        """Evaluate a point; its seconds."""
        error, seconds = self.evaluate(x)
        self.X = torch.cat([self.X, x])
        self.errors = torch.cat([self.errors, error])
        self.seconds = torch.cat([self.seconds, seconds])
        return float(seconds)

    @property
    def Y(self) -> Tensor:
        """``n x 1``, larger is better."""
        return -self.errors.unsqueeze(-1)


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


def run_full(problem: ContextProblem, seed: int) -> _Evaluations:
    """`suggest` without costs on all training data."""
    torch.manual_seed(seed)
    run = _Evaluations(problem, problem.full.starts(seed))
    while len(run.X) < _FULL_EVALUATIONS:
        run.add(suggest(problem.full.space, run.X, run.Y).X)
    return run


def _fitted(
    X: Tensor, Y: Tensor, space: SearchSpace, before: Any, **options: Any
) -> TreeStructuredGP:
    model = TreeStructuredGP(X, Y.reshape(-1, 1), space, **options)
    fit_gpytorch_mll(objective(model), start_from=before)
    return model


def run_with_cost(
    problem: ContextProblem,
    seed: int,
    allowed: float,
    evaluations: int,
    goal: float = -math.inf,
    use_context: bool = True,
) -> _Evaluations:
    """Candidates, and shares of the data if they may be chosen, by EI per cost.

    Args:
        problem: The data set.
        seed: The run.
        allowed: Seconds; no evaluation is started when they are spent.
        evaluations: The most evaluations.
        goal: Stop when this error is found with all data.
        use_context: Whether shares are chosen.
    """
    torch.manual_seed(seed)
    space = problem.space
    c = problem.context
    full = {c: 0.0}
    X = space.starts(seed=seed)
    X[:, c] = 0.0
    run = _Evaluations(problem, X)
    options = {"context_features": [c]} if use_context else {}
    # what was spent since the recommended candidate was last evaluated on all data
    since = 0.0
    model = None
    costs = None
    while (left := allowed - float(run.seconds.sum())) > 0 and len(run.X) < evaluations:
        X = run.X
        if bool((run.errors[X[:, c] == 0.0] <= goal).any()):
            break
        price = left / (evaluations - len(X))
        model = _fitted(X, run.Y, space, model, **options)
        costs = _fitted(X, (run.seconds + price).log(), space, costs)
        best_f, x = acquisition.best_at_context(model, X, full)
        x = x.unsqueeze(0)
        of_full = costs.posterior(x).mean.exp().item()
        is_known = bool(((X - x).abs().amax(-1) < 1e-9).any())
        confirm = use_context and not is_known and since >= of_full
        if not confirm:
            improvement: Any = LogExpectedImprovement(model, best_f=run.Y.max())
            if use_context:
                improvement = acquisition.ContextLogExpectedImprovement(
                    model, best_f, full
                )
            prior = acquisition.CostPrior(costs, left + price)
            x, _ = optimize_acqf_paths(
                PriorGuidedAcquisitionFunction(improvement, prior, log=True),
                space=space,
                X_avoid=X,
                fixed_features=None if use_context else full,
                num_restarts=4,
            )
        spent = run.add(x)
        since = 0.0 if confirm else since + spent + price
    return run


def run_limited(
    problem: ContextProblem,
    seed: int,
    allowed: float,
    evaluations: int,
    goal: float = -math.inf,
) -> _Evaluations:
    """`suggest` with costs, where an evaluation that takes long is stopped.

    An evaluation is stopped after a fifth of the seconds: it has failed, and these are
    what it cost. From the 21st on, half of the seconds are for suggestions without
    costs: where less than half of what was spent since the starts went to them, the
    next one is without costs. Arguments are those of `run_with_cost`.
    """
    torch.manual_seed(seed)
    space = problem.full.space
    longest = _LONGEST * allowed

    def evaluate(X: Tensor) -> tuple[Tensor, Tensor]:
        error, seconds = problem(X)
        return error.where(seconds <= longest, math.inf), seconds.clamp_max(longest)

    run = _Evaluations(evaluate, problem.full.starts(seed))
    last = None
    plain = 0.0
    spent = 0.0
    while (left := allowed - float(run.seconds.sum())) > 0 and len(run.X) < evaluations:
        if bool((run.errors <= goal).any()):
            break
        by_cost = len(run.X) < _BY_COST or plain > 0.5 * spent
        x = space.sample(1)
        if bool(run.errors.isfinite().any()):
            price = left / (evaluations - len(run.X))
            costs = (run.seconds + price).unsqueeze(-1) if by_cost else None
            last = suggest(space, run.X, run.Y, start_from=last, train_cost=costs)
            x = last.X
        seconds = run.add(x)
        spent += seconds
        plain += 0.0 if by_cost else seconds
    return run


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
    full = {(t.problem, t.seed): t for t in traces if t.method == "full"}
    rows = []
    for method in dict.fromkeys(t.method for t in traces):
        regrets, ratios, finals, equals = [], [], [], []
        for run in [t for t in traces if t.method == method]:
            whole = full[run.problem, run.seed]
            best, middle = scales[run.problem]
            reached = [run.best(share * whole.spent) for share in _SHARES]
            regrets.append([(error - best) / (middle - best) for error in reached])
            final = min(whole.errors)
            ratios.append(run.seconds_to(final) / whole.spent)
            at_half = run.best(0.5 * whole.spent)
            finals.append(at_half - final)
            equals.append(at_half - whole.best(0.5 * whole.spent))
        row = [method, str(len(ratios))]
        row += [f"{regret:.4f}" for regret in np.median(regrets, axis=0)]
        in_half = sum(ratio <= 0.5 for ratio in ratios)
        row += [f"{np.median(ratios):.3f}", f"{in_half} of {len(ratios)}"]
        for changes in (finals, equals):
            worse = np.greater(changes, 0).sum()
            row.append(f"{np.less(changes, 0).sum()} / {worse}")
        rows.append(row)
    header = ["method", "runs", *(f"regret at {share:g}" for share in _SHARES)]
    header += ["seconds to the error of full", "at most half"]
    header += ["at half better / worse", "in equal seconds"]
    return markdown_table(header, rows)


def worth(problem: ContextProblem, share: float, points: int = 200) -> list[float]:
    """What so large a share of the training set costs and tells, at random points.

    Returns:
        The median of the seconds relative to those on all data; the rank correlation of
        the errors with those on all data; the same among the best quarter.
    """
    X = problem.full.space.sample(points, seed=5)
    whole = problem.full.evaluate(X)
    part = problem.full.evaluate(X, share)
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
    parser.add_argument("--evaluations", type=int, default=120, help="at most")
    parser.add_argument(
        "--go-on", action="store_true", help="also after finding the error of full"
    )
    parser.add_argument("--worth", action="store_true", help="of a part of the data")
    parser.add_argument("--report", action="store_true", help="run nothing")
    given = parser.parse_args(arguments)
    tasks = given.tasks
    if tasks is None:
        tasks = DEVELOP_TASKS if given.half == "develop" else REPORT_TASKS
    torch.set_num_threads(1)
    problems = {task: ContextProblem(task, given.data) for task in tasks}
    if given.worth:
        rows = []
        for share in (1 / 27, 0.1, 1 / 3, 1.0):
            medians = np.median([worth(p, share) for p in problems.values()], axis=0)
            rows.append([f"{share:.3f}", *(f"{value:.2f}" for value in medians)])
        header = ["share", "seconds", "rank correlation", "of the best quarter"]
        print(markdown_table(header, rows))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / f"{given.half}.jsonl"
    traces = {(t.problem, t.seed, t.method): t for t in _read(file)}
    todo = [(t, s, m) for t in tasks for s in range(given.seeds) for m in given.methods]
    for task, seed, method in [] if given.report else todo:
        problem = problems[task]
        for name in ("full", method):
            if (task, seed, name) in traces:
                continue
            if name == "full":
                run = run_full(problem, seed)
            else:
                full = traces[task, seed, "full"]
                goal = -math.inf if given.go_on else min(full.errors)
                limits = problem, seed, 0.5 * full.spent, given.evaluations, goal
                if name == "limited":
                    run = run_limited(*limits)
                else:
                    run = run_with_cost(*limits, use_context=name == "context")
            has_rungs = run.X.shape[1] > problem.context
            shares = (
                3.0 ** -run.X[:, problem.context] if has_rungs else run.X[:, 0] ** 0
            )
            parts = (run.errors, run.seconds, shares)
            trace = Trace(task, name, seed, *(part.tolist() for part in parts))
            traces[task, seed, name] = trace
            with file.open("a") as stream:
                stream.write(json.dumps(asdict(trace)) + "\n")
            print(task, seed, name, min(trace.errors), round(trace.spent), flush=True)
    chosen = [t for t in traces.values() if t.problem in problems]
    if chosen:
        print(report(chosen, {task: p.scale for task, p in problems.items()}))


if __name__ == "__main__":
    main()
