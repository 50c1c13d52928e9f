"""Evaluations that differ in cost: stopping long ones against full evaluations.

    python -m benchmarks.quality.costs --half develop --data DIR --out FILE

Surrogates of xgboost on data sets (``benchmarks.suite.yahpo``), with their training
time. "full" is `suggest` without costs, 40 evaluations. "limited" may spend half the
seconds that "full" spent on that data set with that seed, in at most 120 evaluations:
`suggest` with costs, in which an evaluation is stopped after a fifth of the seconds
and, from the 21st on, costs count in half of the seconds only. Cheap evaluations are
not free: an evaluation is priced at its seconds plus (seconds left) / (evaluations
left), in the choices and not in the results.

Printed: scaled regret (0 the best known error, 1 the median of random points) when a
share of the seconds of "full" is spent; the share at which a method has the error that
"full" ends with; and in how many runs it has at half of the seconds a better or a worse
error than that, and than "full" has in the same seconds. Runs that ``--out`` has are
not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.data import DATA
from benchmarks.suite.yahpo import DEVELOP_TASKS, REPORT_TASKS, YahpoXGBoost
from benchmarks.summary import markdown_table
from botorch_structured.suggest import suggest

_FULL_EVALUATIONS = 40
_LONGEST = 0.2  # of all seconds, an evaluation of "limited"
_BY_COST = 20  # evaluations, after which costs count in half of the seconds only
_SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Trace:
    """The evaluations of a run.

    Attributes:
        problem: The data set.
        method: Its name.
        seed: Its seed.
        errors: In the order of evaluation; infinite where one was stopped.
        seconds: Of each.
    """

    problem: str
    method: str
    seed: int
    errors: list[float]
    seconds: list[float]

    def best(self, seconds: float) -> float:
        """The best error after so many seconds."""
        counts = np.cumsum(self.seconds) <= seconds * (1 + 1e-9)
        return float(np.array(self.errors)[counts].min(initial=math.inf))

    def seconds_to(self, error: float) -> float:
        """Seconds after which the error is reached; infinite if never."""
        at = (np.array(self.errors) <= error + 1e-12).nonzero()[0]
        return float(np.cumsum(self.seconds)[at[0]]) if len(at) else math.inf


def run(
    problem: YahpoXGBoost, seed: int, evaluations: int, allowed: float = math.inf
) -> tuple[Tensor, Tensor]:
    """`suggest`, with costs where seconds are limited; errors and seconds.

    Where less than half of what was spent since the starts went to suggestions without
    costs, the next one from the 21st on is without them.

    Args:
        problem: The data set.
        seed: The run.
        evaluations: The most evaluations.
        allowed: Seconds; no evaluation is started when they are spent.
    """
    torch.manual_seed(seed)
    space = problem.space
    longest = _LONGEST * allowed

    def evaluate(X: Tensor) -> tuple[Tensor, Tensor]:
        columns = problem.evaluate(X)
        seconds = columns["timetrain"]
        error = (1.0 - columns["acc"]).where(seconds <= longest, math.inf)
        return error, seconds.clamp_max(longest)

    X = problem.starts(seed)
    errors, seconds = evaluate(X)
    last = None
    plain = 0.0
    spent = 0.0
    while (left := allowed - float(seconds.sum())) > 0 and len(X) < evaluations:
        costs = None
        if left < math.inf and (len(X) < _BY_COST or plain > 0.5 * spent):
            costs = (seconds + left / (evaluations - len(X))).unsqueeze(-1)
        x = space.sample(1)
        if bool(errors.isfinite().any()):
            Y = -errors.unsqueeze(-1)
            before = last if left < math.inf else None
            last = suggest(space, X, Y, start_from=before, train_cost=costs)
            x = last.X
        error, second = evaluate(x)
        spent += float(second)
        plain += float(second) if costs is None else 0.0
        X = torch.cat([X, x])
        errors = torch.cat([errors, error])
        seconds = torch.cat([seconds, second])
    return errors, seconds


def _read(file: Path) -> list[Trace]:
    if not file.exists():
        return []
    content = file.read_text()
    whole = content[: content.rfind("\n") + 1]
    if whole != content:  # it was killed while it wrote
        file.write_text(whole)
    rows = [json.loads(line) for line in whole.splitlines()]
    names = list(Trace.__annotations__)
    return [Trace(**{name: row[name] for name in names}) for row in rows]


def report(traces: Sequence[Trace], scales: dict[str, tuple[float, float]]) -> str:
    """Scaled regret by share of the seconds of "full", and when its error is found."""
    full = {(t.problem, t.seed): t for t in traces if t.method == "full"}
    rows = []
    for method in dict.fromkeys(t.method for t in traces):
        regrets, ratios, finals, equals = [], [], [], []
        for one in [t for t in traces if t.method == method]:
            whole = full[one.problem, one.seed]
            best, middle = scales[one.problem]
            total = sum(whole.seconds)
            reached = [one.best(share * total) for share in _SHARES]
            regrets.append([(error - best) / (middle - best) for error in reached])
            final = min(whole.errors)
            ratios.append(one.seconds_to(final) / total)
            at_half = one.best(0.5 * total)
            finals.append(at_half - final)
            equals.append(at_half - whole.best(0.5 * total))
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


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--half", choices=["develop", "report"], default="develop")
    parser.add_argument("--tasks", nargs="+", help="some of that half")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=Path("costs.jsonl"))
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--evaluations", type=int, default=120, help="at most")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    half = DEVELOP_TASKS if options.half == "develop" else REPORT_TASKS
    torch.set_num_threads(1)
    problems = {
        task: YahpoXGBoost(task, options.data) for task in options.tasks or half
    }
    traces = {(t.problem, t.seed, t.method): t for t in _read(options.out)}
    for seed in [] if options.report else range(options.seeds):
        for task, problem in problems.items():
            for name in ("full", "limited"):
                if (task, seed, name) in traces:
                    continue
                limits = (_FULL_EVALUATIONS, math.inf)
                if name == "limited":
                    allowed = 0.5 * sum(traces[task, seed, "full"].seconds)
                    limits = (options.evaluations, allowed)
                errors, seconds = run(problem, seed, *limits)
                trace = Trace(task, name, seed, errors.tolist(), seconds.tolist())
                traces[task, seed, name] = trace
                with options.out.open("a") as stream:
                    stream.write(json.dumps(asdict(trace)) + "\n")
    scales = {t: (p.optimal_value, p.middle_value) for t, p in problems.items()}
    chosen = [t for t in traces.values() if t.problem in scales]
    if chosen:
        print(report(chosen, scales))


if __name__ == "__main__":
    main()
