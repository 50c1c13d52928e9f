"""Models: which one when.

* ``TreeStructuredGP``: decisions determine which parameters exist (Jenatton et al.
  2017).
"""

from __future__ import annotations

__all__ = ["TreeStructuredGP"]

from botorch_structured.models.tree_structured_gp import TreeStructuredGP
