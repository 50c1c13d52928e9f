"""The task column: which rows belong to which regression, and what is left of a row."""

from __future__ import annotations

__all__ = ["TaskColumn"]

from collections.abc import Sequence

import torch
from torch import Tensor, nn


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
    others: Tensor

    def __init__(
        self,
        column: int,
        num_columns: int,
        values: Sequence[int],
        default: int | None = None,
    ) -> None:
        super().__init__()
        self.column = column
        self.default = default
        others = [j for j in range(num_columns) if j != column]
        # not part of the state: a state belongs to a model that has these tasks
        self.register_buffer("values", torch.tensor(sorted(values)), persistent=False)
        self.register_buffer("others", torch.tensor(others), persistent=False)

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
                unexpected = sorted(set(values[wrong].tolist()))
                raise ValueError(
                    "Received invalid raw task values. Expected raw value to be in "
                    f"{set(known.tolist())}, but got unexpected task values: "
                    f"{ {int(v) if v == int(v) else v for v in unexpected} }."
                )
            place = place.masked_fill(wrong, self.index_of(self.default))
        return place

    def index_of(self, value: int) -> int:
        """The index of one known task value."""
        return self.values.tolist().index(value)

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
        if self.column == X.shape[-1] - 1:
            return X[..., :-1]
        return X.index_select(-1, self.others.to(X.device))

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
