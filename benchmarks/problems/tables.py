"""Published tables that only benchmarks read; see `TableProblem`, `TransferTables`.

The files are not part of this repository: give their path. Two grids are those of
Assael et al. (2014), section 4. Its two mines, from the case studies of Clark and
Harper, are in no public repository; `clark_copper` and `walker_lake` are of the same
kind and stand in for them. All problems are minimised, so the two mines
return the negative of the grade.

.. [Wistuba2016two]
    M. Wistuba, N. Schilling, L. Schmidt-Thieme. Two-Stage Transfer Surrogate Model for
    Automatic Hyperparameter Optimization. European Conference on Machine Learning
    (ECML), 2016.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.problems.transfer import (
    TransferTables,
    number,
    read_rows,
    refuse,
    table_from_csv,
)
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.test_functions import TableProblem


def online_lda(path: str | Path, **arguments: Any) -> TableProblem:
    """Perplexity of online latent Dirichlet allocation: 288 rows, 3 columns.

    Hoffman, Bach and Blei (2010), on a grid by Snoek, Larochelle and Adams (2012);
    HPOlib has it as ``lda_on_grid``, where one configuration is found twice.

    Args:
        path: A file with columns ``kappa``, ``tau``, ``s`` and ``perplexity``.
        **arguments: Of `TableProblem`, ``noise_std`` or ``negate`` for instance.
    """
    inputs = ["kappa", "tau", "s"]
    return table_from_csv(path, inputs, "perplexity", ["tau", "s"], **arguments)


def structured_svm(path: str | Path, **arguments: Any) -> TableProblem:
    """Error of a latent structured SVM for motif finding: 1,400 rows, 3 columns.

    Miller et al. (2012), on a grid by Snoek, Larochelle and Adams (2012); HPOlib has
    it as ``svm_on_grid``.

    Args:
        path: A file with columns ``c``, ``alpha``, ``epsilon`` and ``error``.
        **arguments: Of `TableProblem`.
    """
    inputs = ["c", "alpha", "epsilon"]
    return table_from_csv(path, inputs, "error", inputs, **arguments)


def clark_copper(path: str | Path, **arguments: Any) -> TableProblem:
    """Copper in the cores of boreholes: 439 rows, 3 columns; negative grades.

    Data of Isobel Clark, in the R package KRIG. Three cores have no grade (-995, -99).

    Args:
        path: A file with columns ``x1``, ``x2``, ``x3`` and ``Z``.
        **arguments: Of `TableProblem`.
    """
    return table_from_csv(
        path,
        ["x1", "x2", "x3"],
        "Z",
        missing=[-995.0, -99.0],
        maximize=True,
        **arguments,
    )


def walker_lake(path: str | Path, **arguments: Any) -> TableProblem:
    """Samples of the Walker Lake data: 470 rows, 2 columns; values are -V.

    Isaaks and Srivastava, An Introduction to Applied Geostatistics (1989). Sampled
    more densely where V is large.

    Args:
        path: A file with columns ``X``, ``Y`` and ``V``.
        **arguments: Of `TableProblem`.
    """
    return table_from_csv(path, ["X", "Y"], "V", maximize=True, **arguments)


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
    tasks: list[str] = []
    for where, row in read_rows(path, ["dataset", "accuracy", "kernel", *own]):
        if row["kernel"] not in kernels:
            refuse(where, f"kernel in {kernels}", repr(row["kernel"]))
        point = [float(kernels.index(row["kernel"]))]
        for name, where_active in own.items():
            active = row["kernel"] in where_active
            point.append(number(where, row[name]) if active else float("nan"))
        X.append(point)
        y.append(-number(where, row["accuracy"]))
        tasks.append(row["dataset"])
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
    known = None
    if contexts is not None:
        known = {}
        for where, row in read_rows(Path(contexts), ["dataset"]):
            name = row.pop("dataset")
            known[name] = [number(where, cell) for cell in row.values()]
        absent = sorted(set(tasks) - known.keys())
        if absent:
            refuse(str(contexts), f"data sets {absent}", f"{sorted(known)}")
    return TransferTables.from_rows(X, y, tasks, space, known)
