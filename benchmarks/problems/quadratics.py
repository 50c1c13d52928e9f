"""One of many tasks, with evaluations of the others: `QuadraticTasks`, one left out."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from botorch_structured.test_functions import QuadraticTasks
from botorch_structured.test_functions.base import BoxTestFunction


class TaskHistory(NamedTuple):
    """Evaluations of other tasks on the same inputs, for a warm start."""

    #: ``N x (d + 1)``, the task last.
    X: Tensor
    #: ``N x 1``, of the same sign as values of the problem.
    Y: Tensor
    #: The number of the target, which has no rows.
    task: int
    #: The target included.
    num_tasks: int
    #: ``T x c`` numbers that describe the tasks.
    contexts: Tensor | None = None


class QuadraticTask(BoxTestFunction):
    """One of `QuadraticTasks`, on the inputs alone, with rows of the others.

    Args:
        tasks: All of them.
        task: The number of this one.
        num_observations: How many random rows of each other task are its ``history``.
        seed: Of these rows.
    """

    dim = 3
    continuous_inds = [0, 1, 2]
    _bounds = [(-1.0, 1.0)] * 3
    _num_starts = 2  # a task that has a history needs few

    def __init__(
        self,
        tasks: QuadraticTasks,
        task: int,
        num_observations: int = 10,
        seed: int = 0,
    ) -> None:
        a, b, c = tasks.contexts[task].tolist()
        best = max(-b / a, -1.0)
        self._optimizers = [(best,) * 3]
        self._optimal_value = 3 * (0.5 * a * best**2 + b * best) + c
        super().__init__()
        self.context = a, b, c
        X = tasks.starts(seed, num_observations)
        Y = tasks(X, noise=False).unsqueeze(-1)
        others = X[:, -1] != task
        self.history = TaskHistory(
            X[others], Y[others], task, tasks.num_tasks, tasks.contexts
        )

    def _evaluate_true(self, X: Tensor) -> Tensor:
        a, b, c = self.context
        return 0.5 * a * X.square().sum(-1) + b * X.sum(-1) + c
