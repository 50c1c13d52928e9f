"""Pictures of search spaces, models and runs.

==========================  =========================================================
`plot_tree`                 a search space, and the evaluations on each path
`plot_covariance`           the covariances of points under a kernel
`plot_partition`            the regions of a treed model, and its predictions
`plot_monotone_components`  the parts of a sum, with and without known signs
`plot_traces`               the best value so far of one or many runs
==========================  =========================================================

All take axes to draw in (``ax`` or ``axes``; default: a new figure) and return them.
They need matplotlib, which the extra ``demo`` installs.
"""

from __future__ import annotations

__all__ = [
    "plot_covariance",
    "plot_monotone_components",
    "plot_partition",
    "plot_traces",
    "plot_tree",
]

from botorch_structured.plots.models import plot_monotone_components, plot_partition
from botorch_structured.plots.traces import plot_traces
from botorch_structured.plots.tree import plot_covariance, plot_tree
