r"""The evidence of one Gaussian process and its signs on arrays, with the gradient.

``MonotoneGP`` defines all of this on tensors, for batches, several outputs, any mean
and any Gaussian likelihood. Here it is written out for what most models are: a
stationary kernel, a constant mean, one process, few rows.

**Evidence.** Let A = (K + noise)^-1 and alpha = A (y - m), C the covariances of values
with derivatives g times their signs, and S those of g. Given the data g has

    the mean C' alpha    and the covariance    S - C' A C.

EP gives log Z_EP of the signs and, at its fixed point, its gradients w in this mean and
W in this covariance. With H = A C those of log p(y) + log Z_EP are

    in K    (alpha alpha' - A) / 2 - sym(H w alpha') + H W H'
    in C    alpha w' - 2 H W
    in S    W
    in m    sum(alpha) - w' H' 1.

**Chain rule.** For k = v c(r^2) with a = -2 c', b = 4 c'' and t = -8 c''', for
D_p = (x_p - y_p) / l_p^2 and q_j = (x_j - y_j)^2 / l_j^3,

    d c / d l_j = a q_j,    d a / d l_j = b q_j,    d b / d l_j = t q_j.
"""

from __future__ import annotations

__all__ = ["ArrayGP", "EvidenceObjective"]

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.mlls import MarginalLogLikelihood
from scipy.linalg.lapack import dpotri, dpotrs
from torch.nn import Parameter

from botorch_structured.linalg.correlations import (
    Correlation,
    computes_as,
    stationary_form,
)
from botorch_structured.linalg.factor import Array, cholesky
from botorch_structured.models.fast_inference import noise_is_known
from botorch_structured.models.monotone.derivatives import StationaryDerivatives
from botorch_structured.models.monotone.expectation_propagation import (
    expectation_propagation,
)
from botorch_structured.models.parameters import (
    LogPriors,
    RawParameters,
    UnknownFormError,
)

# Of EP in a fit: the evidence is stationary in the sites, so it has twice the digits.
_TOLERANCE = 1e-8
_LOG_2PI = math.log(2.0 * math.pi)


@dataclass(frozen=True)
class ArrayGP:
    """A process with a stationary kernel and a constant mean, and its data.

    Attributes:
        correlation: c.
        X: Training inputs, the columns that the kernel sees, ``n x e``.
        targets: ``n``.
        raw: Parameters of lengthscales, variance, noise variances and mean; None where
            the model has none.
        values: The same, constrained: ``1`` or ``e``, ``1``, ``1`` or ``n``, ``1``.
        active: The columns that the kernel sees.
    """

    correlation: Correlation
    X: Array
    targets: Array
    raw: tuple[Parameter | None, ...]
    values: tuple[Array, ...]
    active: tuple[int, ...]

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any) -> ArrayGP | None:
        """That of a model without its sites; None for what is not of this kind.

        Args:
            model: A ``MonotoneGP`` with sites.
        """
        mean, likelihood = model.mean_module.base_mean, model.likelihood
        kernel = model.covar_module.base_kernel
        X, targets = model.train_inputs[0], model.train_targets
        X = model.transform_inputs(X) if model.training else X
        constant = computes_as(mean, ConstantMean)
        if (
            X.ndim != 2
            or targets.ndim != 1
            or stationary_form(kernel) is None
            or kernel.batch_shape
            or not (constant or computes_as(mean, ZeroMean))
            or getattr(mean, "batch_shape", None)
            or not noise_is_known(likelihood)
            or getattr(likelihood, "second_noise_covar", None) is not None
        ):
            return None
        form = StationaryDerivatives.of(kernel)
        at = mean.constant if constant else X.new_zeros(())
        tensors = form.lengthscale, form.variance, likelihood.noise, at
        arrays = (X, targets, *tensors)
        if any(t.device.type != "cpu" or t.dtype != torch.float64 for t in arrays):
            return None
        raw = (
            getattr(kernel, "base_kernel", kernel).raw_lengthscale,
            getattr(kernel, "raw_outputscale", None),
            getattr(likelihood, "raw_noise", None),
            getattr(mean, "raw_constant", None),
        )
        active = form.active or tuple(range(X.shape[-1]))
        return cls(
            form.correlation,
            X[:, active].detach().numpy(),
            targets.detach().numpy(),
            raw,
            tuple(t.reshape(-1).numpy().copy() for t in tensors),
            active,
        )


# -- covariances, and what gradients in them are in hyperparameters ---------------


class _Distances:
    """Points in pairs: what does not depend on hyperparameters.

    Args:
        x: ``n x e``.
        y: ``m x e``.
        places: Columns of derivatives.
    """

    def __init__(self, x: Array, y: Array, places: Sequence[int] = ()) -> None:
        self.places = list(places)
        self.differences = x.T[:, :, None] - y.T[:, None, :]  # ``e x n x m``
        self.shape = self.differences.shape[1:]
        self.squares = np.square(self.differences).reshape(len(self.differences), -1)

    def at(self, c: Correlation, lengthscale: Array, variance: float) -> Array:
        """The covariance."""
        self.variance, self.lengthscale = variance, lengthscale
        return self._of(c, (lengthscale**-2.0 @ self.squares).reshape(self.shape))

    def _of(self, c: Correlation, squared: Array) -> Array:
        """The same, from r^2, ``n x m``."""
        raise NotImplementedError

    def weighted(self, G: Array, lengthscale: Array) -> Array:
        """The sums of G q_j, ``e``."""
        return (self.squares @ G.reshape(-1)) / lengthscale**3.0


class _ValueCovariance(_Distances):
    """cov(f(x), f(y)) = v c."""

    def _of(self, c: Correlation, squared: Array) -> Array:
        self.c, self.slope = c.array_value_and_slope(squared)
        return self.variance * self.c

    def pull(self, G: Array) -> tuple[Array, float]:
        """Gradients in lengthscales and variance, from G in the covariance."""
        inner = (2.0 * self.variance) * self.slope
        inner *= G
        return self.weighted(inner, self.lengthscale), float(np.vdot(G, self.c))


class _CrossCovariance(_Distances):
    """cov(f(x), d_p f(y)) = v a D_p, columns slowest, ``n x (k m)``."""

    def _of(self, c: Correlation, squared: Array) -> Array:
        slope, curvature, _ = c.array_derivatives(squared)
        a = (2.0 * self.variance) * slope
        self.b = (4.0 * self.variance) * curvature
        self.D = [self.differences[p] / self.lengthscale[p] ** 2 for p in self.places]
        self.blocks = [a * D for D in self.D]
        return np.concatenate(self.blocks, axis=1)

    def pull(self, G: Array) -> tuple[Array, float]:
        """See ``_ValueCovariance.pull``."""
        parts = np.split(G, len(self.places), axis=1)
        sums = [np.vdot(g, C) for g, C in zip(parts, self.blocks, strict=True)]
        M = sum(g * D for g, D in zip(parts, self.D, strict=True))
        slopes = self.weighted(self.b * M, self.lengthscale)
        for p, total in zip(self.places, sums, strict=True):
            slopes[p] -= 2.0 * total / self.lengthscale[p]
        return slopes, float(sum(sums)) / self.variance


class _SlopeCovariance(_Distances):
    """cov(d_p f(x), d_q f(y)) = v (a [p = q] / l_p^2 - b D_p D_q), columns slowest."""

    def _of(self, c: Correlation, squared: Array) -> Array:
        slope, curvature, jerk = c.array_derivatives(squared)
        v, lengthscale = self.variance, self.lengthscale
        self.a, self.b, self.t = 2.0 * v * slope, 4.0 * v * curvature, 8.0 * v * jerk
        self.D = [self.differences[p] / lengthscale[p] ** 2 for p in self.places]
        n, m = self.shape
        k = len(self.places)
        S = np.empty((k, n, k, m))
        for i, p in enumerate(self.places):
            for j in range(k):
                S[i, :, j] = -self.b * self.D[i] * self.D[j]
            S[i, :, i] += self.a / lengthscale[p] ** 2
        self.S = S.reshape(k * n, k * m)
        return self.S

    def pull(self, G: Array) -> tuple[Array, float]:
        """See ``_ValueCovariance.pull``."""
        n, m = self.shape
        k, length = len(self.places), self.lengthscale
        parts = G.reshape(k, n, k, m)
        inner = np.zeros(self.shape)
        slopes = np.zeros(len(length))
        for i, p in enumerate(self.places):
            for j, q in enumerate(self.places):
                DD = self.D[i] * self.D[j]
                DD *= parts[i, :, j]
                inner -= self.t * DD
                total = 2.0 * np.vdot(self.b, DD)
                slopes[p] += total / length[p]
                slopes[q] += total / length[q]
            own = parts[i, :, i]
            inner += self.b * own / length[p] ** 2
            slopes[p] -= 2.0 * np.vdot(self.a, own) / length[p] ** 3
        slopes += self.weighted(inner, length)
        return slopes, float(np.vdot(G, self.S)) / self.variance


# -- the objective of a fit -------------------------------------------------------


class EvidenceObjective:
    """Minus the evidence and the log priors, per row, of raw hyperparameters.

    Args:
        mll: The objective, in training mode.
        gp: The process of its model.
        points: Virtual points, the columns that the kernel sees, ``v x e``; None for
            the evidence of the data alone.
        places: Columns of the derivatives there, ``k`` of them.
        signs: Of the derivatives, columns slowest, ``k v``.
        sites: To start from, precisions and shifts, ``2 k v``.
        nu: Width of the probit sites.

    Raises:
        UnknownFormError: For constraints, priors or parameters that are not known.
    """

    def __init__(
        self,
        mll: MarginalLogLikelihood,
        gp: ArrayGP,
        points: Array | None = None,
        places: Sequence[int] = (),
        signs: Array | None = None,
        sites: Array | None = None,
        nu: float = 0.0,
    ) -> None:
        self._parameters = own = RawParameters(mll, None)
        self.read, self.write = own.read, own.write
        self._priors = LogPriors(mll.model, own)
        self.bounds, self.gp = own.bounds, gp
        self.units = np.ones(len(own.free))
        self.nu, self.signs, self.sites = nu, signs, sites
        *positive, constant = gp.raw
        self._logarithms = [None if p is None else own.logarithm(p) for p in positive]
        self._constant = None if constant is None else own.unbounded(constant)
        known = {id(p) for p in gp.raw}
        if any(p.requires_grad and id(p) not in known for p in mll.parameters()):
            raise UnknownFormError
        self.K = _ValueCovariance(gp.X, gp.X)
        if points is not None:
            self.C = _CrossCovariance(gp.X, points, places)
            self.S = _SlopeCovariance(points, points, places)

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient at raw parameters ``k``."""
        u, chain = self._parameters.logarithms(theta)
        prior, gradient = self._priors(u)
        n, e = self.gp.X.shape
        *given, constant = self.gp.values
        values = [
            value if place is None else np.exp(u[place])
            for place, value in zip(self._logarithms, given, strict=True)
        ]
        length, (variance,), noise = values
        if self._constant is not None:
            constant = u[self._constant]
        evidence, *slopes, slope = self._evidence(
            np.broadcast_to(length, e), variance, noise, constant[0]
        )
        for place, value, one in zip(self._logarithms, values, slopes, strict=True):
            if place is not None:
                own = one if len(one) == len(value) else one.sum()
                gradient[place] += own * value
        if self._constant is not None:
            gradient[self._constant] += slope
        if chain is not None:
            gradient *= chain
        value = -(evidence + prior) / n
        if not math.isfinite(value):  # as BoTorch says it to SciPy
            return math.nan, np.full_like(theta, np.nan)
        return value, gradient[self._parameters.free] / -n

    def _evidence(
        self, length: Array, variance: float, noise: Array, constant: float
    ) -> tuple[float, Array, Array, Array, Array]:
        """And its gradients in these four."""
        gp = self.gp
        n, c = len(gp.X), gp.correlation
        K = self.K.at(c, length, variance)
        if not np.isfinite(K).all():
            nothing = np.zeros(1)
            return math.nan, nothing, nothing, nothing, nothing
        noisy = K.copy()
        noisy.flat[:: n + 1] += noise
        L = cholesky(noisy)
        residual = gp.targets - constant
        alpha = dpotrs(L, residual, lower=1)[0]
        A = dpotri(L, lower=1)[0]
        A += np.tril(A, -1).T
        evidence = -0.5 * float(residual @ alpha) - 0.5 * n * _LOG_2PI
        evidence -= float(np.log(L.diagonal()).sum())
        G = np.multiply.outer(0.5 * alpha, alpha)
        G -= 0.5 * A
        of_constant, pulled = alpha.sum(), []
        if self.signs is not None:
            signs = self.signs
            C = self.C.at(c, length, variance) * signs
            S = self.S.at(c, length, variance) * signs * signs[:, None]
            H = dpotrs(L, C, lower=1)[0]
            ep = expectation_propagation(
                C.T @ alpha, S - C.T @ H, self.nu, self.sites, _TOLERANCE
            )
            if math.isfinite(ep.residual):
                self.sites = ep.sites
            evidence += ep.log_evidence
            w = ep.weight
            W = 0.5 * (np.multiply.outer(w, w) - ep.root.T @ ep.root)
            HW, Hw = H @ W, H @ w
            cross = np.multiply.outer(0.5 * Hw, alpha)
            G += HW @ H.T - cross - cross.T
            of_constant -= Hw.sum()
            GC = (np.multiply.outer(alpha, w) - 2.0 * HW) * signs
            pulled += [self.C.pull(GC), self.S.pull(W * signs * signs[:, None])]
        pulled.append(self.K.pull(G))
        of_length, of_variance = (sum(part) for part in zip(*pulled, strict=True))
        return (
            evidence,
            of_length,
            np.array([of_variance]),
            G.diagonal(),
            np.array([of_constant]),
        )
