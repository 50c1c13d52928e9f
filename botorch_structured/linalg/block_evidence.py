r"""Evidence of independent blocks and shared weights, with derivatives, for NumPy.

The algebra is that of ``block_low_rank`` and of ``models.tree.leaf_inference``, where
it is in torch: K = blockdiag(A_p) + F F', and with alpha = K^-1 r, the posterior mean
mu and precision M of the weights, and R = A^-1 F,

    dA_p:  1/2 (alpha alpha' - A_p^-1 + R M^-1 R')         dF_p:  alpha mu' - R M^-1

For small matrices NumPy takes a tenth of the time of torch, which is all overhead.
Blocks and M are factorised, or one ``n x n`` matrix, which is smaller than M where
weights are more than rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from botorch_structured.linalg.factor import inverse_factors

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# Up to so many rows per weight one n x n factor takes less time than those of blocks.
_ROWS_PER_WEIGHT = 1.5
# Inverses of blocks up to this size are products of all their inverse factors at once.
_MEDIUM = 100


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
    as_one = len(residual) <= _ROWS_PER_WEIGHT * num_weights
    evidence = _as_one if as_one else _by_block
    return evidence(blocks, np.append(residual, 0.0), num_weights)


def _by_block(
    blocks: list[Block],
    residual: Array,
    num_weights: int,
) -> tuple[float, list[BlockDerivatives]]:
    """From factors of A_p and of M; ``residual`` has a zero for padded rows.

    With the residual as a column beside the features, most products are of both.
    """
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
        precision = gram[:-2, :-2]
        precision.flat[:: num_weights + 1] += 1.0
        root, log_diagonal = inverse_factors(precision[None])
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
        d_columns = alpha * -shifts[:, None, :] - spread
        spread *= 0.5
        g = spread @ both.swapaxes(1, 2)
        _subtract_half_inverses(g, inverse)
        d_residual = d_columns[:, :, 0]
        derivatives.append(BlockDerivatives(g, d_columns[:, :, 1:], d_residual))
    n = len(residual) - 1
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


def _subtract_half_inverses(g: Array, inverse: Array) -> None:
    """Subtract A^-1 / 2 from ``B x N x N``, up to what symmetric changes ignore.

    Args:
        g: What to subtract it from.
        inverse: L^-1 of each A = L L', ``B x N x N``; it is overwritten.
    """
    if g.shape[-1] <= _MEDIUM:
        g -= (0.5 * inverse).swapaxes(1, 2) @ inverse
        return
    for one, factor in zip(g, inverse, strict=True):
        # one triangle, in a sixth of the operations: once that, half the diagonal
        whole = lapack.dlauum(factor.T, overwrite_c=1)[0]
        one -= whole
        one.flat[:: len(one) + 1] += 0.5 * whole.diagonal()
