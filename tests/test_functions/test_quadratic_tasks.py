from __future__ import annotations

import copy
import pickle

import pytest
import torch
from botorch.test_functions.synthetic import SyntheticTestFunction
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_structured.test_functions import (
    QuadraticTask,
    QuadraticTasks,
    TaskHistory,
)

parameters = st.floats(0.1, 10.0)


@given(a=parameters, b=parameters, c=parameters)
@settings(deadline=None, max_examples=25)
def test_a_task_is_its_definition(a: float, b: float, c: float) -> None:
    problem = QuadraticTask((a, b, c))
    assert isinstance(problem, SyntheticTestFunction)
    X = problem.space.sample(50, seed=0)
    expected = [a / 2 * sum(v * v for v in x) + b * sum(x) + c for x in X.tolist()]
    torch.testing.assert_close(problem(X), torch.tensor(expected).double())
    # the optimum and the range, on a grid of one coordinate: they are alike
    grid = torch.linspace(-1, 1, 4001, dtype=torch.double)
    values = problem(grid.unsqueeze(-1).expand(-1, 3))
    assert problem(problem.optimizers).item() == pytest.approx(problem.optimal_value)
    assert values.min() >= problem.optimal_value - 1e-12
    assert float(values.min()) == pytest.approx(problem.optimal_value, abs=1e-5)
    assert problem.value_range == pytest.approx(
        float(values.max()) - problem.optimal_value, abs=1e-9
    )
    assert (problem(X) - problem.optimal_value <= problem.value_range).all()


@pytest.mark.parametrize("negate", [False, True])
def test_the_column_of_tasks(negate: bool) -> None:
    tasks = QuadraticTasks(num_tasks=7, seed=3, negate=negate)
    assert tasks.contexts.shape == (7, 3)
    assert tasks.contexts.min() >= 0.1 and tasks.contexts.max() <= 10
    X = tasks.space.sample(200, seed=1)
    assert X[:, -1].unique().tolist() == list(range(7))
    for x in X:
        alone = QuadraticTask(tasks.contexts[int(x[-1])].tolist(), negate=negate)
        assert tasks(x) == pytest.approx(alone(x[:-1]).item(), rel=1e-14)
    best = [QuadraticTask(c, negate=negate).optimal_value for c in tasks.contexts]
    assert tasks.optimal_value == (max(best) if negate else min(best))
    assert tasks(tasks.optimizers).item() == pytest.approx(tasks.optimal_value)
    assert torch.equal(QuadraticTasks(4, seed=3).contexts, tasks.contexts[:4])
    assert not torch.equal(QuadraticTasks(7, seed=4).contexts, tasks.contexts)


@pytest.mark.parametrize("negate", [False, True])
def test_one_task_is_left_out(negate: bool) -> None:
    tasks = QuadraticTasks(num_tasks=5, negate=negate)
    state = torch.get_rng_state()
    problem = tasks.leave_out(2, num_observations=4, seed=1)
    history = problem.history
    assert problem.context == tuple(tasks.contexts[2].tolist())
    assert history.task == 2 and history.num_tasks == 5
    assert history.X.shape == (16, 4) and history.Y.shape == (16, 1)
    assert history.X[:, -1].unique().tolist() == [0, 1, 3, 4]
    assert torch.equal(history.Y.squeeze(-1), tasks(history.X))
    other = tasks.leave_out(0, num_observations=4, seed=1).history
    assert torch.equal(history.X[history.X[:, -1] == 3], other.X[other.X[:, -1] == 3])
    noisy = QuadraticTasks(num_tasks=5, noise_std=0.1).leave_out(2, 2000, seed=1)
    plain = QuadraticTasks(num_tasks=5).leave_out(2, 2000, seed=1)
    noise = noisy.history.Y - plain.history.Y
    assert noise.std() == pytest.approx(0.1, rel=0.05)
    assert torch.equal(noisy.history.X, plain.history.X)
    assert torch.equal(state, torch.get_rng_state())
    X = problem.starts(0)
    assert X.shape == (2, 3) and not torch.equal(X, problem.starts(1))
    assert problem.starts(0, 6).shape == (6, 3)
    for same in (pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):
        assert torch.equal(same(X), problem(X))
        assert torch.equal(same.history.X, history.X)
    assert len(tasks.leave_out(2, num_observations=0).history.X) == 0


def test_rows_are_joined() -> None:
    problem = QuadraticTasks(num_tasks=3).leave_out(1, num_observations=2)
    history = problem.history
    X = problem.starts(0)
    Y = problem(X).unsqueeze(-1)
    joined, values = history.join(X, Y)
    assert joined[:, -1].tolist() == [0, 0, 2, 2, 1, 1]
    assert torch.equal(joined[4:, :-1], X) and torch.equal(values[4:], Y)
    with_context, again = history.join(X, Y, context=True)
    assert torch.equal(values, again)
    assert torch.equal(with_context[:, [0, 1, 2, 6]], joined)
    for row in with_context:
        assert torch.equal(row[3:6], history.contexts[int(row[-1])])
    assert history.join(X[:0], Y[:0])[0].shape == (4, 4)
    bare = TaskHistory(history.X, history.Y, task=1, num_tasks=3)
    with pytest.raises(ValueError, match="contexts: expected those of all tasks"):
        bare.join(X, Y, context=True)
    with pytest.raises(ValueError, match="`n x 3`"):
        history.join(X[:, :2], Y)
    with pytest.raises(ValueError, match="`n x 1`"):
        history.join(X, Y.squeeze(-1))


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ValueError, match="at least 2, got 1"):
        QuadraticTasks(1)
    with pytest.raises(ValueError, match="seed: expected an integer .*got 1.5"):
        QuadraticTasks(seed=1.5)
    with pytest.raises(ValueError, match="noise_std: .*got -1"):
        QuadraticTasks(noise_std=-1)
    with pytest.raises(ValueError, match="0 to 29, got 30"):
        QuadraticTasks().leave_out(30)
    with pytest.raises(ValueError, match="num_observations: expected an integer .*-1"):
        QuadraticTasks().leave_out(0, num_observations=-1)
    for wrong in ((1.0, 2.0), (0.0, 1.0, 1.0), (1.0, 1.0, 11.0)):
        with pytest.raises(ValueError, match="context: expected"):
            QuadraticTask(wrong)
