"""Acquisition functions of the paths of a tree-structured model."""

from __future__ import annotations

__all__ = ["PathExpectedImprovement", "PathLogExpectedImprovement"]

from botorch_structured.acquisition.path_expected_improvement import (
    PathExpectedImprovement,
    PathLogExpectedImprovement,
)
