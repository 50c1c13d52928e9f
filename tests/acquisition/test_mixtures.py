"""What functions of the moments of mixtures share; for values see test_closed_form."""

from __future__ import annotations

import pytest
import torch
from botorch.exceptions import UnsupportedError
from botorch.utils.multi_objective.box_decompositions import (
    FastNondominatedPartitioning,
)

from botorch_structured.acquisition import (
    AveragedLogExpectedHypervolumeImprovement,
    AveragedLogProbabilityOfFeasibility,
    FeasibilityPrior,
)
from botorch_structured.acquisition.mixtures import MixtureAcquisition
from botorch_structured.models import TreeStructuredGP
from botorch_structured.test_functions import JenattonTree

SPACE = JenattonTree(shared=True).space


@pytest.mark.parametrize("several", [True, False])
def test_pending_points_are_refused(several: bool) -> None:
    X = SPACE.sample(8, seed=0)
    Y = torch.stack([X.sin().sum(-1), X.cos().sum(-1)], dim=-1)
    models = [[TreeStructuredGP(X, y, SPACE)] for y in Y.split(1, dim=-1)]
    boxes = FastNondominatedPartitioning(Y.amin(0), Y)
    acqf: MixtureAcquisition
    acqf = AveragedLogProbabilityOfFeasibility(FeasibilityPrior(models))
    if several:
        acqf = AveragedLogExpectedHypervolumeImprovement(models, boxes)
    acqf.set_X_pending(None)
    with pytest.raises(UnsupportedError, match="X_pending: expected None"):
        acqf.set_X_pending(X)
