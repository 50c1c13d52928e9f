"""Pictures: which decisions there are, where evaluations went, what a kernel relates.

Use `plot_tree` for a search space, with or without data, `plot_covariance` to see what
a kernel makes of one, `plot_partition` for the regions of a treed model,
`plot_monotone_components` for the parts of a sum, and `plot_traces` for one or many
runs. All take where to draw (``ax``, ``axes``) and return it. They need matplotlib,
which the extra ``demo`` brings.
"""

from __future__ import annotations

__all__ = [
    "plot_covariance",
    "plot_monotone_components",
    "plot_partition",
    "plot_traces",
    "plot_tree",
]

from botorch_structured.plots.components import plot_monotone_components
from botorch_structured.plots.covariance import plot_covariance
from botorch_structured.plots.partition import plot_partition
from botorch_structured.plots.traces import plot_traces
from botorch_structured.plots.tree import plot_tree
