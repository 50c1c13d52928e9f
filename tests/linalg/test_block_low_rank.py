from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from botorch_structured.linalg.block_low_rank import LeafLayout


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=300))
def test_each_row_stands_once_in_its_leaf(keys: list[int]) -> None:
    layout = LeafLayout(torch.tensor(keys))
    seen = []
    for bucket in layout.buckets:
        for leaf, rows in zip(bucket.leaves, bucket.index, strict=True):
            real = rows[rows < layout.num_rows]
            assert (layout.leaf_of_row[real] == leaf).all()
            assert len(real) == layout.sizes[leaf]
            seen += real.tolist()
        if bucket.real is None:
            assert (bucket.index < layout.num_rows).all()
        else:
            assert torch.equal(bucket.real, bucket.index < layout.num_rows)
    assert sorted(seen) == list(range(len(keys)))
    assert torch.equal(layout.find(torch.tensor(keys)), layout.leaf_of_row)
    representative = torch.tensor(keys)[layout.representative]
    assert torch.equal(representative, layout.keys)


def test_unknown_keys_are_no_leaf() -> None:
    layout = LeafLayout(torch.tensor([3, 1, 3]))
    assert layout.find(torch.tensor([0, 1, 2, 3, 4])).tolist() == [2, 0, 2, 1, 2]


@pytest.mark.parametrize("size", [128, 256])
def test_slow_cholesky_sizes_are_avoided(size: int) -> None:
    layout = LeafLayout(torch.zeros(size, dtype=torch.long))
    assert layout.buckets[0].index.shape[-1] % 128 != 0


def test_padding_stays_small() -> None:
    sizes = [1, 2, 3, 5, 8, 40, 41, 300]
    keys = torch.cat([torch.full((s,), i) for i, s in enumerate(sizes)])
    for bucket in LeafLayout(keys).buckets:
        width = bucket.index.shape[-1]
        filled = (bucket.index < len(keys)).sum(-1)
        assert (1.25 * filled + 6 >= width).all()
