"""Tuning xgboost on data sets of OpenML: a surrogate of YAHPO Gym, ``rbv2_xgboost``.

The booster (linear, trees, or trees with dropout) decides which of eight of the 14
hyperparameters there are. A network that was fitted to many real trainings answers in
0.8 ms, or 25 microseconds where it is asked about many points at once, so hundreds of
runs take minutes. It gives the training time, too, and has the fraction of the training
data as an input: see `YahpoXGBoost.evaluate`.

40 data sets are for development and 40 for the report. ``config_space.json``,
``encoding.json`` and ``model.onnx`` of the folder ``rbv2_xgboost`` of
github.com/slds-lmu/yahpo_data (Apache 2.0) are expected in
``DIR/yahpo_rbv2_xgboost``; ``DIR`` is ``DATA``, unless a factory gets another one:
``partial(DEVELOP["yahpo-3"], data=DIR)``.

The best value of a data set is not known. ``optima.json`` has the best of 20,000 random
points and of 120 generations from the best 50 of them (`optima.improve`), made by

    python -m benchmarks.suite.yahpo --data DIR

.. [Pfisterer2022yahpo]
    F. Pfisterer, L. Schneider, J. Moosbauer, M. Binder, B. Bischl. YAHPO Gym: An
    Efficient Multi-Objective Multi-Fidelity Benchmark for Hyperparameter Optimization.
    International Conference on Automated Machine Learning (AutoML-Conf), 2022.
"""

from __future__ import annotations

__all__ = [
    "DATA",
    "DEVELOP",
    "DEVELOP_TASKS",
    "REPORT",
    "REPORT_TASKS",
    "YahpoXGBoost",
    "main",
    "make",
]

import argparse
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import ConfigSpace as cs
import numpy as np
import torch
from torch import Tensor

from benchmarks.suite.optima import Scale, ScaledProblem, improve, write_scales
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.columns import CategoricalColumn, FloatColumn

DATA = Path("../shared/data")
"""Where the folder of the surrogate is, unless a factory gets another ``data``."""

DEVELOP_TASKS = tuple(
    "3 6 12 16 23 24 32 37 44 46 60 181 182 375 377 1040 1050 1053 1056 1111 1475 1476 "
    "1478 1480 1493 1494 4135 4534 23381 40498 40685 40923 40979 40981 41157 41161 "
    "41164 41165 41212 41278".split()
)
REPORT_TASKS = tuple(
    "15 22 28 29 31 38 50 151 188 300 469 470 1063 1068 1461 1485 1486 1487 1510 4134 "
    "4154 4541 6332 40536 40668 40670 40900 40966 40982 40983 40984 40994 40996 41027 "
    "41138 41142 41156 41163 41166 41216".split()
)

_FOLDER = "yahpo_rbv2_xgboost"
_SOURCE = "the folder rbv2_xgboost of github.com/slds-lmu/yahpo_data"
_CHOICES = ("task_id", "booster", "num.impute.selected.cpo")  # the order of ``x_cat``
_NUMBERS = (  # the order of ``x_cont``
    "nrounds",
    "eta",
    "gamma",
    "lambda",
    "alpha",
    "subsample",
    "max_depth",
    "min_child_weight",
    "colsample_bytree",
    "colsample_bylevel",
    "rate_drop",
    "skip_drop",
    "trainsize",
    "repl",
)
_OUTPUTS = {"acc": 0, "logloss": 5, "timetrain": 6}
_HELD = ("task_id", "trainsize", "repl")  # not part of the space
_REPETITIONS = 10.0
_SMALLEST_TRAINSIZE = 0.03
_RANDOM, _PARENTS, _GENERATIONS, _CHILDREN = 20_000, 50, 120, 20


class YahpoXGBoost(ScaledProblem):
    r"""The error rate of xgboost on one data set, by a surrogate; to be minimised.

    For comparing optimisers on a conditional space as people meet it, where an
    evaluation costs nothing: three paths, logarithmic and whole columns, a category
    that is always active, and declared defaults.

        booster
        |-- gblinear
        |-- gbtree   eta, gamma, max_depth, min_child_weight, colsample_bytree and
        |            colsample_bylevel
        `-- dart     those of gbtree, rate_drop, skip_drop

    ``nrounds``, ``alpha``, ``lambda``, ``subsample`` and the way of imputing are active
    everywhere. The surrogate has no noise: a point always has the same value.

        >>> problem = YahpoXGBoost("1040")
        >>> X = problem.space.sample(5, seed=0)
        >>> problem(X[0])
        >>> columns = problem.evaluate(X, trainsize=0.1)
        >>> columns["logloss"], columns["timetrain"]

    Attributes:
        space: The `SearchSpace`, 14 columns.
        name: The data set's number.
        trainsize: The fraction of the training data, unless `evaluate` gets another.
        optimal_value: The best known error; an AttributeError where there is none.
        middle_value: The median error of 1,000 random points; likewise.
    """

    def __init__(
        self, task_id: str | int, data: str | Path = DATA, trainsize: float = 1.0
    ) -> None:
        r"""
        Args:
            task_id: One of ``DEVELOP_TASKS`` or ``REPORT_TASKS``.
            data: The folder that has the folder ``yahpo_rbv2_xgboost``.
            trainsize: The fraction of the training data, from 0.03 to 1. The optimal
                and the middle value are known for 1 only.

        Raises:
            FileNotFoundError: A file of the surrogate is missing.
            ImportError: ``onnxruntime`` is not installed.
            ValueError: Another data set, or a fraction out of bounds.
        """
        known = DEVELOP_TASKS + REPORT_TASKS
        if str(task_id) not in known:
            raise ValueError(
                f"task_id: expected one of the {len(known)} data sets of DEVELOP_TASKS "
                f"and REPORT_TASKS, got {task_id!r}."
            )
        self.trainsize = float(_check_trainsize(trainsize))
        self._folder = Path(data) / _FOLDER
        super().__init__(_read_space(self._folder), "yahpo", str(task_id))
        self._codes = _read_codes(self._folder)
        _session(self._folder)  # what is missing is said here, not at an evaluation

    def evaluate(
        self, X: Tensor, trainsize: float | Tensor | None = None
    ) -> dict[str, Tensor]:
        r"""What the surrogate says about many points.

        Args:
            X: An ``n x d``-dim tensor of points of ``space``.
            trainsize: The fraction of the training data, a number or ``n`` of them,
                from 0.03 to 1. Default: that of the problem.

        Returns:
            Three tensors of ``n`` numbers: ``acc``, the accuracy; ``logloss``;
            ``timetrain``, the training time in seconds.

        Raises:
            ValueError: For points that are not of the space, or a fraction out of
                bounds.
        """
        if X.ndim != 2 or X.shape[1] != self.space.dim:
            raise ValueError(
                f"X: expected shape n x {self.space.dim}, got {tuple(X.shape)}."
            )
        X = X.detach().double()
        if not self.space.feasible(X).all():
            raise ValueError("X: expected points of the space, got some that are not.")
        fraction = self.trainsize if trainsize is None else trainsize
        fraction = _check_trainsize(fraction)
        if fraction.ndim and fraction.shape != X.shape[:1]:
            raise ValueError(
                f"trainsize: expected a number or {len(X)} of them, got shape "
                f"{tuple(fraction.shape)}."
            )
        given = {"x_cat": self._categories(X), "x_cont": self._numbers(X, fraction)}
        (answer,) = _session(self._folder).run(None, given)
        return {
            name: torch.from_numpy(answer[:, j].astype(np.float64))
            for name, j in _OUTPUTS.items()
        }

    def truths(self, X: Tensor) -> Tensor:
        """The error rates, 1 - acc, of ``n x d`` points: ``n``."""
        return 1.0 - self.evaluate(X)["acc"]

    def _scale(self) -> Scale:
        if self.trainsize != 1.0:
            raise AttributeError(
                f"No optimum is known with trainsize = {self.trainsize}."
            )
        return super()._scale()

    def _categories(self, X: Tensor) -> np.ndarray:
        """``n x 3`` codes of the surrogate."""
        codes = np.full((len(X), 3), self._codes["task_id"][self.name], dtype=np.int32)
        for j, name in enumerate(_CHOICES[1:], start=1):
            c = self.space.names.index(name)
            column = self.space.columns[c]
            assert isinstance(column, CategoricalColumn)
            of_choice = np.array([self._codes[name][str(v)] for v in column.choices])
            codes[:, j] = of_choice[X[:, c].round().long().numpy()]
        return codes

    def _numbers(self, X: Tensor, trainsize: Tensor) -> np.ndarray:
        """``n x 14`` numbers in their own units, 0 where inactive."""
        active = self.space.tree.active_mask(X)
        numbers = torch.zeros(len(X), len(_NUMBERS), dtype=torch.double)
        for j, name in enumerate(_NUMBERS):
            if name in _HELD:
                continue
            c = self.space.names.index(name)
            column = self.space.columns[c]
            x = X[:, c].clamp(*column.bounds)
            if isinstance(column, FloatColumn):
                x = 10**x if column.log else x
            else:
                x = x.round()
            numbers[:, j] = torch.where(active[:, c], x, 0.0)
        numbers[:, _NUMBERS.index("trainsize")] = trainsize
        numbers[:, _NUMBERS.index("repl")] = _REPETITIONS
        return numbers.numpy().astype(np.float32)


def make(seed: int, task_id: str, data: str | Path = DATA) -> YahpoXGBoost:
    """The problem of a data set; it is the same for all seeds."""
    return YahpoXGBoost(task_id, data)


DEVELOP = {
    f"yahpo-{task}": partial(make, task_id=task, data=DATA) for task in DEVELOP_TASKS
}
REPORT = {
    f"yahpo-{task}": partial(make, task_id=task, data=DATA) for task in REPORT_TASKS
}


def _check_trainsize(trainsize: Any) -> Tensor:
    fraction = torch.as_tensor(trainsize, dtype=torch.double)
    if not ((fraction >= _SMALLEST_TRAINSIZE) & (fraction <= 1.0)).all():
        raise ValueError(
            f"trainsize: expected numbers from {_SMALLEST_TRAINSIZE} to 1, got "
            f"{trainsize}."
        )
    return fraction


def _file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.exists():
        raise FileNotFoundError(f"{path}: expected {name} of {_SOURCE}, got no file.")
    return path


@lru_cache(maxsize=2)
def _read_codes(folder: Path) -> Mapping[str, Mapping[str, int]]:
    return json.loads(_file(folder, "encoding.json").read_text())


@lru_cache(maxsize=2)
def _read_space(folder: Path) -> SearchSpace:
    """ConfigSpace no longer reads its old format: read it as JSON."""
    content = json.loads(_file(folder, "config_space.json").read_text())
    kinds: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        "categorical": _categorical,
        "uniform_float": partial(_uniform, cs.UniformFloatHyperparameter),
        "uniform_int": partial(_uniform, cs.UniformIntegerHyperparameter),
    }
    space = cs.ConfigurationSpace(seed=0)
    space.add(
        [
            kinds[entry["type"]](entry)
            for entry in content["hyperparameters"]
            if entry["name"] not in _HELD
        ]
    )
    for entry in content["conditions"]:
        values = [entry["value"]] if entry["type"] == "EQ" else entry["values"]
        child, parent = space[entry["child"]], space[entry["parent"]]
        space.add(cs.InCondition(child, parent, values))
    if content["forbiddens"]:
        raise ValueError(
            f"{folder}: expected no forbidden clauses, got {content['forbiddens']}."
        )
    return SearchSpace.from_configspace(space)


def _categorical(entry: Mapping[str, Any]) -> cs.CategoricalHyperparameter:
    return cs.CategoricalHyperparameter(
        entry["name"], entry["choices"], default_value=entry["default"]
    )


def _uniform(kind: Any, entry: Mapping[str, Any]) -> Any:
    return kind(
        entry["name"],
        entry["lower"],
        entry["upper"],
        default_value=entry["default"],
        log=entry["log"],
    )


@lru_cache(maxsize=2)
def _session(folder: Path) -> Any:
    """One for each process, on one thread."""
    path = _file(folder, "model.onnx")
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ImportError(
            "The surrogates of YAHPO Gym need onnxruntime: "
            'python -m pip install "botorch-structured[suite]"'
        ) from error
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return runtime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )


def _find_scale(problem: YahpoXGBoost, X: Tensor) -> Scale:
    """The best value of a long search, and the median of 1,000 random points."""
    values = problem.truths(X)
    parents = values.topk(min(_PARENTS, len(X)), largest=False).indices
    _, best = improve(
        problem.space,
        problem.truths,
        X[parents],
        values[parents],
        _GENERATIONS,
        _CHILDREN,
    )
    middle = problem.truths(problem.space.sample(1000, seed=0)).median()
    return Scale(float(best.min()), float(middle))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command that makes the table of optima."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--tasks", nargs="+", default=DEVELOP_TASKS + REPORT_TASKS)
    options = parser.parse_args(arguments)
    problems = [YahpoXGBoost(task, options.data) for task in options.tasks]
    X = problems[0].space.sample(_RANDOM, seed=1)
    for problem in problems:
        scale = _find_scale(problem, X)
        print(problem.name, *scale, flush=True)
        # After each data set: an interrupted command loses one.
        write_scales(
            "yahpo",
            "python -m benchmarks.suite.yahpo --data DIR",
            {problem.name: scale},
        )


if __name__ == "__main__":
    main()
