import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import wilcoxon
from toy_benchmark import arguments as toy

from benchmarks import summary
from benchmarks.harness import run
from benchmarks.summary import Run, holm, mean_ranks, paired_test, paired_tests


def one(method: str, seed: int, *values: float, optimum: float | None = 0.0) -> Run:
    return Run("p", method, seed, np.array(values), optimum, 0, 0.5)


@pytest.fixture
def runs() -> list[Run]:
    rng = np.random.default_rng(0)
    more = {"a": (0.0, 0.0), "b": (0.1, 0.1), "c": (-0.05, 0.05)}
    levels = enumerate(rng.uniform(0.1, 1.0, 12))
    return [one(m, s, 2.0, y + more[m][s % 2]) for s, y in levels for m in more]


def test_traces_and_gaps() -> None:
    r = one("a", 0, 3.0, 1.0, 2.0, 0.1)
    assert r.trace().tolist() == [3.0, 1.0, 1.0, 0.1]
    assert r.best(3) == 1.0 and r.best() == 0.1 and math.isnan(r.best(5))
    assert r.log_gap() == pytest.approx(-1.0)
    assert one("a", 0, 0.0).log_gap() == -16.0
    with pytest.raises(ValueError, match="optimum: expected a known one"):
        one("a", 0, 1.0, optimum=None).log_gap()


def test_ranks_and_paired_tests(runs: list[Run]) -> None:
    ranks = mean_ranks(runs)
    assert list(ranks) == ["a", "c", "b"] and ranks["b"] == 3.0
    assert ranks["a"] == 1.5
    assert mean_ranks(runs, at=1) == {"a": 2.0, "b": 2.0, "c": 2.0}
    p, pairs = paired_test(runs, "a", "b")
    assert pairs == 12
    assert p == wilcoxon(np.full(12, -0.1), alternative="less").pvalue < 1e-3
    assert paired_test(runs, "b", "a")[0] > 0.99
    assert paired_test(runs, "a", "b", at=1) == (1.0, 12)
    assert paired_test(runs, "a", "absent") == (1.0, 0)
    # seeds that only one of the two has do not count
    assert paired_test([*runs, one("a", 99, 0.0)], "a", "b") == (p, 12)
    header, rows = paired_tests(runs, "a")
    assert header[0] == "a better than" and [row[0] for row in rows] == ["b", "c"]
    assert float(rows[0][3]) == pytest.approx(2 * p, rel=0.05)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(**toy(tmp_path / "out"), processes=0)
    picture = tmp_path / "traces.png"
    arguments = ["--at", "5", "12", "--reference", "walk", "--plot", str(picture)]
    summary.main([str(tmp_path / "out"), *arguments])
    shown = capsys.readouterr().out
    for text in ("After 5", "| toy     | walk   | 2", "mean rank", "p (Holm)"):
        assert text in shown
    assert picture.stat().st_size > 1000
    with pytest.raises(SystemExit):
        summary.main([str(tmp_path / "nothing")])
