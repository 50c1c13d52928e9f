"""Samplers of Optuna, by its ask-and-tell interface.

A study is made anew at each step from all that was evaluated. Both samplers draw at
random until ten trials are known, as they come; starts are trials like all others.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks.fits import finite
from benchmarks.suite.peers.common import (
    active_values,
    all_columns,
    first_feasible,
    native,
    walk,
)
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.columns import CategoricalColumn, FloatColumn

_STARTUP = 10  # Optuna's default


class Study:
    """An Optuna study over a space.

    Args:
        space: The space.
        sampler: A sampler of Optuna.
        flat: Whether inactive parameters are parameters, too, with the fill values of
            the space in known trials. Otherwise the study is "define by run": a trial
            has its active parameters only.
    """

    def __init__(self, space: SearchSpace, sampler: Any, flat: bool = False) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.flat = space, flat
        self.study = optuna.create_study(sampler=sampler, direction="minimize")

    def _distribution(self, c: int) -> Any:
        from optuna import distributions

        column: Any = self.space.columns[c]
        if isinstance(column, CategoricalColumn):
            last = len(column.choices) - 1
            if column.ordered:
                return distributions.IntDistribution(0, last)
            return distributions.CategoricalDistribution(range(last + 1))
        kind: Any = distributions.IntDistribution
        if isinstance(column, FloatColumn):
            kind = distributions.FloatDistribution
        return kind(column.lower, column.upper, log=column.log)

    def add(self, X: Tensor, Y: Tensor) -> None:
        """Known ``n x d`` points and ``n x 1`` outcomes, larger ones better."""
        from optuna.trial import create_trial

        if self.flat:
            columns = self.space.columns
            rows = [
                {c.name: native(c, v) for c, v in zip(columns, x, strict=True)}
                for x in self.space.impute(X).tolist()
            ]
        else:
            rows = active_values(self.space, X)
        values = finite(Y).squeeze(-1).tolist()
        distributions = {
            name: self._distribution(c) for c, name in enumerate(self.space.names)
        }
        for params, value in zip(rows, values, strict=True):
            trial = create_trial(
                params=params,
                distributions={name: distributions[name] for name in params},
                value=-value,
            )
            self.study.add_trial(trial)

    def suggestions(self) -> Iterator[Tensor]:
        """``d`` points; each one that is not the last was forbidden."""
        from optuna.trial import TrialState

        while True:
            trial = self.study.ask()
            make = all_columns if self.flat else walk
            yield make(self.space, partial(self.suggest, trial))
            self.study.tell(trial, state=TrialState.FAIL)

    def suggest(self, trial: Any, c: int) -> Any:
        """The value of a column in a trial."""
        column: Any = self.space.columns[c]
        if isinstance(column, CategoricalColumn):
            count = len(column.choices)
            if column.ordered:
                return trial.suggest_int(column.name, 0, count - 1)
            return trial.suggest_categorical(column.name, range(count))
        is_float = isinstance(column, FloatColumn)
        ask = trial.suggest_float if is_float else trial.suggest_int
        return ask(column.name, column.lower, column.upper, log=column.log)


class TPE:
    """Multivariate TPE with groups, which begins with its own ten random points."""

    options: ClassVar[dict[str, Any]] = {"multivariate": True, "group": True}

    def study(self, space: SearchSpace, seed: int) -> Study:
        """An empty study."""
        from optuna.exceptions import ExperimentalWarning
        from optuna.samplers import TPESampler

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # ``group``
            sampler = TPESampler(seed=seed, **self.options)
        return Study(space, sampler)

    def starts(self, problem: Any, seed: int) -> Tensor:
        """``10 x d`` points of Optuna's random sampler."""
        from optuna.samplers import RandomSampler

        space = problem.space
        points = Study(space, RandomSampler(seed=seed)).suggestions()
        first = [first_feasible(space, points, seed + i) for i in range(_STARTUP)]
        return torch.stack(first)

    def __call__(self, problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        study = self.study(problem.space, seed)
        study.add(X, Y)
        return first_feasible(problem.space, study.suggestions(), seed)


class PlainTPE(TPE):
    """``TPESampler()`` with Optuna's own arguments: each parameter by itself."""

    options: ClassVar[dict[str, Any]] = {}


class GPSampler:
    """Optuna's Gaussian process with LogEI; inactive parameters are imputed."""

    def __call__(self, problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        from optuna import samplers

        sampler = samplers.GPSampler(
            seed=seed, n_startup_trials=_STARTUP, warn_independent_sampling=False
        )
        study = Study(problem.space, sampler, flat=True)
        study.add(X, Y)
        return first_feasible(problem.space, study.suggestions(), seed)
