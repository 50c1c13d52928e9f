"""Covariance functions for structured spaces."""

from __future__ import annotations

__all__ = [
    "ConditionalKernel",
    "LaplaceKernel",
    "MondrianKernel",
    "RandomFourierFeatures",
    "TreeStructuredKernel",
]

from botorch_structured.kernels.leaf_kernels import ConditionalKernel
from botorch_structured.kernels.mondrian import LaplaceKernel, MondrianKernel
from botorch_structured.kernels.random_fourier_features import RandomFourierFeatures
from botorch_structured.kernels.tree_structured_kernel import TreeStructuredKernel
