"""Gaussians with independent blocks and a few weights that couple them.

Each row of a data set is on a leaf (``LeafLayout``); leaves of similar size are
factorised in one batch (``Bucket``). With A_p the covariance of leaf p (noise
included) and F_p its features, already scaled by the prior standard deviations of their
weights,

    K = blockdiag(A_p) + F F',     M = I + sum_p F_p' A_p^-1 F_p,
    K^-1 = A^-1 - A^-1 F M^-1 F' A^-1,     log|K| = sum_p log|A_p| + log|M|.

M is the posterior precision of the (scaled) weights: Lambda_c of Jenatton et al.
(2017), section 2.2, in units of the prior. With R = L^-1 F, of all blocks one below the
other, M = I + R'R. Where weights are many times as many as rows I + RR' is factorised
instead (``WeightCovariance``). So nothing larger than the largest leaf, the number of
weights or that of rows ever is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from botorch_structured.linalg.factor import failed

# With no more weights M is factorised, however few the rows are.
_FEW_WEIGHTS = 256


@dataclass(frozen=True)
class Bucket:
    """Leaves of similar size, padded to a common number of rows.

    Attributes:
        leaves: Which leaves of the layout these are, ``B``.
        index: Their rows, ``B x N``; ``n`` (one past the last row) where padded, which
            is at the end.
        real: ``B x N``, False where padded; None if nothing is padded.
    """

    leaves: Tensor
    index: Tensor
    real: Tensor | None

    @property
    def rows(self) -> Tensor:
        """``index`` with a row of the same leaf where padded, ``B x N``."""
        if self.real is None:
            return self.index
        return torch.where(self.real, self.index, self.index[:, :1])


def positions(mask: Tensor) -> Tensor:
    """Positions of the True entries of each row, ascending, padded with the width.

    Args:
        mask: ``B x width``.

    Returns:
        ``B x D``, D being as many as the fullest row has, and at least one if there
        are columns.
    """
    width = mask.shape[-1]
    if not width:
        return mask.long()
    entries = _array(mask)
    ascending = np.sort(np.where(entries, np.arange(width), width))
    most = max(entries.sum(-1).max(), 1)
    return torch.from_numpy(ascending[:, :most]).to(mask.device)


def _array(values: Tensor) -> NDArray[Any]:
    """An array, which takes a third of the time of torch for small ones."""
    try:
        array: NDArray[Any] = values.cpu().numpy()
    except RuntimeError:  # under a transform of functorch
        array = np.array(values.tolist())
    return array


def _bucket_widths(sizes: list[int]) -> dict[int, int]:
    """Common width for each leaf size: within a quarter, plus four rows.

    LAPACK's Cholesky is two to four times slower at multiples of 128 than two rows
    more, so those widths are avoided.
    """
    widths: dict[int, int] = {}
    width: int | None = None
    for size in sorted(set(sizes), reverse=True):
        if width is None or 1.25 * size + 4 < width:
            width = size + 2 if size % 128 == 0 else size
        widths[size] = width
    return widths


class LeafLayout:
    """The grouping of ``n`` rows by leaf.

    Args:
        keys: The leaf of each row as any integer, ``n``: equal if and only if two rows
            are on the same leaf.

    Attributes:
        num_rows: ``n``.
        num_leaves: Number of leaves with data.
        keys: The distinct keys, ascending, ``num_leaves``.
        leaf_of_row: ``n``.
        representative: One row of each leaf, ``num_leaves``.
        max_size: Size of the largest leaf.
        sizes: Rows of each leaf, ``num_leaves``, a list of integers.
        buckets: The leaves in batches.
    """

    def __init__(self, keys: Tensor) -> None:
        def tensor(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array).to(keys.device)

        row_keys = _array(keys)
        n = self.num_rows = len(row_keys)
        order = row_keys.argsort(kind="stable")
        ordered = row_keys[order]
        new = np.ones(n, dtype=bool)  # the first row of a leaf
        np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
        start = new.nonzero()[0]
        leaf_of_row = np.empty(n, dtype=np.int64)
        leaf_of_row[order] = new.cumsum() - 1
        counts = np.append(start[1:], n) - start
        self.keys = tensor(ordered[start])
        self.leaf_of_row = tensor(leaf_of_row)
        self.num_leaves = len(start)
        self.representative = tensor(order[start])
        self.sizes: list[int] = counts.tolist()
        self.max_size = max(self.sizes, default=0)
        widths = _bucket_widths(self.sizes)
        leaf_widths = [widths[size] for size in self.sizes]
        self.buckets: list[Bucket] = []
        for width in sorted(set(leaf_widths)):
            leaves = np.array([p for p, w in enumerate(leaf_widths) if w == width])
            place = np.arange(width)
            position = np.minimum(start[leaves, None] + place, n - 1)
            inside = place < counts[leaves, None]
            index = np.where(inside, order[position], n)
            real = None if inside.all() else tensor(inside)
            self.buckets.append(Bucket(tensor(leaves), tensor(index), real))

    def find(self, keys: Tensor) -> Tensor:
        """The leaf of other rows, ``m``; ``num_leaves`` for a leaf without data."""
        position = torch.searchsorted(self.keys, keys).clamp_max(self.num_leaves - 1)
        present = self.keys[position] == keys
        return torch.where(present, position, self.num_leaves)


class WeightedBlock(NamedTuple):
    """One bucket of leaves.

    Attributes:
        bucket: Its leaves and rows.
        covariance: A_p, noise included, the identity where padded, ``B x N x N``.
        features: Scaled weight features, ``B x N x D``, zero where padded.
        weights: Which weights these are, ``B x D``; ``V`` for an unused place (whose
            features must be zero).
    """

    bucket: Bucket
    covariance: Tensor
    features: Tensor
    weights: Tensor


class BlockFactor(NamedTuple):
    """Factors of one bucket.

    Attributes:
        inverse_chol: L_p^-1 of A_p = L_p L_p' (identity where padded), ``B x N x N``.
        half: ``L_p^-1 [r_p - F_p mu, F_p]``, ``B x N x (1 + D)``.
    """

    inverse_chol: Tensor
    half: Tensor


class WeightCovariance(NamedTuple):
    """M^-1 = J'J, the posterior covariance of the scaled weights.

    Either M = LL' and J = L^-1. Or I + RR' = LL', and with S = L^-1 R

        M^-1 = I - S'S,     J = I - S'GS,     G = (I + L^-T)^-1.

    Attributes:
        inverse_chol: L^-1.
        explained: S, ``k x V``; None where M is factorised.
    """

    inverse_chol: Tensor
    explained: Tensor | None

    def root(self) -> tuple[Tensor, Tensor | None]:
        """J' as A, ``V x V``, or A and S of J' = I - AS."""
        if self.explained is None:
            return self.inverse_chol.mT, None
        eye = _eye(len(self.explained), self.explained)
        along = torch.linalg.solve_triangular(
            eye + self.inverse_chol,
            self.explained.mT,
            upper=False,
            left=False,
        )
        return along, self.explained

    def dense(self) -> Tensor:
        """M^-1, ``V x V``."""
        if self.explained is None:
            return self.inverse_chol.mT @ self.inverse_chol
        eye = _eye(self.explained.shape[-1], self.explained)
        return eye - self.explained.mT @ self.explained


class Factorisation(NamedTuple):
    """Factors from which the evidence and predictions are computed.

    Attributes:
        blocks: Factors of each bucket.
        weight_covariance: M^-1.
        weight_mean: Posterior mean of the scaled weights M^-1 F'A^-1 r, ``V``.
    """

    blocks: list[BlockFactor]
    weight_covariance: WeightCovariance
    weight_mean: Tensor

    def log_density(self, num_rows: int) -> Tensor:
        """The log density log N(r; 0, K) of so many rows."""
        roots = [block.inverse_chol for block in self.blocks]
        roots.append(self.weight_covariance.inverse_chol)
        logs = torch.cat([r.diagonal(dim1=-1, dim2=-2).flatten() for r in roots]).log()
        # r'K^-1 r as a sum of squares at the posterior mean of the weights: r'A^-1 r -
        # u'mu is equal, but loses digits by cancellation when the noise is small
        halves = [block.half[..., 0].flatten() for block in self.blocks]
        rest = torch.cat([*halves, self.weight_mean])
        value = torch.sub(logs.sum(), rest.dot(rest), alpha=0.5)
        return value - 0.5 * num_rows * math.log(2.0 * math.pi)

    def derivatives(self, blocks: list[WeightedBlock]) -> list[tuple[Tensor, ...]]:
        """Those of the density by A_p, F_p and the rows of r, see ``block_evidence``.

        Args:
            blocks: What was factorised.
        """
        mean = pad(self.weight_mean, (0, 1))
        covariance = pad(self.weight_covariance.dense(), (0, 1, 0, 1))
        results: list[tuple[Tensor, ...]] = []
        for block, (inverse, half) in zip(blocks, self.blocks, strict=True):
            which = block.weights
            both = inverse.mT @ half
            pairs = which.unsqueeze(-1), which.unsqueeze(-2)
            alpha = both[..., :1]
            spread = both[..., 1:] @ covariance[pairs]
            left = torch.cat([alpha, spread], dim=-1)
            precision = inverse.mT @ inverse
            g = torch.baddbmm(
                precision,
                left,
                both.mT,
                beta=-0.5,
                alpha=0.5,
            )
            results.append(
                (g, alpha * mean[which].unsqueeze(-2) - spread, -alpha[..., 0])
            )
        return results


def pad_rows(
    values: Tensor,
    bucket: Bucket,
    fill: float = 0.0,
) -> Tensor:
    """Gather ``n`` (``x k``) values into ``B x N`` (``x k``)."""
    if bucket.real is not None:
        values = torch.cat([values, values.new_full((1, *values.shape[1:]), fill)])
    # the derivative of an index sorts it on a GPU
    rows = values.index_select(0, bucket.index.flatten())
    return rows.unflatten(0, bucket.index.shape)


def factorise(
    blocks: list[WeightedBlock],
    residual: Tensor,
    num_weights: int,
) -> Factorisation:
    """Factorise K and solve for the residual; differentiable.

    Args:
        blocks: The buckets.
        residual: y - m, ``n``.
        num_weights: V.

    Raises:
        NotPSDError: If a block is not positive definite even with jitter.
    """
    factors, flags = _factorise(
        blocks,
        residual,
        num_weights,
        torch.linalg.cholesky_ex,
    )
    if failed(flags):
        factors, _ = _factorise(
            blocks,
            residual,
            num_weights,
            lambda A: (psd_safe_cholesky(A), A[:0]),
        )
    return factors


def _factorise(
    blocks: list[WeightedBlock],
    residual: Tensor,
    num_weights: int,
    cholesky: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> tuple[Factorisation, list[Tensor]]:
    """See ``factorise``; also LAPACK's flags, zero where a matrix was definite."""
    halves = []
    flags = []
    reduced = []
    for block in blocks:
        chol, flag = cholesky(block.covariance)
        flags.append(flag)
        inverse = _inverse(chol)
        padded = pad_rows(residual, block.bucket).unsqueeze(-1)
        half = inverse @ torch.cat([padded, block.features], dim=-1)
        # features of all weights, and of one more, which unused places are
        place = pad(block.weights + 1, (1, 0)).unsqueeze(1).expand_as(half)
        rows = half.new_zeros(*half.shape[:-1], num_weights + 2)
        reduced.append(rows.scatter_add(-1, place, half)[..., :-1].flatten(0, 1))
        halves.append((padded, inverse, half[..., 1:]))
    # [L^-1 r, R], of which M, or I + RR'
    num_rows = sum(map(len, reduced))
    by_rows = num_weights > max(_FEW_WEIGHTS, 2 * num_rows)
    if by_rows:
        rows = torch.cat(reduced)
        R = rows[:, 1:]
        chol, flag = cholesky(_eye(num_rows, R) + R @ R.mT)
        root = _inverse(chol)
        explained = root @ R
        mean = explained.mT @ (root @ rows[:, :1])
    else:
        gram = _eye(num_weights + 1, residual)
        for rows in reduced:
            gram = torch.addmm(gram, rows.mT, rows)
        chol, flag = cholesky(gram[1:, 1:])
        root = _inverse(chol)
        mean = root.mT @ (root @ gram[1:, :1])
    flags.append(flag)
    # A^-1 r - A^-1 F mu is equal to what is computed here, but loses digits
    padded_mean = pad(mean, (0, 0, 0, 1))
    factors = []
    for block, (padded, inverse, half) in zip(blocks, halves, strict=True):
        rest = inverse @ (padded - block.features @ padded_mean[block.weights])
        factors.append(BlockFactor(inverse, torch.cat([rest, half], dim=-1)))
    covariance = WeightCovariance(root, explained if by_rows else None)
    return Factorisation(factors, covariance, mean.squeeze(-1)), flags


def _inverse(chol: Tensor) -> Tensor:
    eye = _eye(chol.shape[-1], chol).expand_as(chol)
    return torch.linalg.solve_triangular(chol, eye, upper=False)


def _eye(n: int, like: Tensor) -> Tensor:
    # made on the device: a graph cannot record a copy to it
    return torch.eye(n, dtype=like.dtype, device=like.device)
