import numpy as np
import pytest

from benchmarks.suite.ranks import (
    compare,
    mean_ranks,
    scaled_regrets,
)
from benchmarks.summary import Run


def one(
    problem: str,
    method: str,
    seed: int,
    *values: float,
    truths: tuple[float, ...] | None = None,
    optimum: float | None = 0.0,
    middle: float | None = 1.0,
    errors: int = 0,
) -> Run:
    given = np.array(values), optimum, errors, 0.5
    return Run(problem, method, seed, *given, truths and np.array(truths), middle)


@pytest.fixture
def runs() -> list[Run]:
    """On 10 problems ``a`` is best, ``b`` next by little, ``c`` the worst."""
    return [
        one(f"{'x' if k < 7 else 'y'}-{k}", method, seed, 2.0, value)
        for k in range(10)
        for seed in range(2)
        for method, value in {
            "a": 0.1 + 0.01 * k,
            "b": 0.15 + 0.011 * k,
            "c": 0.9 + 0.001 * k,
        }.items()
    ]


def test_the_regret_is_that_of_the_best_observed_point() -> None:
    run = one("p", "a", 0, 5.0, 3.0, 4.0, 1.0, truths=(2.0, 6.0, 2.0, 4.0))
    trace = scaled_regrets([run])["p"]["a"][0]
    assert trace.tolist() == [2.0, 6.0, 6.0, 4.0]
    scaled = one("p", "a", 0, 5.0, 3.0, 3.0, 1.0, optimum=1.0, middle=5.0)
    assert scaled_regrets([scaled])["p"]["a"][0].tolist() == [1.0, 0.5, 0.5, 0.0]


def test_ranks(runs: list[Run]) -> None:
    traces = scaled_regrets(runs)
    assert mean_ranks(traces, ["a", "b", "c"], 2) == ({"a": 1, "b": 2, "c": 3}, 10)
    # at the start all are alike
    assert mean_ranks(traces, ["a", "b", "c"], 1) == ({"a": 2, "b": 2, "c": 2}, 10)
    ranks, count = mean_ranks(traces, ["a", "absent"], 2)
    assert count == 0 and np.isnan(ranks["a"])
    # the problem is the unit: more seeds of one problem do not count more
    values = {"a": 1, "b": 0}.items()
    more = [one("x-0", m, s, 2.0, v) for s in range(2, 9) for m, v in values]
    ranks, _ = mean_ranks(scaled_regrets([*runs, *more]), ["a", "b"], 2)
    assert ranks == {"a": 1.1, "b": 1.9}
    ours = compare(traces, "a", "b", 2)
    assert (ours.better, ours.wins, ours.losses) == (True, 10, 0)
    # equal up to rounding is a tie
    traces = scaled_regrets([one("p", "a", 0, 0.1 + 0.2), one("p", "b", 0, 0.3)])
    assert mean_ranks(traces, ["a", "b"], 1)[0] == {"a": 1.5, "b": 1.5}
    assert compare(traces, "a", "b", 1).p == 1.0
