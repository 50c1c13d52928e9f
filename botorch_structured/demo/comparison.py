"""Two studies of one problem: by a model, and at random."""

from __future__ import annotations

__all__ = ["METHODS", "MODEL", "RANDOM", "Comparison", "FailedEvaluation"]

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from botorch_structured.study import Study, Trial
from botorch_structured.test_functions import ScikitLearnCASH

MODEL, RANDOM = "botorch-structured", "random search"
METHODS = {MODEL: "evaluations.jsonl", RANDOM: "random_search.jsonl"}

# Two of nine learners have a single configuration, which may be drawn again: so many
# draws contain a new point.
_TRIES = 200
# Digits of an error rate: two that differ by the order of a sum are the same.
_DIGITS = 12


class FailedEvaluation(Exception):
    """A learner raised an exception, or took too long."""


class Comparison:
    """A problem and a `Study` for each of two methods, from the same starts.

    Args:
        problem: What to tune.
        budget: How many evaluations each method chooses after the common starts.
        seed: Decides starts and choices.
        folder: Where the logs go; those that are there are gone on with. Default: none
            are written.

    Raises:
        ValueError: The budget is not positive, or a log is not of this comparison.
    """

    def __init__(
        self,
        problem: ScikitLearnCASH,
        budget: int,
        seed: int,
        folder: Path | None = None,
    ) -> None:
        if budget < 1:
            raise ValueError(f"budget: expected a positive number, got {budget}.")
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
