r"""Log densities of large nodes, interpolated between the points that leaves ask for.

All leaves below a node ask for the same function of their hyperparameters. With the
covariance divided by the noise variance v,

.. math:: R = e^c k + D, \quad c = \log s^2 - \log v, \quad D = I

(or, of known noise, v = 1 and D has it), the log density of the data of a node is

.. math:: -\tfrac12 \Bigl(n \log 2 \pi v + \log |R| +
    \frac{y^\top R^{-1} y - 2 m\, 1^\top R^{-1} y + m^2\, 1^\top R^{-1} 1}{v}\Bigr),

so that only four smooth functions of ``z = (log l_1, .., log l_d, c)`` have to be
found: log |R| and the three products. They are evaluated with their gradients where
leaves are, and interpolated by a GP with an RBF kernel (gradient-enhanced kriging,
[Morris1993]_), whose variance says where another evaluation is needed.

References:

.. [Morris1993]
    M. D. Morris, T. J. Mitchell and D. Ylvisaker. Bayesian design and analysis of
    computer experiments: use of derivatives in surface prediction. Technometrics 35,
    1993.
"""

from __future__ import annotations

__all__ = ["Landscape", "Landscapes"]

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from botorch_structured.linalg.correlations import Correlation
from botorch_structured.models.treed.tree import Array

_LOG_TWO_PI = math.log(2.0 * math.pi)
# Lengthscale of the interpolation: 1 to 8 were measured.
_REACH = 2.0
_BLOCK = 128  # rows of a matrix that is worked on at once
# Added to the diagonal of its matrix, as far as it must.
_NUGGETS = (1e-10, 1e-8, 1e-6)
# How fast the variance is taken to fall with the distance to a known point.
_POWER = 2.0  # of squares
_NOWHERE = 1e-12
# How far a star of first points reaches, where 1 is how far leaves may be expected.
_ARM = 0.6


def correlated(
    s: Array, correlation: Correlation, scratch: dict[int, Array]
) -> tuple[Array, Array, Array]:
    """Correlations and their slopes, one triangle, where matrices are worked on.

    Args:
        s: Scaled inputs, ``m x d``.
        correlation: k.
        scratch: Memory by size, as fresh memory takes longer than what is computed.

    Returns:
        ``m x m`` each: one for later, k, and -dk/ds, on and above the diagonal.
    """
    m = len(s)
    ones, squares = np.ones((m, 1)), np.einsum("ij,ij->i", s, s)[:, None]
    # |s - s'|^2 in one product; of symmetric matrices one triangle, in blocks of rows
    # that stay in the cache
    left, right = np.hstack([-2.0 * s, squares, ones]), np.hstack([s, ones, squares])
    if m not in scratch:
        scratch[m] = np.zeros((3, m, m))
    free, k, slope = scratch[m]
    step = m if m <= _BLOCK else _BLOCK // 2
    for first in range(0, m, step):
        block = slice(first, first + step), slice(first, m)
        squared = left[block[0]] @ right[block[1]].T
        np.maximum(squared, 0.0, out=squared)
        # a point is at no distance from itself in spite of rounding
        squared.ravel()[:: squared.shape[1] + 1] = 0.0
        k[block], slope[block] = correlation.array_value_and_slope(squared)
    return free, k, slope


class Landscape:
    """The log density of the data of one node.

    Args:
        X: ``n x d``.
        y: ``n``.
        noise: Known noise variances, ``n``; None if they are not.
        correlation: Of the kernel.
        scratch: Where matrices are worked on, by size.
    """

    def __init__(
        self,
        X: Array,
        y: Array,
        noise: Array | None,
        correlation: Correlation,
        scratch: dict[int, Array],
    ) -> None:
        self.X, self.y, self.noise = X, y, noise
        self.correlation, self.scratch = correlation, scratch
        q = X.shape[1] + 1
        self.places = np.zeros((0, q))
        self.values = np.zeros((0, 4))
        self.slopes = np.zeros((0, q, 4))

    def learn(self, z: Array) -> bool:
        """Evaluate the four functions at more points; False without a factor."""
        found = [self._evaluate(at) for at in z]
        values = [point[0] for point in found if point is not None]
        if len(values) < len(found):
            return False
        slopes = [point[1] for point in found if point is not None]
        self.places = np.concatenate([self.places, z])
        self.values = np.concatenate([self.values, np.stack(values)])
        self.slopes = np.concatenate([self.slopes, np.stack(slopes)])
        return self._interpolate()

    def _evaluate(self, z: Array) -> tuple[Array, Array] | None:
        """Values of the four functions, ``4``, and gradients, ``(d + 1) x 4``."""
        X, y, n = self.X, self.y, len(self.y)
        d = X.shape[1]
        noise = np.ones(n) if self.noise is None else self.noise
        s = X * np.exp(-z[:d])
        R, k, slope = correlated(s, self.correlation, self.scratch)
        factor = math.exp(z[d])
        np.multiply(k, factor, out=R)
        R.ravel()[:: n + 1] += noise
        chol, info = lapack.dpotrf(R.T, lower=1, clean=1, overwrite_a=1)
        if info != 0:
            return None
        log_det = 2.0 * float(np.log(chol.diagonal()).sum())
        b = np.stack([y, np.ones(n)], axis=1)
        alpha = lapack.dpotrs(chol, b, lower=1)[0]
        inverse, info = lapack.dpotri(chol, lower=1, overwrite_c=1)
        if info != 0:
            return None
        Q = float(alpha[:, 1].sum())
        mean = float(alpha[:, 0].sum()) / Q
        alpha[:, 0] -= mean * alpha[:, 1]  # of y - mu
        S = float(alpha[:, 0] @ (y - mean))
        if not S > 0.0:  # outcomes are all equal
            return None
        slopes = np.empty((d + 1, 4))
        # - alpha' (dR) alpha of both, and of both together; by c dR is R - D
        right = noise[:, None] * alpha
        by_c = alpha.T @ right
        slopes[d, 0] = n - float(noise @ inverse.diagonal())
        slopes[d, 1:] = by_c[0, 0] - S, by_c[0, 1], by_c[1, 1] - Q
        # by log l sums of G * slope * (s - s')^2, G the inverse or alpha alpha'
        h = np.hstack([np.ones((n, 1)), s])
        both = np.einsum("ni,nj->nij", alpha, h)
        sides = np.asfortranarray(both.reshape(n, -1))
        turned = blas.dsymm(1.0, slope.T, sides, lower=1).reshape(n, 2, d + 1)
        for f, (i, j) in enumerate(((0, 0), (0, 1), (1, 1)), start=1):
            far = np.einsum("nj,n->j", s * s, alpha[:, i] * turned[:, j, 0])
            far += np.einsum("nj,n->j", s * s, alpha[:, j] * turned[:, i, 0])
            near = np.einsum("nj,nj->j", both[:, i, 1:], turned[:, j, 1:])
            slopes[:d, f] = -2.0 * factor * (far - 2.0 * near)
        slopes[:, 1] /= S
        slopes[:, 2:] /= Q
        inverse *= slope.T
        turned = blas.dsymm(1.0, inverse, np.asfortranarray(h), lower=1)
        inner = turned[:, :1] * s - turned[:, 1:]
        slopes[:d, 0] = 4.0 * factor * np.einsum("nj,nj->j", inner, s)
        return np.array([log_det, math.log(S), mean, math.log(Q)]), slopes

    def _interpolate(self) -> bool:
        K, q = self.places.shape
        values, inner, outer = _covariances(self.places, self.places)
        size = K * (q + 1)
        matrix = np.empty((size, size))
        matrix[:K, :K] = values
        matrix[:K, K:] = inner.reshape(K, -1)
        matrix[K:, :K] = matrix[:K, K:].T
        matrix[K:, K:] = outer.transpose(0, 2, 1, 3).reshape(K * q, K * q)
        self.mean = self.values.mean(0)
        known = [self.values - self.mean, _REACH * self.slopes.reshape(K * q, 4)]
        sides = np.concatenate(known)
        for nugget in _NUGGETS:
            noisy = matrix + nugget * np.eye(size)
            self.chol, info = lapack.dpotrf(noisy.T, lower=1, clean=1, overwrite_a=1)
            if info == 0:
                break
        else:
            return False
        found = lapack.dpotrs(self.chol, sides, lower=1)[0]
        self.scale = (sides * found).sum(0) / size
        self.by_value = found[:K]
        self.by_slope = found[K:].reshape(K, q, 4)
        return True

    def functions(self, z: Array) -> tuple[Array, Array]:
        """The four functions, ``k x 4``, and gradients, ``k x (d + 1) x 4``."""
        away = (z[:, None] - self.places) / _REACH
        near = np.exp(-0.5 * np.einsum("kiq,kiq->ki", away, away))
        k, (K, q) = len(z), self.places.shape
        sums = (away.transpose(1, 0, 2) @ self.by_slope).transpose(1, 0, 2)
        sums += self.by_value
        sums *= near[..., None]
        values = sums.sum(1) + self.mean
        slopes = (near @ self.by_slope.reshape(K, -1)).reshape(k, q, 4)
        slopes -= away.transpose(0, 2, 1) @ sums
        slopes /= _REACH
        return values, slopes

    def variances(self, z: Array) -> Array:
        """Of the error of gradients by z, ``k x (d + 1)``, in units of ``scale``."""
        k, q = z.shape
        _, inner, outer = _covariances(z, self.places)
        size = len(self.chol)
        rows = np.concatenate(
            [
                -inner.transpose(0, 2, 1),
                outer.transpose(0, 2, 1, 3).reshape(k, q, -1),
            ],
            axis=-1,
        )
        half = lapack.dtrtrs(self.chol, rows.reshape(k * q, size).T, lower=1)[0]
        rest = np.maximum(1.0 - np.square(half).sum(0).reshape(k, q), 0.0)
        return rest / _REACH**2

    def wanted(self, z: Array, doubt: Array) -> NDArray[np.int64]:
        """Which points to learn so that no doubt is larger than 1, in order.

        Args:
            z: Candidates, ``k x (d + 1)``.
            doubt: Of each; it falls where a point nearby is learned.
        """
        found = []
        nearest = np.square(z[:, None] - self.places).sum(-1).min(1)
        doubt = np.where(nearest < _NOWHERE, 0.0, doubt)
        for _ in range(len(z)):
            worst = int(doubt.argmax())
            if not doubt[worst] > 1.0:
                break
            found.append(worst)
            now = np.square(z - z[worst]).sum(-1)
            less = now / np.maximum(nearest, _NOWHERE)
            doubt = doubt * np.minimum(less, 1.0) ** _POWER
            nearest = np.minimum(nearest, now)
        return np.array(found, dtype=np.int64)


def place(theta: Array, known: bool) -> Array:
    """z, ``k x (d + 1)``, of theta, ``k x (d + 3)``.

    Args:
        theta: Hyperparameters.
        known: Whether the noise is.
    """
    z = theta[:, :-2].copy()
    if not known:
        z[:, -1] -= theta[:, -1]
    return z


def _by_functions(theta: Array, values: Array, known: bool) -> Array:
    """Derivatives of the log density by the four functions, ``k x 4``."""
    v = 1.0 if known else np.exp(theta[:, -1])
    off = theta[:, -2] - values[:, 2]
    pull = np.exp(values[:, 3]) * off / v
    found = np.empty((len(theta), 4))
    found[:, 0], found[:, 1] = -0.5, -0.5 * np.exp(values[:, 1]) / v
    found[:, 2], found[:, 3] = pull, -0.5 * pull * off
    return found


def density(
    theta: Array, values: Array, slopes: Array, sizes: Array, known: bool
) -> tuple[Array, Array]:
    """Log densities ``k`` and gradients ``k x (d + 3)`` of the four functions.

    Args:
        theta: Hyperparameters, ``k x (d + 3)``.
        values: Of the functions, ``k x 4``.
        slopes: Their gradients, ``k x (d + 1) x 4``.
        sizes: Numbers of data, ``k``.
        known: Whether the noise is.
    """
    by = _by_functions(theta, values, known)
    squares = by[:, 1] + by[:, 3]
    found = -0.5 * (sizes * _LOG_TWO_PI + values[:, 0]) + squares
    gradient = np.zeros_like(theta)
    gradient[:, :-2] = (slopes @ by[..., None])[..., 0]
    gradient[:, -2] = -by[:, 2]
    if not known:
        found -= 0.5 * sizes * theta[:, -1]
        gradient[:, -1] = -0.5 * sizes - squares - gradient[:, -3]
    return found, gradient


class Landscapes:
    """What large nodes say of the leaves below them, weighted and summed.

    Args:
        nodes: The nodes, ``N``.
        weights: Of the leaves, ``N x L``; zero for those that are not below a node.
    """

    def __init__(self, nodes: Sequence[Landscape], weights: Array) -> None:
        self.nodes, self.weights = nodes, weights
        self.sizes = np.array([len(node.y) for node in nodes])
        self.known = nodes[0].noise is not None

    def begin(self, theta: Array, spread: Array) -> bool:
        """Learn a star around a point; False if a node has no factor there.

        Args:
            theta: ``d + 3``.
            spread: How far from it leaves may be expected, ``d + 3``.
        """
        steps = _ARM * np.diag(spread)[:-2]
        steps[1::2] *= -1.0
        star = np.concatenate([theta[None], theta + steps])
        return all(node.learn(place(star, self.known)) for node in self.nodes)

    def __call__(self, leaves: NDArray[np.int64], theta: Array) -> tuple[Array, Array]:
        """Values ``k`` and gradients ``k x (d + 3)`` of some leaves."""
        z = place(theta, self.known)
        weights = self.weights[:, leaves]
        below = [np.flatnonzero(row) for row in weights]
        parts = [
            node.functions(z[some])
            for node, some in zip(self.nodes, below, strict=True)
        ]
        where = np.concatenate(below)
        found, slopes = density(
            theta[where],
            np.concatenate([values for values, _ in parts]),
            np.concatenate([gradients for _, gradients in parts]),
            np.repeat(self.sizes, [len(some) for some in below]),
            self.known,
        )
        share = weights[weights > 0.0]
        values, gradients = np.zeros(len(theta)), np.zeros_like(theta)
        np.add.at(values, where, share * found)
        np.add.at(gradients, where, share[:, None] * slopes)
        return values, gradients

    def learn(self, theta: Array, curvature: Array, tolerance: float) -> int | None:
        """Evaluate nodes where what may be gained by knowing them better matters.

        Args:
            theta: Where the leaves are, ``L x (d + 3)``.
            curvature: Minus the second derivatives, ``L x (d + 3) x (d + 3)``.
            tolerance: Of the gain, summed over leaves.

        Returns:
            The number of evaluations; None if one has no factor.
        """
        bend = np.linalg.inv(curvature).diagonal(axis1=1, axis2=2)
        enough = tolerance / len(theta) / np.maximum((self.weights > 0).sum(0), 1)
        count = 0
        for node, weights in zip(self.nodes, self.weights, strict=True):
            below = np.flatnonzero(weights)
            z, at = place(theta[below], self.known), theta[below]
            by = _by_functions(at, node.functions(z)[0], self.known)
            shares = np.square(by) @ node.scale * np.square(weights[below])
            bends = bend[below, :-2]
            if not self.known:
                bends[:, -1] += bend[below, -1]
            gain = 0.5 * shares * (node.variances(z) * bends).sum(-1)
            wanted = node.wanted(z, gain / enough[below])
            if len(wanted):
                if not node.learn(z[wanted]):
                    return None
                count += len(wanted)
        return count


def _covariances(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Of values ``k x k'``, with gradients ``k x k' x q``, of gradients ``.. x q x q``.

    Gradients are by the places over the reach; of values at ``a``, gradients at ``b``.
    """
    away = (a[:, None] - b) / _REACH
    values = np.exp(-0.5 * np.square(away).sum(-1))
    inner = values[..., None] * away
    outer = -inner[..., None] * away[..., None, :]
    diagonal = np.arange(a.shape[1])
    outer[..., diagonal, diagonal] += values[..., None]
    return values, inner, outer
