"""The fused evidence and its gradient against plain dense algebra."""

from __future__ import annotations

import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from botorch_structured.linalg.block_low_rank import LeafLayout
from botorch_structured.linalg.correlations import (
    CORRELATIONS,
    Correlation,
    StationaryBlocks,
    squared_distance,
)
from botorch_structured.models.tree import leaf_inference
from botorch_structured.models.tree.leaf_inference import (
    BlockPrior,
    BlockTensors,
    GivenBlocks,
    log_evidence,
)

NUM_WEIGHTS = 6


def make(
    seed: int, sizes: list[int]
) -> tuple[LeafLayout, dict[str, Tensor], list[Tensor]]:
    """Leaves with two inputs and three of six weights each."""
    g = torch.Generator().manual_seed(seed)
    keys = torch.cat([torch.full((s,), i) for i, s in enumerate(sizes)])
    keys = keys[torch.randperm(len(keys), generator=g)]
    n, P = len(keys), len(sizes)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    tensors = {
        "x": normal(n, 2),
        "inverse": normal(P, 2).exp(),
        "variance": normal(P).exp(),
        "constant": 0.1 * normal(P).exp(),
        "features": normal(n, NUM_WEIGHTS),
        "noise": 0.1 + normal(n).square(),
        "residual": normal(n),
    }
    weights = [torch.randperm(NUM_WEIGHTS, generator=g)[:3].sort()[0] for _ in sizes]
    for t in tensors.values():
        t.requires_grad_(True)
    return LeafLayout(keys), tensors, weights


def structured(
    layout: LeafLayout,
    t: dict[str, Tensor],
    weights: list[Tensor],
    correlation: Correlation,
    given: bool = False,
) -> Tensor:
    """The fast evidence; ``given``: autograd differentiates the covariances."""
    blocks = []
    features = torch.nn.functional.pad(t["features"], (0, 0, 0, 1))
    for bucket in layout.buckets:
        index = torch.stack([weights[p] for p in bucket.leaves])
        rows = bucket.index.unsqueeze(-1)
        prior: BlockPrior = StationaryBlocks(
            bucket,
            t["x"][bucket.rows],
            t["inverse"][bucket.leaves],
            t["variance"][bucket.leaves],
            t["constant"][bucket.leaves],
            correlation,
        )
        if given:
            scaled = prior.scaled
            value = correlation.value(squared_distance(scaled, scaled))
            value = value * prior.variance[:, None, None]
            value = value + prior.constant[:, None, None]
            prior = GivenBlocks(bucket.mask_pairs(value))
        blocks.append(
            BlockTensors(
                bucket,
                prior,
                features[rows, index.unsqueeze(-2)],
                index,
                no_predictions,
            )
        )
    return log_evidence(blocks, t["noise"], t["residual"], NUM_WEIGHTS)


def no_predictions(*_: Tensor) -> Tensor:
    raise AssertionError("an evidence needs no covariances with other points")


def dense(
    layout: LeafLayout,
    t: dict[str, Tensor],
    weights: list[Tensor],
    correlation: Correlation,
) -> Tensor:
    leaf = layout.leaf_of_row
    same = (leaf[:, None] == leaf[None, :]).double()
    uses = torch.zeros(layout.num_leaves, NUM_WEIGHTS, dtype=torch.float64)
    for p, index in enumerate(weights):
        uses[p, index] = 1.0
    F = t["features"] * uses[leaf]
    x = [(t["x"] * inverse)[leaf == p] for p, inverse in enumerate(t["inverse"])]
    K = torch.zeros(len(leaf), len(leaf), dtype=torch.float64)
    for p, mine in enumerate(x):
        rows = (leaf == p).nonzero().squeeze(-1)
        pairs = (rows[:, None].expand(-1, len(rows)), rows.expand(len(rows), -1))
        K = K.index_put(pairs, correlation.value(squared_distance(mine, mine)))
    K = K * t["variance"][leaf]
    K = same * (K + t["constant"][leaf]) + F @ F.mT + torch.diag(t["noise"])
    r = t["residual"]
    n = len(r)
    return -0.5 * (
        r @ torch.linalg.solve(K, r) + K.logdet() + n * math.log(2 * math.pi)
    )


@pytest.mark.parametrize("correlation", CORRELATIONS, ids=lambda c: c.name)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=8),
    autograd=st.booleans(),
    in_parts=st.booleans(),
)
def test_equals_dense(
    correlation: Correlation,
    seed: int,
    sizes: list[int],
    autograd: bool,
    in_parts: bool,
) -> None:
    layout, t, weights = make(seed, sizes)
    entries = 1000 if in_parts else leaf_inference._CACHE_ENTRIES
    with patch.object(leaf_inference, "_CACHE_ENTRIES", entries):
        a = structured(layout, t, weights, correlation, autograd)
    b = dense(layout, t, weights, correlation)
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    grads = [torch.autograd.grad(3.0 * v, list(t.values())) for v in (a, b)]
    for name, x, y in zip(t, *grads, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9, msg=name)


def test_small_noise_keeps_its_digits() -> None:
    """Two exact copies of a point on a leaf, a noise of 1e-9."""
    layout, t, weights = make(0, [6, 5, 4])
    with torch.no_grad():
        t["noise"].fill_(1e-9)
        first = (layout.leaf_of_row == 0).nonzero().squeeze(-1)
        t["x"][first[1]] = t["x"][first[0]]
        t["features"][first[1]] = t["features"][first[0]]
        t["residual"][first[1]] = t["residual"][first[0]]
    matern = CORRELATIONS[0]
    a, b = (f(layout, t, weights, matern) for f in (structured, dense))
    # both sides have a condition number of 1e9 or more: neither knows more digits
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-5)
