r"""Evidence of one GP on the data of a node of a tree, for the choice of splits.

Growing a tree asks for hundreds of evidences of small data sets, so this is written for
little overhead: a stationary kernel, an amplitude, a mean and a noise variance,

.. math:: \theta = (\log l_1, .., \log l_k, \log s^2, m, \log v),

Gaussian priors on theta, the maximum by damped Fisher scoring (the Fisher information
costs one matrix product more than the gradient, and six to ten steps do), and Laplace's
approximation with the same matrix. Nodes have one lengthscale, ``k = 1``.
"""

from __future__ import annotations

__all__ = [
    "CONVERGED",
    "FULL_STEPS",
    "NodeEvidence",
    "NodeFit",
    "NodePrior",
    "Point",
    "climb",
    "likelihood",
    "thinned",
]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from botorch_structured.linalg.correlations import MATERN52, RBF, Correlation
from botorch_structured.models.treed.cart import Array, Rows

_LOG_TWO_PI = math.log(2.0 * math.pi)
_LARGEST_STEP = 2.0  # of a component of theta
_MAX_DAMPING = 1e6
_LARGEST = 15.0  # of the components of theta
#: Nats: the least gain that a step of a fit has to promise, see `climb`.
CONVERGED = 1.5e-3
#: Of a node with more rows, so many are used.
SCORED_ROWS = 150
#: Most steps of a fit whose evidence decides on a split.
FULL_STEPS = 12


@dataclass(frozen=True)
class NodePrior:
    """Gaussian priors on theta; inputs in [0, 1], outcomes standardised.

    Attributes:
        mode: Of (log l, log s^2, m, log v).
        scale: Standard deviations.
        noise_floor: Smallest noise variance.
    """

    mode: Array
    scale: Array
    noise_floor: float

    @staticmethod
    def of_dimension(d: int, noise_floor: float, lengthscales: int = 1) -> NodePrior:
        """The default: log l grows with log(d) / 2, as distances do.

        The mode of the noise is small, its spread wide: most objectives have none, and
        in a search with few points wiggles must not pass for noise.
        """
        length = [math.log(0.4) + 0.5 * math.log(d)] * lengthscales
        return NodePrior(
            mode=np.array([*length, 0.0, 0.0, -9.0]),
            scale=np.array([1.0] * lengthscales + [1.5, 1.0, 3.0]),
            noise_floor=noise_floor,
        )


@dataclass(frozen=True)
class Point:
    """A log density, its gradient and its (expected) curvature.

    Attributes:
        value: At some theta, ``-inf`` where it cannot be computed.
        gradient: Of the free components of theta.
        information: Of the same: positive definite, minus the expected Hessian.
    """

    value: float
    gradient: Array
    information: Array


@dataclass(frozen=True)
class NodeFit:
    """What is known of a node.

    Attributes:
        theta: Near the mode of the posterior.
        log_evidence: Laplace's approximation.
        point: The density at theta; None if there are no data.
    """

    theta: Array
    log_evidence: float
    point: Point | None = None


def climb(
    evaluate: Callable[[Array, float], Point | None],
    start: Array,
    max_steps: int,
    free: NDArray[np.bool_],
    here: Point | None = None,
    least_gain: float = CONVERGED,
) -> tuple[Array, Point] | None:
    """Maximise by damped scoring.

    Args:
        evaluate: The log density at theta; None where it cannot be computed, and
            perhaps where it is no larger than the second argument.
        start: Where to begin.
        max_steps: Most steps.
        free: Components of theta that are parameters.
        here: The density at the start, if it is known.
        least_gain: It ends where a step h promises less: g'h / 2, in nats.

    Returns:
        The best theta, and the density there; None if the start is not possible.
    """
    theta = start
    if here is None:
        here = evaluate(theta, -math.inf)
    if here is None:
        return None
    damping = 1e-2
    for _ in range(max_steps):
        damped = here.information.copy()
        damped.ravel()[:: len(damped) + 1] *= 1.0 + damping
        _, step, info = lapack.dposv(damped, here.gradient)
        if info != 0 or 0.5 * float(step @ here.gradient) < least_gain:
            break
        largest = float(np.abs(step).max())
        if largest > _LARGEST_STEP:
            step *= _LARGEST_STEP / largest
        trial = theta.copy()
        trial[free] += step
        there = evaluate(trial, here.value)
        if there is None or there.value <= here.value:
            damping *= 8.0
            if damping > _MAX_DAMPING:
                break
            continue
        damping = max(damping / 5.0, 1e-6)
        theta, here = trial, there
    return theta, here


class NodeEvidence:
    """Evidences of subsets of one data set.

    Args:
        X: ``n x d``.
        y: ``n``.
        prior: On theta: with one lengthscale for all columns, or one for each.
        noise: Known noise variances, ``n``; inferred if None.
        categorical: Columns that count as equal or not.
        rbf: Whether the kernel is an RBF kernel instead of Matern-5/2.
    """

    def __init__(
        self,
        X: Array,
        y: Array,
        prior: NodePrior,
        noise: Array | None = None,
        categorical: Sequence[int] = (),
        rbf: bool = False,
    ) -> None:
        n, d = X.shape
        self.num_lengthscales = len(prior.mode) - 3
        # squared distances that go with each lengthscale, ``k x n x n``
        self.squared = np.zeros((self.num_lengthscales, n, n))
        for j in range(d):
            x = X[:, j]
            difference = x[:, None] - x
            self.squared[j % self.num_lengthscales] += (
                difference != 0 if j in categorical else difference**2
            )
        self.y, self.prior, self.known_noise = y, prior, noise
        self._work = np.empty(2 * self.squared.size)
        self.rbf = rbf
        # known noise: log v is not a parameter
        self.free = np.ones(len(prior.mode), dtype=bool)
        self.free[-1] = noise is None
        self._precision = prior.scale**-2.0
        scales = np.log(prior.scale[self.free])
        self._normaliser = float(scales.sum()) + 0.5 * len(scales) * _LOG_TWO_PI

    def fit(
        self,
        rows: Rows,
        starts: Sequence[Array],
        max_steps: int = 30,
        here: Point | None = None,
        least_gain: float = CONVERGED,
    ) -> NodeFit:
        """The posterior mode of theta given some of the data, the best of several.

        Args:
            rows: Which data.
            starts: Where to begin, a theta each.
            max_steps: Steps from each start.
            here: The density at the only start, if it is known.
            least_gain: See `climb`. What a further step promises is added to the
                evidence, but no more than this: the step is not taken.
        """
        if len(rows) == 0:  # nothing was observed: the prior
            return NodeFit(self.prior.mode, 0.0)
        evaluate = self._density(rows)
        best: tuple[Array, Point] | None = None
        for start in starts:
            found = climb(evaluate, start, max_steps, self.free, here, least_gain)
            if found is not None and (best is None or found[1].value > best[1].value):
                best = found
        if best is None:  # not even the prior mode can be factorised
            return NodeFit(self.prior.mode, -math.inf)
        theta, point = best
        return NodeFit(theta, self._laplace(point, least_gain), point)

    def _laplace(self, point: Point, most: float) -> float:
        chol, info = lapack.dpotrf(point.information, lower=1)
        if info != 0:
            return -math.inf
        half = float(np.log(chol.diagonal()).sum())
        whitened = lapack.dtrtrs(chol, point.gradient, lower=1)[0]
        value = point.value + min(0.5 * float(whitened @ whitened), most)
        return value + 0.5 * len(chol) * _LOG_TWO_PI - half

    def _density(self, rows: Rows) -> Callable[[Array, float], Point | None]:
        """Log posterior of theta given some of the data."""
        squared = self.squared
        if len(rows) < len(self.y):
            # by whole rows first: half the time of both at once
            squared = squared.take(rows, axis=1).take(rows, axis=2)
        y = self.y[rows]
        noise = None if self.known_noise is None else self.known_noise[rows]
        return lambda theta, least: self._evaluate(theta, squared, y, noise, least)

    def _evaluate(
        self,
        theta: Array,
        squared: Array,
        y: Array,
        noise: Array | None,
        least: float = -math.inf,
    ) -> Point | None:
        """Log posterior of theta, its gradient and the Fisher information.

        None where it is no larger than ``least``.
        """
        if np.abs(theta).max() > _LARGEST:
            return None
        prior, free = self.prior, self.free
        z = (theta - prior.mode) / prior.scale
        of_prior = -0.5 * float(z[free] @ z[free]) - self._normaliser
        found = likelihood(
            theta,
            squared,
            y,
            RBF if self.rbf else MATERN52,
            prior.noise_floor,
            noise,
            least - of_prior,
            self._work,
        )
        if found is None:
            return None
        value, gradient, information = found
        gradient -= z / prior.scale
        information.ravel()[:: len(z) + 1] += self._precision
        if noise is not None:
            gradient = gradient[free]
            information = information[np.ix_(free, free)]
        value += of_prior
        return Point(value, gradient, information) if math.isfinite(value) else None


def likelihood(
    theta: Array,
    squared: Array,
    y: Array,
    correlation: Correlation,
    floor: float = 0.0,
    noise: Array | None = None,
    least: float = -math.inf,
    work: Array | None = None,
) -> tuple[float, Array, Array] | None:
    """Log density of outcomes given theta, its gradient and the Fisher information.

    Args:
        theta: (log l_1, .., log l_k, log s^2, m, log v).
        squared: Squared distances that go with each lengthscale, ``k x n x n``.
        y: ``n``.
        correlation: Of the kernel.
        floor: Smallest noise variance, to which v is added.
        noise: Known noise variances, ``n``, instead; the components of log v then mean
            nothing.
        least: A log density below it is of no interest: its gradient is not computed.
        work: At least ``2 k n^2`` numbers to overwrite, as fresh memory takes long.

    Returns:
        None if the covariance cannot be factorised, and for less than ``least``.
    """
    n, k = len(y), len(squared)
    variance, mean = math.exp(theta[k]), float(theta[k + 1])
    free_noise = math.exp(theta[k + 2])
    v: Array | float
    v = free_noise + floor if noise is None else noise
    if work is None:
        work = np.empty(2 * squared.size)
    parts, products = work[: 2 * squared.size].reshape(2, k, n, n)
    np.multiply(squared, np.exp(-2.0 * theta[:k])[:, None, None], out=parts)
    covariance, slope = correlation.array_value_and_slope(
        parts[0] if k == 1 else parts.sum(0)
    )
    slope *= 2.0 * variance
    parts *= slope  # derivatives by log l_j
    covariance *= variance
    covariance.ravel()[:: n + 1] += v
    # symmetric: in the order of Fortran the transpose is the same matrix, uncopied
    chol, info = lapack.dpotrf(covariance.T, lower=1, clean=1, overwrite_a=1)
    if info != 0:
        return None
    r = y - mean
    half = lapack.dtrtrs(chol, r, lower=1)[0]
    value = -0.5 * float(half @ half) - 0.5 * n * _LOG_TWO_PI
    value -= float(np.log(chol.diagonal()).sum())
    if value <= least:
        return None
    # in rows: the upper triangle is there, and the lower is zero
    inverse = lapack.dpotri(chol, lower=1, overwrite_c=1)[0].T
    inverse += inverse.T.copy()
    diagonal = inverse.ravel()[:: n + 1]
    diagonal *= 0.5
    alpha = inverse @ r
    np.matmul(inverse, parts, out=products)
    traces = products.reshape(k, -1)[:, :: n + 1].sum(-1)
    column = inverse.ravel()
    if noise is None:
        mixed = products.reshape(k, -1) @ column  # tr(K^-1 dK_j K^-1)
        mixed_v = v * mixed
        squares = float(column @ column)
        total = float(diagonal.sum())
        total_v, squares_v, squares_vv = v * total, v * squares, v**2 * squares
    else:  # log v is not a parameter: its row is left out below
        mixed = np.zeros(k)
        mixed_v = np.einsum("jab,ba,a->j", products, inverse, v)
        total, squares_v = 0.0, 0.0
        total_v = float(diagonal @ v)
        squares = 1.0
        squares_vv = float(v @ (inverse * inverse) @ v)
    square = float(alpha @ alpha)
    gradient = np.empty(k + 3)
    gradient[:k] = 0.5 * (parts @ alpha @ alpha - traces)
    gradient[k] = 0.5 * (float(alpha @ (r - v * alpha)) - n + total_v)
    gradient[k + 1] = float(alpha.sum())
    gradient[k + 2] = 0.5 * free_noise * (square - total)
    # zero between the mean and the rest
    information = np.zeros((k + 3, k + 3))
    if k == 1:
        products = products[0]
        information[0, 0] = 0.5 * float(products.ravel() @ products.T.ravel())
    else:
        np.copyto(parts, products.transpose(0, 2, 1))
        turned = parts.reshape(k, -1)
        information[:k, :k] = 0.5 * (products.reshape(k, -1) @ turned.T)
    information[k, :k] = information[:k, k] = 0.5 * (traces - mixed_v)
    information[k, k] = 0.5 * (n - 2.0 * total_v + squares_vv)
    information[k + 1, k + 1] = float(inverse.sum())
    half = 0.5 * free_noise
    information[k + 2, :k] = information[:k, k + 2] = half * mixed
    information[k + 2, k] = information[k, k + 2] = half * (total - squares_v)
    information[k + 2, k + 2] = half * free_noise * squares
    return value, gradient, information


def thinned(rows: Rows, most: int = SCORED_ROWS) -> Rows:
    """At most so many rows, the same ones each time: what decisions are made on.

    Args:
        rows: Any number of them.
        most: How many.
    """
    if len(rows) <= most:
        return rows
    chosen = np.random.default_rng(0).permutation(len(rows))[:most]
    return rows[np.sort(chosen)]
