"""Tables of many tasks, one of them to be solved with what the others show."""

from __future__ import annotations

__all__ = ["TransferTable", "TransferTables"]

from collections.abc import Sequence

import torch
from torch import Tensor

from botorch_structured.spaces import SearchSpace
from botorch_structured.test_functions.table import TableProblem
from botorch_structured.test_functions.task_history import TaskHistory


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
        if X.ndim != 2 or X.shape[1] != space.dim or not len(X):
            raise ValueError(f"X: expected `N x {space.dim}`, got {tuple(X.shape)}.")
        if y.shape != X.shape[:1] or task.shape != X.shape[:1]:
            raise ValueError(
                f"y, task: expected {len(X)} values and tasks, got shapes "
                f"{tuple(y.shape)} and {tuple(task.shape)}."
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
        own = [(self.task == self._number(name)).nonzero()[:, 0] for name in names]
        rows = torch.cat(own)
        task = torch.repeat_interleave(
            torch.arange(len(own)), torch.tensor([len(r) for r in own])
        )
        contexts = None
        if self.contexts is not None:
            contexts = self.contexts[[self._number(name) for name in names]]
        return TransferTables(
            self.X[rows], self.y[rows], task, names, self.space, contexts
        )

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
        values = self.y[~own].unsqueeze(-1)
        problem.history = TaskHistory(
            X=rows,
            Y=-values if negate else values,
            task=number,
            num_tasks=self.num_tasks,
            contexts=self.contexts,
        )
        return problem

    def _number(self, task: int | str) -> int:
        if isinstance(task, str):
            if task not in self.names:
                raise ValueError(f"task: expected one of {self.names}, got {task!r}.")
            return self.names.index(task)
        if not 0 <= task < self.num_tasks:
            raise ValueError(
                f"task: expected a name, or 0 to {self.num_tasks - 1}, got {task}."
            )
        return task
