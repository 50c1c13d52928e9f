"""Rows of many tasks, cut into chunks once for all evaluations.

Sums over the rows of each task (statistics, gradients) are taken chunk by chunk, so
that memory does not grow with the number of rows. Within a chunk, rows of one task are
neighbours: a *piece*.
"""

from __future__ import annotations

__all__ = [
    "Chunk",
    "Group",
    "Piece",
    "TaskRows",
]

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

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

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Task of each observation, and its place among those of the task, ``m``."""
        lengths = torch.tensor([p.stop - p.start for p in self.pieces])
        table = torch.tensor([[p.task, p.place - p.start] for p in self.pieces])
        each = table.repeat_interleave(lengths, dim=0).to(self.device)
        return each[:, 0], each[:, 1] + torch.arange(len(each), device=self.device)


@dataclass(frozen=True)
class Group:
    """Tasks, and the chunks that have all of their observations and no others.

    Attributes:
        tasks: Which tasks.
        chunks: Their chunks.
    """

    tasks: range
    chunks: list[Chunk]


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
        kept_rows: Of so many rows of a group, the first ones, activations may be kept
            between the two passes; of the others they are computed twice.

    Attributes:
        task: As given.
        groups: Tasks whose observations are in chunks of their own: few rows on a CPU
            unless a task has many, so that what is computed of them is still in the
            cache when their tasks are solved. One group on a GPU, or with ``rows``.
        chunks: The chunks of all groups; each observation is in one of them.
        num_kept: Of how many chunks of a group, the first ones, activations may be
            kept.
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
        self.task = task
        self.num_tasks = num_tasks
        self.num_rows = num_rows
        self.counts: list[int] = torch.bincount(task, minlength=num_tasks).tolist()
        on_cpu = task.device.type == "cpu"
        step = chunk_rows or (_CHUNK_ROWS_CPU if on_cpu else _CHUNK_ROWS_GPU)
        self.groups = (
            self._by_task(task, step)
            if rows is None
            else [Group(range(num_tasks), self._by_row(task, rows, step))]
        )
        self.chunks = [chunk for group in self.groups for chunk in group.chunks]
        self.num_kept = kept_rows // step

    def _by_task(self, task: Tensor, step: int) -> list[Group]:
        """One observation per row: rows are sorted by task, then cut."""
        order = None
        if bool((task[1:] < task[:-1]).any()):
            order = torch.argsort(task, stable=True)
        # in the cache of a CPU; a GPU takes many tasks at once
        size = min(step, _CHUNK_ROWS_CPU) if task.device.type == "cpu" else len(task)
        first = [0, *accumulate(self.counts)]
        groups = []
        for tasks in _neighbours(self.counts, size):
            chunks, end = [], first[tasks.stop]
            for start in range(first[tasks.start], end, step):
                stop = min(start + step, end)
                pieces = [
                    Piece(
                        t,
                        max(first[t], start) - start,
                        min(first[t + 1], stop) - start,
                        max(start - first[t], 0),
                    )
                    for t in tasks
                    if max(first[t], start) < min(first[t + 1], stop)
                ]
                at = slice(start, stop)
                which = at if order is None else order[at]
                chunks.append(Chunk(which, which, None, pieces, task.device))
            groups.append(Group(tasks, chunks))
        return groups

    def _by_row(self, task: Tensor, rows: Tensor, step: int) -> list[Chunk]:
        """Several observations per row: rows stay in order, each is visited once."""
        T = self.num_tasks
        key = rows.div(step, rounding_mode="floor") * T + task
        order = torch.argsort(key, stable=True)
        num_chunks = -(-self.num_rows // step)
        counts = torch.bincount(key, minlength=num_chunks * T).tolist()
        seen = [0] * T
        chunks, first = [], 0
        for i in range(num_chunks):
            pieces, start = [], 0
            for t in range(T):
                n = counts[i * T + t]
                if n:
                    pieces.append(Piece(t, start, start + n, seen[t]))
                    seen[t] += n
                    start += n
            if not pieces:
                continue
            entries = order[first : first + start]
            first += start
            here = slice(i * step, min((i + 1) * step, self.num_rows))
            local = rows[entries] - here.start
            chunks.append(Chunk(here, entries, local, pieces, task.device))
        return chunks


def _neighbours(counts: list[int], size: int) -> list[range]:
    """Tasks one after the other, together while they have no more rows than that."""
    groups, first, total = [], 0, 0
    for t, count in enumerate(counts):
        if t > first and total + count > size:
            groups.append(range(first, t))
            first, total = t, 0
        total += count
    return [*groups, range(first, len(counts))]
