"""Acquisition functions of tree-structured models: of paths, contexts and costs."""

from __future__ import annotations

__all__ = [
    "ContextLogExpectedImprovement",
    "PathContextLogExpectedImprovement",
    "PathExpectedImprovement",
    "PathLogExpectedImprovement",
    "best_at_context",
]

from botorch_structured.acquisition.context_cost import (
    ContextLogExpectedImprovement,
    PathContextLogExpectedImprovement,
    best_at_context,
)
from botorch_structured.acquisition.path_expected_improvement import (
    PathExpectedImprovement,
    PathLogExpectedImprovement,
)
