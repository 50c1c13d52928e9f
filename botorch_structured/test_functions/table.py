"""Problems whose values stand in a table, and are known at its rows only.

A `TableProblem` is one table. `TransferTables` are those of many tasks, one of them to
be solved with data of the others.

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
    "TableProblem",
    "TaskHistory",
    "TransferTable",
    "TransferTables",
    "number",
    "random_forest_tables",
    "read_rows",
    "refuse",
]

import csv
import dataclasses
import gzip
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import check_columns, check_count
from botorch_structured.spaces.columns import FloatColumn, random_source
from botorch_structured.test_functions.base import (
    ConditionalTestFunction,
    default_num_starts,
)

# Points this near, in widths of the bounds, are the same row: fits float32.
_SAME = 1e-6


class TableProblem(ConditionalTestFunction):
    r"""A lookup: the rows of a table are all the points that there are.

    For grids that others have computed, and for measurements where nobody
    can measure again (boreholes): a benchmark on real values that costs nothing.
    As in section 4 of Assael et al. (2014), an acquisition function is to be maximised
    over the rows:

        >>> problem = TableProblem(X, y, log_features=[1, 2])
        >>> train_X = problem.starts(seed=0)
        >>> train_Y = -problem(train_X).unsqueeze(-1)
        >>> x, value = optimize_acqf_discrete(
        ...     acqf, q=1, choices=problem.candidates, X_avoid=train_X
        ... )

    A point that is not a row, up to rounding, is a ``ValueError`` and not the value of
    some row nearby: two suggestions would then have one value, and nobody would know
    which was evaluated. For an optimiser that cannot be told about the rows, say which
    one is meant: ``problem(problem.nearest(x))``.

    ``space`` is that of the columns; its ``sample`` draws rows, and only rows are
    ``feasible``. To be minimised, unless ``negate``.
    """

    candidates: Tensor  # ``n x d``, all rows
    values: Tensor  # ``n``, to be minimised
    optimizers: Tensor

    def __init__(
        self,
        X: Any,
        y: Any,
        names: Sequence[str] | None = None,
        log_features: Sequence[int] = (),
        space: SearchSpace | None = None,
        maximize: bool = False,
        noise_std: float | None = None,
        negate: bool = False,
        dtype: torch.dtype = torch.double,
    ) -> None:
        r"""
        Args:
            X: ``n x d`` numbers, the inputs as they stand in the table. A row that is
                repeated is one candidate, with the mean of its values.
            y: ``n`` values.
            names: Of the columns. Default: ``x1, ..., xd``.
            log_features: Columns whose decimal logarithm a model sees. It
                stands in ``candidates`` and ``bounds``.
            space: For tables with integers, categories or conditions, in place of
                ``names`` and ``log_features``: ``X`` holds points of it then, as its
                ``encode`` makes them.
            maximize: Whether large values are the good ones. The problem then returns
                their negative, to be minimised.
            noise_std: Standard deviation of noise to add.
            negate: Whether to return the negative, to be maximised.
            dtype: The dtype of ``candidates``, ``values`` and ``bounds``.

        Raises:
            ValueError: For shapes that do not fit, numbers that are not finite, a
                logarithm of a number that is not positive, or rows outside of the
                space.
        """
        X, y = np.asarray(X, dtype=float), np.asarray(y, dtype=float)
        if X.ndim != 2 or not X.size or y.shape != X.shape[:1]:
            raise ValueError(
                "X, y: expected n x d inputs and n values, at least one of each, got "
                f"shapes {X.shape} and {y.shape}."
            )
        if not (np.isfinite(X).all() and np.isfinite(y).all()):
            raise ValueError("X, y: expected finite numbers, got NaN or inf.")
        if space is None:
            columns = _columns(X, names, log_features)
            cells = [
                [column.encode(v) for column, v in zip(columns, row, strict=True)]
                for row in X.tolist()
            ]
            points = torch.tensor(cells, dtype=torch.double)
            space = SearchSpace.from_columns(columns, ParameterTree(len(columns)))
        elif names is not None or len(log_features):
            raise ValueError(
                "space: expected none beside names or log_features, got both."
            )
        else:
            points = _points_of(space, X)
        points, row = points.unique(dim=0, return_inverse=True)
        values = points.new_zeros(len(points)).index_add_(0, row, torch.from_numpy(y))
        values = values / row.bincount(minlength=len(points))
        values = -values if maximize else values
        rows = _RowSpace.of(space, points)
        super().__init__(rows, noise_std=noise_std, negate=negate, dtype=dtype)
        self.space: _RowSpace = rows
        self._optimal_value = float(values.min())
        best = points[values == values.min()]
        self.register_buffer("candidates", points.to(dtype), persistent=False)
        self.register_buffer("values", values.to(dtype), persistent=False)
        self.register_buffer("optimizers", best.to(dtype))

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        inputs: Sequence[str],
        value: str,
        log: Sequence[str] = (),
        missing: Sequence[float] = (),
        **arguments: Any,
    ) -> TableProblem:
        r"""Read columns of a comma-separated file with a header, gzipped or not.

        Args:
            path: Of the file.
            inputs: The names of the input columns.
            value: The name of the column of values.
            log: Those of the ``inputs`` on a logarithmic scale.
            missing: Values that mean there is none; such rows are left out.
            **arguments: Of the constructor: ``maximize``, ``noise_std`` and so on.

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
        return cls(X, y, inputs, [inputs.index(name) for name in log], **arguments)

    def nearest(self, X: Tensor) -> Tensor:
        r"""The candidate nearest to each point, distances in widths of the bounds.

        No category is near another: they stay as they are where there is such a row.

        Args:
            X: A ``batch_shape x d``-dim tensor within the bounds; what inactive
                columns hold does not matter.

        Returns:
            A ``batch_shape x d``-dim tensor of rows of ``candidates``.

        Raises:
            ValueError: For the wrong number of columns, or NaN where it matters.
        """
        if X.shape[-1] != self.dim:
            raise ValueError(
                f"X: expected shape `batch_shape x {self.dim}`, got {tuple(X.shape)}."
            )
        index, distance = self.space.nearest(X)
        if not distance.isfinite().all():
            raise ValueError("X: expected finite active columns, got NaN or inf.")
        return self.candidates[index].to(X)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        index, distance = self.space.nearest(X)
        if (distance > _SAME).any():
            worst = X.reshape(-1, self.dim)[distance.reshape(-1).argmax()]
            raise ValueError(
                f"X: expected rows of `candidates`, got {worst.tolist()}, which is "
                f"{float(distance.max()):.2g} widths of the bounds away from the "
                "nearest; see `nearest`."
            )
        return self.values[index.to(self.values.device)].to(X)

    def starts(self, seed: int, n: int | None = None) -> Tensor:
        r"""Different rows at random, the same for a seed.

        Args:
            seed: Any integer that is not negative.
            n: How many. Default: one on each path where there are several, else
                ``max(5, 2 d)``, or all if there are fewer.

        Returns:
            An ``n x d``-dim tensor.
        """
        rng = np.random.default_rng(1000 + seed)
        X = self.candidates[torch.from_numpy(rng.permutation(len(self.candidates)))]
        if n is not None:
            if not 0 < n <= len(X):
                raise ValueError(f"n: expected 1 to {len(X)} rows, got {n}.")
            return X[:n]
        keys = self.tree.path_key(X).tolist()
        if len(set(keys)) == 1:
            return X[: default_num_starts(self.dim)]
        return X[[keys.index(key) for key in dict.fromkeys(keys)]]


class _RowSpace(SearchSpace):
    """A space of which there are only certain points."""

    _rows: Tensor  # ``n x d``, inactive columns at ``fill``
    _scale: Tensor  # ``d``
    _index: KDTree

    @classmethod
    def of(cls, space: SearchSpace, rows: Tensor) -> _RowSpace:
        new = cls.from_columns(space.columns, space.tree, space.constants)
        assert isinstance(new, _RowSpace)
        width = new.bounds[1] - new.bounds[0]
        scale = torch.where(width > 0, width, 1.0)
        for column, codes in new.categorical_features.items():
            # A different category is farther away than all other columns together.
            gap = torch.tensor(sorted(codes), dtype=torch.double).diff()
            scale[column] = gap.min() / (2 * new.dim) if len(gap) else 1.0
        new._rows, new._scale = rows, scale
        new._index = KDTree((rows / scale).numpy())
        return new

    def nearest(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Its row and its distance, each ``batch_shape``; infinitely far for NaN."""
        points = self._snap(X.detach().to(self._rows).reshape(-1, self.dim))
        active = self.tree.active_mask(points, strict=False)
        points = torch.where(active, points, self.fill) / self._scale
        wrong = ~points.isfinite().all(-1)
        distance, index = self._index.query(points.nan_to_num(0.0, 0.0, 0.0).numpy())
        far = torch.from_numpy(distance).masked_fill(wrong, math.inf)
        return torch.from_numpy(index).reshape(X.shape[:-1]), far.reshape(X.shape[:-1])

    def feasible(self, X: Tensor) -> Tensor:
        """``batch_shape x m``: which points are rows."""
        return (self.nearest(X)[1] <= _SAME).to(X.device)

    def starts(
        self,
        n: int | None = None,
        kind: str = "random",
        seed: int | None = None,
        at_most: int | None = None,
    ) -> Tensor:
        """``n x d`` different rows (at most all of them) at random, spread over paths.

        The default is one on each path, but no more than ``at_most``; ``kind`` has to
        be ``"random"``.
        """
        if kind != "random":
            raise ValueError(f'kind: expected "random" for a table, got {kind!r}.')
        order = torch.randperm(len(self._rows), generator=random_source(seed))
        rows = self._rows[order]
        seen: Counter[int] = Counter()
        turns = []
        for key in self.tree.path_key(rows).tolist():
            turns.append(seen[key])
            seen[key] += 1
        if n is None:
            n = min(len(seen), len(seen) if at_most is None else at_most)
        return rows[sorted(range(len(rows)), key=turns.__getitem__)[:n]]

    def sample(self, n: int, seed: int | None = None) -> Tensor:
        """``n x d`` rows, drawn with replacement."""
        size = (check_count("n", n, least=0),)
        drawn = torch.randint(len(self._rows), size, generator=random_source(seed))
        return self._rows[drawn]


def _columns(
    X: np.ndarray, names: Sequence[str] | None, log_features: Sequence[int]
) -> list[FloatColumn]:
    d = X.shape[1]
    names = [f"x{j}" for j in range(d)] if names is None else list(names)
    if len(names) != d:
        raise ValueError(f"names: expected {d} names, got {names}.")
    logarithmic = check_columns("log_features", log_features, d)
    limits = zip(names, X.min(0).tolist(), X.max(0).tolist(), strict=True)
    return [
        FloatColumn(name, lower, upper, log=j in logarithmic)
        for j, (name, lower, upper) in enumerate(limits)
    ]


def _points_of(space: SearchSpace, X: np.ndarray) -> Tensor:
    """Rows of a space that is given."""
    if X.shape[1] != space.dim:
        raise ValueError(f"X: expected {space.dim} columns, got shape {X.shape}.")
    codes = [c for values in space.categorical_features.values() for c in values]
    if any(not float(code).is_integer() for code in codes):
        raise ValueError(
            "space: expected categories that are whole numbers, as BoTorch does in its "
            f"test functions, got {space.categorical_features}."
        )
    points = space.impute(torch.tensor(X, dtype=torch.double))
    wrong = (~space.feasible(points)).nonzero().squeeze(-1).tolist()
    if wrong:
        raise ValueError(
            f"X: expected rows that are points of the space, got row {wrong[0]}: "
            f"{X[wrong[0]].tolist()}, and {len(wrong) - 1} others."
        )
    return points


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
