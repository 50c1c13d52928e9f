from pathlib import Path

import numpy as np
import pytest
from scipy.stats import wilcoxon
from toy_benchmark import arguments

from benchmarks import packed, summary
from benchmarks.harness import run
from benchmarks.suite.ranks import compare, mean_ranks, scaled_regrets
from benchmarks.summary import Run, load, paired_test, paired_tests


def one(
    method: str,
    seed: int,
    *values: float,
    problem: str = "p",
    truths: tuple[float, ...] | None = None,
    optimum: float = 0.0,
    middle: float = 1.0,
) -> Run:
    given = np.array(values), optimum, 0, 0.5
    return Run(problem, method, seed, *given, truths and np.array(truths), middle)


def test_ranks_and_paired_tests() -> None:
    more = {"a": (0.0, 0.0), "b": (0.1, 0.1), "c": (-0.05, 0.05)}
    levels = enumerate(np.random.default_rng(0).uniform(0.1, 1.0, 12))
    runs = [one(m, s, 2.0, y + more[m][s % 2]) for s, y in levels for m in more]
    ranks = summary.mean_ranks(runs)
    assert list(ranks) == ["a", "c", "b"] and ranks["b"] == 3.0 and ranks["a"] == 1.5
    assert summary.mean_ranks(runs, at=1) == {"a": 2.0, "b": 2.0, "c": 2.0}
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


def test_the_regret_is_that_of_the_best_observed_point() -> None:
    run = one("a", 0, 5.0, 3.0, 4.0, 1.0, truths=(2.0, 6.0, 2.0, 4.0))
    scaled = one("a", 0, 5.0, 3.0, 3.0, 1.0, optimum=1.0, middle=5.0)
    for given, expected in (
        (run, [2.0, 6.0, 6.0, 4.0]),
        (scaled, [1.0, 0.5, 0.5, 0.0]),
    ):
        assert scaled_regrets([given])["p"]["a"][0].tolist() == expected


def test_ranks() -> None:
    """On 10 problems ``a`` is best, ``b`` next by little, ``c`` the worst."""
    values = {"a": (0.1, 0.01), "b": (0.15, 0.011), "c": (0.9, 0.001)}
    runs = [
        one(method, seed, 2.0, first + step * k, problem=f"x-{k}")
        for k in range(10)
        for seed in range(2)
        for method, (first, step) in values.items()
    ]
    traces = scaled_regrets(runs)
    assert mean_ranks(traces, ["a", "b", "c"], 2) == ({"a": 1, "b": 2, "c": 3}, 10)
    # at the start all are alike
    assert mean_ranks(traces, ["a", "b", "c"], 1) == ({"a": 2, "b": 2, "c": 2}, 10)
    ranks, count = mean_ranks(traces, ["a", "absent"], 2)
    assert count == 0 and np.isnan(ranks["a"])
    # the problem is the unit: more seeds of one problem do not count more
    seeds = range(2, 9)
    more = [one("a", s, 2.0, 1.0, problem="x-0") for s in seeds]
    more += [one("b", s, 2.0, 0.0, problem="x-0") for s in seeds]
    ranks, _ = mean_ranks(scaled_regrets([*runs, *more]), ["a", "b"], 2)
    assert ranks == {"a": 1.1, "b": 1.9}
    ours = compare(traces, "a", "b", 2)
    assert (ours.better, ours.wins, ours.losses) == (True, 10, 0)
    # equal up to rounding is a tie
    traces = scaled_regrets([one("a", 0, 0.1 + 0.2), one("b", 0, 0.3)])
    assert mean_ranks(traces, ["a", "b"], 1)[0] == {"a": 1.5, "b": 1.5}
    assert compare(traces, "a", "b", 1).p == 1.0
