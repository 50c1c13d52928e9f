"""Blocks and weights, on arrays and in torch, are one dense Gaussian."""

import math
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from linear_operator.utils.errors import NanError, NotPSDError
from linear_operator.utils.warnings import NumericalWarning

from botorch_structured.linalg import blocks as module
from botorch_structured.linalg.blocks import (
    Array,
    Block,
    Factorisation,
    LeafLayout,
    WeightedBlock,
    cholesky,
    factorise,
    inverse_factors,
    log_evidence,
)

NUM_WEIGHTS = 5
# rows per weight up to which there is one factor: by block, and as one
BOTH = pytest.mark.parametrize("rows_per_weight", [0.0, math.inf])


def make(seed: int, sizes: list[tuple[int, int, int]]) -> tuple[list[Block], Array]:
    """Buckets of (leaves, rows, padded rows) with three weights, one of them unused."""
    rng = np.random.default_rng(seed)
    blocks, start = [], 0
    n = sum(leaves * rows for leaves, rows, _ in sizes)
    for leaves, rows, padding in sizes:
        size = rows + padding
        index = np.full((leaves, size), n)
        index[:, :rows] = start + np.arange(leaves * rows).reshape(leaves, rows)
        start += leaves * rows
        root = rng.standard_normal((leaves, size, size))
        features = rng.standard_normal((leaves, size, 3))
        covariance = np.broadcast_to(np.eye(size), root.shape).copy()
        real = root[:, :rows, :rows]
        covariance[:, :rows, :rows] += real @ real.swapaxes(1, 2)
        features[:, rows:], features[:, :, 2] = 0.0, 0.0
        used = [[*rng.permutation(NUM_WEIGHTS)[:2], NUM_WEIGHTS] for _ in index]
        weights = np.array(used)
        blocks.append(Block(covariance, features, index, weights))
    return blocks, rng.standard_normal(n)


def dense(blocks: list[Block], residual: Array) -> float:
    n, r = len(residual), residual
    K, F = np.zeros((n + 1, n + 1)), np.zeros((n + 1, NUM_WEIGHTS + 1))
    for block in blocks:
        for a, f, rows, weights in zip(*block[:4], strict=True):
            K[np.ix_(rows, rows)] = a
            F[np.ix_(rows, weights)] = f
    K = K[:n, :n] + F[:n, :-1] @ F[:n, :-1].T
    return -0.5 * (
        r @ np.linalg.solve(K, r)
        + np.linalg.slogdet(K)[1]
        + n * math.log(2.0 * math.pi)
    )


@BOTH
@example(seed=3, sizes=[(2, 110, 1), (2, 3, 1)])
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(
        st.tuples(
            st.integers(1, 3), st.sampled_from([1, 3, 7, 30, 110]), st.integers(0, 2)
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_equals_dense(
    rows_per_weight: float, seed: int, sizes: list[tuple[int, int, int]]
) -> None:
    blocks, residual = make(seed, sizes)
    with mock.patch.object(module, "_ROWS_PER_WEIGHT", rows_per_weight):
        value, derivatives = log_evidence(blocks, residual, NUM_WEIGHTS)
    assert value == pytest.approx(dense(blocks, residual), rel=1e-10)
    rng, step = np.random.default_rng(seed), 1e-5
    n = len(residual)
    moves, slope = [], 0.0
    d_residual = np.zeros(n + 1)
    for block, d in zip(blocks, derivatives, strict=True):
        pair = (block.rows < n)[:, :, None] & (block.rows < n)[:, None, :]
        da = rng.standard_normal(block.covariance.shape) * pair
        da = da + da.swapaxes(1, 2)
        used = block.weights < NUM_WEIGHTS
        df = rng.standard_normal(block.features.shape) * used[:, None, :]
        df = df * (block.rows < n)[..., None]
        moves.append((da, df))
        slope += np.vdot(d.covariance, da) + np.vdot(d.features, df)
        np.add.at(d_residual, block.rows, d.residual)
    assert d_residual[n] == 0.0
    dr = rng.standard_normal(n)
    slope += d_residual[:n] @ dr

    def at(t: float) -> float:
        moved = [
            block._replace(
                covariance=block.covariance + t * da, features=block.features + t * df
            )
            for block, (da, df) in zip(blocks, moves, strict=True)
        ]
        return dense(moved, residual + t * dr)

    assert slope == pytest.approx((at(step) - at(-step)) / (2 * step), 1e-5, 1e-5)


def test_without_weights() -> None:
    blocks, residual = make(0, [(2, 3, 1), (1, 40, 0), (1, 110, 0)])
    none = [
        b._replace(features=b.features[..., :0], weights=b.weights[:, :0])
        for b in blocks
    ]
    value, _ = log_evidence(none, residual, 0)
    zero = [b._replace(features=0.0 * b.features) for b in blocks]
    assert value == pytest.approx(dense(zero, residual), rel=1e-12)


@BOTH
@pytest.mark.parametrize("rows", [2, 40, 110])
def test_what_is_not_positive_definite(
    rows_per_weight: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROWS_PER_WEIGHT", rows_per_weight)
    blocks, residual = make(0, [(2, rows, 0)])

    def evidence(factor: float) -> float:
        covariance = np.full((2, rows, rows), factor)
        block = blocks[0]._replace(covariance=covariance)
        return log_evidence([block], residual, NUM_WEIGHTS)[0]

    assert math.isfinite(evidence(1.0))  # with jitter
    assert math.isnan(evidence(math.nan))
    with pytest.raises(NotPSDError, match="positive definite"):
        evidence(-1e3)


def test_the_first_jitter_that_does() -> None:
    A = np.ones((4, 4))
    A[0, 0] -= 1e-7
    L = cholesky(A, [1e-9, 1e-6, 1.0])
    assert not np.triu(L, 1).any()
    np.testing.assert_allclose(L @ L.T, A + 1e-6 * np.eye(4), rtol=0.0, atol=1e-12)
    inverse, _ = inverse_factors(np.stack([A, np.eye(4)]))
    np.testing.assert_allclose(inverse[1], np.eye(4))
    assert np.isfinite(inverse).all()


# -- in torch ---------------------------------------------------------------------


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
    monkeypatch.setattr(module, "_FEW_WEIGHTS", 0)
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
