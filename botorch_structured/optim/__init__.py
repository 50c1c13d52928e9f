"""Optimise acquisition functions over spaces with decisions.

Which optimiser when: `optimize_acqf_paths` scores all paths and is the default.
"""

from __future__ import annotations

__all__ = ["optimize_acqf_paths"]

from botorch_structured.optim.paths import optimize_acqf_paths
