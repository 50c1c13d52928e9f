from __future__ import annotations

from pathlib import Path

import numpy as np
from toy_benchmark import arguments

from benchmarks.harness import run
from benchmarks.packed import main, pack, unpack
from benchmarks.summary import load


def test_a_file_says_what_the_folder_says(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(**arguments(out))
    file = tmp_path / "runs.jsonl.xz"
    main([str(out), str(file)])
    for one, other in zip(load(out), load(file), strict=True):
        assert (one.problem, one.method, one.seed) == (
            other.problem,
            other.method,
            other.seed,
        )
        assert np.array_equal(one.values, other.values)
        assert (one.optimum, one.errors) == (other.optimum, other.errors)
    pack(out, tmp_path / "again.jsonl.xz")
    assert file.read_bytes() == (tmp_path / "again.jsonl.xz").read_bytes()


def test_unpacked_runs_are_complete(tmp_path: Path) -> None:
    """The harness has nothing left to do."""
    out, new = tmp_path / "out", tmp_path / "new"
    run(**arguments(out))
    pack(out, tmp_path / "runs.jsonl.xz")
    unpack(tmp_path / "runs.jsonl.xz", new)
    before = {p.relative_to(new): p.stat().st_mtime_ns for p in new.glob("*/*/*.jsonl")}
    assert set(before) == {p.relative_to(out) for p in out.glob("*/*/*.jsonl")}
    run(**arguments(new))
    unpack(tmp_path / "runs.jsonl.xz", new)
    after = {p.relative_to(new): p.stat().st_mtime_ns for p in new.glob("*/*/*.jsonl")}
    assert before == after
