"""What fast inference asks of a kernel: independent leaves, and weights across them."""

from __future__ import annotations

__all__ = [
    "LeafKernel",
    "LeafRows",
    "Places",
    "Rows",
    "Structure",
    "check_aligned_columns",
    "positions",
    "stationary_covariance",
    "stationary_cross",
    "trim",
]

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from botorch_structured.linalg.batch_kernel import BatchKernel, same_points
from botorch_structured.linalg.correlations import Correlation
from botorch_structured.linalg.leaf_layout import LeafLayout
from botorch_structured.models.tree.evidence import BlockTensors, CrossCovariance
from botorch_structured.models.tree.leaf_hyperparameters import MAX_LISTED_PATHS
from botorch_structured.spaces import ParameterTree

# ----------------------------------------------------------------------
# What a tree kernel knows of rows and of data sets, apart from hyperparameters.


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


# ----------------------------------------------------------------------
class LeafRows(Protocol):
    """What a kernel knows of some inputs."""

    @property
    def key(self) -> Tensor:
        """Equal if and only if two rows are on the same leaf, ``batch_shape x n``."""

    @property
    def points(self) -> Tensor:
        """What covariances within a leaf are made of, ``batch_shape x n x e``."""

    @property
    def features(self) -> Tensor:
        """Scaled weight features, ``batch_shape x n x V``."""

    @property
    def prior(self) -> Tensor:
        """Prior variance of a leaf's own part, ``batch_shape x n``."""


class LeafKernel(BatchKernel):
    r"""A covariance of independent leaves plus a few weights that couple them.

    .. math:: k(x, x') = 1[p = p'] K_p(x, x') + z(x)^\top z(x')

    ``forward`` is the one, dense definition. ``structure`` and ``block_tensors`` say
    the same leaf by leaf, which is what ``StructuredInference`` works with.
    """

    has_lengthscale = False
    is_stationary = False
    tree: ParameterTree

    @property
    def is_by_leaf(self) -> bool:
        """Whether ``block_tensors`` say what ``forward`` does.

        Of a subclass of a kernel they are what its parent says: it is evaluated by its
        ``forward``, unless it has its own.
        """
        return "block_tensors" in vars(type(self))

    @property
    def num_weights(self) -> int:
        """V, the number of weights."""
        return 0

    @property
    def variant(self) -> object:
        """What, besides hyperparameters and data, a prediction was made with."""
        return None

    @abstractmethod
    def rows(self, X: Tensor, places: Any = None) -> LeafRows:
        """Everything the covariance is made of, row by row.

        Args:
            X: ``batch_shape x n x d``.
            places: Where the rows are, from ``Structure.places``, if known.
        """

    @abstractmethod
    def leaf_covariance(self, a: Any, b: Any) -> Tensor:
        """1[p = p'] K_p of rows: what does not go through the weights."""

    @abstractmethod
    def structure(self, X: Tensor) -> Structure:
        """The leaves of a data set.

        Args:
            X: ``n x d``.
        """

    @abstractmethod
    def block_tensors(self, X: Tensor, structure: Structure) -> list[BlockTensors]:
        """The leaves of ``X`` in buckets, differentiable in every hyperparameter.

        Args:
            X: ``n x d``.
            structure: From ``structure``, of inputs with the same decisions.
        """

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any
    ) -> Tensor:
        """The dense definition.

        Args:
            x1: ``batch_shape x n x d``.
            x2: ``batch_shape x m x d``.
            diag: Whether to return the diagonal only.
            params: Not used; GPyTorch passes what its own kernels know.

        Returns:
            ``batch_shape x n x m``, or ``batch_shape x n`` if ``diag``.
        """
        if params.get("last_dim_is_batch"):
            raise ValueError(
                f"{type(self).__name__}: expected last_dim_is_batch=False, since "
                "leaves are a matter of all columns."
            )
        a = self.rows(x1)
        if diag:
            return a.prior + a.features.square().sum(-1)
        b = a if same_points(x1, x2) else self.rows(x2)
        return self.leaf_covariance(a, b) + a.features @ b.features.mT


# ----------------------------------------------------------------------
# Leaves with a stationary kernel: their covariances, with the gradient written out.
#
# A_p = v_p k(|s - s'|^2) + c_p for scaled inputs s. With G the derivative of some scalar
# with respect to A_p and H = v_p G * slope, the derivative with respect to the scaled
# inputs is a matrix product, 4 (H S - rowsum(H) S), and autograd need not differentiate
# distances.


class _StationaryCovariance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        static: tuple[Tensor | None, Correlation],
        scaled: Tensor,
        variance: Tensor,
        constant: Tensor,
    ) -> Tensor:
        real, correlation = static
        squares = scaled.square().sum(-1)
        distance = squares.unsqueeze(-1) + squares.unsqueeze(-2)
        distance = distance.sub_(scaled @ scaled.mT, alpha=2.0).clamp_min_(0.0)
        # rounding must not put two copies of a point apart from one another's diagonal
        distance.diagonal(dim1=-1, dim2=-2).zero_()
        pair = None
        if real is not None:
            pair = (real.unsqueeze(-1) & real.unsqueeze(-2)).to(distance)
        if not any(ctx.needs_input_grad):
            value, slope = correlation.value(distance), None
        else:
            value, slope = correlation.value_and_slope(distance)
        if pair is not None:
            value = value * pair
        ctx.saved = (scaled, variance, value, slope, pair)
        shift = constant[:, None, None]
        covariance = variance[:, None, None] * value
        return covariance + (shift if pair is None else shift * pair)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grad_outputs
        scaled, variance, value, slope, pair = ctx.saved
        if pair is not None:
            g = g * pair
        h = g * slope * variance[:, None, None]
        h = 0.5 * (h + h.mT)
        d_scaled = 4.0 * (h @ scaled - h.sum(-1, True) * scaled)
        return None, d_scaled, (g * value).sum((-1, -2)), g.sum((-1, -2))


def stationary_covariance(
    scaled: Tensor,
    variance: Tensor,
    constant: Tensor,
    real: Tensor | None,
    correlation: Correlation,
) -> Tensor:
    """Prior covariances of a bucket of leaves, ``B x N x N``, zero where padded.

    Args:
        scaled: Inputs over lengthscales, ``B x N x e``.
        variance: v, ``B``.
        constant: c, ``B``: a constant of the leaf's own.
        real: ``B x N``, False where padded; None if nothing is.
        correlation: k.
    """
    return _StationaryCovariance.apply((real, correlation), scaled, variance, constant)


def stationary_cross(
    scaled: Tensor,
    variance: Tensor,
    constant: Tensor,
    inputs: Tensor,
    correlation: Correlation,
) -> CrossCovariance:
    """Covariances of points with the data of such a bucket.

    Args:
        scaled: Inputs over lengthscales, ``B x N x e``.
        variance: v, ``B``.
        constant: c, ``B``.
        inputs: Which columns of a point these are, ``B x e``.
        correlation: k.
    """

    def cross(places: Tensor, points: Tensor, index: Tensor) -> Tensor:
        x = points[index.unsqueeze(-1), inputs[places].unsqueeze(-2)]
        data = scaled[places]
        squares = x.square().sum(-1, keepdim=True) + data.square().sum(-1)[:, None, :]
        distance = (squares - 2.0 * x @ data.mT).clamp_min(0.0)
        k = correlation.value(distance) * variance[places, None, None]
        return k + constant[places, None, None]

    return cross
