"""Rows that are spread over the processes of a ``torch.distributed`` group.

All processes call the same functions in the same order and get the same numbers, bit
for bit, so that an optimiser that runs in each of them takes the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sums over processes, the same bits in each of them.

        Args:
            tensors: They have the same shapes in all processes.
        """
        return self._together(tensors, sum)

    def of_first(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of the first process: rounding may differ between machines.

        Args:
            tensors: They have the same shapes in all processes.
        """
        return self._together(tensors, lambda parts: parts[0])

    def _together(
        self,
        tensors: Sequence[Tensor],
        combine: Callable[[list[Tensor]], Any],
    ) -> list[Tensor]:
        if self.alone or not tensors:
            return list(tensors)
        flat = torch.cat([t.detach().double().reshape(-1) for t in tensors])
        parts = combine(self.gather(flat)).split([t.numel() for t in tensors])
        return [p.reshape(t.shape).to(t) for p, t in zip(parts, tensors, strict=True)]

    def total(self, value: Tensor) -> Tensor:
        """The sum of one tensor over the processes."""
        return self.sum([value])[0]

    def count(self, rows: Tensor) -> int:
        """How many rows all processes have; ``rows`` are those of this one."""
        return int(self.total(torch.tensor(len(rows), device=rows.device)))

    def least(self, value: Tensor) -> Tensor:
        """The elementwise minimum of a tensor over the processes."""
        return torch.stack(self.gather(value)).amin(0)

    def check_same(
        self,
        values: dict[str, float],
        device: torch.device,
    ) -> None:
        """Compare numbers that have to agree, up to rounding.

        Args:
            values: The numbers by name; the same names in all processes.
            device: Where the group wants its tensors.

        Raises:
            ValueError: In all processes, if one of them has another number.
            RuntimeError: If a process of the group has ended or does not answer.
        """
        if self.alone:
            return
        numbers = list(values.values())
        table = torch.stack(
            self.gather(torch.tensor(numbers, dtype=torch.float64, device=device))
        )
        same = torch.isclose(table, table[:1], rtol=1e-9, atol=0.0, equal_nan=True)
        for i, name in enumerate(values):
            if not bool(same[:, i].all()):
                raise ValueError(
                    f"{name}: expected the same in all {self.size} processes, got "
                    f"{table[:, i].tolist()}. Start them with the same seed, or send "
                    "the first one's state_dict to the others."
                )

    def __deepcopy__(self, memo: dict[int, Any]) -> Processes:
        return self

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Processes, ()
