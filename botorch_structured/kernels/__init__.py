"""Covariance functions for structured spaces."""

from __future__ import annotations

__all__ = ["TreeStructuredKernel"]

from botorch_structured.kernels.tree_structured import TreeStructuredKernel
