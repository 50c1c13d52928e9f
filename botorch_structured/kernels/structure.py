"""What a tree kernel knows of rows and of data sets, apart from hyperparameters."""

from __future__ import annotations

__all__ = [
    "Places",
    "Rows",
    "Structure",
    "check_aligned_columns",
    "positions",
    "same_points",
    "trim",
]

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from botorch_structured.kernels.leaf_hyperparameters import MAX_LISTED_PATHS
from botorch_structured.linalg.leaf_layout import LeafLayout
from botorch_structured.spaces import ParameterTree


class Places(NamedTuple):
    """Where rows are in the tree: a matter of their decisions alone.

    Attributes:
        key: Equal if and only if two rows are on the same path, ``batch_shape x n``.
        codes: Outcomes of the decisions, ``batch_shape x n x num_decisions``.
        active: Active columns, ``batch_shape x n x d``.
        nodes: The nodes on the path, ``batch_shape x n x (1 + num_edges)``.
        seen: Which of the kernel's columns K_p sees, ``batch_shape x n x k``.
        path: Number of the path, ``batch_shape x n``; None unless hyperparameters are
            held per path.
    """

    key: Tensor
    codes: Tensor
    active: Tensor
    nodes: Tensor
    seen: Tensor
    path: Tensor | None


class Rows(NamedTuple):
    """What a stationary leaf kernel needs to know of some inputs.

    Attributes:
        key: Equal if and only if two rows are on the same path, ``batch_shape x n``.
        points: Inputs of K_p over lengthscales, ``batch_shape x n x e``; zero where K_p
            does not see a column.
        variance: Prior variance of g_p, ``batch_shape x n``.
        constant: Variance of an undeclared path's own offset, ``batch_shape x n``.
        features: Scaled weight features, ``batch_shape x n x V``.
    """

    key: Tensor
    points: Tensor
    variance: Tensor
    constant: Tensor
    features: Tensor

    @property
    def prior(self) -> Tensor:
        """Prior variance of what does not go through the weights."""
        return self.variance + self.constant


class Structure(NamedTuple):
    """The leaves of a data set.

    Attributes:
        places: Where its rows are, in the kernel's own terms.
        layout: The rows grouped by leaf.
        inputs: Per bucket the columns of the scaled inputs that its leaves use,
            ``B x d``; one past the last column where unused.
        weights: Per bucket the weights they use, ``B x D``; one past the last weight
            where unused.
    """

    places: Any
    layout: LeafLayout
    inputs: list[Tensor]
    weights: list[Tensor]


def check_aligned_columns(
    tree: ParameterTree,
    groups: list[list[int]] | None,
    categorical: Mapping[int, list[float]],
) -> list[list[int]]:
    """Validate groups of comparable leaf columns.

    Raises:
        ValueError: If a group has a column that is not a numeric leaf column, or two
            columns of one path.
    """
    if not groups:
        return []
    if not isinstance(groups, Sequence) or not all(
        isinstance(group, Sequence) and not isinstance(group, str) for group in groups
    ):
        raise ValueError(
            "aligned_columns: expected a list of lists of columns, one for each group "
            f"(one group of columns 1 and 2 is [[1, 2]]), got {groups!r}."
        )
    if tree.num_paths > MAX_LISTED_PATHS:
        raise ValueError(
            "aligned_columns compares leaves one by one: expected at most "
            f"{MAX_LISTED_PATHS} paths, got {tree.num_paths}."
        )
    own = set(tree.own_columns)
    for group in groups:
        bad = [c for c in group if c not in own or c in categorical]
        if bad:
            raise ValueError(
                f"aligned_columns: expected numeric leaf columns (of {sorted(own)}), "
                f"got {bad} in group {list(group)}."
            )
        for path in tree.paths:
            together = sorted(set(path.active.tolist()) & set(group))
            if len(together) > 1:
                raise ValueError(
                    "aligned_columns: expected at most one column per path in a group, "
                    f"got columns {together} of the same path."
                )
    return [sorted(group) for group in groups]


def positions(mask: Tensor) -> Tensor:
    """Positions of the True entries of each row, ascending, padded with the width."""
    width = mask.shape[-1]
    place = torch.arange(width, device=mask.device)
    return torch.where(mask, place, width).sort(-1).values


def trim(positions: Tensor) -> Tensor:
    """Drop the places that no row uses (one is always kept)."""
    if positions.shape[-1] == 0:
        return positions
    # the padding value is the largest possible position
    used = int((positions < positions.shape[-1]).sum(-1).max())
    return positions[:, : max(used, 1)]


def same_points(x1: Tensor, x2: Tensor) -> bool:
    """Whether a covariance is asked for of points with themselves, as most are."""
    return x1 is x2 or (x1.shape == x2.shape and torch.equal(x1, x2))
