"""Covariance functions for structured spaces."""

from __future__ import annotations

__all__ = [
    "ConditionalKernel",
    "LaplaceKernel",
    "MondrianKernel",
    "RandomFourierFeatures",
    "TreeStructuredKernel",
]

from typing import TYPE_CHECKING, Any

from botorch_structured.kernels.mondrian import LaplaceKernel, MondrianKernel
from botorch_structured.kernels.random_fourier_features import RandomFourierFeatures

if TYPE_CHECKING:
    from botorch_structured.models.tree.conditional_kernel import ConditionalKernel
    from botorch_structured.models.tree.tree_structured_kernel import (
        TreeStructuredKernel,
    )


def __getattr__(name: str) -> Any:
    # Models import this package: the two kernels that stand on them come when asked.
    if name == "ConditionalKernel":
        from botorch_structured.models.tree import conditional_kernel

        return conditional_kernel.ConditionalKernel
    if name == "TreeStructuredKernel":
        from botorch_structured.models.tree import tree_structured_kernel

        return tree_structured_kernel.TreeStructuredKernel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
