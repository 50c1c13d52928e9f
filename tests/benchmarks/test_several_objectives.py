import pytest
import torch

from benchmarks.quality.several_objectives import share_of_front


def test_share_of_front() -> None:
    pool = torch.rand(500, 2, generator=torch.Generator().manual_seed(0)).double()
    assert share_of_front(pool, pool) == pytest.approx(1.0)
    assert share_of_front(pool.amin(0, keepdim=True), pool) == 0.0
    assert share_of_front(pool.amax(0, keepdim=True), pool) > 1.0
    # units do not matter, nor what is below the quantiles
    scaled = pool * torch.tensor([1e3, 1e-3]) + 7.0
    share = share_of_front(pool[:5], pool)
    assert 0.0 <= share < 1.0 and share_of_front(scaled[:5], scaled) == pytest.approx(
        share
    )
