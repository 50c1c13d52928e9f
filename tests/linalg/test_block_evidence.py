"""The evidence of blocks and weights on arrays is that of one dense Gaussian."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from linear_operator.utils.errors import NotPSDError

from botorch_structured.linalg.block_evidence import (
    Array,
    Block,
    evidence_as_one,
    evidence_by_block,
    pairs_of,
)

NUM_WEIGHTS = 5
Evidence = Callable[..., tuple[float, Any]]
BOTH = [evidence_by_block, evidence_as_one]


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
        pairs = pairs_of(weights, NUM_WEIGHTS)
        blocks.append(Block(covariance, features, index, weights, pairs))
    return blocks, np.append(rng.standard_normal(n), 0.0)


def dense(blocks: list[Block], residual: Array) -> float:
    n = len(residual) - 1
    K, F = np.zeros((n + 1, n + 1)), np.zeros((n + 1, NUM_WEIGHTS + 1))
    for block in blocks:
        for a, f, rows, weights, _ in zip(*block, strict=True):
            K[np.ix_(rows, rows)] = a
            F[np.ix_(rows, weights)] = f
    K = K[:n, :n] + F[:n, :-1] @ F[:n, :-1].T
    r = residual[:n]
    return -0.5 * (
        r @ np.linalg.solve(K, r)
        + np.linalg.slogdet(K)[1]
        + n * math.log(2.0 * math.pi)
    )


@pytest.mark.parametrize("evidence", BOTH)
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
    evidence: Evidence, seed: int, sizes: list[tuple[int, int, int]]
) -> None:
    blocks, residual = make(seed, sizes)
    value, derivatives = evidence(blocks, residual, NUM_WEIGHTS)
    assert value == pytest.approx(dense(blocks, residual), rel=1e-10)
    rng, step = np.random.default_rng(seed), 1e-5
    n = len(residual) - 1
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
    dr = np.append(rng.standard_normal(n), 0.0)
    slope += d_residual @ dr

    def at(t: float) -> float:
        moved = [
            block._replace(
                covariance=block.covariance + t * da, features=block.features + t * df
            )
            for block, (da, df) in zip(blocks, moves, strict=True)
        ]
        return dense(moved, residual + t * dr)

    assert slope == pytest.approx((at(step) - at(-step)) / (2 * step), 1e-5, 1e-5)


@pytest.mark.parametrize("evidence", BOTH)
def test_without_weights(evidence: Evidence) -> None:
    blocks, residual = make(0, [(2, 3, 1), (1, 40, 0)])
    none = [
        b._replace(
            features=b.features[..., :0],
            weights=b.weights[:, :0],
            pairs=b.pairs[:, :0, :0],
        )
        for b in blocks
    ]
    value, _ = evidence(none, residual, 0)
    zero = [b._replace(features=0.0 * b.features) for b in blocks]
    assert value == pytest.approx(dense(zero, residual), rel=1e-12)


@pytest.mark.parametrize("evidence", BOTH)
@pytest.mark.parametrize("rows", [2, 40, 110])
def test_what_is_not_positive_definite(evidence: Evidence, rows: int) -> None:
    blocks, residual = make(0, [(2, rows, 0)])
    singular = np.ones((2, rows, rows))
    value, _ = evidence([blocks[0]._replace(covariance=singular)], residual, 5)
    assert math.isfinite(value)  # with jitter
    with pytest.raises(NotPSDError, match="positive definite"):
        evidence(
            [blocks[0]._replace(covariance=-1e3 * singular)], residual, NUM_WEIGHTS
        )
    value, _ = evidence(
        [blocks[0]._replace(covariance=math.nan * singular)], residual, NUM_WEIGHTS
    )
    assert math.isnan(value)
