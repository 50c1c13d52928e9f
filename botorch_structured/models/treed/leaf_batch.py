"""What small nodes ask of the leaves below them, of many leaves at once.

Of a few dozen rows the calls take longer than the work: see ``leaf_density`` for the
same sum of one leaf.
"""

from __future__ import annotations

__all__ = ["LeafBatch"]

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from botorch_structured.models.treed.leaf_density import LeafDensity
from botorch_structured.models.treed.tree import Array

_LOG_TWO_PI = math.log(2.0 * math.pi)
# Elements of matrices that are worked on together: several arrays fit into the cache.
_ELEMENTS = 30_000


class LeafBatch:
    """Log posterior densities of leaves, each with one term.

    Rows that a leaf lacks are padding: of no weight, covariance 0 and noise 1.

    Args:
        densities: Of the leaves, with one term or none.
    """

    def __init__(self, densities: Sequence[LeafDensity]) -> None:
        self.densities = densities
        terms = [density.terms[0] if density.terms else None for density in densities]
        L, first = len(terms), densities[0]
        self.correlation = first.correlation
        d = len(first.mode) - 3
        m = max((len(term.y) for term in terms if term), default=0)
        D = max((len(term.sizes) for term in terms if term), default=1)
        self.X, self.y, self.noise = np.zeros((L, m, d)), np.zeros((L, m)), None
        self.data, self.members = np.zeros((L, m)), np.zeros((L, D, m))
        self.weights = np.zeros((L, D))
        for j, term in enumerate(terms):
            if term is None:
                continue
            rows = slice(len(term.y))
            self.X[j, rows], self.y[j, rows], self.data[j, rows] = term.X, term.y, 1.0
            if term.noise is not None:
                if self.noise is None:
                    self.noise = np.ones((L, m))
                self.noise[j, rows] = term.noise
            for k, size in enumerate(term.sizes):
                self.members[j, k, :size] = 1.0
            self.weights[j, : len(term.sizes)] = term.weights
        self.row_weights = np.einsum("ldm,ld->lm", self.members, self.weights)

    def __call__(self, leaves: NDArray[np.int64], theta: Array) -> tuple[Array, Array]:
        """Values ``k`` and gradients ``k x (d + 3)``.

        Args:
            leaves: Which, ``k``.
            theta: Their hyperparameters, ``k x (d + 3)``.
        """
        step = max(1, _ELEMENTS // max(self.data.shape[1], 1) ** 2)
        parts = [slice(i, i + step) for i in range(0, len(leaves), step)]
        found = [self._evaluate(leaves[part], theta[part]) for part in parts]
        return np.concatenate([f for f, _ in found]), np.concatenate(
            [g for _, g in found]
        )

    def _evaluate(self, leaves: NDArray[np.int64], theta: Array) -> tuple[Array, Array]:
        data, weights = self.data[leaves], self.weights[leaves]
        k, m = data.shape
        d = theta.shape[1] - 3
        amplitude, v = np.exp(theta[:, d]), np.exp(theta[:, d + 2])
        s = self.X[leaves] * np.exp(-theta[:, None, :d])
        squares = np.square(s).sum(-1)
        distance = s @ s.transpose(0, 2, 1)
        distance *= -2.0
        distance += squares[:, :, None]
        distance += squares[:, None]
        np.maximum(distance, 0.0, out=distance)
        distance.reshape(k, -1)[:, :: m + 1] = 0.0
        corr, slope = self.correlation.array_value_and_slope(distance)
        corr *= data[:, :, None]
        corr *= data[:, None]
        noise = v[:, None] if self.noise is None else self.noise[leaves]
        covariance = corr * amplitude[:, None, None]
        covariance.reshape(k, -1)[:, :: m + 1] += np.where(data > 0.0, noise, 1.0)
        try:
            chol = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:  # one by one, with jitter where that is needed
            found = [self.densities[j](at) for j, at in zip(leaves, theta, strict=True)]
            return np.array([f for f, _ in found]), np.stack([g for _, g in found])
        factor = torch.from_numpy(chol)
        unit = torch.eye(m, dtype=factor.dtype)
        turned = torch.linalg.solve_triangular(factor, unit, upper=False).numpy()
        residual = (self.y[leaves] - theta[:, d + 1, None]) * data
        half = (turned @ residual[..., None])[..., 0]
        logs = 2.0 * np.log(chol.reshape(k, -1)[:, :: m + 1])
        row_weights = self.row_weights[leaves]
        totals = (row_weights * (half * half + logs + _LOG_TWO_PI)).sum(-1)
        parts = self.members[leaves] * half[:, None]  # k x D x m
        alpha = parts @ turned
        # G of ``objective``
        weighted = alpha * weights[..., None]
        g = alpha.transpose(0, 2, 1) @ weighted
        g -= turned.transpose(0, 2, 1) @ (turned * row_weights[..., None])
        g *= 0.5
        z = theta - self.densities[0].mode
        gradient = -self.densities[0].precision * z
        values = 0.5 * (gradient * z).sum(-1) - 0.5 * totals
        gradient[:, d] += amplitude * (g * corr).sum((-1, -2))
        gradient[:, d + 1] += (weighted.sum(1) * data).sum(-1)
        if self.noise is None:
            diagonal = g.reshape(k, -1)[:, :: m + 1]
            gradient[:, d + 2] += v * (diagonal * data).sum(-1)
        g *= slope
        g *= data[:, :, None]
        g *= data[:, None]
        inner = g.sum(-1, keepdims=True) * s - g @ s
        gradient[:, :d] += 4.0 * amplitude[:, None] * (inner * s).sum(1)
        return values, gradient
