r"""Gaussians with independent blocks and a few weights that couple them.

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

With alpha = K^-1 r, the posterior mean mu of the weights, and R = A^-1 F, the
derivatives of the evidence are

    dA_p:  1/2 (alpha alpha' - A_p^-1 + R M^-1 R')         dF_p:  alpha mu' - R M^-1

``factorise`` is for torch. ``log_evidence`` is the same for NumPy, in a tenth of the
time for small matrices; where weights are more than rows it factorises one ``n x n``
matrix. Torch's ``psd_safe_cholesky`` takes ten times as long as LAPACK for matrices of
a few rows, which a fit factorises some hundred times. A CUDA graph cannot wait for the
flags of LAPACK: whoever replays it reads them (``unread_flags``).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from linear_operator import settings
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NotPSDError
from linear_operator.utils.warnings import NumericalWarning
from numpy.typing import NDArray
from scipy.linalg import lapack
from threadpoolctl import LibController, ThreadpoolController
from torch import Tensor
from torch.nn.functional import pad

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_UNREAD: ContextVar[list[Tensor] | None] = ContextVar("unread_flags", default=None)
# Up to so many rows per weight one n x n factor takes less time than those of blocks.
ROWS_PER_WEIGHT = 1.5
# Inverses of blocks up to this size are products of all their inverse factors at once.
_MEDIUM = 100
# With no more weights M is factorised, however few the rows are.
_FEW_WEIGHTS = 256
# Up to so many rows one thread factorises faster than several.
_ROWS_FOR_ONE_THREAD = 1000


# -- factors ------------------------------------------------------------------------


@contextmanager
def unread_flags() -> Iterator[list[Tensor]]:
    """Within it ``failed`` reads no flags, and says that nothing has failed.

    Yields:
        The flags that it was given meanwhile; the result is wrong unless all are zero.
    """
    flags: list[Tensor] = []
    token = _UNREAD.set(flags)
    try:
        yield flags
    finally:
        _UNREAD.reset(token)


def failed(flags: Sequence[Tensor]) -> bool:
    """Whether a factorisation failed; a device is waited for once for all of them.

    Args:
        flags: The second outputs of ``torch.linalg.cholesky_ex``.
    """
    all_flags = torch.cat([*map(torch.ravel, flags)])
    unread = _UNREAD.get()
    if unread is None:
        return bool(all_flags.any())
    unread.append(all_flags)
    return False


def cholesky(
    covariance: Array,
    jitters: Sequence[float] | None = None,
    lower: bool = True,
) -> Array:
    """The factor L of A = L L', in the order of Fortran; NaN where A has NaN.

    Args:
        covariance: A, ``N x N``; it is not changed.
        jitters: Numbers that are added to the diagonal, one after the other, until
            there is a factor. Default: those of ``psd_safe_cholesky``.
        lower: L; else L'.

    Raises:
        NotPSDError: If there is none with the last one either.
    """
    # LAPACK reads by columns: of a symmetric array the transpose needs no copy
    factor, info = lapack.dpotrf(covariance.T, lower=lower, clean=1)
    if info == 0:
        return factor
    if np.isnan(covariance).any():
        return np.full_like(covariance, math.nan)
    if jitters is None:
        least = settings.cholesky_jitter.value(torch.float64)
        jitters = [least * 10.0**i for i in range(settings.cholesky_max_tries.value())]
    for jitter in jitters:
        shifted = covariance.copy()
        shifted.flat[:: len(covariance) + 1] += jitter
        factor, info = lapack.dpotrf(
            shifted.T,
            lower=lower,
            clean=1,
            overwrite_a=1,
        )
        if info == 0:
            return factor
    raise NotPSDError(
        "covariance: expected a positive definite matrix, got one that is not, even "
        f"with {jitters[-1]:.1e} added to its diagonal."
    )


def inverse_factors(covariance: Array) -> tuple[Array, float]:
    """L^-1 of each A = L L', ``B x N x N``, and the sum of log |A|.

    Args:
        covariance: A, ``B x N x N``.

    Raises:
        NotPSDError: If one of them has no factor even with jitter.
    """
    inverse = covariance.copy()
    for one, matrix in zip(inverse, covariance, strict=True):
        # in place: by columns the transpose is the upper factor
        if lapack.dpotrf(one.T, 0, 1, 1)[1]:
            one[:] = cholesky(matrix, lower=False).T
        lapack.dtrtri(one.T, 0, 0, 1)
    logs = np.log(inverse.diagonal(0, 1, 2))
    return inverse, -2.0 * float(np.add.reduce(logs, None))


def given_last(
    mean: Tensor,
    covariance: Tensor,
    noise: Tensor,
    targets: Tensor,
) -> tuple[Tensor, Tensor]:
    """A joint Gaussian given noisy observations of its last points.

    With (m, C) those of all points, f the last ones and s the noise variances,

        S = C_ff + diag(s),   m_x + C_xf S^-1 (y - m_f),   C_xx - C_xf S^-1 C_fx.

    Batch shapes broadcast: outcomes of many fantasies share S.

    Args:
        mean: ``batch_shape x (q + f)``.
        covariance: ``batch_shape x (q + f) x (q + f)``.
        noise: Noise variances of the observations, broadcastable to ``targets``.
        targets: The observations, ``batch_shape x f``.

    Raises:
        NotPSDError: If the covariance of the outcomes is not positive definite even
            with jitter.
    """
    q = mean.shape[-1] - targets.shape[-1]
    noise = noise.expand(*noise.shape[:-1], targets.shape[-1])
    root = psd_safe_cholesky(covariance[..., q:, q:] + torch.diag_embed(noise))
    gain = torch.linalg.solve_triangular(
        root,
        covariance[..., q:, :q],
        upper=False,
    )
    residual = (targets - mean[..., q:]).unsqueeze(-1)
    residual = torch.linalg.solve_triangular(root, residual, upper=False)
    mean = mean[..., :q] + (gain.mT @ residual).squeeze(-1)
    return mean, covariance[..., :q, :q] - gain.mT @ gain


@contextmanager
def few_threads(rows: int = 0) -> Iterator[None]:
    """Use one thread for factorisations of small matrices, where that is faster.

    At 200 rows two threads on busy cores took nine times as long as one. This sets the
    threads of NumPy's and SciPy's LAPACK, not those of torch.

    Args:
        rows: Rows of the matrices.
    """
    if rows > _ROWS_FOR_ONE_THREAD:
        yield
        return
    # ``ThreadpoolController.limit`` asks the libraries for all they know
    libraries = _blas()
    before = []
    try:
        for library in libraries:
            before.append(library.num_threads)
            library.set_num_threads(1)
        yield
    finally:
        for library, count in zip(libraries, before, strict=False):
            library.set_num_threads(count)


@cache
def _blas() -> list[LibController]:
    # looking for the libraries takes as long as ten evaluations of a small objective
    libraries: list[LibController]
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return libraries


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings of jitter, which is added to nearly singular matrices.

    A slice sampler evaluates hyperparameters at the ends of their ranges.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        yield


# -- in torch ---------------------------------------------------------------------


@dataclass(frozen=True)
class Bucket:
    """Leaves of similar size, padded to a common number of rows.

    Attributes:
        leaves: Which leaves of the layout these are, ``B``.
        index: Their rows, ``B x N``; ``n`` (one past the last row) where padded, which
            is at the end.
        real: ``B x N``, False where padded; None if nothing is padded.
        rows: ``index`` with a row of the same leaf where padded, ``B x N``.
    """

    leaves: Tensor
    index: Tensor
    real: Tensor | None
    rows: Tensor


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
    counts = entries.sum(-1)
    places = np.arange(max(counts.max(), 1))
    ascending = np.full((len(entries), len(places)), width)
    ascending[places < counts[:, None]] = entries.nonzero()[1]
    return torch.from_numpy(ascending).to(mask.device)


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
        tensor = partial(torch.as_tensor, device=keys.device)
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
        members: dict[int, list[int]] = {}
        for leaf, size in enumerate(self.sizes):
            members.setdefault(widths[size], []).append(leaf)
        self.buckets: list[Bucket] = []
        for width in sorted(members):
            leaves = np.array(members[width])
            place = np.arange(width)
            position = np.minimum(start[leaves, None] + place, n - 1)
            inside = place < counts[leaves, None]
            index = rows = tensor(np.where(inside, order[position], n))
            real = None
            if not inside.all():
                real = tensor(inside)
                rows = torch.where(real, index, index[:, :1])
            self.buckets.append(Bucket(tensor(leaves), index, real, rows))

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

    def variances(self, features: Tensor) -> Tensor:
        """Variances z M^-1 z' of rows of scaled features, ``... x V``."""
        if self.explained is None:
            return (features @ self.inverse_chol.mT).square().sum(-1)
        explained = (features @ self.explained.mT).square().sum(-1)
        return features.square().sum(-1) - explained

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
        """Those of the density by A_p, F_p and the rows of r, see ``log_evidence``.

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
    cholesky: Callable[[Tensor], tuple[Tensor, Tensor]] = torch.linalg.cholesky_ex,
) -> Factorisation:
    """Factorise K and solve for the residual; differentiable.

    Args:
        blocks: The buckets.
        residual: y - m, ``n``.
        num_weights: V.
        cholesky: A matrix to its factor, and flags that are zero where it is definite.
            Where one is not, all are factorised again with jitter.

    Raises:
        NotPSDError: If a block is not positive definite even with jitter.
    """
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
    if failed(flags):
        return factorise(blocks, residual, num_weights, _with_jitter)
    # A^-1 r - A^-1 F mu is equal to what is computed here, but loses digits
    padded_mean = pad(mean, (0, 0, 0, 1))
    factors = []
    for block, (padded, inverse, half) in zip(blocks, halves, strict=True):
        rest = inverse @ (padded - block.features @ padded_mean[block.weights])
        factors.append(BlockFactor(inverse, torch.cat([rest, half], dim=-1)))
    covariance = WeightCovariance(root, explained if by_rows else None)
    return Factorisation(factors, covariance, mean.squeeze(-1))


def _with_jitter(matrix: Tensor) -> tuple[Tensor, Tensor]:
    return psd_safe_cholesky(matrix), torch.zeros(1)


def _inverse(chol: Tensor) -> Tensor:
    eye = _eye(chol.shape[-1], chol).expand_as(chol)
    return torch.linalg.solve_triangular(chol, eye, upper=False)


def _eye(n: int, like: Tensor) -> Tensor:
    # made on the device: a graph cannot record a copy to it
    return torch.eye(n, dtype=like.dtype, device=like.device)


# -- in NumPy ---------------------------------------------------------------------


class Block(NamedTuple):
    """Blocks of the same size, padded.

    Attributes:
        covariance: A_p, ``B x N x N``, the identity where padded.
        features: F_p, ``B x N x D``, zero where padded.
        rows: Their rows, ``B x N``; ``n`` where padded.
        weights: Which weights the features are of, ``B x D``; ``V`` where unused.
        pairs: ``weight_pairs`` of these, if they are at hand.
    """

    covariance: Array
    features: Array
    rows: Indices
    weights: Indices
    pairs: Indices | None = None


def weight_pairs(weights: Indices, num_weights: int) -> Indices:
    """Places of pairs of columns in a matrix of all weights, ``B x (1 + D) x (1 + D)``.

    The first column is the residual, which counts as a weight of its own. It is the
    last of the matrix, behind one for unused places.

    Args:
        weights: See ``Block``.
        num_weights: V.
    """
    columns = np.full((len(weights), 1 + weights.shape[1]), num_weights + 1)
    columns[:, 1:] = weights
    return columns[:, :, None] * (num_weights + 2) + columns[:, None, :]


class BlockDerivatives(NamedTuple):
    """The derivative of the evidence by a ``Block``.

    Attributes:
        covariance: ``B x N x N``, to be multiplied by changes that are symmetric.
        features: ``B x N x D``.
        residual: ``B x N``; that of a padded row is zero.
    """

    covariance: Array
    features: Array
    residual: Array


def log_evidence(
    blocks: list[Block],
    residual: Array,
    num_weights: int,
) -> tuple[float, list[BlockDerivatives]]:
    """Log N(r; 0, blockdiag(A_p) + F F'), with derivatives; NaN if a matrix has NaN.

    Args:
        blocks: The blocks.
        residual: r, ``n``.
        num_weights: V.

    Raises:
        NotPSDError: If a matrix is not positive definite even with jitter.
    """
    n = len(residual)
    residual = np.append(residual, 0.0)  # for padded rows
    if n <= ROWS_PER_WEIGHT * num_weights:
        return _as_one(blocks, residual, num_weights)
    # from factors of A_p and of M, with the residual as a column beside the features,
    # so that most products are of both
    width = num_weights + 2
    logdet = 0.0
    grams: list[Array] = []
    places: list[Indices] = []
    parts = []
    for block in blocks:
        inverse, log_diagonal = inverse_factors(block.covariance)
        logdet += log_diagonal
        right = residual[block.rows][:, :, None]
        columns = np.concatenate([right, block.features], axis=-1)
        half = inverse @ columns
        pairs = block.pairs
        if pairs is None:
            pairs = weight_pairs(block.weights, num_weights)
        grams.append((half.swapaxes(1, 2) @ half).ravel())
        places.append(pairs.ravel())
        parts.append((inverse, columns, half, pairs))
    covariance = np.zeros((width, width))
    covariance[-1, -1] = 1.0
    # minus the mean of the weights, and one for the residual
    shift = np.zeros(width)
    shift[-1] = 1.0
    quad = 0.0
    if num_weights:
        if len(parts) > 1:
            grams = [np.concatenate(grams)]
            places = [np.concatenate(places)]
        total = np.bincount(places[0], grams[0], width * width)
        gram = np.asarray(total, dtype=np.float64).reshape(width, width)
        gram.ravel()[: num_weights * width : width + 1] += 1.0
        root, log_diagonal = inverse_factors(gram[None, :-2, :-2])
        logdet += log_diagonal
        covariance[:-2, :-2] = root[0].T @ root[0]
        mean = root[0].T @ (root[0] @ gram[:-2, -1])
        shift[:-2] = -mean
        quad = float(mean @ mean)
    derivatives = []
    for inverse, columns, half, pairs in parts:
        shifts = shift[pairs[:, 0] - (num_weights + 1) * width]
        # residuals from the posterior mean of the weights: r'A^-1 r - u'mu is the
        # same, but loses digits by cancellation when the noise is small
        rest = inverse @ (columns @ shifts[:, :, None])
        quad += float(np.vdot(rest, rest))
        half[:, :, :1] = rest
        both = inverse.swapaxes(1, 2) @ half
        alpha = both[:, :, :1]
        spread = both @ covariance.take(pairs)
        shifts[:, 0] = 0.0
        d_columns = alpha * -shifts[:, None, :]
        d_columns -= spread
        spread *= 0.5
        g = spread @ both.swapaxes(1, 2)
        # less A^-1 / 2, up to what symmetric changes ignore
        if g.shape[-1] <= _MEDIUM:
            inverse *= math.sqrt(0.5)
            g -= inverse.swapaxes(1, 2) @ inverse
        else:
            for one, factor in zip(g, inverse, strict=True):
                # one triangle, in a sixth of the operations, less half the diagonal
                whole = lapack.dlauum(factor.T, overwrite_c=1)[0]
                one -= whole
                one.flat[:: len(one) + 1] += 0.5 * whole.diagonal()
        d_residual = d_columns[:, :, 0]
        derivatives.append(BlockDerivatives(g, d_columns[:, :, 1:], d_residual))
    evidence = -0.5 * (quad + logdet + n * math.log(2.0 * math.pi))
    return evidence, derivatives


def _as_one(
    blocks: list[Block],
    residual: Array,
    num_weights: int,
) -> tuple[float, list[BlockDerivatives]]:
    """From one ``n x n`` factor; ``residual`` has a zero for padded rows."""
    n = len(residual) - 1
    # the last row and column take the padding
    features = np.zeros((n + 1, num_weights + 1))
    whole = np.zeros((n + 1, n + 1))
    for block in blocks:
        rows = block.rows
        features[rows[:, :, None], block.weights[:, None, :]] = block.features
        whole[rows[:, :, None], rows[:, None, :]] = block.covariance
    F = features[:n, :num_weights]
    covariance = whole[:n, :n] + F @ F.T
    inverse, logdet = inverse_factors(covariance[None])
    half = inverse[0] @ residual[:n]
    alpha = inverse[0].T @ half
    g = whole
    g[:n, :n] = inverse[0].T @ inverse[0]
    np.subtract(
        np.multiply.outer(alpha, alpha),
        g[:n, :n],
        out=g[:n, :n],
    )
    g[n] = 0.0
    g[:, n] = 0.0
    features[:n, :num_weights] = g[:n, :n] @ F
    g *= 0.5
    d_residual = np.append(-alpha, 0.0)
    derivatives = [
        BlockDerivatives(
            g[b.rows[:, :, None], b.rows[:, None, :]],
            features[b.rows[:, :, None], b.weights[:, None, :]],
            d_residual[b.rows],
        )
        for b in blocks
    ]
    evidence = -0.5 * (float(half @ half) + logdet + n * math.log(2.0 * math.pi))
    return evidence, derivatives


# -- several at once --------------------------------------------------------------

#: An algorithm that yields points, gets what is at each, and returns its result.
Steps = Generator[Any, Any, Any]


def finish(
    several: Sequence[Steps],
    evaluate: Callable[[list[Any]], Iterable[Any]] = list,
) -> list[Any]:
    """Results of algorithms, which go on together with one evaluation for all.

    Args:
        several: What have not started yet.
        evaluate: What is at the last point of each; of those that have returned, whose
            points stay, nobody reads it.
    """
    points = list(map(next, several))
    results: dict[int, Any] = {}
    while len(results) < len(several):
        values = list(evaluate(points))
        for i, steps in enumerate(several):
            if i not in results:
                try:
                    points[i] = steps.send(values[i])
                except StopIteration as end:
                    results[i] = end.value
    return list(map(results.__getitem__, range(len(several))))
