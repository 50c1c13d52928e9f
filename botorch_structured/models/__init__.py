"""Models: which one when.

* ``TreeStructuredGP``: decisions determine which parameters exist, and branches have
  something in common: levels, shared columns (Jenatton et al. 2017).
* ``ConditionalGP``: nothing learned on one branch says anything about another
  (Levesque et al. 2017).
* ``SampledGP``: what ``fit_slice_sampling`` returns, an average over hyperparameters.
"""

from __future__ import annotations

__all__ = ["ConditionalGP", "SampledGP", "TreeStructuredGP"]

from botorch_structured.models.conditional_gp import ConditionalGP
from botorch_structured.models.sampled import SampledGP
from botorch_structured.models.tree_structured_gp import TreeStructuredGP
