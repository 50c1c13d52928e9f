"""Tasks, which a column of the inputs says, or signals; and their outcomes' scales."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import Posterior, TransformedPosterior
from torch import Tensor, nn

from botorch_structured.models.ablr.processes import Processes
from botorch_structured.models.checks import check_spread, is_constant
from botorch_structured.models.input_transforms import leaves_alone


class UnknownTaskError(ValueError, RuntimeError):
    """An output task that is none of the tasks: ``MultiTaskGP``'s is a RuntimeError."""


class Tasks(nn.Module):
    """The base of ``TaskColumn`` and ``Signals``: T regressions, counted from 0.

    Args:
        values: The names of the regressions, ascending: task values, or 0 to T - 1.

    Attributes:
        column: The index of the task column; None if there is none.
        share_rows: Whether several outcomes share a row.
    """

    values: Tensor
    column: int | None = None
    share_rows = False

    def __init__(self, values: Sequence[int]) -> None:
        super().__init__()
        # not part of the state: a state belongs to a model that has these tasks
        self.register_buffer("values", torch.tensor(values), persistent=False)
        self._index_of = {value: i for i, value in enumerate(values)}

    def __len__(self) -> int:
        return len(self._index_of)

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
        self.share_rows = count > 1

    def index_of(self, value: int) -> int:
        """The index of a signal; negative ones count from the end.

        Raises:
            ValueError: If there is none.
        """
        if not -len(self) <= value < len(self):
            raise ValueError(
                f"output_indices: expected signals below {len(self)}, got {value}."
            )
        return value % len(self)

    def locate(
        self,
        observed: Tensor,
        X: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The task and the row of each observed outcome, ``m``.

        Args:
            observed: Which outcomes are observed, of the shape of targets.
            X: Their rows, ``n x d``.
        """
        task, row = observed.reshape(len(self), -1).nonzero(as_tuple=True)
        return task, row

    def select(
        self,
        values: Tensor,
        X: Tensor,
    ) -> Tensor:
        """One value for each target, of ``batch_shape x n x T`` for all tasks.

        Args:
            values: One for each row and task.
            X: The rows, ``batch_shape x n x d``.
        """
        return self.to_targets(values)

    def covariance(
        self,
        products: Tensor,
        beta: Tensor,
        x1: Tensor,
        x2: Tensor,
        diag: bool,
    ) -> Tensor:
        """The covariance from products of features, see ``TaskFeatureKernel``."""
        batch = beta.shape if self.share_rows else ()
        return products / beta.reshape(*batch, *[1] * (2 - diag))

    def places(
        self,
        Y: Tensor,
        X: Tensor | None,
    ) -> Tensor:
        """The task of each outcome, broadcastable to ``batch_shape x n x m``.

        Args:
            Y: Outcomes, ``batch_shape x n x m``.
            X: Their rows.
        """
        if self.share_rows and Y.shape[-1] != len(self):
            raise ValueError(
                f"Y: expected {len(self)} columns, one for each signal, got shape "
                f"{tuple(Y.shape)}. Condition models of a list one by one."
            )
        return torch.arange(len(self), device=Y.device)


class TaskColumn(Tasks):
    """Where the task stands in a row, and the values that it may have.

    Task *values* are what stands in the column, task *indices* count the sorted values
    from 0.

    Args:
        column: The index of the column, not negative.
        num_columns: The number of columns of a row, the task's included.
        values: All task values.
        default: The value that an unexpected one is taken for; None raises.
    """

    column: int

    def __init__(
        self,
        column: int,
        num_columns: int,
        values: Sequence[int],
        default: int | None = None,
    ) -> None:
        super().__init__(sorted(values))
        self.column = column
        self.num_columns = num_columns
        self.default = default

    def index(self, X: Tensor) -> Tensor:
        """The task index of each row, ``batch_shape x n``.

        Args:
            X: ``batch_shape x n x (d + 1)``.

        Raises:
            ValueError: For values that no task has, unless there is a default.
        """
        task = X[..., self.column].contiguous()
        values = self.values.to(task)
        place = torch.searchsorted(values, task).clamp_max(len(values) - 1)
        wrong = values[place] != task
        if wrong.any():
            if self.default is None:
                raise ValueError(self._message(task[wrong].tolist()))
            place = place.masked_fill(wrong, self.index_of(self.default))
        return place

    def _message(self, unexpected: list[float]) -> str:
        got = {int(v) if float(v).is_integer() else v for v in unexpected[:10]}
        return (
            f"X: expected task values among {self.values.tolist()}, got unexpected "
            f"task values: {got}."
        )

    def index_of(self, value: int) -> int:
        """The index of a task value; there is no default here.

        Raises:
            ValueError: If no task has it.
        """
        if value not in self._index_of:
            raise ValueError(self._message([value]))
        return self._index_of[value]

    def without(self, X: Tensor) -> Tensor:
        """See ``Tasks``."""
        before = X[..., : self.column]
        after = X[..., self.column + 1 :]
        return torch.cat([before, after], dim=-1) if after.shape[-1] else before

    def insert(
        self,
        X: Tensor,
        value: int,
    ) -> Tensor:
        """See ``Tasks``."""
        task = X.new_full((*X.shape[:-1], 1), value)
        return torch.cat([X[..., : self.column], task, X[..., self.column :]], dim=-1)

    def locate(
        self,
        observed: Tensor,
        X: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """See ``Signals``."""
        (row,) = observed.nonzero(as_tuple=True)
        return self.index(X[row]), row

    def select(
        self,
        values: Tensor,
        X: Tensor,
    ) -> Tensor:
        """See ``Signals``."""
        return values.gather(-1, self.index(X).unsqueeze(-1)).squeeze(-1)

    def covariance(
        self,
        products: Tensor,
        beta: Tensor,
        x1: Tensor,
        x2: Tensor,
        diag: bool,
    ) -> Tensor:
        """See ``Signals``."""
        task = self.index(x1)
        other = self.index(x2)
        if not diag:
            task = task.unsqueeze(-1)
            other = other.unsqueeze(-2)
        return torch.where(task == other, products / beta[task], 0.0)

    def places(
        self,
        Y: Tensor,
        X: Tensor | None,
    ) -> Tensor:
        """See ``Signals``."""
        if X is None or X.shape[-1] != self.num_columns:
            raise ValueError(
                "X: expected inputs with their task column, got "
                f"{'None' if X is None else tuple(X.shape)}."
            )
        places = self.index(X)
        # a ModelListGP leaves the one column out
        bare = Y.shape[-places.ndim :] == places.shape
        return places if bare else places.unsqueeze(-1)


def _is_task(value: float) -> bool:
    """Whether it is an integer, of a size that double precision still counts."""
    return abs(value) <= 2.0**53 and value == int(value)


def _check_task_list(
    name: str,
    values: object,
) -> None:
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
) -> tuple[Signals | TaskColumn, list[int]]:
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
    arguments = {"output_tasks": output_tasks, "all_tasks": all_tasks}
    count = train_Y.shape[-1]
    if task_feature is None:
        for name, value in arguments.items():
            if value is not None:
                raise ValueError(
                    f"{name}: expected None without a task_feature, got {value}."
                )
        return Signals(count), list(range(count))
    if isinstance(task_feature, bool) or not isinstance(task_feature, int):
        raise ValueError(
            f"task_feature: expected an integer or None, got {task_feature!r}."
        )
    for name, value in arguments.items():
        _check_task_list(name, value)
    if count != 1:
        raise ValueError(
            f"train_Y: expected one column with a task_feature, got {count}: for "
            "several tasks and several signals make one model for each signal "
            "(ModelListGP), or each pair of both a task."
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
    inferred = X[:, column].unique().tolist()
    if not all(map(_is_task, inferred)):
        raise ValueError(
            "train_X: expected integers in the task column, of at most 2^53, got "
            f"{inferred[:10]}."
        )
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
    """

    means: Tensor
    stdvs: Tensor

    def __init__(
        self,
        tasks: Signals | TaskColumn,
        processes: Processes | None = None,
    ) -> None:
        super().__init__()
        self.tasks = tasks
        self._processes = processes or Processes()
        self.register_buffer("means", torch.zeros(len(tasks), dtype=torch.float64))
        self.register_buffer("stdvs", torch.ones(len(tasks), dtype=torch.float64))
        self.register_buffer("_is_trained", torch.tensor(False))

    @property
    def _is_linear(self) -> bool:
        return True

    @property
    def is_of_rows(self) -> bool:
        """Whether the scale of an outcome depends on its row, by the task column."""
        return self.tasks.column is not None

    def _scales_of(
        self,
        Y: Tensor,
        X: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Mean and deviation for each outcome, broadcastable to ``Y``."""
        places = self.tasks.places(Y, X)
        return self.means[places], self.stdvs[places]

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
        if self.training:
            self._learn(Y, self.tasks.places(Y, X).expand_as(Y))
        mean, stdv = self._scales_of(Y, X)
        return (Y - mean) / stdv, None if Yvar is None else Yvar / stdv**2

    def _learn(
        self,
        Y: Tensor,
        places: Tensor,
    ) -> None:
        observed = ~Y.isnan()
        y = Y[observed]
        task = places[observed]

        def total(values: Tensor) -> Tensor:
            sums = values.new_zeros(len(self.means)).index_add(0, task, values)
            return self._processes.total(sums)

        def least(values: Tensor) -> Tensor:
            none = values.new_full((len(self.means),), torch.inf)
            return self._processes.least(none.scatter_reduce(0, task, values, "amin"))

        low = least(y)
        high = -least(-y)
        check_spread(low, high)
        count = total(torch.ones_like(y))
        means = total(y) / count.clamp_min(1.0)
        # twice: a mean of 1e6 loses the digits that the first sum has not
        means = means + total(y - means[task]) / count.clamp_min(1.0)
        squares = total((y - means[task]).square())
        stdvs = (squares / (count - 1.0).clamp_min(1.0)).sqrt()
        some = count > 0
        spread = (count > 1) & ~is_constant(low, high)
        usual = stdvs[spread].log().mean().exp() if spread.any() else 1.0
        average = means[some].mean() if some.any() else 0.0
        self.means = torch.where(some, means, average)
        self.stdvs = torch.where(spread, stdvs, usual)
        self._is_trained = torch.tensor(True)

    def untransform(
        self,
        Y: Tensor,
        Yvar: Tensor | None = None,
        X: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The inverse of ``forward``, of the same shapes."""
        mean, stdv = self._scales_of(Y, X)
        return mean + stdv * Y, None if Yvar is None else Yvar * stdv**2

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
        mean, stdv = self._scales_of(posterior.mean, X)
        return TransformedPosterior(
            posterior=posterior,
            sample_transform=lambda s: mean + stdv * s,
            mean_transform=lambda m, v: mean + stdv * m,
            variance_transform=lambda m, v: stdv**2 * v,
        )

    def subset_output(self, idcs: list[int]) -> StandardizeTasks:
        """The transform of some signals; with a task column there is one output."""
        new = deepcopy(self)
        if self.tasks.column is None:
            new.tasks = Signals(len(idcs))
            new.means = self.means[idcs]
            new.stdvs = self.stdvs[idcs]
        return new
