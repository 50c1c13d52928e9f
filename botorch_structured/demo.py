"""The demonstration behind ``python -m botorch_structured``.

`DemoComparison` has two studies of one problem, by a model and at random, `Settings`
are its options, and `learner_table`, `summary`, `code` and `picture` show both.
"""

from __future__ import annotations

__all__ = [
    "METHODS",
    "MODEL",
    "RANDOM",
    "DemoComparison",
    "FailedEvaluation",
    "Settings",
    "best_trial",
    "code",
    "learner_table",
    "picture",
    "summary",
]

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from botorch_structured.acquisition import PathExpectedImprovement
from botorch_structured.plots import plot_traces, plot_tree
from botorch_structured.plots.traces import best_so_far
from botorch_structured.study import Study, Trial
from botorch_structured.suggest import fit_models
from botorch_structured.test_functions import ScikitLearnCASH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODEL, RANDOM = "botorch-structured", "random search"
METHODS = {MODEL: "evaluations.jsonl", RANDOM: "random_search.jsonl"}

# Two of nine learners have a single configuration, which may be drawn again: so many
# draws contain a new point.
_TRIES = 200
# Digits of an error rate: two that differ by the order of a sum are the same.
_DIGITS = 12


class FailedEvaluation(Exception):
    """A learner raised an exception, or took too long."""


class DemoComparison:
    """A problem and a `Study` for each of two methods, from the same starts.

    Args:
        problem: What to tune.
        budget: How many evaluations each method chooses after the common starts.
        seed: Decides starts and choices.
        folder: Where the logs go; those that are there are gone on with. Default: none
            are written.

    Raises:
        ValueError: A log is not of this comparison.
    """

    def __init__(
        self,
        problem: ScikitLearnCASH,
        budget: int,
        seed: int,
        folder: Path | None = None,
    ) -> None:
        self.problem, self.budget, self.seed = problem, budget, seed
        self.space = problem.space
        self.starts = problem.starts(seed)
        #: How many evaluations a method has seen at its end.
        self.length = len(self.starts) + budget
        firsts = {MODEL: self.starts, RANDOM: self._random_points()}
        self.studies = {
            method: Study(
                self.space,
                {"error": "minimize"},
                log=None if folder is None else folder / name,
                seed=10_000 * seed,
                starts=self.space.decode(firsts[method]),
            )
            for method, name in METHODS.items()
        }

    def _random_points(self) -> Tensor:
        """The starts, then random points that are new."""
        known = self.starts.tolist()
        while len(known) < self.length:
            draws = self.space.sample(_TRIES, seed=10_000 * self.seed + len(known))
            points = draws.tolist()
            known.append(next((x for x in points if x not in known), points[-1]))
        return torch.tensor(known, dtype=torch.double)

    def run(self, method: str) -> None:
        """Make the missing evaluations, under a progress bar."""
        study = self.studies[method]
        if method == RANDOM:  # it shares the starts, which are evaluated once
            done = self.studies[MODEL].trials[len(study.trials) : len(self.starts)]
            study.tell_many(
                [t.config for t in done],
                [t.value for t in done],
                [t.cost for t in done],
                [t.error for t in done],
            )
        study.optimize(
            self._evaluate,
            max(0, self.length - len(study.trials)),
            catch=FailedEvaluation,
            progress=f"{method:18}",
        )

    def _evaluate(self, config: Mapping[str, Any]) -> float:
        result = self.problem.evaluate(config)
        if result.error is not None:
            raise FailedEvaluation(result.error)
        return round(result.value, _DIGITS)

    def trials(self, method: str) -> list[Trial]:
        """What a method has seen so far."""
        return self.studies[method].trials

    @property
    def evaluated(self) -> list[Trial]:
        """What was evaluated: the common starts once, then the choices of both."""
        return self.trials(MODEL) + self.trials(RANDOM)[len(self.starts) :]

    def data(self, method: str) -> tuple[Tensor, Tensor]:
        """The same as ``n x d`` points and ``n x 1`` error rates; 1.0 for failures."""
        trials = self.trials(method)
        X = self.space.encode([t.config for t in trials])
        errors = [1.0 if t.value is None else t.value for t in trials]
        return X, torch.tensor(errors, dtype=torch.double).unsqueeze(-1)


@dataclass(frozen=True)
class Settings:
    """The options that a demonstration goes on with.

    Args:
        dataset: The data.
        seed: Decides folds, starts and choices.
        budget: How many evaluations each method chooses after the starts.
    """

    dataset: str = "breast_cancer"
    seed: int = 0
    budget: int = 50

    @classmethod
    def read(cls, path: Path) -> Settings:
        """Those in a file.

        Raises:
            ValueError: The file holds something else; the message names it.
        """
        text = path.read_bytes()
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            names = ", ".join(asdict(cls()))
            raise ValueError(
                f"{path}: expected an object with {names}, got {text[:60]!r}."
            ) from None

    def write(self, path: Path) -> None:
        """Put them in a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """The first with the smallest error; None where nothing worked."""
    good = [t for t in trials if t.value is not None]
    return min(good, key=lambda t: t.values["error"], default=None)


def learner_table(comparison: DemoComparison) -> str:
    """A row for each learner: how often it was tried, its best, its expected gain."""
    rows = comparison.space.starts(kind="middle")  # one of each learner
    learners = [str(config["learner"]) for config in comparison.space.decode(rows)]
    X, errors = comparison.data(MODEL)
    tree = fit_models(comparison.space, X, -errors)[0]
    expected = PathExpectedImprovement(tree, best_f=-errors.min())(rows.unsqueeze(-2))
    improvement = dict(zip(learners, expected.tolist(), strict=True))
    best = best_trial(comparison.trials(MODEL))
    winner = None if best is None else best.config["learner"]
    lines = [
        f"{'':10}{MODEL:^39}{RANDOM:^24}",
        f"{'learner':10}{'evaluations':>12}{'best error':>12}{'expected gain':>15}"
        f"{'evaluations':>14}{'best error':>12}",
    ]
    lines.append("-" * len(lines[1]))
    for learner in learners:
        cells = f"{learner:10}"
        for method, width in ((MODEL, 12), (RANDOM, 14)):
            trials = comparison.trials(method)
            tried = [t for t in trials if t.config["learner"] == learner]
            cells += f"{len(tried):>{width}}{_best(tried):>12}"
            if method == MODEL:
                cells += f"{improvement[learner]:>15.1e}"
        lines.append(cells + ("   <- best" if learner == winner else ""))
    lines.append(
        "expected gain: by how much the model expects a typical configuration of the "
        "learner to lower the best error."
    )
    return "\n".join(lines)


def _best(trials: Sequence[Trial]) -> str:
    if (best := best_trial(trials)) is not None:
        return f"{best.value:.4f}"
    return "failed" if trials else "-"


def summary(comparison: DemoComparison) -> str:
    """Both methods in two lines, and the failures."""
    lines = []
    for method in (MODEL, RANDOM):
        trials = comparison.trials(method)
        found = "nothing worked"
        if (best := best_trial(trials)) is not None:
            found = (
                f"error {best.value:.4f} with {best.config['learner']}, found at "
                f"evaluation {best.number + 1} of {len(trials)}"
            )
        lines.append(f"{method:18} {found}")
    made = comparison.evaluated
    if failed := [t for t in made if t.value is None]:
        lines.append(
            f"{len(failed)} of {len(made)} evaluations failed, the last with: "
            f"{failed[-1].error}"
        )
    return "\n".join(lines)


def code(comparison: DemoComparison, dataset: str) -> str:
    """The winner as a script that loads the data and prints its error.

    Raises:
        ValueError: Nothing worked.
    """
    config, _ = comparison.studies[MODEL].best
    seed = comparison.problem.seed
    load = f"""\
from sklearn.datasets import load_{dataset}

X, y = load_{dataset}(return_X_y=True)"""
    if dataset == "moons":
        load = f"""\
import numpy as np
from sklearn.datasets import make_moons

X, y = make_moons(500, noise=0.3, random_state={seed})
noise = np.random.default_rng({seed}).standard_normal((500, 4))
X = np.hstack([X, noise])"""
    body = comparison.problem.to_sklearn_code(config).rstrip()
    return f'{load}\n\n{body}\nprint(f"error {{error:.4f}}")\n'


def picture(comparisons: Sequence[DemoComparison], path: Path | None = None) -> Figure:
    """Traces of both methods, and where the evaluations of the model went.

    Args:
        comparisons: One, or several of the same problem with different seeds. The
            traces are then medians, and the tree is that of the first one.
        path: Where to save it.

    Raises:
        ImportError: Without matplotlib.
    """
    from matplotlib.figure import Figure

    first = comparisons[0]
    figure = Figure(figsize=(12.5, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.2])
    starts = len(first.starts)
    traces = {
        method: torch.stack([c.data(method)[1].reshape(-1) for c in comparisons])
        for method in (MODEL, RANDOM)
    }
    plot_traces(traces, left, num_starts=starts, ylabel="cross-validation error")
    # The best error among the first few starts depends on their order only.
    best = np.concatenate([best_so_far(runs) for runs in traces.values()])
    low, high = best.min(), np.median(best[:, starts - 1])
    room = max(0.15 * (high - low), 0.02 * high, 1e-4)
    left.set_ylim(max(low - room, 0.0), high + 3 * room)
    left.set_title("Best error so far", loc="left", fontsize="medium")
    X, errors = first.data(MODEL)
    failed = torch.tensor([[t.value is None] for t in first.trials(MODEL)])
    plot_tree(
        first.space,
        ax=right,
        X=X,
        Y=errors.masked_fill(failed, math.nan),
        value_format=".4f",
    )
    right.set_title(f"Where {MODEL} went", loc="left", fontsize="medium")
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
