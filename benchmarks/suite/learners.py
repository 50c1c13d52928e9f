"""Learners of scikit-learn and their hyperparameters, on small real data sets.

`ScikitLearnCASH` of this package: nine learners, each with its own hyperparameters. 16
data sets of at most 300 rows, which a stratified random choice leaves of larger ones.
The folds are the same for every run, so that there is no noise, and a data set is one
problem with one optimum. Categories become columns of zeros and ones.

The data sets alternate, in alphabetical order, between development and the report. Four
are bundled with scikit-learn, `benchmarks.data` has the others; a factory takes another
folder as ``partial(DEVELOP["cash-pima"], data=DIR)``.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.data import DATA, read
from benchmarks.suite.optima import ScaledProblem
from botorch_structured.test_functions import ScikitLearnCASH
from botorch_structured.test_functions.base import import_sklearn

_BUNDLED = ("breast_cancer", "digits", "iris", "wine")
_NAMES = {"winequality": "wine"}  # in `benchmarks.data`
DATASETS = (
    "adult australian breast_cancer car digits german heart iris pima segment sonar "
    "spambase thyroid titanic wine winequality"
).split()
_MOST_ROWS = 300
_SEED = 0  # of the rows and of the folds


@lru_cache(maxsize=32)
def read_dataset(name: str, data: Path = DATA) -> tuple[np.ndarray, np.ndarray]:
    """A data set: ``n x p`` numbers and ``n`` labels, at most 300 rows.

    Args:
        name: One of ``DATASETS``.
        data: The folder that has the folders ``uci`` and ``libsvm``.
    """
    if name in _BUNDLED:
        X, y = getattr(import_sklearn("datasets"), f"load_{name}")(return_X_y=True)
    else:
        X, y = read(_NAMES.get(name, name), data)
    if len(y) > _MOST_ROWS:
        select = import_sklearn("model_selection").train_test_split
        X, _, y, _ = select(X, y, train_size=_MOST_ROWS, stratify=y, random_state=_SEED)
    return X[:, X.std(0) > 0], y


class LearnerProblem(ScaledProblem):
    r"""The cross-validation error of nine learners on one data set; to be minimised.

    For comparing optimisers on real evaluations of 0.06 s: nine paths, two of them
    without hyperparameters, and learners that fail, whose error is then 1.0.

    Attributes:
        cash: The `ScikitLearnCASH`, with its ``evaluations``.
    """

    effort = (1_000, 8, 12, 3)
    most_of_a_path = 2

    def __init__(self, dataset: str, data: str | Path = DATA) -> None:
        r"""
        Args:
            dataset: One of ``DATASETS``.
            data: The folder that has the folders ``uci`` and ``libsvm``.
        """
        self.cash = ScikitLearnCASH(read_dataset(dataset, Path(data)), seed=_SEED)
        super().__init__(self.cash.space, "cash", dataset)
        self._errors: dict[tuple[Any, ...], float] = {}

    def truths(self, X: Tensor) -> Tensor:
        """The errors of ``n x d`` points: ``n``; each configuration is run once."""
        errors = []
        for config in self.space.decode(X):
            key = tuple(config.items())
            if key not in self._errors:
                self._errors[key] = self.cash.evaluate(config).value
            errors.append(self._errors[key])
        return torch.tensor(errors, dtype=torch.double)


def make(seed: int, dataset: str, data: str | Path = DATA) -> LearnerProblem:
    """The problem of a data set; it is the same for all seeds."""
    return LearnerProblem(dataset, data)


_ALL = [(name, partial(make, dataset=name, data=DATA)) for name in DATASETS]
DEVELOP = {f"cash-{name}": factory for name, factory in _ALL[0::2]}
REPORT = {f"cash-{name}": factory for name, factory in _ALL[1::2]}
