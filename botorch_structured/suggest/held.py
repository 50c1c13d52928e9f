"""Points with some columns held."""

from __future__ import annotations

__all__ = ["hold"]

from collections.abc import Mapping

from torch import Tensor

from botorch_structured.spaces import SearchSpace


def hold(
    space: SearchSpace, X: Tensor, held: Mapping[int, float]
) -> tuple[Tensor, Tensor]:
    """Points with some columns held; those whose path has another value are left out.

    Args:
        space: The space.
        X: ``n x d`` points of it.
        held: Column -> its value wherever it is active.

    Returns:
        ``m x d`` feasible points, and the ``m`` rows of ``X`` that they come from.
    """
    fixed = X.clone()
    for column, value in held.items():
        fixed[:, column] = value
    fixed = space.impute(fixed)
    same = space.tree.path_key(fixed) == space.tree.path_key(X)
    rows = (same & space.feasible(fixed)).nonzero().flatten()
    return fixed[rows], rows
