import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from linear_operator.utils.errors import NanError, NotPSDError
from linear_operator.utils.warnings import NumericalWarning

from botorch_structured.linalg import blocks
from botorch_structured.linalg.blocks import (
    Factorisation,
    LeafLayout,
    WeightedBlock,
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


def test_a_block_that_needs_jitter() -> None:
    """Two equal rows without noise: each block gets jitter as in GPyTorch."""
    layout = LeafLayout(torch.tensor([0, 0, 1, 1]))
    (bucket,) = layout.buckets
    covariance = torch.ones(2, 2, 2, dtype=torch.float64)
    covariance[1] += torch.eye(2)
    features = torch.ones(2, 2, 1, dtype=torch.float64)
    weights = torch.zeros(2, 1, dtype=torch.long)
    residual = torch.arange(4.0, dtype=torch.float64)

    def found(covariance: torch.Tensor, scale: float = 1.0) -> Factorisation:
        block = WeightedBlock(bucket, covariance, scale * features, weights)
        return factorise([block], residual, 1)

    with pytest.warns(NumericalWarning, match="added jitter"):
        factors = found(covariance)
    chol = torch.linalg.inv(factors.blocks[0].inverse_chol)
    blocks = chol @ chol.mT
    torch.testing.assert_close(blocks, covariance, rtol=0.0, atol=1e-6)
    assert (blocks[0] - covariance[0]).diagonal().min() > 0
    with pytest.raises(NanError):
        found(covariance * torch.nan)
    # one indefinite block of several, which no jitter helps
    with pytest.raises(NotPSDError), pytest.warns(NumericalWarning):
        found(covariance * torch.tensor([-1.0, 1.0]).view(2, 1, 1), scale=0.0)


def test_more_weights_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The factor of rows says the same as that of weights."""
    (bucket,) = LeafLayout(torch.tensor([0, 0, 1, 1])).buckets
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 2, 20, dtype=torch.float64, generator=generator)
    covariance = torch.eye(2, dtype=torch.float64).repeat(2, 1, 1)
    weights = torch.arange(20).repeat(2, 1)
    block = WeightedBlock(bucket, covariance, features, weights)
    residual = torch.arange(4.0, dtype=torch.float64)
    expected = factorise([block], residual, 20)
    monkeypatch.setattr(blocks, "_FEW_WEIGHTS", 0)
    found = factorise([block], residual, 20)
    assert found.weight_covariance.explained is not None
    close = torch.testing.assert_close
    close(found.weight_mean, expected.weight_mean)
    close(found.log_density(4), expected.log_density(4))
    whole = expected.weight_covariance.dense()
    close(found.weight_covariance.dense(), whole)
    left, right = found.weight_covariance.root()
    root = torch.eye(20, dtype=torch.float64) - left @ right
    close(root @ root.mT, whole)
