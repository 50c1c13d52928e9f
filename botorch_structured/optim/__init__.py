"""Optimise acquisition functions over spaces with decisions.

Which optimiser when: `optimize_acqf_paths` scores all paths in one batch and is the
default; `optimize_acqf_two_step` chooses paths first, as the paper does, and looks into
few of them.
"""

from __future__ import annotations

__all__ = ["optimize_acqf_paths", "optimize_acqf_two_step"]

from botorch_structured.optim.paths import optimize_acqf_paths
from botorch_structured.optim.two_step import optimize_acqf_two_step
