"""The task column: which rows belong to which regression, and what is left of a row."""

from __future__ import annotations

__all__ = [
    "TaskColumn",
    "UnknownTaskError",
]

from collections.abc import Sequence

import torch
from torch import Tensor, nn


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
        known = self.values.tolist()
        got = {int(v) if float(v).is_integer() else v for v in unexpected[:10]}
        if known == list(range(len(known))):
            return (
                "Expected all task features in `X` to be between 0 and "
                f"{len(known) - 1}, but got unexpected task values: {got}."
            )
        return (
            "Received invalid raw task values. Expected raw value to be in "
            f"{set(known)}, but got unexpected task values: {got}."
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
