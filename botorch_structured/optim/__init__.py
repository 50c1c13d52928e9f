"""Optimise acquisition functions over spaces with decisions.

Which optimiser when: `optimize_acqf_paths` scores all paths in one batch and climbs by
gradient; it is the default. `optimize_acqf_two_step` chooses paths first, as the paper
of the tree-structured GP does, and then searches few of them. For acquisition functions
without useful gradients `optimize_acqf_local_search` changes one parameter at a time.
Spaces without decisions: BoTorch's `optimize_acqf`, or `optimize_acqf_sobol` where the
acquisition function is discontinuous.
"""

from __future__ import annotations

__all__ = [
    "adaptive_sobol_candidates",
    "optimize_acqf_local_search",
    "optimize_acqf_paths",
    "optimize_acqf_sobol",
    "optimize_acqf_two_step",
]

from botorch_structured.optim.local_search import optimize_acqf_local_search
from botorch_structured.optim.search import optimize_acqf_paths, optimize_acqf_two_step
from botorch_structured.optim.sobol_grid import (
    adaptive_sobol_candidates,
    optimize_acqf_sobol,
)
