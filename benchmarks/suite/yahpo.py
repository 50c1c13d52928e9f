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

The surrogate extrapolates: on 56 of the 80 data sets it knows configurations with an
error below 0.001, which real trainings do not reach on most of them. Methods are
compared on the surrogate as it is.

The best value of a data set is not known. ``optima.json`` has the best of 20,000 random
points and of 120 generations from the best 50 of them (`benchmarks.suite.optima`).

.. [Pfisterer2022yahpo]
    F. Pfisterer, L. Schneider, J. Moosbauer, M. Binder, B. Bischl. YAHPO Gym: An
    Efficient Multi-Objective Multi-Fidelity Benchmark for Hyperparameter Optimization.
    International Conference on Automated Machine Learning (AutoML-Conf), 2022.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import ConfigSpace as cs
import numpy as np
import torch
from torch import Tensor

from benchmarks.data import DATA
from benchmarks.harness import ProblemFactory
from benchmarks.suite.optima import ScaledProblem
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.columns import CategoricalColumn, FloatColumn

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

_OUTPUTS = {"acc": 0, "logloss": 5, "timetrain": 6}
_HELD = ("task_id", "trainsize", "repl")  # not part of the space
_REPETITIONS = 10.0


class YahpoProblem(ScaledProblem):
    """A surrogate of YAHPO Gym on one data set.

    Args:
        task_id: One of ``tasks``.
        data: The folder that has the folder of the surrogate.

    Raises:
        FileNotFoundError: A file of the surrogate is missing.
        ImportError: ``onnxruntime`` is not installed.
        ValueError: Another data set.
    """

    of_suite: ClassVar[str]
    """The kind of these problems."""
    scenario: ClassVar[str]
    choices: ClassVar[tuple[str, ...]]
    """The order of ``x_cat``."""
    numbers: ClassVar[tuple[str, ...]]
    """The order of ``x_cont``."""
    tasks: ClassVar[tuple[str, ...]]
    other_names: ClassVar[Mapping[str, str]] = {}
    """Names of parameters that differ from those of the choices."""
    one_by_one: ClassVar[bool] = False
    """Whether the surrogate takes one point at a time."""
    effort = (20_000, 50, 120, 20)

    def __init__(self, task_id: str | int, data: str | Path = DATA) -> None:
        if str(task_id) not in self.tasks:
            raise ValueError(
                f"task_id: expected one of the {len(self.tasks)} data sets of "
                f"DEVELOP_TASKS and REPORT_TASKS, got {task_id!r}."
            )
        self._folder = Path(data) / f"yahpo_{self.scenario}"
        super().__init__(_read_space(self._folder), self.of_suite, str(task_id))
        self._codes = _read_codes(self._folder)
        _session(self._folder)  # what is missing is said here, not at an evaluation

    def answers(self, X: Tensor, trainsize: float | Tensor = 1.0) -> Tensor:
        r"""All outputs of the surrogate.

        Args:
            X: An ``n x d``-dim tensor of points of ``space``.
            trainsize: The fraction of the training data, a number or ``n`` of them,
                from 0.03 to 1.
        """
        X = X.detach().double()
        given = {"x_cat": self._categories(X), "x_cont": self._values(X, trainsize)}
        session = _session(self._folder)
        step = 1 if self.one_by_one else max(len(X), 1)
        parts = [
            session.run(None, {k: v[i : i + step] for k, v in given.items()})[0]
            for i in range(0, max(len(X), 1), step)
        ]
        return torch.from_numpy(np.concatenate(parts).astype(np.float64))

    def _categories(self, X: Tensor) -> np.ndarray:
        """``n x k`` codes of the surrogate, that of ``#na#`` where inactive."""
        active = self.space.tree.active_mask(X)
        codes = np.zeros((len(X), len(self.choices)), dtype=np.int32)
        for j, name in enumerate(self.choices):
            of = self._codes[name]
            if name == "task_id":
                codes[:, j] = of[self.name]
                continue
            c = self.space.names.index(self.other_names.get(name, name))
            column = self.space.columns[c]
            assert isinstance(column, CategoricalColumn)
            of_choice = np.array([of[str(v)] for v in column.choices])
            chosen = of_choice[X[:, c].round().long().clamp_min(0).numpy()]
            codes[:, j] = np.where(active[:, c].numpy(), chosen, of["#na#"])
        return codes

    def _values(self, X: Tensor, trainsize: float | Tensor) -> np.ndarray:
        """``n x k`` numbers in their own units, 0 where inactive."""
        active = self.space.tree.active_mask(X)
        numbers = torch.zeros(len(X), len(self.numbers), dtype=torch.double)
        for j, name in enumerate(self.numbers):
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
        numbers[:, self.numbers.index("trainsize")] = trainsize
        numbers[:, self.numbers.index("repl")] = _REPETITIONS
        return numbers.numpy().astype(np.float32)


class YahpoXGBoost(YahpoProblem):
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
        optimal_value: The best known error; an AttributeError where there is none.
        middle_value: The median error of 1,000 random points; likewise.
    """

    of_suite = "yahpo"
    scenario = "rbv2_xgboost"
    choices = ("task_id", "booster", "num.impute.selected.cpo")
    numbers = tuple(
        "nrounds eta gamma lambda alpha subsample max_depth min_child_weight "
        "colsample_bytree colsample_bylevel rate_drop skip_drop trainsize repl".split()
    )
    tasks = DEVELOP_TASKS + REPORT_TASKS

    def evaluate(self, X: Tensor, trainsize: float | Tensor = 1.0) -> dict[str, Tensor]:
        r"""Answers of the surrogate about many points.

        Args:
            X: An ``n x d``-dim tensor of points of ``space``.
            trainsize: The fraction of the training data, a number or ``n`` of them,
                from 0.03 to 1.

        Returns:
            Three tensors of ``n`` numbers: ``acc``, the accuracy; ``logloss``;
            ``timetrain``, the training time in seconds.
        """
        answers = self.answers(X, trainsize)
        return {name: answers[:, j] for name, j in _OUTPUTS.items()}

    def truths(self, X: Tensor) -> Tensor:
        """The error rates, 1 - acc, of ``n x d`` points: ``n``."""
        return 1.0 - self.evaluate(X)["acc"]


def make(seed: int, task_id: str, data: str | Path = DATA) -> YahpoXGBoost:
    """The problem of a data set; it is the same for all seeds."""
    return YahpoXGBoost(task_id, data)


def _named(tasks: Sequence[str]) -> dict[str, ProblemFactory]:
    return {f"yahpo-{t}": partial(make, task_id=t, data=DATA) for t in tasks}


DEVELOP = _named(DEVELOP_TASKS)
REPORT = _named(REPORT_TASKS)


def _file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.exists():
        scenario = folder.name.removeprefix("yahpo_")
        raise FileNotFoundError(
            f"{path}: expected {name} of the folder {scenario} of "
            "github.com/slds-lmu/yahpo_data, got no file."
        )
    return path


@lru_cache(maxsize=2)
def _read_codes(folder: Path) -> Mapping[str, Mapping[str, int]]:
    return json.loads(_file(folder, "encoding.json").read_text())


@lru_cache(maxsize=2)
def _read_space(folder: Path) -> SearchSpace:
    """ConfigSpace no longer reads its old format: read it as JSON."""
    content = json.loads(_file(folder, "config_space.json").read_text())
    space = cs.ConfigurationSpace(seed=0)
    entries = content["hyperparameters"]
    space.add([_hyperparameter(e) for e in entries if e["name"] not in _HELD])
    conditional = {entry["child"] for entry in content["conditions"]}
    roots = space.keys() - conditional
    for entry in content["conditions"]:
        # "and" joins a condition with that of its parent, which holds anyway
        parts = entry.get("conditions", [entry])
        (own,) = (c for c in parts if len(parts) == 1 or c["parent"] not in roots)
        values = [own["value"]] if own["type"] == "EQ" else own["values"]
        child, parent = space[own["child"]], space[own["parent"]]
        space.add(cs.InCondition(child, parent, values))
    return SearchSpace.from_configspace(space)


def _hyperparameter(entry: Mapping[str, Any]) -> Any:
    name = entry["name"]
    if entry["type"] == "categorical":
        choices = entry["choices"]
        return cs.CategoricalHyperparameter(
            name, choices, default_value=entry["default"]
        )
    whole = entry["type"] == "uniform_int"
    kind = cs.UniformIntegerHyperparameter if whole else cs.UniformFloatHyperparameter
    limits = entry["lower"], entry["upper"]
    return kind(name, *limits, default_value=entry["default"], log=entry["log"])


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
