r"""Inference with a covariance of independent leaves and the weights they share.

.. math:: k(x, x') = 1[p = p'] K_p(x, x') + z(x)^\top z(x')

``LeafKernel`` is the interface: ``forward`` is the dense definition, ``block_tensors``
returns the same covariance leaf by leaf. ``log_evidence`` and ``LeafPredictor`` use the
latter and the algebra of ``linalg.block_low_rank``; they are equation (3) and section
3.2 of Jenatton et al. (2017), and without weights equations (9) and (10) of Levesque et
al. (2017).

Evidence. With alpha = K^-1 r, mu the posterior mean of the weights and R = A^-1 F, the
derivative of the log evidence is, leaf by leaf,

    dA_p:  1/2 (alpha alpha' - A_p^-1 + R M^-1 R')
    dF_p:  alpha mu' - R M^-1          dr:  -alpha          d noise:  diag(dA_p)

Prediction. Per leaf L^-1, H = L^-1 F and e = L^-1 (r - F mu) are kept, and once the
inverse root J of M (M^-1 = J'J). A point with features z, covariances k to the data of
its own leaf and w = L^-1 k then has, with t_p(x) = h,

    h = z - w'H,     mean = m + w'e + z mu,     cov = K_p - w'w' + (J h)'(J h')

where the middle term is zero unless both points are on one leaf. No matrix is n x n.
The usual alpha = A^-1 (r - F mu) and A^-1 F grow like one over the noise variance; e
and H do not, and give three more correct digits at the smallest noise variance.
"""

from __future__ import annotations

__all__ = [
    "MAX_LISTED_PATHS",
    "BlockPrior",
    "BlockTensors",
    "CrossCovariance",
    "GivenBlocks",
    "LeafKernel",
    "LeafPredictor",
    "LeafRows",
    "Prediction",
    "Structure",
    "log_evidence",
    "stationary_cross",
]

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from botorch_structured.linalg.batch_kernel import BatchKernel, same_points
from botorch_structured.linalg.block_low_rank import (
    BlockInputs,
    Bucket,
    Factorisation,
    LeafLayout,
    factorise,
    group_rows,
    pad_groups,
    pad_rows,
)
from botorch_structured.linalg.correlations import StationaryBlocks, squared_distance
from botorch_structured.spaces import ParameterTree

#: Options with a parameter for each path are refused for more paths than this.
MAX_LISTED_PATHS = 4096

# Entries of the covariance matrices that an evidence works on at a time on a CPU.
_CACHE_ENTRIES = 2**17
# Rows whose places in the tree are looked up at a time.
_LOCATED_ROWS = 4096

#: A function of ``(places U, points, index U x t)``: the prior covariances
#: ``U x t x N`` of ``points[index]`` with the data of the leaves at these places of a
#: bucket. Values for padded data are not used.
CrossCovariance = Callable[[Tensor, Tensor, Tensor], Tensor]


# -- the interface ----------------------------------------------------------------


class LeafRows(Protocol):
    """A kernel's representation of some inputs."""

    @property
    def key(self) -> Tensor:
        """Equal if and only if two rows are on the same leaf, ``batch_shape x n``."""

    @property
    def points(self) -> Tensor:
        """Inputs of the covariance within a leaf, ``batch_shape x n x e``."""

    @property
    def features(self) -> Tensor:
        """Scaled weight features, ``batch_shape x n x V``."""

    @property
    def prior(self) -> Tensor:
        """Prior variance of a leaf's own part, ``batch_shape x n``."""


class Structure(NamedTuple):
    """The leaves of a data set.

    Attributes:
        places: The places of one row of each leaf, of a type that the kernel defines.
        layout: The rows grouped by leaf.
        blocks: What the kernel gathers for each bucket, of a type that it defines.
        undeclared: Whether a decision has an undeclared value in a row.
    """

    places: Any
    layout: LeafLayout
    blocks: list[Any]
    undeclared: bool = False


class BlockPrior(Protocol):
    """Prior covariances of a bucket without noise, ``B x N x N``, zero where padded.

    Their gradient is written out, so that an evidence can go through the leaves in
    parts, and no more than a few matrices of each leaf exist at any time.
    """

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """What they are functions of; each leads with ``B``."""

    def evaluate(self, part: slice, gradient: bool) -> tuple[Tensor, Any]:
        """Covariances of some leaves, and what ``backward`` needs.

        Args:
            part: Which of the ``B`` leaves.
            gradient: Whether ``backward`` will be called.

        Returns:
            A new tensor, ``B' x N x N``, without a graph; and anything.
        """

    def backward(self, saved: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Derivatives by ``tensors`` of these leaves.

        Args:
            saved: From ``evaluate``.
            g: Derivative by the covariances, symmetric, zero where padded, ``B' x N x
                N``. It may be overwritten.
        """


@dataclass(frozen=True)
class GivenBlocks:
    """Covariances that autograd differentiates, see ``BlockPrior``.

    Attributes:
        covariance: ``B x N x N``.
    """

    covariance: Tensor

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """See ``BlockPrior``."""
        return (self.covariance,)

    def evaluate(self, part: slice, gradient: bool) -> tuple[Tensor, Any]:
        """See ``BlockPrior``."""
        return self.covariance[part].detach().clone(), None

    def backward(self, saved: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """See ``BlockPrior``."""
        return (g,)


@dataclass(frozen=True)
class BlockTensors:
    """One bucket of leaves.

    Attributes:
        bucket: Rows and leaves.
        prior: Prior covariances without noise.
        features: Scaled weight features, ``B x N x D``, zero where padded.
        weights: Index of each feature's weight, ``B x D``; ``num_weights`` if unused.
        cross: Prior covariances of other points with the data.
    """

    bucket: Bucket
    prior: BlockPrior
    features: Tensor
    weights: Tensor
    cross: CrossCovariance

    @property
    def covariance(self) -> Tensor:
        """All prior covariances, ``B x N x N``, without a graph."""
        with torch.no_grad():
            return self.prior.evaluate(slice(None), False)[0]


class LeafKernel(BatchKernel):
    """A covariance of independent leaves plus a few weights that couple them.

    ``forward`` is the dense definition; ``structure`` and ``block_tensors`` return the
    same leaf by leaf.
    """

    has_lengthscale = False
    is_stationary = False
    tree: ParameterTree

    @property
    def is_by_leaf(self) -> bool:
        """Whether ``block_tensors`` are known to agree with ``forward``.

        A subclass may inherit them and override ``forward``: its models are then
        evaluated densely, by ``forward``.
        """
        return "block_tensors" in vars(type(self))

    @property
    def num_weights(self) -> int:
        """V, the number of weights."""
        return 0

    @property
    def variant(self) -> object:
        """State besides hyperparameters and data that predictions depend on."""
        return None

    @abstractmethod
    def rows(self, X: Tensor, places: Any = None) -> LeafRows:
        """Everything that the covariance is computed from, row by row.

        Args:
            X: ``batch_shape x n x d``.
            places: ``Structure.places`` of the rows, if known.
        """

    @abstractmethod
    def leaf_covariance(self, a: Any, b: Any) -> Tensor:
        """1[p = p'] K_p of rows: the covariance without the weights' part."""

    def layout(self, X: Tensor) -> LeafLayout:
        """The rows of a data set grouped by leaf.

        Args:
            X: ``n x d``.
        """
        # A model checks its training data; on a GPU looking at the values would make
        # the device wait.
        strict = X.device.type == "cpu"
        keys = [self.tree.locate(x, strict)[2] for x in X.split(_LOCATED_ROWS)]
        return LeafLayout(torch.cat(keys))

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

    def _covariance(self, x1: Tensor, x2: Tensor, diag: bool, **params: Any) -> Tensor:
        """The dense definition."""
        a = self.rows(x1)
        if diag:
            return a.prior + a.features.square().sum(-1)
        b = a if same_points(x1, x2) else self.rows(x2)
        return self.leaf_covariance(a, b) + a.features @ b.features.mT


def stationary_cross(prior: StationaryBlocks, inputs: Tensor) -> CrossCovariance:
    """Covariances of points with a bucket's data.

    Args:
        prior: Of the data.
        inputs: Which columns of a point these are, ``B x e``.
    """

    def cross(places: Tensor, points: Tensor, index: Tensor) -> Tensor:
        x = points[index.unsqueeze(-1), inputs[places].unsqueeze(-2)]
        k = prior.correlation.value(squared_distance(x, prior.scaled[places]))
        k = k * prior.variance[places, None, None]
        if prior.constant is not None:
            k = k + prior.constant[places, None, None]
        return k

    return cross


# -- evidence ---------------------------------------------------------------------


def noisy_covariance(covariance: Tensor, bucket: Bucket, noise: Tensor) -> Tensor:
    """Turn prior covariances into A_p, in place: the identity where padded.

    Args:
        covariance: Prior covariances, ``B x N x N``.
        bucket: Rows and leaves.
        noise: Noise variances of all rows, ``n``.
    """
    covariance.diagonal(dim1=-1, dim2=-2).add_(pad_rows(noise, bucket, fill=1.0))
    return covariance


def _parts(bucket: Bucket, device: torch.device) -> Iterator[slice]:
    """The leaves of a bucket in parts whose matrices fit into a processor's cache."""
    count, width = bucket.index.shape
    step = count
    if device.type == "cpu":
        step = max(_CACHE_ENTRIES // width**2, 1)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


class _LogEvidence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        static: tuple[list[BlockTensors], int, bool],
        noise: Tensor,
        residual: Tensor,
        *tensors: Tensor | None,
    ) -> Tensor:
        blocks, num_weights, gradient = static
        saved: list[tuple[BlockTensors, BlockInputs, Any]] = []

        def parts() -> Iterator[tuple[Tensor, BlockInputs]]:
            saved.clear()
            for block in blocks:
                for part in _parts(block.bucket, residual.device):
                    inputs = BlockInputs(
                        block.bucket.part(part),
                        block.features[part],
                        block.weights[part],
                    )
                    prior, kept = block.prior.evaluate(part, gradient)
                    saved.append((block, inputs, kept))
                    yield noisy_covariance(prior, inputs.bucket, noise), inputs

        factors = factorise(parts, residual, num_weights)
        if gradient:
            ctx.saved = (saved, factors, residual.shape[0])
        log_two_pi = residual.shape[0] * math.log(2.0 * math.pi)
        return -0.5 * (factors.quad + factors.logdet + log_two_pi)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        saved, factors, n = ctx.saved
        weight_cov, weight_mean = _padded_weight_posterior(factors)
        # padding is written into one more row
        d_noise, d_residual = grad.new_zeros(n + 1), grad.new_zeros(n + 1)
        d_blocks: dict[int, list[tuple[Tensor | None, ...]]] = {}
        for (block, inputs, kept), factor in zip(saved, factors.blocks, strict=True):
            index, weights = inputs.bucket.index, inputs.weights
            cov = weight_cov[weights.unsqueeze(-1), weights.unsqueeze(-2)]
            mean = weight_mean[weights]
            half = torch.cat(
                [factor.half_residual.unsqueeze(-1), factor.half_features], dim=-1
            )
            right = torch.linalg.solve_triangular(factor.chol.mT, half, upper=True)
            alpha = right[..., :1]
            solved_cov = right[..., 1:] @ cov
            left = torch.cat([alpha, solved_cov], dim=-1)
            # symmetric, and stored by columns
            g = torch.cholesky_inverse(factor.chol).mT
            g = g.baddbmm_(left, right.mT, beta=-0.5, alpha=0.5)
            d_noise[index] = g.diagonal(dim1=-1, dim2=-2)
            d_residual[index] = -alpha.squeeze(-1)
            d_features = alpha * mean.unsqueeze(-2) - solved_cov
            # padding is the identity, a constant
            d_prior = block.prior.backward(kept, inputs.bucket.mask_pairs(g))
            d_blocks.setdefault(id(block), []).append((d_features, *d_prior))
        d_tensors: list[Tensor | None] = []
        for parts in d_blocks.values():
            for d in zip(*parts, strict=True):
                given = d[0] is not None
                d_tensors.append(grad * torch.cat(d) if given else None)
        return (None, grad * d_noise[:n], grad * d_residual[:n], *d_tensors)


def _padded_weight_posterior(factors: Factorisation) -> tuple[Tensor, Tensor]:
    """M^-1 and mu with one zero row for the dummy weight."""
    covariance = torch.cholesky_inverse(factors.precision_chol)
    covariance = pad(covariance, (0, 1, 0, 1))
    return covariance, pad(factors.weight_mean, (0, 1))


def log_evidence(
    blocks: list[BlockTensors], noise: Tensor, residual: Tensor, num_weights: int
) -> Tensor:
    """Log N(r; 0, K): a scalar, differentiable once in every tensor of the blocks.

    Args:
        blocks: The leaves, in buckets.
        noise: Noise variances, ``n``.
        residual: Observations minus prior means, ``n``.
        num_weights: V, the number of weights.

    Raises:
        NotPSDError: If a block is not positive definite even with jitter.
    """
    tensors = [t for b in blocks for t in (b.features, *b.prior.tensors)]
    gradient = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (noise, residual, *tensors)
    )
    return _LogEvidence.apply(
        (blocks, num_weights, gradient), noise, residual, *tensors
    )


# -- prediction -------------------------------------------------------------------


class Prediction(NamedTuple):
    """Terms of predictions at ``t`` rows that are added to the prior.

    Attributes:
        mean: To be added to the prior mean, ``t``.
        leaf: Leaf of each row, ``t`` (``num_leaves`` for one without data).
        explained: L^-1 k, zero-padded to the largest leaf, ``t x max_size``.
        weight: J h, ``t x V``.
    """

    mean: Tensor
    leaf: Tensor
    explained: Tensor
    weight: Tensor


class LeafPredictor:
    """Cached factors of a data set.

    Args:
        layout: The grouping of the data.
        blocks: Its leaves.
        noise: Noise variances, ``n``.
        residual: Observations minus prior means, ``n``.
        num_weights: V.
    """

    def __init__(
        self,
        layout: LeafLayout,
        blocks: list[BlockTensors],
        noise: Tensor,
        residual: Tensor,
        num_weights: int,
    ) -> None:
        self.layout, self.blocks, self.num_weights = layout, blocks, num_weights
        self.masked = residual.device.type != "cpu"
        factors = factorise(
            lambda: (
                (
                    noisy_covariance(b.covariance, b.bucket, noise),
                    BlockInputs(b.bucket, b.features, b.weights),
                )
                for b in blocks
            ),
            residual,
            num_weights,
        )
        self.weight_mean = factors.weight_mean
        eye = torch.eye(num_weights, dtype=residual.dtype, device=residual.device)
        self.weight_root = torch.linalg.solve_triangular(
            factors.precision_chol, eye, upper=False
        )
        self.inverse_chol, self.half = [], []
        self.bucket_of_leaf = torch.full(
            (layout.num_leaves + 1,), -1, device=residual.device
        )
        self.place_of_leaf = torch.zeros_like(self.bucket_of_leaf)
        for i, (block, factor) in enumerate(zip(blocks, factors.blocks, strict=True)):
            width = factor.chol.shape[-1]
            eye = torch.eye(width, dtype=residual.dtype, device=residual.device)
            self.inverse_chol.append(
                torch.linalg.solve_triangular(
                    factor.chol, eye.expand_as(factor.chol), upper=False
                )
            )
            residual_half = factor.half_residual.unsqueeze(-1)
            self.half.append(torch.cat([residual_half, factor.half_features], dim=-1))
            leaves = block.bucket.leaves
            self.bucket_of_leaf[leaves] = i
            self.place_of_leaf[leaves] = torch.arange(
                len(leaves), device=residual.device
            )

    def __call__(self, key: Tensor, points: Tensor, features: Tensor) -> Prediction:
        """Predict at rows.

        Args:
            key: Path of each row, ``t``.
            points: ``LeafRows.points`` of each row, ``t x e``.
            features: Scaled weight features, ``t x V``.
        """
        num_rows, num_weights = key.shape[0], self.num_weights
        leaf = self.layout.find(key)
        if self.masked or not len(key):
            return self._predict_masked(leaf, points, features)
        bucket = self.bucket_of_leaf[leaf]
        points = pad(points, (0, 0, 0, 1))
        order, means, explained, shrunk = [], [], [], []
        max_size = self.layout.max_size
        for i in range(-1, len(self.blocks)):
            rows = (bucket == i).nonzero().squeeze(-1)
            if rows.shape[0] == 0:
                continue
            if i < 0:  # no data on this path: the prior
                order.append(rows)
                means.append(features.new_zeros(len(rows)))
                explained.append(features.new_zeros(len(rows), max_size))
                shrunk.append(features.new_zeros(len(rows), num_weights))
                continue
            for places, index in self._groups(rows, self.place_of_leaf[leaf[rows]]):
                block = self.blocks[i]
                # padding takes the zeros appended above
                row = torch.cat([rows, rows.new_full((1,), num_rows)])[index]
                k = self._covariance(i, places, points, row)
                take = index < len(rows)
                order.append(row[take])
                w = k @ self.inverse_chol[i][places].mT
                both = w @ self.half[i][places]
                w, means_here, reduction = w[take], both[take][:, 0], both[take][:, 1:]
                means.append(means_here)
                explained.append(pad(w, (0, max_size - w.shape[-1])))
                weights = block.weights[places].unsqueeze(-2)
                weights = weights.expand(*k.shape[:-1], weights.shape[-1])[take]
                full = reduction.new_zeros(reduction.shape[0], num_weights + 1)
                full = full.scatter_add(-1, weights, reduction)
                shrunk.append(full[:, :num_weights])
        back = torch.argsort(torch.cat(order))
        h = features - torch.cat(shrunk)[back]
        mean = torch.cat(means)[back] + features @ self.weight_mean
        return Prediction(
            mean, leaf, torch.cat(explained)[back], h @ self.weight_root.mT
        )

    def _predict_masked(
        self, leaf: Tensor, points: Tensor, features: Tensor
    ) -> Prediction:
        """``__call__`` with every leaf for every row, all but the row's own masked.

        This takes more arithmetic, but no shape depends on the values of a tensor. On a
        GPU such shapes make the device wait for the host several times.
        """
        num_rows, max_size = leaf.shape[0], self.layout.max_size
        mean = features @ self.weight_mean
        explained = features.new_zeros(num_rows, max_size)
        shrunk = features.new_zeros(num_rows, self.num_weights + 1)
        for i, block in enumerate(self.blocks):
            places = torch.arange(len(block.bucket.leaves), device=leaf.device)
            every = torch.arange(num_rows, device=leaf.device).expand(len(places), -1)
            mine = leaf == block.bucket.leaves.unsqueeze(-1)  # B x t
            k = self._covariance(i, places, points, every)
            k = k * mine.unsqueeze(-1).to(features)
            w = k @ self.inverse_chol[i].mT
            both = w @ self.half[i]
            mean = mean + both[..., 0].sum(0)
            w = w.sum(0)[:, :max_size]  # zero except for the leaf that a row is on
            explained = explained + pad(w, (0, max_size - w.shape[-1]))
            weights = block.weights.unsqueeze(1).expand(-1, num_rows, -1)
            index = weights.transpose(0, 1).flatten(1)
            shrunk = shrunk.scatter_add(
                -1, index, both[..., 1:].transpose(0, 1).flatten(1)
            )
        h = features - shrunk[:, : self.num_weights]
        return Prediction(mean, leaf, explained, h @ self.weight_root.mT)

    def _covariance(
        self, i: int, places: Tensor, points: Tensor, index: Tensor
    ) -> Tensor:
        """Prior covariances of points with the data of their own leaf."""
        block = self.blocks[i]
        k = block.cross(places, points, index)
        if block.bucket.real is not None:
            k = k * block.bucket.real[places].unsqueeze(-2).to(k)
        return k

    @staticmethod
    def _groups(rows: Tensor, place: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Rows padded leaf by leaf, in one batch, or in several with less padding.

        Returns:
            Pairs of places in the bucket, ``U``, and positions in ``rows``, ``U x t``.
        """
        places, inverse = torch.unique(place, return_inverse=True)
        order, counts = group_rows(inverse, len(places))
        start = counts.cumsum(0) - counts
        widest = int(counts.max())
        if len(places) * widest <= 3 * len(rows) + 64:
            return [(places, pad_groups(order, start, counts, widest))]
        return [
            (places[u : u + 1], order[s : s + c].unsqueeze(0))
            for u, (s, c) in enumerate(
                zip(start.tolist(), counts.tolist(), strict=True)
            )
        ]
