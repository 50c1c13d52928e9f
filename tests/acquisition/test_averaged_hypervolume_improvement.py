from __future__ import annotations

import itertools

import pytest
import torch
from botorch.acquisition.multi_objective.analytic import ExpectedHypervolumeImprovement
from botorch.models import ModelListGP, SingleTaskGP
from botorch.utils.multi_objective.box_decompositions import (
    FastNondominatedPartitioning,
    NondominatedPartitioning,
)
from torch import Tensor

from botorch_structured.acquisition import AveragedLogExpectedHypervolumeImprovement
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.optim.closed_form import closed_form
from botorch_structured.test_functions import JenattonTree

SPACE = JenattonTree(shared=True).space


def problem(m: int, kind: type = TreeStructuredGP) -> tuple[list[SingleTaskGP], Tensor]:
    """``m`` objectives in conflict, and a model of each."""
    X = SPACE.sample(15, seed=0)
    angles = torch.arange(m) * 2.0
    Y = (X.unsqueeze(-1) + angles).sin().sum(-2)
    models = [kind(X, y, SPACE) for y in Y.split(1, dim=-1)]
    for model in models:
        model.likelihood.noise = 1e-2
    return models, Y


def points(n: int = 12) -> Tensor:
    return SPACE.sample(n, seed=1)


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("quantile", [0.2, 0.7])
def test_is_botorchs_with_one_model_of_each(m: int, quantile: float) -> None:
    models, Y = problem(m)
    ref = Y.quantile(quantile, dim=0)
    acqf = AveragedLogExpectedHypervolumeImprovement(
        [[model] for model in models], FastNondominatedPartitioning(ref, Y)
    )
    expected = ExpectedHypervolumeImprovement(
        ModelListGP(*models), ref.tolist(), NondominatedPartitioning(ref, Y)
    )
    X = points().unsqueeze(-2)
    torch.testing.assert_close(acqf(X).exp(), expected(X), rtol=1e-8, atol=1e-12)


def test_mixtures_are_exact() -> None:
    """The mean over all ways to draw a model for each objective."""
    models, Y = problem(2)
    others, _ = problem(2, ConditionalGP)
    boxes = FastNondominatedPartitioning(Y.amin(0), Y)
    shares = torch.tensor([[0.25, 0.75], [0.6, 0.4]], dtype=torch.double)
    pairs = list(zip(models, others, strict=True))
    X = points().unsqueeze(-2)
    found = AveragedLogExpectedHypervolumeImprovement(pairs, boxes, shares)(X).exp()
    expected = torch.zeros_like(found)
    for i, j in itertools.product(range(2), repeat=2):
        drawn = [[pairs[0][i]], [pairs[1][j]]]
        value = AveragedLogExpectedHypervolumeImprovement(drawn, boxes)(X).exp()
        expected = expected + shares[0, i] * shares[1, j] * value
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)


def test_far_from_the_front_values_and_gradients_stay_finite() -> None:
    """BoTorch's own is 0 there, with a gradient of 0; and nothing is known yet."""
    models, Y = problem(2)
    X = points()
    for front in (Y + 1e3, Y[:0]):
        ref = Y.amax(0) + 1e3 - 1.0
        boxes = FastNondominatedPartitioning(ref, front)
        acqf = AveragedLogExpectedHypervolumeImprovement([[m] for m in models], boxes)
        found = closed_form(acqf).at(X, gradient=True)
        assert found is not None and found[1] is not None
        assert found[0].isfinite().all() and found[1].isfinite().all()
        assert (found[1].abs().amax(-1) > 0.0).all()


def test_units_shift_the_logarithm() -> None:
    models, Y = problem(2)
    X = points().unsqueeze(-2)
    values = []
    for unit in (1.0, 1e-9):
        scaled = [
            TreeStructuredGP(points(15), unit * y + 3.0 * unit, SPACE)
            for y in Y.split(1, dim=-1)
        ]
        boxes = FastNondominatedPartitioning((Y.amin(0) + 3.0) * unit, unit * (Y + 3.0))
        acqf = AveragedLogExpectedHypervolumeImprovement([[m] for m in scaled], boxes)
        values.append(acqf(X))
    shift = torch.full_like(values[0], 2.0 * torch.tensor(1e-9).double().log())
    torch.testing.assert_close(values[1] - values[0], shift, rtol=1e-6, atol=1e-6)


def test_refuses() -> None:
    models, Y = problem(2)
    boxes = FastNondominatedPartitioning(Y.amin(0), Y)
    with pytest.raises(ValueError, match="partitioning: expected one of 1 outcomes"):
        AveragedLogExpectedHypervolumeImprovement([models], boxes)
