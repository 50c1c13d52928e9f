"""Tasks: their column in the inputs, their values, their outcomes' scales."""

from __future__ import annotations

__all__ = ["StandardizeTasks", "TaskColumn", "find_tasks"]

from collections.abc import Sequence
from copy import deepcopy

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import Posterior, TransformedPosterior
from torch import Tensor, nn

from botorch_structured.models.ablr.rows import Processes
from botorch_structured.models.checks import check_spread, is_constant
from botorch_structured.models.input_transforms import leaves_alone

# Integers up to this size are exact in double precision.
_LARGEST_TASK = 2.0**53


class UnknownTaskError(ValueError, RuntimeError):
    """An output task that is none of the tasks: ``MultiTaskGP``'s is a RuntimeError."""


class TaskColumn(nn.Module):
    """Where the task stands in a row, and the values that it may have.

    Task *values* are what stands in the column, task *indices* count the sorted values
    from 0.

    Args:
        column: The index of the column, not negative.
        num_columns: The number of columns of a row, the task's included.
        values: All task values.
        default: The value that an unexpected one is taken for; None raises.
    """

    values: Tensor

    def __init__(
        self,
        column: int,
        num_columns: int,
        values: Sequence[int],
        default: int | None = None,
    ) -> None:
        super().__init__()
        self.column = column
        self.num_columns = num_columns
        self.default = default
        self._index_of = {value: i for i, value in enumerate(sorted(values))}
        # not part of the state: a state belongs to a model that has these tasks
        self.register_buffer("values", torch.tensor(sorted(values)), persistent=False)

    def index(self, values: Tensor) -> Tensor:
        """The indices of task values.

        Args:
            values: Any shape.

        Raises:
            ValueError: For values that no task has, unless there is a default.
        """
        known = self.values.to(values.device)
        rounded = values.long()
        place = torch.searchsorted(known, rounded.contiguous())
        place = place.clamp_max(len(known) - 1)
        wrong = known[place] != rounded
        if values.is_floating_point():
            wrong = wrong | (values != rounded)
        if wrong.any():
            if self.default is None:
                raise ValueError(self._message(values[wrong].tolist()))
            place = place.masked_fill(wrong, self.index_of(self.default))
        return place

    def _message(self, unexpected: list[float]) -> str:
        got = {int(v) if float(v).is_integer() else v for v in unexpected[:10]}
        known = self.values.tolist()
        return (
            f"X: expected task values among {known}, got unexpected task values: {got}."
        )

    def index_of(self, value: int) -> int:
        """The index of one task value.

        Raises:
            ValueError: If no task has it; there is no default here.
        """
        index = self._index_of.get(value)
        if index is None:
            raise ValueError(self._message([value]))
        return index

    def split(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Rows without the column, and their task indices.

        Args:
            X: ``batch_shape x n x (d + 1)``.

        Returns:
            ``batch_shape x n x d`` and ``batch_shape x n``.
        """
        return self.without(X), self.index(X[..., self.column])

    def without(self, X: Tensor) -> Tensor:
        """Rows without the column, ``batch_shape x n x d``."""
        before, after = X[..., : self.column], X[..., self.column + 1 :]
        return torch.cat([before, after], dim=-1) if after.shape[-1] else before

    def insert(self, X: Tensor, value: int) -> Tensor:
        """Rows with a task column that says ``value`` throughout.

        Args:
            X: ``batch_shape x n x d``.
            value: A task value.

        Returns:
            ``batch_shape x n x (d + 1)``.
        """
        task = X.new_full((*X.shape[:-1], 1), value)
        return torch.cat([X[..., : self.column], task, X[..., self.column :]], dim=-1)


def _is_task(value: float) -> bool:
    """Whether it is an integer, of a size that floating-point numbers still count."""
    return abs(value) <= _LARGEST_TASK and value == int(value)


def _check_task_list(name: str, values: object) -> None:
    """Raise a ``ValueError`` unless a user's task values are a list of integers."""
    if values is None:
        return
    if not isinstance(values, Sequence) or not all(
        isinstance(v, int | float) and _is_task(v) for v in values
    ):
        raise ValueError(f"{name}: expected a list of integers, got {values!r}.")
    if not values:
        raise ValueError(f"{name}: expected at least one task, got none.")


def find_tasks(
    task_feature: int | None,
    train_Y: Tensor,
    transformed: Sequence[tuple[Tensor, Tensor]],
    output_tasks: list[int] | None,
    all_tasks: list[int] | None,
    processes: Processes,
) -> tuple[TaskColumn | None, list[int]]:
    """The task column that a user means (None for signals), and what to answer for.

    Args:
        task_feature: See ``MultiTaskABLR``.
        train_Y: Outcomes.
        transformed: Inputs before and after the input transform: those of training
            first, then others.
        output_tasks: See ``MultiTaskABLR``.
        all_tasks: See there.
        processes: The processes that share the rows.

    Returns:
        The column, and task values or indices of signals.

    Raises:
        ValueError: If these do not fit together.
        UnsupportedError: If ``all_tasks`` lacks one that has rows.
    """
    train_X, X = transformed[0]
    given = {"output_tasks": output_tasks, "all_tasks": all_tasks}
    if task_feature is None:
        for name, value in given.items():
            if value is not None:
                raise ValueError(
                    f"{name}: expected None without a task_feature, got {value}."
                )
        return None, list(range(train_Y.shape[-1]))
    if isinstance(task_feature, bool) or not isinstance(task_feature, int):
        raise ValueError(
            f"task_feature: expected an integer or None, got {task_feature!r}."
        )
    for name, value in given.items():
        _check_task_list(name, value)
    if train_Y.shape[-1] != 1:
        raise ValueError(
            "train_Y: expected one column with a task_feature, got "
            f"{train_Y.shape[-1]}: for several tasks and several signals make one "
            "model for each signal (ModelListGP), or each pair of both a task."
        )
    # of inputs as the user has them: what a transform appends is no column to count
    d = train_X.shape[-1] - 1
    if not -d - 1 <= task_feature <= d:
        raise ValueError(
            f"task_feature: expected a column from {-d - 1} to {d}, got {task_feature}."
        )
    if d == 0:
        raise ValueError("train_X: expected columns beside the task's, got none.")
    column = task_feature % (d + 1)
    if not all(leaves_alone([column], *pair) for pair in transformed):
        raise ValueError(
            "input_transform: expected one that leaves the task column "
            f"({column}) as it is, such as Normalize(..., indices=[...])."
        )
    found = X[:, column].unique().tolist()
    if not all(map(_is_task, found)):
        raise ValueError(
            "train_X: expected integers in the task column, of at most 2^53, got "
            f"{found[:10]}."
        )
    inferred = [int(value) for value in found]
    if all_tasks is None and not processes.alone:
        raise ValueError(
            "all_tasks: expected all task values with a process_group, since one "
            "process may have no row of a task; got None."
        )
    if all_tasks is None and not inferred:
        raise ValueError(
            "all_tasks: expected all task values where train_X has no row that says "
            "one, got None."
        )
    every = set(inferred if all_tasks is None else all_tasks)
    if not every.issuperset(inferred):
        raise UnsupportedError(
            f"The provided {all_tasks=} does not contain all the task features "
            f"inferred from the training data {inferred=}."
        )
    values = sorted(map(int, every))
    outputs = values if output_tasks is None else list(output_tasks)
    if set(outputs) - set(values):
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
        num_tasks: The number T of tasks, or of signals.
        tasks: The task column; None for signals, the columns of the outcomes.
        processes: The processes that share the rows.
    """

    means: Tensor
    stdvs: Tensor

    def __init__(
        self,
        num_tasks: int,
        tasks: TaskColumn | None,
        processes: Processes | None = None,
    ) -> None:
        super().__init__()
        self.tasks = tasks
        self._processes = processes or Processes()
        self.register_buffer("means", torch.zeros(num_tasks, dtype=torch.float64))
        self.register_buffer("stdvs", torch.ones(num_tasks, dtype=torch.float64))
        self.register_buffer("_is_trained", torch.tensor(False))

    @property
    def _is_linear(self) -> bool:
        return True

    @property
    def is_of_rows(self) -> bool:
        """Whether the scale of an outcome depends on its row, by the task column."""
        return self.tasks is not None

    def _places(self, Y: Tensor, X: Tensor | None) -> Tensor:
        """The task of each outcome, broadcastable to ``batch_shape x n x m``."""
        if self.tasks is None:
            signals = len(self.means)
            if signals > 1 and Y.shape[-1] != signals:
                raise ValueError(
                    f"Y: expected {signals} columns, one for each signal, got shape "
                    f"{tuple(Y.shape)}. Condition models of a list one by one."
                )
            return torch.arange(signals, device=Y.device)
        if X is None or X.shape[-1] != self.tasks.num_columns:
            raise ValueError(
                "X: expected inputs with their task column, got "
                f"{'None' if X is None else tuple(X.shape)}."
            )
        places = self.tasks.index(X[..., self.tasks.column])
        # a ModelListGP leaves the one column out
        bare = Y.shape[-places.ndim :] == places.shape
        return places if bare else places.unsqueeze(-1)

    def _scales_of(self, Y: Tensor, X: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and deviation for each outcome, broadcastable to ``Y``."""
        places = self._places(Y, X)
        return self.means[places], self.stdvs[places]

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Standardise; in training mode, first learn the means and deviations.

        Args:
            Y: ``batch_shape x n x m`` outcomes, m = 1 with a task column.
            Yvar: Their noise variances.
            X: ``batch_shape x n x (d + 1)``, where tasks are a column.

        Returns:
            Both transformed.
        """
        if self.training:
            self._learn(Y, self._places(Y, X).expand_as(Y))
        mean, stdv = self._scales_of(Y, X)
        return (Y - mean) / stdv, None if Yvar is None else Yvar / stdv**2

    def _learn(self, Y: Tensor, places: Tensor) -> None:
        observed = ~Y.isnan()
        y, task = Y[observed], places[observed]

        def total(values: Tensor) -> Tensor:
            sums = values.new_zeros(len(self.means)).index_add(0, task, values)
            return self._processes.total(sums)

        def least(values: Tensor) -> Tensor:
            none = values.new_full((len(self.means),), torch.inf)
            return self._processes.least(none.scatter_reduce(0, task, values, "amin"))

        low, high = least(y), -least(-y)
        check_spread(low, high)
        count = total(torch.ones_like(y))
        means = total(y) / count.clamp_min(1.0)
        # twice: a mean of 1e6 loses the digits that the first sum has not
        means = means + total(y - means[task]) / count.clamp_min(1.0)
        squares = total((y - means[task]).square())
        stdvs = (squares / (count - 1.0).clamp_min(1.0)).sqrt()
        some = count > 0
        known = (count > 1) & ~is_constant(low, high)
        usual = stdvs[known].log().mean().exp() if known.any() else stdvs.new_tensor(1)
        average = means[some].mean() if some.any() else means.new_tensor(0.0)
        self.means = torch.where(some, means, average)
        self.stdvs = torch.where(known, stdvs, usual)
        self._is_trained = torch.tensor(True)

    def untransform(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The inverse of ``forward``, of the same shapes."""
        mean, stdv = self._scales_of(Y, X)
        return mean + stdv * Y, None if Yvar is None else Yvar * stdv**2

    def untransform_posterior(
        self, posterior: Posterior, X: Tensor | None = None
    ) -> TransformedPosterior:
        """A posterior on the scale of the outcomes.

        Args:
            posterior: Of standardised outcomes, of one task per row or of all signals.
            X: ``batch_shape x q x (d + 1)``, where tasks are a column.
        """
        mean, stdv = self._scales_of(posterior.mean, X)
        return TransformedPosterior(
            posterior=posterior,
            sample_transform=lambda s: mean + stdv * s,
            mean_transform=lambda m, v: mean + stdv * m,
            variance_transform=lambda m, v: stdv**2 * v,
        )

    def subset_output(self, idcs: list[int]) -> StandardizeTasks:
        """Of some of the signals; with a task column there is one output."""
        new = deepcopy(self)
        if self.tasks is None:
            new.means, new.stdvs = self.means[idcs], self.stdvs[idcs]
        return new
