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

__all__ = [
    "DATA",
    "DEVELOP",
    "DEVELOP_DATASETS",
    "REPORT",
    "REPORT_DATASETS",
    "SVMTable",
    "make",
]

import math
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.problems.transfer import number, read_rows, refuse
from benchmarks.suite.problem import SuiteProblem
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.columns import (
    CategoricalColumn,
    Column,
    IntegerColumn,
)

DATA = Path("../shared/data")
"""Where the folder of the table is, unless a factory gets another ``data``."""

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
_ROWS = len(_C) * (len(_GAMMA) + len(_DEGREES) + 1)
_CLOSE = 1e-6  # of numbers of the file, which are logarithms


class SVMTable(SuiteProblem):
    r"""The test error, 1 - accuracy, of support vector machines on one data set.

    For comparing optimisers on a small conditional space of which everything is known:
    no noise, an exact optimum.

        kernel
        |-- linear
        |-- poly    degree 2..10
        `-- rbf     gamma, 14 values from 1e-4 to 1e3
        C: 12 values from 1/32 to 64, for all kernels

    Attributes:
        space: The `SearchSpace`: kernel, C, gamma, degree.
        dataset: The name of the data set.
    """

    def __init__(self, dataset: str, data: str | Path = DATA) -> None:
        r"""
        Args:
            dataset: One of ``DEVELOP_DATASETS`` or ``REPORT_DATASETS``.
            data: The folder that has the folder ``hpo_conditional``.

        Raises:
            FileNotFoundError: There is no table.
            ValueError: Another data set, or a table that is not complete.
        """
        if dataset not in _DATASETS:
            raise ValueError(f"dataset: expected one of {_DATASETS}, got {dataset!r}.")
        self.dataset = dataset
        super().__init__(_space())
        self._errors = _read(Path(data) / _FILE)[dataset]

    @property
    def optimal_value(self) -> float:
        """The least of the 288 errors."""
        return float(self._errors.nan_to_num(math.inf).min())

    def truths(self, X: Tensor) -> Tensor:
        """The errors of ``n x d`` points: ``n``; a ValueError for other points."""
        if X.ndim != 2 or X.shape[1] != self.space.dim:
            raise ValueError(
                f"X: expected shape n x {self.space.dim}, got {tuple(X.shape)}."
            )
        if not self.space.feasible(X).all():
            raise ValueError("X: expected points of the space, got some that are not.")
        kernel, c, gamma, degree = X.detach().double().nan_to_num().round().long().T
        own = torch.where(kernel == _KERNELS.index("rbf"), gamma, degree - _DEGREES[0])
        own = own.masked_fill(kernel == _KERNELS.index("linear"), 0)
        return self._errors[kernel, c, own]


def make(seed: int, dataset: str, data: str | Path = DATA) -> SVMTable:
    """The problem of a data set; it is the same for all seeds."""
    return SVMTable(dataset, data)


DEVELOP = {
    f"svm-{name}": partial(make, dataset=name, data=DATA) for name in DEVELOP_DATASETS
}
REPORT = {
    f"svm-{name}": partial(make, dataset=name, data=DATA) for name in REPORT_DATASETS
}


def _space() -> SearchSpace:
    columns: list[Column] = [
        CategoricalColumn("kernel", _KERNELS),
        CategoricalColumn("C", _C, ordered=True),
        CategoricalColumn("gamma", _GAMMA, ordered=True),
        IntegerColumn("degree", _DEGREES[0], _DEGREES[-1]),
    ]
    tree = ParameterTree(4, {0: {0: [], 1: [3], 2: [2]}}, values={0: [0, 1, 2]})
    return SearchSpace.from_columns(columns, tree)


@lru_cache(maxsize=2)
def _read(path: Path) -> Mapping[str, Tensor]:
    """The errors of each data set, ``kernel x C x (gamma or degree)``, else NaN."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: expected the tables of data/svm of github.com/wistuba/TST in one "
            "file, got no file."
        )
    scaled = [math.log2(value) / 6 for value in _C]
    own = {
        "poly": ("degree_scaled", [math.log10(value) for value in _DEGREES]),
        "rbf": ("gamma_scaled", [math.log10(value) / 4 for value in _GAMMA]),
    }
    shape = (len(_KERNELS), len(_C), len(_GAMMA))
    errors: dict[str, Tensor] = {}
    wanted = ["dataset", "accuracy", "kernel", "C_scaled"]
    for where, row in read_rows(path, [*wanted, "gamma_scaled", "degree_scaled"]):
        kernel = row["kernel"]
        if kernel not in _KERNELS:
            refuse(where, f"kernel in {_KERNELS}", repr(kernel))
        name, values = own.get(kernel, ("", []))
        i = _position(where, "C_scaled", row, scaled)
        j = _position(where, name, row, values) if name else 0
        table = errors.setdefault(
            row["dataset"], torch.full(shape, math.nan, dtype=torch.double)
        )
        table[_KERNELS.index(kernel), i, j] = 1.0 - number(where, row["accuracy"])
    for dataset in _DATASETS:
        table = errors.get(dataset, torch.full(shape, math.nan))
        known = int(table.isfinite().sum())
        if known != _ROWS:
            refuse(str(path), f"{_ROWS} configurations of {dataset}", str(known))
    return errors


def _position(
    where: str, name: str, row: Mapping[str, str], values: list[float]
) -> int:
    """Where a cell stands among the values of its column."""
    value = number(where, row[name])
    nearest = min(range(len(values)), key=lambda i: abs(values[i] - value))
    if abs(values[nearest] - value) > _CLOSE:
        refuse(where, f"{name} in {values}", row[name])
    return nearest
