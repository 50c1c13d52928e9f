"""Rows of many tasks, cut into chunks once for all evaluations, and spread.

Sums over the rows of each task (statistics, gradients) are taken chunk by chunk, so
that memory does not grow with the number of rows. Within a chunk, rows of one task are
neighbours: a *piece*.

Each process of a ``torch.distributed`` group may hold a part of the rows. All processes
call the same functions in the same order and get the same numbers, bit for bit, so that
an optimiser that runs in each of them takes the same steps.
"""

from __future__ import annotations

__all__ = ["Chunk", "Processes", "TaskRows"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from botorch_structured.linalg.block_low_rank import LeafLayout

# On a CPU 2,048 rows of a network with 50 units stay in the cache. A GPU needs more
# rows at once to be busy.
_CHUNK_ROWS_CPU = 2_048
_CHUNK_ROWS_GPU = 32_768
# Activations of so many rows are kept, which saves computing them twice: about 80 MiB
# for three layers of 50 units.
_KEPT_ROWS = 65_536


@dataclass(frozen=True)
class Piece:
    """Observations of one task in a chunk.

    Attributes:
        task: Which task.
        start: First observation, counted within the chunk.
        stop: One past the last.
        place: How many observations of the task are in the chunks before.
    """

    task: int
    start: int
    stop: int
    place: int


@dataclass(frozen=True)
class Chunk:
    """Some rows, and the observations there.

    Attributes:
        rows: Which rows of ``X``: a slice, or indices ``n``.
        entries: Which observations: a slice, or indices ``m``; sorted by task.
        local: For each observation, its row counted within the chunk, ``m``; None where
            observation i is of row i.
        pieces: The observations, task by task.
        device: Of the indices.
    """

    rows: slice | Tensor
    entries: slice | Tensor
    local: Tensor | None
    pieces: list[Piece]
    device: torch.device
    _batches: dict[Any, list[Any]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def batches(self, wanted: tuple[bool, ...]) -> list[tuple[Tensor, Tensor]]:
        """Pieces of some tasks, those of similar lengths in one batch.

        Args:
            wanted: Which tasks, T of them; it is worked out once for each choice.

        Returns:
            Tasks ``B``, and their observations ``B x N``, padded with ``m``.
        """
        if wanted not in self._batches:
            task = self.places[0]
            mine = torch.tensor(wanted, device=task.device)[task].nonzero()[:, 0]
            layout, rows = LeafLayout(task[mine]), pad(mine, (0, 1), value=len(task))
            self._batches[wanted] = [
                (layout.keys[b.leaves], rows[b.index]) for b in layout.buckets
            ]
        return self._batches[wanted]

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Task of each observation, and its place among those of the task, ``m``."""
        lengths = torch.tensor([p.stop - p.start for p in self.pieces])
        table = torch.tensor([[p.task, p.place - p.start] for p in self.pieces])
        each = table.repeat_interleave(lengths, dim=0).to(self.device)
        return each[:, 0], each[:, 1] + torch.arange(len(each), device=self.device)


class TaskRows:
    """Which rows and observations belong to which task, in chunks.

    Make it once for all evaluations of an objective: it sorts the observations. Memory:
    two indices per observation, none if the tasks come sorted.

    Args:
        task: Task of each observation, ``m``, integers in ``0 ... num_tasks - 1``.
        num_tasks: T; tasks may have no observation.
        rows: Row of ``X`` of each observation, ``m``, where several observations share
            a row (several outcomes of one evaluation). Default: observation i is of row
            i.
        num_rows: Number of rows of ``X``; with ``rows`` only.
        chunk_rows: Rows of ``X`` in a chunk. Default: 2,048 (32,768 on a GPU).
        kept_rows: Of so many rows, the first ones, activations may be kept between the
            two passes; of the others they are computed twice.

    Attributes:
        task: As given.
        chunks: Each observation is in one of them.
        num_kept: Of how many chunks, the first ones, activations may be kept.
        counts: Number of observations of each task, a list of T.
    """

    def __init__(
        self,
        task: Tensor,
        num_tasks: int,
        *,
        rows: Tensor | None = None,
        num_rows: int = 0,
        chunk_rows: int | None = None,
        kept_rows: int = _KEPT_ROWS,
    ) -> None:
        self.task, self.num_tasks = task, num_tasks
        self.counts: list[int] = torch.bincount(task, minlength=num_tasks).tolist()
        on_cpu = task.device.type == "cpu"
        step = chunk_rows or (_CHUNK_ROWS_CPU if on_cpu else _CHUNK_ROWS_GPU)
        self.chunks = self._cut(rows, num_rows, step)
        self.num_kept = kept_rows // step

    def _cut(self, rows: Tensor | None, num_rows: int, step: int) -> list[Chunk]:
        """Rows with one observation are sorted by task first; others stay in order."""
        task, T = self.task, self.num_tasks
        if rows is None:
            order = torch.argsort(task, stable=True)
            chunk = torch.arange(len(task), device=task.device) // step
        else:
            order = torch.argsort(rows // step * T + task, stable=True)
            chunk = rows[order] // step
        is_sorted = rows is None and not bool((task[1:] < task[:-1]).any())
        counts = torch.bincount(chunk * T + task[order]).tolist()
        seen, first = [0] * T, 0
        chunks = []
        for i in range(0, len(counts), T):
            pieces, start = [], 0
            for t, n in enumerate(counts[i : i + T]):
                if n:
                    pieces.append(Piece(t, start, start + n, seen[t]))
                    seen[t] += n
                    start += n
            at = slice(first, first + start)
            first += start
            entries = at if is_sorted else order[at]
            if rows is None:
                chunks.append(Chunk(entries, entries, None, pieces, task.device))
            elif pieces:
                low = i // T * step
                here, local = slice(low, min(low + step, num_rows)), rows[entries] - low
                chunks.append(Chunk(here, entries, local, pieces, task.device))
        return chunks


class Processes:
    """The processes that share the rows, or this process alone.

    Deep copies are the same object; a pickled one is of a single process.

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
        self.size, self.rank = 1, 0
        if group is not None:
            self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
            if self.rank < 0:
                raise ValueError(
                    "process_group: expected a group that this process is in."
                )

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, of one shape, in the order of their ranks.

        Raises:
            RuntimeError: If a process of the group has ended or does not answer.
        """
        if self.alone:
            return [tensor]
        tensor = tensor.contiguous()
        out = [torch.empty_like(tensor) for _ in range(self.size)]
        self._call(lambda: dist.all_gather(out, tensor, group=self._group))
        return out

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sums over processes, the same bits in each of them.

        Args:
            tensors: Of the same shapes in every process.

        Raises:
            RuntimeError: If a process of the group has ended or does not answer.
        """
        return self._together(tensors, lambda every: sum(every[1:], every[0]))

    def of_first(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of the first process: rounding may differ between machines.

        Args:
            tensors: Of the same shapes in every process.

        Raises:
            RuntimeError: If a process of the group has ended or does not answer.
        """
        return self._together(tensors, lambda every: every[0])

    def _together(
        self, tensors: Sequence[Tensor], made_of: Callable[[list[Tensor]], Tensor]
    ) -> list[Tensor]:
        if self.alone or not tensors:
            return list(tensors)
        flat = torch.cat([t.detach().double().reshape(-1) for t in tensors])
        parts = made_of(self.gather(flat)).split([t.numel() for t in tensors])
        return [p.reshape(t.shape).to(t) for p, t in zip(parts, tensors, strict=True)]

    def total(self, value: Tensor) -> Tensor:
        """The sum of one tensor over the processes, see ``sum``."""
        return self.sum([value])[0]

    def total_int(self, value: int, device: torch.device) -> int:
        """The sum of an integer over the processes; ``device`` is the group's."""
        return (
            value if self.alone else int(self.total(torch.tensor(value, device=device)))
        )

    def least(self, value: Tensor) -> Tensor:
        """The elementwise minimum of a tensor over the processes."""
        return torch.stack(self.gather(value)).amin(0)

    def check_same(self, values: dict[str, float], device: torch.device) -> None:
        """Compare numbers that have to agree, up to rounding.

        Args:
            values: What to compare, by name; the same names in each process.
            device: Where the group wants its tensors.

        Raises:
            ValueError: In all processes, if one of them has another number.
            RuntimeError: If a process of the group has ended or does not answer.
        """
        if self.alone:
            return
        mine = torch.tensor(list(values.values()), dtype=torch.float64, device=device)
        table = torch.stack(self.gather(mine))
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

    def _call(self, communicate: Callable[[], Any]) -> None:
        try:
            communicate()
        except RuntimeError as error:
            raise RuntimeError(
                f"Process {self.rank} of {self.size} got no answer from another one of "
                "its group, whose own output says why; start all of them again. "
                f"({str(error).splitlines()[0]})"
            ) from error
