"""Support vector machines: complete tables of 288 configurations on 50 data sets.

The kernel decides whether there is a ``gamma``, a ``degree`` or neither; ``C`` is
shared [Wistuba2016two]_. An evaluation looks a test error up. Every point of the space
is in the table, so that the optimum is exact. The grid values are ordinals: their
positions are whole numbers, in ascending order.

The data sets alternate, in alphabetical order, between development and the report. The
file ``tst_svm_50datasets_288configs.csv.gz`` has the tables of ``data/svm`` of
github.com/wistuba/TST, with columns ``dataset``, ``accuracy``, ``kernel``, ``C_scaled``
(``log2(C) / 6``), ``gamma_scaled`` (``log10(gamma) / 4``) and ``degree_scaled``
(``log10(degree)``). It is expected in ``DIR/hpo_conditional``; ``DIR`` is ``DATA``,
unless a factory gets another one: ``partial(DEVELOP["svm-A9A"], data=DIR)``.

.. [Wistuba2016two]
    M. Wistuba, N. Schilling, L. Schmidt-Thieme. Two-Stage Transfer Surrogate Model for
    Automatic Hyperparameter Optimization. European Conference on Machine Learning
    (ECML), 2016.
"""

from __future__ import annotations

import csv
import gzip
import math
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.data import DATA
from benchmarks.harness import ProblemFactory
from benchmarks.suite.problem import SuiteProblem
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.columns import CategoricalColumn, Column, IntegerColumn

_DATASETS = (
    "A9A W8A abalone appendicitis australian automobile banana bands breast-cancer "
    "bupa car chess cod-rna coil2000 colon-cancer crx diabetes ecoli german-numer "
    "haberman housevotes ijcnn1 kr-vs-k led7digit letter lymphography magic monk-2 "
    "pendigits phoneme pima ring saheart segment seismic shuttle sonar-scale spambase "
    "spectfheart splice tic-tac-toe titanic twonorm usps vehicle wdbc wine "
    "winequality-red wisconsin yeast"
).split()
DEVELOP_DATASETS = tuple(_DATASETS[0::2])
REPORT_DATASETS = tuple(_DATASETS[1::2])

_FILE = Path("hpo_conditional", "tst_svm_50datasets_288configs.csv.gz")
_KERNELS = ["linear", "poly", "rbf"]
_C = [2.0**k for k in range(-5, 7)]
_GAMMA = [1e-4, 1e-3, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1e3]
_DEGREES = range(2, 11)


class SVMTable(SuiteProblem):
    r"""The test error, 1 - accuracy, of support vector machines on one data set.

    For comparing optimisers on a small conditional space of which everything is known:
    no noise, an exact optimum.

        kernel
        |-- linear
        |-- poly    degree 2..10
        `-- rbf     gamma, 14 values from 1e-4 to 1e3
        C: 12 values from 1/32 to 64, for all kernels

    Args:
        dataset: One of ``DEVELOP_DATASETS`` or ``REPORT_DATASETS``.
        data: The folder that has the folder ``hpo_conditional``.

    Raises:
        FileNotFoundError: There is no table.
    """

    def __init__(self, dataset: str, data: str | Path = DATA) -> None:
        columns: list[Column] = [
            CategoricalColumn("kernel", _KERNELS),
            CategoricalColumn("C", _C, ordered=True),
            CategoricalColumn("gamma", _GAMMA, ordered=True),
            IntegerColumn("degree", _DEGREES[0], _DEGREES[-1]),
        ]
        tree = ParameterTree(4, {0: {0: [], 1: [3], 2: [2]}}, values={0: [0, 1, 2]})
        super().__init__(SearchSpace.from_columns(columns, tree))
        self._errors = _read(Path(data) / _FILE)[dataset]

    @property
    def optimal_value(self) -> float:
        """The least of the 288 errors."""
        return float(self._errors.nan_to_num(math.inf).min())

    def truths(self, X: Tensor) -> Tensor:
        """The errors of ``n x d`` points: ``n``."""
        kernel, c, gamma, degree = X.detach().double().nan_to_num().round().long().T
        place = torch.where(kernel == 2, gamma, degree - _DEGREES[0])
        return self._errors[kernel, c, place.masked_fill(kernel == 0, 0)]


def make(seed: int, dataset: str, data: str | Path = DATA) -> SVMTable:
    """The problem of a data set; it is the same for all seeds."""
    return SVMTable(dataset, data)


def _named(names: tuple[str, ...]) -> dict[str, ProblemFactory]:
    return {f"svm-{name}": partial(make, dataset=name, data=DATA) for name in names}


DEVELOP = _named(DEVELOP_DATASETS)
REPORT = _named(REPORT_DATASETS)


@lru_cache(maxsize=2)
def _read(path: Path) -> dict[str, Tensor]:
    """The errors of each data set, ``kernel x C x (gamma or degree)``, else NaN."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: expected the tables of data/svm of github.com/wistuba/TST in one "
            "file, got no file."
        )
    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    kernel = np.array([_KERNELS.index(row["kernel"]) for row in rows])
    C, gamma, degree = (
        np.array([float(row[name] or 0.0) for row in rows])
        for name in ("C_scaled", "gamma_scaled", "degree_scaled")
    )
    place = np.zeros(len(rows), dtype=int)
    # grid values are ordinals: the position of a number among those of its column
    for k, column in ((1, degree), (2, gamma)):
        place[kernel == k] = np.unique(column[kernel == k], return_inverse=True)[1]
    c = np.unique(C, return_inverse=True)[1]
    tables: dict[str, Tensor] = {}
    for row, *where in zip(rows, kernel, c, place, strict=True):
        shape = (len(_KERNELS), len(_C), len(_GAMMA))
        table = tables.setdefault(
            row["dataset"], torch.full(shape, math.nan, dtype=torch.double)
        )
        table[tuple(where)] = 1.0 - float(row["accuracy"])
    return tables
