"""Models and acquisition functions of one's own in a study."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.acquisition import AcquisitionFunction, qLogNoisyExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from torch import Tensor

from botorch_structured import Study
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.spaces import SearchSpace
from botorch_structured.suggest import fit_models
from botorch_structured.test_functions import JenattonTree

PROBLEM = JenattonTree(off_centre=True)
SPACE = PROBLEM.space


def conditional(space: SearchSpace, X: Tensor, Y: Tensor) -> Model:
    assert Y.isfinite().all()
    return fit_models(space, X, Y)[1]


def noisy_improvement(
    model: Model, X: Tensor, Y: Tensor, X_pending: Tensor | None
) -> AcquisitionFunction:
    assert len(X) == len(Y)
    return qLogNoisyExpectedImprovement(model, X, X_pending=X_pending)


def run(study: Study, n: int) -> list[dict[str, Any]]:
    while len(study.trials) < n:
        for config in study.ask(2):
            failed = len(study.trials) == 5
            value = float(PROBLEM(SPACE.encode(config)))
            study.tell(config, None if failed else value)
    return [t.config for t in study.trials]


@pytest.mark.parametrize(
    ("functions", "kind"),
    [
        ({"model": conditional}, ConditionalGP),
        ({"acquisition": noisy_improvement}, TreeStructuredGP),
        ({"model": conditional, "acquisition": noisy_improvement}, ConditionalGP),
    ],
)
def test_each_replaces_the_default(functions: dict[str, Any], kind: type) -> None:
    study = Study(SPACE, seed=0, **functions)
    found = run(study, 8)
    assert isinstance(study.model, kind) and len(study.models) == 1
    assert len(SPACE.encode(found).unique(dim=0)) == 8
    assert found == run(Study(SPACE, seed=0, **functions), 8)
    assert found[:2] == run(Study(SPACE, seed=0), 2) != found[2:4]


def test_a_function_sees_all_outcomes() -> None:
    seen = []

    def model(space: SearchSpace, X: Tensor, Y: Tensor) -> Model:
        seen.append(Y)
        return SingleTaskGP(X, Y)

    def first_only(
        model: Model, X: Tensor, Y: Tensor, X_pending: Tensor | None
    ) -> AcquisitionFunction:
        from botorch.acquisition import PosteriorMean
        from botorch.acquisition.objective import ScalarizedPosteriorTransform

        weights = torch.tensor([1.0, 0.0, 0.0], dtype=torch.double)
        return PosteriorMean(model, ScalarizedPosteriorTransform(weights))

    study = Study(
        SPACE,
        {"a": "minimize", "b": "maximize"},
        ["c <= 2"],
        seed=0,
        model=model,
        acquisition=first_only,
    )
    for config in study.ask(4):
        study.tell(config, {"a": 1.0 + len(study.trials), "b": 3.0, "c": 5.0})
    study.ask()
    assert seen[0][0].tolist() == [-1.0, 3.0, 3.0]
    with pytest.raises(ValueError, match="both or none .*got only model"):
        Study(SPACE, constraints=["c <= 2"], model=model)
    with pytest.raises(ValueError, match="both or none .*got only acquisition"):
        Study(SPACE, {"a": "minimize", "b": "maximize"}, acquisition=first_only)


def test_functions_that_return_something_else() -> None:
    for arguments, message in (
        ({"model": lambda *_: None}, "model: expected a function that returns a model"),
        ({"acquisition": lambda *_: 1.0}, "acquisition: .* returned a float"),
    ):
        study = Study(SPACE, seed=0, **arguments)
        for config in study.ask(4):
            study.tell(config, 1.0 + len(study.trials))
        with pytest.raises(ValueError, match=message):
            study.ask()
        assert not study.pending
    model: Any = "TreeStructuredGP"
    with pytest.raises(ValueError, match="model: expected a function, got 'Tree"):
        Study(SPACE, model=model)
    with pytest.raises(ValueError, match="costs: expected .* and False with a model"):
        Study(SPACE, model=conditional, costs=True)
