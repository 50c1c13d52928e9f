"""Published tables of many tasks: the files that they are read from.

.. [Perrone2017ablr]
    V. Perrone, R. Jenatton, M. Seeger, C. Archambeau. Multiple Adaptive Bayesian Linear
    Regression for Scalable Bayesian Optimization with Warm Start. arXiv:1712.02902,
    2017.

.. [vanRijn2018importance]
    J. N. van Rijn, F. Hutter. Hyperparameter Importance Across Datasets. International
    Conference on Knowledge Discovery and Data Mining (KDD), 2018.

.. [Wistuba2016two]
    M. Wistuba, N. Schilling, L. Schmidt-Thieme. Two-Stage Transfer Surrogate Model for
    Automatic Hyperparameter Optimization. European Conference on Machine Learning
    (ECML), 2016.
"""

from __future__ import annotations

__all__ = ["random_forest_tables", "support_vector_tables"]

import csv
import gzip
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.test_functions.transfer_tables import TransferTables


def random_forest_tables(path: str | Path) -> TransferTables:
    """Accuracy of scikit-learn's random forest on OpenML's data sets.

    94 data sets of OpenML100 times 500 random configurations of flow 6969: 47,000 rows
    of [vanRijn2018importance]_. They stand in for flow 6794 of [Perrone2017ablr]_,
    section 3.2, whose evaluations were never published as a table. Two data sets have
    the same accuracy everywhere (see `TransferTables.spread`).

    Args:
        path: ``random_forest.arff``, gzipped or not, of the repository
            ``janvanrijn/openml-pimp``.

    Returns:
        One table per OpenML task, named by its number; values are negative accuracies.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It lacks a column, or holds something unknown.
    """
    forest, imputer = "randomforestclassifier__", "columntransformer__numeric__"
    columns: dict[str, Any] = {  # in the file: its choices, or its bounds
        forest + "bootstrap": ["False", "True"],
        forest + "criterion": ["entropy", "gini"],
        forest + "max_features": (0.1, 0.9),
        forest + "min_samples_leaf": (1, 20),
        forest + "min_samples_split": (2, 20),
        imputer + "imputer__strategy": ["mean", "median", "most_frequent"],
    }
    choices = {j: c for j, c in enumerate(columns.values()) if isinstance(c, list)}
    limits = [(0, len(c) - 1) if isinstance(c, list) else c for c in columns.values()]
    space = SearchSpace(
        [name.rsplit("__", 1)[1] for name in columns],
        torch.tensor(limits, dtype=torch.double).T,
        integer_features=[3, 4],
        categorical_features={j: range(len(c)) for j, c in choices.items()},
        choices={**choices, 0: [False, True]},
    )
    X: list[list[float]] = []
    y: list[float] = []
    numbers: list[int] = []
    names: dict[str, int] = {}
    for line, row in _rows(Path(path), [*columns, "predictive_accuracy", "task_id"]):
        X.append([_cell(Path(path), line, row, n, c) for n, c in columns.items()])
        y.append(-_number(Path(path), line, row["predictive_accuracy"]))
        numbers.append(names.setdefault(row["task_id"], len(names)))
    return _tables(X, y, numbers, list(names), space)


def support_vector_tables(
    path: str | Path, contexts: str | Path | None = None
) -> TransferTables:
    """Accuracy of support vector machines: tasks *and* conditions.

    50 data sets times 288 configurations of [Wistuba2016two]_, a complete grid with
    ``C`` under all kernels, ``gamma`` under the RBF kernel only and ``degree`` under
    the polynomial one only; scales are those of the file (logarithms).

    Args:
        path: A file with columns ``dataset``, ``accuracy``, ``kernel``, ``C_scaled``,
            ``gamma_scaled`` and ``degree_scaled``, gzipped or not.
        contexts: A file with a column ``dataset`` and 22 meta-features of each.

    Returns:
        One table per data set; values are negative accuracies.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It lacks a column or a data set, or holds something unknown.
    """
    path = Path(path)
    kernels = ["linear", "poly", "rbf"]
    own = {"C_scaled": kernels, "gamma_scaled": ["rbf"], "degree_scaled": ["poly"]}
    X: list[list[float]] = []
    y: list[float] = []
    numbers: list[int] = []
    names: dict[str, int] = {}
    for line, row in _rows(path, ["dataset", "accuracy", "kernel", *own]):
        point = [_cell(path, line, row, "kernel", kernels)]
        for name, where in own.items():
            active = row["kernel"] in where
            point.append(_number(path, line, row[name]) if active else float("nan"))
        X.append(point)
        y.append(-_number(path, line, row["accuracy"]))
        numbers.append(names.setdefault(row["dataset"], len(names)))
    points = torch.tensor(X, dtype=torch.double)
    low = torch.where(points.isnan(), torch.inf, points).amin(0)
    high = torch.where(points.isnan(), -torch.inf, points).amax(0)
    low[0], high[0] = 0, len(kernels) - 1
    tree = ParameterTree(4, {0: {0: [], 1: [3], 2: [2]}}, values={0: [0, 1, 2]})
    space = SearchSpace(
        ["kernel", "C", "gamma", "degree"],
        torch.stack([low, high]),
        tree,
        choices={0: kernels},
    )
    known = None if contexts is None else _contexts(Path(contexts), list(names))
    return _tables(X, y, numbers, list(names), space, known)


def _tables(
    X: list[list[float]],
    y: list[float],
    numbers: list[int],
    names: list[str],
    space: SearchSpace,
    contexts: Tensor | None = None,
) -> TransferTables:
    points = torch.tensor(X, dtype=torch.double)
    values = torch.tensor(y, dtype=torch.double)
    return TransferTables(points, values, torch.tensor(numbers), names, space, contexts)


def _contexts(path: Path, names: list[str]) -> Tensor:
    found = {}
    for line, row in _rows(path, ["dataset"]):
        name = row.pop("dataset")
        found[name] = [_number(path, line, cell) for cell in row.values()]
    absent = [name for name in names if name not in found]
    if absent:
        _refuse(path, f"data sets {absent}", f"{sorted(found)}")
    return torch.tensor([found[name] for name in names], dtype=torch.double)


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells of each row: of an ARFF file, or of one with a header."""
    name = path.name.removesuffix(".gz")
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path, newline="")
    with opened as file:
        if name.endswith(".arff"):
            header = []
            for line in file:
                words = line.split(None, 2)
                if words and words[0].upper() == "@ATTRIBUTE":
                    header.append(words[1].strip("'\""))
                if words and words[0].upper() == "@DATA":
                    break
            reader = csv.DictReader(file, fieldnames=header)
        else:
            reader = csv.DictReader(file)
            header = list(reader.fieldnames or ())
        absent = [column for column in columns if column not in header]
        if absent:
            _refuse(path, f"columns {absent}", f"{header}")
        found = False
        for number, row in enumerate(reader, 1):
            found = True
            yield number, row
        if not found:
            _refuse(path, "a row of data", "none")


def _cell(
    path: Path, line: int, row: Mapping[str, str], name: str, choices: Any
) -> float:
    """The number of a category, or a number."""
    if not isinstance(choices, list):
        return _number(path, line, row[name])
    if row[name] not in choices:
        _refuse(path, f"{name} in {choices}", f"{row[name]!r} in row {line}")
    return float(choices.index(row[name]))


def _number(path: Path, line: int, cell: str) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        _refuse(path, "numbers", f"{cell!r} in row {line}")


def _refuse(path: Path, expected: str, got: str) -> NoReturn:
    raise ValueError(f"{path}: expected {expected}, got {got}.")
