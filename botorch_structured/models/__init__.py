"""Models: which one when.

* ``TreeStructuredGP``: decisions determine which parameters exist, and branches have
  something in common: levels, shared columns (Jenatton et al. 2017).
* ``ConditionalGP``: nothing learned on one branch says anything about another
  (Levesque et al. 2017).
"""

from __future__ import annotations

__all__ = ["ConditionalGP", "TreeStructuredGP"]

from botorch_structured.models.conditional_gp import ConditionalGP
from botorch_structured.models.tree_structured_gp import TreeStructuredGP
