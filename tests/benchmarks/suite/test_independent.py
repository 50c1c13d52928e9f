"""Problems of independent decisions: the optimum, and that nothing is random."""

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
    best = torch.zeros(problem.tree.num_paths, problem.space.dim).to(X)
    best[:, len(problem.tree.decision_columns) :] = torch.from_numpy(problem._centre)
    for x, path in zip(best, problem.tree.paths, strict=True):
        for column, value in path.decisions.items():
            x[column] = value
    found = problem.truths(best).tolist()
    assert min(found) == pytest.approx(problem.optimal_value, abs=1e-12)
    # what is not active does not count
    active = problem.tree.active_mask(X)
    other = problem.truths(torch.where(active, X, 0.3))
    torch.testing.assert_close(other, values, rtol=0.0, atol=1e-12)
