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

__all__ = ["Block", "BlockDerivatives", "log_evidence"]

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
_LOG_TWO_PI = math.log(2.0 * math.pi)


class Block(NamedTuple):
    """Blocks of the same size, padded.

    Attributes:
        covariance: A_p, ``B x N x N``, the identity where padded.
        features: F_p, ``B x N x D``, zero where padded.
        rows: Their rows, ``B x N``; ``n`` where padded.
        weights: Which weights the features are of, ``B x D``; ``V`` where unused.
    """

    covariance: Array
    features: Array
    rows: Indices
    weights: Indices

    def pairs(self, width: int) -> Indices:
        """Where products of two of these weights are in a matrix ``width x width``."""
        return self.weights[:, :, None] * width + self.weights[:, None, :]


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
    blocks: list[Block], residual: Array, num_weights: int
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
    blocks: list[Block], residual: Array, num_weights: int
) -> tuple[float, list[BlockDerivatives]]:
    """From factors of A_p and of M; ``residual`` has a zero for padded rows."""
    width = num_weights + 1  # one more weight, for unused places
    logdet, parts = 0.0, []
    grams: list[Array] = []
    sums: list[Array] = []
    pairs: list[Indices] = []
    places: list[Indices] = []
    for block in blocks:
        inverse, log_diagonal = inverse_factors(block.covariance)
        logdet += log_diagonal
        right = residual[block.rows][..., None]
        half, pair = block.features, block.pairs(width)
        if num_weights:
            half = inverse @ half
            turned = half.swapaxes(1, 2)
            grams.append((turned @ half).ravel())
            pairs.append(pair.ravel())
            sums.append((turned @ (inverse @ right)).ravel())
            places.append(block.weights.ravel())
        parts.append((inverse, half, right, pair))
    mean, covariance = np.zeros(width), np.zeros((width, width))
    quad = 0.0
    if num_weights:
        precision = _summed(pairs, grams, width * width)
        precision[:: width + 1] += 1.0
        precision = precision.reshape(width, width)[:-1, :-1]
        root, log_diagonal = inverse_factors(precision[None])
        logdet += log_diagonal
        covariance[:-1, :-1] = root[0].T @ root[0]
        total = _summed(places, sums, width)
        mean[:-1] = root[0].T @ (root[0] @ total[:-1])
        quad = float(mean @ mean)
    derivatives = []
    for block, (inverse, half, right, pair) in zip(blocks, parts, strict=True):
        # residuals from the posterior mean of the weights: r'A^-1 r - u'mu is the
        # same, but loses digits by cancellation when the noise is small
        mine = mean[block.weights][..., None]
        rest = inverse @ (right - block.features @ mine)
        both = inverse.swapaxes(1, 2) @ np.concatenate([rest, half], axis=-1)
        alpha = both[..., :1]
        spread = both[..., 1:] @ covariance.take(pair)
        d_features = alpha * mine.swapaxes(1, 2) - spread
        left = 0.5 * np.concatenate([alpha, spread], axis=-1)
        g = left @ both.swapaxes(1, 2)
        quad += float(np.vdot(rest, rest))
        _subtract_half_inverses(g, inverse)
        derivatives.append(BlockDerivatives(g, d_features, -alpha[..., 0]))
    n = len(residual) - 1
    return -0.5 * (quad + logdet + n * _LOG_TWO_PI), derivatives


def _as_one(
    blocks: list[Block], residual: Array, num_weights: int
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
    np.subtract(np.multiply.outer(alpha, alpha), g[:n, :n], out=g[:n, :n])
    g[n], g[:, n] = 0.0, 0.0
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
    evidence = -0.5 * (float(half @ half) + logdet + n * _LOG_TWO_PI)
    return evidence, derivatives


def _summed(places: list[Indices], values: list[Array], size: int) -> Array:
    """Values added up by place, ``size``."""
    if len(places) == 1:
        return np.bincount(places[0], values[0], size).astype(np.float64, copy=False)
    total = np.bincount(np.concatenate(places), np.concatenate(values), size)
    return total.astype(np.float64, copy=False)


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
