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
    "YahpoProblem",
    "YahpoXGBoost",
    "find_scales",
    "main",
    "make",
]

import argparse
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

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

_NUMBERS = (
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
    """Of choices whose parameters have another name."""
    one_by_one: ClassVar[bool] = False
    """Whether the surrogate takes one point at a time."""
    effort: ClassVar[tuple[int, int, int, int]] = (20_000, 50, 120, 20)
    """Of the search for the optimum: random points, the best of them that are improved,
    generations and children of each."""

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
        fraction = _check_trainsize(trainsize)
        if fraction.ndim and fraction.shape != X.shape[:1]:
            raise ValueError(
                f"trainsize: expected a number or {len(X)} of them, got shape "
                f"{tuple(fraction.shape)}."
            )
        given = {"x_cat": self._categories(X), "x_cont": self._values(X, fraction)}
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

    def _values(self, X: Tensor, trainsize: Tensor) -> np.ndarray:
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
        trainsize: The fraction of the training data, unless `evaluate` gets another.
        optimal_value: The best known error; an AttributeError where there is none.
        middle_value: The median error of 1,000 random points; likewise.
    """

    of_suite = "yahpo"
    scenario = "rbv2_xgboost"
    choices = ("task_id", "booster", "num.impute.selected.cpo")
    numbers = _NUMBERS
    tasks = DEVELOP_TASKS + REPORT_TASKS

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
        self.trainsize = float(_check_trainsize(trainsize))
        super().__init__(task_id, data)

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
        answers = self.answers(X, self.trainsize if trainsize is None else trainsize)
        return {name: answers[:, j] for name, j in _OUTPUTS.items()}

    def truths(self, X: Tensor) -> Tensor:
        """The error rates, 1 - acc, of ``n x d`` points: ``n``."""
        return 1.0 - self.evaluate(X)["acc"]

    def _scale(self) -> Scale:
        if self.trainsize != 1.0:
            raise AttributeError(
                f"No optimum is known with trainsize = {self.trainsize}."
            )
        return super()._scale()


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
    conditional = {entry["child"] for entry in content["conditions"]}
    roots = space.keys() - conditional
    for entry in content["conditions"]:
        # "and" joins a condition with that of its parent, which holds anyway
        parts = entry.get("conditions", [entry])
        (own,) = (c for c in parts if len(parts) == 1 or c["parent"] not in roots)
        values = [own["value"]] if own["type"] == "EQ" else own["values"]
        child, parent = space[own["child"]], space[own["parent"]]
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


def _find_scale(problem: YahpoProblem, X: Tensor) -> Scale:
    """The best value of a long search, and the median of 1,000 random points."""
    values = problem.truths(X)
    _, most, generations, children = problem.effort
    parents = values.topk(min(most, len(X)), largest=False).indices
    _, best = improve(
        problem.space,
        problem.truths,
        X[parents],
        values[parents],
        generations,
        children,
    )
    middle = problem.truths(problem.space.sample(1000, seed=0)).median()
    return Scale(float(best.min()), float(middle))


def find_scales(
    kind: type[YahpoProblem], command: str, arguments: Sequence[str] | None = None
) -> None:
    """Make the table of optima of a kind of problems.

    Args:
        kind: Of the problems.
        command: That makes the table.
        arguments: Of the command line.
    """
    parser = argparse.ArgumentParser(description=command)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--tasks", nargs="+", default=kind.tasks)
    options = parser.parse_args(arguments)
    problems = [kind(task, options.data) for task in options.tasks]
    X = problems[0].space.sample(kind.effort[0], seed=1)
    for problem in problems:
        scale = _find_scale(problem, X)
        print(problem.name, *scale, flush=True)
        # After each data set: an interrupted command loses one.
        write_scales(
            kind.of_suite, f"python -m {command} --data DIR", {problem.name: scale}
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command that makes the table of optima."""
    find_scales(YahpoXGBoost, "benchmarks.suite.yahpo", arguments)


if __name__ == "__main__":
    main()
