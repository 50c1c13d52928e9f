r"""Evidence and derivatives of one Gaussian process, on arrays, with the gradient.

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

__all__ = [
    "ArrayGP",
    "EvidenceObjective",
    "SlopesGivenData",
    "objective_with_signs",
    "single_task_objective",
]

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from linear_operator.utils.errors import NotPSDError
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs, dtrtrs
from torch import Tensor
from torch.nn import Parameter

from botorch_structured.linalg.correlations import Correlation, stationary_form
from botorch_structured.models.fast_inference import has_methods_of, noise_is_known
from botorch_structured.models.monotone.derivatives import StationaryDerivatives
from botorch_structured.models.monotone.expectation_propagation import (
    array_expectation_propagation,
)
from botorch_structured.models.parameters import (
    LogPriors,
    RawParameters,
    UnknownFormError,
)

Vector = NDArray[np.float64]

# Jitter as in linear_operator's psd_safe_cholesky in double precision.
_JITTERS = (0.0, 1e-8, 1e-7, 1e-6)
# Of EP in a fit: the evidence is stationary in the sites, so it has twice the digits.
_TOLERANCE = 1e-8
# Numbers in the largest array. Above, several threads of torch are faster.
_MOST = 2**20
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
    X: Vector
    targets: Vector
    raw: tuple[Parameter | None, ...]
    values: tuple[Vector, ...]
    active: tuple[int, ...]

    @classmethod
    @torch.no_grad()
    def of(
        cls, mean: Any, kernel: Any, likelihood: Any, X: Tensor, targets: Tensor
    ) -> ArrayGP | None:
        """A process in double precision on the CPU; None for what is not of this kind.

        Args:
            mean: Of the process.
            kernel: Of the process, one that ``StationaryDerivatives`` knows.
            likelihood: Of the targets.
            X: Training inputs, transformed.
            targets: Training targets.
        """
        constant = type(mean) is ConstantMean
        if (
            X.ndim != 2
            or targets.ndim != 1
            or kernel.batch_shape
            or not (constant or type(mean) is ZeroMean)
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
        scaled = type(kernel) is ScaleKernel
        inferred = type(likelihood) is GaussianLikelihood
        raw = (
            (kernel.base_kernel if scaled else kernel).raw_lengthscale,
            kernel.raw_outputscale if scaled else None,
            likelihood.noise_covar.raw_noise if inferred else None,
            mean.raw_constant if constant else None,
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

    def fits(self, points: int = 0, columns: int = 0) -> bool:
        """Whether no array is too large.

        Args:
            points: At how many there are derivatives.
            columns: With respect to how many columns, if all covariances among the
                derivatives are needed.
        """
        n, e = self.X.shape
        among = max(columns, e) * columns * points**2
        return max(e * n * n, e * n * points, among) <= _MOST

    def seen(self, points: Tensor) -> Vector:
        """The columns that the kernel sees, ``v x e``."""
        return points[:, self.active].detach().numpy()

    def places(self, columns: Sequence[int]) -> list[int]:
        """The indices of columns among those that the kernel sees."""
        return [self.active.index(column) for column in columns]


# -- covariances, and what gradients in them are in hyperparameters ---------------


class _Distances:
    """Points in pairs: what does not depend on hyperparameters.

    Args:
        x: ``n x e``.
        y: ``m x e``.
    """

    def __init__(self, x: Vector, y: Vector) -> None:
        self.differences = x.T[:, :, None] - y.T[:, None, :]  # ``e x n x m``
        self.shape = self.differences.shape[1:]
        self.squares = np.square(self.differences).reshape(len(self.differences), -1)

    def squared(self, lengthscale: Vector) -> Vector:
        """r^2, ``n x m``."""
        return (lengthscale**-2.0 @ self.squares).reshape(self.shape)

    def weighted(self, G: Vector, lengthscale: Vector) -> Vector:
        """The sums of G q_j, ``e``."""
        return (self.squares @ G.reshape(-1)) / lengthscale**3.0


class _ValueCovariance(_Distances):
    """cov(f(x), f(y)) = v c."""

    def at(self, c: Correlation, lengthscale: Vector, variance: float) -> Vector:
        self.variance, self.lengthscale = variance, lengthscale
        self.c, self.slope = c.array_value_and_slope(self.squared(lengthscale))
        return variance * self.c

    def pull(self, G: Vector) -> tuple[Vector, float]:
        """Gradients in lengthscales and variance, from G in the covariance."""
        inner = (2.0 * self.variance) * self.slope
        inner *= G
        return self.weighted(inner, self.lengthscale), float(np.vdot(G, self.c))


class _CrossCovariance(_Distances):
    """cov(f(x), d_p f(y)) = v a D_p, columns slowest, ``n x (k m)``."""

    def __init__(self, x: Vector, y: Vector, places: Sequence[int]) -> None:
        super().__init__(x, y)
        self.places = list(places)

    def at(self, c: Correlation, lengthscale: Vector, variance: float) -> Vector:
        self.variance, self.lengthscale = variance, lengthscale
        slope, curvature, _ = c.array_derivatives(self.squared(lengthscale))
        a = (2.0 * variance) * slope
        self.b = (4.0 * variance) * curvature
        self.D = [self.differences[p] / lengthscale[p] ** 2 for p in self.places]
        self.blocks = [a * D for D in self.D]
        return np.concatenate(self.blocks, axis=1)

    def pull(self, G: Vector) -> tuple[Vector, float]:
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

    def __init__(self, x: Vector, y: Vector, places: Sequence[int]) -> None:
        super().__init__(x, y)
        self.places = list(places)

    def at(self, c: Correlation, lengthscale: Vector, variance: float) -> Vector:
        self.variance, self.lengthscale = variance, lengthscale
        slope, curvature, jerk = c.array_derivatives(self.squared(lengthscale))
        self.a, self.b = (2.0 * variance) * slope, (4.0 * variance) * curvature
        self.t = (8.0 * variance) * jerk
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

    def pull(self, G: Vector) -> tuple[Vector, float]:
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


def _factor(K: Vector, noise: Vector) -> Vector:
    """The Cholesky factor of K + noise, with jitter if it has none without."""
    n = len(K)
    for jitter in _JITTERS:
        B = K.copy()
        B.flat[:: n + 1] += noise + jitter
        factor, info = dpotrf(B.T, lower=1, clean=1, overwrite_a=1)
        if info == 0:
            return factor
    raise NotPSDError(
        "The covariance of the training data is not positive definite, even with "
        f"{_JITTERS[-1]:.0e} added to its diagonal."
    )


# -- the objective of a fit -------------------------------------------------------


class EvidenceObjective:
    """Minus the evidence and the log priors, per row, of raw hyperparameters.

    Use ``of``.

    Args:
        mll: The objective, in training mode.
        gp: The process of its model.
        points: Virtual points, the columns that the kernel sees, ``v x e``; None for
            the evidence of the data alone.
        places: Columns of the derivatives there, ``k`` of them.
        signs: Of the derivatives, columns slowest, ``k v``.
        sites: To start from, precisions and shifts, ``2 k v``.
        nu: Width of the probit sites.
    """

    def __init__(
        self,
        mll: MarginalLogLikelihood,
        gp: ArrayGP,
        points: Vector | None = None,
        places: Sequence[int] = (),
        signs: Vector | None = None,
        sites: Vector | None = None,
        nu: float = 0.0,
    ) -> None:
        self._parameters = own = RawParameters(mll, None)
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

    @classmethod
    def of(
        cls, mll: MarginalLogLikelihood, gp: ArrayGP | None, *signs: Any
    ) -> EvidenceObjective | None:
        """For a fit; None for constraints, priors or parameters that are not known.

        Args:
            mll: See above.
            gp: See above; None: there is no such process.
            signs: ``points``, ``places``, ``signs``, ``sites`` and ``nu``, or nothing.
        """
        try:
            return None if gp is None else cls(mll, gp, *signs)
        except UnknownFormError:
            return None

    def read(self) -> Vector:
        """The raw parameters of the model, ``k``."""
        return self._parameters.read()

    def write(self, theta: Vector) -> None:
        """Set the raw parameters of the model."""
        self._parameters.write(theta)

    def __call__(self, theta: Vector) -> tuple[float, Vector]:
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
        self, length: Vector, variance: float, noise: Vector, constant: float
    ) -> tuple[float, Vector, Vector, Vector, Vector]:
        """And its gradients in these four."""
        gp = self.gp
        n, c = len(gp.X), gp.correlation
        K = self.K.at(c, length, variance)
        if not np.isfinite(K).all():
            nothing = np.zeros(1)
            return math.nan, nothing, nothing, nothing, nothing
        L = _factor(K, noise)
        residual = gp.targets - constant
        alpha = dpotrs(L, residual, lower=1)[0]
        A = dpotri(L, lower=1)[0]
        A += np.tril(A, -1).T
        evidence = -0.5 * float(residual @ alpha) - 0.5 * n * _LOG_2PI
        evidence -= float(np.log(L.diagonal()).sum())
        G = np.multiply.outer(0.5 * alpha, alpha)
        G -= 0.5 * A
        of_constant = alpha.sum()
        if self.signs is not None:
            signs = self.signs
            C = self.C.at(c, length, variance) * signs
            S = self.S.at(c, length, variance) * signs * signs[:, None]
            H = dpotrs(L, C, lower=1)[0]
            ep = array_expectation_propagation(
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
            GS = W * signs * signs[:, None]
        of_length, of_variance = self.K.pull(G)
        if self.signs is not None:
            for part, gradient in ((self.C, GC), (self.S, GS)):
                more = part.pull(gradient)
                of_length, of_variance = of_length + more[0], of_variance + more[1]
        return (
            evidence,
            of_length,
            np.array([of_variance]),
            G.diagonal(),
            np.array([of_constant]),
        )


def _is_own_evidence(mll: MarginalLogLikelihood, *terms: type) -> bool:
    """Whether an objective is the evidence of its model with the model's likelihood.

    Args:
        mll: Any objective.
        terms: Classes of loss terms that may be added to it.
    """
    return (
        type(mll) is ExactMarginalLogLikelihood
        and mll.likelihood is mll.model.likelihood
        and all(type(term) in terms for term in mll.model.added_loss_terms())
    )


def single_task_objective(mll: MarginalLogLikelihood) -> EvidenceObjective | None:
    """That of a ``SingleTaskGP`` itself, in training mode; None for another model."""
    model: Any = mll.model
    plain = (
        type(model) is SingleTaskGP
        and _is_own_evidence(mll)
        and stationary_form(model.covar_module) is not None
    )
    if not plain:
        return None
    parts = model.mean_module, model.covar_module, model.likelihood
    X = model.transform_inputs(model.train_inputs[0])
    gp = ArrayGP.of(*parts, X, model.train_targets)
    return EvidenceObjective.of(mll, gp) if gp is not None and gp.fits() else None


def objective_with_signs(
    mll: MarginalLogLikelihood, kind: Any, *terms: type
) -> EvidenceObjective | None:
    """That of a ``MonotoneGP`` with sites; None where it is that of tensors.

    Args:
        mll: The objective, in training mode.
        kind: ``MonotoneGP``, of which a subclass may define another objective.
        terms: Classes of loss terms for the evidence of signs.
    """
    model: Any = mll.model
    kept = ("forward", "__call__", "compute_custom_loss", "_fast_evidence")
    if (
        not has_methods_of(kind, model, *kept)
        or not _is_own_evidence(mll, *terms)
        or (gp := model._array_gp()) is None
    ):
        return None
    if not model.signs_in_fit:
        return EvidenceObjective.of(mll, gp) if gp.fits() else None
    points, columns = model.virtual_points, model.covar_module.sites.columns
    if not gp.fits(len(points), len(columns)):
        return None
    signs, sites = model.site_signs.numpy(), model._array_sites().ravel()
    given = gp.seen(points), gp.places(columns), signs, sites, model.nu
    return EvidenceObjective.of(mll, gp, *given)


# -- derivatives given the data ---------------------------------------------------


class SlopesGivenData:
    """Moments of derivatives times their signs, given the data, at some points.

    See ``virtual_points.Slopes``; there is one element in the batch.

    Args:
        gp: The process, with its present hyperparameters.
        points: The columns that the kernel sees, ``v x e``.
        places: Columns of the derivatives, ``k`` of them.
        signs: Of the derivatives, columns slowest, ``k v``.
    """

    def __init__(
        self, gp: ArrayGP, points: Vector, places: Sequence[int], signs: Vector
    ) -> None:
        self._gp, self._points = gp, points
        self._places, self._signs = places, signs
        length, (variance,), noise, constant = gp.values
        self._kernel = gp.correlation, np.broadcast_to(length, gp.X.shape[1]), variance
        L = _factor(_ValueCovariance(gp.X, gp.X).at(*self._kernel), noise)
        C = _CrossCovariance(gp.X, points, places).at(*self._kernel) * signs
        self._half = dtrtrs(L, C, lower=1)[0]
        white = dtrtrs(L, gp.targets - constant, lower=1)[0]
        self.mean = (white @ self._half)[None]
        at_zero = gp.correlation.array_derivatives(np.zeros(1))[0][0]
        prior = 2.0 * variance * at_zero / self._kernel[1][list(places)] ** 2
        gone = np.einsum("ij,ij->j", self._half, self._half)
        self.variance = (np.repeat(prior, len(points)) - gone)[None]

    def rows(self, points: Sequence[int]) -> Vector:
        """Covariances of the derivatives at some points with all of them.

        Args:
            points: Their indices.

        Returns:
            ``1 x (k len(points)) x (k v)``.
        """
        v, chosen = len(self._points), np.asarray(points, dtype=np.int64)
        pairs = _SlopeCovariance(self._points[chosen], self._points, self._places)
        at = (v * np.arange(len(self._places))[:, None] + chosen).ravel()
        S = pairs.at(*self._kernel) * self._signs * self._signs[at, None]
        return (S - self._half[:, at].T @ self._half)[None]
