from pathlib import Path

import numpy as np
import pytest
from scipy.stats import wilcoxon
from toy_benchmark import arguments

from benchmarks import packed, summary
from benchmarks.harness import run
from benchmarks.summary import (
    Run,
    load,
    mean_ranks,
    paired_test,
    paired_tests,
)


def one(method: str, seed: int, *values: float, problem: str = "p") -> Run:
    return Run(problem, method, seed, np.array(values), 0.0, 0, 0.5)


def test_ranks_and_paired_tests() -> None:
    more = {"a": (0.0, 0.0), "b": (0.1, 0.1), "c": (-0.05, 0.05)}
    levels = enumerate(np.random.default_rng(0).uniform(0.1, 1.0, 12))
    runs = [one(m, s, 2.0, y + more[m][s % 2]) for s, y in levels for m in more]
    ranks = mean_ranks(runs)
    assert list(ranks) == ["a", "c", "b"] and ranks["b"] == 3.0 and ranks["a"] == 1.5
    assert mean_ranks(runs, at=1) == {"a": 2.0, "b": 2.0, "c": 2.0}
    p, pairs = paired_test(runs, "a", "b")
    assert pairs == 12
    assert p == wilcoxon(np.full(12, -0.1), alternative="less").pvalue < 1e-3
    assert paired_test(runs, "a", "b", at=1) == (1.0, 12)
    # seeds that only one of the two has do not count
    assert paired_test([*runs, one("a", 99, 0.0)], "a", "b") == (p, 12)
    header, rows = paired_tests(runs, "a")
    assert header[0] == "a better than" and [row[0] for row in rows] == ["b", "c"]
    assert float(rows[0][3]) == pytest.approx(2 * p, rel=0.05)


def test_a_file_says_what_the_folder_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, new, file = (tmp_path / name for name in ("out", "new", "runs.jsonl.xz"))
    run(**arguments(out), processes=0)
    packed.main([str(out), str(file)])
    capsys.readouterr()
    shown = []
    for source in (out, file):
        summary.main([str(source), "--at", "5", "12", "--reference", "walk"])
        shown.append(capsys.readouterr().out)
    for text in ("After 5", "| toy     | walk   | 2", "mean rank", "p (Holm)"):
        assert text in shown[0]
    assert shown[0] == shown[1]
    packed.unpack(file, new)
    run(**arguments(new), processes=0)  # the harness has nothing left to do
    assert len(load(new)) == 8
    with pytest.raises(SystemExit):
        summary.main([str(tmp_path / "nothing")])
