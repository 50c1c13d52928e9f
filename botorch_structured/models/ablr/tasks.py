"""Tasks, which a column of the inputs says, or signals; and their outcomes' scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import Posterior, TransformedPosterior
from torch import Tensor, nn

from botorch_structured.models.ablr.processes import Processes
from botorch_structured.models.checks import check_spread, is_constant, leaves_alone


class UnknownTaskError(ValueError, RuntimeError):
    """An output task that is none of the tasks: ``MultiTaskGP``'s is a RuntimeError."""


class Tasks(nn.Module):
    """The base of ``TaskColumn`` and ``Signals``: T regressions, counted from 0.

    Args:
        values: The names of the regressions: task values, ascending, or 0 to T - 1.

    Attributes:
        column: The index of the task column; None if there is none.
        share_rows: Whether several outcomes share a row.
    """

    #: The task of each outcome, ``batch_shape x n x m``, of rows.
    index: Callable[[Tensor], Tensor]
    values: Tensor
    column: int | None = None
    share_rows = False

    def __init__(self, values: Sequence[int]) -> None:
        super().__init__()
        self._index_of = {value: i for i, value in enumerate(values)}
        # not part of the state: a state belongs to a model that has these tasks
        self.register_buffer("values", torch.tensor(values), persistent=False)

    def __len__(self) -> int:
        return len(self.values)

    def index_of(self, value: float) -> int:
        """The number of a regression; negative ones count signals from the end.

        Raises:
            ValueError: If there is none of this name.
        """
        if value not in self._index_of:
            raise self._unexpected([value])
        return self._index_of[int(value)]

    def _unexpected(self, values: list[float]) -> ValueError:
        got = {int(v) if float(v).is_integer() else v for v in values[:10]}
        return ValueError(
            f"X or output_indices: expected task values among {self.values.tolist()}, "
            f"got unexpected task values: {got}."
        )

    def without(self, X: Tensor) -> Tensor:
        """Rows without the task column, ``batch_shape x n x d``."""
        return X

    def insert(
        self,
        X: Tensor,
        value: int,
    ) -> Tensor:
        """Rows with a task column that says ``value`` throughout, if there is one."""
        return X

    def to_targets(self, Y: Tensor) -> Tensor:
        """Outcomes ``... x n x m`` as GPyTorch has them, ``... x n`` or ``m x n``."""
        return Y.mT if self.share_rows else Y.squeeze(-1)

    def to_outcomes(self, targets: Tensor) -> Tensor:
        """The inverse of ``to_targets``."""
        return targets.mT if self.share_rows else targets.unsqueeze(-1)


class Signals(Tasks):
    """The columns of the outcomes, which share rows.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        super().__init__(range(count))
        self._index_of |= {i - count: i for i in range(count)}
        self.share_rows = count > 1

    def index(self, X: Tensor) -> Tensor:
        """The task of each outcome of rows, ``batch_shape x n x m``."""
        return self.values.expand(*X.shape[:-1], len(self))


class TaskColumn(Tasks):
    """Where the task stands in a row, and the values that it may have.

    Task *values* are what stands in the column, task *indices* count the sorted values
    from 0.

    Args:
        column: The index of the column, not negative.
        num_columns: The number of columns of a row, the task's included.
        values: All task values, ascending.
    """

    column: int

    def __init__(
        self,
        column: int,
        num_columns: int,
        values: Sequence[int],
    ) -> None:
        super().__init__(values)
        self.column = column
        self.num_columns = num_columns

    def index(self, X: Tensor) -> Tensor:
        """The task of each outcome of rows, ``batch_shape x n x 1``.

        Raises:
            ValueError: For values that no task has.
        """
        task = X[..., self.column].unsqueeze(-1).contiguous()
        values = self.values.to(task)
        place = torch.searchsorted(values, task).clamp_max(len(values) - 1)
        wrong = values[place] != task
        if wrong.any():
            raise self._unexpected(task[wrong].tolist())
        return place

    def without(self, X: Tensor) -> Tensor:
        """See ``Tasks``."""
        return torch.cat([X[..., : self.column], X[..., self.column + 1 :]], dim=-1)

    def insert(
        self,
        X: Tensor,
        value: int,
    ) -> Tensor:
        """See ``Tasks``."""
        task = X.new_full((*X.shape[:-1], 1), value)
        return torch.cat([X[..., : self.column], task, X[..., self.column :]], dim=-1)


def _is_task(value: Any) -> bool:
    """Whether it is an integer, of a size that double precision still counts."""
    return isinstance(value, int | float) and abs(value) <= 2.0**53 and value % 1 == 0


def find_tasks(
    task_feature: int | None,
    train_Y: Tensor,
    transformed: Sequence[tuple[Tensor, Tensor]],
    output_tasks: list[int] | None,
    all_tasks: list[int] | None,
    processes: Processes,
) -> tuple[Tasks, list[int]]:
    """The task column, or the signals, that a user means, and what to answer for.

    Args:
        task_feature: See ``MultiTaskABLR``.
        train_Y: Outcomes.
        transformed: Inputs before and after the input transform: those of training
            first, then others.
        output_tasks: See ``MultiTaskABLR``.
        all_tasks: See there.
        processes: The processes that share the rows.

    Returns:
        The tasks, and the values of those to answer for.

    Raises:
        ValueError: If these do not fit together.
        UnsupportedError: If ``all_tasks`` lacks one that has rows.
    """
    train_X, X = transformed[0]
    count = train_Y.shape[-1]
    for name, values in (("output_tasks", output_tasks), ("all_tasks", all_tasks)):
        listed = isinstance(values, Sequence) and all(map(_is_task, values))
        if values is not None and (task_feature is None or not (listed and values)):
            raise ValueError(
                f"{name}: expected None or, with a task_feature, a list of integers, "
                f"at least one, got {values!r}."
            )
    if task_feature is None:
        return Signals(count), list(range(count))
    # of inputs as the user has them: what a transform appends is no column to count
    d = train_X.shape[-1] - 1
    number = isinstance(task_feature, int) and not isinstance(task_feature, bool)
    if not number or not -d - 1 <= task_feature <= d:
        raise ValueError(
            "task_feature: expected an integer or None, a column from "
            f"{-d - 1} to {d}, got {task_feature!r}."
        )
    if count != 1:
        raise ValueError(
            f"train_Y: expected one column with a task_feature, got {count}: for "
            "several tasks and several signals make one model for each signal "
            "(ModelListGP), or each pair of both a task."
        )
    column = task_feature % (d + 1)
    if not all(leaves_alone([column], *pair) for pair in transformed):
        raise ValueError(
            "input_transform: expected one that leaves the task column "
            f"({column}) as it is, such as Normalize(..., indices=[...])."
        )
    inferred = X[:, column].unique().tolist()
    if not all(map(_is_task, inferred)):
        raise ValueError(
            "train_X: expected integers in the task column, of at most 2^53, got "
            f"{inferred[:10]}."
        )
    if all_tasks is None and not (processes.alone and inferred):
        raise ValueError(
            "all_tasks: expected all task values with a process_group, or where "
            "train_X has no row that says one, got None."
        )
    values = sorted({int(v) for v in (inferred if all_tasks is None else all_tasks)})
    if not set(values).issuperset(inferred):
        raise UnsupportedError(
            f"The provided {all_tasks=} does not contain all the task features "
            f"inferred from the training data inferred={[int(v) for v in inferred]}."
        )
    outputs = values if output_tasks is None else list(output_tasks)
    if not set(values).issuperset(outputs):
        raise UnknownTaskError(
            f"output_tasks: expected tasks among {values}, got {outputs}."
        )
    return TaskColumn(column, X.shape[-1], values).to(X.device), outputs


class StandardizeTasks(OutcomeTransform):
    """Zero mean and unit variance for each task by itself.

    Weights have a prior of mean zero, and tasks from different data sets have errors of
    different sizes: they must be standardised, and one by one. BoTorch's
    ``StratifiedStandardize`` does that for tasks with rows. Here a task with one row,
    or whose outcomes are all equal, has the geometric mean of the other tasks' standard
    deviations (1 if there are none); a task without rows has the average of the other
    tasks' means as well. Missing outcomes (NaN) stay missing.

    Args:
        tasks: Tasks or signals, T of them.
        processes: The processes that share the rows.

    Attributes:
        is_of_rows: Whether the scale of an outcome depends on its row, by the task.
    """

    means: Tensor
    stdvs: Tensor
    _is_linear = True

    def __init__(
        self,
        tasks: Tasks,
        processes: Processes | None = None,
    ) -> None:
        super().__init__()
        self.tasks = tasks
        self.is_of_rows = tasks.column is not None
        self._processes = processes or Processes()
        self.register_buffer("means", torch.zeros(len(tasks), dtype=torch.float64))
        self.register_buffer("stdvs", torch.ones(len(tasks), dtype=torch.float64))

    def _task_of(
        self,
        Y: Tensor,
        X: Tensor | None,
    ) -> Tensor:
        """The task of each outcome, broadcastable to ``Y``."""
        tasks = self.tasks
        if isinstance(tasks, TaskColumn):
            if X is None or X.shape[-1] != tasks.num_columns:
                raise ValueError(
                    "X: expected inputs with their task column, got "
                    f"{None if X is None else tuple(X.shape)}."
                )
            task = tasks.index(X)
            # a ModelListGP leaves the one column out
            return task if Y.shape[-1] == 1 else task.squeeze(-1)
        if tasks.share_rows and Y.shape[-1] != len(tasks):
            raise ValueError(
                f"Y: expected {len(tasks)} columns, one for each signal, got shape "
                f"{tuple(Y.shape)}. Condition models of a list one by one."
            )
        return tasks.values

    def forward(
        self,
        Y: Tensor,
        Yvar: Tensor | None = None,
        X: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Standardise; in training mode, first learn the means and deviations.

        Args:
            Y: ``batch_shape x n x m`` outcomes, m = 1 with a task column.
            Yvar: Their noise variances.
            X: ``batch_shape x n x (d + 1)``, where tasks are a column.

        Returns:
            Both transformed.
        """
        task = self._task_of(Y, X)
        if self.training:
            self._learn(Y, task.expand_as(Y))
        stdv = self.stdvs[task]
        Yvar = None if Yvar is None else Yvar / stdv**2
        return (Y - self.means[task]) / stdv, Yvar

    def _learn(
        self,
        Y: Tensor,
        task: Tensor,
    ) -> None:
        observed = ~Y.isnan()
        y = Y[observed]
        task = task[observed]
        zeros = y.new_zeros(len(self.tasks))

        def total(values: Tensor) -> Tensor:
            return self._processes.total(zeros.index_add(0, task, values))

        def least(values: Tensor) -> Tensor:
            none = zeros + torch.inf
            return self._processes.least(none.scatter_reduce(0, task, values, "amin"))

        low = least(y)
        high = -least(-y)
        check_spread(low, high)
        count = total(torch.ones_like(y))
        # from the smallest one on: sums of numbers around 1e6 lose digits
        means = low + total(y - low[task]) / count
        squares = total((y - means[task]).square())
        varied = (count > 1) & ~is_constant(low, high)
        stdvs = (squares / (count - 1.0)).sqrt()
        usual = stdvs[varied].log().mean().nan_to_num(0.0).exp()
        average = means[count > 0].mean().nan_to_num(0.0)
        self.means = torch.where(count > 0, means, average)
        self.stdvs = torch.where(varied, stdvs, usual)

    def untransform(
        self,
        Y: Tensor,
        Yvar: Tensor | None = None,
        X: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The inverse of ``forward``, of the same shapes."""
        task = self._task_of(Y, X)
        stdv = self.stdvs[task]
        Yvar = None if Yvar is None else Yvar * stdv**2
        return self.means[task] + stdv * Y, Yvar

    def untransform_posterior(
        self,
        posterior: Posterior,
        X: Tensor | None = None,
    ) -> TransformedPosterior:
        """A posterior on the scale of the outcomes.

        Args:
            posterior: Of standardised outcomes, of one task per row or of all signals.
            X: ``batch_shape x q x (d + 1)``, where tasks are a column.
        """
        variance = self.stdvs[self._task_of(posterior.mean, X)].square()
        return TransformedPosterior(
            posterior=posterior,
            sample_transform=lambda s: self.untransform(s, X=X)[0],
            mean_transform=lambda m, v: self.untransform(m, X=X)[0],
            variance_transform=lambda m, v: variance * v,
        )

    def subset_output(self, idcs: list[int]) -> StandardizeTasks:
        """The transform of some signals; tasks of a column are one output."""
        new = StandardizeTasks(Signals(len(idcs))).to(self.means).train(self.training)
        new.means = self.means[idcs]
        new.stdvs = self.stdvs[idcs]
        return new
