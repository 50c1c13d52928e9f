import json
from pathlib import Path

import pytest

pytest.importorskip("ax")
from ax.api.client import Client

from benchmarks.reach import ax_problems
from benchmarks.summary import load
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


@pytest.mark.parametrize("method", ax_problems.METHODS)
def test_a_run_that_was_stopped_is_begun_again(tmp_path: Path, method: str) -> None:
    path = tmp_path / "drawn" / method / "7.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"step": 0, "value": 9.0}) + "\n")
    for _ in range(2):
        ax_problems.run("drawn", method, 7, tmp_path, budget=5)
    (one,) = load(tmp_path)
    assert one.optimum == 0.1 and len(one.values) == 5 and 9.0 not in one.values
