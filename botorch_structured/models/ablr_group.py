"""The processes that share the rows of one model."""

from __future__ import annotations

__all__ = ["ProcessGroup"]

from typing import Any

import torch
from torch import Tensor

from botorch_structured.inference.across_processes import Processes


class ProcessGroup:
    """A ``torch.distributed`` group, or None for one process that has all rows.

    Copies of a model share it; a stored model has none.

    Args:
        process_group: The group, or None.
    """

    def __init__(self, process_group: Any = None) -> None:
        self.process_group = process_group

    @property
    def is_shared(self) -> bool:
        """Whether there are other processes."""
        return self.process_group is not None

    @property
    def is_first(self) -> bool:
        """Whether this process is the one to talk to the user."""
        return Processes(self.process_group).rank == 0

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments for the functions of ``inference``."""
        return {"process_group": self.process_group} if self.is_shared else {}

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a tensor over the processes, on each of them."""
        return Processes(self.process_group).sum([values])[0]

    def min(self, values: Tensor) -> Tensor:
        """The minimum of a tensor over the processes, on each of them."""
        return torch.stack(Processes(self.process_group).gather(values)).amin(0)

    def sum_of_int(self, value: int, device: torch.device) -> int:
        """The sum of an integer over the processes."""
        return int(self.sum(torch.tensor([value], device=device)))

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessGroup:
        return self

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return ProcessGroup, ()
