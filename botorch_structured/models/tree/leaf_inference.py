r"""Inference with a covariance of independent leaves and the weights they share.

.. math:: k(x, x') = 1[p = p'] K_p(x, x') + z(x)^\top z(x')

``LeafKernel`` defines it by what it knows of rows. ``log_evidence`` and ``solver`` take
the same covariance leaf by leaf, with the algebra of ``linalg.block_low_rank``; they
are equation (3) and section 3.2 of Jenatton et al. (2017), and without weights
equations (9) and (10) of Levesque et al. (2017).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from botorch_structured.linalg.batch_kernel import BatchKernel, same_points
from botorch_structured.linalg.block_low_rank import (
    Bucket,
    LeafLayout,
    WeightedBlock,
    factorise,
    pad_rows,
    positions,
)
from botorch_structured.linalg.correlations import mean_lengthscale
from botorch_structured.linalg.redefinition import redefined_names
from botorch_structured.spaces import ParameterTree

#: Options with a parameter for each path are refused for more paths than this.
MAX_LISTED_PATHS = 4096

#: Methods that define a covariance: a subclass with another one has another covariance.
COVARIANCE = {"forward", "_covariance", "rows", "leaf_covariance", "locate"}

TupleT = TypeVar("TupleT", bound=tuple[Any, ...])


# -- the kernel -------------------------------------------------------------------


class LeafRows(NamedTuple):
    """Everything that the covariance of some inputs is computed from.

    Attributes:
        key: Equal if and only if two rows are on the same leaf, ``batch_shape x n``.
        points: Inputs of K_p, ``batch_shape x n x e``.
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
        """Prior variance without the part of the weights."""
        return self.variance + self.constant


def selected(rows: TupleT, index: Any) -> TupleT:
    """Some rows of a tuple of tensors, each ``n`` (``x k``) or None."""
    make: Any = type(rows)
    parts = []
    for part in rows:
        parts.append(None if part is None else part[index])
    chosen: TupleT = make(*parts)
    return chosen


class Structure(NamedTuple):
    """The leaves of a data set.

    Attributes:
        places: Of the rows, of a type that the kernel defines.
        layout: The rows grouped by leaf.
        weights: Which weights the leaves of each bucket have, ``B x D``; V if unused.
        rows: Those of all buckets, one after the other, ``m``.
        row_places: Their places.
        leaf_places: Those of a row of each leaf.
    """

    places: Any
    layout: LeafLayout
    weights: list[Tensor]
    rows: Tensor
    row_places: Any
    leaf_places: Any


class LeafKernel(BatchKernel):
    """A covariance of independent leaves plus a few weights that couple them."""

    has_lengthscale = False
    is_stationary = False
    tree: ParameterTree

    #: ``values`` where they do not change any more, as in a solver.
    fixed_values: Any = None
    #: Methods that a class outside of this package defines anew.
    redefined: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.redefined = redefined_names(cls)

    @property
    def is_by_leaf(self) -> bool:
        """Whether ``rows`` and ``leaf_covariance`` define ``forward``.

        A subclass may override ``forward``: its models are evaluated densely.
        """
        return self.redefined.isdisjoint(("forward", "_covariance"))

    def __copy__(self) -> Self:
        # GPyTorch's ``__setstate__`` would have both share their attributes
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    @property
    def num_weights(self) -> int:
        """V, the number of weights."""
        return 0

    @abstractmethod
    def column_lengthscales(self) -> Tensor:
        """Lengthscales of all paths, or of each, ``batch_shape x (1 or m) x d``.

        NaN where there is none on any path.
        """

    def path_lengthscales(self) -> Tensor:
        """Lengthscales by path, ``batch_shape x num_paths x d``.

        Paths are in the order of ``tree.paths``; NaN where a column is inactive or has
        no lengthscale.

        Raises:
            ValueError: There are more than 4,096 paths.
        """
        table = self.column_lengthscales()
        active = self.tree.active_mask(self.tree.path_points).to(table.device)
        return torch.where(active, table, torch.nan)

    @property
    def lengthscale(self) -> Tensor | None:
        """Lengthscales by column, ``batch_shape x 1 x d``; None if there is none.

        The geometric mean over paths. It is finite: a column without a lengthscale, as
        a decision, has the geometric mean of the other columns.
        """
        return mean_lengthscale(self.column_lengthscales())

    @abstractmethod
    def locate(self, X: Tensor) -> Any:
        """Where rows ``batch_shape x n x d`` are in the tree: a tuple with ``key``."""

    def values(self) -> Any:
        """All that ``rows`` computes of hyperparameters alone."""
        return None

    @abstractmethod
    def rows(
        self,
        X: Tensor,
        places: Any = None,
    ) -> LeafRows:
        """Everything that the covariance is computed from, row by row.

        Args:
            X: ``batch_shape x n x d``.
            places: From ``locate``, if known.
        """

    @abstractmethod
    def leaf_covariance(
        self,
        a: LeafRows,
        b: LeafRows,
    ) -> Tensor:
        """K_p of rows that are on one leaf, ``batch_shape x n x m``."""

    def active_weights(self, places: Any) -> Tensor:
        """Which weights can differ from zero at ``n`` places, ``n x V``."""
        return torch.zeros(len(places.key), 0, dtype=torch.bool)

    def structure(self, X: Tensor) -> Structure:
        """The leaves of a data set.

        Args:
            X: ``n x d``.
        """
        places = self.locate(X)
        layout = LeafLayout(places.key)
        leaf_places = selected(places, layout.representative)
        active = self.active_weights(leaf_places)
        weights = []
        parts = []
        for bucket in layout.buckets:
            used = positions(active[bucket.leaves.to(active.device)])
            weights.append(used.to(X.device))
            parts.append(bucket.rows.flatten())
        rows = torch.cat(parts)
        return Structure(
            places,
            layout,
            weights,
            rows,
            selected(places, rows),
            leaf_places,
        )

    def _covariance(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool,
        **params: Any,
    ) -> Tensor:
        """The dense definition."""
        a = self.rows(x1)
        b = a if same_points(x1, x2) else self.rows(x2)
        if diag and b is a:
            return a.prior + a.features.square().sum(-1)
        same = a.key.unsqueeze(-1) == b.key.unsqueeze(-2)
        covariance = torch.where(same, self.leaf_covariance(a, b), 0.0)
        covariance = covariance + a.features @ b.features.mT
        return covariance.diagonal(dim1=-1, dim2=-2) if diag else covariance


class LeafBlock(NamedTuple):
    """The rows of a bucket.

    Attributes:
        bucket: Rows and leaves.
        rows: What the kernel knows of them, ``B x N`` (``x k``).
        weights: Index of each feature's weight, ``B x D``; V if unused.
    """

    bucket: Bucket
    rows: LeafRows
    weights: Tensor

    def noisy(
        self,
        kernel: LeafKernel,
        noise: Tensor,
    ) -> WeightedBlock:
        """A_p and F_p.

        Args:
            kernel: The kernel.
            noise: Noise variances of all rows, ``n``.
        """
        covariance = kernel.leaf_covariance(self.rows, self.rows)
        features = pad(self.rows.features, (0, 1))
        index = self.weights.unsqueeze(1).expand(*features.shape[:-1], -1)
        features = features.gather(-1, index)
        real = self.bucket.real
        if real is not None:
            pair = real.unsqueeze(-1) & real.unsqueeze(-2)
            covariance = torch.where(pair, covariance, 0.0)
            features = torch.where(real.unsqueeze(-1), features, 0.0)
        diagonal = torch.diag_embed(pad_rows(noise, self.bucket, fill=1.0))
        return WeightedBlock(
            self.bucket,
            covariance + diagonal,
            features,
            self.weights,
        )


def leaf_blocks(
    kernel: LeafKernel,
    X: Tensor,
    structure: Structure,
) -> list[LeafBlock]:
    """The rows of each bucket.

    Args:
        kernel: The kernel.
        X: ``n x d``.
        structure: From ``structure``, of inputs with the same decisions.
    """
    buckets = structure.layout.buckets
    m = len(structure.rows)
    rows = kernel.rows(X.index_select(0, structure.rows), structure.row_places)
    sizes = [bucket.index.numel() for bucket in buckets]
    parts = [part.expand(m, *part.shape[1:]).split(sizes) for part in rows]
    out = []
    for bucket, weights, *part_of_bucket in zip(
        buckets,
        structure.weights,
        *parts,
        strict=True,
    ):
        shape = bucket.index.shape
        block = LeafRows(*(part.unflatten(0, shape) for part in part_of_bucket))
        out.append(LeafBlock(bucket, block, weights))
    return out


# -- evidence ---------------------------------------------------------------------


class _WithSlopes(torch.autograd.Function):
    """A value whose first derivatives are known."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, *slopes_and_parts: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: Any,
        output: Any,
    ) -> None:
        ctx.save_for_backward(*inputs[1 : 1 + len(inputs) // 2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        slopes = ctx.saved_tensors
        return None, *[None] * len(slopes), *(grad * slope for slope in slopes)


def log_evidence(
    kernel: LeafKernel,
    X: Tensor,
    structure: Structure,
    noise: Tensor,
    residual: Tensor,
) -> Tensor:
    """Log N(r; 0, K): a scalar, differentiable once.

    Its first derivatives are computed with it.

    Args:
        kernel: The kernel.
        X: Transformed inputs, ``n x d``.
        structure: Their leaves.
        noise: Noise variances, ``n``.
        residual: Observations minus prior means, ``n``.

    Raises:
        NotPSDError: If a block is not positive definite even with jitter.
    """
    blocks = [block.noisy(kernel, noise) for block in leaf_blocks(kernel, X, structure)]
    parts = [
        part
        for b in blocks
        for part in (b.covariance, b.features, pad_rows(residual, b.bucket))
    ]
    with torch.no_grad():
        factors = factorise(blocks, residual, kernel.num_weights)
        value = factors.log_density(len(X))
        slopes = [slope for of in factors.derivatives(blocks) for slope in of]
    evidence: Tensor = _WithSlopes.apply(value, *slopes, *parts)
    return evidence
