"""Problems of independent decisions: the optimum, and that nothing is random."""

from __future__ import annotations

import pytest
import torch

from benchmarks.suite.independent import DEVELOP, REPORT


@pytest.mark.parametrize("number", [0, 5, 1007])
def test_the_optimum_is_the_least_value(number: int) -> None:
    factory = {**DEVELOP, **REPORT}[f"independent-{number}"]
    problem, again = factory(0), factory(1)
    X = problem.space.sample(3000, seed=2)
    values = problem.truths(X)
    assert torch.equal(values, again.truths(X))
    assert 12 <= problem.tree.num_paths <= 200
    assert problem.optimal_value < values.min() < problem.middle_value
    # at the columns' centres of the best path it is attained
    best = X[values.argmin()].clone()
    k = len(problem.tree.decision_columns)
    found = []
    for path in problem.tree.paths:
        for column, value in path.decisions.items():
            best[column] = value
        best[k:] = torch.from_numpy(problem._centre)
        found.append(problem.truth(best))
    assert min(found) == pytest.approx(problem.optimal_value, abs=1e-12)
    # what is not active does not count
    active = problem.tree.active_mask(X)
    assert torch.equal(problem.truths(torch.where(active, X, 0.3)), values)
