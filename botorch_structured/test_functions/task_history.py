"""What is known before a new task begins: rows of other tasks."""

from __future__ import annotations

__all__ = ["TaskHistory"]

import dataclasses

import torch
from torch import Tensor


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
        Y: ``N x 1``, of the same sign as what the problem returns.
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

    def __post_init__(self) -> None:
        if self.X.ndim != 2 or self.Y.shape != (len(self.X), 1):
            raise ValueError(
                "X, Y: expected X of shape `N x (d + 1)` and Y of shape `N x 1`, got "
                f"{tuple(self.X.shape)} and {tuple(self.Y.shape)}."
            )
        if not 0 <= self.task < self.num_tasks:
            raise ValueError(
                f"task: expected 0 to {self.num_tasks - 1}, got {self.task}."
            )
        tasks = self.X[:, -1]
        known = (tasks == tasks.round()) & (tasks >= 0) & (tasks < self.num_tasks)
        if not known.all():
            raise ValueError(
                f"X: expected tasks from 0 to {self.num_tasks - 1} in the last column, "
                f"got {tasks[~known][0].item()}."
            )
        if (tasks == self.task).any():
            raise ValueError(
                f"X: expected rows of tasks other than the target {self.task}, got "
                f"{int((tasks == self.task).sum())} of its own."
            )
        if self.contexts is not None and len(self.contexts) != self.num_tasks:
            raise ValueError(
                f"contexts: expected those of {self.num_tasks} tasks, got "
                f"{len(self.contexts)}."
            )

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
            joined = self.with_context(joined)
        return joined, torch.cat([self.Y.to(Y), Y])

    def with_context(self, X: Tensor) -> Tensor:
        r"""Points with the context of their task before the task column.

        Args:
            X: ``batch_shape x (d + 1)`` points, the task last.

        Returns:
            ``batch_shape x (d + c + 1)``.

        Raises:
            ValueError: The contexts of these tasks are not known.
        """
        if self.contexts is None:
            raise ValueError("contexts: expected those of all tasks, got None.")
        task = X[..., -1].round().long().to(self.contexts.device)
        return torch.cat([X[..., :-1], self.contexts[task].to(X), X[..., -1:]], -1)
