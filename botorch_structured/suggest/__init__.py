r"""The next points to evaluate: the recommended models, criterion and search in one.

``suggest`` is what this package recommends for a search in a conditional space when
nothing more is known, and what its own loops use. It is nothing but

1. two models of the same data, fitted: ``TreeStructuredGP``, which shares what it
   learns between branches, and ``ConditionalGP``, which shares hyperparameters only;
   both see bad outcomes at logarithmic distances (``ClipTail(tail="log")``), so that
   one very bad evaluation says less against a branch;
2. their weights, by how well each predicts every observation from the others
   (``leave_one_out_weights``): few data leave both, many leave one;
3. the expected improvement of their mixture (``AveragedLogExpectedImprovement``) over
   the best mean at an evaluated point, times a weak prior for the inside of the box
   that decays with the number of observations (``InteriorPrior``, BoTorch's
   ``PriorGuidedAcquisitionFunction``);
4. its maximum over all paths (``optimize_acqf_paths``), at a distance from known points
   where outcomes repeat, as those of step functions do. After five evaluations of one
   branch that brought nothing, over another one.

What else is known changes the criterion (3):

* several objectives, each with a ``TreeStructuredGP`` alone: the expected improvement
  of the hypervolume that they dominate
  (``AveragedLogExpectedHypervolumeImprovement``);
* constraints: times the probability that they hold (``FeasibilityPrior``), which stands
  alone while no feasible point is known (``AveragedLogProbabilityOfFeasibility``);
* costs: per expected cost (``CostPrior``).

Each is public, so a loop of one's own starts from these lines.
"""

from __future__ import annotations

__all__ = [
    "Mixture",
    "Suggestion",
    "Surrogates",
    "fit_models",
    "fit_surrogates",
    "leave_one_out_log_density",
    "leave_one_out_weights",
    "suggest",
]

from botorch_structured.suggest.suggestion import Suggestion, suggest
from botorch_structured.suggest.surrogates import (
    Mixture,
    Surrogates,
    fit_models,
    fit_surrogates,
    leave_one_out_log_density,
    leave_one_out_weights,
)
