"""What all functions of the moments of mixtures have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    PriorGuidedAcquisitionFunction,
)
from botorch.exceptions import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.utils.multi_objective.box_decompositions import (
    FastNondominatedPartitioning,
)
from torch import Tensor

from botorch_structured.acquisition import (
    AveragedLogExpectedHypervolumeImprovement,
    AveragedLogExpectedImprovement,
    AveragedLogProbabilityOfFeasibility,
    CostPrior,
    FeasibilityPrior,
)
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.optim.closed_form import closed_form
from botorch_structured.test_functions import JenattonTree

SPACE = JenattonTree(shared=True).space
X_KNOWN = SPACE.sample(15, seed=0)
X = SPACE.sample(12, seed=1)

Models = list[SingleTaskGP]


def outcomes() -> Tensor:
    """Three of them, in conflict with each other and on different scales."""
    shifts = torch.arange(3) * 2.0
    return (X_KNOWN.unsqueeze(-1) + shifts).sin().sum(-2) * 10.0 ** torch.arange(3)


def models(kind: type = TreeStructuredGP) -> Models:
    made = [kind(X_KNOWN, Y, SPACE) for Y in outcomes().split(1, dim=-1)]
    for model in made:
        model.likelihood.noise = 1e-2
    return made


def feasibility(some: Models) -> FeasibilityPrior:
    _, one, other = some
    return FeasibilityPrior([[one, other], [other]], [[2.0, 1.0], [1.0]], [1.0, 9.0])


def guided(some: Models, prior: torch.nn.Module) -> AcquisitionFunction:
    improvement = LogExpectedImprovement(some[0], best_f=0.5)
    return PriorGuidedAcquisitionFunction(improvement, prior, log=True)


def averaged_and_guided(some: Models) -> AcquisitionFunction:
    improvement = AveragedLogExpectedImprovement(some[:1], best_f=0.5)
    return PriorGuidedAcquisitionFunction(improvement, feasibility(some), log=True)


def hypervolume(some: Models, m: int) -> AcquisitionFunction:
    """Of ``m`` objectives, each with a mixture."""
    Y = outcomes()[:, :m]
    others = models(ConditionalGP)
    pairs = list(zip(some[:m], others[:m], strict=True))
    boxes = FastNondominatedPartitioning(Y.amin(0), Y)
    return AveragedLogExpectedHypervolumeImprovement(pairs, boxes)


MAKERS: dict[str, Callable[[Models], AcquisitionFunction]] = {
    "feasibility": lambda some: AveragedLogProbabilityOfFeasibility(feasibility(some)),
    "feasibility as prior": lambda some: guided(some, feasibility(some)),
    "feasibility as prior of a mixture": averaged_and_guided,
    "cost as prior": lambda some: guided(some, CostPrior(some[1])),
    "cost as prior, some left": lambda some: guided(some, CostPrior(some[1], 3.0)),
    "hypervolume of two": lambda some: hypervolume(some, 2),
    "hypervolume of three": lambda some: hypervolume(some, 3),
}
makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
kinds = pytest.mark.parametrize("kind", [TreeStructuredGP, ConditionalGP])


@makers
@kinds
def test_the_closed_form_is_what_autograd_gives(
    make: Callable[[Models], AcquisitionFunction], kind: type
) -> None:
    """Of a dense evaluation of the same models, the gradient too."""
    acqf = make(models(kind))
    found = closed_form(acqf).at(X, gradient=True)
    assert found is not None and found[1] is not None
    values = closed_form(acqf).at(X, gradient=False)
    assert values is not None and values[1] is None
    torch.testing.assert_close(values[0], found[0])
    for part in acqf.modules():
        if isinstance(part, SingleTaskGP):
            part._use_predictor = lambda: False
    leaf = X.clone().requires_grad_()
    value = acqf(leaf.unsqueeze(-2))
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    torch.testing.assert_close(found[0], value.detach(), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found[1], gradient, rtol=1e-7, atol=1e-9)


@makers
def test_near_rows_of_which_some_columns_change(
    make: Callable[[Models], AcquisitionFunction],
) -> None:
    """What climbs evaluate: the same values, and gradients in these columns."""
    acqf = make(models())
    active = SPACE.tree.active_mask(X) & (SPACE.bounds[1] > SPACE.bounds[0])
    active[:, SPACE.tree.decision_columns] = False
    order = active.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    columns = order[:, :1]
    evaluate = closed_form(acqf).near(X, columns.numpy())
    found = closed_form(acqf).at(X, gradient=True)
    assert evaluate is not None and found is not None and found[1] is not None
    x = X.gather(-1, columns).numpy()[:, None]
    value, slope = evaluate(x, np.arange(len(X)))
    np.testing.assert_allclose(value[:, 0], found[0].numpy(), rtol=1e-9, atol=1e-9)
    expected = found[1].gather(-1, columns).numpy()
    np.testing.assert_allclose(slope[:, 0], expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["feasibility", "hypervolume of two"])
def test_pending_points_are_refused(name: str) -> None:
    acqf = MAKERS[name](models())
    acqf.set_X_pending(None)
    with pytest.raises(UnsupportedError, match="X_pending: expected None"):
        acqf.set_X_pending(X)
