from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from linear_operator.utils.errors import NanError
from linear_operator.utils.warnings import NumericalWarning

from botorch_structured.linalg import block_low_rank
from botorch_structured.linalg.block_low_rank import (
    BlockInputs,
    LeafColumns,
    LeafLayout,
    factorise,
)


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


def test_columns_of_leaves_follow_the_inputs() -> None:
    """What is gathered of inputs is kept, but not when they change."""
    layout = LeafLayout(torch.tensor([0, 1, 0, 1, 1]))
    (bucket,) = layout.buckets
    places = torch.tensor([[0, 2], [1, 3]])  # the first leaf has two, the second one
    columns = LeafColumns.of(bucket, places, torch.tensor([4, 2, 0]))
    X = torch.rand(5, 6, dtype=torch.float64)
    X[1::2, 0] = X[4, 0] = torch.nan  # column 0 is used by the first leaf only

    def expected() -> torch.Tensor:
        first, second = X[[0, 2]][:, [4, 0]], X[[1, 3, 4]][:, [2]]
        return torch.cat([first.flatten(), second.flatten()])

    def found(inputs: torch.Tensor) -> torch.Tensor:
        one, other = columns(inputs)
        assert (other[:, 1] == 0).all()
        return torch.cat([one[:2].flatten(), other[:, 0]])

    for _ in range(2):
        assert torch.equal(found(X), expected())
    X *= 2.0
    assert torch.equal(found(X), expected())
    with torch.inference_mode():
        assert torch.equal(found(X + 0.0), expected())
    leaf = X.clone().requires_grad_()
    with torch.no_grad():
        found(leaf)
    (gradient,) = torch.autograd.grad(columns(leaf).sum(), leaf)
    assert gradient[1, 2] == 1 and gradient[1, 0] == 0


def test_a_block_that_needs_jitter() -> None:
    """Two equal rows without noise: each block gets jitter as in GPyTorch."""
    layout = LeafLayout(torch.tensor([0, 0, 1, 1]))
    (bucket,) = layout.buckets
    covariance = torch.ones(2, 2, 2, dtype=torch.float64)
    covariance[1] += torch.eye(2)
    features = torch.ones(2, 2, 1, dtype=torch.float64)
    inputs = BlockInputs(bucket, features, torch.zeros(2, 1, dtype=torch.long))
    residual = torch.arange(4.0, dtype=torch.float64)
    with pytest.warns(NumericalWarning, match="added jitter"):
        factors = factorise(lambda: [(covariance.clone(), inputs)], residual, 1)
    blocks = factors.blocks[0].chol @ factors.blocks[0].chol.mT
    torch.testing.assert_close(blocks, covariance, rtol=0.0, atol=1e-6)
    assert (blocks[0] - covariance[0]).diagonal().min() > 0
    with pytest.raises(NanError):
        factorise(lambda: [(covariance * torch.nan, inputs)], residual, 1)


@pytest.mark.parametrize("leaves", [1, 3])
def test_many_pairs_of_weights(leaves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of all weights in the place of pairs of a leaf's; with gradients."""
    num_rows, num_weights, own = 2 * leaves, 9, 7
    g = torch.Generator().manual_seed(0)
    (bucket,) = LeafLayout(torch.arange(num_rows) % leaves).buckets
    # an unused place of the second leaf
    weights = torch.stack([torch.randperm(9, generator=g)[:own] for _ in range(leaves)])
    weights[1:, -1] = num_weights
    features = torch.randn(leaves, 2, own, generator=g, dtype=torch.float64)
    features = (features * (weights < num_weights).unsqueeze(1)).requires_grad_()
    residual = torch.randn(num_rows, generator=g, dtype=torch.float64)
    covariance = 2.0 * torch.eye(2, dtype=torch.float64).expand(leaves, 2, 2)

    def found() -> list[torch.Tensor]:
        blocks = [(covariance, BlockInputs(bucket, features, weights))]
        factors = factorise(lambda: blocks, residual, num_weights)
        value = factors.weight_mean.sin().sum() + factors.precision_chol.logdet()
        (gradient,) = torch.autograd.grad(value, features)
        return [factors.weight_mean, factors.precision_chol, gradient]

    expected = found()
    monkeypatch.setattr(block_low_rank, "_MANY_PAIRS", 0)
    monkeypatch.setattr(block_low_rank, "_FEW_PAIRS", 0)
    monkeypatch.setattr(block_low_rank, "weight_pairs", None)  # not called
    for a, b in zip(found(), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
