"""Suggestions on spaces that users have never leave the closed forms."""

from typing import Any

import ConfigSpace as CS
import pytest

from benchmarks.speed import space_rows
from benchmarks.suite.synthetic import DEVELOP
from botorch_structured.models.tree.leaf_model import LeafModel
from botorch_structured.optim.climb import Evaluator
from botorch_structured.spaces import SearchSpace
from botorch_structured.suggest import suggest


def intervals() -> SearchSpace:
    """A decision by intervals, as in trees that Optuna's trials teach."""
    space = CS.ConfigurationSpace()
    space.add(layers := CS.Integer("layers", (1, 3)), CS.Float("lr", (0.0, 1.0)))
    space.add(width := CS.Integer("width", (4, 128), log=True))
    space.add(CS.GreaterThanCondition(width, layers, 1))
    return SearchSpace.from_configspace(space)


SPACES: dict[str, Any] = {
    "network": space_rows.network,
    "boosters": space_rows.boosters,
    "learners": lambda: space_rows.learners(8),
    "pipeline": space_rows.pipeline,
    "flat": lambda: space_rows.flat(6),
    "intervals": intervals,
    **{
        name: lambda name=name: DEVELOP[name](0).space for name in list(DEVELOP)[:40:16]
    },
}


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("name", SPACES)
def test_no_autograd(name: str, constrained: bool, monkeypatch: Any) -> None:
    def by_autograd(self: Evaluator, X: Any, gradient: bool) -> Any:
        raise AssertionError("search: expected a closed form of the criterion.")

    def objective(self: LeafModel, mll: Any, of: Any = LeafModel.fit_objective) -> Any:
        found = of(self, mll)
        assert found is not None, f"fit: expected a closed form of {type(self)}."
        return found

    monkeypatch.setattr(Evaluator, "_by_autograd", by_autograd)
    monkeypatch.setattr(LeafModel, "fit_objective", objective)
    space = SPACES[name]()
    X = space.sample(12, seed=0)
    C = X[:, :1] - X[:, :1].median() if constrained else None
    found = suggest(space, X, X.sin().sum(-1, keepdim=True), train_C=C, seed=0)
    assert space.feasible(found.X).all()
