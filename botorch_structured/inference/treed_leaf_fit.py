r"""The maximum of equation (2) for one leaf, by scoring.

L-BFGS takes a hundred evaluations or more to find what damped Fisher scoring finds in
ten, as amplitude, noise and lengthscales of a small data set are strongly correlated.
Theta is (log l_1, .., log l_d, log s^2, m, log v); of nodes above the leaf only the
lengthscales are theta's, see ``path_sharing``.
"""

from __future__ import annotations

__all__ = ["LeafObjective", "LeafPrior", "LeafTerm"]

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from botorch_structured.inference.cart import Array
from botorch_structured.inference.treed_node import Point, climb

_LOG_TWO_PI = math.log(2.0 * math.pi)


@dataclass(frozen=True)
class LeafPrior:
    """Independent Gaussians on theta, and bounds.

    Attributes:
        mode: ``d + 3``.
        scale: Standard deviations, ``d + 3``.
        lower: ``d + 3``.
        upper: ``d + 3``.
    """

    mode: Array
    scale: Array
    lower: Array
    upper: Array


class LeafTerm:
    """The weighted evidence of one node.

    Args:
        weight: w_i.
        X: ``m x d``.
        y: ``m``.
        noise: Known noise variances ``m``, or None.
        own: (variance, mean, noise) of a node above the leaf; None for the leaf.
        rbf: Whether the kernel is an RBF kernel instead of Matern-5/2.
    """

    def __init__(
        self,
        weight: float,
        X: Array,
        y: Array,
        noise: Array | None,
        own: tuple[float, float, float] | None,
        rbf: bool = False,
    ) -> None:
        self.weight, self.y, self.noise, self.own = weight, y, noise, own
        self.rbf = rbf
        self.squared = (X.T[:, :, None] - X.T[:, None, :]) ** 2

    def weighted(self, weight: float) -> LeafTerm:
        """The same data on the path of another leaf."""
        other = copy(self)
        other.weight = weight
        return other

    def evaluate(self, theta: Array) -> Point | None:
        """Log evidence of the node, without the weight; all of theta is free."""
        d, n = self.squared.shape[:2]
        length, (log_variance, mean, log_noise) = theta[:d], theta[d:]
        variance, free_noise = math.exp(log_variance), math.exp(log_noise)
        if self.own is not None:
            variance, mean, free_noise = self.own
        v = free_noise if self.noise is None else self.noise
        parts = self.squared * np.exp(-2.0 * length)[:, None, None]
        u = parts.sum(0)
        if self.rbf:
            u *= -0.5
            np.exp(u, out=u)
            u *= variance
            slope = u.copy()
        else:
            u *= 5.0
            np.sqrt(u, out=u)
            e = np.exp(-u)
            e *= variance
            slope = 1.0 + u
            slope *= e
            u *= u
            u *= e
            u *= 1.0 / 3.0
            u += slope  # the covariance
            slope *= 5.0 / 3.0
        u.flat[:: n + 1] += v
        chol, info = lapack.dpotrf(u, lower=1, clean=1, overwrite_a=1)
        if info != 0:
            return None
        r = self.y - mean
        alpha = lapack.dpotrs(chol, r, lower=1)[0]
        value = -0.5 * (float(r @ alpha) + n * _LOG_TWO_PI)
        value -= float(np.log(chol.diagonal()).sum())
        inverse, info = lapack.dpotri(chol, lower=1)
        if info != 0:
            return None
        inverse += inverse.T  # the upper triangle was zero
        inverse.flat[:: n + 1] *= 0.5
        parts *= slope  # derivatives by log l_j
        products = [inverse @ part for part in parts]
        traces = [float(product.trace()) for product in products]
        p = d + 3
        gradient = np.zeros(p)
        information = np.zeros((p, p))
        for j, part in enumerate(parts):
            gradient[j] = 0.5 * (float(alpha @ (part @ alpha)) - traces[j])
            for k in range(j + 1):
                both = 0.5 * float(np.vdot(products[k].T, products[j]))
                information[j, k] = information[k, j] = both
        if self.own is not None:
            return Point(value, gradient, information)
        squares = inverse * inverse
        trace = inverse.diagonal()
        trace_v = float((trace * v).sum())
        weighted = v * squares.sum(1) if self.noise is None else squares @ v
        s, m, q = d, d + 1, d + 2
        gradient[s] = 0.5 * (float(alpha @ (r - v * alpha)) - n + trace_v)
        gradient[m] = float(alpha.sum())
        information[s, s] = 0.5 * (n - 2.0 * trace_v + float((v * weighted).sum()))
        information[m, m] = float(inverse.sum())
        mixed = [(product * inverse).sum(1) for product in products]
        for j in range(d):
            both = 0.5 * (traces[j] - float((v * mixed[j]).sum()))
            information[s, j] = information[j, s] = both
        if self.noise is None:
            total = float(trace.sum())
            gradient[q] = 0.5 * free_noise * (float(alpha @ alpha) - total)
            information[q, q] = 0.5 * free_noise**2 * float(squares.sum())
            both = 0.5 * free_noise * (total - float(weighted.sum()))
            information[s, q] = information[q, s] = both
            for j in range(d):
                both = 0.5 * free_noise * float(mixed[j].sum())
                information[q, j] = information[j, q] = both
        return Point(value, gradient, information)


class LeafObjective:
    """Equation (2) of a leaf.

    Args:
        terms: The nodes on its path.
        prior: p(theta).
    """

    def __init__(self, terms: Sequence[LeafTerm], prior: LeafPrior) -> None:
        self.terms, self.prior = terms, prior
        known = all(term.noise is not None for term in terms)
        self.free = np.ones(len(prior.mode), dtype=bool)
        self.free[-1] = not known

    def evaluate(self, theta: Array) -> Point | None:
        """The objective up to a constant, its gradient and expected curvature."""
        z = (theta - self.prior.mode) / self.prior.scale
        value = -0.5 * float((z[self.free] ** 2).sum())
        gradient = -z / self.prior.scale
        information = np.diag(self.prior.scale**-2.0)
        for term in self.terms:
            point = term.evaluate(theta)
            if point is None:
                return None
            value += term.weight * point.value
            gradient += term.weight * point.gradient
            information += term.weight * point.information
        if not math.isfinite(value):
            return None
        free = self.free
        return Point(value, gradient[free], information[np.ix_(free, free)])

    def maximise(self, start: Array, max_steps: int = 40) -> Array | None:
        """The theta that maximises the objective; None if the start is not possible.

        Args:
            start: Where to begin, ``d + 3``.
            max_steps: Most steps.
        """
        bounds = (self.prior.lower, self.prior.upper)
        found = climb(self.evaluate, start, max_steps, self.free, bounds)
        return None if found is None else found[0]
