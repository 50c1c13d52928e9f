"""Rows that are spread over the processes of a ``torch.distributed`` group.

All processes call the same functions in the same order and get the same numbers, bit
for bit, so that an optimiser that runs in each of them takes the same steps.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Processes:
    """The processes that share the rows, or this process alone.

    Each method but ``check_same`` raises a ``RuntimeError`` if another process has
    ended or does not answer. Deep copies are the same object; a pickled one is of a
    single process.

    Args:
        group: A process group (gloo or nccl), or None for this process alone.

    Attributes:
        alone: Whether this process has all rows.
        size: Number of processes.
        rank: Number of this one among them.

    Raises:
        ValueError: If this process is not in the group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.alone = group is None
        self.size = 1
        self.rank = 0
        if group is not None:
            self.size = dist.get_world_size(group)
            self.rank = dist.get_rank(group)
            if self.rank < 0:
                raise ValueError(
                    "process_group: expected a group that this process is in."
                )

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, of one shape, in the order of their ranks."""
        if self.alone:
            return [tensor]
        tensor = tensor.contiguous()
        out = [torch.empty_like(tensor) for _ in range(self.size)]
        try:
            dist.all_gather(out, tensor, group=self._group)
        except RuntimeError as error:
            raise RuntimeError(
                f"Process {self.rank} of {self.size} got no answer from another one of "
                "its group, whose own output says why; start all of them again. "
                f"({str(error).splitlines()[0]})"
            ) from error
        return out

    def first(self, tensor: Tensor) -> Tensor:
        """That of the first process: rounding may differ between machines."""
        return self.gather(tensor)[0]

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, the same bits in each of them."""
        return reduce(torch.add, self.gather(tensor))

    def least(self, tensor: Tensor) -> Tensor:
        """The elementwise minimum over the processes."""
        return reduce(torch.minimum, self.gather(tensor))

    def count(self, rows: Tensor) -> int:
        """How many rows all processes have; ``rows`` are those of this one."""
        if self.alone:
            return len(rows)
        return int(self.total(torch.tensor(len(rows), device=rows.device)))

    def check_same(
        self,
        name: str,
        values: Tensor,
    ) -> None:
        """Compare numbers that have to agree, up to rounding.

        Args:
            name: What they are.
            values: Of the same shape in all processes.

        Raises:
            ValueError: In all processes, if one of them has other numbers.
            RuntimeError: If a process of the group has ended or does not answer.
        """
        first, *others = self.gather(values)
        for other in others:
            if not torch.allclose(other, first, rtol=1e-9, atol=0.0, equal_nan=True):
                raise ValueError(
                    f"{name}: expected the same in all {self.size} processes, got "
                    "others. Start them with the same seed, or send the first one's "
                    "state_dict to the others."
                )

    def __deepcopy__(self, memo: dict[int, Any]) -> Processes:
        return self

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Processes, ()
