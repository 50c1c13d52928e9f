"""Every observation is in one chunk, next to those of its task."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from botorch_structured.models.ablr.rows import TaskRows


def as_tensor(index: slice | Tensor) -> Tensor:
    if isinstance(index, Tensor):
        return index
    return torch.arange(index.start, index.stop)


def check(chunks: TaskRows, task: Tensor, rows: Tensor, step: int | None) -> None:
    seen, places = [], {t: [] for t in range(chunks.num_tasks)}
    for chunk in chunks.chunks:
        entries, here = as_tensor(chunk.entries), as_tensor(chunk.rows)
        assert step is None or len(here) <= step
        local = torch.arange(len(here)) if chunk.local is None else chunk.local
        assert torch.equal(here[local], rows[entries])
        seen.append(entries)
        stop = 0
        for piece in chunk.pieces:
            assert piece.start == stop < piece.stop
            stop = piece.stop
            assert (task[entries[piece.start : stop]] == piece.task).all()
        assert stop == len(entries)
        which, place = chunk.places
        assert torch.equal(which, task[entries])
        for t, p in zip(which.tolist(), place.tolist(), strict=True):
            places[t].append(p)
    together = torch.cat(seen) if seen else torch.zeros(0, dtype=torch.long)
    assert torch.equal(together.sort().values, torch.arange(len(task)))
    for t, numbers in places.items():
        assert numbers == list(range(chunks.counts[t]))


@given(
    st.lists(st.integers(0, 4), max_size=40),
    st.one_of(st.none(), st.integers(1, 50)),
    st.booleans(),
)
def test_one_observation_per_row(
    tasks: list[int], step: int | None, ordered: bool
) -> None:
    task = torch.tensor(sorted(tasks) if ordered else tasks, dtype=torch.long)
    chunks = TaskRows(task, 5, chunk_rows=step)
    check(chunks, task, torch.arange(len(task)), step)
    if ordered:  # without indices
        assert all(isinstance(chunk.rows, slice) for chunk in chunks.chunks)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=40),
    st.one_of(st.none(), st.integers(1, 12)),
)
def test_several_observations_per_row(
    entries: list[tuple[int, int]], step: int | None
) -> None:
    table = torch.tensor(entries, dtype=torch.long).reshape(-1, 2)
    chunks = TaskRows(table[:, 0], 4, rows=table[:, 1], num_rows=10, chunk_rows=step)
    check(chunks, table[:, 0], table[:, 1], step)
