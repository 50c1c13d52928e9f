import pytest

pytest.importorskip("ax")
from ax.api.client import Client

from benchmarks.reach import ax_problems
from botorch_structured.spaces import SearchSpace


@pytest.mark.parametrize("name", ax_problems.PROBLEMS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_optimum_is_one(name: str, seed: int) -> None:
    problem = ax_problems.PROBLEMS[name](seed)
    client = Client()
    client.configure_experiment(problem.parameters)
    space = SearchSpace.from_ax(client._experiment.search_space)
    (best,) = space.decode(space.encode([problem.best]))
    assert problem.evaluate(**best) == pytest.approx(problem.optimum, abs=1e-9)
    others = [problem.evaluate(**c) for c in space.decode(space.sample(200, seed=seed))]
    assert min(others) > problem.optimum
