"""Each constant exists, and both of its ways give the same call something to do."""

from __future__ import annotations

import pytest

from benchmarks.speed import thresholds
from benchmarks.speed.thresholds import THRESHOLDS, Threshold


@pytest.mark.filterwarnings("ignore:Chains may not have converged")
@pytest.mark.parametrize("row", THRESHOLDS, ids=lambda row: row.constant)
def test_both_ways_of_a_constant_run(row: Threshold) -> None:
    name = row.constant.rpartition(".")[2]
    before = getattr(row.module, name)
    assert row.low < before < row.high
    assert min(thresholds.measure(row, min(row.sizes[0], 60), repeats=1)) > 0.0
    assert getattr(row.module, name) == before
