"""Learners of scikit-learn and their hyperparameters, on small real data sets.

`ScikitLearnCASH` of this package: nine learners, each with its own hyperparameters. 16
data sets of at most 300 rows, which a stratified random choice leaves of larger ones.
The folds are the same for every run, so that there is no noise, and a data set is one
problem with one optimum. Categories become columns of zeros and ones.

The data sets alternate, in alphabetical order, between development and the report. Four
are bundled with scikit-learn. The others are expected in ``DIR/uci`` and ``DIR/libsvm``
under the names in ``FILES``, as the UCI repository and the LIBSVM page have them;
``DIR`` is ``DATA``, unless a factory gets another one: ``partial(DEVELOP["cash-pima"],
data=DIR)``.

The best value of a data set is not known. ``optima.json`` has the best of 1,000 random
points and of random changes of 8 of them (`find_scale`), made by

    python -m benchmarks.suite.learners --data DIR
"""

from __future__ import annotations

__all__ = [
    "DATA",
    "DEVELOP",
    "DEVELOP_DATASETS",
    "FILES",
    "REPORT",
    "REPORT_DATASETS",
    "LearnerProblem",
    "find_scale",
    "main",
    "make",
    "read_dataset",
]

import argparse
import csv
import gzip
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.suite.optima import (
    Scale,
    ScaledProblem,
    improve,
    read_scale,
    write_scales,
)
from botorch_structured.test_functions import ScikitLearnCASH
from botorch_structured.test_functions.base import import_sklearn

DATA = Path("../shared/data")
"""Where the folders of the data sets are, unless a factory gets another ``data``."""


class _Text(NamedTuple):
    """A file of rows, the label last."""

    path: str
    header: bool = False
    delimiter: str = ","


FILES: dict[str, _Text | str] = {
    "adult": _Text("uci/adult-train.csv.gz"),
    "australian": "libsvm/australian",
    "car": _Text("uci/car.data", header=True),
    "german": _Text("uci/german.csv"),
    "heart": "libsvm/heart",
    "pima": _Text("uci/pima-indians-diabetes.csv"),
    "segment": _Text("uci/segment.csv", header=True),
    "sonar": "libsvm/sonar_scale",
    "spambase": _Text("uci/spambase.data", header=True),
    "thyroid": _Text("uci/new-thyroid.csv"),
    "titanic": _Text("uci/titanic-pmlb.csv", header=True, delimiter="\t"),
    "winequality": _Text("uci/winequality-red.csv"),
}
"""Data sets that are not bundled with scikit-learn; a plain name is LIBSVM's format."""

_BUNDLED = ("breast_cancer", "digits", "iris", "wine")
_DATASETS = sorted([*FILES, *_BUNDLED])
DEVELOP_DATASETS = tuple(_DATASETS[0::2])
REPORT_DATASETS = tuple(_DATASETS[1::2])

_MOST_ROWS = 300
_SEED = 0  # of the rows and of the folds
_RANDOM, _PARENTS, _GENERATIONS, _CHILDREN = 1_000, 8, 12, 3


@lru_cache(maxsize=32)
def read_dataset(name: str, data: Path = DATA) -> tuple[np.ndarray, np.ndarray]:
    """A data set: ``n x p`` numbers and ``n`` labels, at most 300 rows.

    Args:
        name: One of ``DEVELOP_DATASETS`` or ``REPORT_DATASETS``.
        data: The folder that has the folders ``uci`` and ``libsvm``.

    Raises:
        FileNotFoundError: The file of the data set is missing.
        ValueError: Another name.
    """
    if name not in _DATASETS:
        raise ValueError(f"dataset: expected one of {_DATASETS}, got {name!r}.")
    if name in _BUNDLED:
        X, y = getattr(import_sklearn("datasets"), f"load_{name}")(return_X_y=True)
    else:
        source = FILES[name]
        path = data / (source if isinstance(source, str) else source.path)
        if not path.exists():
            raise FileNotFoundError(
                f"{path}: expected the data set {name!r} of UCI or LIBSVM, got no file."
            )
        if isinstance(source, str):
            X, y = import_sklearn("datasets").load_svmlight_file(str(path))
            X = X.toarray()
        else:
            X, y = _read_text(path, source)
    if len(y) > _MOST_ROWS:
        select = import_sklearn("model_selection").train_test_split
        X, _, y, _ = select(X, y, train_size=_MOST_ROWS, stratify=y, random_state=_SEED)
    return X[:, X.std(0) > 0], y


def _read_text(path: Path, source: _Text) -> tuple[np.ndarray, np.ndarray]:
    """Columns of numbers as they are, each other category as a column of 0 and 1."""
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path, newline="")
    with opened as file:
        rows = csv.reader(file, delimiter=source.delimiter, skipinitialspace=True)
        cells = [row for row in rows if row][source.header :]
    columns: list[np.ndarray] = []
    for column in zip(*(row[:-1] for row in cells), strict=True):
        values = np.array(column)
        try:
            columns.append(values.astype(float))
        except ValueError:
            columns += [(values == v).astype(float) for v in sorted(set(column))]
    _, labels = np.unique([row[-1] for row in cells], return_inverse=True)
    return np.stack(columns, 1), labels


class LearnerProblem(ScaledProblem):
    r"""The cross-validation error of nine learners on one data set; to be minimised.

    For comparing optimisers on real evaluations of 0.06 s: nine paths, two of them
    without hyperparameters, and learners that fail, whose error is then 1.0.

    Attributes:
        cash: The `ScikitLearnCASH`, with its ``evaluations``.
        space: Its `SearchSpace`, 14 columns.
        name: Of the data set.
        optimal_value: The best known error; an AttributeError where there is none.
        middle_value: The median error of 1,000 random points; likewise.
    """

    def __init__(self, dataset: str, data: str | Path = DATA) -> None:
        r"""
        Args:
            dataset: One of ``DEVELOP_DATASETS`` or ``REPORT_DATASETS``.
            data: The folder that has the folders ``uci`` and ``libsvm``.

        Raises:
            FileNotFoundError: The file of the data set is missing.
            ImportError: Without scikit-learn.
            ValueError: Another data set.
        """
        self.cash = ScikitLearnCASH(read_dataset(dataset, Path(data)), seed=_SEED)
        super().__init__(self.cash.space, "cash", dataset)
        self._known: dict[tuple[Any, ...], float] = {}

    def truths(self, X: Tensor) -> Tensor:
        """The errors of ``n x d`` points: ``n``; each configuration is run once."""
        errors = []
        for config in self.space.decode(X):
            key = tuple(config.items())
            if key not in self._known:
                self._known[key] = self.cash.evaluate(config).value
            errors.append(self._known[key])
        return torch.tensor(errors, dtype=torch.double)


def make(seed: int, dataset: str, data: str | Path = DATA) -> LearnerProblem:
    """The problem of a data set; it is the same for all seeds."""
    return LearnerProblem(dataset, data)


DEVELOP = {
    f"cash-{name}": partial(make, dataset=name, data=DATA) for name in DEVELOP_DATASETS
}
REPORT = {
    f"cash-{name}": partial(make, dataset=name, data=DATA) for name in REPORT_DATASETS
}


def find_scale(problem: LearnerProblem) -> Scale:
    """The best of 1,000 random points and their improvements, and the points' median.

    The best two points of each learner, at most 8 of them, are improved for 12
    generations of 3 (`improve`).
    """
    X = problem.space.sample(_RANDOM, seed=0)
    values = problem.truths(X)
    taken: list[int] = []
    paths = problem.tree.path_key(X).tolist()
    for i in values.argsort(stable=True).tolist():
        if sum(paths[j] == paths[i] for j in taken) < 2 and len(taken) < _PARENTS:
            taken.append(i)
    _, best = improve(
        problem.space,
        problem.truths,
        X[taken],
        values[taken],
        _GENERATIONS,
        _CHILDREN,
    )
    return Scale(float(best.min()), float(values.median()))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command that makes the table of optima; data sets that it has are skipped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--datasets", nargs="+", default=_DATASETS)
    options = parser.parse_args(arguments)
    for name in options.datasets:
        if read_scale("cash", name) is None:
            scale = find_scale(LearnerProblem(name, options.data))
            print(name, *scale, flush=True)
            write_scales(
                "cash", "python -m benchmarks.suite.learners --data DIR", {name: scale}
            )


if __name__ == "__main__":
    main()
