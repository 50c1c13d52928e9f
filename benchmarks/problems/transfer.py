"""Tables of many tasks, one to be solved with data of the others; reading of tables.

A `TransferTables` has the rows of all tasks; ``leave_out`` makes one of them a
`TableProblem` with the rows of the others as its ``history``.

.. [vanRijn2018importance]
    J. N. van Rijn, F. Hutter. Hyperparameter Importance Across Datasets. International
    Conference on Knowledge Discovery and Data Mining (KDD), 2018.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from benchmarks.problems.quadratics import TaskHistory
from botorch_structured.spaces import SearchSpace
from botorch_structured.test_functions import TableProblem


def read_rows(
    path: Path, columns: Sequence[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Where each row of data stands, in words, and its cells.

    Args:
        path: A file with a header, comma-separated, or of the format ARFF; either may
            be compressed with gzip.
        columns: What it has to have.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It lacks a column, or has no row.
    """
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path, newline="")
    with opened as file:
        if path.name.removesuffix(".gz").endswith(".arff"):
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
            refuse(str(path), f"columns {absent}", f"the header {header}")
        count = 0
        for count, row in enumerate(reader, 1):
            yield f"{path}: row {count}", row
        if not count:
            refuse(str(path), "a row of data", "none")


def number(where: str, cell: str) -> float:
    """The number that a cell is; ``where`` it stands is in the error if it is none."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        refuse(where, "a number", repr(cell))


def refuse(where: str, expected: str, got: str) -> NoReturn:
    """Raise a ValueError about a file."""
    raise ValueError(f"{where}: expected {expected}, got {got}.")


def table_from_csv(
    path: str | Path,
    inputs: Sequence[str],
    value: str,
    log: Sequence[str] = (),
    missing: Sequence[float] = (),
    **arguments: Any,
) -> TableProblem:
    r"""A table of columns of a comma-separated file with a header, gzipped or not.

    Args:
        path: Of the file.
        inputs: The names of the input columns.
        value: The name of the column of values.
        log: Those of the ``inputs`` on a logarithmic scale.
        missing: Values that mean there is none; such rows are left out.
        **arguments: Of `TableProblem`: ``maximize``, ``noise_std`` and so on.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It lacks a column, or something there is not a number.
    """
    unknown = [name for name in log if name not in inputs]
    if unknown:
        raise ValueError(f"log: expected names of {list(inputs)}, got {log}.")
    X: list[list[float]] = []
    y: list[float] = []
    for where, row in read_rows(Path(path), [*inputs, value]):
        target = number(where, row[value])
        if target not in missing:
            X.append([number(where, row[name]) for name in inputs])
            y.append(target)
    if not y:
        refuse(str(path), "a row with a value", "none")
    return TableProblem(X, y, inputs, [inputs.index(name) for name in log], **arguments)


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
    space = SearchSpace.from_dictionaries(
        {
            "bootstrap": [False, True],
            "criterion": ["entropy", "gini"],
            "max_features": (0.1, 0.9),
            "min_samples_leaf": (1, 20),
            "min_samples_split": (2, 20),
            "strategy": ["mean", "median", "most_frequent"],
        }
    )
    prefixes = ["randomforestclassifier__"] * 5 + [
        "columntransformer__numeric__imputer__"
    ]
    in_file = [
        p + column.name for p, column in zip(prefixes, space.columns, strict=True)
    ]
    X: list[list[float]] = []
    y: list[float] = []
    tasks: list[str] = []
    required = [*in_file, "predictive_accuracy", "task_id"]
    for where, row in read_rows(Path(path), required):
        try:
            cells = [row[name] for name in in_file]
            pairs = zip(space.columns, cells, strict=True)
            X.append([column.encode(cell) for column, cell in pairs])
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        y.append(-number(where, row["predictive_accuracy"]))
        tasks.append(row["task_id"])
    return TransferTables.from_rows(X, y, tasks, space)
