"""Acquisition functions of conditional spaces.

* ``AveragedLogExpectedImprovement``: of several models of one outcome.
* ``InteriorPrior``: a weak prior for the inside of the box.
* ``PathExpectedImprovement``, ``PathLogExpectedImprovement``: of the paths of a
  tree-structured model (Jenatton et al. 2017, equation (6)).
* ``ContextLogExpectedImprovement``, ``PathContextLogExpectedImprovement``: at a target
  context, per expected cost (the same, section 5); ``best_at_context`` is their
  incumbent.
* ``CostPrior``: any of them per expected cost, where what is left pays for it.
"""

from __future__ import annotations

__all__ = [
    "AveragedLogExpectedImprovement",
    "ContextLogExpectedImprovement",
    "CostPrior",
    "InteriorPrior",
    "PathContextLogExpectedImprovement",
    "PathExpectedImprovement",
    "PathLogExpectedImprovement",
    "best_at_context",
]

from botorch_structured.acquisition.averaged_expected_improvement import (
    AveragedLogExpectedImprovement,
)
from botorch_structured.acquisition.context_cost import (
    ContextLogExpectedImprovement,
    PathContextLogExpectedImprovement,
    best_at_context,
)
from botorch_structured.acquisition.cost_prior import CostPrior
from botorch_structured.acquisition.interior_prior import InteriorPrior
from botorch_structured.acquisition.path_expected_improvement import (
    PathExpectedImprovement,
    PathLogExpectedImprovement,
)
