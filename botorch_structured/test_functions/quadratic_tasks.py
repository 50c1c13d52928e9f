"""Quadratic functions that have much in common: transfer in its smallest form.

.. [Perrone2017multiple]
    V. Perrone, R. Jenatton, M. Seeger, C. Archambeau. Multiple Adaptive Bayesian Linear
    Regression for Scalable Bayesian Optimization with Warm Start. arXiv:1712.02902,
    2017.
"""

from __future__ import annotations

__all__ = ["QuadraticTask", "QuadraticTasks"]

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import check_count
from botorch_structured.test_functions.base import (
    BoxTestFunction,
    ConditionalTestFunction,
)
from botorch_structured.test_functions.transfer_tables import TaskHistory

_DIM = 3
_SMALLEST, _LARGEST = 0.1, 10.0  # of a, b and c


class QuadraticTask(BoxTestFunction):
    r"""One of `QuadraticTasks`: ``a / 2 |x|^2 + b 1'x + c`` on [-1, 1]^3.

    What a new task looks like: to be minimised from few evaluations, ``starts``, and
    whatever ``history`` says of the others. All coordinates of the optimum are
    ``-b / a``, or -1 where that is outside.
    """

    dim = _DIM
    continuous_inds = list(range(_DIM))
    _bounds = [(-1.0, 1.0)] * _DIM
    _num_starts = 2  # a task that has a history needs few

    def __init__(
        self,
        context: Sequence[float],
        history: TaskHistory | None = None,
        noise_std: float | None = None,
        negate: bool = False,
        dtype: torch.dtype = torch.double,
    ) -> None:
        r"""
        Args:
            context: ``(a, b, c)``, each in [0.1, 10].
            history: Evaluations of other tasks; usually of `QuadraticTasks.leave_out`.
            noise_std: Standard deviation of the observation noise.
            negate: Whether to negate the function.
            dtype: The dtype of ``bounds``.

        Raises:
            ValueError: For a context that is not of the paper's.
        """
        context = tuple(float(value) for value in context)
        if len(context) != 3 or not all(_SMALLEST <= v <= _LARGEST for v in context):
            raise ValueError(
                f"context: expected a, b and c from {_SMALLEST} to {_LARGEST}, got "
                f"{context}."
            )
        a, b, c = context
        best = max(-b / a, -1.0)
        self._optimizers = [(best,) * _DIM]
        self._optimal_value = _DIM * (0.5 * a * best**2 + b * best) + c
        super().__init__(noise_std=noise_std, negate=negate, dtype=dtype)
        self.context = context
        self.history: Any = history

    @property
    def value_range(self) -> float:
        """The largest value on the box less the smallest: the unit of gaps."""
        a, b, c = self.context
        best = self._optimizers[0][0]
        return _DIM * (0.5 * a * (1.0 - best**2) + b * (1.0 - best))

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return _quadratic(X, X.new_tensor(self.context))


class QuadraticTasks(ConditionalTestFunction):
    r"""``T`` tasks ``f_t(x) = a_t / 2 |x|^2 + b_t 1'x + c_t`` on [-1, 1]^3.

    Section 3.1 of [Perrone2017multiple]_, to see whether a model learns from other
    tasks: all have bowls on the same diagonal, and their contexts ``(a_t, b_t, c_t)``,
    drawn uniformly from [0.1, 10]^3, say where. The box is not given in the paper; on
    [-1, 1]^3 the optimum of half of the tasks is a corner.

    As a function of four columns, ``x1, x2, x3`` and the task ``0, ..., T - 1``, it
    gives the rows of a multi-task model; its optimum is that of the best task. Its
    tasks on their own, one after the other, are `leave_out`:

        >>> tasks = QuadraticTasks(num_tasks=30, seed=0)
        >>> problem = tasks.leave_out(4, num_observations=10)
        >>> train_X = problem.starts(seed=0)  # 2 x 3
        >>> X, Y = problem.history.join(train_X, problem(train_X).unsqueeze(-1))

    ``contexts`` is ``T x 3``.
    """

    contexts: Tensor

    def __init__(
        self,
        num_tasks: int = 30,
        seed: int = 0,
        noise_std: float | None = None,
        negate: bool = False,
        dtype: torch.dtype = torch.double,
    ) -> None:
        r"""
        Args:
            num_tasks: ``T``, at least 2.
            seed: Of the contexts; the first tasks are the same whatever ``T``.
            noise_std: Standard deviation of the observation noise.
            negate: Whether to negate the functions.
            dtype: The dtype of ``bounds`` and ``contexts``.

        Raises:
            ValueError: For fewer than two tasks, a seed that is no integer from 0 on,
                a negative ``noise_std``.
        """
        if check_count("num_tasks", num_tasks) < 2:
            raise ValueError(f"num_tasks: expected at least 2, got {num_tasks}.")
        check_count("seed", seed, least=0)
        rng = np.random.default_rng(seed)
        contexts = rng.uniform(_SMALLEST, _LARGEST, (num_tasks, 3))
        alone = [QuadraticTask(context) for context in contexts]
        best = int(np.argmin([task.optimal_value for task in alone]))
        self._optimal_value = float(alone[best]._optimal_value)
        self._optimizers = [(*alone[best]._optimizers[0], float(best))]
        bounds = torch.tensor([[-1.0] * _DIM + [0.0], [1.0] * _DIM + [num_tasks - 1.0]])
        codes = [float(task) for task in range(num_tasks)]
        names = [f"x{j}" for j in range(_DIM)] + ["task"]
        space = SearchSpace(names, bounds, categorical_features={_DIM: codes})
        super().__init__(space, noise_std=noise_std, negate=negate, dtype=dtype)
        self.num_tasks = num_tasks
        self.register_buffer("contexts", torch.from_numpy(contexts).to(dtype))

    def leave_out(
        self, task: int, num_observations: int = 10, seed: int = 0
    ) -> QuadraticTask:
        r"""One task, and random evaluations of each of the others.

        Args:
            task: Which one, from 0 to ``T - 1``.
            num_observations: How many of each other task; the paper has 10.
            seed: Of the points, uniform in the box, and of their noise. A task's are
                the same, whichever task is left out.

        Returns:
            The task, with a ``history``.

        Raises:
            ValueError: There is no such task, or fewer than no observations.
        """
        if not 0 <= task < self.num_tasks:
            raise ValueError(f"task: expected 0 to {self.num_tasks - 1}, got {task}.")
        check_count("num_observations", num_observations, least=0)
        X = self.starts(seed, num_observations)
        Y = self(X, noise=False).unsqueeze(-1)
        if self.noise_std is not None:
            noise = np.random.default_rng(2000 + seed).standard_normal(Y.shape)
            Y = Y + self.noise_std * torch.from_numpy(noise).to(Y)
        others = X[:, -1] != task
        history = TaskHistory(X[others], Y[others], task, self.num_tasks, self.contexts)
        return QuadraticTask(
            self.contexts[task].tolist(),
            history,
            noise_std=self.noise_std,
            negate=self.negate,
            dtype=self.bounds.dtype,
        )

    def starts(self, seed: int, n: int = 10) -> Tensor:
        r"""Random points of every task, the same for a seed.

        Args:
            seed: Any integer that is not negative.
            n: How many of each task.

        Returns:
            A ``T n x 4``-dim tensor, task after task.
        """
        rng = np.random.default_rng(1000 + seed)
        X = torch.from_numpy(rng.uniform(-1.0, 1.0, (self.num_tasks, n, _DIM)))
        task = torch.arange(self.num_tasks, dtype=torch.double).reshape(-1, 1, 1)
        rows = torch.cat([X, task.expand(-1, n, 1)], -1).reshape(-1, self.dim)
        return rows.to(self.bounds)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return _quadratic(X[..., :-1], self.contexts.to(X)[X[..., -1].long()])


def _quadratic(x: Tensor, context: Tensor) -> Tensor:
    a, b, c = context.unbind(-1)
    return 0.5 * a * x.square().sum(-1) + b * x.sum(-1) + c
