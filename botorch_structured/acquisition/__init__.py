"""Acquisition functions of conditional spaces.

* ``AveragedLogExpectedImprovement``: of several models of one outcome.
* ``AveragedLogExpectedHypervolumeImprovement``: of several objectives.
* ``FeasibilityPrior``: any of them where constraints have to hold;
  ``AveragedLogProbabilityOfFeasibility`` while no point is known at which they do.
* ``InteriorPrior``: a weak prior for the inside of the box.
* ``PathExpectedImprovement``, ``PathLogExpectedImprovement``: of the paths of a
  tree-structured model (Jenatton et al. 2017, equation (6)).
* ``ContextLogExpectedImprovement``, ``PathContextLogExpectedImprovement``: at a target
  context, per expected cost (the same, section 5); ``best_at_context`` is their
  incumbent.
* ``CostPrior``: any of them per expected cost, within the budget that is left.
"""

from __future__ import annotations

__all__ = [
    "AveragedLogExpectedHypervolumeImprovement",
    "AveragedLogExpectedImprovement",
    "AveragedLogProbabilityOfFeasibility",
    "ContextLogExpectedImprovement",
    "CostPrior",
    "FeasibilityPrior",
    "InteriorPrior",
    "PathContextLogExpectedImprovement",
    "PathExpectedImprovement",
    "PathLogExpectedImprovement",
    "best_at_context",
]

from botorch_structured.acquisition.improvement import (
    ContextLogExpectedImprovement,
    PathContextLogExpectedImprovement,
    PathExpectedImprovement,
    PathLogExpectedImprovement,
    best_at_context,
)
from botorch_structured.acquisition.mixtures import (
    AveragedLogExpectedHypervolumeImprovement,
    AveragedLogExpectedImprovement,
    AveragedLogProbabilityOfFeasibility,
    CostPrior,
    FeasibilityPrior,
    InteriorPrior,
)
