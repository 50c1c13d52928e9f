"""Blocks and weights where factors are hard to find; layouts of leaves.

That they are one dense Gaussian is seen in ``tests/models/tree``: evidence, slopes and
predictions of random models.
"""

import math

import numpy as np
import pytest
import torch
from linear_operator.utils.errors import NanError, NotPSDError
from linear_operator.utils.warnings import NumericalWarning

from botorch_structured.linalg import blocks as module
from botorch_structured.linalg.blocks import (
    Block,
    Factorisation,
    LeafLayout,
    WeightedBlock,
    cholesky,
    factorise,
    inverse_factors,
    log_evidence,
)

# rows per weight up to which there is one factor: by block, and as one
BOTH = pytest.mark.parametrize("rows_per_weight", [0.0, math.inf])


@BOTH
@pytest.mark.parametrize("rows", [2, 40, 110])
def test_what_is_not_positive_definite(
    rows_per_weight: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS_PER_WEIGHT", rows_per_weight)
    residual = np.random.default_rng(0).standard_normal(2 * rows)
    index, weights = np.arange(2 * rows).reshape(2, rows), np.array([[0, 1], [0, 2]])
    features = np.ones((2, rows, 2))

    def evidence(factor: float) -> float:
        covariance = np.full((2, rows, rows), factor)
        block = Block(covariance, features, index, weights)
        return log_evidence([block], residual, num_weights=3)[0]

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
