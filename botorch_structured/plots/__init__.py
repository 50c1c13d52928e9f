"""Pictures: which decisions there are, where evaluations went, how fast methods get on.

Use `plot_tree` for a search space, with or without data, and `plot_traces` for one or
many runs. Both take an ``ax`` and return it. They need matplotlib, which the extra
``demo`` brings.
"""

from __future__ import annotations

__all__ = ["plot_traces", "plot_tree"]

from botorch_structured.plots.traces import plot_traces
from botorch_structured.plots.tree import plot_tree
