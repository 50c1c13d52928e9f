"""The speed benchmark runs, and compares what it says it does."""

from __future__ import annotations

import argparse

import torch

from benchmarks.speed import ablr


def test_one_row_of_the_benchmark() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        args = argparse.Namespace(tasks=3, repeats=1, device="cpu")
        row = ablr.measure(args, 90)
        model = ablr.make_model(90, 3, "cpu")
    finally:
        torch.set_default_dtype(torch.float32)
    assert (row["rows"], row["tasks"], row["chunk_rows"]) == (90, 3, 90)
    assert model._rows().data.rows.counts == [30, 30, 30]
    _, gradient = ablr.evaluate(model)
    assert all(bool(g.isfinite().all()) for g in gradient)
    X = model._rows().inputs[:, 1:]
    whole, chunked = (ablr.network_alone(model, X, n) for n in (90, 40))
    for a, b in zip(whole, chunked, strict=True):
        torch.testing.assert_close(a, b)
