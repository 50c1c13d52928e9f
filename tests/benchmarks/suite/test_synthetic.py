import pytest
import torch

from benchmarks.suite.synthetic import SyntheticProblem, draw

SOME = [0, 4, 12, 18, 38]  # rough, smooth, bowls; chains, trees; one to eight


def fresh(number: int) -> SyntheticProblem:
    draw.cache_clear()
    return draw(number)


def test_a_number_gives_one_problem() -> None:
    first, second = fresh(4), fresh(4)
    assert first is not second and first.properties == second.properties
    assert first.space.names == second.space.names
    X = first.space.sample(50, seed=0)
    assert first.truths(X).equal(second.truths(X))
    assert first.optimizer.equal(second.optimizer)
    assert draw(3).space.names != first.space.names


@pytest.mark.parametrize("number", SOME)
def test_a_problem_is_what_it_says(number: int) -> None:
    problem = draw(number)
    space, p = problem.space, problem.properties
    X = space.sample(5_000, seed=1)
    values = problem.truths(X)
    assert values.isfinite().all()
    assert space.tree.num_paths == p["paths"] and space.dim == p["columns"]
    # inactive columns do not count
    low = torch.where(space.tree.active_mask(X), X, space.bounds[0])
    assert problem.truths(low).equal(values)
    # nothing random is below the optimum, which is a point of the space
    assert space.feasible(problem.optimizer.unsqueeze(0)).all()
    room = problem.middle_value - problem.optimal_value
    assert problem.optimal_value == problem.truth(problem.optimizer)
    assert values.min() > problem.optimal_value - 1e-6 * room
    # half of the random points are below the middle, and it is well above the optimum
    share = (values <= problem.middle_value).double().mean()
    assert 0.4 < share < 0.99 and room > 0.1 * problem.spread
    assert problem.noise_std == pytest.approx(p["noise"] * problem.spread)


def test_every_active_column_counts() -> None:
    """The value depends on each column, decisions included, and on nothing else."""
    problem = draw(6)
    X = problem.space.sample(400, seed=2)
    Z = problem.space.sample(400, seed=3)
    active = problem.space.tree.active_mask(X)
    values = problem.truths(X)
    for c in range(problem.space.dim):
        if c in problem.space.tree.decision_columns or not active[:, c].any():
            continue
        moved = X.clone()
        moved[:, c] = Z[:, c]
        changed = problem.truths(moved) != values
        assert not changed[~active[:, c]].any()
        assert changed[active[:, c] & (X[:, c] != Z[:, c])].any()
