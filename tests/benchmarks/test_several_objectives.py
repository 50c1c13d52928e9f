"""The share of a front, and its table."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.quality.several_objectives import AT, main, share_of_front


def test_share_of_front() -> None:
    pool = torch.rand(500, 2, generator=torch.Generator().manual_seed(0)).double()
    assert share_of_front(pool, pool) == pytest.approx(1.0)
    assert 0.0 <= share_of_front(pool[:5], pool) < 1.0
    assert share_of_front(pool.amax(0, keepdim=True), pool) > 1.0
    # units do not matter, nor what is below the quantiles
    scaled = pool * torch.tensor([1e3, 1e-3]) + 7.0
    assert share_of_front(scaled[:5], scaled) == pytest.approx(
        share_of_front(pool[:5], pool)
    )
    assert share_of_front(pool.amin(0, keepdim=True), pool) == 0.0


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shares = {("a", "random"): 0.5, ("a", "suggest"): 0.75, ("b", "random"): 0.25}
    rows = [
        {"task": task, "method": method} | {str(n): share for n in AT}
        for (task, method), share in shares.items()
    ]
    file = tmp_path / "runs.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    main(["--report", str(file)])
    table = capsys.readouterr().out
    # a data set counts where both were run
    assert "| random, median of 1 data sets | 0.50 |" in table
    assert "| data sets with `suggest` ahead | 1 |" in table
