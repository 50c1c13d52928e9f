from pathlib import Path

import numpy as np
from toy_benchmark import arguments

from benchmarks.harness import run
from benchmarks.packed import main, pack, unpack
from benchmarks.summary import load


def test_a_file_says_what_the_folder_says(tmp_path: Path) -> None:
    out, new, file = (tmp_path / name for name in ("out", "new", "runs.jsonl.xz"))
    run(**arguments(out), processes=0)
    main([str(out), str(file)])
    for one, other in zip(load(out), load(file), strict=True):
        for name in ("problem", "method", "seed", "optimum", "errors"):
            assert getattr(one, name) == getattr(other, name)
        assert np.array_equal(one.values, other.values)
    pack(out, tmp_path / "again.jsonl.xz")
    assert file.read_bytes() == (tmp_path / "again.jsonl.xz").read_bytes()

    def times() -> dict[Path, int]:
        files = new.glob("*/*/*.jsonl")
        return {path.relative_to(new): path.stat().st_mtime_ns for path in files}

    unpack(file, new)
    before = times()
    assert set(before) == {p.relative_to(out) for p in out.glob("*/*/*.jsonl")}
    run(**arguments(new), processes=0)  # the harness has nothing left to do
    unpack(file, new)
    assert before == times()
