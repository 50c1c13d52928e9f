"""Tables of many tasks, one of them to be solved with data of the others.

.. [Perrone2017multiple]
    V. Perrone, R. Jenatton, M. Seeger, C. Archambeau. Multiple Adaptive Bayesian Linear
    Regression for Scalable Bayesian Optimization with Warm Start. arXiv:1712.02902,
    2017.

.. [vanRijn2018importance]
    J. N. van Rijn, F. Hutter. Hyperparameter Importance Across Datasets. International
    Conference on Knowledge Discovery and Data Mining (KDD), 2018.
"""

from __future__ import annotations

__all__ = [
    "TaskHistory",
    "TransferTable",
    "TransferTables",
    "random_forest_tables",
]

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.columns import (
    CategoricalColumn,
    Column,
    FloatColumn,
    IntegerColumn,
)
from botorch_structured.test_functions.table import TableProblem, number, read_rows


@dataclasses.dataclass(frozen=True)
class TaskHistory:
    r"""Evaluations of other tasks on the same inputs, for a warm start.

    In the convention of BoTorch's ``MultiTaskGP``: the task stands in the last column.
    The target task is one of the ``T`` tasks and has no rows here.

        >>> history = problem.history
        >>> X, Y = history.join(train_X, train_Y)
        >>> model = MultiTaskABLR(
        ...     X, Y, task_feature=-1, output_tasks=[history.task],
        ...     all_tasks=list(range(history.num_tasks)),
        ... )

    Attributes:
        X: ``N x (d + 1)``, the task last.
        Y: ``N x 1``, of the same sign as values of the problem.
        task: The number of the target.
        num_tasks: ``T``, the target included.
        contexts: ``T x c`` numbers that describe the tasks (a data set's size, its
            meta-features), None where there are none.
    """

    X: Tensor
    Y: Tensor
    task: int
    num_tasks: int
    contexts: Tensor | None = None

    def join(
        self, X: Tensor, Y: Tensor, context: bool = False
    ) -> tuple[Tensor, Tensor]:
        r"""The history and the target's own rows, ready for a multi-task model.

        Args:
            X: ``n x d`` points of the target, ``n`` may be 0.
            Y: ``n x 1`` values, of the same sign as the history's.
            context: Whether each row also gets its task's context.

        Returns:
            ``(N + n) x (d + 1)`` inputs, or ``(N + n) x (d + c + 1)`` with contexts
            before the task, and ``(N + n) x 1`` values.

        Raises:
            ValueError: For shapes that do not fit, or contexts that are not there.
        """
        if X.ndim != 2 or X.shape[1] != self.X.shape[1] - 1 or Y.shape != (len(X), 1):
            raise ValueError(
                f"X, Y: expected X of shape `n x {self.X.shape[1] - 1}` and Y of shape "
                f"`n x 1`, got {tuple(X.shape)} and {tuple(Y.shape)}."
            )
        own = torch.cat([X, X.new_full((len(X), 1), self.task)], -1)
        joined = torch.cat([self.X.to(X), own])
        if context:
            if self.contexts is None:
                raise ValueError("contexts: expected those of all tasks, got None.")
            known = self.contexts.to(X)[joined[:, -1].long()]
            joined = torch.cat([joined[:, :-1], known, joined[:, -1:]], -1)
        return joined, torch.cat([self.Y.to(Y), Y])


class TransferTable(TableProblem):
    r"""The table of one task, and the rows of all other tasks as its ``history``.

    Made by `TransferTables.leave_out`.
    """

    history: TaskHistory

    def starts(self, seed: int, n: int | None = None) -> Tensor:
        r"""Different rows at random, the same for a seed.

        Args:
            seed: Any integer that is not negative.
            n: How many. Default: 2, as a task that has a history needs few.

        Returns:
            An ``n x d``-dim tensor.
        """
        return super().starts(seed, min(2, len(self.candidates)) if n is None else n)


class TransferTables:
    r"""Tables of ``T`` tasks over one space: read once, then leave one task out.

        >>> tables = random_forest_tables("openml_flow6969_random_forest.arff.gz")
        >>> problem = tables.leave_out(tables.names[0])
        >>> train_X = problem.starts(seed=0)  # 2 x d
        >>> X, Y = problem.history.join(train_X, problem(train_X).unsqueeze(-1))

    Values are to be minimised: of an accuracy they are the negative.

    Args:
        X: ``N x d`` points of the space, as its ``encode`` makes them.
        y: ``N`` values, to be minimised.
        task: The ``N`` numbers of the rows' tasks, from 0 to ``T - 1``.
        names: ``T`` names.
        space: Of the columns.
        contexts: ``T x c`` numbers that describe the tasks.

    Raises:
        ValueError: For shapes that do not fit, a task without rows.
    """

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        task: Tensor,
        names: Sequence[str],
        space: SearchSpace,
        contexts: Tensor | None = None,
    ) -> None:
        if X.shape[1:] != (space.dim,) or not y.shape == task.shape == X.shape[:1]:
            raise ValueError(
                f"X, y, task: expected `N x {space.dim}` points, `N` values and tasks, "
                f"got shapes {tuple(X.shape)}, {tuple(y.shape)} and "
                f"{tuple(task.shape)}."
            )
        if task.unique().tolist() != list(range(len(names))):
            raise ValueError(
                f"task: expected rows of each of {len(names)} tasks, numbered from 0, "
                f"got tasks {task.unique().tolist()}."
            )
        if contexts is not None and len(contexts) != len(names):
            raise ValueError(
                f"contexts: expected {len(names)} rows, got {len(contexts)}."
            )
        self.X = space.impute(X.to(torch.double))
        self.y, self.task = y.to(torch.double), task
        self.names, self.space, self.contexts = list(names), space, contexts

    @classmethod
    def from_rows(
        cls,
        X: Sequence[Sequence[float]],
        y: Sequence[float],
        tasks: Sequence[str],
        space: SearchSpace,
        contexts: Mapping[str, Sequence[float]] | None = None,
    ) -> TransferTables:
        """The same of rows with the names of their tasks.

        Args:
            X: ``N`` points of the space.
            y: ``N`` values, to be minimised.
            tasks: The ``N`` names; tasks are numbered in the order they appear in.
            space: Of the columns.
            contexts: The ``c`` numbers of each task.
        """
        numbers = {name: i for i, name in enumerate(dict.fromkeys(tasks))}
        task = torch.tensor([numbers[name] for name in tasks])
        known = None
        if contexts is not None:
            rows = [contexts[name] for name in numbers]
            known = torch.tensor(rows, dtype=torch.double)
        points, values = (torch.tensor(v, dtype=torch.double) for v in (X, y))
        return cls(points, values, task, list(numbers), space, known)

    @property
    def num_tasks(self) -> int:
        """``T``."""
        return len(self.names)

    def spread(self) -> Tensor:
        """``T``: the largest value of each task less the smallest.

        A task without a spread is solved by its first row: there is nothing to compare.
        """
        values = [self.y[self.task == t] for t in range(self.num_tasks)]
        return torch.stack([v.max() - v.min() for v in values])

    def subset(self, names: Sequence[str]) -> TransferTables:
        r"""Some of the tasks, in this order: a history that knows nothing of others.

        Args:
            names: Different names of tasks.

        Raises:
            ValueError: For no names, a name twice, or one that is not there.
        """
        if not names or len(set(names)) < len(names):
            raise ValueError(f"names: expected different tasks, got {list(names)}.")
        numbers = [self._number(name) for name in names]
        own = [(self.task == number).nonzero()[:, 0] for number in numbers]
        task = torch.cat([torch.full_like(rows, i) for i, rows in enumerate(own)])
        X, y = self.X[torch.cat(own)], self.y[torch.cat(own)]
        contexts = None if self.contexts is None else self.contexts[numbers]
        return TransferTables(X, y, task, names, self.space, contexts)

    def leave_out(
        self, task: int | str, noise_std: float | None = None, negate: bool = False
    ) -> TransferTable:
        r"""One task as a problem, with all rows of the others.

        Args:
            task: Its name or its number.
            noise_std: Of noise to add to the task's values, not to its history.
            negate: Whether values, those of the history too, are to be maximised.

        Returns:
            A `TableProblem` with a ``history``.

        Raises:
            ValueError: There is no such task.
        """
        number = self._number(task)
        own = self.task == number
        problem = TransferTable(
            self.X[own],
            self.y[own],
            space=self.space,
            noise_std=noise_std,
            negate=negate,
        )
        rows = torch.cat([self.X[~own], self.task[~own].to(self.X).unsqueeze(-1)], -1)
        values = (-self.y if negate else self.y)[~own].unsqueeze(-1)
        problem.history = TaskHistory(
            rows, values, number, self.num_tasks, self.contexts
        )
        return problem

    def _number(self, task: int | str) -> int:
        if isinstance(task, str) and task in self.names:
            return self.names.index(task)
        if isinstance(task, str) or not 0 <= task < self.num_tasks:
            raise ValueError(
                f"task: expected a number from 0 to {self.num_tasks - 1}, or one of "
                f"{self.names}, got {task!r}."
            )
        return task


def random_forest_tables(path: str | Path) -> TransferTables:
    """Accuracy of scikit-learn's random forest on OpenML's data sets.

    94 data sets of OpenML100 times 500 random configurations of flow 6969: 47,000 rows
    of [vanRijn2018importance]_. They stand in for flow 6794 of [Perrone2017multiple]_,
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
    columns: dict[str, Column] = {  # by their names in the file
        forest + "bootstrap": CategoricalColumn("bootstrap", [False, True]),
        forest + "criterion": CategoricalColumn("criterion", ["entropy", "gini"]),
        forest + "max_features": FloatColumn("max_features", 0.1, 0.9),
        forest + "min_samples_leaf": IntegerColumn("min_samples_leaf", 1, 20),
        forest + "min_samples_split": IntegerColumn("min_samples_split", 2, 20),
        imputer + "imputer__strategy": CategoricalColumn(
            "strategy", ["mean", "median", "most_frequent"]
        ),
    }
    tree = ParameterTree(len(columns))
    space = SearchSpace.from_columns(list(columns.values()), tree)
    X: list[list[float]] = []
    y: list[float] = []
    tasks: list[str] = []
    required = [*columns, "predictive_accuracy", "task_id"]
    for where, row in read_rows(Path(path), required):
        try:
            X.append([column.encode(row[name]) for name, column in columns.items()])
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        y.append(-number(where, row["predictive_accuracy"]))
        tasks.append(row["task_id"])
    return TransferTables.from_rows(X, y, tasks, space)
