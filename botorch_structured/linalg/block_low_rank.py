"""Gaussians with independent blocks and a few weights that couple them.

Each row of a data set is on a leaf (``LeafLayout``); leaves of similar size are
factorised in one batch (``Bucket``). With A_p the covariance of leaf p (noise
included) and F_p its features, already scaled by the prior standard deviations of their
weights,

    K = blockdiag(A_p) + F F',     M = I + sum_p F_p' A_p^-1 F_p,
    K^-1 = A^-1 - A^-1 F M^-1 F' A^-1,     log|K| = sum_p log|A_p| + log|M|.

M is the posterior precision of the (scaled) weights: Lambda_c of Jenatton et al.
(2017), section 2.2, in units of the prior. Nothing larger than the largest leaf or the
number of weights is ever factorised.
"""

from __future__ import annotations

__all__ = [
    "BlockFactor",
    "BlockInputs",
    "Bucket",
    "Factorisation",
    "LeafColumns",
    "LeafLayout",
    "are_many",
    "factorise",
    "group_rows",
    "in_all_columns",
    "pad_groups",
    "pad_rows",
    "positions",
]

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

# Pairs of weights on the same leaf that are added up one by one: at most, and always.
_MANY_PAIRS, _FEW_PAIRS = 1 << 22, 1 << 16
# One of these takes as long as so many terms of a product of matrices.
_TERMS = 32


@dataclass(frozen=True)
class Bucket:
    """Leaves of similar size, padded to a common number of rows.

    Attributes:
        leaves: Which leaves of the layout these are, ``B``.
        index: Their rows, ``B x N``; ``n`` (one past the last row) where padded, which
            is at the end.
        real: ``B x N``, False where padded; None if nothing is padded.
        least: Size of the smallest of the leaves.
    """

    leaves: Tensor
    index: Tensor
    real: Tensor | None
    least: int

    @property
    def rows(self) -> Tensor:
        """``index`` with a row of the same leaf where padded, ``B x N``."""
        if self.real is None:
            return self.index
        return torch.where(self.real, self.index, self.index[:, :1])

    def part(self, part: slice) -> Bucket:
        """Some of the leaves."""
        real = None if self.real is None else self.real[part]
        return Bucket(self.leaves[part], self.index[part], real, self.least)

    def mask_pairs(self, values: Tensor) -> Tensor:
        """``B x N x N`` values, set to zero in place where row or column is padded."""
        if self.real is not None:
            tail = self.real[:, self.least :].to(values)
            values[:, self.least :] *= tail.unsqueeze(-1)
            values[:, :, self.least :] *= tail.unsqueeze(-2)
        return values


def group_rows(group: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """Sort rows by group.

    Args:
        group: The group of each row, ``n``.
        num_groups: Number of groups.

    Returns:
        The row numbers sorted by group (stable), ``n``, and the number of rows of each
        group, ``num_groups``.
    """
    order = torch.argsort(group, stable=True)
    return order, torch.bincount(group, minlength=num_groups)


def pad_groups(order: Tensor, start: Tensor, size: Tensor, width: int) -> Tensor:
    """Row numbers of some groups, ``B x width``, padded with ``n``.

    Args:
        order: Rows sorted by group, ``n``.
        start: Position of each group's first row in ``order``, ``B``.
        size: Number of rows of each group, ``B``.
        width: Common width, at least the largest size.
    """
    offset = torch.arange(width, device=order.device)
    position = start.unsqueeze(-1) + offset
    padded = torch.cat([order, order.new_full((1,), order.shape[0])])
    inside = offset < size.unsqueeze(-1)
    return padded[torch.where(inside, position, order.shape[0])]


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
    try:  # of masks on the CPU, which are small, in a third of the time
        entries = mask.numpy()
    except (RuntimeError, TypeError):  # under a transform of functorch; on a GPU
        pass
    else:
        ascending = np.sort(np.where(entries, np.arange(width), width))
        return torch.from_numpy(ascending[:, : max(entries.sum(-1).max(), 1)])
    place = torch.arange(width, device=mask.device)
    padded = torch.where(mask, place, width).sort(-1).values
    return padded[:, : max(int(mask.sum(-1).max()), 1)]


class LeafColumns:
    """The columns of inputs that each leaf of a bucket uses.

    What is gathered is kept for as long as the inputs are the same tensor, since a fit
    asks for that of the training data a hundred times.

    Args:
        rows: ``B x N x 1``; where padded, a row of the same leaf.
        columns: ``B x 1 x e``.
        used: ``B x 1 x e``, False for a place that a leaf does not use; None if all do.
    """

    def __init__(self, rows: Tensor, columns: Tensor, used: Tensor | None) -> None:
        self.rows, self.columns, self.used = rows, columns, used
        self._last: tuple[ReferenceType[Tensor], int, Tensor] | None = None

    @classmethod
    def of(cls, bucket: Bucket, places: Tensor, columns: Tensor) -> LeafColumns:
        """Those at some places of a list of columns.

        Args:
            bucket: The leaves.
            places: ``B x e`` places in ``columns``; ``C`` for none.
            columns: ``C``, or ``B x C`` if they depend on the leaf.
        """
        count = columns.shape[-1]
        used = places < count
        # any column will do for a place that is not used
        columns = pad(columns, (0, 1)).expand(len(places), -1).gather(-1, places)
        masked = None if bool(used.all()) else used.unsqueeze(-2)
        return cls(bucket.rows.unsqueeze(-1), columns.unsqueeze(-2), masked)

    def __call__(self, X: Tensor) -> Tensor:
        """``n x d`` inputs to ``B x N x e``, zero where unused."""
        last = self._last
        plain = not (X.requires_grad or X.is_inference())
        if plain and last is not None and last[0]() is X and last[1] == X._version:
            return last[2]
        mine = X[self.rows, self.columns]
        if self.used is not None:
            mine = torch.where(self.used, mine, 0.0)
        if plain:
            self._last = (ref(X), X._version, mine)
        return mine


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
        # by NumPy, which takes a third of the time; a GPU would be waited for, too
        def tensor(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array).to(keys.device)

        try:
            every = keys.cpu().numpy()
        except RuntimeError:  # under a transform of functorch
            every = np.array(keys.tolist(), dtype=np.int64)
        n = self.num_rows = len(every)
        order = every.argsort(kind="stable")
        ordered = every[order]
        new = np.ones(n, dtype=bool)  # the first row of a leaf
        np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
        start = new.nonzero()[0]
        leaf_of_row = np.empty(n, dtype=np.int64)
        leaf_of_row[order] = new.cumsum() - 1
        counts = np.append(start[1:], n) - start
        self.keys, self.leaf_of_row = tensor(ordered[start]), tensor(leaf_of_row)
        self.num_leaves = len(start)
        self.representative = tensor(order[start])
        self.sizes: list[int] = counts.tolist()
        self.max_size = max(self.sizes)
        widths = _bucket_widths(self.sizes)
        leaf_widths = [widths[size] for size in self.sizes]
        self.buckets: list[Bucket] = []
        for width in sorted(set(leaf_widths)):
            leaves = np.array([p for p, w in enumerate(leaf_widths) if w == width])
            place = np.arange(width)
            position = np.minimum(start[leaves, None] + place, n - 1)
            inside = place < counts[leaves, None]
            index = np.where(inside, order[position], n)
            least = min(s for s in widths if widths[s] == width)
            real = None if least == width else tensor(inside)
            self.buckets.append(Bucket(tensor(leaves), tensor(index), real, least))

    def find(self, keys: Tensor) -> Tensor:
        """The leaf of other rows, ``m``; ``num_leaves`` for a leaf without data."""
        position = torch.searchsorted(self.keys, keys).clamp_max(self.num_leaves - 1)
        known = self.keys[position] == keys
        return torch.where(known, position, self.num_leaves)


@dataclass(frozen=True)
class BlockInputs:
    """The features of one bucket.

    Attributes:
        bucket: Its leaves and rows.
        features: Scaled weight features, ``B x N x D``, zero where padded.
        weights: Which weights these are, ``B x D``; ``V`` for an unused place (whose
            features must be zero).
    """

    bucket: Bucket
    features: Tensor
    weights: Tensor


@dataclass(frozen=True)
class BlockFactor:
    """Factors of one bucket.

    Attributes:
        chol: Cholesky factors L_p of A_p (identity where padded), ``B x N x N``.
        half_features: ``L_p^-1 F_p``, ``B x N x D``.
        half_residual: ``L_p^-1 (r_p - F_p mu)``, ``B x N``.
    """

    chol: Tensor
    half_features: Tensor
    half_residual: Tensor


@dataclass(frozen=True)
class Factorisation:
    """Factors from which evidence, its gradient and predictions are computed.

    Attributes:
        blocks: Factors of each bucket.
        precision_chol: Cholesky factor of M, ``V x V``.
        weight_mean: Posterior mean of the scaled weights M^-1 F'A^-1 r, ``V``.
    """

    blocks: list[BlockFactor]
    precision_chol: Tensor
    weight_mean: Tensor

    @property
    def quad(self) -> Tensor:
        """The square r' K^-1 r."""
        # as a sum of squares at the posterior mean of the weights: r'A^-1 r - u'mu is
        # equal, but loses digits by cancellation when the noise is small
        total = self.weight_mean.square().sum()
        for block in self.blocks:
            total = total + block.half_residual.square().sum()
        return total

    @property
    def logdet(self) -> Tensor:
        """The logarithm log|K|."""
        total = self.weight_mean.new_zeros(())
        for chol in (*(block.chol for block in self.blocks), self.precision_chol):
            total = total + 2.0 * chol.diagonal(dim1=-1, dim2=-2).log().sum()
        return total


def pad_rows(values: Tensor, bucket: Bucket, fill: float = 0.0) -> Tensor:
    """Gather ``n`` (``x k``) values into ``B x N`` (``x k``)."""
    if bucket.real is None:
        return values[bucket.index]
    tail = values.new_full((1, *values.shape[1:]), fill)
    return torch.cat([values, tail])[bucket.index]


def weight_pairs(weights: Tensor, num_weights: int) -> Tensor:
    """Positions of the entries of each leaf's ``D x D`` block in ``(V+1) x (V+1)``."""
    width = num_weights + 1
    return (weights.unsqueeze(-1) * width + weights.unsqueeze(-2)).reshape(-1)


def are_many(shape: torch.Size, size: int) -> bool:
    """Whether pairs of the weights on leaves are more than rows of all weights.

    That is where leaves have few rows and most of the weights: the product of the rows
    is faster, or takes less memory, than the sum over pairs.

    Args:
        shape: ``B x N x (1 + D)``.
        size: V + 1.
    """
    leaves, num_rows, width = shape
    pairs, rows = leaves * width * width, leaves * num_rows
    if pairs <= max(_FEW_PAIRS, rows * size):
        return False
    return pairs > _MANY_PAIRS or rows * size * size < _TERMS * pairs


def in_all_columns(features: Tensor, weights: Tensor, size: int) -> Tensor:
    """``B x N x D`` features of ``B x D`` weights as ``(B N) x (V + 1)`` rows."""
    rows = features.new_zeros(*features.shape[:-1], size)
    rows = rows.scatter_add(-1, weights.unsqueeze(1).expand_as(features), features)
    return rows.flatten(0, 1)


def factorise(
    blocks: Callable[[], Iterable[tuple[Tensor, BlockInputs]]],
    residual: Tensor,
    num_weights: int,
) -> Factorisation:
    """Factorise K and solve for the residual.

    Args:
        blocks: Returns A_p of each bucket, ``B x N x N``, noise included and the
            identity where padded, and the rest of the bucket. Each is factorised before
            the next is asked for. It is called again if a block needs jitter.
        residual: y - m, ``n``.
        num_weights: V.

    Raises:
        NotPSDError: If a block is not positive definite even with jitter.
    """
    # One look at all flags together: on a GPU the host waits for each.
    factors, flags = _factorise(blocks(), residual, num_weights, _unsafe_cholesky)
    if bool(torch.cat(flags).any()):
        factors, _ = _factorise(blocks(), residual, num_weights, _safe_cholesky)
    return factors


def _unsafe_cholesky(matrix: Tensor) -> tuple[Tensor, Tensor]:
    chol, flag = torch.linalg.cholesky_ex(matrix)
    return chol, flag.reshape(-1)


def _safe_cholesky(matrix: Tensor) -> tuple[Tensor, Tensor]:
    return psd_safe_cholesky(matrix), matrix.new_zeros(0, dtype=torch.int32)


def _factorise(
    blocks: Iterable[tuple[Tensor, BlockInputs]],
    residual: Tensor,
    num_weights: int,
    cholesky: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> tuple[Factorisation, list[Tensor]]:
    """See ``factorise``; also LAPACK's flags, zero where a matrix was definite."""
    size = num_weights + 1  # one more weight, for padding
    precision = residual.new_zeros(size * size)
    rhs_sum = residual.new_zeros(size)
    halves, flags = [], []
    for covariance, block in blocks:
        chol, flag = cholesky(covariance)
        flags.append(flag)
        padded = pad_rows(residual, block.bucket).unsqueeze(-1)
        half = torch.linalg.solve_triangular(
            chol, torch.cat([padded, block.features], dim=-1), upper=False
        )
        many = are_many(half.shape, size)
        gram = half[..., 1:].mT @ half[..., :1] if many else half[..., 1:].mT @ half
        if many:
            rows = in_all_columns(half[..., 1:], block.weights, size)
            precision = precision + (rows.mT @ rows).view(-1)
        else:
            precision.index_add_(
                0, weight_pairs(block.weights, num_weights), gram[:, :, 1:].reshape(-1)
            )
        rhs_sum.index_add_(0, block.weights.reshape(-1), gram[:, :, 0].reshape(-1))
        halves.append((block, chol, padded, half[..., 1:]))
    precision = precision.view(size, size)[:num_weights, :num_weights]
    precision.diagonal().add_(1.0)
    precision_chol, flag = cholesky(precision)
    flags.append(flag)
    rhs_sum = rhs_sum[:num_weights].unsqueeze(-1)
    weight_mean = torch.cholesky_solve(rhs_sum, precision_chol).squeeze(-1)
    # A^-1 r - A^-1 F mu is equal to what is computed here, but loses digits
    padded_mean = pad(weight_mean, (0, 1))
    factors = []
    for block, chol, padded, half_features in halves:
        fit = block.features @ padded_mean[block.weights].unsqueeze(-1)
        half_residual = torch.linalg.solve_triangular(chol, padded - fit, upper=False)
        factors.append(BlockFactor(chol, half_features, half_residual.squeeze(-1)))
    return Factorisation(factors, precision_chol, weight_mean), flags
