"""The evidence of blocks and weights on arrays is that of one dense Gaussian."""

import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from linear_operator.utils.errors import NotPSDError

from botorch_structured.linalg import blocks as module
from botorch_structured.linalg.blocks import Array, Block, log_evidence

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
